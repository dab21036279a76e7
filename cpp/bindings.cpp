// The only file that knows Python: arrays in, arrays out, threads and Ctrl-C in between.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
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

log1pnmf::Link link_named(const std::string& name) {
  if (name == "shifted_log") return log1pnmf::Link::shifted_log;
  if (name == "identity") return log1pnmf::Link::identity;
  throw std::invalid_argument("unknown link");
}

log1pnmf::Noise noise_named(const std::string& name) {
  if (name == "poisson") return log1pnmf::Noise::poisson;
  if (name == "large_poisson") return log1pnmf::Noise::large_poisson;
  if (name == "negative binomial") return log1pnmf::Noise::negative_binomial;
  throw std::invalid_argument("unknown noise");
}

using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Maybe = std::optional<T>;

template <class Array>
auto data_or_null(const Maybe<Array>& array) { return array ? array->data() : nullptr; }

// Counts, exposure and zeros of one side of a problem; the arrays are kept alive and shared by all half-steps.
class Side {
 public:
  Side(Vector<std::int64_t> indptr, Vector<std::int32_t> indices, Values counts, Vector<double> row_exposure,
       std::int64_t n_columns, Maybe<Vector<double>> column_exposure, const std::string& link, const std::string& noise,
       Maybe<Vector<double>> row_dispersion, Maybe<Vector<double>> column_dispersion)
      : indptr_(indptr), indices_(indices), counts_(counts), row_exposure_(row_exposure), column_exposure_(column_exposure),
        row_dispersion_(row_dispersion), column_dispersion_(column_dispersion) {
    const auto n = static_cast<std::int64_t>(row_exposure.size());
    const bool single = counts.dtype() == nb::dtype<float>(), wide = counts.dtype() == nb::dtype<double>();
    require(single || wide, "counts must be float32 or float64");
    require(static_cast<std::int64_t>(indptr.size()) == n + 1 && indices.size() == counts.size() &&
                indptr.data()[n] == static_cast<std::int64_t>(indices.size()),
            "compressed rows do not fit together");
    require(!column_exposure || static_cast<std::int64_t>(column_exposure->size()) == n_columns,
            "column_exposure must have one number for every column");
    rows = {n, n_columns, indptr.data(), indices.data(),
            single ? static_cast<const float*>(counts.data()) : nullptr,
            wide ? static_cast<const double*>(counts.data()) : nullptr, row_exposure.data(), data_or_null(column_exposure),
            data_or_null(row_dispersion), data_or_null(column_dispersion), {}};
    model = {link_named(link), noise_named(noise), true};
    const bool dispersed = model.noise == log1pnmf::Noise::negative_binomial;
    require(row_dispersion.has_value() + column_dispersion.has_value() == dispersed,
            "dispersions belong to negative binomial noise, and to rows or to columns");
    require(!row_dispersion || static_cast<std::int64_t>(row_dispersion->size()) == n, "row_dispersion must have one number a row");
    require(!column_dispersion || static_cast<std::int64_t>(column_dispersion->size()) == n_columns,
            "column_dispersion must have one number a column");
  }

  // Batches of rows, with effects of batches x columns; or of columns, with effects of rows x batches.
  void set_batches(Maybe<Vector<std::int32_t>> row_batch, Maybe<Vector<std::int32_t>> column_batch, Matrix effects) {
    const auto n = static_cast<std::size_t>(rows.n_rows), m = static_cast<std::size_t>(rows.n_columns);
    require(row_batch.has_value() != column_batch.has_value(), "batches are of rows or of columns");
    require(!row_batch || (row_batch->size() == n && effects.shape(1) == m && rows.column_exposure == nullptr),
            "batches of rows need a label for every row, effects of batches x columns, and no exposure of columns");
    require(!column_batch || (column_batch->size() == m && effects.shape(0) == n),
            "batches of columns need a label for every column, and effects of rows x batches");
    require(zeros.rank == 0, "batches are set before zeros");
    const auto& labels = row_batch ? *row_batch : *column_batch;
    const auto count = static_cast<std::int32_t>(effects.shape(row_batch ? 0 : 1));
    require(std::all_of(labels.data(), labels.data() + labels.size(), [&](std::int32_t b) { return b >= 0 && b < count; }),
            "a label is not that of a batch");
    row_batch_ = row_batch, column_batch_ = column_batch, effects_ = effects;
    rows.batches = {count, data_or_null(row_batch), data_or_null(column_batch), effects.data()};
  }

