// Which zero entries are above the cap of their row: the list of those that a fit visits one by one.
#pragma once

#include <vector>

#include "zeros.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Zeros above the cap of their row. Poisson: kTogether rows share what is loaded of the design, and nothing is laid out.
class ZeroCollectionPlan final : public Plan {
 public:
  static constexpr int kTogether = 4;
  int rows_together() const override { return kTogether; }

  explicit ZeroCollectionPlan(const ZeroCollection& c) : c_(c), samples_(c.rows, c.link, c.design, c.n_components) {}

  struct Scratch final : Workspace {
    explicit Scratch(const Samples& samples)
        : zeros(samples.scratch()), weights(kTogether * samples.n_components()), used(samples.n_components()) {
      for (auto& row : rows) {
        row.counted.resize(static_cast<std::size_t>(samples.padded() / kLanes));
        row.found.resize(static_cast<std::size_t>(samples.padded() + kLanes));
      }
    }
    struct Row {
      std::vector<std::uint8_t> counted;   // a bit for every sample, kLanes of them together
      std::vector<std::int32_t> found;
      std::int32_t* end;
    };
    std::unique_ptr<ZerosScratch> zeros;
    Buffer weights;                        // of the rows, component by component
    std::vector<int> used;                 // components that are not zero in all of the rows
    Row rows[kTogether];
  };
  std::unique_ptr<Workspace> workspace() const override { return std::make_unique<Scratch>(samples_); }

  void run_row(std::int64_t group, Workspace& workspace) const override {
    auto& at = static_cast<Scratch&>(workspace);
    const std::int64_t first = group * kTogether;
    const int n = static_cast<int>(std::min<std::int64_t>(kTogether, c_.rows.n_rows - first));
    for (int r = 0; r < n; ++r) mark_counts(first + r, at.rows[r]);
    if (samples_.dispersed()) {
      for (int r = 0; r < n; ++r) {
        samples_.lay_out(first + r, c_.start + (first + r) * c_.n_components, {}, false, *at.zeros);
        for (std::int64_t e = 0; e < samples_.padded(); e += kLanes)
          add(e, load(at.zeros->measure + e), c_.caps[first + r], at.rows[r]);
      }
    } else {
      screen(first, n, at);
    }
    for (int r = 0; r < n; ++r) finish(first + r, at.rows[r], *at.zeros);
  }

 private:
  void mark_counts(std::int64_t j, Scratch::Row& row) const {
    const Entries counts = entries_at(c_.rows.indptr, c_.rows.indices, c_.rows.n_rows, j);
    std::fill(row.counted.begin(), row.counted.end(), std::uint8_t{0});
    for (std::int64_t p = 0; p < counts.count; ++p)
      row.counted[counts.indices[p] / kLanes] |= static_cast<std::uint8_t>(1u << (counts.indices[p] % kLanes));
    row.end = row.found.data();
  }

  static void add(std::int64_t e, Vec measure, double cap, Scratch::Row& row) {
    row.end = put_lanes(lanes_above(measure, cap) & ~unsigned{row.counted[e / kLanes]}, static_cast<std::int32_t>(e), row.end);
  }

  void screen(std::int64_t first, int n, Scratch& at) const {
    constexpr int R = kTogether, U = 2;
    int n_used = 0;
    for (int k = 0; k < c_.n_components; ++k) {
      bool any = false;
      for (int r = 0; r < R; ++r) {
        const double b = r < n ? c_.start[(first + r) * c_.n_components + k] : 0.0;
        at.weights[n_used * R + r] = b;
        any = any || b != 0.0;
      }
      if (any) at.used[n_used++] = k;
    }
    for (std::int64_t e = 0; e < samples_.padded(); e += U * kLanes) {
      Vec eta[R][U] = {};
      for (int k = 0; k < n_used; ++k) {
        Vec design[U];
        LOG1PNMF_EACH design[u] = samples_.component(at.used[k], e + u * kLanes);
        for (int r = 0; r < R; ++r)
          LOG1PNMF_EACH eta[r][u] += at.weights[k * R + r] * design[u];
      }
      for (int r = 0; r < n; ++r)
        LOG1PNMF_EACH add(e + u * kLanes, eta[r][u], c_.caps[first + r], at.rows[r]);
    }
  }

  // Padding is above no cap: there eta is 0. The exposure of the others is that of all, without counts and zeros found.
  void finish(std::int64_t j, const Scratch::Row& row, ZerosScratch& at) const {
    const Entries counts = entries_at(c_.rows.indptr, c_.rows.indices, c_.rows.n_rows, j);
    const std::int32_t* found = row.found.data();
    const std::int64_t n_found = row.end - found;
    c_.found[j].assign(found, found + n_found);
    samples_.set_exposures(j, at);
    double left[2] = {samples_.totals()[0], samples_.totals()[1]};
    if (c_.rows.batches.any()) samples_.sum_exposures(at.t, left);
    const auto take = [&](const std::int32_t* indices, std::int64_t n) {
      double sum = 0.0, squares = 0.0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double t = at.t[indices[i]];
        sum += t;
        squares += t * t;
      }
      left[0] -= sum;
      left[1] -= squares;
    };
    take(counts.indices, counts.count);
    take(found, n_found);
    const bool none = counts.count + n_found >= c_.rows.n_columns;
    for (int i = 0; i < 2; ++i) c_.exposure[2 * j + i] = none ? 0.0 : std::max(0.0, left[i]);
  }

  ZeroCollection c_;
  Samples samples_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
