#include "points.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace log1pnmf {
namespace {

constexpr std::int64_t rows_together = 64;   // as one long row: K by itself is too short for vector instructions

// What the bounds of one row become if rows are taken together.
std::vector<double> repeated(const Bounds::Numbers& numbers, std::int64_t n_components) {
  std::vector<double> long_row;
  for (std::int64_t i = 0; i < rows_together; ++i) long_row.insert(long_row.end(), numbers.values, numbers.values + n_components);
  return long_row;
}

// Add the entries of one long row.
void add(std::int64_t n, const double* __restrict b, const double* __restrict gradient, const double* __restrict lower,
         const double* __restrict upper, const double* __restrict penalty, const double* __restrict weight,
         double* __restrict size, double* __restrict slope) {
  for (std::int64_t j = 0; j < n; ++j) {
    const double left = gradient[j] + penalty[j];
    const double up = left < 0.0 ? 0.0 : left, down = left > 0.0 ? 0.0 : left;   // without branches
    const double high = b[j] >= upper[j] ? 0.0 : down, low = b[j] <= lower[j] ? 0.0 : up;
    slope[j] += weight[j] * (low - high);
    size[j] += b[j];
  }
}

}  // namespace

void residual_sums(const Points& points, double* sizes, double* slopes) {
  const std::int64_t K = points.n_components, width = rows_together * K;
  const Bounds::Numbers given[] = {points.bounds.lower, points.bounds.upper, points.bounds.penalty};
  std::vector<double> same[3], size(width, 0.0), slope(width, 0.0), weight(width, 1.0);
  for (int i = 0; i < 3; ++i)
    if (given[i].stride == 0) same[i] = repeated(given[i], K);
  for (std::int64_t row = 0; row < points.n_rows; row += rows_together) {
    const std::int64_t n = K * std::min(rows_together, points.n_rows - row);
    if (points.counted != nullptr)
      for (std::int64_t j = 0; j < n; ++j) weight[j] = points.counted[row + j / K] ? 1.0 : 0.0;
    const double *b = points.values + row * K, *g = points.gradient + row * K, *box[3];
    for (int i = 0; i < 3; ++i) box[i] = given[i].stride == 0 ? same[i].data() : given[i].at(row);
    add(n, b, g, box[0], box[1], box[2], weight.data(), size.data(), slope.data());
  }
  for (std::int64_t k = 0; k < K; ++k) {
    sizes[k] = slopes[k] = 0.0;
    for (std::int64_t j = k; j < width; j += K) {
      sizes[k] += size[j];
      slopes[k] += slope[j];
    }
  }
}

void extrapolate(std::int64_t size, const double* to, const double* since, double by, double least, double* out) {
  for (std::int64_t i = 0; i < size; ++i) out[i] = std::max(to[i] + by * (to[i] - since[i]), least * to[i]);
}

}  // namespace log1pnmf
