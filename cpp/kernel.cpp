// The row solvers behind the Kernel table, compiled once per instruction set (CMakeLists.txt sets
// LOG1PNMF_ISA and the flags).
//
// A row's entries are handled in blocks laid out by component (X[k][entry]), so that every loop
// runs over entries with full vectors whatever K is: eta = X b, expm1, residual r, weight w, then
// loss, g = X'r and H = X'diag(w)X. A block gathers the design rows of non-zeros. In exact form
// other blocks, of the transposed design, add what all entries have in common with zeros.
#include "kernel.hpp"

#include <deque>
#include <optional>

#include "coordinate.hpp"
#include "newton.hpp"
#include "zeros.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

namespace {

template <class Link, class Noise>
class RowsPlan final : public Plan {
 public:
  explicit RowsPlan(const HalfStep& h) : h_(h), design_(h) {
    if (design_.carries) sort_by_batch();
  }

  std::unique_ptr<Workspace> workspace() const override {
    auto scratch = std::make_unique<Scratch>();
    switch (h_.task) {
      case Task::newton:
        for (int r = 0; r < rows_together(); ++r) scratch->newton.emplace_back(h_, design_);
        break;
      case Task::coordinate:
        if constexpr (!Noise::kDispersed) scratch->coordinate.emplace(h_, design_);
        break;
      case Task::statistics:
        scratch->hessian.emplace(static_cast<Index>(h_.n_components) * h_.n_components);
        scratch->gradient.emplace(h_.n_components);
        [[fallthrough]];
      case Task::means:
      case Task::evaluate: scratch->evaluator.emplace(h_, design_); break;
    }
    return scratch;
  }

  void run_row(Index i, Workspace& workspace) const override {
    auto& scratch = static_cast<Scratch&>(workspace);
    switch (h_.task) {
      case Task::newton: run_newton(i, scratch); break;
      case Task::coordinate:
        if constexpr (!Noise::kDispersed) scratch.coordinate->run(i);
        break;
      case Task::means:
        scratch.evaluator->start_row(row_at(h_, i));
        scratch.evaluator->sum_means(h_.start + i * h_.n_components, h_.batch_sums + i);
        break;
      case Task::evaluate: {
        const int K = h_.n_components;
        scratch.evaluator->start_row(row_at(h_, i));
        h_.loss[i] = scratch.evaluator->template evaluate<Level::gradient>(
            h_.start + i * K, h_.gradient + i * K, nullptr);
        break;
      }
      case Task::statistics: add_statistics(i, scratch); break;
    }
  }

  // In exact form, so that a block of the design is read from the first-level cache by all but the
  // first.
  int rows_together() const override {
    return h_.task == Task::newton && h_.model.exact_zeros ? kRowsTogether : 1;
  }

 private:
  static constexpr int kRowsTogether = 4;

  struct Scratch final : Workspace {
    std::deque<NewtonRow<Link, Noise>> newton;
    std::optional<CoordinateRow<Link>> coordinate;  // Poisson noise only
    std::optional<RowEvaluator<Link, Noise>> evaluator;
    std::optional<Buffer> hessian, gradient;
  };

  void run_newton(Index group, Scratch& scratch) const {
    const Index first = group * rows_together(),
                last = std::min(h_.rows.n_rows, first + rows_together());
    auto& rows = scratch.newton;
    for (Index p = first; p < last; ++p) rows[p - first].start(order_.empty() ? p : order_[p]);
    for (Index from = 0; from < rows[0].evaluator().columns_to_visit();
         from += rows[0].evaluator().block())
      for (Index p = first; p < last; ++p) rows[p - first].visit(from);
    for (Index p = first; p < last; ++p) {
      auto& row = rows[p - first];
      const Index i = row.evaluator().row().number;
      row.take_steps();
      if (h_.batch_sums != nullptr)
        row.evaluator().sum_means(h_.values + i * h_.n_components, h_.batch_sums + i);
    }
  }

  // Rows batch by batch.
  void sort_by_batch() {
    const Batches& own = h_.rows.batches;
    std::vector<Index> next(own.count + 1);
    for (Index i = 0; i < h_.rows.n_rows; ++i) ++next[own.row_batch[i] + 1];
    for (int b = 0; b < own.count; ++b) next[b + 1] += next[b];
    order_.resize(h_.rows.n_rows);
    for (Index i = 0; i < h_.rows.n_rows; ++i) order_[next[own.row_batch[i]]++] = i;
  }

