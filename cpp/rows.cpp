#include "rows.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

namespace log1pnmf {
namespace {

constexpr std::int64_t kColumnsAtOnce = 512;    // whose ends, a cache line each, are nearly all in the first-level cache
constexpr std::int64_t kShortestRun = 8;        // entries of a row that are read in one go, on average
constexpr std::int64_t kShareOfRoom = 8, kLeastRoom = 1 << 16;
constexpr std::int64_t kRowsAhead = 2;
constexpr std::int32_t kLargestWhole = 1 << 24;
constexpr int kLine = 64, kLinesAhead = 3;

// What is needed soon; any address will do.
template <class T>
void fetch(const T* data) {
#if defined(__GNUC__) || defined(__clang__)
  const char* bytes = reinterpret_cast<const char*>(data);
  for (int line = 0; line < kLinesAhead; ++line) __builtin_prefetch(bytes + line * kLine);
#else
  (void)data;
#endif
}

template <class Index>
bool rises(const Index* indices, std::int64_t n, std::int64_t n_columns) {
  if (n == 0) return true;
  Index falls = 0;   // as wide as what is compared: for vectors
  for (std::int64_t e = 1; e < n; ++e) falls |= static_cast<Index>(indices[e] <= indices[e - 1]);
  return falls == 0 && indices[0] >= 0 && indices[n - 1] < n_columns;
}

// Without branches, for vectors. NaN is no count. Those above kLargestWhole are not known to be whole.
template <bool kWhole, class Value>
bool are_counts(const Value* values, std::int64_t n) {
  using Flag = std::conditional_t<sizeof(Value) == 8, std::int64_t, std::int32_t>;
  Flag bad = 0;
  for (std::int64_t e = 0; e < n; ++e) {
    const Value value = values[e];
    if constexpr (std::is_floating_point_v<Value>) {
      if constexpr (kWhole) {
        const Value positive = value > Value{0} ? value : Value{0};
        const Value bounded = positive < Value{kLargestWhole} ? positive : Value{kLargestWhole};
        bad |= static_cast<Flag>(static_cast<Value>(static_cast<std::int32_t>(bounded)) != value);
      }
      bad |= static_cast<Flag>(!(value > Value{0})) | static_cast<Flag>(!(value <= static_cast<Value>(std::numeric_limits<float>::max())));
      if constexpr (sizeof(Value) > sizeof(float)) bad |= static_cast<Flag>(static_cast<Value>(static_cast<float>(value)) != value);
    } else {
      bad |= static_cast<Flag>(value <= Value{0});
      if constexpr (sizeof(Value) > 2) bad |= static_cast<Flag>(static_cast<double>(static_cast<float>(value)) != static_cast<double>(value));
    }
  }
  return bad == 0;
}

template <class Value>
struct Entry {
  std::int32_t row;
  Value value;
};

}  // namespace

bool is_sound(const RawRows& rows) {
  if (rows.n_rows < 0 || rows.n_columns < 0 || rows.indptr[0] != 0 || rows.indptr[rows.n_rows] != rows.n_entries) return false;
  for (std::int64_t i = 0; i < rows.n_rows; ++i)
    if (rows.indptr[i + 1] < rows.indptr[i]) return false;
  return true;
}

template <class Index, class Value>
bool take_canonical(const RawRows& rows, const Index* indices, const Value* values, bool whole, std::int32_t* out_indices,
                    float* out_values) {
  const auto counts = whole ? are_counts<true, Value> : are_counts<false, Value>;
  for (std::int64_t i = 0; i < rows.n_rows; ++i) {
    const std::int64_t from = rows.indptr[i], to = rows.indptr[i + 1];
    if (!rises(indices + from, to - from, rows.n_columns) || !counts(values + from, to - from)) return false;
    if (out_indices != nullptr)
      for (std::int64_t e = from; e < to; ++e) out_indices[e] = static_cast<std::int32_t>(indices[e]);
    if (out_values != nullptr)
      for (std::int64_t e = from; e < to; ++e) out_values[e] = static_cast<float>(values[e]);
  }
  return true;
}

// Some columns at a time, which rows have one after the other: places far apart would not be in the cache. Rows and values are first
// written side by side, which halves the cache lines at work, and then apart; only where that room is small against the outputs.
template <class Value>
bool transpose(const RawRows& rows, const std::int32_t* indices, const Value* values, std::int64_t* out_indptr, std::int32_t* out_rows,
               Value* out_values) {
  const std::int64_t n = rows.n_rows, m = rows.n_columns;
  std::vector<std::uint32_t> lengths(static_cast<std::size_t>(m));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t from = rows.indptr[i], to = rows.indptr[i + 1];
    if (!rises(indices + from, to - from, m)) return false;
    for (std::int64_t e = from; e < to; ++e) ++lengths[static_cast<std::size_t>(indices[e])];
  }
  out_indptr[0] = 0;
  for (std::int64_t j = 0; j < m; ++j) out_indptr[j + 1] = out_indptr[j] + lengths[static_cast<std::size_t>(j)];

