// The fixed side of a half-step in the two layouts the blocks need, and its whole-matrix sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "column_sums.hpp"
#include "kernel.hpp"
#include "stretches.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

constexpr int kGroup = kLanes >= 4 ? 4 : 2;  // streams transposed together when rows are gathered

struct Design {
  int K;
  int exposure, dispersion,
      quadratic;  // streams of what belongs to columns, -1 without; quadratic: the first of several
  bool carries;   // whether effects of a row's batch take the place of the columns' exposure, see
                  // RowBlocks
  int label;      // stream of the batch of a column, as an integer; -1 without
  int streams;    // the K components and these, rounded up to a multiple of kGroup
  std::vector<Index> first;  // exact form, batches of columns: each stands together, from
                             // here on, in whole vectors
  std::vector<std::int32_t>
      place;            // exact form: where every column is laid out; empty: at its own number
  Index columns;        // as laid out: with the rest of a batch's last vector
  Index padded;         // rounded up to the largest block
  Index zero_row;       // of packed: the one after the last
  Buffer packed;        // n_columns x streams, and a row of zeros
  Buffer transposed;    // exact form: (K + 1) x padded, the exposure last, zeros where no column is
  Buffer exposures;     // exact form, batches of rows: batches x padded
  Stretches stretches;  // exact form, Newton steps
  int rank;             // quadratic terms of the zeros in sparse form, of every batch
  int batches;          // 1 without
  Buffer gram, linear;  // of every term: sum_j w_j x_j x_j' (sparse form, not the identity link)
                        // and sum_j w_j x_j
  Buffer
      slope_at_zero;  // of every batch: sum_j t_j x_j, how steeply the loss of zeros rises at least
  Buffer largest;     // max_j x_jk

  explicit Design(const HalfStep& h)
      : K(h.n_components), exposure(needs_exposure(h) ? K : -1),
        dispersion(h.rows.column_dispersion != nullptr ? K + (exposure >= 0) : -1),
        quadratic(!h.model.exact_zeros && h.zeros.column_quadratic != nullptr
                      ? K + (exposure >= 0) + (dispersion >= 0)
                      : -1),
        carries(carries_effects(h)),
        label(needs_label(h) ? K + (exposure >= 0) + (dispersion >= 0) +
                                   (quadratic >= 0 ? quadratic_streams(h) : 0)
                             : -1),
        streams(static_cast<int>(round_up(K + (exposure >= 0) + (dispersion >= 0) +
                                              (quadratic >= 0 ? quadratic_streams(h) : 0) +
                                              (label >= 0),
                                          kGroup))),
        first(first_of_batches(h)), place(places(h, first)),
        columns(first.empty() ? h.rows.n_columns : first.back()), padded(round_up(columns, 128)),
        zero_row(h.rows.n_columns), packed((zero_row + 1) * streams),
        transposed(h.model.exact_zeros ? padded * (K + 1 + (dispersion >= 0)) : 0),
        exposures(h.model.exact_zeros && h.rows.batches.row_batch != nullptr
                      ? padded * h.rows.batches.count
                      : 0),
        rank(h.model.exact_zeros ? 0 : h.zeros.rank),
        batches(h.rows.batches.any() ? h.rows.batches.count : 1),
        gram(has_gram(h) ? static_cast<Index>(rank) * batches * K * K : 0),
        linear(rank > 0 ? static_cast<Index>(batches) * K : 0),
        slope_at_zero(static_cast<Index>(batches) * K), largest(K) {
    for (Index j = 0; j < h.rows.n_columns; ++j) {
      const double* x = h.design + j * K;
      const double t = h.rows.column_exposure != nullptr ? h.rows.column_exposure[j] : 1.0;
      for (int k = 0; k < K; ++k) largest[k] = std::max(largest[k], x[k]);
      double* to = packed + j * streams;
      std::copy(x, x + K, to);
      if (exposure >= 0) to[exposure] = t;
      if (dispersion >= 0) to[dispersion] = h.rows.column_dispersion[j];
      if (quadratic >= 0) {
        const double* own = h.zeros.column_quadratic + (rank + 1) * j;
        if (rank == 1) to[quadratic] = as_pair(own[0], own[1]);
        else if (quadratic_streams(h) == 1) to[quadratic] = as_pair(own[0], own[2]);
        else to[quadratic] = as_pair(own[0], own[1]), to[quadratic + 1] = own[2];
      }
      if (label >= 0) {
        const Index own = h.rows.batches.column_batch[j];
        std::memcpy(to + label, &own, sizeof own);
      }
      if (h.model.exact_zeros) lay_out(h, j, t);
    }
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
    std::vector<std::int32_t> found(h.rows.n_columns);
    for (const std::int32_t j : sorted ? by_level(h) : in_order(h.rows.n_columns))
      found[j] = static_cast<std::int32_t>(next[in_batches ? h.rows.batches.column_batch[j] : 0]++);
    return found;
  }
  void lay_out(const HalfStep& h, Index j, double t) {
    const Index at = place.empty() ? j : place[j];
    for (int k = 0; k < K; ++k) transposed[k * padded + at] = h.design[j * K + k];
    transposed[exposure * padded + at] = t;
    if (dispersion >= 0) transposed[dispersion * padded + at] = h.rows.column_dispersion[j];
    for (int b = 0; h.rows.batches.row_batch != nullptr && b < batches; ++b)
      exposures[b * padded + at] = h.rows.batches.effects[b * h.rows.n_columns + j];
  }

