// What stands in for the zeros of a row, summed over all its entries: linear'b + b'gram b, and with dispersions b'hollow b,
// which is never positive; sparse form only.
#pragma once

#include "entries.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class ZeroSums {
 public:
  ZeroSums(const HalfStep& h, const Design& design)
      : K_(h.n_components), h_(h), design_(design), linear_(K_), gram_(std::int64_t{K_} * K_),
        hollow_(design.rank > 1 ? std::int64_t{K_} * K_ : 0), gram_b_(K_), hollow_b_(K_), weights_(std::int64_t{design.rank} * design.batches) {}

  // From the terms that all rows share; without squares only the linear part.
  void combine(std::int64_t i, bool squares) {
    if (design_.rank == 0) return;   // exact form
    const Batches& batches = h_.rows.batches;
    const int n = batches.column_batch != nullptr ? design_.batches : 1, rank = design_.rank, length = K_ * K_;
    const std::int64_t first = batches.row_batch != nullptr ? batches.row_batch[i] : 0;
    add_up(weights(i, h_.zeros.row_linear, 1), design_.linear + first * K_, n, 1, K_, linear_);
    if (!squares) return;
    const double *own = weights(i, h_.zeros.row_quadratics, rank), *terms = design_.gram + first * rank * length;
    add_up(own, terms, n, rank, length, gram_);
    if (rank > 1) add_up(own + 1, terms + length, n, rank, length, hollow_);
  }

  const double* linear() const { return linear_; }
  const double* gram() const { return gram_; }
  double linear_at(const double* b) const { return dot(linear_, b); }

  double at(const double* b) {
    for (int k = 0; k < K_; ++k) gram_b_[k] = dot(gram_ + k * K_, b);
    hollow_at_ = 0.0;
    if (design_.rank > 1) {
      for (int k = 0; k < K_; ++k) hollow_b_[k] = dot(hollow_ + k * K_, b);
      hollow_at_ = dot(hollow_b_, b);
    }
    return dot(linear_, b) + dot(gram_b_, b) + hollow_at_;
  }
  double hollow_at() const { return hollow_at_; }   // of the last call of at()
  double hollow_at(const double* d) const {
    double sum = 0.0;
    for (int k = 0; k < K_; ++k) sum += dot(hollow_ + k * K_, d) * d[k];
    return sum;
  }

  // At the point of the last call of at().
  void add_gradient(double* g) const {
    for (int k = 0; k < K_; ++k) g[k] += linear_[k] + 2.0 * (gram_b_[k] + hollow_b_[k]);
  }
  void add_hollow(double times, double* g) const {
    for (int k = 0; k < K_; ++k) g[k] += times * hollow_b_[k];
  }
  // Without the hollow part, which lies below each of its tangents: a step that lowers the rest lowers the sum.
  void add_hessian(double* H) const {
    for (int i = 0; i < K_ * K_; ++i) H[i] += 2.0 * gram_[i];
  }

 private:
  // Of a row's terms; of those of every batch of columns.
  const double* weights(std::int64_t i, const double* terms, int rank) const {
    const int B = design_.batches;
    const double* own = terms + i * rank;
    if (h_.rows.batches.column_batch == nullptr) return own;
    const double* effects = h_.rows.batches.effects + i * B;
    double* to = weights_;
    for (int b = 0; b < B; ++b) {
      double power = 1.0;
      for (int p = 0; p < rank; ++p) *to++ = own[p] * (power *= effects[b]);
    }
    return weights_;
  }

  // Sum of n terms, each of some length, times their weights; the next of each is `step` further. Buffers have room for a
  // vector that begins inside.
  static void add_up(const double* weights, const double* terms, int n, int step, int length, double* to) {
    int at = 0;
    for (; at + kStep <= length; at += kStep) add_vectors<kUnroll>(weights, terms + at, n, step, length, to + at);
    for (; at < length; at += kLanes) add_vectors<1>(weights, terms + at, n, step, length, to + at);
  }
  template <int U>
  LOG1PNMF_INLINE static void add_vectors(const double* weights, const double* terms, int n, int step, int length, double* to) {
    Vec sum[U] = {};
    for (int p = 0; p < n; ++p, weights += step, terms += std::int64_t{step} * length)
      LOG1PNMF_EACH sum[u] += *weights * load(terms + u * kLanes);
    LOG1PNMF_EACH store(to + u * kLanes, sum[u]);
  }

  double dot(const double* x, const double* b) const {
    double sum = 0.0;
    for (int k = 0; k < K_; ++k) sum += x[k] * b[k];
    return sum;
  }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  Buffer linear_, gram_, hollow_, gram_b_, hollow_b_, weights_;
  double hollow_at_ = 0.0;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
