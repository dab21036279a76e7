// Which entries a row has, and their counts.
#pragma once

#include <limits>

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

// Reads n counts, and gives the smallest of them.
template <class T>
double read_as_doubles(const T* from, std::int64_t n, double* to) {
  typedef T Several __attribute__((vector_size(sizeof(T) * kLanes)));
  Vec least = splat(std::numeric_limits<double>::infinity());
  std::int64_t at = 0;
  for (; at + kLanes <= n; at += kLanes) {
    Several some;
    std::memcpy(&some, from + at, sizeof some);
    const Vec y = __builtin_convertvector(some, Vec);
    store(to + at, y);
    least = vmin(least, y);
  }
  double smallest = -largest_lane(-least);
  for (; at < n; ++at) {
    to[at] = from[at];
    smallest = std::min(smallest, to[at]);
  }
  return smallest;
}
inline double read_values(const Rows& rows, std::int64_t offset, std::int64_t n, double* y) {
  if (rows.values_f32 != nullptr) return read_as_doubles(rows.values_f32 + offset, n, y);
  return read_as_doubles(rows.values_f64 + offset, n, y);
}

inline double penalty_at(const Box& box, int K, const double* b) {
  double sum = 0.0;
  for (int k = 0; k < K; ++k) sum += box.penalty[k] * b[k];
  return sum;
}

}  // namespace log1pnmf::LOG1PNMF_ISA