  // Where all exposures of columns are 1 they need no stream, except in coordinate descent, which
  // always looks at it.
  static bool needs_exposure(const HalfStep& h) {
    return h.rows.column_exposure != nullptr || h.task == Task::coordinate || h.model.exact_zeros ||
           carries_effects(h);
  }
  // Effects need no more room where streams are filled up anyway, or a design row does not reach
  // into another cache line. Each thread writes them anew for every batch, so entries have to be
  // many.
  static bool carries_effects(const HalfStep& h) {
    constexpr double kEntries = 8.0;  // for each effect that is written
    constexpr int kLine = 8;          // doubles in a cache line
    const Rows& rows = h.rows;
    const int K = h.n_components,
              others = K + (rows.column_dispersion != nullptr) +
                       (h.zeros.column_quadratic != nullptr ? quadratic_streams(h) : 0);
    const double effects = static_cast<double>(rows.n_columns) * rows.batches.count * h.n_threads;
    return !h.model.exact_zeros && h.task == Task::newton && rows.batches.row_batch != nullptr &&
           weighs(h) && others % kLine != 0 &&
           static_cast<double>(rows.indptr[rows.n_rows]) >= kEntries * effects;
  }
  // Whether the exposures of single entries are needed.
  static bool weighs(const HalfStep& h) {
    return h.model.link != Link::identity || h.model.noise != Noise::poisson;
  }
  static bool needs_label(const HalfStep& h) {
    return h.rows.batches.column_batch != nullptr &&
           (h.model.exact_zeros ? h.model.noise != Noise::poisson : weighs(h));
  }
  // Coefficients are floats, and two have one stream. Identity link with dispersions: a2 is zero
  // and left out.
  static int quadratic_streams(const HalfStep& h) {
    return h.model.noise == Noise::negative_binomial && h.model.link != Link::identity ? 2 : 1;
  }
  static bool has_gram(const HalfStep& h) {
    return !h.model.exact_zeros &&
           (h.model.link != Link::identity || h.model.noise == Noise::negative_binomial);
  }

  // Fills gram, linear and slope_at_zero. Summed in blocks, so that the error grows with the number
  // of blocks, not of columns; the order never changes. Where columns are in batches, each adds to
  // the terms of its own only.
  void whole_matrix_sums(const HalfStep& h) {
    const Index m = h.rows.n_columns;
    const Batches& own = h.rows.batches;
    const bool by_column = own.column_batch != nullptr, squares = has_gram(h);
    ColumnBlock block(K, squares);
    for (Index from = 0; from < m; from += ColumnBlock::kColumns)
      for (int group = 0; group < (by_column ? batches : 1); ++group) {
        block.lay_out(h.design, from, std::min(m, from + ColumnBlock::kColumns), own.column_batch,
                      group);
        for (int b = by_column ? group : 0; b < (by_column ? group + 1 : batches); ++b) {
          const double* effects = own.row_batch != nullptr ? own.effects + b * m : nullptr;
          block.add_linear({h.rows.column_exposure, effects, 1}, slope_at_zero + b * K);
          if (rank > 0) block.add_linear({h.zeros.column_linear, effects, 1}, linear + b * K);
          for (int p = 0; squares && p < rank; ++p)
            block.add_squares({h.zeros.column_quadratics + p * m, effects, p + 1},
                              gram + (Index{b} * rank + p) * K * K);
        }
      }
  }
};

}  // namespace log1pnmf::LOG1PNMF_ISA
