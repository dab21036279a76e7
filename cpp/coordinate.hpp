// The paper's row solver: cycles over the coordinates, each one projected Newton step in one dimension with a line search.
// As in the reference implementation the curvature of a count is y (1 + 1/em)^2, above the second derivative
// y (1 + 1/em) / em by y (1 + 1/em): shorter steps, which the published fits depend on (they were stopped on the way).
// Every step needs a fresh exp per entry and a fresh log per count; 1/em is kept from the line search, so nothing else is.
#pragma once

#include <limits>

#include "row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class CoordinateRow {
 public:
  CoordinateRow(const HalfStep& h, const Design& design)
      : K_(h.n_components), h_(h), design_(design), evaluator_(h, design), entries_(longest_row(h)),
        X_(h.model.exact_zeros ? 0 : entries_ * design.streams), y_(entries_), position_x_(entries_),
        b_(K_), gram_b_(K_), now_(entries_), next_(entries_) {}

  void run(std::int64_t i) {
    row_ = row_at(h_.rows, i);
    const double* start = h_.start + i * K_;
    double* out = h_.values + i * K_;
    evaluator_.start_row(row_);
    h_.loss[i] = evaluator_.evaluate<Level::gradient>(start, h_.gradient + i * K_, nullptr);
    h_.rejected[i] = 0;
    std::copy_n(start, K_, static_cast<double*>(b_));
    if (row_.count == 0) std::fill_n(static_cast<double*>(b_), K_, 0.0);
    else if (h_.model.exact_zeros) cycles<false, true>(h_.rejected[i]);
    else if (h_.model.identity) cycles<true, false>(h_.rejected[i]);
    else cycles<false, false>(h_.rejected[i]);
    std::copy_n(static_cast<double*>(b_), K_, out);
    h_.decrease[i] = row_.count == 0 ? h_.loss[i] + penalty(start) : h_.loss[i] + penalty(start) - loss_ - penalty(b_);
  }

 private:
  static constexpr int kCycles = 3;

  struct State {   // at one set of coefficients
    Buffer eta, em, inverse;
    explicit State(std::int64_t n) : eta(n), em(n), inverse(n) {}
  };

  static std::int64_t longest_row(const HalfStep& h) {
    std::int64_t longest = 0;
    if (h.model.exact_zeros) longest = h.rows.n_columns;
    else
      for (std::int64_t i = 0; i < h.rows.n_rows; ++i) longest = std::max(longest, h.rows.indptr[i + 1] - h.rows.indptr[i]);
    return round_up(longest, kLargestBlock);
  }

  template <bool Identity, bool Exact>
  void cycles(std::uint8_t& rejected) {
    lay_out<Exact>();
    State *now = &now_, *next = &next_;
    for (std::int64_t e = 0; e < padded_; e += kLanes) {
      Vec eta = Vec{};
      for (int k = 0; k < K_; ++k) eta += b_[k] * load(x(k) + e);
      store(now->eta + e, eta);
    }
    refresh_gram();
    loss_ = look<Identity, Exact>(*now, *now, 0, 0.0) + base(0, 0.0);
    for (int cycle = 0; cycle < kCycles; ++cycle) {
      double moved = 0.0;
      for (int k = 0; k < K_; ++k) moved += step<Identity, Exact>(k, now, next, rejected);
      if (moved == 0.0) break;
    }
  }

  template <bool Exact>
  void lay_out() {
    read_values(h_.rows, row_.offset, row_.count, y_);
    counts_padded_ = round_up(row_.count, kStep);
    std::fill(y_ + row_.count, y_ + counts_padded_, 0.0);
    if constexpr (Exact) {
      padded_ = round_up(h_.rows.n_columns, kStep);
      X_now_ = design_.transposed;
      stride_ = design_.padded;
    } else {
      padded_ = counts_padded_;
      X_now_ = X_;
      stride_ = entries_;
      gather(design_, row_.indices, static_cast<int>(row_.count), row_.readable, X_, entries_);
      for (int k = 0; k <= K_; ++k) std::fill(X_ + k * entries_ + row_.count, X_ + k * entries_ + padded_, 0.0);
    }
  }

  const double* x(int k) const { return X_now_ + k * stride_; }

  // eta of `to` = eta of `from` + delta * x_k, with em and 1/em (at the counts); returns the entries' loss there.
  template <bool Identity, bool Exact>
  double look(const State& from, State& to, int k, double delta) {
    constexpr int U = kUnroll;
    Vec loss = Vec{};
    const double a1 = h_.model.a1, a2 = h_.model.a2;
    for (std::int64_t e = 0; e < padded_; e += kStep) {
      Vec eta[U], em[U], bounded[U];
      LOG1PNMF_EACH {   // what is left of eta when it cancels is rounding, not a mean a count could have
        const Vec before = load(from.eta + e + u * kLanes);
        eta[u] = before + delta * load(x(k) + e + u * kLanes);
        eta[u] = eta[u] < 1e-13 * before ? Vec{} : eta[u];
      }
      LOG1PNMF_EACH bounded[u] = clamp_eta<Identity>(eta[u]);
      mean_part<Identity, U>(bounded, em);
      LOG1PNMF_EACH {
        store(to.eta + e + u * kLanes, eta[u]);
        store(to.em + e + u * kLanes, em[u]);
      }
      if constexpr (!Identity)
        LOG1PNMF_EACH {
          const Vec t = row_.exposure * load(x(K_) + e + u * kLanes);
          loss += t * (Exact ? em[u] : em[u] - eta[u] * (a1 + a2 * eta[u]));
        }
      if constexpr (!Exact) loss += log_part(to, e, em);
    }
    if constexpr (Exact) {
      for (std::int64_t p = 0; p < row_.count; ++p) to.inverse[p] = to.em[row_.indices[p]];
      std::fill(to.inverse + row_.count, to.inverse + counts_padded_, 1.0);
      for (std::int64_t p = 0; p < counts_padded_; p += kStep) {
        Vec em[U];
        LOG1PNMF_EACH em[u] = load(to.inverse + p + u * kLanes);
        loss += log_part(to, p, em);
      }
    }
    return horizontal_sum(loss);
  }

  Vec log_part(State& to, std::int64_t at, const Vec* em) {
    constexpr int U = kUnroll;
    Vec log[U], inverse[U], loss = Vec{};
    log_and_reciprocal<U>(em, log, inverse);
    LOG1PNMF_EACH {
      loss += load(y_ + at + u * kLanes) * (impossible(em[u]) - log[u]);
      store(to.inverse + at + u * kLanes, inverse[u]);
    }
    return loss;
  }

  // First and second derivative of the entries' loss along coordinate k.
  template <bool Identity, bool Exact>
  void derivatives(const State& at, int k, double& first, double& second) {
    Vec g = Vec{}, h = Vec{};
    const double a1 = h_.model.a1, a2 = h_.model.a2;
    if constexpr (!Identity)
      for (std::int64_t e = 0; e < padded_; e += kLanes) {
        const Vec em = load(at.em + e), xk = load(x(k) + e), t = row_.exposure * load(x(K_) + e);
        if constexpr (Exact) {
          const Vec tx = t * (em + 1.0) * xk;
          g += tx;
          h += tx * xk;
        } else {
          g += t * (em - 2.0 * a2 * load(at.eta + e) + (1.0 - a1)) * xk;
          h += t * (em + (1.0 - 2.0 * a2)) * xk * xk;
        }
      }
    const double* xk = x(k);
    if constexpr (Exact) {
      for (std::int64_t p = 0; p < row_.count; ++p) position_x_[p] = xk[row_.indices[p]];
      xk = position_x_;
    }
    for (std::int64_t p = 0; p < counts_padded_; p += kLanes) {
      const Vec inverse = load(at.inverse + p), xp = load(xk + p), ratio = load(y_ + p) * inverse;
      if constexpr (Identity) {
        g -= ratio * xp;
        h += ratio * inverse * xp * xp;
      } else {
        g -= (load(y_ + p) + ratio) * xp;
        h += (load(y_ + p) + ratio) * (inverse + 1.0) * xp * xp;   // the reference's, see above
      }
    }
    first = horizontal_sum(g);
    second = horizontal_sum(h);
  }

  template <bool Identity, bool Exact>
  double step(int k, State*& now, State*& next, std::uint8_t& rejected) {
    double g, h;
    derivatives<Identity, Exact>(*now, k, g, h);
    if constexpr (!Exact) {
      g += row_.exposure * (h_.model.a1 * design_.linear[k] + 2.0 * h_.model.a2 * gram_b_[k]);
      h += 2.0 * h_.model.a2 * row_.exposure * design_.gram[k * K_ + k];
    }
    g += h_.penalty[k];
    double to = b_[k];
    if (h > std::numeric_limits<double>::min()) to = std::min(h_.upper, std::max(0.0, b_[k] - g / h));
    else if (g > 0.0) to = 0.0;
    double delta = to - b_[k];
    if (delta == 0.0) return 0.0;
    for (int attempt = 0; attempt < 30; ++attempt, delta *= 0.5) {
      const double after = look<Identity, Exact>(*now, *next, k, delta) + (Exact ? 0.0 : base(k, delta));
      if (after + h_.penalty[k] * delta <= loss_ + 0.01 * g * delta) {
        loss_ = after;
        b_[k] = attempt == 0 ? to : b_[k] + delta;
        if (!Exact)
          for (int l = 0; l < K_; ++l) gram_b_[l] += delta * design_.gram[l * K_ + k];
        std::swap(now, next);
        return std::abs(delta);
      }
      rejected = 1;
    }
    return 0.0;
  }

  void refresh_gram() {
    if (h_.model.exact_zeros) return;
    for (int k = 0; k < K_; ++k) {
      gram_b_[k] = 0.0;
      for (int l = 0; l < K_; ++l) gram_b_[k] += design_.gram[k * K_ + l] * b_[l];
    }
  }

  // The whole-matrix part of the loss at b + delta e_k (sparse form only).
  double base(int k, double delta) const {
    if (h_.model.exact_zeros) return 0.0;
    double linear = delta * design_.linear[k];
    double quadratic = 2.0 * delta * gram_b_[k] + delta * delta * design_.gram[k * K_ + k];
    for (int l = 0; l < K_; ++l) {
      linear += design_.linear[l] * b_[l];
      quadratic += gram_b_[l] * b_[l];
    }
    return row_.exposure * (h_.model.a1 * linear + h_.model.a2 * quadratic);
  }

  double penalty(const double* b) const {
    double sum = 0.0;
    for (int k = 0; k < K_; ++k) sum += h_.penalty[k] * b[k];
    return sum;
  }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  RowEvaluator evaluator_;
  std::int64_t entries_;
  Buffer X_, y_, position_x_, b_, gram_b_;
  State now_, next_;
  Row row_{};
  const double* X_now_ = nullptr;
  std::int64_t stride_ = 0, padded_ = 0, counts_padded_ = 0;
  double loss_ = 0.0;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
