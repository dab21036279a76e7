// The fixed side of a half-step in the two layouts the blocks need, and its whole-matrix sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernel.hpp"
#include "stretches.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

constexpr int kGroup = kLanes >= 4 ? 4 : 2;  // streams transposed together when rows are gathered

// Some rows of the design, each followed by the lower triangle of its products, for weighted sums
// over j of w_j x_j and of w_j x_j x_j'.
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
    for (; at < end; at += kLanes) sum_vectors<1>(own, at);
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

// Whether gathered entries need their own exposures: the counts of Poisson noise do not, but their
// zero terms, less the quadratic, do in sparse form unless they are linear.
inline bool weighs_entries(const HalfStep& h) {
  return h.model.noise != Noise::poisson ||
         (h.model.link != Link::identity && !h.model.exact_zeros);
}

struct Design {
  int K, streams;  // streams: K components and what belongs to columns, to a multiple of kGroup
  int exposure = -1, dispersion = -1, quadratic = -1;  // streams, -1 without; the first of several
  int label = -1;            // stream of the batch of a column, as an integer
  std::vector<Index> first;  // exact form, batches of columns: where each begins, in whole vectors
  std::vector<std::int32_t> place;  // exact form: where columns are laid out; empty: as they come
  Index columns, padded;            // as laid out; rounded up to the largest block
  Index zero_row;                   // of packed: the one after the last
  int rank, batches;     // quadratic terms of zeros in sparse form, of every batch; 1 without
  Buffer packed;         // n_columns x streams, and a row of zeros
  Buffer transposed;     // exact form: (K + 1) x padded, the exposure last; zeros at the ends
  Buffer exposures;      // exact form, batches of rows: batches x padded
  Stretches stretches;   // exact form, Newton steps
  Buffer quartic;        // see set_quartic_sums
  Buffer gram, linear;   // of every term: sum_j w_j x_j x_j' and sum_j w_j x_j, sparse form
  Buffer slope_at_zero;  // of every batch: sum_j t_j x_j, the least slope of the loss of zeros
  Buffer largest;        // max_j x_jk

  explicit Design(const HalfStep& h)
      : K(h.n_components), streams(K), first(first_of_batches(h)), place(places(h, first)),
        columns(first.empty() ? h.rows.n_columns : first.back()), padded(round_up(columns, 128)),
        zero_row(h.rows.n_columns), rank(h.model.exact_zeros ? 0 : h.zeros.rank),
        batches(h.rows.batches.any() ? h.rows.batches.count : 1), slope_at_zero(Index{batches} * K),
        largest(K) {
    if (needs_exposure(h)) exposure = streams++;
    if (h.rows.column_dispersion != nullptr) dispersion = streams++;
    if (rank > 0 && h.zeros.column_quadratic != nullptr) {
      quadratic = streams;
      streams += quadratic_streams(h);
    }
    if (h.rows.batches.column_batch != nullptr && weighs_entries(h)) label = streams++;
    streams = static_cast<int>(round_up(streams, kGroup));
    packed = Buffer((zero_row + 1) * streams);
    if (h.model.exact_zeros) {
      transposed = Buffer(padded * (K + 1 + (dispersion >= 0)));
      if (h.rows.batches.row_batch != nullptr) exposures = Buffer(padded * batches);
    }
    for (Index j = 0; j < h.rows.n_columns; ++j) lay_out(h, j);
    if (sorts_columns(h)) stretches.set(K, columns, transposed, padded, exposure);
    whole_matrix_sums(h);
  }

  // What the zeros of a row add at least for one more of component k, but for the row's exposure.
  double slope_at_zero_of(const Rows& rows, Index i, int k) const {
    const Batches& own = rows.batches;
    if (own.row_batch != nullptr) return slope_at_zero[own.row_batch[i] * K + k];
    if (own.column_batch == nullptr) return slope_at_zero[k];
    double sum = 0.0;
    for (int b = 0; b < batches; ++b)
      sum += own.effects[i * batches + b] * slope_at_zero[b * K + k];
    return sum;
  }