  // Leave the exact form for quadratics, and zeros that are visited.
  void set_zeros(Maybe<Vector<std::int64_t>> stored_indptr, Maybe<Vector<std::int32_t>> stored_indices,
                 Maybe<Matrix> row_quadratic, Maybe<Matrix> column_quadratic, Matrix row_linear, Matrix row_quadratics,
                 Matrix column_linear, Matrix column_quadratics) {
    const auto n = static_cast<std::size_t>(rows.n_rows), m = static_cast<std::size_t>(rows.n_columns);
    const log1pnmf::Batches& batches = rows.batches;
    const std::size_t of_rows = row_linear.shape(1), of_columns = column_linear.shape(0);
    const std::size_t rank = batches.column_batch != nullptr ? of_columns : of_rows;
    const std::size_t width = model.noise == log1pnmf::Noise::negative_binomial ? 3 : 2;
    require(of_rows == rank * (batches.column_batch != nullptr ? batches.count : 1) &&
                of_columns == rank * (batches.row_batch != nullptr ? batches.count : 1) && rank > 0,
            "the terms of the zeros do not fit the batches");
    require(row_linear.shape(0) == n && row_quadratics.shape(0) == n && row_quadratics.shape(1) == of_rows &&
                column_quadratics.shape(0) == of_columns && column_linear.shape(1) == m && column_quadratics.shape(1) == m,
            "the terms of the zeros must be rows x rank and rank x columns");
    require(row_quadratic.has_value() != column_quadratic.has_value(), "quadratics belong to rows or to columns");
    require(!row_quadratic || (row_quadratic->shape(0) == n && row_quadratic->shape(1) == width),
            "quadratics of rows must be rows x 2, or x 3 with dispersions");
    require(!column_quadratic || (column_quadratic->shape(0) == m && column_quadratic->shape(1) == width),
            "quadratics of columns must be columns x 2, or x 3 with dispersions");
    require(stored_indptr.has_value() == stored_indices.has_value() &&
                (!stored_indptr || (stored_indptr->size() == n + 1 &&
                                    stored_indptr->data()[n] == static_cast<std::int64_t>(stored_indices->size()))),
            "the stored zeros do not fit together");
    stored_indptr_ = stored_indptr, stored_indices_ = stored_indices;
    row_quadratic_ = row_quadratic, column_quadratic_ = column_quadratic;
    terms_ = {row_linear, row_quadratics, column_linear, column_quadratics};
    zeros = {{data_or_null(stored_indptr), data_or_null(stored_indices)}, data_or_null(row_quadratic),
             data_or_null(column_quadratic), static_cast<int>(rank), row_linear.data(), row_quadratics.data(),
             column_linear.data(), column_quadratics.data()};
    model.exact_zeros = false;
  }

  log1pnmf::Rows rows{};
  log1pnmf::Zeros zeros{};
  log1pnmf::Model model{};

 private:
  Vector<std::int64_t> indptr_;
  Vector<std::int32_t> indices_;
  Values counts_;
  Vector<double> row_exposure_;
  Maybe<Vector<double>> column_exposure_, row_dispersion_, column_dispersion_;
  Maybe<Vector<std::int32_t>> row_batch_, column_batch_;
  Maybe<Matrix> effects_;
  Maybe<Vector<std::int64_t>> stored_indptr_;
  Maybe<Vector<std::int32_t>> stored_indices_;
  Maybe<Matrix> row_quadratic_, column_quadratic_;
  std::vector<Matrix> terms_;
};

