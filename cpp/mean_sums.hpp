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
        means_(wanted_ ? kLargestBlock : 0), lanes_(wanted_ ? stride_ * kLanes : 0) {
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

  // One number for every batch, n_rows apart. Sparse form: the mean of an approximated zero is its
  // quadratic, but for the constant.
  void sum(const double* b, RowBlocks& blocks, double* to) {
    clear();
    add_listed(blocks.row(), 0, b, blocks);
    add_listed(blocks.row().stored, blocks.first_zero(), b, blocks);
    add_quadratics(b, blocks.quadratic());
    finish(blocks.row().exposure, to);
  }

  // Exact form.
  void sum(const double* b, const Row& row, double* to) {
    clear();
    for (int batch = 0; batch < design_.batches; ++batch) {
      Vec sum = Vec{};
      const Index first = design_.first[batch];
      each_vectors(design_.first[batch + 1] - first, [&]<int U>(Index e) {
        Vec means[U];
        means_at<U>(design_.transposed + first + e, design_.padded, b, nullptr, means);
        EACH sum += means[u];
      });
      store(lanes_ + batch * kLanes, sum);
    }
    finish(row.exposure, to);
  }

 private:
  void clear() { std::fill_n(lanes_ + 0, design_.batches * kLanes, 0.0); }

  void finish(double exposure, double* to) const {
    for (int first = 0; first < design_.batches; first += kLanes) {
      double sums[kLanes];
      const Vec own = horizontal_sums(lanes_ + Index{first} * kLanes);
      store(sums, exposure * (load(quadratics_ + first) + own));
      for (int i = 0; i < kLanes && first + i < design_.batches; ++i)
        to[(first + i) * n_rows_] = sums[i];
    }
  }

  void add_listed(const Entries& entries, Index place, const double* b, RowBlocks& blocks) {
    for (Index from = 0; from < entries.count; from += blocks.block) {
      const int n = blocks.length(entries, from);
      const double* X = blocks.gathered(entries, from, n, place + from);
      each_vectors(n, [&]<int U>(Index e) {
        Vec means[U];
        means_at<U>(X + e, blocks.block, b, blocks.quadratic(), means);
        EACH store(means_ + e + u * kLanes, means[u]);
      });
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

  // Less the quadratic, if there is one.
  template <int U>
  ALWAYS_INLINE void means_at(const double* X, Index stride, const double* b,
                              const double* quadratic, Vec* em) {
    Vec eta[U];
    linear_predictor<U>(K_, X, stride, 0, b, eta);
    EACH eta[u] = ShiftedLogLink::clamp_eta(eta[u]);
    ShiftedLogLink::mean_part<U>(eta, em);
    if (quadratic != nullptr) EACH em[u] -= eta[u] * (quadratic[0] + quadratic[1] * eta[u]);
    if (design_.exposure >= 0) EACH em[u] *= load(X + design_.exposure * stride + u * kLanes);
  }

  // Of all columns of each batch: a1 linear'b + a2 b'gram b. A lane is a batch.
  void add_quadratics(const double* b, const double* quadratic) {
    each_vectors(stride_, [&]<int U>(Index batch) {
      const double *linear = terms_ + batch, *gram = linear + K_ * stride_;
      Vec sum[U] = {}, square[U] = {};
      for (int k = 0; k < K_; ++k, linear += stride_) {
        Vec own[U] = {};
        for (int l = 0; l <= k; ++l, gram += stride_) EACH own[u] += b[l] * load(gram + u * kLanes);
        EACH sum[u] += b[k] * load(linear + u * kLanes);
        EACH square[u] += b[k] * own[u];
      }
      EACH store(quadratics_ + batch + u * kLanes,
                 quadratic[0] * sum[u] + quadratic[1] * square[u]);
    });
  }

  int K_;
  bool wanted_;
  Index n_rows_;
  const Design& design_;
  Index stride_;               // batches, in whole vectors
  Buffer terms_, quadratics_;  // of every batch: linear, then the lower triangle of gram; their sum
  Buffer means_, lanes_;       // of a block; of every batch, by lane
};

}  // namespace log1pnmf::LOG1PNMF_ISA
