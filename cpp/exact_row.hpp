// A row in exact form: every entry adds the terms of a zero. Where a third of the entries are
// counts (a dense row), all are handled as counts, too; otherwise sparse_row.hpp adds the counts.
#pragma once

#include "sparse_row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

template <class Link, class Noise>
class ExactRow {
 public:
  ExactRow(const HalfStep& h, const Design& design)
      : K_(h.n_components), block_(block_size(K_, h.model.exact_zeros)), rows_(h.rows),
        design_(design), dispersions_(h, design) {
    if (!h.model.exact_zeros) return;
    em_ = Buffer(block_);
    y_ = Buffer(design.padded);
    slope_ = Buffer(design.padded);
    shared_weights_ = Buffer(design.padded / kStretch);
    if (!design.first.empty()) levels_ = Buffer(design.columns / kLanes);
  }

  void start_row(const Row& row) {
    row_ = row;
    dispersions_.start_row(row.number);
    for (int b = 0; !design_.first.empty() && b < design_.batches; ++b)
      std::fill(levels_ + design_.first[b] / kLanes, levels_ + design_.first[b + 1] / kLanes,
                row.exposure * effects_of_row(rows_, row.number)[b]);
    dense_ = is_dense(rows_, row.number);
    if (dense_) lay_out_counts(row);
  }
  void start_evaluation(RowSums& sums) {
    if (dense_) sums.smallest_count = smallest_count_;
  }
  bool dense() const { return dense_; }
  int block() const { return block_; }
  Index end() const { return round_up(design_.columns, kStep); }

  // The block of columns from here on.
  template <Level L, bool WithLoss>
  void add_columns(Index from, const double* b, RowSums& sums) {
    if (dense_) add_columns<L, WithLoss, true>(from, b, sums);
    else add_columns<L, WithLoss, false>(from, b, sums);
  }

  // The Hessian of the stretches with one weight, after the last block.
  void add_stretches(RowSums& sums) const {
    if (design_.stretches.any() && !dense_)
      sums.derivatives.add_stretches(design_.stretches, shared_weights_);
  }

  // Whether a step's changes, those of the counts given, surely leave the curvature small enough.
  bool changes_hold(const double* d, Changes& changes) const {
    const double uneven = design_.stretches.any() && !dense_ ? Stretches::kUneven : 0.0;
    if (uneven > 0.0) {
      const Changes most{changes.shrink, splat(design_.stretches.most(d) + uneven)};
      if (most.hold<Link, Noise>()) return true;
    }
    if (dense_) add_changes<true>(d, changes);
    else add_changes<false>(d, changes);
    changes.growth += uneven;
    return changes.hold<Link, Noise>();
  }

 private:
  template <Level L, bool WithLoss, bool Dense>
  void add_columns(Index from, const double* b, RowSums& sums) {
    const int padded = static_cast<int>(std::min<Index>(block_, end() - from));
    const double* X = design_.transposed + from;
    const std::int32_t* batch = rows_.batches.row_batch;
    exposure_ = batch != nullptr ? design_.exposures + batch[row_.number] * design_.padded + from
                                 : X + design_.exposure * design_.padded;
    level_ = design_.first.empty() ? nullptr : levels_ + from / kLanes;
    Vec loss[kUnroll] = {};
    for (int e = 0; e < padded; e += kStretch) {
      const int stop = std::min(padded, e + kStretch);
      Vec low = splat(std::numeric_limits<double>::infinity()), high = Vec{};
      for (int at = e; at < stop; at += kStep)
        zero_terms<L, WithLoss, Dense>(X, at, b, low, high, loss, sums);
      if constexpr (Dense)
        for (int at = e; at < stop; at += kStep) count_terms<L, WithLoss>(X, at, from, loss, sums);
      if constexpr (L == Level::hessian)
        shared_weights_[(from + e) / kStretch] =
            Dense || !design_.stretches.any() ? 0.0 : shared_weight(low, high);
    }
    sums.add_loss(loss);
    if constexpr (L == Level::hessian) add_derivatives<Dense>(X, from, padded, sums);
    else sums.add_block<L>(X, design_.padded, padded);
  }

  template <int U>
  ALWAYS_INLINE void exposures(const double* X, int e, EntriesAt<U>& at) const {
    EACH at.t[u] = splat(row_.exposure);
    if (level_ != nullptr) EACH at.t[u] = splat(level_[e / kLanes + u]);
    EACH at.t[u] *= load(exposure_ + e + u * kLanes);
    if constexpr (Noise::kDispersed) dispersions_.fill<U>(X, design_.padded, e, at);
  }

  // low and high are the extremes of the weights over t (but for effects and, with batches of
  // columns, the row's exposure), less 1 with Poisson noise without batches.
  template <Level L, bool WithLoss, bool Dense>
  ALWAYS_INLINE void zero_terms(const double* X, int e, const double* b, Vec& low, Vec& high,
                                Vec* loss, RowSums& sums) {
    constexpr int U = kUnroll;
    EntriesAt<U> at;
    ZeroTerms<U> z;
    linear_predictor<U>(K_, X, design_.padded, e, b, at.eta);
    Link::template mean_part<U, true>(at.eta, at.em);
    exposures<U>(X, e, at);
    Noise::template disperse<WithLoss, U>(at);
    Noise::template zero_terms<Link, U>(at, z);
    if constexpr (L == Level::hessian && !Dense) {
      if (Noise::kDispersed || rows_.batches.any()) {
        Vec weight[U];
        EACH weight[u] = Noise::kDispersed ? (at.em[u] + 1.0) * at.inverse_D[u] : at.em[u] + 1.0;
        if (level_ != nullptr) EACH weight[u] *= splat(level_[e / kLanes + u]);
        if (rows_.batches.row_batch != nullptr) EACH weight[u] *= load(exposure_ + e + u * kLanes);
        EACH low = vmin(low, weight[u]), high = vmax(high, weight[u]);
      } else EACH low = vmin(low, at.em[u]), high = vmax(high, at.em[u]);
    }
    if constexpr (Dense) EACH store(em_ + e + u * kLanes, at.em[u]);
    // with Poisson noise the weight of a zero is its residual, see add_derivatives
    constexpr bool kNoWeight = L == Level::hessian && !Dense && !Noise::kDispersed;
    sums.template put<kNoWeight ? Level::gradient : L, WithLoss, U>(e, z, loss);
  }

