#include "arrays.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

namespace log1pnmf {
namespace {

// Whose ends, a cache line each, are nearly all in the first-level cache
constexpr Index kColumnsAtOnce = 512;
constexpr Index kShortestRun = 8;  // entries of a row that are read in one go, on average
constexpr Index kShareOfRoom = 8, kLeastRoom = 1 << 16;
constexpr Index kRowsAhead = 2;
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
      if constexpr (sizeof(Value) > sizeof(float))
        bad |= static_cast<Flag>(static_cast<Value>(static_cast<float>(value)) != value);
    } else {
      bad |= static_cast<Flag>(value <= Value{0});
      if constexpr (sizeof(Value) > 2)
        bad |= static_cast<Flag>(static_cast<double>(static_cast<float>(value)) !=
                                 static_cast<double>(value));
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
  if (rows.n_rows < 0 || rows.n_columns < 0 || rows.indptr[0] != 0 ||
      rows.indptr[rows.n_rows] != rows.n_entries)
    return false;
  for (Index i = 0; i < rows.n_rows; ++i)
    if (rows.indptr[i + 1] < rows.indptr[i]) return false;
  return true;
}

template <class Column, class Value>
bool take_canonical(const RawRows& rows, const Column* indices, const Value* values, bool whole,
                    std::int32_t* out_indices, float* out_values) {
  const auto counts = whole ? are_counts<true, Value> : are_counts<false, Value>;
  for (Index i = 0; i < rows.n_rows; ++i) {
    const Index from = rows.indptr[i], to = rows.indptr[i + 1];
    if (!rises(indices + from, to - from, rows.n_columns) || !counts(values + from, to - from))
      return false;
    if (out_indices != nullptr)
      for (Index e = from; e < to; ++e) out_indices[e] = static_cast<std::int32_t>(indices[e]);
    if (out_values != nullptr)
      for (Index e = from; e < to; ++e) out_values[e] = static_cast<float>(values[e]);
  }
  return true;
}

// Some columns at a time, which rows have one after the other: places far apart would not be in the
// cache. Rows and values are first written side by side, which halves the cache lines at work, and
// then apart; only where that room is small against the outputs.
template <class Value>
bool transpose(const RawRows& rows, const std::int32_t* indices, const Value* values,
               Index* out_indptr, std::int32_t* out_rows, Value* out_values) {
  const Index n = rows.n_rows, m = rows.n_columns;
  std::vector<std::uint32_t> lengths(static_cast<std::size_t>(m));
  for (Index i = 0; i < n; ++i) {
    const Index from = rows.indptr[i], to = rows.indptr[i + 1];
    if (!rises(indices + from, to - from, m)) return false;
    for (Index e = from; e < to; ++e) ++lengths[static_cast<std::size_t>(indices[e])];
  }
  out_indptr[0] = 0;
  for (Index j = 0; j < m; ++j)
    out_indptr[j + 1] = out_indptr[j] + lengths[static_cast<std::size_t>(j)];

  const Index most = std::max<Index>(1, rows.n_entries / (kShortestRun * std::max<Index>(n, 1)));
  const Index groups = std::clamp<Index>((m + kColumnsAtOnce - 1) / kColumnsAtOnce, 1, most);
  const Index width = (m + groups - 1) / groups,
              room_size = std::max(kLeastRoom, rows.n_entries / kShareOfRoom);
  const auto room = std::make_unique_for_overwrite<Entry<Value>[]>(
      static_cast<std::size_t>(std::min(room_size, rows.n_entries)));
  std::vector<Index> next(static_cast<std::size_t>(width)), at(rows.indptr, rows.indptr + n);
  for (Index begin = 0; begin < m; begin += width) {
    const Index end = std::min(begin + width, m), first = out_indptr[begin],
                size = out_indptr[end] - first;
    const auto visit = [&](Index origin, const auto& put) {
      for (Index j = begin; j < end; ++j)
        next[static_cast<std::size_t>(j - begin)] = out_indptr[j] - origin;
      for (Index i = 0; i < n; ++i) {
        if (groups > 1 && i + kRowsAhead < n) {
          const Index coming = at[static_cast<std::size_t>(i + kRowsAhead)];
          fetch(indices + coming);
          fetch(values + coming);
        }
        const Index to = rows.indptr[i + 1];
        Index e = at[static_cast<std::size_t>(i)];
        for (; e < to && indices[e] < end; ++e)
          put(next[static_cast<std::size_t>(indices[e] - begin)]++, static_cast<std::int32_t>(i),
              values[e]);
        at[static_cast<std::size_t>(i)] = e;
      }
    };
    if (size > room_size) {
      visit(0, [&](Index place, std::int32_t row, Value value) {
        out_rows[place] = row;
        out_values[place] = value;
      });
      continue;
    }
    visit(first, [&](Index place, std::int32_t row, Value value) {
      room[static_cast<std::size_t>(place)] = {row, value};
    });
    for (Index e = 0; e < size; ++e) out_rows[first + e] = room[static_cast<std::size_t>(e)].row;
    for (Index e = 0; e < size; ++e)
      out_values[first + e] = room[static_cast<std::size_t>(e)].value;
  }
  return true;
}

#define LOG1PNMF_TAKE(Value)                                                                    \
  template bool take_canonical(const RawRows&, const std::int32_t*, const Value*, bool,         \
                               std::int32_t*, float*);                                          \
  template bool take_canonical(const RawRows&, const Index*, const Value*, bool, std::int32_t*, \
                               float*);
LOG1PNMF_TAKE(float)
LOG1PNMF_TAKE(double)
LOG1PNMF_TAKE(std::int32_t)
LOG1PNMF_TAKE(Index)
LOG1PNMF_TAKE(std::uint8_t)
LOG1PNMF_TAKE(std::uint16_t)
LOG1PNMF_TAKE(std::uint32_t)

#define LOG1PNMF_TRANSPOSE(Value)                                                    \
  template bool transpose(const RawRows&, const std::int32_t*, const Value*, Index*, \
                          std::int32_t*, Value*);
LOG1PNMF_TRANSPOSE(std::uint8_t)
LOG1PNMF_TRANSPOSE(std::uint32_t)
LOG1PNMF_TRANSPOSE(std::uint64_t)

namespace {

// As one long row: K by itself is too short for vector instructions
constexpr Index rows_together = 64;

// What the bounds of one row become if rows are taken together.
std::vector<double> repeated(const Bounds::Numbers& numbers, Index n_components) {
  std::vector<double> long_row;
  for (Index i = 0; i < rows_together; ++i)
    long_row.insert(long_row.end(), numbers.values, numbers.values + n_components);
  return long_row;
}

// Add the entries of one long row.
void add(Index n, const double* __restrict b, const double* __restrict gradient,
         const double* __restrict lower, const double* __restrict upper,
         const double* __restrict penalty, const double* __restrict weight, double* __restrict size,
         double* __restrict slope) {
  for (Index j = 0; j < n; ++j) {
    const double left = gradient[j] + penalty[j];
    const double up = left < 0.0 ? 0.0 : left, down = left > 0.0 ? 0.0 : left;  // without branches
    const double high = b[j] >= upper[j] ? 0.0 : down, low = b[j] <= lower[j] ? 0.0 : up;
    slope[j] += weight[j] * (low - high);
    size[j] += b[j];
  }
}

}  // namespace

void residual_sums(const Points& points, double* sizes, double* slopes) {
  const Index K = points.n_components, width = rows_together * K;
  const Bounds::Numbers given[] = {points.bounds.lower, points.bounds.upper, points.bounds.penalty};
  std::vector<double> same[3], size(width, 0.0), slope(width, 0.0), weight(width, 1.0);
  for (int i = 0; i < 3; ++i)
    if (given[i].stride == 0) same[i] = repeated(given[i], K);
  for (Index row = 0; row < points.n_rows; row += rows_together) {
    const Index n = K * std::min(rows_together, points.n_rows - row);
    if (points.counted != nullptr)
      for (Index j = 0; j < n; ++j) weight[j] = points.counted[row + j / K] ? 1.0 : 0.0;
    const double *b = points.values + row * K, *g = points.gradient + row * K, *box[3];
    for (int i = 0; i < 3; ++i) box[i] = given[i].stride == 0 ? same[i].data() : given[i].at(row);
    add(n, b, g, box[0], box[1], box[2], weight.data(), size.data(), slope.data());
  }
  for (Index k = 0; k < K; ++k) {
    sizes[k] = slopes[k] = 0.0;
    for (Index j = k; j < width; j += K) {
      sizes[k] += size[j];
      slopes[k] += slope[j];
    }
  }
}

void extrapolate(Index size, const double* to, const double* since, double by, double least,
                 double* out) {
  for (Index i = 0; i < size; ++i)
    out[i] = std::max(to[i] + by * (to[i] - since[i]), least * to[i]);
}

}  // namespace log1pnmf
