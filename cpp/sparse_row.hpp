// A row in sparse form: its counts, and the zeros that are listed, entry by entry.
//
// The zero terms of all entries are approximated by a quadratic q (policies.hpp), whose sum over
// the row follows without evaluating the entries (ZeroSums). So an entry with zero terms z adds
//   a listed zero:  z - q,      a count:  its count terms + z - q.
// In exact form every entry has added z already (exact_row.hpp), and a count adds its count terms.
#pragma once

#include "row_blocks.hpp"
#include "zero_sums.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

enum class Level { loss, gradient, hessian };

// What an evaluation sums over the entries of a row.
struct RowSums {
  RowSums(int K, int block, Index capacity)
      : derivatives(K), residual(block), weights(capacity), weight(weights) {}
  Accumulator derivatives;
  Buffer residual;     // of the block at hand
  Buffer weights;      // of the blocks that are kept, or of the one at hand,
  double* weight;      // which begin here
  bool later = false;  // whether the Hessian is added when all blocks are there
  Vec loss = Vec{};
  double smallest_count = 0.0;
  Vec smallest_ratio = Vec{};  // with dispersions: 1 / (1 + phi mean) of the counts

  void add_loss(const Vec* part) {
    Vec sum = part[0];
    for (int u = 1; u < kUnroll; ++u) sum += part[u];
    loss += sum;
  }
  // Terms of U vectors of entries of the block at hand; their loss is added to `part`.
  template <Level L, bool WithLoss, int U>
  ALWAYS_INLINE void put(int e, const ZeroTerms<U>& terms, Vec* part) {
    EACH {
      if constexpr (WithLoss) part[u] += terms.loss[u];
      if constexpr (L != Level::loss) store(residual + e + u * kLanes, terms.residual[u]);
      if constexpr (L == Level::hessian) store(weight + e + u * kLanes, terms.weight[u]);
    }
  }
  template <Level L>
  void add_block(const double* X, Index stride, int padded) {
    if constexpr (L == Level::loss) return;
    if (L == Level::gradient || later) derivatives.add_gradient(X, stride, padded, residual);
    else derivatives.add_hessian(X, stride, padded, weight, residual);
  }
};

// What a step changes: the largest relative fall of a count's em to first order, the largest rise
// of an eta.
struct Changes {
  Vec shrink = Vec{}, growth = Vec{};

  // Adds U vectors of entries; slope is em'/em of counts.
  template <bool Counts, int U>
  ALWAYS_INLINE void add(int K, const double* X, Index stride, int e, const double* d,
                         const double* slope) {
    Vec delta[U];
    linear_predictor<U>(K, X, stride, e, d, delta);
    EACH growth = vmax(growth, delta[u]);
    if constexpr (Counts) EACH shrink = vmax(shrink, -delta[u] * load(slope + e + u * kLanes));
  }
  template <class Link, class Noise>
  bool hold() const {
    return Noise::template curvature_holds<Link>(largest_lane(shrink), largest_lane(growth));
  }
};

template <class Link, class Noise>
class SparseRow {
 public:
  // With Poisson noise and the identity link the zero terms are linear, and the quadratic is exact.
  static constexpr bool kIsExact = Link::kLinear && !Noise::kDispersed;

  RowBlocks blocks;

  SparseRow(const HalfStep& h, const Design& design)
      : blocks(h, design), rows_(h.rows), y_(blocks.block), em_(blocks.block), eta_(blocks.block),
        slope_(blocks.capacity) {}