  // What counts add, for all entries of a dense row: nothing where the count is zero.
  template <Level L, bool WithLoss>
  ALWAYS_INLINE void count_terms(const double* X, int e, Index from, Vec* loss, RowSums& sums) {
    constexpr int U = kUnroll;
    EntriesAt<U> at;
    CountTerms<U> c;
    Vec y[U];
    EACH y[u] = load(y_ + from + e + u * kLanes);
    EACH at.em[u] = vmax(load(em_ + e + u * kLanes), splat(kSmallestEta));  // em is eta there
    exposures<U>(X, e, at);
    Noise::template disperse<WithLoss, U>(at);
    Noise::template count_terms<Link, WithLoss, U>(y_ + from + e, at, c);
    if constexpr (Noise::kDispersed)
      EACH sums.smallest_ratio =
          vmin(sums.smallest_ratio, y[u] > 0.0 ? at.inverse_D[u] : splat(1.0));
    EACH {
      const int to = e + u * kLanes;
      c.loss[u] += y[u] * impossible(at.em[u]);
      if constexpr (L != Level::loss) c.residual[u] = load(sums.residual + to) + c.residual[u];
      if constexpr (L == Level::hessian) c.weight[u] = load(sums.weight + to) + c.weight[u];
      if constexpr (L == Level::hessian)
        store(slope_ + from + to, y[u] > 0.0 ? Link::relative_slope(c.inverse[u]) : Vec{});
    }
    sums.template put<L, WithLoss, U>(e, c, loss);
  }

  // The weight of a stretch in the place of all of them, or 0 where they differ too much.
  double shared_weight(Vec low, Vec high) const {
    const double shift = Noise::kDispersed || rows_.batches.any() ? 0.0 : 1.0;
    const double exposure =
        level_ != nullptr ? 1.0 : row_.exposure;  // otherwise part of the weights
    const double least = shift - largest_lane(-low), most = shift + largest_lane(high);
    return most <= Stretches::kEven * least ? 0.5 * (least + most) * exposure : 0.0;
  }

  // g of a block of columns, and H of those stretches that share no weight.
  template <bool Dense>
  void add_derivatives(const double* X, Index from, int padded, RowSums& sums) {
    const double* shared = shared_weights_ + from / kStretch;
    // with Poisson noise the residual of a zero is its weight; the identity link has none
    const double* weight = !Noise::kDispersed && !Dense ? sums.residual : sums.weight;
    const auto shares = [&](int at) {
      return (Link::kLinear && !Dense) || shared[at / kStretch] > 0.0;
    };
    for (int e = 0, end = 0; e < padded; e = end) {
      const bool even = shares(e);
      while (end < padded && even == shares(end)) end = std::min(end + kStretch, padded);
      const double* residual = sums.residual + e;
      if (even) sums.derivatives.add_gradient(X + e, design_.padded, end - e, residual);
      else sums.derivatives.add_hessian(X + e, design_.padded, end - e, weight + e, residual);
    }
  }

  // The counts of a dense row, with zeros in between.
  void lay_out_counts(const Row& row) {
    double counts[kLargestBlock];
    smallest_count_ = std::numeric_limits<double>::infinity();
    std::fill_n(static_cast<double*>(y_), design_.padded, 0.0);
    for (Index from = 0; from < row.count; from += kLargestBlock) {
      const auto n = std::min<Index>(kLargestBlock, row.count - from);
      smallest_count_ = std::min(smallest_count_, read_values(rows_, row.offset + from, n, counts));
      const std::int32_t* indices = row.indices + from;
      for (Index p = 0; p < n; ++p)
        y_[design_.place.empty() ? indices[p] : design_.place[indices[p]]] = counts[p];
    }
  }

  template <bool Dense>
  void add_changes(const double* d, Changes& to) const {
    Changes changes = to;  // in registers
    for (Index from = 0; from < end() && changes.hold<Link, Noise>(); from += block_) {
      const int padded = static_cast<int>(std::min<Index>(block_, end() - from));
      const double *X = design_.transposed + from, *slope = slope_ + from;
      for (int e = 0; e < padded; e += kStep)
        changes.add<Dense, kUnroll>(K_, X, design_.padded, e, d, slope);
    }
    to = changes;
  }

  int K_, block_;
  const Rows& rows_;
  const Design& design_;
  Dispersions dispersions_;
  Row row_{};
  bool dense_ = false;
  double smallest_count_ = 0.0;  // of a dense row
  Buffer y_, slope_;             // of a dense row, column by column: counts; em'/em where they are
  Buffer levels_;          // batches of columns: the row's exposure in every vector of columns
  Buffer shared_weights_;  // of the stretches
  Buffer em_;              // of the block at hand, as are exposures
  const double *exposure_ = nullptr, *level_ = nullptr;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
