// What Python calls: arrays in, arrays out, threads and Ctrl-C in between. Only this file and
// side.hpp know Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <numeric>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "arrays.hpp"
#include "kernel.hpp"
#include "side.hpp"
#include "threads.hpp"

using log1pnmf::FeaturePass, log1pnmf::HalfStep, log1pnmf::Link, log1pnmf::Noise, log1pnmf::Task;
using log1pnmf::Index, log1pnmf::find_kernel;

namespace {

// A forked child has none of its parent's threads, but the pool, a copy, believes it has, and would
// wait for ever.
std::atomic<bool> forked{false};

constexpr int kMostThreads = 4096;
constexpr double kWorthAThread = 3e5;  // terms of a row's sums: a few tenths of a millisecond

// As many threads as were asked for, rows and work allow.
int usable_threads(int wanted, Index n_rows, double work) {
  if (forked) return 1;
  const auto useful = static_cast<Index>(std::min(work / kWorthAThread, double{kMostThreads}));
  return static_cast<int>(
      std::clamp<Index>(wanted, 1, std::clamp<Index>(useful, 1, std::max<Index>(n_rows, 1))));
}

// Rows are handed out in small groups; nothing depends on who gets which. The caller's thread looks
// for Ctrl-C.
bool run_rows(const log1pnmf::Plan& plan, Index n_rows, int n_threads) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::milliseconds(100);
  // Never destroyed: its threads sleep until the process ends
  static ThreadPool& pool = *new ThreadPool;
  const Index group = n_rows < 64 * n_threads ? 1 : 16;
  std::atomic<Index> next{0};
  std::atomic<bool> stop{false}, interrupted{false};
  std::exception_ptr failure;
  std::mutex failure_lock;

