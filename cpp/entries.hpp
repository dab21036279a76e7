// Which entries a row has, and their counts.
#pragma once

#include "block.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Some entries of a row.
struct Entries {
  const std::int32_t* indices = nullptr;
  std::int64_t count = 0, readable = 0;   // entries; indices that may be read from the first on (for prefetching)
};

inline Entries entries_at(const std::int64_t* indptr, const std::int32_t* indices, std::int64_t n_rows, std::int64_t i) {
  return {indices + indptr[i], indptr[i + 1] - indptr[i], indptr[n_rows] - indptr[i]};
}

struct Row : Entries {            // the non-zeros
  std::int64_t number = 0;
  std::int64_t offset = 0;        // of the first non-zero in the value array
  double exposure = 0.0;
  Entries stored;                 // zeros that are visited in sparse form
};

inline Row row_at(const HalfStep& h, std::int64_t i) {
  const Rows& rows = h.rows;
  Row row{entries_at(rows.indptr, rows.indices, rows.n_rows, i), i, rows.indptr[i], rows.row_exposure[i], {}};
  const Pattern& stored = h.zeros.stored;
  if (stored.indptr != nullptr) row.stored = entries_at(stored.indptr, stored.indices, rows.n_rows, i);
  return row;
}

inline void read_values(const Rows& rows, std::int64_t offset, std::int64_t n, double* y) {
  if (rows.values_f32 != nullptr) std::copy_n(rows.values_f32 + offset, n, y);
  else std::copy_n(rows.values_f64 + offset, n, y);
}

// Smallest of n > 0 counts; sixteen at a time, so that it costs nothing beside reading them.
template <class T>
double smallest_of(const T* y, std::int64_t n) {
  constexpr int kWidth = 16;
  T lane[kWidth];
  std::fill_n(lane, kWidth, y[0]);
  std::int64_t at = 0;
  for (; at + kWidth <= n; at += kWidth)
    for (int i = 0; i < kWidth; ++i) lane[i] = y[at + i] < lane[i] ? y[at + i] : lane[i];
  for (; at < n; ++at) lane[0] = std::min(lane[0], y[at]);
  return *std::min_element(lane, lane + kWidth);
}
inline double smallest_count(const Rows& rows, const Row& row) {
  if (rows.values_f32 != nullptr) return smallest_of(rows.values_f32 + row.offset, row.count);
  return smallest_of(rows.values_f64 + row.offset, row.count);
}

inline double penalty_at(const Box& box, int K, const double* b) {
  double sum = 0.0;
  for (int k = 0; k < K; ++k) sum += box.penalty[k] * b[k];
  return sum;
}

}  // namespace log1pnmf::LOG1PNMF_ISA
