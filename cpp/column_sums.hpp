// Weighed sums of the rows of the design, and of their products: sum_j w_j x_j and sum_j w_j x_j
// x_j'.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Some rows of the design, each followed by the lower triangle of its products, which many sums
// with other weights share.
class ColumnBlock {
 public:
  static constexpr int kColumns = 64;

  ColumnBlock(int K, bool squares)
      : K_(K), first_(static_cast<int>(round_up(K, kLanes))),
        width_(first_ + (squares ? static_cast<int>(round_up(K * (K + 1) / 2, kLanes)) : 0)),
        rows_(static_cast<Index>(kColumns) * width_), sums_(width_) {}

  // Rows from `from` to `to`; of one batch only, where batches are given.
  void lay_out(const double* design, Index from, Index to, const std::int32_t* batch, int own) {
    n_ = 0;
    for (Index j = from; j < to; ++j) {
      if (batch != nullptr && batch[j] != own) continue;
      columns_[n_] = j;
      double *row = rows_ + n_++ * Index{width_}, *product = row + first_;
      const double* x = design + j * K_;
      std::copy_n(x, K_, row);
      if (width_ == first_) continue;
      for (int k = 0; k < K_; ++k)
        for (int l = 0; l <= k; ++l) *product++ = x[k] * x[l];
    }
  }

  // Weights are those of all columns, times a power of their effects; null: 1.
  struct Weights {
    const double *own, *effects;
    int power;
  };
  void add_linear(const Weights& weights, double* to) {
    sum(weights, 0, first_);
    for (int k = 0; k < K_; ++k) to[k] += sums_[k];
  }

  void add_squares(const Weights& weights, double* to) {  // K x K
    sum(weights, first_, width_);
    const double* product = sums_ + first_;
    for (int k = 0; k < K_; ++k)
      for (int l = 0; l <= k; ++l, ++product) {
        to[k * K_ + l] += *product;
        if (l < k) to[l * K_ + k] += *product;
      }
  }

 private:
  void sum(const Weights& weights, int begin, int end) {
    double own[kColumns];
    for (int e = 0; e < n_; ++e) own[e] = weights.own != nullptr ? weights.own[columns_[e]] : 1.0;
    for (int p = 0; weights.effects != nullptr && p < weights.power; ++p)
      for (int e = 0; e < n_; ++e) own[e] *= weights.effects[columns_[e]];
    int at = begin;
    for (; at + kStep <= end; at += kStep) sum_vectors<kUnroll>(own, at);
    if (at + 2 * kLanes <= end) {
      sum_vectors<2>(own, at);
      at += 2 * kLanes;
    }
    if (at < end) sum_vectors<1>(own, at);
  }

  template <int U>
  void sum_vectors(const double* own, int at) {
    Vec sum[U] = {}, odd[U] = {};
    int e = 0;
    for (; e + 2 <= n_; e += 2) {
      const double* row = rows_ + e * Index{width_} + at;
      EACH sum[u] += own[e] * load(row + u * kLanes);
      EACH odd[u] += own[e + 1] * load(row + width_ + u * kLanes);
    }
    if (e < n_) EACH sum[u] += own[e] * load(rows_ + e * Index{width_} + at + u * kLanes);
    EACH store(sums_ + at + u * kLanes, sum[u] + odd[u]);
  }

  int K_, first_, width_, n_ = 0;  // width: of a row, in doubles; its products begin at first
  Index columns_[kColumns];
  Buffer rows_, sums_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