  pool.run(n_threads, [&](bool caller) {
    try {
      auto workspace = plan.workspace();
      auto looked = Clock::now();
      while (!stop.load(std::memory_order_relaxed)) {
        const Index from = next.fetch_add(group);
        if (from >= n_rows) break;
        const Index to = std::min(from + group, n_rows);
        for (Index i = from; i < to && !stop.load(std::memory_order_relaxed); ++i)
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
    } catch (...) {
      std::lock_guard<std::mutex> guard(failure_lock);
      failure = std::current_exception();
      stop = true;
    }
  });
  if (failure) std::rethrow_exception(failure);
  return !interrupted;
}

Task task_named(const std::string& name) {
  if (name == "newton") return Task::newton;
  if (name == "coordinate") return Task::coordinate;
  if (name == "evaluate") return Task::evaluate;
  throw std::invalid_argument("unknown task");
}

// What refers to outputs is left to the caller.
HalfStep half_step(const Side& side, const Matrix& start, const Matrix& design) {
  require(static_cast<Index>(start.shape(0)) == side.rows.n_rows &&
              static_cast<Index>(design.shape(0)) == side.rows.n_columns &&
              start.shape(1) == design.shape(1),
          "start must be rows x K and design columns x K");
  require(!(side.model.link == Link::identity && side.model.exact_zeros &&
            side.model.noise != Noise::negative_binomial),
          "the identity link has no separate exact form");
  HalfStep h{};
  h.rows = side.rows;
  h.zeros = side.zeros;
  h.model = side.model;
  h.n_components = static_cast<int>(start.shape(1));
  h.start = start.data();
  h.design = design.data();
  return h;
}

// An array that Python owns.
template <class T>
using Made = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <class T>
Made<T> made(Index n) {
  T* data = new T[static_cast<std::size_t>(std::max<Index>(n, 1))];
  return Made<T>(data, {static_cast<std::size_t>(n)},
                 nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

// Plans the job and runs it over its rows.
template <class Job>
void run_plan(std::unique_ptr<log1pnmf::Plan> (*make_plan)(const Job&), const Job& job,
              Index n_rows, double work, int n_threads) {
  bool finished;
  {
    nb::gil_scoped_release released;
    const auto plan = make_plan(job);
    const Index runs = (n_rows + plan->rows_together() - 1) / plan->rows_together();
    finished = run_rows(*plan, runs, usable_threads(n_threads, runs, work));
  }
  if (!finished) throw nb::python_error();
}

// Numbers of a bound: one row of them, or one for each row.
log1pnmf::Bounds::Numbers numbers(const Matrix& given, Index n, Index K) {
  const auto rows = static_cast<Index>(given.shape(0));
  require(static_cast<Index>(given.shape(1)) == K && (rows == 1 || rows == n),
          "a bound has the wrong shape");
  return {given.data(), rows == n ? K : 0};
}

void want_batch_sums(const Side& side, const Output<double>& sums, HalfStep& h) {
  require(side.rows.batches.column_batch != nullptr &&
              side.model.noise != Noise::negative_binomial && side.model.link != Link::identity,
          "means are summed up over batches of columns, with Poisson noise and not with the "
          "identity link");
  require(sums.size() == static_cast<std::size_t>(side.rows.n_rows) *
                             static_cast<std::size_t>(side.rows.batches.count),
          "an output has the wrong size");
  h.batch_sums = sums.data();
}

void run(const std::string& kernel, const std::string& task, const Side& side, Matrix start,
         Matrix design, Matrix lower, Matrix upper, Matrix penalty, Output<double> values,
         Output<double> gradient, Output<double> loss, Output<double> decrease,
         Output<std::uint8_t> rejected, Output<double> batch_sums, bool with_loss, int n_threads) {
  HalfStep h = half_step(side, start, design);
  const auto n = h.rows.n_rows, K = static_cast<Index>(h.n_components);
  const auto per_entry = static_cast<std::size_t>(n * K), per_row = static_cast<std::size_t>(n);
  require(values.size() == per_entry && gradient.size() == per_entry && loss.size() == per_row &&
              decrease.size() == per_row && rejected.size() == per_row,
          "an output has the wrong size");
  h.task = task_named(task);
  h.with_loss = with_loss;
  if (h.task == Task::coordinate) {
    require(h.model.noise == Noise::poisson && !h.rows.batches.any(),
            "coordinate descent has no negative binomial noise and no batches");
    require(h.model.exact_zeros ||
                (h.zeros.row_quadratic != nullptr && h.zeros.stored.indptr == nullptr),
            "coordinate descent has one quadratic for a row and no stored zeros");
  }
  h.bounds = {numbers(lower, n, K), numbers(upper, n, K), numbers(penalty, n, K)};
  h.values = values.data();
  h.gradient = gradient.data();
  h.loss = loss.data();
  h.decrease = decrease.data();
  h.rejected = rejected.data();
  if (batch_sums.size() > 0) want_batch_sums(side, batch_sums, h);  // empty: not wanted
  h.n_threads = usable_threads(n_threads, n, side.work(start.shape(1)));
  run_plan(find_kernel(kernel).plan, h, n, side.work(start.shape(1)), n_threads);
}

void add_statistics(const std::string& kernel, const Side& side, Matrix start, Matrix design,
                    Output<double> loss, Output<double> gradient, Output<double> hessian,
                    int n_threads) {
  HalfStep h = half_step(side, start, design);
  const auto n = static_cast<std::size_t>(h.rows.n_rows),
             K = static_cast<std::size_t>(h.n_components);
  require(loss.size() == n && gradient.size() == n * K && hessian.size() == n * (K * (K + 1) / 2),
          "an output has the wrong size");
  h.task = Task::statistics;
  h.loss = loss.data();
  h.gradient = gradient.data();
  h.hessian = hessian.data();
  run_plan(find_kernel(kernel).plan, h, h.rows.n_rows, side.work(K), n_threads);
}

void solve_programs(const std::string& kernel, Matrix hessian, Matrix gradient, Matrix start,
                    Matrix lower, Matrix upper, Matrix penalty, Output<double> values,
                    Output<double> decrease, Output<double> curvature, int n_threads) {
  const std::size_t n = start.shape(0), K = start.shape(1);
  require(gradient.shape(0) == n && gradient.shape(1) == K && hessian.shape(0) == n &&
              hessian.shape(1) == K * (K + 1) / 2,
          "the quadratic programs do not fit together");
  require(values.size() == n * K && decrease.size() == n && curvature.size() == n,
          "an output has the wrong size");
  const log1pnmf::Programs programs{
      static_cast<Index>(n), static_cast<int>(K),
      hessian.data(),        gradient.data(),
      start.data(),          {numbers(lower, n, K), numbers(upper, n, K), numbers(penalty, n, K)},
      values.data(),         decrease.data(),
      curvature.data()};
  run_plan(find_kernel(kernel).programs, programs, programs.n_rows, static_cast<double>(n * K * K),
           n_threads);
}

// Coefficients of the quadratic that approximates the zeros of a feature.
std::size_t polynomial_width(const Side& side) {
  return side.rows.row_dispersion != nullptr ? 5 : 3;
}

FeaturePass feature_pass(const Side& side, const Matrix& start, const Matrix& design) {
  const HalfStep h = half_step(side, start, design);
  return {h.rows, h.model.link, h.n_components, h.start, h.design};
}

FeaturePass zeros_pass(const Side& side, const Matrix& start, const Matrix& design) {
  const bool dispersed = side.model.noise == Noise::negative_binomial;
  require(side.model.link == Link::shifted_log || dispersed,
          "the identity link has no zeros to survey");
  require(
      (!dispersed || side.rows.row_dispersion != nullptr) && side.rows.batches.row_batch == nullptr,
      "zeros are surveyed on the factors' side");
  return feature_pass(side, start, design);
}

void survey_zeros(const std::string& kernel, const Side& side, Matrix start, Matrix design,
                  Index stride, bool convex, Vector<double> thresholds, Output<double> error,
                  Output<double> n_above, Output<double> quadratic, int n_threads) {
  const FeaturePass pass = zeros_pass(side, start, design);
  require(stride >= 1, "stride must be at least 1");
  const std::size_t cells = start.shape(0) * thresholds.size();
  require(error.size() == cells && n_above.size() == cells &&
              quadratic.size() == polynomial_width(side) * cells,
          "an output has the wrong size");
  const log1pnmf::ZeroSurvey survey{pass,
                                    stride,
                                    convex,
                                    static_cast<int>(thresholds.size()),
                                    thresholds.data(),
                                    error.data(),
                                    n_above.data(),
                                    quadratic.data()};
  run_plan(find_kernel(kernel).zero_survey, survey, side.rows.n_rows,
           side.dense_work(start.shape(1)), n_threads);
}

// Where the zeros of every row begin, and which they are.
std::pair<Made<Index>, Made<std::int32_t>> collect_zeros(const std::string& kernel,
                                                         const Side& side, Matrix start,
                                                         Matrix design, Vector<double> thresholds,
                                                         Output<double> exposure, int n_threads) {
  const FeaturePass pass = zeros_pass(side, start, design);
  const Index n = side.rows.n_rows;
  require(
      static_cast<Index>(thresholds.size()) == n && static_cast<Index>(exposure.size()) == 2 * n,
      "an output has the wrong size");
  std::vector<std::vector<std::int32_t>> found(static_cast<std::size_t>(n));
  const log1pnmf::ZeroCollection collection{pass, thresholds.data(), found.data(), exposure.data()};
  run_plan(find_kernel(kernel).zero_collection, collection, n, side.dense_work(start.shape(1)),
           n_threads);
  auto indptr = made<Index>(n + 1);
  indptr.data()[0] = 0;
  for (Index j = 0; j < n; ++j)
    indptr.data()[j + 1] = indptr.data()[j] + static_cast<Index>(found[j].size());
  auto indices = made<std::int32_t>(indptr.data()[n]);
  for (Index j = 0; j < n; ++j) {
    std::copy(found[j].begin(), found[j].end(), indices.data() + indptr.data()[j]);
    std::vector<std::int32_t>().swap(found[j]);  // no second copy of all
  }
  return {indptr, indices};
}

void zero_errors(const std::string& kernel, const Side& side, Matrix start, Matrix design,
                 Index stride, Matrix quadratic, Output<double> signed_error,
                 Output<double> absolute_error, int n_threads) {
  const FeaturePass pass = zeros_pass(side, start, design);
  require(stride >= 1, "stride must be at least 1");
  const auto n = static_cast<std::size_t>(side.rows.n_rows);
  require(quadratic.shape(0) == n && quadratic.shape(1) == polynomial_width(side) &&
              signed_error.size() == n && absolute_error.size() == n,
          "an output has the wrong size");
  const log1pnmf::ZeroErrors errors{pass,
                                    stride,
                                    side.zeros.stored,
                                    quadratic.data(),
                                    signed_error.data(),
                                    absolute_error.data()};
  run_plan(find_kernel(kernel).zero_errors, errors, side.rows.n_rows,
           side.dense_work(start.shape(1)), n_threads);
}

void add_spectrum(const std::string& kernel, const Side& side, Matrix start, Matrix design,
                  Vector<double> low, int n_bins, Output<double> entries, Output<double> counted,
                  int n_threads) {
  const FeaturePass pass = feature_pass(side, start, design);
  const auto n = static_cast<std::size_t>(side.rows.n_rows);
  require(n_bins > 0 && low.size() == n, "there must be bins, and a lower end for every row");
  const std::size_t cells = n * static_cast<std::size_t>(n_bins) * 8;
  require(entries.size() == cells && counted.size() == cells, "an output has the wrong size");
  const log1pnmf::Spectrum spectrum{pass, low.data(), n_bins, entries.data(), counted.data()};
  run_plan(find_kernel(kernel).spectrum, spectrum, side.rows.n_rows,
           side.dense_work(start.shape(1)), n_threads);
}

void mean_sums(const std::string& kernel, const Side& side, Matrix start, Matrix design,
               Output<double> sums, int n_threads) {
  HalfStep h = half_step(side, start, design);
  h.task = Task::means;
  want_batch_sums(side, sums, h);
  run_plan(find_kernel(kernel).plan, h, h.rows.n_rows, side.work(start.shape(1)), n_threads);
}

using Some = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

log1pnmf::RawRows raw_rows(const Vector<Index>& indptr, std::size_t n_indices, std::size_t n_values,
                           Index n_columns) {
  require(indptr.size() > 0 && n_indices == n_values, "compressed rows do not fit together");
  const auto n = static_cast<Index>(indptr.size()) - 1;
  require(std::max(n, n_columns) <= std::numeric_limits<std::int32_t>::max(),
          "there are too many rows or columns");
  return {n, n_columns, static_cast<Index>(n_values), indptr.data()};
}

// Calls with the data as that of these types which they have.
template <class T, class... Others, class Use>
bool with_type(const Some& array, const Use& use) {
  if (array.dtype() == nb::dtype<T>()) return use(static_cast<const T*>(array.data()));
  if constexpr (sizeof...(Others) > 0) return with_type<Others...>(array, use);
  throw std::invalid_argument("an array has a type that is not known");
}

bool take_canonical(Vector<Index> indptr, Some indices, Some values, Index n_columns, bool whole,
                    Maybe<Output<std::int32_t>> out_indices, Maybe<Output<float>> out_values) {
  const auto rows = raw_rows(indptr, indices.size(), values.size(), n_columns);
  require((!out_indices || out_indices->size() == indices.size()) &&
              (!out_values || out_values->size() == values.size()),
          "an output has the wrong size");
  if (!log1pnmf::is_sound(rows)) return false;
  return with_type<std::int32_t, Index>(indices, [&](auto* columns) {
    return with_type<float, double, std::int32_t, Index, std::uint8_t, std::uint16_t,
                     std::uint32_t>(values, [&](auto* counts) {
      nb::gil_scoped_release released;
      return log1pnmf::take_canonical(rows, columns, counts, whole, data_or_null(out_indices),
                                      data_or_null(out_values));
    });
  });
}

void transpose(Vector<Index> indptr, Vector<std::int32_t> indices, Some values, Index n_columns,
               Output<Index> out_indptr, Output<std::int32_t> out_rows,
               nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu> out_values) {
  const auto rows = raw_rows(indptr, indices.size(), values.size(), n_columns);
  require(log1pnmf::is_sound(rows), "compressed rows do not fit together");
  require(static_cast<Index>(out_indptr.size()) == n_columns + 1 &&
              out_rows.size() == indices.size() && out_values.size() == values.size() &&
              out_values.dtype() == values.dtype(),
          "an output has the wrong size");
  const auto run = [&]<class T>(T*) {
    nb::gil_scoped_release released;
    return log1pnmf::transpose(rows, indices.data(), static_cast<const T*>(values.data()),
                               out_indptr.data(), out_rows.data(),
                               static_cast<T*>(out_values.data()));
  };
  const int bits = values.dtype().bits;
  require(bits == 8 || bits == 32 || bits == 64, "an array has a type that is not known");
  const bool done = bits == 8    ? run(static_cast<std::uint8_t*>(nullptr))
                    : bits == 32 ? run(static_cast<std::uint32_t*>(nullptr))
                                 : run(static_cast<std::uint64_t*>(nullptr));
  require(done, "columns must rise within every row");
}

// KKT residual of a side, not divided by the total. Rows that are not counted are left out; empty:
// all are.
double side_residual(Matrix values, Matrix gradient, Vector<std::uint8_t> counted, Matrix lower,
                     Matrix upper, Matrix penalty) {
  const auto n = static_cast<Index>(values.shape(0)), K = static_cast<Index>(values.shape(1));
  require(gradient.shape(0) == values.shape(0) && gradient.shape(1) == values.shape(1),
          "gradient has the wrong shape");
  require(counted.size() == 0 || counted.size() == values.shape(0), "counted has the wrong size");
  const log1pnmf::Bounds bounds{numbers(lower, n, K), numbers(upper, n, K), numbers(penalty, n, K)};
  std::vector<double> sizes(static_cast<std::size_t>(K)), slopes(sizes);
  nb::gil_scoped_release released;
  const std::uint8_t* some = counted.size() == 0 ? nullptr : counted.data();
  log1pnmf::residual_sums({n, K, values.data(), gradient.data(), some, bounds}, sizes.data(),
                          slopes.data());
  return std::inner_product(sizes.begin(), sizes.end(), slopes.begin(), 0.0) /
         std::max<double>(1.0, static_cast<double>(n));
}

void extrapolate(Matrix to, Matrix since, double by, double least, Output<double> out) {
  require(to.shape(0) == since.shape(0) && to.shape(1) == since.shape(1) && out.size() == to.size(),
          "points differ in shape");
  nb::gil_scoped_release released;
  log1pnmf::extrapolate(static_cast<Index>(to.size()), to.data(), since.data(), by, least,
                        out.data());
}

void apply(const std::string& kernel, const std::string& function, Vector<double> x,
           Output<double> y) {
  require(x.size() == y.size(), "x and y differ in length");
  const auto& table = find_kernel(kernel);
  require(function == "expm1" || function == "log", "function must be expm1 or log");
  (function == "expm1" ? table.expm1 : table.log)(x.data(), y.data(), static_cast<Index>(x.size()));
}

int max_threads() {
#ifdef _OPENMP
  return forked ? 1 : omp_get_max_threads();
#else
  return forked ? 1 : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Compiled half-step of log1pnmf; use log1pnmf.engines.native.";
  nb::class_<Side>(m, "Side", "Counts, exposure and zeros of one side of a problem.")
      .def(nb::init<Vector<Index>, Vector<std::int32_t>, Values, Vector<double>, Index,
                    Maybe<Vector<double>>, const std::string&, const std::string&,
                    Maybe<Vector<double>>, Maybe<Vector<double>>>(),
           nb::arg("indptr"), nb::arg("indices"), nb::arg("counts"), nb::arg("row_exposure"),
           nb::arg("n_columns"), nb::arg("column_exposure").none(), nb::arg("link"),
           nb::arg("noise"), nb::arg("row_dispersion").none(), nb::arg("column_dispersion").none())
      .def("set_batches", &Side::set_batches, nb::arg("row_batch").none(),
           nb::arg("column_batch").none(), nb::arg("effects"))
      .def("set_zeros", &Side::set_zeros, nb::arg("stored_indptr").none(),
           nb::arg("stored_indices").none(), nb::arg("row_quadratic").none(),
           nb::arg("column_quadratic").none(), nb::arg("row_linear"), nb::arg("row_quadratics"),
           nb::arg("column_linear"), nb::arg("column_quadratics"));
  m.def("survey_zeros", &survey_zeros,
        "Fit quadratics to the zeros of every row for several thresholds.");
  m.def("collect_zeros", &collect_zeros,
        "List the zeros of every row above its threshold, and sum the exposure of the others.");
  m.def("zero_errors", &zero_errors, "Sum over every row how far its quadratic is off.");
  m.def("mean_sums", &mean_sums, "Sum the means of every row over the columns of each batch.");
  m.def("side_residual", &side_residual, "KKT residual of a side, not divided by the total.");
  m.def("extrapolate", &extrapolate, "Go beyond points, away from where they were.");
  m.def("add_spectrum", &add_spectrum,
        "Condense the means of every row, adding to the given outputs.");
  m.def("run", &run, "Run one task over all rows, writing into the given outputs.");
  m.def("add_statistics", &add_statistics,
        "Add loss, gradient and Hessian of all rows to the given outputs.");
  m.def("solve_programs", &solve_programs, "Solve one box-constrained quadratic program per row.");
  m.def("take_canonical", &take_canonical, nb::arg("indptr"), nb::arg("indices"), nb::arg("values"),
        nb::arg("n_columns"), nb::arg("whole"), nb::arg("out_indices").none(),
        nb::arg("out_values").none(),
        "Whether rows need no mending; then they are given in the kernels' types.");
  m.def("transpose", &transpose, "Sort compressed rows by columns.");
  m.def("apply", &apply, "A kernel's own expm1 or log, elementwise; for accuracy tests.");
  m.def("runnable_kernels", &log1pnmf::runnable_kernels,
        "Instruction sets this processor can run, fastest first.");
  m.def(
      "after_fork", [] { forked = true; }, "Use one thread from now on: this process was forked.");
  m.def("max_threads", &max_threads, "Threads there may be; OpenMP is asked.");
}