 private:
  static std::vector<Index> first_of_batches(const HalfStep& h) {
    const Batches& own = h.rows.batches;
    if (!h.model.exact_zeros || own.column_batch == nullptr) return {};
    std::vector<Index> from(own.count + 1);
    for (Index j = 0; j < h.rows.n_columns; ++j) ++from[own.column_batch[j] + 1];
    for (int b = 0; b < own.count; ++b) from[b + 1] = from[b] + round_up(from[b + 1], kLanes);
    return from;
  }
  static std::vector<std::int32_t> places(const HalfStep& h, std::vector<Index> next) {
    const bool sorted = sorts_columns(h), in_batches = !next.empty();
    if (!sorted && !in_batches) return {};
    if (!in_batches) next = {0};
    std::vector<std::int32_t> found(h.rows.n_columns), order;
    if (sorted) order = by_level(h);
    for (Index p = 0; p < h.rows.n_columns; ++p) {
      const Index j = sorted ? order[p] : p;
      found[j] = static_cast<std::int32_t>(next[in_batches ? h.rows.batches.column_batch[j] : 0]++);
    }
    return found;
  }
  void lay_out(const HalfStep& h, Index j) {
    const double* x = h.design + j * K;
    const double t = h.rows.column_exposure != nullptr ? h.rows.column_exposure[j] : 1.0;
    double* to = packed + j * streams;
    for (int k = 0; k < K; ++k) largest[k] = std::max(largest[k], to[k] = x[k]);
    if (exposure >= 0) to[exposure] = t;
    if (dispersion >= 0) to[dispersion] = h.rows.column_dispersion[j];
    if (quadratic >= 0) {
      const double* own = h.zeros.column_quadratic + (rank + 1) * j;
      const bool two = quadratic_streams(h) == 2;
      to[quadratic] = as_pair(own[0], own[rank > 1 && !two ? 2 : 1]);
      if (two) to[quadratic + 1] = own[2];
    }
    if (label >= 0) {
      const Index batch = h.rows.batches.column_batch[j];
      std::memcpy(to + label, &batch, sizeof batch);
    }
    if (!h.model.exact_zeros) return;
    const Index at = place.empty() ? j : place[j];
    for (int k = 0; k <= K + (dispersion >= 0); ++k) transposed[k * padded + at] = to[k];
    for (int b = 0; h.rows.batches.row_batch != nullptr && b < batches; ++b)
      exposures[b * padded + at] = h.rows.batches.effects[b * h.rows.n_columns + j];
  }

  // Where all exposures of columns are 1 they need no stream, except in coordinate descent, which
  // always looks at it.
  static bool needs_exposure(const HalfStep& h) {
    return h.rows.column_exposure != nullptr || h.task == Task::coordinate || h.model.exact_zeros;
  }
  // Coefficients are floats, and two have one stream. Identity link with dispersions: a2 is zero
  // and left out.
  static int quadratic_streams(const HalfStep& h) {
    return h.zeros.rank > 1 && h.model.link != Link::identity ? 2 : 1;
  }
  // Fills gram, linear and slope_at_zero. Summed in blocks, so that the error grows with the number
  // of blocks, not of columns; the order never changes. Where columns are in batches, each adds to
  // the terms of its own only.
  void whole_matrix_sums(const HalfStep& h) {
    const Index m = h.rows.n_columns;
    const Batches& own = h.rows.batches;
    const bool by_column = own.column_batch != nullptr, squares = rank > 0 && weighs_entries(h);
    if (squares) gram = Buffer(Index{rank} * batches * K * K);
    if (rank > 0) linear = Buffer(Index{batches} * K);
    ColumnBlock block(K, squares);
    for (Index from = 0; from < m; from += ColumnBlock::kColumns)
      for (int group = 0; group < (by_column ? batches : 1); ++group) {
        block.lay_out(h.design, from, std::min(m, from + ColumnBlock::kColumns), own.column_batch,
                      group);
        for (int b = by_column ? group : 0; b < (by_column ? group + 1 : batches); ++b) {
          const double* effects = own.row_batch != nullptr ? own.effects + b * m : nullptr;
          block.add_linear({h.rows.column_exposure, effects, 1}, slope_at_zero + b * K);
          if (rank > 0) block.add_linear({h.zeros.column_linear, effects, 1}, linear + b * K);
          for (int p = 0; squares && p < (h.model.noise == Noise::poisson ? 1 : rank); ++p)
            block.add_squares({h.zeros.column_quadratics + p * m, effects, p + 1},
                              gram + (Index{b} * rank + p) * K * K);
        }
      }
  }
};

}  // namespace log1pnmf::LOG1PNMF_ISA
