// What a solver does to whole points between its half-steps, each in one pass.
#pragma once

#include <cstdint>

#include "kernel.hpp"

namespace log1pnmf {

// Rows of K coefficients and their gradients. counted: whether a row has counts; null: all do.
struct Points {
  std::int64_t n_rows, n_components;
  const double *values, *gradient;
  const std::uint8_t* counted;
  Bounds bounds;
};

// Column sums of the values, and of the absolute slopes that the bounds leave, of rows with counts. The order of the sums
// depends on the shape alone.
void residual_sums(const Points& points, double* sizes, double* slopes);

// to + by (to - since), but at least a part of `to`.
void extrapolate(std::int64_t size, const double* to, const double* since, double by, double least, double* out);

}  // namespace log1pnmf
