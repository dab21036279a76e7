// The means of a row summed over the columns of each batch, as if all effects were 1. Poisson noise
// and the shifted logarithm: with the identity link the sums are those of the design.
#pragma once

#include "sparse_row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class BatchSums {
 public:
  BatchSums(const HalfStep& h, const Design& design)
      : K_(h.n_components), wanted_(h.batch_sums != nullptr), n_rows_(h.rows.n_rows),
        design_(design), stride_(round_up(design.batches, kLanes)),
        terms_(wanted_ ? (K_ + K_ * (K_ + 1) / 2) * stride_ : 0), quadratics_(stride_),
        means_(wanted_ ? kLargestBlock : 0), lanes_(wanted_ ? stride_ * kLanes : 0),
        evaluated_at_(K_), step_(K_) {
    if (!wanted_ || h.model.exact_zeros) return;
    for (int batch = 0; batch < design.batches; ++batch) {
      const double* linear = design.linear + batch * K_;
      const double* gram = design.gram + Index{batch} * K_ * K_;
      double* to = terms_ + batch;
      for (int k = 0; k < K_; ++k, to += stride_) *to = linear[k];
      for (int k = 0; k < K_; ++k)
        for (int l = 0; l <= k; ++l, to += stride_) *to = (l < k ? 2.0 : 1.0) * gram[k * K_ + l];
    }
  }

  void start_evaluation(const double* b) {
    if (wanted_) std::copy_n(b, K_, static_cast<double*>(evaluated_at_));
  }

  // One number for every batch, n_rows apart. Sparse form: the mean of an approximated zero is its
  // quadratic, but for the constant.
  void sum(const double* b, RowBlocks& blocks, const Means& last, double* to) {
    const bool near = start(b) <= kNear && last.kept;
    if (near) add_listed<true>(b, blocks, last);
    else add_listed<false>(b, blocks, last);
    add_quadratics(b, blocks.quadratic());
    finish(blocks.row().exposure, to);
  }

  // Exact form.
  void sum(const double* b, const Row& row, const Means& last, double* to) {
    start(b);
    for (int batch = 0; batch < design_.batches; ++batch) {
      Vec sum[kUnroll] = {};
      Index e = design_.first[batch];
      for (; e + kStep <= design_.first[batch + 1]; e += kStep) add_means<kUnroll>(e, b, last, sum);
      for (; e < design_.first[batch + 1]; e += kLanes) add_means<1>(e, b, last, sum);
      for (int u = 1; u < kUnroll; ++u) sum[0] += sum[u];
      store(lanes_ + batch * kLanes, sum[0]);
    }
    finish(row.exposure, to);
  }

 private:
  static constexpr double kNear = 1.0 / 32.0;

  // Returns a bound on the change of any eta since the last evaluation.
  double start(const double* b) {
    std::fill_n(static_cast<double*>(lanes_), design_.batches * kLanes, 0.0);
    double most = 0.0;
    for (int k = 0; k < K_; ++k) {
      step_[k] = b[k] - evaluated_at_[k];
      most += std::abs(step_[k]) * design_.largest[k];
    }
    return most;
  }

  void finish(double exposure, double* to) const {
    for (int first = 0; first < design_.batches; first += kLanes) {
      double sums[kLanes];
      const Vec own = horizontal_sums(lanes_ + Index{first} * kLanes);
      store(sums, exposure * (load(quadratics_ + first) + own));
      for (int i = 0; i < kLanes && first + i < design_.batches; ++i)
        to[(first + i) * n_rows_] = sums[i];
    }
  }

  template <bool Near>
  void add_listed(const double* b, RowBlocks& blocks, const Means& last) {
    add_listed<Near>(blocks.row(), 0, b, blocks, last);
    add_listed<Near>(blocks.row().stored, blocks.first_zero(), b, blocks, last);
  }
  template <bool Near>
  void add_listed(const Entries& entries, Index place, const double* b, RowBlocks& blocks,
                  const Means& last) {
    for (Index from = 0; from < entries.count; from += blocks.block) {
      const int n = blocks.length(entries, from);
      const double* X = blocks.gathered(entries, from, n, place + from);
      int e = 0;
      for (; e + kStep <= n; e += kStep)
        keep_means<Near, kUnroll>(X, e, place + from, b, blocks, last);
      for (; e < n; e += kLanes) keep_means<Near, 1>(X, e, place + from, b, blocks, last);
      add_by_batch(X + design_.label * blocks.block, n);
    }
  }

  // Every lane has sums of its own, so that no sum waits for the one before.
  void add_by_batch(const double* batch, int n) {
    double *lanes = lanes_, *means = means_;
    int e = 0;
#if LOG1PNMF_LANES == 8
    if (design_.batches <= kLanes) {  // in registers
      Vec sums[kLanes];
      for (int b = 0; b < kLanes; ++b) sums[b] = load(lanes + b * kLanes);
      for (; e < n; e += kLanes) add_by_label(load(means + e), batch + e, sums);
      for (int b = 0; b < kLanes; ++b) store(lanes + b * kLanes, sums[b]);
      return;
    }
#endif
    for (; e + kLanes <= n; e += kLanes)
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i)
        lanes[as_integer(batch + e + i) * kLanes + i] += means[e + i];
    for (; e < n; ++e) lanes[as_integer(batch + e) * kLanes] += means[e];
  }

  template <bool Near, int U>
  ALWAYS_INLINE void keep_means(const double* X, int e, Index place, const double* b,
                                const RowBlocks& blocks, const Means& last) {
    Vec means[U];
    means_at<true, Near, U>(X + e, blocks.block, place + e, b, blocks.quadratic(), last, means);
    EACH store(means_ + e + u * kLanes, means[u]);
  }

  template <int U>
  ALWAYS_INLINE void add_means(Index e, const double* b, const Means& last, Vec* sum) {
    Vec means[U];
    means_at<false, false, U>(design_.transposed + e, design_.padded, e, b, nullptr, last, means);
    EACH sum[u] += means[u];
  }

  // Near: no eta of the row has changed much.
  template <bool LessQuadratic, bool Near, int U>
  ALWAYS_INLINE void means_at(const double* X, Index stride, Index place, const double* b,
                              const double* quadratic, const Means& last, Vec* em) {
    Vec eta[U];
    if (!((Near || last.kept) &&
          means_nearby<LessQuadratic, Near, U>(X, stride, place, last, em, eta))) {
      linear_predictor<U>(K_, X, stride, 0, b, eta);
      EACH eta[u] = ShiftedLogLink::clamp_eta(eta[u]);
      ShiftedLogLink::mean_part<U>(eta, em);
    }
    if constexpr (LessQuadratic) EACH em[u] -= eta[u] * (quadratic[0] + quadratic[1] * eta[u]);
    if (design_.exposure >= 0) EACH em[u] *= load(X + design_.exposure * stride + u * kLanes);
  }

  // em and eta from those of the last evaluation, em by a series; false where an eta has changed
  // too much.
  template <bool WithEta, bool Near, int U>
  ALWAYS_INLINE bool means_nearby(const double* X, Index stride, Index place, const Means& last,
                                  Vec* em, Vec* eta) {
    constexpr double kSeries[] = {1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0};
    Vec change[U], growth[U], most = Vec{};
    linear_predictor<U>(K_, X, stride, 0, step_, change);
    if constexpr (!Near) {
      EACH most = vmax(most, vmax(change[u], -change[u]));
      if (lanes_above(most, kNear) != 0) return false;
    }
    EACH growth[u] = splat(1.0 / 120.0);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) EACH growth[u] = growth[u] * change[u] + kSeries[i];
    const Vec least = splat(kSmallestEta);
    EACH em[u] = load(last.em + place + u * kLanes);
    EACH em[u] = vmax(em[u] + (em[u] + 1.0) * (growth[u] * change[u]), least);
    if constexpr (WithEta)
      EACH eta[u] = vmax(load(last.eta + place + u * kLanes) + change[u], least);
    return true;
  }

  // Of all columns of each batch: a1 linear'b + a2 b'gram b. A lane is a batch.
  void add_quadratics(const double* b, const double* quadratic) {
    Index batch = 0;
    for (; batch + kStep <= stride_; batch += kStep) add_quadratics<kUnroll>(b, quadratic, batch);
    for (; batch < stride_; batch += kLanes) add_quadratics<1>(b, quadratic, batch);
  }
  template <int U>
  ALWAYS_INLINE void add_quadratics(const double* b, const double* quadratic, Index batch) {
    const double a1 = quadratic[0], a2 = quadratic[1];
    const double *linear = terms_ + batch, *gram = linear + K_ * stride_;
    Vec sum[U] = {}, square[U] = {};
    for (int k = 0; k < K_; ++k, linear += stride_) {
      Vec own[U] = {};
      for (int l = 0; l <= k; ++l, gram += stride_) EACH own[u] += b[l] * load(gram + u * kLanes);
      EACH sum[u] += b[k] * load(linear + u * kLanes);
      EACH square[u] += b[k] * own[u];
    }
    EACH store(quadratics_ + batch + u * kLanes, a1 * sum[u] + a2 * square[u]);
  }

  int K_;
  bool wanted_;
  Index n_rows_;
  const Design& design_;
  Index stride_;               // batches, in whole vectors
  Buffer terms_, quadratics_;  // of every batch: linear, then the lower triangle of gram; their sum
  Buffer means_, lanes_;       // of a block; of every batch, by lane
  Buffer evaluated_at_, step_;  // where the last evaluation was, and the step since
};

}  // namespace log1pnmf::LOG1PNMF_ISA
