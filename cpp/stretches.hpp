// Exact form: columns with similar means stand side by side, so that one weight can stand for those
// of a whole stretch.
//
// The zeros of a row add sum_j w_j x_j x_j' to its Hessian, with weights that follow the means.
// Over a stretch of columns whose weights are nearly the same this is one number times sum_j t_j
// x_j x_j', which all rows share. A Newton step needs no more of its Hessian than to be close; loss
// and gradient are summed entry by entry.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernel.hpp"
#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Blocks stay in the first-level cache. In exact form longer ones have more stretches, which are
// handled together.
inline int block_size(int K, bool exact) {
  return exact && K <= 12 ? 256 : K <= 24 ? 128 : exact || K <= 56 ? 64 : 32;
}
constexpr int kStretch = 64;

// Columns by the component that adds most to their etas, and then by how much all of them add, to
// within a ninth. Means of the rows' coefficients stand behind both; as columns are scaled, those
// of the design are about as large. So the order, and with it what a row becomes, does not depend
// on other rows.
inline std::vector<std::int32_t> by_level(const HalfStep& h) {
  constexpr int kPerOctave = 8, kOctaves = 16, kLevels = kPerOctave * kOctaves;
  constexpr double kLeast = 1.0 / (1 << kOctaves);  // of the largest
  const Index n = h.rows.n_columns;
  const int K = h.n_components;
  std::vector<double> mean(K), level(n);
  std::vector<Index> bin(n), next(static_cast<Index>(K) * kLevels + 1);
  for (Index j = 0; j < n; ++j)
    for (int k = 0; k < K; ++k) mean[k] += h.design[j * K + k];
  double largest = 0.0;
  for (Index j = 0; j < n; ++j) {
    double most = 0.0;
    for (int k = 0; k < K; ++k) {
      const double part = h.design[j * K + k] * mean[k];
      if (part > most) bin[j] = k, most = part;
      level[j] += part;
    }
    largest = std::max(largest, level[j]);
  }
  for (Index j = 0; j < n; ++j) {
    const double octave = kOctaves + std::log2(std::max(kLeast, level[j] / largest));
    bin[j] = bin[j] * kLevels + std::min(static_cast<int>(kPerOctave * octave), kLevels - 1);
    ++next[bin[j] + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<std::int32_t> found(n);
  for (Index j = 0; j < n; ++j) found[next[bin[j]]++] = static_cast<std::int32_t>(j);
  return found;
}

// Rows with a third of their entries not zero are dense: all their entries are handled as counts.
constexpr Index kDense = 3;
inline bool is_dense(const Rows& rows, Index i) {
  return kDense * (rows.indptr[i + 1] - rows.indptr[i]) >= rows.n_columns;
}
// Whether columns are sorted: rows take Newton steps in exact form, and not all of them are dense.
inline bool sorts_columns(const HalfStep& h) {
  if (!h.model.exact_zeros || h.task != Task::newton || h.model.link == Link::identity)
    return false;
  for (Index i = 0; i < h.rows.n_rows; ++i)
    if (!is_dense(h.rows, i)) return true;
  return false;
}

class Stretches {
 public:
  // The largest weight of an even stretch is at most so many times the smallest. Their middle
  // stands for all: the Hessian is then at most 1.2 times what is used for it.
  static constexpr double kEven = 1.5;
  // What this takes from the growth of the curvature that a step may bring: 1.2 < e^0.2. The cheap
  // bound on small steps needs nothing more: 1.2 e^0.2 < 2.
  static constexpr double kUneven = 0.2;

  bool any() const { return !products_.empty(); }

  // Sums of the products with these weights of the stretches: the lower triangle, by rows, to whole
  // vectors.
  void add(const double* weights, double* to) const {
    each_vectors(width_, [&]<int U>(Index at) {
      Vec sum[U] = {};
      const double* from = products_.data() + at;
      for (Index s = 0; s < n_; ++s, from += width_)
        EACH sum[u] += weights[s] * load(from + u * kLanes);
      EACH store(to + at + u * kLanes, load(to + at + u * kLanes) + sum[u]);
    });
  }

  // No column's x'd is larger.
  double most(const double* d) const {
    Vec most = Vec{};
    for (Index s = 0; s < number_; s += kLanes) {
      Vec sum = Vec{};
      for (int k = 0; k < K_; ++k)
        sum += d[k] * load((d[k] > 0.0 ? largest_ : smallest_).data() + k * number_ + s);
      most = vmax(most, sum);
    }
    return largest_lane(most);
  }

  void set(int K, Index n_columns, const double* transposed, Index stride, int exposure) {
    K_ = K;
    width_ = round_up(K * (K + 1) / 2, kLanes);
    n_ = (n_columns + kStretch - 1) / kStretch;
    number_ = round_up(n_, kLanes);
    products_.resize(n_ * width_);
    largest_.resize(K * number_), smallest_.resize(K * number_);
    for (Index s = 0; s < n_; ++s) {
      const Index from = s * kStretch, to = std::min(n_columns, from + kStretch);
      double* product = products_.data() + s * width_;
      const double* t = transposed + exposure * stride;
      for (int k = 0; k < K; ++k) {
        const double* x = transposed + k * stride;
        const auto range = std::minmax_element(x + from, x + to);
        smallest_[k * number_ + s] = *range.first, largest_[k * number_ + s] = *range.second;
        for (int l = 0; l <= k; ++l, ++product) {
          const double* z = transposed + l * stride;
          for (Index e = from; e < to; ++e) *product += t[e] * (x[e] * z[e]);
        }
      }
    }
  }

 private:
  int K_ = 0;
  Index n_ = 0, number_ = 0;  // stretches, the same in whole vectors
  Index width_ = 0;           // products of one, in whole vectors
  std::vector<double> products_;
  std::vector<double> largest_, smallest_;  // K x number: of the columns of a stretch
};

}  // namespace log1pnmf::LOG1PNMF_ISA
