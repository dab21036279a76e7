// The paper's row solver: cycles over the coordinates, each one projected Newton step in one
// dimension with a line search. As in the reference implementation the curvature of a count is y (1
// + 1/em)^2, above the second derivative y (1 + 1/em) / em by y (1 + 1/em): shorter steps, which
// the published fits depend on (they were stopped on the way). The line search needs a log per
// count and a fresh exp per entry, but most steps are so short that its answer is known (see
// holds()): those take no log, and the shortest of them no exp either.
#pragma once

#include <limits>

#include "row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Poisson noise only.
template <class Link>
class CoordinateRow {
 public:
  CoordinateRow(const HalfStep& h, const Design& design)
      : K_(h.n_components), h_(h), design_(design), evaluator_(h, design), entries_(longest_row(h)),
        X_(h.model.exact_zeros ? 0 : entries_ * design.streams), y_(entries_), counts_em_(entries_),
        counts_x_(h.model.exact_zeros ? entries_ * h.n_components : 0), b_(K_), gram_b_(K_),
        now_(entries_), next_(entries_) {}

  void run(Index i) {
    row_ = row_at(h_, i);
    box_ = h_.bounds.at(i);
    const double* start = h_.start + i * K_;
    evaluator_.start_row(row_);
    loss_ = evaluator_.template evaluate<Level::gradient>(start, h_.gradient + i * K_, nullptr);
    h_.loss[i] = loss_;
    rejected_ = 0;
    std::copy_n(row_.count == 0 ? box_.lower : start, K_, b_ + 0);
    if (row_.count == 0) loss_ = box_.above_zero(K_) ? evaluator_.loss(b_) : 0.0;
    else if (Link::kLinear || !h_.model.exact_zeros) cycles<false>();
    else if constexpr (!Link::kLinear) cycles<true>();
    h_.rejected[i] = rejected_;
    std::copy_n(b_ + 0, K_, h_.values + i * K_);
    h_.decrease[i] = h_.loss[i] + box_.cost(K_, start) - loss_ - box_.cost(K_, b_);
  }

 private:
  static constexpr int kCycles = 3;
  // The seventh term of the series is then below the last bit
  static constexpr double kShort = 1.0 / 128;
  // After which em is computed anew, so that rounding does not add up
  static constexpr int kShortMoves = 64;

  struct State {  // at one set of coefficients
    Buffer eta, em, inverse;
    explicit State(Index n) : eta(n), em(n), inverse(n) {}
  };

  static Index longest_row(const HalfStep& h) {
    Index longest = h.model.exact_zeros ? h.rows.n_columns : 0;
    for (Index i = 0; i < h.rows.n_rows; ++i)
      longest = std::max(longest, h.rows.indptr[i + 1] - h.rows.indptr[i]);
    return round_up(longest, kLargestBlock);
  }

  // Exact: all entries are laid out, with the counts gathered from them; otherwise counts alone.
  template <bool Exact>
  void cycles() {
    lay_out<Exact>();
    State *now = &now_, *next = &next_;
    for (Index e = 0; e < padded_; e += kLanes) {
      Vec eta = Vec{};
      for (int k = 0; k < K_; ++k) eta += b_[k] * load(x(k) + e);
      store(now->eta + e, eta);
    }
    refresh_gram();
    move(*now, *now, 0, 0.0);
    invert<Exact>(*now);
    loss_known_ = true;
    for (int cycle = 0; cycle < kCycles; ++cycle) {
      double moved = 0.0;
      for (int k = 0; k < K_; ++k) moved += step<Exact>(k, now, next);
      if (moved == 0.0) break;
    }
    if (!loss_known_) loss_ = loss_at<Exact>(*now);
  }

