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
    double* to = packed + j * streams;
    for (int k = 0; k < K; ++k) largest[k] = std::max(largest[k], to[k] = x[k]);
    if (exposure >= 0) to[exposure] = exposure_of(h, j);
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
  // always reads it.
  static bool needs_exposure(const HalfStep& h) {
    return h.rows.column_exposure != nullptr || h.task == Task::coordinate || h.model.exact_zeros;
  }
  // Coefficients are floats, and two have one stream. Identity link with dispersions: a2 is zero
  // and left out.
  static int quadratic_streams(const HalfStep& h) {
    return h.zeros.rank > 1 && h.model.link != Link::identity ? 2 : 1;
  }
  static double exposure_of(const HalfStep& h, Index j) {
    return h.rows.column_exposure != nullptr ? h.rows.column_exposure[j] : 1.0;
  }
  // Fills gram, linear and slope_at_zero. Where columns are in batches, each adds to the terms of
  // its own only. Every 64 columns are summed by themselves, so that the error grows with the
  // number of these, not of columns.
  void whole_matrix_sums(const HalfStep& h) {
    const Index m = h.rows.n_columns;
    const Batches& own = h.rows.batches;
    const int n_terms = h.model.noise == Noise::poisson ? std::min(rank, 1) : rank,
              n_squares = weighs_entries(h) ? n_terms : 0;  // not of quartics
    // of every batch: slope_at_zero, linear and the lower triangles of gram, in whole vectors
    const Index wide = round_up(K, kLanes), triangle = round_up(K * (K + 1) / 2, kLanes),
                length = 2 * wide + n_squares * triangle;
    Buffer sums(batches * length), part(batches * length), terms(wide + triangle);
    const auto add = [](Index n, double weight, const double* from, double* to) {
      for (Index i = 0; i < n; i += kLanes) store(to + i, load(to + i) + weight * load(from + i));
    };
    for (Index j = 0; j < m; ++j) {
      const double* x = h.design + j * K;
      double* product = terms + wide;
      std::copy_n(x, K, terms + 0);
      for (int k = 0; k < K && n_squares > 0; ++k)
        for (int l = 0; l <= k; ++l) *product++ = x[k] * x[l];
      const int first = own.column_batch != nullptr ? own.column_batch[j] : 0,
                last = own.row_batch != nullptr ? batches : first + 1;
      for (int b = first; b < last; ++b) {
        const double effect = own.row_batch != nullptr ? own.effects[b * m + j] : 1.0;
        double *to = part + b * length, power = effect;
        add(wide, effect * exposure_of(h, j), terms, to);
        if (rank > 0) add(wide, effect * h.zeros.column_linear[j], terms, to + wide);
        for (int p = 0; p < n_squares; ++p, power *= effect)
          add(triangle, power * h.zeros.column_quadratics[p * m + j], terms + wide,
              to + 2 * wide + p * triangle);
      }
      if ((j + 1) % 64 != 0 && j + 1 < m) continue;
      add(batches * length, 1.0, part, sums);
      std::fill_n(part + 0, batches * length, 0.0);
    }
    if (rank > 0) linear = Buffer(Index{batches} * K);
    gram = Buffer(Index{n_squares} * batches * K * K);
    double* square = gram;
    for (int b = 0; b < batches; ++b) {
      const double* from = sums + b * length;
      std::copy_n(from, K, slope_at_zero + b * K);
      if (rank > 0) std::copy_n(from + wide, K, linear + b * K);
      for (int p = 0; p < n_squares; ++p, square += K * K) {
        const double* product = from + 2 * wide + p * triangle;
        for (int k = 0; k < K; ++k)
          for (int l = 0; l <= k; ++l) square[k * K + l] = square[l * K + k] = *product++;
      }
    }
  }
};

}  // namespace log1pnmf::LOG1PNMF_ISA
