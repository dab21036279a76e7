// The means of every row, summed up over the columns of each batch.
#pragma once

#include "zeros.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Rows are features and columns samples; Poisson noise.
class MeanSumsPlan final : public Plan {
 public:
  explicit MeanSumsPlan(const MeanSums& s) : s_(s), samples_(s.rows, s.link, s.design, s.n_components) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    samples_.lay_out(j, s_.start + j * s_.n_components, {}, true, at);
    double* to = s_.sums + j * s_.rows.batches.count;
    std::fill_n(to, s_.rows.batches.count, 0.0);
    const std::int32_t* batch = s_.rows.batches.column_batch;
    for (std::int64_t i = 0; i < s_.rows.n_columns; ++i) to[batch[i]] += at.t[i] * at.cost[i];
  }

 private:
  MeanSums s_;
  Samples samples_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