  // Zeros: whether the zero terms of the counts are part of it, less the quadratic.
  template <Level L, bool WithLoss, bool Zeros>
  void add_counts(const double* b, RowSums& sums, ConcavePart& concave) {
    const Row& row = blocks.row();
    Vec loss[kUnroll] = {}, lowest = splat(1.0);  // in registers: stores may alias any member
    for (Index from = 0; from < row.count; from += blocks.block) {
      const int n = blocks.length(row, from), padded = static_cast<int>(round_up(n, kLanes));
      const double* X = blocks.gathered(row, from, n, from);
      const double smallest = read_values(rows_, row.offset + from, n, y_);
      sums.smallest_count = std::min(sums.smallest_count, smallest);
      std::fill(y_ + n, y_ + padded, 0.0);
      double* slope = slope_ + (blocks.kept() ? from : 0);
      sums.weight = sums.weights + (blocks.kept() ? from : 0);
      int e = 0;
      for (; e + kStep <= n; e += kStep) keep_means<Zeros, kUnroll>(X, e, b, lowest, loss);
      for (; e < padded; e += kLanes) keep_means<Zeros, 1>(X, e, b, lowest, loss);
      for (e = 0; e + kStep <= padded; e += kStep)
        count_terms<L, WithLoss, Zeros, kUnroll>(X, e, slope, loss, sums, concave);
      for (; e < padded; e += kLanes)
        count_terms<L, WithLoss, Zeros, 1>(X, e, slope, loss, sums, concave);
      sums.add_block<L>(X, blocks.block, padded);
    }
    if (-largest_lane(-lowest) <= kSmallestEta) loss[0] += kImpossible / kLanes;
    sums.add_loss(loss);
  }

  template <Level L, bool WithLoss>
  void add_zeros(const double* b, RowSums& sums, ConcavePart& concave) {
    // the zero terms of the identity link have no weight
    constexpr Level kNeeded = Link::kLinear && L == Level::hessian ? Level::gradient : L;
    const Entries& zeros = blocks.row().stored;
    Vec loss[kUnroll] = {};
    for (Index from = 0; from < zeros.count; from += blocks.block) {
      const int n = blocks.length(zeros, from), padded = static_cast<int>(round_up(n, kLanes));
      const Index place = blocks.first_zero() + from;
      const double* X = blocks.gathered(zeros, from, n, place);
      sums.weight = sums.weights + (blocks.kept() ? place : 0);
      int e = 0;
      for (; e + kStep <= padded; e += kStep)
        zero_terms<L, WithLoss, kUnroll>(X, e, b, loss, sums, concave);
      for (; e < padded; e += kLanes) zero_terms<L, WithLoss, 1>(X, e, b, loss, sums, concave);
      sums.add_block<kNeeded>(X, blocks.block, padded);
    }
    sums.add_loss(loss);
  }

  // What was left for later.
  void add_hessian(RowSums& sums) const {
    const auto add = [&](const Entries& entries, Index place) {
      for (Index from = 0; from < entries.count; from += blocks.block) {
        const int padded = static_cast<int>(round_up(blocks.length(entries, from), kLanes));
        const double *X = blocks.at(place + from), *weight = sums.weights + place + from;
        sums.derivatives.add_hessian(X, blocks.block, padded, weight);
      }
    };
    add(blocks.row(), 0);
    if (!Link::kLinear || Noise::kDispersed) add(blocks.row().stored, blocks.first_zero());
  }

  // The gradient of what the entries take from C and A, times by_C and by_A: see ConcavePart.
  void add_concave_gradient(const double* b, double by_C, double by_A, RowSums& sums) {
    add_concave_gradient(blocks.row(), 0, b, by_C, by_A, sums);
    add_concave_gradient(blocks.row().stored, blocks.first_zero(), b, by_C, by_A, sums);
  }

  // To the end of the block in which a step turns out to be too long; for rows that are kept.
  void add_changes(const double* d, Changes& changes) const {
    add_changes<true>(blocks.row(), 0, d, changes);
    add_changes<false>(blocks.row().stored, blocks.first_zero(), d, changes);
  }

 private:
  // Two loops over the entries of a block, this one and that of the terms, because one would have
  // more in flight than there are registers.
  template <bool Zeros, int U>
  ALWAYS_INLINE void keep_means(const double* X, int e, const double* b, Vec& lowest, Vec* loss) {
    Vec eta[U], em[U];
    linear_predictor<U>(blocks.K, X, blocks.block, e, b, eta);
    if constexpr (U == 1) loss[0] += load(y_ + e) * impossible(eta[0]);  // padding, if any, is here
    else EACH lowest = vmin(lowest, eta[u]);
    EACH eta[u] = Link::clamp_eta(eta[u]);
    Link::template mean_part<U>(eta, em);
    EACH store(em_ + e + u * kLanes, em[u]);
    if constexpr (Zeros) EACH store(eta_ + e + u * kLanes, eta[u]);
  }

