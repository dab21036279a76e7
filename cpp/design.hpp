// The fixed side of a half-step in the two layouts the blocks need, and its whole-matrix sums.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernel.hpp"
#include "memory.hpp"
#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

constexpr int kGroup = kLanes >= 4 ? 4 : 2;   // streams transposed together when rows are gathered

inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

struct Design {
  int K, streams;            // streams: the K components and the exposure, rounded up to a multiple of kGroup
  std::int64_t padded;       // columns rounded up to the largest block
  Buffer packed;             // sparse form: n_columns x streams
  Buffer transposed;         // exact form: streams x padded, zeros beyond the end
  Buffer gram, linear;       // sum_j t_j x_j x_j' and sum_j t_j x_j
  Buffer largest;            // max_j x_jk
  Buffer log_exposure;       // coordinate solver, large counts: log t_j

  explicit Design(const HalfStep& h)
      : K(h.n_components),
        streams(static_cast<int>(round_up(K + 1, kGroup))),
        padded(round_up(h.rows.n_columns, 128)),
        packed(h.model.exact_zeros ? 0 : h.rows.n_columns * streams),
        transposed(h.model.exact_zeros ? padded * streams : 0),
        gram(static_cast<std::int64_t>(K) * K),
        linear(K),
        largest(K),
        log_exposure(h.task == Task::coordinate && h.model.large ? h.rows.n_columns : 0) {
    const std::int64_t m = h.rows.n_columns;
    for (std::int64_t j = 0; j < m; ++j) {
      const double* x = h.design + j * K;
      for (int k = 0; k < K; ++k) largest[k] = std::max(largest[k], x[k]);
      if (h.task == Task::coordinate && h.model.large) log_exposure[j] = std::log(h.rows.column_exposure[j]);
      if (h.model.exact_zeros) {
        for (int k = 0; k < K; ++k) transposed[k * padded + j] = x[k];
        transposed[K * padded + j] = h.rows.column_exposure[j];
      } else {
        std::copy(x, x + K, packed + j * streams);
        packed[j * streams + K] = h.rows.column_exposure[j];
      }
    }
    whole_matrix_sums(h);
  }

 private:
  // Summed in blocks so that the error grows with the number of blocks, not of columns; the order never changes.
  void whole_matrix_sums(const HalfStep& h) {
    constexpr std::int64_t kBlock = 512;
    Buffer partial(static_cast<std::int64_t>(K) * (K + 1));
    double* partial_linear = partial + static_cast<std::int64_t>(K) * K;
    for (std::int64_t from = 0; from < h.rows.n_columns; from += kBlock) {
      std::fill_n(static_cast<double*>(partial), K * (K + 1), 0.0);
      for (std::int64_t j = from; j < std::min(h.rows.n_columns, from + kBlock); ++j) {
        const double* x = h.design + j * K;
        const double t = h.rows.column_exposure[j];
        for (int k = 0; k < K; ++k) {
          const double tx = t * x[k];
          partial_linear[k] += tx;
          for (int l = 0; l < K; ++l) partial[k * K + l] += tx * x[l];
        }
      }
      for (int i = 0; i < K * K; ++i) gram[i] += partial[i];
      for (int k = 0; k < K; ++k) linear[k] += partial_linear[k];
    }
  }
};

}  // namespace log1pnmf::LOG1PNMF_ISA
