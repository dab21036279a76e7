// The only file that knows Python: arrays in, arrays out, threads and Ctrl-C in between.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernel.hpp"

namespace nb = nanobind;
using log1pnmf::HalfStep;

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// A forked child has none of its parent's threads, but GNU's OpenMP believes it has, and waits for them for ever.
std::atomic<bool> forked{false};

constexpr int kMostThreads = 4096;

int usable_threads(int wanted, std::int64_t n_rows) {
  if (forked) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, std::clamp<std::int64_t>(n_rows, 1, kMostThreads)));
}

// Rows are handed out in small groups; nothing depends on who gets which. Thread 0 is the caller's and looks for Ctrl-C.
bool run_rows(const log1pnmf::Plan& plan, std::int64_t n_rows, int n_threads) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::milliseconds(100);
  const std::int64_t group = n_rows < 64 * n_threads ? 1 : 16;
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> stop{false}, interrupted{false};
  std::exception_ptr failure;
  std::mutex failure_lock;

#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
  {
#ifdef _OPENMP
    const bool caller = omp_get_thread_num() == 0;
#else
    const bool caller = true;
#endif
    try {
      auto workspace = plan.workspace();
      auto looked = Clock::now();
      while (!stop.load(std::memory_order_relaxed)) {
        const std::int64_t from = next.fetch_add(group);
        if (from >= n_rows) break;
        const std::int64_t to = from + group < n_rows ? from + group : n_rows;
        for (std::int64_t i = from; i < to && !stop.load(std::memory_order_relaxed); ++i) {
          plan.run_row(i, *workspace);
          if (caller && Clock::now() - looked > kPatience) {
            nb::gil_scoped_acquire gil;
            if (PyErr_CheckSignals() != 0) {
              interrupted = true;
              stop = true;
            }
            looked = Clock::now();
          }
        }
      }
    } catch (...) {
      std::lock_guard<std::mutex> guard(failure_lock);
      failure = std::current_exception();
      stop = true;
    }
  }
  if (failure) std::rethrow_exception(failure);
  return !interrupted;
}

log1pnmf::Task task_named(const std::string& name) {
  if (name == "newton") return log1pnmf::Task::newton;
  if (name == "coordinate") return log1pnmf::Task::coordinate;
  if (name == "evaluate") return log1pnmf::Task::evaluate;
  throw std::invalid_argument("unknown task");
}

using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Checks that the parts fit together; what refers to outputs is left to the caller.
HalfStep half_step(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices, const Values& counts,
                   const Vector<double>& row_exposure, const Vector<double>& column_exposure, const log1pnmf::Model& model,
                   const Matrix& start, const Matrix& design) {
  const auto n = static_cast<std::int64_t>(row_exposure.size());
  const auto m = static_cast<std::int64_t>(column_exposure.size());
  const bool single = counts.dtype() == nb::dtype<float>(), wide = counts.dtype() == nb::dtype<double>();
  require(single || wide, "counts must be float32 or float64");
  require(static_cast<std::int64_t>(indptr.size()) == n + 1 && indices.size() == counts.size() &&
              indptr.data()[n] == static_cast<std::int64_t>(indices.size()),
          "compressed rows do not fit together");
  require(static_cast<std::int64_t>(start.shape(0)) == n && static_cast<std::int64_t>(design.shape(0)) == m &&
              start.shape(1) == design.shape(1),
          "start must be rows x K and design columns x K");
  require(!(model.identity && model.exact_zeros), "the identity link has no separate exact form");
  HalfStep h{};
  h.rows = {n, m, indptr.data(), indices.data(),
            single ? static_cast<const float*>(counts.data()) : nullptr,
            wide ? static_cast<const double*>(counts.data()) : nullptr, row_exposure.data(), column_exposure.data()};
  h.model = model;
  h.n_components = static_cast<int>(start.shape(1));
  h.start = start.data();
  h.design = design.data();
  return h;
}

template <class MakePlan>
void run_plan(MakePlan make_plan, std::int64_t n_rows, int n_threads) {
  bool finished;
  {
    nb::gil_scoped_release released;
    const auto plan = make_plan();
    finished = run_rows(*plan, n_rows, usable_threads(n_threads, n_rows));
  }
  if (!finished) throw nb::python_error();
}

