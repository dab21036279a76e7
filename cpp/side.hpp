// Counts, exposure and zeros of one side of a problem, as Python hands them over.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel.hpp"

namespace nb = nanobind;
using log1pnmf::Index;

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

log1pnmf::Link link_named(const std::string& name) {
  if (name == "shifted_log") return log1pnmf::Link::shifted_log;
  if (name == "identity") return log1pnmf::Link::identity;
  throw std::invalid_argument("unknown link");
}

log1pnmf::Noise noise_named(const std::string& name) {
  if (name == "poisson") return log1pnmf::Noise::poisson;
  if (name == "negative binomial") return log1pnmf::Noise::negative_binomial;
  throw std::invalid_argument("unknown noise");
}

using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Maybe = std::optional<T>;

template <class Array>
auto data_or_null(const Maybe<Array>& array) {
  return array ? array->data() : nullptr;
}

// Counts, exposure and zeros of one side of a problem; the arrays are kept alive and shared by all
// half-steps.
class Side {
 public:
  Side(Vector<Index> indptr, Vector<std::int32_t> indices, Values counts,
       Vector<double> row_exposure, Index n_columns, Maybe<Vector<double>> column_exposure,
       const std::string& link, const std::string& noise, Maybe<Vector<double>> row_dispersion,
       Maybe<Vector<double>> column_dispersion)
      : indptr_(indptr), indices_(indices), counts_(counts), row_exposure_(row_exposure),
        column_exposure_(column_exposure), row_dispersion_(row_dispersion),
        column_dispersion_(column_dispersion) {
    const auto n = static_cast<Index>(row_exposure.size());
    const bool single = counts.dtype() == nb::dtype<float>(),
               wide = counts.dtype() == nb::dtype<double>();
    require(single || wide, "counts must be float32 or float64");
    require(static_cast<Index>(indptr.size()) == n + 1 && indices.size() == counts.size() &&
                indptr.data()[n] == static_cast<Index>(indices.size()),
            "compressed rows do not fit together");
    require(!column_exposure || static_cast<Index>(column_exposure->size()) == n_columns,
            "column_exposure must have one number for every column");
    rows = {n,
            n_columns,
            indptr.data(),
            indices.data(),
            single ? static_cast<const float*>(counts.data()) : nullptr,
            wide ? static_cast<const double*>(counts.data()) : nullptr,
            row_exposure.data(),
            data_or_null(column_exposure),
            data_or_null(row_dispersion),
            data_or_null(column_dispersion),
            {}};
    model = {link_named(link), noise_named(noise), true};
    const bool dispersed = model.noise == log1pnmf::Noise::negative_binomial;
    require(row_dispersion.has_value() + column_dispersion.has_value() == dispersed,
            "dispersions belong to negative binomial noise, and to rows or to columns");
    require(!row_dispersion || static_cast<Index>(row_dispersion->size()) == n,
            "row_dispersion must have one number a row");
    require(!column_dispersion || static_cast<Index>(column_dispersion->size()) == n_columns,
            "column_dispersion must have one number a column");
  }

  // Batches of rows or of columns, with effects of batches x columns or batches x rows.
  void set_batches(Maybe<Vector<std::int32_t>> row_batch, Maybe<Vector<std::int32_t>> column_batch,
                   Matrix effects) {
    const auto n = static_cast<std::size_t>(rows.n_rows),
               m = static_cast<std::size_t>(rows.n_columns);
    require(row_batch.has_value() != column_batch.has_value(), "batches are of rows or of columns");
    require(!row_batch || (row_batch->size() == n && effects.shape(1) == m &&
                           rows.column_exposure == nullptr),
            "batches of rows need a label for every row, effects of batches x columns, and no "
            "exposure of columns");
    require(!column_batch || (column_batch->size() == m && effects.shape(1) == n),
            "batches of columns need a label for every column, and effects of batches x rows");
    require(zeros.rank == 0, "batches are set before zeros");
    const auto& labels = row_batch ? *row_batch : *column_batch;
    const auto count = static_cast<std::int32_t>(effects.shape(0));
    require(std::all_of(labels.data(), labels.data() + labels.size(),
                        [&](std::int32_t b) { return b >= 0 && b < count; }),
            "a label is not that of a batch");
    row_batch_ = row_batch, column_batch_ = column_batch, effects_ = effects;
    if (column_batch) {
      by_row_.resize(effects.size());
      for (std::size_t i = 0; i < n; ++i)
        for (std::int32_t b = 0; b < count; ++b) by_row_[i * count + b] = effects.data()[b * n + i];
    }
    rows.batches = {count, data_or_null(row_batch), data_or_null(column_batch),
                    row_batch ? effects.data() : by_row_.data()};
  }

