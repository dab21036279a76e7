// One row's loss, gradient and Hessian at given coefficients, in sparse or exact form.
#pragma once

#include <numeric>

#include "mean_sums.hpp"
#include "zero_sums.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

enum class Level { loss, gradient, hessian };

template <class Link, class Noise>
class RowEvaluator : RowMeans {
 public:
  RowEvaluator(const HalfStep& h, const Design& design)
      : RowMeans(h, design, !kSparseIsExact || Noise::kWhole, !Noise::kWhole), sums_(K_), y_(block_), residual_(block_), weight_(block_),
        inverse_(kept_), bend_gradient_(K_), zeros_(h, design) {}

  void start_row(const Row& row) {
    RowBlocks::start_row(row);
    has_em_ = false;
    zeros_.combine(row.number, !kSparseIsExact);
  }

  const ZeroSums& zeros() const { return zeros_; }

  // See RowMeans.
  void sum_means(const double* b, double* to) {
    if constexpr (Noise::kPoisson && !kSparseIsExact) RowMeans::sum<Link>(b, to);
  }

  // Of the counts, at the last evaluation: the smallest, and with dispersions that of 1 / (1 + phi mean).
  double smallest() const { return smallest_; }
  double least_ratio() const { return -largest_lane(-least_ratio_); }
  // Whether a step d surely ends where the form of the zeros holds, see beyond_bend: the root of the bend is a norm, and the
  // changes of all entries bound those of the zeros that are not visited.
  bool stays_inside(const double* d) const {
    if (!(whole_bend_ > 0.0)) return true;
    double fall = 0.0;
    for (int k = 0; k < K_; ++k) fall += row_.exposure * design_.decline_of(h_.rows, row_.number, k) * std::max(0.0, -d[k]);
    const double root = std::sqrt(unvisited_bend_) + std::sqrt(std::max(0.0, -2.0 * zeros_.hollow_at(d)));
    return root == 0.0 || root * root <= kMostBend * (unvisited_steep_ - fall);
  }

  // Whether a full Newton step d surely lowers the loss, see the noise; from b where the last evaluation with derivatives was.
  bool curvature_holds(const double* d) {
    if (!(is_exact() ? row_.count <= kept_ : keeps_)) return false;
    Vec shrink = Vec{}, growth = Vec{};
    if (is_exact()) exact_changes(d, shrink, growth);
    else sparse_changes(d, shrink, growth);
    return Noise::template curvature_holds<Link>(largest_lane(shrink), largest_lane(growth));
  }

  // H and g are filled as the level asks; the row's loss is returned, or anything where it is not asked for: it takes the
  // logarithms, which nothing else needs. Constants and penalty are left out.
  template <Level L, bool WithLoss = true>
  double evaluate(const double* b, double* g, double* H) {
    const Row& row = row_;
    smallest_ = std::numeric_limits<double>::infinity();
    least_ratio_ = splat(1.0);
    steep_ = bend_ = Vec{};
    if (L != Level::loss) sums_.reset(L == Level::hessian);
    if (keeps_em_) std::copy_n(b, K_, static_cast<double*>(evaluated_at_));
    has_em_ = keeps_em_ && (is_exact() || keeps_);
    if constexpr (Noise::kWhole && Link::kLinear) apart_ = zeros_.linear_at(b) > kApart;
    double loss = 0.0;
    if constexpr (kSparseIsExact) loss = sparse<L, WithLoss>(row, b);
    else loss = is_exact() ? exact<L, WithLoss>(row, b) : sparse<L, WithLoss>(row, b);
    if (L != Level::loss) sums_.finish(H, g, L == Level::hessian);
    if (!is_exact()) loss += whole_matrix_part<L>(b, g, H);
    if constexpr (Noise::kDispersed) loss += is_exact() ? 0.0 : beyond_bend<L>(b, g);
    return loss;
  }

 private:
  // With Poisson noise and the identity link the zero terms are linear, and their sum over all entries is exact.
  static constexpr bool kSparseIsExact = Link::kLinear && Noise::kPoisson;
  bool is_exact() const { return !kSparseIsExact && h_.model.exact_zeros; }

