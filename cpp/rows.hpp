// Compressed rows of counts from anywhere: checked, brought into the form of the kernels, and sorted by columns.
#pragma once

#include <cstdint>

namespace log1pnmf {

// Rows as they were found: nothing of them is trusted.
struct RawRows {
  std::int64_t n_rows, n_columns, n_entries;
  const std::int64_t* indptr;
};

// Whether the rows begin and end where they should.
bool is_sound(const RawRows& rows);

// Whether columns rise strictly within every row, and all values are positive, finite and exact in single precision;
// `whole`: and known to be whole numbers. Then columns and values are written to the outputs; null: the inputs will do. The rows must be sound.
template <class Index, class Value>
bool take_canonical(const RawRows& rows, const Index* indices, const Value* values, bool whole, std::int32_t* out_indices,
                    float* out_values);

// The same entries by columns, each with ascending rows. False, and no result, where columns do not rise within rows or
// point outside. The rows must be sound. Value: any type as wide as the values.
template <class Value>
bool transpose(const RawRows& rows, const std::int32_t* indices, const Value* values, std::int64_t* out_indptr, std::int32_t* out_rows,
               Value* out_values);

}  // namespace log1pnmf