// What refers to outputs is left to the caller.
HalfStep half_step(const Side& side, const Matrix& start, const Matrix& design) {
  require(static_cast<std::int64_t>(start.shape(0)) == side.rows.n_rows &&
              static_cast<std::int64_t>(design.shape(0)) == side.rows.n_columns && start.shape(1) == design.shape(1),
          "start must be rows x K and design columns x K");
  require(!(side.model.link == log1pnmf::Link::identity && side.model.exact_zeros &&
            side.model.noise != log1pnmf::Noise::negative_binomial),
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

// Numbers of a bound: one row of them, or one for each row.
log1pnmf::Bounds::Numbers numbers(const Matrix& given, std::int64_t n, std::int64_t K) {
  const auto rows = static_cast<std::int64_t>(given.shape(0));
  require(static_cast<std::int64_t>(given.shape(1)) == K && (rows == 1 || rows == n), "a bound has the wrong shape");
  return {given.data(), rows == n ? K : 0};
}

void run(const std::string& kernel, const std::string& task, const Side& side, Matrix start, Matrix design,
         Matrix lower, Matrix upper, Matrix penalty, Output<double> values, Output<double> gradient, Output<double> loss,
         Output<double> decrease, Output<std::uint8_t> rejected, int n_threads) {
  HalfStep h = half_step(side, start, design);
  const auto n = h.rows.n_rows, K = static_cast<std::int64_t>(h.n_components);
  const auto per_entry = static_cast<std::size_t>(n * K), per_row = static_cast<std::size_t>(n);
  require(values.size() == per_entry && gradient.size() == per_entry && loss.size() == per_row &&
              decrease.size() == per_row && rejected.size() == per_row,
          "an output has the wrong size");
  h.task = task_named(task);
  require(h.task != log1pnmf::Task::coordinate || h.model.noise != log1pnmf::Noise::negative_binomial,
          "coordinate descent has no negative binomial noise");
  require(h.task != log1pnmf::Task::coordinate || !h.rows.batches.any(), "coordinate descent has no batches");
  require(h.task != log1pnmf::Task::coordinate || h.model.exact_zeros ||
              (h.zeros.row_quadratic != nullptr && h.zeros.stored.indptr == nullptr),
          "coordinate descent has one quadratic for a row and no stored zeros");
  h.bounds = {numbers(lower, n, K), numbers(upper, n, K), numbers(penalty, n, K)};
  h.values = values.data();
  h.gradient = gradient.data();
  h.loss = loss.data();
  h.decrease = decrease.data();
  h.rejected = rejected.data();
  run_plan([&] { return log1pnmf::find_kernel(kernel).plan(h); }, n, n_threads);
}

void add_statistics(const std::string& kernel, const Side& side, Matrix start, Matrix design, Output<double> loss,
                    Output<double> gradient, Output<double> hessian, int n_threads) {
  HalfStep h = half_step(side, start, design);
  const auto n = static_cast<std::size_t>(h.rows.n_rows), K = static_cast<std::size_t>(h.n_components);
  require(loss.size() == n && gradient.size() == n * K && hessian.size() == n * (K * (K + 1) / 2),
          "an output has the wrong size");
  h.task = log1pnmf::Task::statistics;
  h.loss = loss.data();
  h.gradient = gradient.data();
  h.hessian = hessian.data();
  run_plan([&] { return log1pnmf::find_kernel(kernel).plan(h); }, h.rows.n_rows, n_threads);
}

void solve_programs(const std::string& kernel, Matrix hessian, Matrix gradient, Matrix start, Matrix lower,
                    Matrix upper, Matrix penalty, Output<double> values, Output<double> decrease, Output<double> curvature, int n_threads) {
  const std::size_t n = start.shape(0), K = start.shape(1);
  require(gradient.shape(0) == n && gradient.shape(1) == K && hessian.shape(0) == n &&
              hessian.shape(1) == K * (K + 1) / 2,
          "the quadratic programs do not fit together");
  require(values.size() == n * K && decrease.size() == n && curvature.size() == n, "an output has the wrong size");
  const log1pnmf::Programs programs{static_cast<std::int64_t>(n), static_cast<int>(K), hessian.data(), gradient.data(),
                                    start.data(), {numbers(lower, n, K), numbers(upper, n, K), numbers(penalty, n, K)},
                                    values.data(), decrease.data(), curvature.data()};
  run_plan([&] { return log1pnmf::find_kernel(kernel).programs(programs); }, programs.n_rows, n_threads);
}

// Coefficients of what stands in for the zeros of a feature.
std::size_t polynomial_width(const Side& side) { return side.rows.row_dispersion != nullptr ? 5 : 3; }

void check_zeros(const Side& side, const Matrix& start, const Matrix& design) {
  half_step(side, start, design);
  const bool dispersed = side.model.noise == log1pnmf::Noise::negative_binomial;
  require(side.model.link == log1pnmf::Link::shifted_log || dispersed, "the identity link has no zeros to survey");
  require((!dispersed || side.rows.row_dispersion != nullptr) && side.rows.batches.row_batch == nullptr,
          "zeros are surveyed on the factors' side");
}

void survey_zeros(const std::string& kernel, const Side& side, Matrix start, Matrix design, std::int64_t stride,
                  Vector<double> caps,
                  Output<double> error, Output<double> n_above, Output<double> quadratic, int n_threads) {
  check_zeros(side, start, design);
  require(stride >= 1, "stride must be at least 1");
  const std::size_t cells = start.shape(0) * caps.size();
  require(error.size() == cells && n_above.size() == cells && quadratic.size() == polynomial_width(side) * cells,
          "an output has the wrong size");
  const log1pnmf::ZeroSurvey survey{side.rows, side.model.link, static_cast<int>(start.shape(1)), start.data(), design.data(), stride,
                                    static_cast<int>(caps.size()), caps.data(), error.data(), n_above.data(),
                                    quadratic.data()};
  run_plan([&] { return log1pnmf::find_kernel(kernel).zero_survey(survey); }, side.rows.n_rows, n_threads);
}

void count_zeros(const std::string& kernel, const Side& side, Matrix start, Matrix design, Vector<double> caps,
                 Output<std::int64_t> n_above, Output<double> exposure, int n_threads) {
  check_zeros(side, start, design);
  const auto n = static_cast<std::size_t>(side.rows.n_rows);
  require(caps.size() == n && n_above.size() == n && exposure.size() == 2 * n, "an output has the wrong size");
  const log1pnmf::ZeroCollection collection{side.rows, side.model.link, static_cast<int>(start.shape(1)), start.data(), design.data(),
                                            caps.data(), n_above.data(), exposure.data(), nullptr, nullptr};
  run_plan([&] { return log1pnmf::find_kernel(kernel).zero_collection(collection); }, side.rows.n_rows, n_threads);
}

void collect_zeros(const std::string& kernel, const Side& side, Matrix start, Matrix design, Vector<double> caps,
                   Vector<std::int64_t> indptr, Output<std::int32_t> indices, int n_threads) {
  check_zeros(side, start, design);
  const auto n = static_cast<std::size_t>(side.rows.n_rows);
  require(caps.size() == n && indptr.size() == n + 1 &&
              indptr.data()[n] == static_cast<std::int64_t>(indices.size()),
          "the stored zeros do not fit together");
  const log1pnmf::ZeroCollection collection{side.rows, side.model.link, static_cast<int>(start.shape(1)), start.data(), design.data(),
                                            caps.data(), nullptr, nullptr, indptr.data(), indices.data()};
  run_plan([&] { return log1pnmf::find_kernel(kernel).zero_collection(collection); }, side.rows.n_rows, n_threads);
}

void zero_errors(const std::string& kernel, const Side& side, Matrix start, Matrix design, Matrix quadratic,
                 Output<double> signed_error, Output<double> absolute_error, int n_threads) {
  check_zeros(side, start, design);
  const auto n = static_cast<std::size_t>(side.rows.n_rows);
  require(quadratic.shape(0) == n && quadratic.shape(1) == polynomial_width(side) && signed_error.size() == n && absolute_error.size() == n,
          "an output has the wrong size");
  const log1pnmf::ZeroErrors errors{side.rows, side.model.link, static_cast<int>(start.shape(1)), start.data(), design.data(),
                                    side.zeros.stored, quadratic.data(), signed_error.data(), absolute_error.data()};
  run_plan([&] { return log1pnmf::find_kernel(kernel).zero_errors(errors); }, side.rows.n_rows, n_threads);
}

void add_spectrum(const std::string& kernel, const Side& side, Matrix start, Matrix design, Vector<double> low, int n_bins,
                  Output<double> entries, Output<double> counted, int n_threads) {
  half_step(side, start, design);
  const auto n = static_cast<std::size_t>(side.rows.n_rows);
  require(n_bins > 0 && low.size() == n, "there must be bins, and a lower end for every row");
  const std::size_t cells = n * static_cast<std::size_t>(n_bins) * 8;
  require(entries.size() == cells && counted.size() == cells, "an output has the wrong size");
  const log1pnmf::Spectrum spectrum{side.rows, side.model.link, static_cast<int>(start.shape(1)), start.data(), design.data(),
                                    low.data(), n_bins, entries.data(), counted.data()};
  run_plan([&] { return log1pnmf::find_kernel(kernel).spectrum(spectrum); }, side.rows.n_rows, n_threads);
}

void mean_sums(const std::string& kernel, const Side& side, Matrix start, Matrix design, Output<double> sums, int n_threads) {
  half_step(side, start, design);
  require(side.rows.batches.column_batch != nullptr && side.model.noise != log1pnmf::Noise::negative_binomial,
          "means are summed up over batches of columns, with Poisson noise");
  require(sums.size() == static_cast<std::size_t>(side.rows.n_rows) * static_cast<std::size_t>(side.rows.batches.count),
          "an output has the wrong size");
  const log1pnmf::MeanSums all{side.rows,    side.zeros,    side.model, static_cast<int>(start.shape(1)),
                               start.data(), design.data(), sums.data()};
  run_plan([&] { return log1pnmf::find_kernel(kernel).mean_sums(all); }, side.rows.n_rows, n_threads);
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
  nb::class_<Side>(m, "Side", "Counts, exposure and zeros of one side of a problem.")
      .def(nb::init<Vector<std::int64_t>, Vector<std::int32_t>, Values, Vector<double>, std::int64_t, Maybe<Vector<double>>,
                    const std::string&, const std::string&, Maybe<Vector<double>>, Maybe<Vector<double>>>(),
           nb::arg("indptr"), nb::arg("indices"), nb::arg("counts"), nb::arg("row_exposure"), nb::arg("n_columns"),
           nb::arg("column_exposure").none(), nb::arg("link"), nb::arg("noise"), nb::arg("row_dispersion").none(),
           nb::arg("column_dispersion").none())
      .def("set_batches", &Side::set_batches, nb::arg("row_batch").none(), nb::arg("column_batch").none(), nb::arg("effects"))
      .def("set_zeros", &Side::set_zeros, nb::arg("stored_indptr").none(), nb::arg("stored_indices").none(),
           nb::arg("row_quadratic").none(), nb::arg("column_quadratic").none(), nb::arg("row_linear"),
           nb::arg("row_quadratics"), nb::arg("column_linear"), nb::arg("column_quadratics"));
  m.def("survey_zeros", &survey_zeros, "Fit quadratics to the zeros of every row for several caps.");
  m.def("count_zeros", &count_zeros, "Count the zeros of every row above its cap, and sum the exposure of the others.");
  m.def("collect_zeros", &collect_zeros, "List the zeros of every row above its cap.");
  m.def("zero_errors", &zero_errors, "Sum over every row how far its quadratic is off.");
  m.def("mean_sums", &mean_sums, "Sum the means of every row over the columns of each batch.");
  m.def("add_spectrum", &add_spectrum, "Condense the means of every row, adding to the given outputs.");
  m.def("run", &run, "Run one task over all rows, writing into the given outputs.");
  m.def("add_statistics", &add_statistics, "Add loss, gradient and Hessian of all rows to the given outputs.");
  m.def("solve_programs", &solve_programs, "Solve one box-constrained quadratic program per row.");
  m.def("apply", &apply, "A kernel's own expm1 or log, elementwise; for accuracy tests.");
  m.def("runnable_kernels", &log1pnmf::runnable_kernels, "Instruction sets this processor can run, fastest first.");
  m.def("after_fork", [] { forked = true; }, "Use one thread from now on: this process was forked.");
  m.def("max_threads", &max_threads, "Threads OpenMP would use.");
}