  template <Level L, bool WithLoss, bool Zeros, int U>
  ALWAYS_INLINE void count_terms(const double* X, int e, double* slope, Vec* loss, RowSums& sums,
                                 ConcavePart& concave) {
    EntriesAt<U> at;
    EACH at.em[u] = load(em_ + e + u * kLanes);
    if constexpr (Noise::kDispersed || Zeros) blocks.exposures<Noise::kDispersed, U>(X, e, at);
    CountTerms<U> c;
    Noise::template disperse<WithLoss, U>(at);
    Noise::template count_terms<Link, WithLoss, U>(y_ + e, at, c);
    if constexpr (Noise::kDispersed && L == Level::hessian)
      EACH sums.smallest_ratio = vmin(sums.smallest_ratio, at.inverse_D[u]);
    if constexpr (Zeros) {
      EACH at.eta[u] = load(eta_ + e + u * kLanes);
      ZeroTerms<U> z;
      blocks.quadratics<Link, Noise, U>(X, e, at);
      Noise::template zero_terms<Link, U>(at, z);
      less_quadratic<Link, Noise, U>(at, z);
      if constexpr (Noise::kDispersed) concave.add<U>(at);
      EACH {
        c.loss[u] += z.loss[u];
        c.residual[u] += z.residual[u];
        c.weight[u] += z.weight[u];
      }
    }
    sums.template put<L, WithLoss, U>(e, c, loss);
    if constexpr (L == Level::hessian)
      EACH store(slope + e + u * kLanes, Link::relative_slope(c.inverse[u]));
  }

  // Poisson: no logarithm, no division.
  template <Level L, bool WithLoss, int U>
  ALWAYS_INLINE void zero_terms(const double* X, int e, const double* b, Vec* loss, RowSums& sums,
                                ConcavePart& concave) {
    EntriesAt<U> at;
    linear_predictor<U>(blocks.K, X, blocks.block, e, b, at.eta);
    EACH at.eta[u] = Link::clamp_eta(at.eta[u]);
    Link::template mean_part<U>(at.eta, at.em);
    blocks.exposures<Noise::kDispersed, U>(X, e, at);
    blocks.quadratics<Link, Noise, U>(X, e, at);
    ZeroTerms<U> z;
    Noise::template disperse<WithLoss, U>(at);
    Noise::template zero_terms<Link, U>(at, z);
    less_quadratic<Link, Noise, U>(at, z);
    if constexpr (Noise::kDispersed) concave.add<U>(at);
    sums.template put<L, WithLoss, U>(e, z, loss);
  }

  void add_concave_gradient(const Entries& entries, Index place, const double* b, double by_C,
                            double by_A, RowSums& sums) {
    for (Index from = 0; from < entries.count; from += blocks.block) {
      const int n = blocks.length(entries, from), padded = static_cast<int>(round_up(n, kLanes));
      const double* X = blocks.gathered(entries, from, n, place + from);
      for (int e = 0; e < padded; e += kLanes) {
        EntriesAt<1> at;
        linear_predictor<1>(blocks.K, X, blocks.block, e, b, at.eta);
        blocks.exposures<true, 1>(X, e, at);
        blocks.quadratics<Link, Noise, 1>(X, e, at);
        store(sums.residual + e, at.t[0] * (4.0 * by_C * at.t_b2[0] * at.eta[0] - by_A));
      }
      sums.derivatives.add_gradient(X, blocks.block, padded, sums.residual);
    }
  }

  template <bool Counts>
  void add_changes(const Entries& entries, Index place, const double* d, Changes& to) const {
    Changes changes = to;  // in registers
    const int block = blocks.block;
    for (Index from = 0; from < entries.count && changes.hold<Link, Noise>(); from += block) {
      const int padded = static_cast<int>(round_up(blocks.length(entries, from), kLanes));
      const double *X = blocks.at(place + from), *slope = slope_ + from;
      int e = 0;
      for (; e + kStep <= padded; e += kStep)
        changes.add<Counts, kUnroll>(blocks.K, X, block, e, d, slope);
      for (; e < padded; e += kLanes) changes.add<Counts, 1>(blocks.K, X, block, e, d, slope);
    }
    to = changes;
  }

  const Rows& rows_;
  Buffer y_, em_, eta_, slope_;  // of the block at hand; em'/em of the row's counts
};

}  // namespace log1pnmf::LOG1PNMF_ISA