  template <bool Exact>
  void lay_out() {
    read_values(h_.rows, row_.offset, row_.count, y_);
    counts_padded_ = round_up(row_.count, kStep);
    gathered_ = 0;
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
      for (int k = 0; k <= K_; ++k)
        std::fill(X_ + k * entries_ + row_.count, X_ + k * entries_ + padded_, 0.0);
    }
  }

  const double* x(int k) const { return X_now_ + k * stride_; }

  // eta of `to` = eta of `from` + delta * x_k, and em there. Here and below pointers and lengths
  // are copied, into registers: the compiler cannot know that stores leave members alone.
  void move(const State& from, State& to, int k, double delta) {
    constexpr int U = kUnroll;
    const double *xk = x(k), *eta0 = from.eta;
    double *eta1 = to.eta, *em1 = to.em;
    for (Index e = 0, n = padded_; e < n; e += kStep) {
      Vec eta[U], em[U], bounded[U];
      EACH {  // what is left of eta when it cancels is rounding, not the mean of a count
        const Vec before = load(eta0 + e + u * kLanes);
        eta[u] = before + delta * load(xk + e + u * kLanes);
        eta[u] = eta[u] < 1e-13 * before ? Vec{} : eta[u];
      }
      EACH bounded[u] = Link::clamp_eta(eta[u]);
      Link::template mean_part<U>(bounded, em);
      EACH {
        store(eta1 + e + u * kLanes, eta[u]);
        store(em1 + e + u * kLanes, em[u]);
      }
    }
    short_moves_ = 0;
  }

  // The same for changes of eta of at most kShort: em' = em + (em + 1) expm1(d), with six terms of
  // the series.
  void move_shortly(const State& from, State& to, int k, double delta) {
    constexpr int U = kUnroll;
    constexpr double kSeries[] = {1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0};
    const double *xk = x(k), *em0 = from.em, *eta0 = from.eta;
    double *em1 = to.em, *eta1 = to.eta;
    for (Index e = 0, n = padded_; e < n; e += kStep) {
      Vec d[U], q[U];
      EACH d[u] = delta * load(xk + e + u * kLanes);
      EACH store(eta1 + e + u * kLanes, load(eta0 + e + u * kLanes) + d[u]);
      EACH q[u] = splat(1.0 / 720);
      REPEAT (i, 5) EACH q[u] = q[u] * d[u] + kSeries[i];
      EACH {
        const Vec em = load(em0 + e + u * kLanes);
        store(em1 + e + u * kLanes, em + (em + 1.0) * (d[u] * q[u]));
      }
    }
    ++short_moves_;
  }

  // Of all numbers in exact form those of the counts, and padding.
  void gather_counts(const double* __restrict from, double padding, double* __restrict to) const {
    const std::int32_t* indices = row_.indices;
    for (Index p = 0, n = row_.count; p < n; ++p) to[p] = from[indices[p]];
    std::fill(to + row_.count, to + counts_padded_, padding);
  }

  template <bool Exact>
  const double* em_at_counts(const State& at) {
    if constexpr (!Exact) return at.em;
    gather_counts(at.em, 1.0, counts_em_);
    return counts_em_;
  }

  // Design of coordinate k, gathered when first asked for and kept for the row's other cycles.
  template <bool Exact>
  const double* x_at_counts(int k) {
    if constexpr (!Exact) return x(k);
    double* at = counts_x_ + k * entries_;
    if (k >= gathered_) gather_counts(x(k), 0.0, at);
    gathered_ = std::max(gathered_, k + 1);
    return at;
  }

  template <bool Exact>
  void invert(State& at) {
    constexpr int U = kUnroll;
    const double* em = em_at_counts<Exact>(at);
    double* to = at.inverse;
    for (Index p = 0, n = counts_padded_; p < n; p += kStep) {
      Vec inverse[U];
      EACH inverse[u] = load(em + p + u * kLanes);
      reciprocals<U>(inverse);
      EACH store(to + p + u * kLanes, inverse[u]);
    }
  }

  // Loss of the row (without its penalty), and 1/em of the counts.
  template <bool Exact>
  double loss_at(State& at) {
    constexpr int U = kUnroll;
    Vec means = Vec{}, loss = Vec{};
    [[maybe_unused]] const auto [a1, a2] = own_quadratic();
    if constexpr (!Link::kLinear)
      for (Index e = 0; e < padded_; e += kLanes) {
        const Vec t = load(x(K_) + e), em = load(at.em + e);
        if constexpr (Exact) means += t * em;
        else {
          const Vec eta = load(at.eta + e);
          means += t * (em - eta * (a1 + a2 * eta));
        }
      }
    const double* em = em_at_counts<Exact>(at);
    for (Index p = 0; p < counts_padded_; p += kStep) {
      Vec value[U], log[U], inverse[U];
      EACH value[u] = load(em + p + u * kLanes);
      log_and_reciprocal<U>(value, log, inverse);
      EACH {
        loss += load(y_ + p + u * kLanes) * (impossible(value[u]) - log[u]);
        store(at.inverse + p + u * kLanes, inverse[u]);
      }
    }
    return row_.exposure * horizontal_sum(means) + horizontal_sum(loss) + whole_matrix_part();
  }

  struct Slope {
    double first, second;  // derivatives of the row's loss along a coordinate
    double largest_x;      // change of an eta per unit
    double largest_fall;   // of a count's em per unit, relative to it
  };

  template <bool Exact>
  Slope slope(const State& at, int k) {
    Vec g = Vec{}, h = Vec{}, largest_x = Vec{}, largest_fall = Vec{};
    [[maybe_unused]] const auto [a1, a2] = own_quadratic();
    if constexpr (!Link::kLinear) {
      const double *design = x(k), *exposure = x(K_), *means = at.em, *etas = at.eta;
      for (Index e = 0, n = padded_; e < n; e += kLanes) {
        const Vec em = load(means + e), xk = load(design + e), tx = load(exposure + e) * xk;
        if constexpr (Exact) {
          const Vec mean = tx * (em + 1.0);
          g += mean;
          h += mean * xk;
        } else {
          g += tx * (em - 2.0 * a2 * load(etas + e) + (1.0 - a1));
          h += tx * (em + (1.0 - 2.0 * a2)) * xk;
        }
        largest_x = vmax(largest_x, xk);
      }
      g *= row_.exposure;
      h *= row_.exposure;
    }
    const double *xk = x_at_counts<Exact>(k), *counts = y_, *inverses = at.inverse;
    for (Index p = 0, n = counts_padded_; p < n; p += kLanes) {
      const Vec inverse = load(inverses + p), y = load(counts + p);
      const Vec fall = Link::relative_slope(inverse) * load(xk + p), pull = y * fall;
      g -= pull;
      h += pull * fall;  // the reference's curvature, see above
      largest_fall = vmax(largest_fall, fall);
    }
    Slope found{horizontal_sum(g), horizontal_sum(h), largest_lane(largest_x),
                largest_lane(largest_fall)};
    if constexpr (!Exact) {
      found.first += evaluator_.zeros().linear()[k] + 2.0 * gram_b_[k];
      found.second += 2.0 * evaluator_.zeros().gram()[k * K_ + k];
    }
    return found;
  }

  // Whether the curvature surely stays below 1.9 times that at the start of a step of at most
  // Newton's length: then the line search would accept it. Means grow at most by e^(delta
  // largest_x), which only matters on the way up; on the way down em of a count falls at most by
  // the factor 1 - q and its curvature grows at most by (1 - q)^-2.
  static bool holds(const Slope& at, double delta) {
    if (delta < 0.0) return -delta * at.largest_fall <= 0.27;
    return Link::kLinear || delta * at.largest_x <= 0.6;
  }

  template <bool Exact>
  double step(int k, State*& now, State*& next) {
    const Slope at = slope<Exact>(*now, k);
    const double g = at.first + box_.penalty[k];
    double to = b_[k];
    if (at.second > std::numeric_limits<double>::min())
      to = std::min(box_.upper[k], std::max(box_.lower[k], b_[k] - g / at.second));
    else if (g > 0.0) to = box_.lower[k];
    double delta = to - b_[k];
    if (delta == 0.0) return 0.0;
    if (holds(at, delta)) {
      const bool brief = std::abs(delta) * at.largest_x <= kShort && short_moves_ < kShortMoves;
      if (!Link::kLinear && brief) move_shortly(*now, *next, k, delta);
      else move(*now, *next, k, delta);
      invert<Exact>(*next);
      loss_known_ = false;
      accept(k, to, delta, now, next);
      return std::abs(delta);
    }
    if (!loss_known_) loss_ = loss_at<Exact>(*now);
    loss_known_ = true;
    for (int attempt = 0; attempt < 30; ++attempt, delta *= 0.5) {
      const double before = b_[k];
      move(*now, *next, k, delta);
      accept(k, attempt == 0 ? to : before + delta, delta, now, next);
      const double after = loss_at<Exact>(*now);
      if (after + box_.penalty[k] * delta <= loss_ + 0.01 * g * delta) {
        loss_ = after;
        return std::abs(delta);
      }
      std::swap(now, next);
      b_[k] = before;
      refresh_gram();
      rejected_ = 1;
    }
    return 0.0;
  }

  void accept(int k, double to, double delta, State*& now, State*& next) {
    b_[k] = to;
    if (!h_.model.exact_zeros)
      for (int l = 0; l < K_; ++l) gram_b_[l] += delta * evaluator_.zeros().gram()[l * K_ + k];
    std::swap(now, next);
  }

  void refresh_gram() {
    const double* gram = evaluator_.zeros().gram();
    for (int k = 0; k < K_ && !h_.model.exact_zeros; ++k) gram_b_[k] = dot(K_, gram + k * K_, b_);
  }

  // What the quadratic form of the zero entries adds for the row as a whole (sparse form only).
  double whole_matrix_part() const {
    if (h_.model.exact_zeros) return 0.0;
    return evaluator_.zeros().linear_at(b_) + dot(K_, b_, gram_b_);
  }

  // a1 and a2 of the row: coordinate descent has one quadratic for all entries of a row, and stores
  // no zeros.
  std::pair<double, double> own_quadratic() const {
    if (h_.model.exact_zeros) return {0.0, 0.0};
    return {h_.zeros.row_quadratic[2 * row_.number], h_.zeros.row_quadratic[2 * row_.number + 1]};
  }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  Box box_{};
  RowEvaluator<Link, Poisson> evaluator_;
  Index entries_;
  Buffer X_, y_, counts_em_, counts_x_, b_, gram_b_;
  State now_, next_;
  Row row_{};
  const double* X_now_ = nullptr;
  Index stride_ = 0, padded_ = 0, counts_padded_ = 0;
  int short_moves_ = 0, gathered_ = 0;
  double loss_ = 0.0;
  bool loss_known_ = false;
  std::uint8_t rejected_ = 0;  // whether a full step was refused
};

}  // namespace log1pnmf::LOG1PNMF_ISA