  // What the quadratic form of the zero entries adds for the row as a whole.
  template <Level L>
  double whole_matrix_part(const double* b, double* g, double* H) {
    if constexpr (kSparseIsExact) {
      if (L != Level::loss)
        for (int k = 0; k < K_; ++k) g[k] += zeros_.linear()[k];
      return apart_ ? row_.exposure * means_of_zeros(b) : zeros_.linear_at(b);
    } else {
      const double sum = zeros_.at(b);
      if (L != Level::loss) zeros_.add_gradient(g);
      if (L == Level::hessian) zeros_.add_hessian(H);
      return sum;
    }
  }

  // The concave part of what stands in for zeros holds where it takes little from their slope. With the sums steep of t eta
  // and bend of -2 t^2 b2 eta^2 over the zeros that are not visited (all entries less those that are) that is
  // bend <= kMostBend steep. Beyond, (bend - kMostBend steep)^2 / (2 bend) is added: along a ray the sum of the two then goes
  // on as a straight line, and nothing runs away.
  template <int U>
  LOG1PNMF_INLINE void note_bend(const EntriesAt<U>& at) {
    LOG1PNMF_EACH steep_ += at.t[u] * at.eta[u];
    LOG1PNMF_EACH bend_ -= 2.0 * (at.t[u] * at.eta[u]) * (at.bent[u] * at.eta[u]);
  }
  template <Level L>
  double beyond_bend(const double* b, double* g) {
    double slope = 0.0;
    for (int k = 0; k < K_; ++k) slope += design_.decline_of(h_.rows, row_.number, k) * b[k];
    whole_bend_ = -2.0 * zeros_.hollow_at();
    const double whole_steep = row_.exposure * slope;
    unvisited_bend_ = whole_bend_ - horizontal_sum(bend_), unvisited_steep_ = whole_steep - horizontal_sum(steep_);
    if (!(unvisited_bend_ > kLeastBend * whole_bend_)) unvisited_bend_ = 0.0;
    if (!(unvisited_steep_ > kLeastBend * whole_steep)) unvisited_steep_ = 0.0;
    if (whole_bend_ > kMostWholeBend) return kImpossible;
    const double bend = unvisited_bend_, excess = bend - kMostBend * unvisited_steep_;
    if (!(bend > 0.0 && excess > 1e-9 * bend)) return 0.0;
    if constexpr (L != Level::loss) add_bend_gradient(b, excess / bend, g);
    return 0.5 * excess * excess / bend;
  }

