// What is done to whole arrays around the kernels: compressed rows of counts are checked, brought
// into the kernels' types and transposed; points between half-steps are extrapolated and their KKT
// residual is summed.
#pragma once

#include <cstdint>

#include "kernel.hpp"

namespace log1pnmf {

// Rows as they were found: nothing of them is trusted.
struct RawRows {
  Index n_rows, n_columns, n_entries;
  const Index* indptr;
};

// Whether the rows begin and end where they should.
bool is_sound(const RawRows& rows);

// Whether columns rise strictly within every row, and all values are positive, finite and exact in
// single precision; `whole`: and known to be whole numbers. Then columns and values are written to
// the outputs; null: the inputs will do. The rows must be sound.
template <class Column, class Value>
bool take_canonical(const RawRows& rows, const Column* indices, const Value* values, bool whole,
                    std::int32_t* out_indices, float* out_values);

// The same entries by columns, each with ascending rows. False, and no result, where columns do not
// rise within rows or point outside. The rows must be sound. Value: any type as wide as the values.
template <class Value>
bool transpose(const RawRows& rows, const std::int32_t* indices, const Value* values,
               Index* out_indptr, std::int32_t* out_rows, Value* out_values);

// Rows of K coefficients and their gradients. counted: whether a row has counts; null: all do.
struct Points {
  Index n_rows, n_components;
  const double *values, *gradient;
  const std::uint8_t* counted;
  Bounds bounds;
};

// Column sums of the values, and of the absolute slopes that the bounds leave, of rows with counts.
// The order of the sums depends on the shape alone.
void residual_sums(const Points& points, double* sizes, double* slopes);

// to + by (to - since), but at least a part of `to`.
void extrapolate(Index size, const double* to, const double* since, double by, double least,
                 double* out);

}  // namespace log1pnmf