  const std::int64_t most = std::max<std::int64_t>(1, rows.n_entries / (kShortestRun * std::max<std::int64_t>(n, 1)));
  const std::int64_t groups = std::clamp<std::int64_t>((m + kColumnsAtOnce - 1) / kColumnsAtOnce, 1, most);
  const std::int64_t width = (m + groups - 1) / groups, room_size = std::max(kLeastRoom, rows.n_entries / kShareOfRoom);
  const auto room = std::make_unique_for_overwrite<Entry<Value>[]>(static_cast<std::size_t>(std::min(room_size, rows.n_entries)));
  std::vector<std::int64_t> next(static_cast<std::size_t>(width)), at(rows.indptr, rows.indptr + n);
  for (std::int64_t begin = 0; begin < m; begin += width) {
    const std::int64_t end = std::min(begin + width, m), first = out_indptr[begin], size = out_indptr[end] - first;
    const auto visit = [&](std::int64_t origin, const auto& put) {
      for (std::int64_t j = begin; j < end; ++j) next[static_cast<std::size_t>(j - begin)] = out_indptr[j] - origin;
      for (std::int64_t i = 0; i < n; ++i) {
        if (groups > 1 && i + kRowsAhead < n) {
          const std::int64_t coming = at[static_cast<std::size_t>(i + kRowsAhead)];
          fetch(indices + coming);
          fetch(values + coming);
        }
        const std::int64_t to = rows.indptr[i + 1];
        std::int64_t e = at[static_cast<std::size_t>(i)];
        for (; e < to && indices[e] < end; ++e)
          put(next[static_cast<std::size_t>(indices[e] - begin)]++, static_cast<std::int32_t>(i), values[e]);
        at[static_cast<std::size_t>(i)] = e;
      }
    };
    if (size > room_size) {
      visit(0, [&](std::int64_t place, std::int32_t row, Value value) {
        out_rows[place] = row;
        out_values[place] = value;
      });
      continue;
    }
    visit(first, [&](std::int64_t place, std::int32_t row, Value value) { room[static_cast<std::size_t>(place)] = {row, value}; });
    for (std::int64_t e = 0; e < size; ++e) out_rows[first + e] = room[static_cast<std::size_t>(e)].row;
    for (std::int64_t e = 0; e < size; ++e) out_values[first + e] = room[static_cast<std::size_t>(e)].value;
  }
  return true;
}

#define LOG1PNMF_TAKE(Value)                                                                                                   \
  template bool take_canonical(const RawRows&, const std::int32_t*, const Value*, bool, std::int32_t*, float*);                \
  template bool take_canonical(const RawRows&, const std::int64_t*, const Value*, bool, std::int32_t*, float*);
LOG1PNMF_TAKE(float)
LOG1PNMF_TAKE(double)
LOG1PNMF_TAKE(std::int32_t)
LOG1PNMF_TAKE(std::int64_t)
LOG1PNMF_TAKE(std::uint8_t)
LOG1PNMF_TAKE(std::uint16_t)
LOG1PNMF_TAKE(std::uint32_t)

#define LOG1PNMF_TRANSPOSE(Value) \
  template bool transpose(const RawRows&, const std::int32_t*, const Value*, std::int64_t*, std::int32_t*, Value*);
LOG1PNMF_TRANSPOSE(std::uint8_t)
LOG1PNMF_TRANSPOSE(std::uint32_t)
LOG1PNMF_TRANSPOSE(std::uint64_t)

}  // namespace log1pnmf
