// The means of every row, condensed: sums of powers over bins of their logarithm.
#pragma once

#include "zeros.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Rows are features and columns samples. A mean is in bin b of its row if its logarithm is between low + b and low + b + 1;
// those beyond both ends are in the first and in the last bin, at their outer ends. With d from -1 to 1 inside of a bin, its
// sums are those of d^0 to d^7: over all entries, and over counts times d^p.
class SpectrumPlan final : public Plan {
 public:
  explicit SpectrumPlan(const Spectrum& s) : s_(s), samples_(s.rows, s.link, s.design, s.n_components) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    samples_.log_means(j, s_.start + j * s_.n_components, at);
    double *to = s_.entries + j * s_.n_bins * kPowers, *place = at.measure;
    for (std::int64_t i = 0; i < s_.rows.n_columns; ++i) place[i] = inside(place[i] - s_.low[j]);
    for (std::int64_t i = 0; i < s_.rows.n_columns; ++i) add(to, place[i], 1.0);
    const Entries counts = entries_at(s_.rows.indptr, s_.rows.indices, s_.rows.n_rows, j);
    to = s_.counted + j * s_.n_bins * kPowers;
    double y[kPiece];
    for (std::int64_t from = 0; from < counts.count; from += kPiece) {
      const std::int64_t n = std::min<std::int64_t>(kPiece, counts.count - from);
      read_values(s_.rows, s_.rows.indptr[j] + from, n, y);
      for (std::int64_t p = 0; p < n; ++p) add(to, place[counts.indices[from + p]], y[p]);
    }
  }

 private:
  static constexpr int kPowers = 8, kPiece = 256;
  typedef double Eight __attribute__((vector_size(64)));

  double inside(double place) const { return std::min(std::max(place, 0.0), s_.n_bins - 1e-9); }

  static void add(double* bins, double place, double weight) {
    const auto bin = static_cast<std::int64_t>(place);
    const double d = 2.0 * (place - static_cast<double>(bin)) - 1.0, d2 = d * d, d4 = d2 * d2;
    const Eight one = {1, 0, 1, 0, 1, 0, 1, 0}, two = {1, 1, 0, 0, 1, 1, 0, 0}, four = {1, 1, 1, 1, 0, 0, 0, 0};
    Eight sums;
    double* to = bins + kPowers * bin;
    std::memcpy(&sums, to, sizeof sums);
    sums += (one + (1.0 - one) * d) * (two + (1.0 - two) * d2) * ((four + (1.0 - four) * d4) * weight);
    std::memcpy(to, &sums, sizeof sums);
  }

  Spectrum s_;
  Samples samples_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
