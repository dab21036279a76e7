// What stands in for the zeros of a row, summed over all its entries: linear'b + b'gram b; sparse form only.
#pragma once

#include "entries.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class ZeroSums {
 public:
  ZeroSums(const HalfStep& h, const Design& design)
      : K_(h.n_components), h_(h), design_(design), linear_(K_), gram_(static_cast<std::int64_t>(K_) * K_), gram_b_(K_),
        weights_(std::int64_t{design.rank} * design.batches) {}

  // From the terms that all rows share; without squares only the linear part.
  void combine(std::int64_t i, bool squares) {
    const Batches& batches = h_.rows.batches;
    const int n = batches.column_batch != nullptr ? design_.rank * design_.batches : design_.rank;
    const std::int64_t first = batches.row_batch != nullptr ? batches.row_batch[i] * design_.rank : 0;
    add_up(weights(i, h_.zeros.row_linear), design_.linear + first * K_, n, K_, linear_);
    if (squares) add_up(weights(i, h_.zeros.row_quadratics), design_.gram + first * K_ * K_, n, K_ * K_, gram_);
  }

  const double* linear() const { return linear_; }
  const double* gram() const { return gram_; }
  double linear_at(const double* b) const { return dot(linear_, b); }

  double at(const double* b) {
    double sum = dot(linear_, b);
    for (int k = 0; k < K_; ++k) {
      gram_b_[k] = dot(gram_ + k * K_, b);
      sum += gram_b_[k] * b[k];
    }
    return sum;
  }

  // At the point of the last call of at().
  void add_gradient(double* g) const {
    for (int k = 0; k < K_; ++k) g[k] += linear_[k] + 2.0 * gram_b_[k];
  }
  void add_hessian(double* H) const {
    for (int i = 0; i < K_ * K_; ++i) H[i] += 2.0 * gram_[i];
  }

 private:
  // Of a row's terms; of those of every batch of columns.
  const double* weights(std::int64_t i, const double* terms) const {
    const int rank = design_.rank, B = design_.batches;
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

  // sum_p weights_p terms_p, each of some length; buffers have room for a vector that begins inside.
  static void add_up(const double* weights, const double* terms, int n, int length, double* to) {
    for (int at = 0; at < length; at += kLanes) {
      Vec sum = Vec{};
      for (int p = 0; p < n; ++p) sum += weights[p] * load(terms + static_cast<std::int64_t>(p) * length + at);
      store(to + at, sum);
    }
  }

  double dot(const double* x, const double* b) const {
    double sum = 0.0;
    for (int k = 0; k < K_; ++k) sum += x[k] * b[k];
    return sum;
  }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  Buffer linear_, gram_, gram_b_, weights_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