  void add_statistics(Index i, Scratch& scratch) const {
    const int K = h_.n_components;
    double *H = *scratch.hessian, *g = *scratch.gradient;
    scratch.evaluator->start_row(row_at(h_, i));
    h_.loss[i] += scratch.evaluator->template evaluate<Level::hessian>(h_.start + i * K, g, H);
    double* packed = h_.hessian + i * (K * (K + 1) / 2);
    for (int k = 0; k < K; ++k) {
      h_.gradient[i * K + k] += g[k];
      for (int l = 0; l <= k; ++l) *packed++ += H[k * K + l];
    }
  }

  HalfStep h_;
  Design design_;
  std::vector<Index> order_;  // in which rows take Newton steps; empty: as they are
};

class ProgramsPlan final : public Plan {
 public:
  explicit ProgramsPlan(const Programs& p) : p_(p) {}

  std::unique_ptr<Workspace> workspace() const override {
    return std::make_unique<Scratch>(p_.n_components);
  }

  void run_row(Index i, Workspace& workspace) const override {
    auto& scratch = static_cast<Scratch&>(workspace);
    const int K = p_.n_components;
    const double* packed = p_.hessian + i * (K * (K + 1) / 2);
    const Box box(p_.bounds, i);
    for (int k = 0; k < K; ++k) {
      scratch.gradient[k] = p_.gradient[i * K + k] + box.penalty[k];
      for (int l = 0; l <= k; ++l)
        scratch.hessian[k * K + l] = scratch.hessian[l * K + k] = *packed++;
    }
    p_.decrease[i] = scratch.program.solve(scratch.hessian, scratch.gradient, p_.start + i * K, box,
                                           p_.values + i * K, p_.curvature[i]);
  }

 private:
  struct Scratch final : Workspace {
    explicit Scratch(int K) : program(K), hessian(static_cast<Index>(K) * K), gradient(K) {}
    QuadraticProgram program;
    Buffer hessian, gradient;
  };
  Programs p_;
};

template <class Noise>
std::unique_ptr<Plan> make_plan_for(const HalfStep& h) {
  if (h.model.link == Link::identity) return std::make_unique<RowsPlan<IdentityLink, Noise>>(h);
  return std::make_unique<RowsPlan<ShiftedLogLink, Noise>>(h);
}

// The one place where link and noise are chosen while running; all code behind a plan is compiled
// for them.
std::unique_ptr<Plan> make_plan(const HalfStep& h) {
  if (h.model.noise == Noise::negative_binomial) return make_plan_for<NegativeBinomial>(h);
  return make_plan_for<Poisson>(h);
}
std::unique_ptr<Plan> make_programs(const Programs& p) { return std::make_unique<ProgramsPlan>(p); }
std::unique_ptr<Plan> make_survey(const ZeroSurvey& s) {
  return std::make_unique<ZeroSurveyPlan>(s);
}
std::unique_ptr<Plan> make_collection(const ZeroCollection& c) {
  return std::make_unique<ZeroCollectionPlan>(c);
}
std::unique_ptr<Plan> make_errors(const ZeroErrors& z) {
  return std::make_unique<ZeroErrorsPlan>(z);
}
std::unique_ptr<Plan> make_spectrum(const Spectrum& s) { return std::make_unique<SpectrumPlan>(s); }

template <class Function>
void elementwise(const double* x, double* y, Index n, Function f) {
  for (Index i = 0; i < n; i += kStep) {
    double lanes[kStep];
    Vec v[kUnroll];
    const auto count = static_cast<int>(std::min<Index>(kStep, n - i));
    std::fill_n(lanes, kStep, 1.0);
    std::copy_n(x + i, count, lanes);
    for (int u = 0; u < kUnroll; ++u) v[u] = load(lanes + u * kLanes);
    f(v);
    for (int u = 0; u < kUnroll; ++u) store(lanes + u * kLanes, v[u]);
    std::copy_n(lanes, count, y + i);
  }
}

void expm1_all(const double* x, double* y, Index n) {
  elementwise(x, y, n, [](Vec* v) { expm1<kUnroll>(v, v); });
}
void log_all(const double* x, double* y, Index n) {
  elementwise(x, y, n, [](Vec* v) {
    Vec reciprocal[kUnroll];
    log_and_reciprocal<kUnroll>(v, v, reciprocal);
  });
}

}  // namespace

#define LOG1PNMF_STRING2(x) #x
#define LOG1PNMF_STRING(x) LOG1PNMF_STRING2(x)
extern const Kernel kernel_table;
const Kernel kernel_table = {LOG1PNMF_STRING(LOG1PNMF_ISA),
                             make_plan,
                             make_programs,
                             make_survey,
                             make_collection,
                             make_errors,
                             make_spectrum,
                             expm1_all,
                             log_all};

}  // namespace log1pnmf::LOG1PNMF_ISA
