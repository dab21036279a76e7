// The means of a row, summed up over the columns of each batch.
#pragma once

#include "row_blocks.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Poisson noise; not the identity link, where the sums are those of the design.
class RowMeans : protected RowBlocks {
 protected:
  RowMeans(const HalfStep& h, const Design& design, bool weighs)
      : RowBlocks(h, design, weighs), n_terms_(K_ + K_ * (K_ + 1) / 2), stride_(round_up(design.batches, kLanes)), weights_(n_terms_),
        terms_(h.batch_sums != nullptr ? n_terms_ * stride_ : 0), quadratics_(stride_), means_(h.batch_sums != nullptr ? block_ : 0),
        lanes_(h.batch_sums != nullptr ? static_cast<std::int64_t>(design.batches) * kLanes : 0) {
    if (h.batch_sums == nullptr || h.model.exact_zeros) return;
    for (int batch = 0; batch < design.batches; ++batch) {
      const double *linear = design.linear + batch * K_, *gram = design.gram + std::int64_t{batch} * K_ * K_;
      double* to = terms_ + batch;
      for (int k = 0; k < K_; ++k, to += stride_) *to = linear[k];
      for (int k = 0; k < K_; ++k)
        for (int l = 0; l <= k; ++l, to += stride_) *to = (l < k ? 2.0 : 1.0) * gram[k * K_ + l];
    }
  }

  // As if all effects were 1. In sparse form a quadratic is the mean of a zero that is not visited, but for its constant.
  template <class Link>
  void sum(const double* b, double* to) {
    std::fill_n(static_cast<double*>(lanes_), design_.batches * kLanes, 0.0);
    const bool exact = h_.model.exact_zeros;
    if (exact) add_all<Link>(b);
    else {
      add_visited<Link>(row_, 0, b);
      add_visited<Link>(row_.stored, first_zero_, b);
    }
    if (!exact) add_quadratics(b);
    for (int batch = 0; batch < design_.batches; ++batch) to[batch] = quadratics_[batch] + horizontal_sum(load(lanes_ + batch * kLanes));
  }

 private:
  template <class Link>
  void add_visited(const Entries& entries, std::int64_t place, const double* b) {
    for (std::int64_t from = 0; from < entries.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, entries.count - from));
      const double* X = gathered(entries, from, n, place + from);
      int e = 0;
      for (; e + kStep <= n; e += kStep) keep_means<Link, kUnroll>(X, e, b);
      for (; e < n; e += kLanes) keep_means<Link, 1>(X, e, b);
      add(X + design_.label * block_, n);
    }
  }

  template <class Link>
  void add_all(const double* b) {
    for (int batch = 0; batch < design_.batches; ++batch) {
      Vec sum[kUnroll] = {};
      std::int64_t e = design_.first[batch];
      for (; e + kStep <= design_.first[batch + 1]; e += kStep) add_means<Link, kUnroll>(e, b, sum);
      for (; e < design_.first[batch + 1]; e += kLanes) add_means<Link, 1>(e, b, sum);
      for (int u = 1; u < kUnroll; ++u) sum[0] += sum[u];
      store(lanes_ + batch * kLanes, sum[0]);
    }
  }

  // Every lane has sums of its own, so that no sum waits for the one before.
  void add(const double* batch, int n) {
    double *lanes = lanes_, *means = means_;
    int e = 0;
    for (; e + kLanes <= n; e += kLanes)
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i) lanes[as_integer(batch + e + i) * kLanes + i] += means[e + i];
    for (; e < n; ++e) lanes[as_integer(batch + e) * kLanes] += means[e];
  }

  template <class Link, int U>
  LOG1PNMF_INLINE void keep_means(const double* X, int e, const double* b) {
    Vec means[U];
    means_at<Link, true, U>(X + e, block_, b, means);
    LOG1PNMF_EACH store(means_ + e + u * kLanes, means[u]);
  }

  template <class Link, int U>
  LOG1PNMF_INLINE void add_means(std::int64_t e, const double* b, Vec* sum) {
    Vec means[U];
    means_at<Link, false, U>(design_.transposed + e, design_.padded, b, means);
    LOG1PNMF_EACH sum[u] += means[u];
  }

  template <class Link, bool LessQuadratic, int U>
  LOG1PNMF_INLINE void means_at(const double* X, std::int64_t stride, const double* b, Vec* em) {
    Vec eta[U];
    linear_predictor<U>(X, stride, 0, b, eta);
    LOG1PNMF_EACH eta[u] = Link::clamp_eta(eta[u]);
    Link::template mean_part<U>(eta, em);
    if constexpr (LessQuadratic) LOG1PNMF_EACH em[u] -= eta[u] * (own_quadratic_[0] + own_quadratic_[1] * eta[u]);
    LOG1PNMF_EACH em[u] *= row_.exposure;
    if (design_.exposure >= 0) LOG1PNMF_EACH em[u] *= load(X + design_.exposure * stride + u * kLanes);
  }

  // Of all columns of each batch: a1 linear'b + a2 b'gram b. A lane is a batch.
  void add_quadratics(const double* b) {
    const double a1 = row_.exposure * own_quadratic_[0], a2 = row_.exposure * own_quadratic_[1];
    double* to = weights_;
    for (int k = 0; k < K_; ++k) *to++ = a1 * b[k];
    for (int k = 0; k < K_; ++k)
      for (int l = 0; l <= k; ++l) *to++ = a2 * b[k] * b[l];
    for (std::int64_t batch = 0; batch < stride_; batch += kLanes) {
      Vec even = Vec{}, odd = Vec{};
      int p = 0;
      for (; p + 2 <= n_terms_; p += 2) {
        even += weights_[p] * load(terms_ + p * stride_ + batch);
        odd += weights_[p + 1] * load(terms_ + (p + 1) * stride_ + batch);
      }
      if (p < n_terms_) even += weights_[p] * load(terms_ + p * stride_ + batch);
      store(quadratics_ + batch, even + odd);
    }
  }

  int n_terms_;
  std::int64_t stride_;
  Buffer weights_, terms_, quadratics_;   // of a row; n_terms x stride: K of linear, then the lower triangle of gram; of every batch
  Buffer means_, lanes_;                  // of a block; of every batch, by lane
};

}  // namespace log1pnmf::LOG1PNMF_ISA