  // Of what is beyond, with ratio = excess / bend: its derivatives in bend and steep are ratio - ratio^2 / 2 and
  // -kMostBend ratio. A second pass over the visited entries; few rows are beyond, and not for long.
  void add_bend_gradient(const double* b, double ratio, double* g) {
    const double by_bend = ratio - 0.5 * ratio * ratio, by_steep = -kMostBend * ratio;
    sums_.reset(false);
    add_visited(row_, 0, b, by_bend, by_steep);
    add_visited(row_.stored, first_zero_, b, by_bend, by_steep);
    sums_.finish(nullptr, bend_gradient_, false);
    zeros_.add_hollow(-4.0 * by_bend, bend_gradient_);
    for (int k = 0; k < K_; ++k)
      g[k] += bend_gradient_[k] + by_steep * row_.exposure * design_.decline_of(h_.rows, row_.number, k);
  }
  void add_visited(const Entries& entries, std::int64_t place, const double* b, double by_bend, double by_steep) {
    for (std::int64_t from = 0; from < entries.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, entries.count - from));
      const int padded = static_cast<int>(round_up(n, kLanes));
      const double* X = gathered(entries, from, n, place + from);
      for (int e = 0; e < padded; e += kLanes) {
        EntriesAt<1> at;
        linear_predictor<1>(X, block_, e, b, at.eta);
        belongings<false, true, 1>(X, block_, e, at);
        quadratics<Link, true, 1>(X, e, at);
        store(residual_ + e, at.t[0] * (4.0 * by_bend * at.bent[0] * at.eta[0] - by_steep));
      }
      sums_.add_gradient(X, block_, padded, residual_);
    }
  }

  // At the identity link, without the row's exposure.
  double means_of_zeros(const double* b) const {
    double sum = 0.0;
    std::int64_t next = 0;
    for (std::int64_t j = 0; j < h_.rows.n_columns; ++j) {
      const double* x = design_.packed + j * design_.streams;
      if (next < row_.count && row_.indices[next] == j) ++next;
      else {
        const double t = (design_.exposure >= 0 ? x[design_.exposure] : 1.0) * (h_.rows.batches.any() ? effect_of(j) : 1.0);
        sum += t * std::inner_product(x, x + K_, b, 0.0);
      }
    }
    return sum;
  }

  void sparse_changes(const double* d, Vec& shrink, Vec& growth) const {
    for (std::int64_t from = 0; from < row_.count; from += block_) {
      const int padded = static_cast<int>(round_up(std::min<std::int64_t>(block_, row_.count - from), kLanes));
      const double* X = X_ + from * design_.streams;
      for (int e = 0; e < padded; e += kLanes) {
        Vec delta;
        linear_predictor<1>(X, block_, e, d, &delta);
        shrink = vmax(shrink, -delta * Link::relative_slope(load(inverse_ + from + e)));
        growth = vmax(growth, delta);
      }
    }
    for (std::int64_t from = 0; from < row_.stored.count; from += block_) {
      const int padded = static_cast<int>(round_up(std::min<std::int64_t>(block_, row_.stored.count - from), kLanes));
      for (int e = 0; e < padded; e += kLanes) {
        Vec delta;
        linear_predictor<1>(X_ + (first_zero_ + from) * design_.streams, block_, e, d, &delta);
        growth = vmax(growth, delta);
      }
    }
  }

  void exact_changes(const double* d, Vec& shrink, Vec& growth) {
    const std::int64_t m = round_up(design_.columns, kStep);
    double most = 0.0;
    for (std::int64_t from = 0, next = 0; from < m; from += block_) {
      const int padded = static_cast<int>(std::min<std::int64_t>(block_, m - from));
      for (int e = 0; e < padded; e += kStep) {
        Vec delta[kUnroll];
        linear_predictor<kUnroll>(design_.transposed + from, design_.padded, e, d, delta);
        for (int u = 0; u < kUnroll; ++u) {
          store(residual_ + e + u * kLanes, delta[u]);
          growth = vmax(growth, delta[u]);
        }
      }
      for (; next < row_.count && row_.indices[next] < from + padded; ++next)
        most = std::max(most, -residual_[row_.indices[next] - from] * Link::relative_slope(inverse_[next]));
    }
    shrink = splat(most);
  }

  template <Level L, bool WithLoss>
  double sparse(const Row& row, const double* b) {
    Vec loss[kUnroll] = {}, lowest = splat(1.0);
    for (std::int64_t from = 0; from < row.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, row.count - from));
      const int padded = static_cast<int>(round_up(n, kLanes));
      const double* X = gathered(row, from, n, from);
      smallest_ = std::min(smallest_, read_values(h_.rows, row.offset + from, n, y_));
      std::fill(y_ + n, y_ + padded, 0.0);
      double* inverse = inverse_ + (keeps_ ? from : 0);
      em_here_ = em_ + (has_em_ ? from : 0), eta_here_ = eta_ + (has_em_ ? from : 0);
      int e = 0;
      for (; e + kStep <= n; e += kStep) means<kUnroll>(X, e, b, lowest, loss);
      for (; e < padded; e += kLanes) means<1>(X, e, b, lowest, loss);
      for (e = 0; e + kStep <= padded; e += kStep) terms<L, WithLoss, kUnroll>(X, e, inverse, loss);
      for (; e < padded; e += kLanes) terms<L, WithLoss, 1>(X, e, inverse, loss);
      accumulate<L>(X, block_, padded);
    }
    if (-largest_lane(-lowest) <= kSmallestEta) loss[0] += kImpossible / kLanes;
    if constexpr (!kSparseIsExact)
      for (std::int64_t from = 0; from < row.stored.count; from += block_) {
        const int n = static_cast<int>(std::min<std::int64_t>(block_, row.stored.count - from));
        const int padded = static_cast<int>(round_up(n, kLanes));
        const double* X = gathered(row.stored, from, n, first_zero_ + from);
        em_here_ = em_ + (has_em_ ? first_zero_ + from : 0), eta_here_ = eta_ + (has_em_ ? first_zero_ + from : 0);
        int e = 0;
        for (; e + kStep <= padded; e += kStep) zero_terms<L, WithLoss, kUnroll>(X, e, b, loss);
        for (; e < padded; e += kLanes) zero_terms<L, WithLoss, 1>(X, e, b, loss);
        accumulate<Link::kLinear && L == Level::hessian ? Level::gradient : L>(X, block_, padded);   // identity: no weight
      }
    return total(loss);
  }

  // eta and em of U vectors of entries. Two loops, this and the next, because one has more in flight than registers.
  template <int U>
  LOG1PNMF_INLINE void means(const double* X, int e, const double* b, Vec& lowest, Vec* loss) {
    Vec eta[U], em[U];
    linear_predictor<U>(X, block_, e, b, eta);
    if constexpr (U == 1) loss[0] += load(y_ + e) * impossible(eta[0]);   // padding, if any, is here
    else LOG1PNMF_EACH lowest = vmin(lowest, eta[u]);
    LOG1PNMF_EACH eta[u] = Link::clamp_eta(eta[u]);
    Link::template mean_part<U>(eta, em);
    LOG1PNMF_EACH store(em_here_ + e + u * kLanes, em[u]);
    if constexpr (!kSparseIsExact) LOG1PNMF_EACH store(eta_here_ + e + u * kLanes, eta[u]);
  }

  // The whole of a zero that is visited; Poisson: no logarithm, no division.
  template <Level L, bool WithLoss, int U>
  LOG1PNMF_INLINE void zero_terms(const double* X, int e, const double* b, Vec* loss) {
    EntriesAt<U> at;
    linear_predictor<U>(X, block_, e, b, at.eta);
    LOG1PNMF_EACH at.eta[u] = Link::clamp_eta(at.eta[u]);
    Link::template mean_part<U>(at.eta, at.em);
    if constexpr (Noise::kPoisson) LOG1PNMF_EACH store(em_here_ + e + u * kLanes, at.em[u]), store(eta_here_ + e + u * kLanes, at.eta[u]);
    belongings<false, Noise::kDispersed, U>(X, block_, e, at);
    quadratics<Link, Noise::kDispersed, U>(X, e, at);
    ZeroTerms<U> z;
    if constexpr (!kSparseIsExact) {
      Noise::template disperse<WithLoss, U>(at);
      Noise::template zero_terms<Link, U>(at, z);
    }
    less_quadratic<Link, Noise::kDispersed, U>(at, z);
    if constexpr (Noise::kDispersed) note_bend<U>(at);
    LOG1PNMF_EACH {
      if constexpr (WithLoss) loss[u] += z.loss[u];
      if constexpr (L != Level::loss) store(residual_ + e + u * kLanes, z.residual[u]);
      if constexpr (L == Level::hessian) store(weight_ + e + u * kLanes, z.weight[u]);
    }
  }

  template <Level L, bool WithLoss, int U>
  LOG1PNMF_INLINE void terms(const double* X, int e, double* inverse, Vec* loss) {
    EntriesAt<U> at;
    LOG1PNMF_EACH at.em[u] = load(em_here_ + e + u * kLanes);
    if constexpr (Noise::kWhole || !kSparseIsExact) belongings<false, Noise::kDispersed, U>(X, block_, e, at);
    CountTerms<U> c;
    Noise::template disperse<WithLoss, U>(at);
    Noise::template count_terms<Link, WithLoss, U>(y_ + e, at, c);
    if constexpr (Noise::kDispersed && L == Level::hessian) LOG1PNMF_EACH least_ratio_ = vmin(least_ratio_, at.ratio[u]);
    if constexpr (!kSparseIsExact) {
      LOG1PNMF_EACH at.eta[u] = load(eta_here_ + e + u * kLanes);
      quadratics<Link, Noise::kDispersed, U>(X, e, at);
      ZeroTerms<U> z;
      Noise::template zero_terms<Link, U>(at, z);
      less_quadratic<Link, Noise::kDispersed, U>(at, z);
      if constexpr (Noise::kDispersed) note_bend<U>(at);
      LOG1PNMF_EACH {
        c.loss[u] += Noise::kWhole ? z.loss[u] - at.t[u] * at.em[u] : z.loss[u];
        c.residual[u] += z.residual[u];
        c.weight[u] += z.weight[u];
      }
    } else if constexpr (Noise::kWhole) {   // the zero entries' form is exact and adds the mean
      if (!apart_) LOG1PNMF_EACH c.loss[u] -= at.t[u] * at.em[u];
    }
    LOG1PNMF_EACH {
      const int to = e + u * kLanes;
      if constexpr (WithLoss) loss[u] += c.loss[u];
      if constexpr (L != Level::loss) store(residual_ + to, c.residual[u]);
      if constexpr (L == Level::hessian) {
        store(weight_ + to, c.weight[u]);
        store(inverse + to, c.inverse[u]);
      }
    }
  }

  template <Level L, bool WithLoss>
  double exact(const Row& row, const double* b) {
    Vec loss[kUnroll] = {};
    const std::int64_t m = round_up(design_.columns, kStep);
    std::int64_t next = 0;   // first non-zero not yet visited
    for (std::int64_t from = 0; from < m; from += block_) {
      const double* X = columns(from);
      em_here_ = em_ + (has_em_ ? from : 0);
      const int padded = static_cast<int>(std::min<std::int64_t>(block_, m - from));
      for (int e = 0; e < padded; e += kStep) exact_group<L, WithLoss>(X, e, b, loss);
      std::int64_t end = next;
      while (end < row.count && row.indices[end] < from + padded) ++end;
      if (end > next) scatter_counts<L, WithLoss>(row, next, static_cast<int>(end - next), from, loss);
      next = end;
      if constexpr (WithLoss && Noise::kWhole)   // em of the counts is zero by now
        for (int e = 0; e < padded; e += kLanes) {
          EntriesAt<1> at;
          belongings<true, Noise::kDispersed, 1>(X, design_.padded, e, at);
          loss[0] += at.t[0] * load(em_here_ + e);
        }
      accumulate<L>(X, design_.padded, padded);
    }
    return total(loss);
  }

  template <Level L, bool WithLoss>
  LOG1PNMF_INLINE void exact_group(const double* X, int e, const double* b, Vec* loss) {
    constexpr int U = kUnroll;
    EntriesAt<U> at;
    linear_predictor<U>(X, design_.padded, e, b, at.eta);
    LOG1PNMF_EACH at.eta[u] = Link::clamp_above(at.eta[u]);
    Link::template mean_part<U>(at.eta, at.em);
    belongings<true, Noise::kDispersed, U>(X, design_.padded, e, at);
    ZeroTerms<U> z;
    if constexpr (!kSparseIsExact) {
      Noise::template disperse<WithLoss, U>(at);
      Noise::template zero_terms<Link, U>(at, z);
    }
    LOG1PNMF_EACH {
      const int to = e + u * kLanes;
      if constexpr (WithLoss && !Noise::kWhole) loss[u] += z.loss[u];
      store(em_here_ + to, at.em[u]);
      if constexpr (L != Level::loss) store(residual_ + to, z.residual[u]);
      if constexpr (L == Level::hessian) store(weight_ + to, z.weight[u]);
    }
  }

  template <Level L, bool WithLoss>
  void scatter_counts(const Row& row, std::int64_t first, int n, std::int64_t from, Vec* loss) {
    alignas(64) double em[kLargestBlock], t[kLargestBlock], phi[kLargestBlock];
    alignas(64) double residual[kLargestBlock], weight[kLargestBlock];
    const std::int32_t* indices = row.indices + first;
    const int padded = static_cast<int>(round_up(n, kLanes));
    for (int p = 0; p < n; ++p) em[p] = std::max(em_here_[indices[p] - from], kSmallestEta);   // em is eta there
    std::fill(em + n, em + padded, 1.0);
    if constexpr (Noise::kWhole || Noise::kDispersed) {
      for (int p = 0; p < n; ++p) {
        const std::int64_t at = indices[p] - from;
        t[p] = (levels_here_ != nullptr ? levels_here_[at / kLanes] : row.exposure) * exposure_here_[at];
      }
      std::fill(t + n, t + padded, 0.0);
    }
    if constexpr (Noise::kDispersed) {
      const double* dispersion = design_.transposed + design_.dispersion * design_.padded;
      for (int p = 0; p < n; ++p) phi[p] = design_.dispersion >= 0 ? dispersion[indices[p]] : own_phi_;
      std::fill(phi + n, phi + padded, 0.0);
    }
    if constexpr (Noise::kWhole)   // their loss has the mean
      for (int p = 0; p < n; ++p) em_here_[indices[p] - from] = 0.0;
    smallest_ = std::min(smallest_, read_counts(first, n, y_));
    std::fill(y_ + n, y_ + padded, 0.0);
    for (int p = 0; p < padded; p += kLanes) {
      EntriesAt<1> at;
      at.em[0] = load(em + p);
      if constexpr (Noise::kWhole || Noise::kDispersed) at.t[0] = load(t + p);
      if constexpr (Noise::kDispersed) at.phi[0] = load(phi + p);
      CountTerms<1> c;
      Noise::template disperse<WithLoss, 1>(at);
      Noise::template count_terms<Link, WithLoss, 1>(y_ + p, at, c);
      if constexpr (Noise::kDispersed) least_ratio_ = vmin(least_ratio_, at.ratio[0]);
      if constexpr (WithLoss) loss[0] += load(y_ + p) * impossible(at.em[0]) + c.loss[0];
      store(residual + p, c.residual[0]);
      store(weight + p, c.weight[0]);
      store(em + p, c.inverse[0]);
    }
    if constexpr (L != Level::loss)
      for (int p = 0; p < n; ++p) residual_[indices[p] - from] += residual[p];
    if constexpr (L == Level::hessian) {
      for (int p = 0; p < n; ++p) weight_[indices[p] - from] += weight[p];
      if (row.count <= kept_) std::copy_n(em, n, inverse_ + first);
    }
  }

  template <Level L>
  void accumulate(const double* X, std::int64_t stride, int padded) {
    if constexpr (L == Level::gradient) sums_.add_gradient(X, stride, padded, residual_);
    if constexpr (L == Level::hessian) sums_.add_block(X, stride, padded, residual_, weight_);
  }

  static double total(const Vec* loss) {
    Vec sum = loss[0];
    for (int u = 1; u < kUnroll; ++u) sum += loss[u];
    return horizontal_sum(sum);
  }

  static constexpr double kMostBend = 0.7;
  static constexpr double kLeastBend = 1e-12, kMostWholeBend = 1e10;   // of that of all entries: less may be rounding, more makes sums unreliable
  static constexpr double kApart = 1e9;   // means of a row whose rounding errors would show

  Accumulator sums_;
  Buffer y_, residual_, weight_, inverse_, bend_gradient_;
  double *em_here_ = nullptr, *eta_here_ = nullptr;   // of the block at hand
  ZeroSums zeros_;
  double smallest_ = 0.0;
  Vec least_ratio_ = Vec{};
  Vec steep_ = Vec{}, bend_ = Vec{};   // of the visited entries, see beyond_bend
  double whole_bend_ = 0.0, unvisited_bend_ = 0.0, unvisited_steep_ = 0.0;   // at the last evaluation
  bool apart_ = false;           // identity: whether the zeros' means are summed one by one, not as all less the counts'
};

}  // namespace log1pnmf::LOG1PNMF_ISA
