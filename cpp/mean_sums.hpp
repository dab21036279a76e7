// The means of every row, summed up over the columns of each batch.
#pragma once

#include "zeros.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Rows are features and columns samples; Poisson noise.
class MeanSumsPlan final : public Plan {
 public:
  explicit MeanSumsPlan(const MeanSums& s) : s_(s), samples_(s.rows, s.model.link, s.design, s.n_components) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    double* to = s_.sums + j * s_.rows.batches.count;
    std::fill_n(to, s_.rows.batches.count, 0.0);
    if (!s_.model.exact_zeros) {
      add_visited(j, entries_at(s_.rows.indptr, s_.rows.indices, s_.rows.n_rows, j), at, to);
      const Pattern& stored = s_.zeros.stored;
      if (stored.indptr != nullptr) add_visited(j, entries_at(stored.indptr, stored.indices, s_.rows.n_rows, j), at, to);
      return;
    }
    samples_.lay_out(j, s_.start + j * s_.n_components, {}, true, at);
    const std::int32_t* batch = s_.rows.batches.column_batch;
    for (std::int64_t i = 0; i < s_.rows.n_columns; ++i) to[batch[i]] += at.t[i] * at.cost[i];
  }

 private:
  // Entries of a row, each less its quadratic; the scratch is as long as a row.
  void add_visited(std::int64_t j, const Entries& entries, ZerosScratch& at, double* to) const {
    const int K = s_.n_components;
    const double* b = s_.start + j * K;
    for (std::int64_t p = 0; p < entries.count; ++p) {
      const double* x = s_.design + entries.indices[p] * std::int64_t{K};
      double eta = 0.0;
      for (int k = 0; k < K; ++k) eta += b[k] * x[k];
      at.eta[p] = eta;
    }
    const std::int64_t end = round_up(entries.count, kStep);
    std::fill(at.eta + entries.count, at.eta + end, 0.0);
    if (s_.model.link == Link::identity) means<IdentityLink>(end, at);
    else means<ShiftedLogLink>(end, at);
    const double a1 = s_.zeros.row_quadratic[2 * j], a2 = s_.zeros.row_quadratic[2 * j + 1];
    const double* effects = s_.rows.batches.effects + j * s_.rows.batches.count;
    for (std::int64_t p = 0; p < entries.count; ++p) {
      const std::int32_t i = entries.indices[p], batch = s_.rows.batches.column_batch[i];
      const double t = effects[batch] * (s_.rows.column_exposure != nullptr ? s_.rows.column_exposure[i] : 1.0);
      to[batch] += t * (at.cost[p] - at.eta[p] * (a1 + a2 * at.eta[p]));
    }
  }

  template <class L>
  static void means(std::int64_t end, ZerosScratch& at) {
    constexpr int U = kUnroll;
    for (std::int64_t e = 0; e < end; e += kStep) {
      Vec eta[U], em[U];
      LOG1PNMF_EACH eta[u] = L::clamp_eta(load(at.eta + e + u * kLanes));
      L::template mean_part<U>(eta, em);
      LOG1PNMF_EACH store(at.cost + e + u * kLanes, em[u]);
    }
  }

  MeanSums s_;
  Samples samples_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