  // Leaves the exact form for quadratics and a list of zeros.
  void set_zeros(Maybe<Vector<Index>> stored_indptr, Maybe<Vector<std::int32_t>> stored_indices,
                 Maybe<Matrix> row_quadratic, Maybe<Matrix> column_quadratic, Matrix row_linear,
                 Matrix row_quadratics, Matrix column_linear, Matrix column_quadratics) {
    const auto n = static_cast<std::size_t>(rows.n_rows),
               m = static_cast<std::size_t>(rows.n_columns);
    const std::size_t rank = model.noise == log1pnmf::Noise::negative_binomial ? 2 : 1,
                      width = rank + 1;
    require(row_linear.shape(0) == n && row_quadratics.shape(0) == n && row_linear.shape(1) == 1 &&
                row_quadratics.shape(1) == rank && column_linear.shape(0) == 1 &&
                column_quadratics.shape(0) == rank && column_linear.shape(1) == m &&
                column_quadratics.shape(1) == m,
            "the terms of the zeros must be rows x rank and rank x columns");
    require(row_quadratic.has_value() != column_quadratic.has_value(),
            "quadratics belong to rows or to columns");
    require(!row_quadratic || (row_quadratic->shape(0) == n && row_quadratic->shape(1) == width),
            "quadratics of rows must be rows x 2, or x 3 with dispersions");
    require(!column_quadratic ||
                (column_quadratic->shape(0) == m && column_quadratic->shape(1) == width),
            "quadratics of columns must be columns x 2, or x 3 with dispersions");
    require(stored_indptr.has_value() == stored_indices.has_value() &&
                (!stored_indptr ||
                 (stored_indptr->size() == n + 1 &&
                  stored_indptr->data()[n] == static_cast<Index>(stored_indices->size()))),
            "the stored zeros do not fit together");
    stored_indptr_ = stored_indptr, stored_indices_ = stored_indices;
    row_quadratic_ = row_quadratic, column_quadratic_ = column_quadratic;
    terms_ = {row_linear, row_quadratics, column_linear, column_quadratics};
    zeros = {{data_or_null(stored_indptr), data_or_null(stored_indices)},
             data_or_null(row_quadratic),
             data_or_null(column_quadratic),
             static_cast<int>(rank),
             row_linear.data(),
             row_quadratics.data(),
             column_linear.data(),
             column_quadratics.data()};
    model.exact_zeros = false;
  }

  // Terms that a pass over all entries adds up, or over counts and listed zeros.
  double dense_work(std::size_t K) const {
    return static_cast<double>(rows.n_rows) * static_cast<double>(rows.n_columns) * per_entry(K);
  }
  double work(std::size_t K) const {
    if (model.exact_zeros) return dense_work(K);
    const std::size_t stored = stored_indices_ ? stored_indices_->size() : 0;
    return static_cast<double>(indices_.size() + stored) * per_entry(K);
  }

  log1pnmf::Rows rows{};
  log1pnmf::Zeros zeros{};
  log1pnmf::Model model{};

 private:
  static double per_entry(std::size_t K) { return 8.0 + static_cast<double>(K); }

  Vector<Index> indptr_;
  Vector<std::int32_t> indices_;
  Values counts_;
  Vector<double> row_exposure_;
  Maybe<Vector<double>> column_exposure_, row_dispersion_, column_dispersion_;
  Maybe<Vector<std::int32_t>> row_batch_, column_batch_;
  Maybe<Matrix> effects_;
  std::vector<double> by_row_;  // rows x batches
  Maybe<Vector<Index>> stored_indptr_;
  Maybe<Vector<std::int32_t>> stored_indices_;
  Maybe<Matrix> row_quadratic_, column_quadratic_;
  std::vector<Matrix> terms_;
};

}  // namespace