void run(const std::string& kernel, const std::string& task, Vector<std::int64_t> indptr, Vector<std::int32_t> indices,
         Values counts, Vector<double> row_exposure, Vector<double> column_exposure, bool identity, bool exact_zeros, bool large, double a1, double a2, Matrix start, Matrix design,
         Vector<double> penalty, double upper, Output<double> values, Output<double> gradient, Output<double> loss,
         Output<double> decrease, Output<std::uint8_t> rejected, int n_threads) {
  HalfStep h = half_step(indptr, indices, counts, row_exposure, column_exposure, {identity, exact_zeros, large, a1, a2}, start, design);
  const auto n = h.rows.n_rows, K = static_cast<std::int64_t>(h.n_components);
  const auto per_entry = static_cast<std::size_t>(n * K), per_row = static_cast<std::size_t>(n);
  require(static_cast<std::int64_t>(penalty.size()) == K, "penalty must have K numbers");
  require(values.size() == per_entry && gradient.size() == per_entry && loss.size() == per_row &&
              decrease.size() == per_row && rejected.size() == per_row,
          "an output has the wrong size");
  h.task = task_named(task);
  h.penalty = penalty.data();
  h.upper = upper;
  h.values = values.data();
  h.gradient = gradient.data();
  h.loss = loss.data();
  h.decrease = decrease.data();
  h.rejected = rejected.data();
  run_plan([&] { return log1pnmf::find_kernel(kernel).plan(h); }, n, n_threads);
}

void add_statistics(const std::string& kernel, Vector<std::int64_t> indptr, Vector<std::int32_t> indices, Values counts,
                    Vector<double> row_exposure, Vector<double> column_exposure, bool identity, bool exact_zeros, bool large, double a1,
                    double a2, Matrix start, Matrix design, Output<double> loss, Output<double> gradient,
                    Output<double> hessian, int n_threads) {
  HalfStep h = half_step(indptr, indices, counts, row_exposure, column_exposure, {identity, exact_zeros, large, a1, a2}, start, design);
  const auto n = static_cast<std::size_t>(h.rows.n_rows), K = static_cast<std::size_t>(h.n_components);
  require(loss.size() == n && gradient.size() == n * K && hessian.size() == n * (K * (K + 1) / 2),
          "an output has the wrong size");
  h.task = log1pnmf::Task::statistics;
  h.loss = loss.data();
  h.gradient = gradient.data();
  h.hessian = hessian.data();
  run_plan([&] { return log1pnmf::find_kernel(kernel).plan(h); }, h.rows.n_rows, n_threads);
}

void solve_programs(const std::string& kernel, Matrix hessian, Matrix gradient, Matrix start, Vector<double> penalty,
                    double upper, Output<double> values, Output<double> decrease, Output<double> curvature, int n_threads) {
  const std::size_t n = start.shape(0), K = start.shape(1);
  require(penalty.size() == K && gradient.shape(0) == n && gradient.shape(1) == K && hessian.shape(0) == n &&
              hessian.shape(1) == K * (K + 1) / 2,
          "the quadratic programs do not fit together");
  require(values.size() == n * K && decrease.size() == n && curvature.size() == n, "an output has the wrong size");
  const log1pnmf::Programs programs{static_cast<std::int64_t>(n), static_cast<int>(K), hessian.data(), gradient.data(),
                                    start.data(), penalty.data(), upper, values.data(), decrease.data(), curvature.data()};
  run_plan([&] { return log1pnmf::find_kernel(kernel).programs(programs); }, programs.n_rows, n_threads);
}

void apply(const std::string& kernel, const std::string& function, Vector<double> x, Output<double> y) {
  require(x.size() == y.size(), "x and y differ in length");
  const auto& table = log1pnmf::find_kernel(kernel);
  require(function == "expm1" || function == "log", "function must be expm1 or log");
  (function == "expm1" ? table.expm1 : table.log)(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
}

int max_threads() {
#ifdef _OPENMP
  return forked ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Compiled half-step of log1pnmf; use log1pnmf.engines.native.";
  m.def("run", &run, "Run one task over all rows, writing into the given outputs.");
  m.def("add_statistics", &add_statistics, "Add loss, gradient and Hessian of all rows to the given outputs.");
  m.def("solve_programs", &solve_programs, "Solve one box-constrained quadratic program per row.");
  m.def("apply", &apply, "A kernel's own expm1 or log, elementwise; for accuracy tests.");
  m.def("runnable_kernels", &log1pnmf::runnable_kernels, "Instruction sets this processor can run, fastest first.");
  m.def("after_fork", [] { forked = true; }, "Use one thread from now on: this process was forked.");
  m.def("max_threads", &max_threads, "Threads OpenMP would use.");
}
