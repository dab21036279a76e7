// Compressed rows of counts: checked, brought into the kernels' types, transposed.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernel.hpp"

namespace log1pnmf {

// Rows as they were found: nothing of them is trusted.
struct RawRows {
  Index n_rows, n_columns, n_entries;
  const Index* indptr;

  // Whether the rows begin and end where they should.
  bool sound() const {
    return n_columns >= 0 && indptr[0] == 0 && indptr[n_rows] == n_entries &&
           std::is_sorted(indptr, indptr + n_rows + 1);
  }
};

template <class Column>
bool rises(const Column* indices, Index n, Index n_columns) {
  if (n == 0) return true;
  Column falls = 0;  // as wide as what is compared: for vectors
  for (Index e = 1; e < n; ++e) falls |= static_cast<Column>(indices[e] <= indices[e - 1]);
  return falls == 0 && indices[0] >= 0 && indices[n - 1] < n_columns;
}

// Without branches, for vectors. NaN is no count. Those above kLargestWhole are not known to be
// whole.
template <bool kWhole, class Value>
bool are_counts(const Value* values, Index n) {
  constexpr std::int32_t kLargestWhole = 1 << 24;
  using Flag = std::conditional_t<sizeof(Value) == 8, Index, std::int32_t>;
  Flag bad = 0;
  for (Index e = 0; e < n; ++e) {
    const Value value = values[e];
    if constexpr (std::is_floating_point_v<Value>) {
      if constexpr (kWhole) {
        const Value positive = value > Value{0} ? value : Value{0};
        const Value bounded = positive < Value{kLargestWhole} ? positive : Value{kLargestWhole};
        bad |= static_cast<Flag>(static_cast<Value>(static_cast<std::int32_t>(bounded)) != value);
      }
      bad |= static_cast<Flag>(!(value > Value{0})) |
             static_cast<Flag>(!(value <= static_cast<Value>(std::numeric_limits<float>::max())));
    } else bad |= static_cast<Flag>(value <= Value{0});
    if constexpr (sizeof(Value) > 2 && !std::is_same_v<Value, float>)
      bad |= static_cast<Flag>(static_cast<double>(static_cast<float>(value)) !=
                               static_cast<double>(value));
  }
  return bad == 0;
}

// Whether columns rise strictly within every row, and all values are positive, finite and exact in
// single precision; `whole`: and known to be whole numbers. Then columns and values are written to
// the outputs; null: the inputs will do. The rows must be sound.
template <class Column, class Value>
bool copy_canonical(const RawRows& rows, const Column* indices, const Value* values, bool whole,
                    std::int32_t* out_indices, float* out_values) {
  const auto counts = whole ? are_counts<true, Value> : are_counts<false, Value>;
  for (Index i = 0; i < rows.n_rows; ++i) {
    const Index from = rows.indptr[i], to = rows.indptr[i + 1];
    if (!rises(indices + from, to - from, rows.n_columns) || !counts(values + from, to - from))
      return false;
    if (out_indices != nullptr) std::copy(indices + from, indices + to, out_indices + from);
    if (out_values != nullptr) std::copy(values + from, values + to, out_values + from);
  }
  return true;
}

// The same entries by columns, each with ascending rows. False, and no result, where columns do not
// rise within rows or point outside. The rows must be sound. Value: any type as wide as the values.
// Some columns at a time, whose ends are nearly all in the first-level cache.
template <class Value>
bool sort_by_columns(const RawRows& rows, const std::int32_t* indices, const Value* values,
                     Index* out_indptr, std::int32_t* out_rows, Value* out_values) {
  // entries of a row that are read in one go, on average; rows and cache lines ahead
  constexpr Index kColumnsAtOnce = 256, kShortestRun = 8, kRowsAhead = 2, kLinesAhead = 3;
  const auto fetch = [](const auto* data) {  // any address will do
    const char* bytes = reinterpret_cast<const char*>(data);
    for (int line = 0; line < kLinesAhead; ++line) __builtin_prefetch(bytes + line * 64);
  };
  const Index n = rows.n_rows, m = rows.n_columns;
  std::fill_n(out_indptr, m + 1, 0);
  for (Index i = 0; i < n; ++i) {
    const Index from = rows.indptr[i], to = rows.indptr[i + 1];
    if (!rises(indices + from, to - from, m)) return false;
    for (Index e = from; e < to; ++e) ++out_indptr[indices[e] + 1];
  }
  std::partial_sum(out_indptr, out_indptr + m + 1, out_indptr);

  const Index most = std::max<Index>(1, rows.n_entries / (kShortestRun * std::max<Index>(n, 1)));
  const Index groups = std::clamp<Index>((m + kColumnsAtOnce - 1) / kColumnsAtOnce, 1, most);
  const Index width = (m + groups - 1) / groups;
  std::vector<Index> next(out_indptr, out_indptr + m), at(rows.indptr, rows.indptr + n);
  for (Index begin = 0; begin < m; begin += width)
    for (Index i = 0; i < n; ++i) {
      if (i + kRowsAhead < n) {
        fetch(indices + at[i + kRowsAhead]);
        fetch(values + at[i + kRowsAhead]);
      }
      for (Index& e = at[i]; e < rows.indptr[i + 1] && indices[e] < begin + width; ++e) {
        const Index place = next[indices[e]]++;
        out_rows[place] = static_cast<std::int32_t>(i);
        out_values[place] = values[e];
      }
    }
  return true;
}

}  // namespace log1pnmf
