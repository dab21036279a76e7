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
    if constexpr (Noise::kQuartic) set_quartic_sums(h, design_.quartic);
  }

  std::unique_ptr<Workspace> workspace() const override {
    auto scratch = std::make_unique<Scratch>();
    if (h_.task == Task::newton) {
      for (int r = 0; r < rows_together(); ++r) scratch->newton.emplace_back(h_, design_);
    } else if (h_.task == Task::coordinate) {
      if constexpr (!Noise::kDispersed) scratch->coordinate.emplace(h_, design_);
    } else scratch->evaluator.emplace(h_, design_);
    if (h_.task == Task::statistics) {
      scratch->hessian = Buffer(Index{h_.n_components} * h_.n_components);
      scratch->gradient = Buffer(h_.n_components);
    }
    return scratch;
  }

  void run_row(Index i, Workspace& workspace) const override {
    auto& scratch = static_cast<Scratch&>(workspace);
    if (h_.task == Task::newton) return run_newton(i, scratch);
    if (h_.task == Task::coordinate) {
      if constexpr (!Noise::kDispersed) scratch.coordinate->run(i);
      return;
    }
    auto& row = *scratch.evaluator;
    const double* b = h_.start + i * h_.n_components;
    row.start_row(row_at(h_, i));
    if (h_.task == Task::statistics) return add_statistics(i, b, row, scratch);
    h_.loss[i] =
        row.template evaluate<Level::gradient>(b, h_.gradient + i * h_.n_components, nullptr);
    if (h_.batch_sums != nullptr) row.sum_means(b, h_.batch_sums + i);
  }

  // In exact form, so that a block of the design is read from the first-level cache by all but the
  // first; and see QuarticSums.
  int rows_together() const override {
    const bool shares = h_.model.exact_zeros || Noise::kQuartic;
    return h_.task == Task::newton && shares ? kRowsTogether : 1;
  }

 private:
  static constexpr int kRowsTogether = 4;

  struct Scratch final : Workspace {
    std::deque<NewtonRow<Link, Noise>> newton;
    std::optional<CoordinateRow<Link>> coordinate;  // Poisson noise only
    std::optional<RowEvaluator<Link, Noise>> evaluator;
    Buffer hessian, gradient;
  };

  void run_newton(Index group, Scratch& scratch) const {
    const Index first = group * rows_together(),
                last = std::min(h_.rows.n_rows, first + rows_together());
    auto& rows = scratch.newton;
    for (Index p = first; p < last; ++p) rows[p - first].start(p);
    if constexpr (Noise::kQuartic) {
      QuarticSums* sums[kRowsTogether];
      for (Index p = first; p < last; ++p) sums[p - first] = &rows[p - first].evaluator().quartic();
      QuarticSums::square(sums, static_cast<int>(last - first));
    }
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

  void add_statistics(Index i, const double* b, RowEvaluator<Link, Noise>& row,
                      Scratch& scratch) const {
    const int K = h_.n_components;
    double *H = scratch.hessian, *g = scratch.gradient;
    h_.loss[i] += row.template evaluate<Level::hessian>(b, g, H);
    double* packed = h_.hessian + i * (K * (K + 1) / 2);
    for (int k = 0; k < K; ++k) {
      h_.gradient[i * K + k] += g[k];
      for (int l = 0; l <= k; ++l) *packed++ += H[k * K + l];
    }
  }

  HalfStep h_;
  Design design_;
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
    const Box box = p_.bounds.at(i);
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

// The one place where link and noise are chosen while running; all code behind a plan is compiled
// for them.
std::unique_ptr<Plan> make_plan(const HalfStep& h) {
  const auto with = [&]<class Noise>(Noise) -> std::unique_ptr<Plan> {
    if (h.model.link == Link::identity) return std::make_unique<RowsPlan<IdentityLink, Noise>>(h);
    return std::make_unique<RowsPlan<ShiftedLogLink, Noise>>(h);
  };
  if (h.model.noise != Noise::poisson) return with(NegativeBinomial{});
  if (h.zeros.rank < 2) return with(Poisson{});
  return std::make_unique<RowsPlan<ShiftedLogLink, PoissonQuartic>>(h);
}
std::unique_ptr<Plan> make_plan(const Programs& p) { return std::make_unique<ProgramsPlan>(p); }
std::unique_ptr<Plan> make_plan(const ZeroSurvey& s) { return std::make_unique<ZeroSurveyPlan>(s); }
std::unique_ptr<Plan> make_plan(const ZeroErrors& z) { return std::make_unique<ZeroErrorsPlan>(z); }
std::unique_ptr<Plan> make_plan(const Spectrum& s) { return std::make_unique<SpectrumPlan>(s); }
std::unique_ptr<Plan> make_plan(const ZeroCollection& c) {
  return std::make_unique<ZeroCollectionPlan>(c);
}
std::unique_ptr<Plan> plan(const Job& job) {
  return std::visit([](const auto& own) { return make_plan(own); }, job);
}

}  // namespace

#define LOG1PNMF_STRING2(x) #x
#define LOG1PNMF_STRING(x) LOG1PNMF_STRING2(x)
extern const Kernel kernel_table;
const Kernel kernel_table = {LOG1PNMF_STRING(LOG1PNMF_ISA), plan};

}  // namespace log1pnmf::LOG1PNMF_ISA
