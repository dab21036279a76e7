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
      : RowMeans(h, design, h.model.exact_zeros ? Noise::kDispersed : !kSparseIsExact), sums_(K_),
        y_(h.model.exact_zeros ? design.padded + block_ : block_), residual_(block_), weight_(block_),
        slope_(h.model.exact_zeros ? std::max(kept_, design.padded) : kept_), counts_em_(h.model.exact_zeros ? block_ : 0),
        middle_(h.model.exact_zeros ? design.padded / kStretch + block_ / kStretch : 0), bend_gradient_(K_), zeros_(h, design) {}

  void start_row(const Row& row) {
    RowBlocks::start_row(row);
    has_em_ = false;
    dense_ = is_exact() && is_dense(h_.rows, row.number);
    if (dense_) lay_out_counts();
    zeros_.combine(row.number, !kSparseIsExact);
  }

  const Row& row() const { return row_; }
  const ZeroSums& zeros() const { return zeros_; }

  // See RowMeans.
  void sum_means(const double* b, double* to) {
    if constexpr (!Noise::kDispersed && !kSparseIsExact) RowMeans::sum<Link>(b, to);
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
    if (!dense_ && !keeps_) return false;
    Vec shrink = Vec{}, growth = Vec{};
    if (!dense_) {
      sparse_changes<true>(row_, 0, d, shrink, growth);
      sparse_changes<false>(row_.stored, first_zero_, d, shrink, growth);
    }
    if (!is_exact() || !holds(shrink, growth)) return holds(shrink, growth);
    const double uneven = design_.stretches.any() && !dense_ ? Stretches::kUneven : 0.0;
    if (uneven > 0.0 && holds(shrink, splat(design_.stretches.most(d) + uneven))) return true;
    exact_changes(d, shrink, growth);
    return holds(shrink, growth + uneven);
  }

  // H and g are filled as the level asks; the row's loss is returned, or anything where it is not asked for: it takes the
  // logarithms, which nothing else needs. Constants and penalty are left out.
  template <Level L, bool WithLoss = true>
  double evaluate(const double* b, double* g, double* H) {
    begin<L>(b);
    for (std::int64_t from = 0; from < columns_to_visit(); from += block_) visit<L, WithLoss>(from);
    return end<L, WithLoss>(g, H);
  }

  // The same in parts: several rows may visit a block of columns one after the other while it is in the cache.
  template <Level L>
  void begin(const double* b) {
    b_ = b;
    loss_ = Vec{};
    smallest_ = dense_ ? least_ : std::numeric_limits<double>::infinity();
    least_ratio_ = splat(1.0);
    steep_ = bend_ = Vec{};
    if (L != Level::loss) sums_.reset(L == Level::hessian);
    if (keeps_em_) std::copy_n(b, K_, static_cast<double*>(evaluated_at_));
    has_em_ = keeps_em_ && (is_exact() || keeps_);
  }
  std::int64_t columns_to_visit() const { return is_exact() ? round_up(design_.columns, kStep) : 0; }
  int block() const { return block_; }
  template <Level L, bool WithLoss>
  void visit(std::int64_t from) {
    if constexpr (!kSparseIsExact) {
      if (dense_) exact<L, WithLoss, true>(from);
      else exact<L, WithLoss, false>(from);
    }
  }
  template <Level L, bool WithLoss>
  double end(double* g, double* H) {
    if (!is_exact()) sparse<L, WithLoss>();
    else if constexpr (!kSparseIsExact) {
      if (!dense_) counts<L, WithLoss, false>();
    }
    if (L == Level::hessian && design_.stretches.any() && !dense_) sums_.add_stretches(design_.stretches, middle_);
    if (L != Level::loss) sums_.finish(H, g, L == Level::hessian);
    double loss = horizontal_sum(loss_);
    if (!is_exact()) loss += whole_matrix_part<L>(b_, g, H);
    if constexpr (Noise::kDispersed) loss += is_exact() ? 0.0 : beyond_bend<L>(b_, g);
    return loss;
  }

 private:
  // With Poisson noise and the identity link the zero terms are linear, and their sum over all entries is exact.
  static constexpr bool kSparseIsExact = Link::kLinear && !Noise::kDispersed;
  bool is_exact() const { return !kSparseIsExact && h_.model.exact_zeros; }

  // What the quadratic form of the zero entries adds for the row as a whole.
  template <Level L>
  double whole_matrix_part(const double* b, double* g, double* H) {
    if constexpr (kSparseIsExact) {
      if (L != Level::loss)
        for (int k = 0; k < K_; ++k) g[k] += zeros_.linear()[k];
      return zeros_.linear_at(b);
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

  static bool holds(Vec shrink, Vec growth) { return Noise::template curvature_holds<Link>(largest_lane(shrink), largest_lane(growth)); }

  // Of the entries that were gathered from this place on; to the end of the block in which the step turns out to be too long.
  template <bool Counts>
  void sparse_changes(const Entries& entries, std::int64_t place, const double* d, Vec& shrink, Vec& growth) const {
    for (std::int64_t from = 0; from < entries.count && holds(shrink, growth); from += block_) {
      const int padded = static_cast<int>(round_up(std::min<std::int64_t>(block_, entries.count - from), kLanes));
      const double *X = X_ + (place + from) * design_.streams, *slope = slope_ + from;
      int e = 0;
      for (; e + kStep <= padded; e += kStep) changes<Counts, kUnroll>(X, block_, e, d, slope, shrink, growth);
      for (; e < padded; e += kLanes) changes<Counts, 1>(X, block_, e, d, slope, shrink, growth);
    }
  }

  template <bool Counts, int U>
  LOG1PNMF_INLINE void changes(const double* X, std::int64_t stride, int e, const double* d, const double* slope, Vec& shrink, Vec& growth) const {
    Vec delta[U];
    linear_predictor<U>(X, stride, e, d, delta);
    LOG1PNMF_EACH growth = vmax(growth, delta[u]);
    if constexpr (Counts) LOG1PNMF_EACH shrink = vmax(shrink, -delta[u] * load(slope + e + u * kLanes));
  }

  void exact_changes(const double* d, Vec& shrink, Vec& growth) const {
    const std::int64_t m = columns_to_visit();
    for (std::int64_t from = 0; from < m && holds(shrink, growth); from += block_) {
      const int padded = static_cast<int>(std::min<std::int64_t>(block_, m - from));
      const double *X = design_.transposed + from, *slope = slope_ + from;
      for (int e = 0; e < padded; e += kStep)
        if (dense_) changes<true, kUnroll>(X, design_.padded, e, d, slope, shrink, growth);
        else changes<false, kUnroll>(X, design_.padded, e, d, slope, shrink, growth);
    }
  }

  template <Level L, bool WithLoss>
  void sparse() {
    counts<L, WithLoss, !kSparseIsExact>();
    const Row& row = row_;
    const double* b = b_;
    Vec loss[kUnroll] = {};
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
    add_loss(loss);
  }

  // Zeros: whether the zero terms of counts are part of it, less their quadratic. In exact form they are summed elsewhere.
  template <Level L, bool WithLoss, bool Zeros>
  void counts() {
    const Row& row = row_;
    const double* b = b_;
    Vec loss[kUnroll] = {}, lowest = splat(1.0);   // in registers: the compiler cannot know that stores leave members alone
    for (std::int64_t from = 0; from < row.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, row.count - from));
      const int padded = static_cast<int>(round_up(n, kLanes));
      const double* X = gathered(row, from, n, from);
      smallest_ = std::min(smallest_, read_values(h_.rows, row.offset + from, n, y_));
      std::fill(y_ + n, y_ + padded, 0.0);
      double* slope = slope_ + (keeps_ ? from : 0);
      const std::int64_t at = has_em_ && Zeros ? from : 0;
      em_here_ = (is_exact() ? counts_em_ : em_) + at, eta_here_ = eta_ + at;
      int e = 0;
      for (; e + kStep <= n; e += kStep) means<Zeros, kUnroll>(X, e, b, lowest, loss);
      for (; e < padded; e += kLanes) means<Zeros, 1>(X, e, b, lowest, loss);
      for (e = 0; e + kStep <= padded; e += kStep) terms<L, WithLoss, Zeros, kUnroll>(X, e, slope, loss);
      for (; e < padded; e += kLanes) terms<L, WithLoss, Zeros, 1>(X, e, slope, loss);
      accumulate<L>(X, block_, padded);
    }
    if (-largest_lane(-lowest) <= kSmallestEta) loss[0] += kImpossible / kLanes;
    add_loss(loss);
  }

  // eta and em of U vectors of entries. Two loops, this and the next, because one has more in flight than registers.
  template <bool Zeros, int U>
  LOG1PNMF_INLINE void means(const double* X, int e, const double* b, Vec& lowest, Vec* loss) {
    Vec eta[U], em[U];
    linear_predictor<U>(X, block_, e, b, eta);
    if constexpr (U == 1) loss[0] += load(y_ + e) * impossible(eta[0]);   // padding, if any, is here
    else LOG1PNMF_EACH lowest = vmin(lowest, eta[u]);
    LOG1PNMF_EACH eta[u] = Link::clamp_eta(eta[u]);
    Link::template mean_part<U>(eta, em);
    LOG1PNMF_EACH store(em_here_ + e + u * kLanes, em[u]);
    if constexpr (Zeros) LOG1PNMF_EACH store(eta_here_ + e + u * kLanes, eta[u]);
  }

  // The whole of a zero that is visited; Poisson: no logarithm, no division.
  template <Level L, bool WithLoss, int U>
  LOG1PNMF_INLINE void zero_terms(const double* X, int e, const double* b, Vec* loss) {
    EntriesAt<U> at;
    linear_predictor<U>(X, block_, e, b, at.eta);
    LOG1PNMF_EACH at.eta[u] = Link::clamp_eta(at.eta[u]);
    Link::template mean_part<U>(at.eta, at.em);
    if constexpr (!Noise::kDispersed) LOG1PNMF_EACH store(em_here_ + e + u * kLanes, at.em[u]), store(eta_here_ + e + u * kLanes, at.eta[u]);
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

  template <Level L, bool WithLoss, bool Zeros, int U>
  LOG1PNMF_INLINE void terms(const double* X, int e, double* slope, Vec* loss) {
    EntriesAt<U> at;
    LOG1PNMF_EACH at.em[u] = load(em_here_ + e + u * kLanes);
    if constexpr (Noise::kDispersed || Zeros) belongings<false, Noise::kDispersed, U>(X, block_, e, at);
    CountTerms<U> c;
    Noise::template disperse<WithLoss, U>(at);
    Noise::template count_terms<Link, WithLoss, U>(y_ + e, at, c);
    if constexpr (Noise::kDispersed && L == Level::hessian) LOG1PNMF_EACH least_ratio_ = vmin(least_ratio_, at.ratio[u]);
    if constexpr (Zeros) {
      LOG1PNMF_EACH at.eta[u] = load(eta_here_ + e + u * kLanes);
      quadratics<Link, Noise::kDispersed, U>(X, e, at);
      ZeroTerms<U> z;
      Noise::template zero_terms<Link, U>(at, z);
      less_quadratic<Link, Noise::kDispersed, U>(at, z);
      if constexpr (Noise::kDispersed) note_bend<U>(at);
      LOG1PNMF_EACH {
        c.loss[u] += z.loss[u];
        c.residual[u] += z.residual[u];
        c.weight[u] += z.weight[u];
      }
    }
    LOG1PNMF_EACH {
      const int to = e + u * kLanes;
      if constexpr (WithLoss) loss[u] += c.loss[u];
      if constexpr (L != Level::loss) store(residual_ + to, c.residual[u]);
      if constexpr (L == Level::hessian) {
        store(weight_ + to, c.weight[u]);
        store(slope + to, Link::relative_slope(c.inverse[u]));
      }
    }
  }

  template <Level L, bool WithLoss, bool Dense>
  void exact(std::int64_t from) {
    const int padded = static_cast<int>(std::min<std::int64_t>(block_, columns_to_visit() - from));
    const double* X = columns(from);
    em_here_ = em_ + (has_em_ ? from : 0);
    Vec loss[kUnroll] = {};
    for (int e = 0; e < padded; e += kStretch) {
      const int end = std::min(padded, e + kStretch);
      Vec low = splat(std::numeric_limits<double>::infinity()), high = Vec{};
      for (int at = e; at < end; at += kStep) exact_group<L, WithLoss, Dense>(X, at, b_, low, high, loss);
      if constexpr (Dense)
        for (int at = e; at < end; at += kStep) counts_of_group<L, WithLoss>(X, at, from, loss);
      if constexpr (L == Level::hessian) middle_[(from + e) / kStretch] = Dense || !design_.stretches.any() ? 0.0 : middle(low, high);
    }
    add_loss(loss);
    if constexpr (L == Level::hessian) add_stretches<Dense>(X, from, padded);
    else accumulate<L>(X, design_.padded, padded);
  }

  template <Level L, bool WithLoss, bool Dense>
  LOG1PNMF_INLINE void exact_group(const double* X, int e, const double* b, Vec& low, Vec& high, Vec* loss) {
    constexpr int U = kUnroll;
    EntriesAt<U> at;
    linear_predictor<U>(X, design_.padded, e, b, at.eta);
    Link::template mean_part<U, true>(at.eta, at.em);
    belongings<true, Noise::kDispersed, U>(X, design_.padded, e, at);
    ZeroTerms<U> z;
    if constexpr (!kSparseIsExact) {
      Noise::template disperse<WithLoss, U>(at);
      Noise::template zero_terms<Link, U>(at, z);
    }
    if constexpr (L == Level::hessian && !Dense) {
      if (Noise::kDispersed || in_batches()) {
        Vec rise[U];
        LOG1PNMF_EACH rise[u] = Noise::kDispersed ? (at.em[u] + 1.0) * at.ratio[u] : at.em[u] + 1.0;
        effects_on<U>(e, rise);
        LOG1PNMF_EACH low = vmin(low, rise[u]), high = vmax(high, rise[u]);
      } else LOG1PNMF_EACH low = vmin(low, at.em[u]), high = vmax(high, at.em[u]);
    }
    if (Dense || has_em_) LOG1PNMF_EACH store(em_here_ + e + u * kLanes, at.em[u]);
    LOG1PNMF_EACH {
      const int to = e + u * kLanes;
      if constexpr (WithLoss) loss[u] += z.loss[u];
      if constexpr (L != Level::loss) store(residual_ + to, z.residual[u]);
      if constexpr (L == Level::hessian && (Dense || Noise::kDispersed)) store(weight_ + to, z.weight[u]);
    }
  }

  // The weight of a stretch in the place of all of them, or 0 where they differ too much.
  double middle(Vec low, Vec high) const {
    const double lift = Noise::kDispersed || in_batches() ? 0.0 : 1.0, least = lift - largest_lane(-low), most = lift + largest_lane(high);
    return most <= Stretches::kEven * least ? 0.5 * (least + most) * (levels_here_ != nullptr ? 1.0 : row_.exposure) : 0.0;
  }

  // g of a block of columns, and H where weights are not even.
  template <bool Dense>
  void add_stretches(const double* X, std::int64_t from, int padded) {
    const double* middle = middle_ + from / kStretch;
    const double* weight = !Noise::kDispersed && !Dense ? residual_ : weight_;   // where these are the same
    for (int e = 0, end = 0; e < padded; e = end) {
      const auto is_even = [&](int at) { return (Link::kLinear && !Dense) || middle[at / kStretch] > 0.0; };   // identity: zeros have no weight
      const bool even = is_even(e);
      while (end < padded && even == is_even(end)) end = std::min(end + kStretch, padded);
      if (even) sums_.add_gradient(X + e, design_.padded, end - e, residual_ + e);
      else sums_.add_block(X + e, design_.padded, end - e, residual_ + e, weight + e);
    }
  }

  // The counts of a dense row, with zeros in between.
  void lay_out_counts() {
    least_ = std::numeric_limits<double>::infinity();
    std::fill_n(static_cast<double*>(y_), design_.padded, 0.0);
    for (std::int64_t from = 0; from < row_.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, row_.count - from));
      least_ = std::min(least_, read_values(h_.rows, row_.offset + from, n, weight_));
      const std::int32_t* indices = row_.indices + from;
      for (int p = 0; p < n; ++p) y_[design_.place.empty() ? indices[p] : design_.place[indices[p]]] = weight_[p];
    }
  }

  // What counts add, for all entries of a dense row: nothing where the count is zero.
  template <Level L, bool WithLoss>
  LOG1PNMF_INLINE void counts_of_group(const double* X, int e, std::int64_t from, Vec* loss) {
    constexpr int U = kUnroll;
    EntriesAt<U> at;
    CountTerms<U> c;
    Vec y[U];
    LOG1PNMF_EACH y[u] = load(y_ + from + e + u * kLanes);
    LOG1PNMF_EACH at.em[u] = vmax(load(em_here_ + e + u * kLanes), splat(kSmallestEta));   // em is eta there
    belongings<true, Noise::kDispersed, U>(X, design_.padded, e, at);
    Noise::template disperse<WithLoss, U>(at);
    Noise::template count_terms<Link, WithLoss, U>(y_ + from + e, at, c);
    if constexpr (Noise::kDispersed) LOG1PNMF_EACH least_ratio_ = vmin(least_ratio_, y[u] > 0.0 ? at.ratio[u] : splat(1.0));
    LOG1PNMF_EACH {
      const int to = e + u * kLanes;
      if constexpr (WithLoss) {
        c.loss[u] += y[u] * impossible(at.em[u]);
        loss[u] += c.loss[u];
      }
      if constexpr (L != Level::loss) store(residual_ + to, load(residual_ + to) + c.residual[u]);
      if constexpr (L == Level::hessian) {
        store(weight_ + to, load(weight_ + to) + c.weight[u]);
        store(slope_ + from + to, y[u] > 0.0 ? Link::relative_slope(c.inverse[u]) : Vec{});
      }
    }
  }

  template <Level L>
  void accumulate(const double* X, std::int64_t stride, int padded) {
    if constexpr (L == Level::gradient) sums_.add_gradient(X, stride, padded, residual_);
    if constexpr (L == Level::hessian) sums_.add_block(X, stride, padded, residual_, weight_);
  }

  void add_loss(const Vec* loss) {
    Vec sum = loss[0];
    for (int u = 1; u < kUnroll; ++u) sum += loss[u];
    loss_ += sum;
  }

  static constexpr double kMostBend = 0.7;
  static constexpr double kLeastBend = 1e-12, kMostWholeBend = 1e10;   // of that of all entries: less may be rounding, more makes sums unreliable

  Accumulator sums_;
  Buffer y_, residual_, weight_, slope_;   // slope: em' / em of counts
  Buffer counts_em_;             // exact form: of a block of counts
  Buffer middle_;                // exact form: weights of the stretches of a block
  bool dense_ = false;           // exact form: whether all entries of the row are handled as counts
  double least_ = 0.0;           // count of a dense row
  Buffer bend_gradient_;
  double *em_here_ = nullptr, *eta_here_ = nullptr;   // of the block at hand
  ZeroSums zeros_;
  const double* b_ = nullptr;    // where the row is evaluated
  Vec loss_ = Vec{};             // there
  double smallest_ = 0.0;
  Vec least_ratio_ = Vec{};
  Vec steep_ = Vec{}, bend_ = Vec{};   // of the visited entries, see beyond_bend
  double whole_bend_ = 0.0, unvisited_bend_ = 0.0, unvisited_steep_ = 0.0;   // at the last evaluation
};

}  // namespace log1pnmf::LOG1PNMF_ISA
