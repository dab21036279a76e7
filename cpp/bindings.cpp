// What Python calls: arrays in, arrays out, threads and Ctrl-C in between. The only file that uses
// Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "arrays.hpp"
#include "kernel.hpp"
#include "threads.hpp"

namespace nb = nanobind;
using namespace log1pnmf;

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Tables = std::tuple<Matrix, Matrix, Matrix>;  // lower and upper bounds, penalty
using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // of any type
template <class T>
using Output = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Cube = nb::ndarray<double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <class T>
using Maybe = std::optional<T>;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// The data of an array, which must have so many numbers; null where there is none.
template <class Array>
auto sized(Index size, const Array& array) {
  if constexpr (requires { array.has_value(); }) return array ? sized(size, *array) : nullptr;
  else {
    require(static_cast<Index>(array.size()) == size, "an array has the wrong size");
    return array.data();
  }
}

template <class Choice>
Choice named(const std::string& name,
             std::initializer_list<std::pair<const char*, Choice>> choices) {
  for (const auto& [known, choice] : choices)
    if (name == known) return choice;
  throw std::invalid_argument("there is no " + name);
}

// Counts, exposure and zeros of one side of a problem; the arrays are kept alive and shared by all
// half-steps.
class Side {
  template <class Array>
  auto keep(Index size, const Array& array) {
    if constexpr (!requires { array.has_value(); }) kept_.emplace_back(array);
    else if (array) kept_.emplace_back(*array);
    return sized(size, array);
  }

 public:
  Side(Vector<Index> indptr, Vector<std::int32_t> indices, Values counts,
       Vector<double> row_exposure, Index n_columns, Maybe<Vector<double>> column_exposure,
       const std::string& link, const std::string& noise, Maybe<Vector<double>> row_dispersion,
       Maybe<Vector<double>> column_dispersion) {
    const auto n = static_cast<Index>(row_exposure.size());
    rows.n_rows = n;
    rows.n_columns = n_columns;
    rows.indptr = keep(n + 1, indptr);
    rows.indices = keep(rows.indptr[n], indices);
    rows.row_exposure = keep(n, row_exposure);
    rows.column_exposure = keep(n_columns, column_exposure);
    rows.row_dispersion = keep(n, row_dispersion);
    rows.column_dispersion = keep(n_columns, column_dispersion);
    const bool single = counts.dtype() == nb::dtype<float>();
    require(single || counts.dtype() == nb::dtype<double>(), "counts must be float32 or float64");
    const void* values = keep(rows.indptr[n], counts);
    if (single) rows.values_f32 = static_cast<const float*>(values);
    else rows.values_f64 = static_cast<const double*>(values);
    model.link =
        named<Link>(link, {{"shifted_log", Link::shifted_log}, {"identity", Link::identity}});
    model.noise = named<Noise>(
        noise, {{"poisson", Noise::poisson}, {"negative binomial", Noise::negative_binomial}});
    model.exact_zeros = true;
    require(row_dispersion.has_value() + column_dispersion.has_value() == dispersed(),
            "dispersions belong to negative binomial noise, and to rows or to columns");
  }

  // Batches of rows or of columns, with effects of batches x columns or rows x batches.
  void set_batches(Maybe<Vector<std::int32_t>> row_batch, Maybe<Vector<std::int32_t>> column_batch,
                   Matrix effects) {
    const auto count = static_cast<int>(effects.shape(row_batch ? 0 : 1));
    require(row_batch.has_value() != column_batch.has_value(), "batches are of rows or of columns");
    require(!row_batch || rows.column_exposure == nullptr,
            "batches of rows need columns without exposure");
    require(zeros.rank == 0, "batches are set before zeros");
    const auto& labels = row_batch ? *row_batch : *column_batch;
    require(std::all_of(labels.data(), labels.data() + labels.size(),
                        [&](std::int32_t b) { return b >= 0 && b < count; }),
            "a label is not that of a batch");
    rows.batches = {count, keep(rows.n_rows, row_batch), keep(rows.n_columns, column_batch),
                    keep(count * (row_batch ? rows.n_columns : rows.n_rows), effects)};
  }

  // Leaves the exact form for quadratics and a list of zeros.
  void set_zeros(Maybe<Vector<Index>> stored_indptr, Maybe<Vector<std::int32_t>> stored_indices,
                 Maybe<Matrix> row_quadratic, Maybe<Matrix> column_quadratic, Matrix row_linear,
                 Matrix row_quadratics, Matrix column_linear, Matrix column_quadratics) {
    const Index n = rows.n_rows, m = rows.n_columns;
    const auto rank = static_cast<Index>(row_quadratics.shape(1));
    require(rank == 1 ? !dispersed() : rank == 2, "zeros have one or two terms");
    require(rank == 1 || dispersed() || (model.link == Link::shifted_log && !rows.batches.any()),
            "quartics need the shifted log link and no batches");
    require(row_quadratic.has_value() != column_quadratic.has_value(),
            "quadratics belong to rows or to columns");
    require(stored_indptr.has_value() == stored_indices.has_value(),
            "the list of zeros is not whole");
    zeros.stored.indptr = keep(n + 1, stored_indptr);
    if (stored_indptr) n_stored_ = zeros.stored.indptr[n];
    zeros.stored.indices = keep(n_stored_, stored_indices);
    zeros.row_quadratic = keep(n * (rank + 1), row_quadratic);
    zeros.column_quadratic = keep(m * (rank + 1), column_quadratic);
    zeros.rank = static_cast<int>(rank);
    zeros.row_linear = keep(n, row_linear);
    zeros.row_quadratics = keep(n * rank, row_quadratics);
    zeros.column_linear = keep(m, column_linear);
    zeros.column_quadratics = keep(m * rank, column_quadratics);
    model.exact_zeros = false;
  }

  // Terms that a pass over all entries adds up, or over counts and listed zeros.
  double dense_work(int K) const {
    return static_cast<double>(rows.n_rows) * static_cast<double>(rows.n_columns) * (8.0 + K);
  }
  double work(int K) const {
    if (model.exact_zeros) return dense_work(K);
    return static_cast<double>(rows.indptr[rows.n_rows] + n_stored_) * (8.0 + K);
  }
  bool dispersed() const { return model.noise == Noise::negative_binomial; }
  // Of so many coefficients of the approximation of the zeros of a feature.
  int checked_width(std::size_t width) const {
    require(dispersed() ? width == 5 : width == 3 || width == 4, "an array has the wrong size");
    return static_cast<int>(width);
  }

  Rows rows{};
  Zeros zeros{};
  Model model{};

 private:
  std::vector<nb::ndarray<nb::ro>> kept_;
  Index n_stored_ = 0;
};

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

// Rows are handed out in small groups; nothing depends on who gets which. The caller's thread
// checks for Ctrl-C.
void run_rows(const Plan& plan, Index n_rows, int n_threads) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::milliseconds(100);
  // Never destroyed: its threads sleep until the process ends
  static ThreadPool& pool = *new ThreadPool;
  const Index group = n_rows < 64 * n_threads ? 1 : 16;
  std::atomic<Index> next{0};
  std::atomic<bool> stop{false};
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
          if (PyErr_CheckSignals() != 0) throw nb::python_error();
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
}

// Plans the job and runs it over its rows.
void run_plan(const std::string& kernel, const Job& job, Index n_rows, double work, int n_threads) {
  nb::gil_scoped_release released;
  const auto plan = find_kernel(kernel).plan(job);
  const Index runs = (n_rows + plan->rows_together() - 1) / plan->rows_together();
  run_rows(*plan, runs, usable_threads(n_threads, runs, work));
}

// What refers to outputs is left to the caller.
HalfStep half_step(const Side& side, const Matrix& start, const Matrix& design) {
  HalfStep h{};
  h.rows = side.rows;
  h.zeros = side.zeros;
  h.model = side.model;
  h.n_components = static_cast<int>(start.shape(1));
  h.start = sized(h.rows.n_rows * h.n_components, start);
  h.design = sized(h.rows.n_columns * h.n_components, design);
  return h;
}

// Each has one row, or one for each row.
Bounds bounds_of(const Tables& tables, Index n, Index K) {
  const auto numbers = [&](const Matrix& given) -> Bounds::Numbers {
    const bool single = given.shape(0) == 1 && n != 1;
    return {sized(single ? K : n * K, given), single ? 0 : K};
  };
  const auto& [lower, upper, penalty] = tables;
  return {numbers(lower), numbers(upper), numbers(penalty)};
}

void run(const std::string& kernel, const std::string& task, const Side& side, Matrix start,
         Matrix design, Tables tables, Output<double> values, Output<double> gradient,
         Output<double> loss, Output<double> decrease, Output<std::uint8_t> rejected,
         Output<double> batch_sums, bool with_loss, int n_threads) {
  HalfStep h = half_step(side, start, design);
  const Index n = h.rows.n_rows;
  const int K = h.n_components;
  h.task = named<Task>(
      task,
      {{"newton", Task::newton}, {"coordinate", Task::coordinate}, {"evaluate", Task::evaluate}});
  require(h.task != Task::coordinate ||
              (!side.dispersed() && h.zeros.rank < 2 && !h.rows.batches.any() &&
               h.zeros.column_quadratic == nullptr && h.zeros.stored.indptr == nullptr),
          "coordinate descent needs Poisson noise, one quadratic for a row and no batches");
  h.with_loss = with_loss;
  h.bounds = bounds_of(tables, n, K);
  h.values = sized(n * K, values);
  h.gradient = sized(n * K, gradient);
  h.loss = sized(n, loss);
  h.decrease = sized(n, decrease);
  h.rejected = sized(n, rejected);
  if (batch_sums.size() > 0) h.batch_sums = sized(n * h.rows.batches.count, batch_sums);
  run_plan(kernel, h, n, side.work(K), n_threads);
}

void add_statistics(const std::string& kernel, const Side& side, Matrix start, Matrix design,
                    Output<double> loss, Output<double> gradient, Output<double> hessian,
                    int n_threads) {
  HalfStep h = half_step(side, start, design);
  const Index n = h.rows.n_rows, K = h.n_components;
  h.task = Task::statistics;
  h.loss = sized(n, loss);
  h.gradient = sized(n * K, gradient);
  h.hessian = sized(n * (K * (K + 1) / 2), hessian);
  run_plan(kernel, h, n, side.work(h.n_components), n_threads);
}

void solve_programs(const std::string& kernel, Matrix hessian, Matrix gradient, Matrix start,
                    Tables tables, Output<double> values, Output<double> decrease,
                    Output<double> curvature, int n_threads) {
  const auto n = static_cast<Index>(start.shape(0)), K = static_cast<Index>(start.shape(1));
  Programs p{};
  p.n_rows = n;
  p.n_components = static_cast<int>(K);
  p.hessian = sized(n * (K * (K + 1) / 2), hessian);
  p.gradient = sized(n * K, gradient);
  p.start = start.data();
  p.bounds = bounds_of(tables, n, K);
  p.values = sized(n * K, values);
  p.decrease = sized(n, decrease);
  p.curvature = sized(n, curvature);
  run_plan(kernel, p, n, static_cast<double>(n * K * K), n_threads);
}

HalfStep feature_pass(const Side& side, const Matrix& start, const Matrix& design) {
  require(side.rows.column_dispersion == nullptr && side.rows.batches.row_batch == nullptr,
          "the pass is over the factors' side");
  return half_step(side, start, design);
}

template <class Pass>
void run_pass(const std::string& kernel, const Side& side, const Pass& pass, int n_threads) {
  run_plan(kernel, pass, side.rows.n_rows, side.dense_work(pass.pass.n_components), n_threads);
}

void survey_zeros(const std::string& kernel, const Side& side, Matrix start, Matrix design,
                  Index stride, bool convex, Vector<double> thresholds, Output<double> error,
                  Output<double> n_above, Cube quadratic, int n_threads) {
  const auto n_thresholds = static_cast<int>(thresholds.size());
  const Index cells = side.rows.n_rows * n_thresholds;
  const int width = side.checked_width(quadratic.shape(2));
  const ZeroSurvey survey{feature_pass(side, start, design),
                          stride,
                          convex,
                          width,
                          n_thresholds,
                          thresholds.data(),
                          sized(cells, error),
                          sized(cells, n_above),
                          sized(cells * width, quadratic)};
  run_pass(kernel, side, survey, n_threads);
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

// Where the zeros of every row begin, and which they are.
std::pair<Made<Index>, Made<std::int32_t>> collect_zeros(const std::string& kernel,
                                                         const Side& side, Matrix start,
                                                         Matrix design, Vector<double> thresholds,
                                                         Output<double> exposure, int n_threads) {
  const Index n = side.rows.n_rows;
  std::vector<std::vector<std::int32_t>> found(static_cast<std::size_t>(n));
  const ZeroCollection collection{feature_pass(side, start, design), sized(n, thresholds),
                                  found.data(), sized(2 * n, exposure)};
  run_pass(kernel, side, collection, n_threads);
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
  const Index n = side.rows.n_rows;
  const int width = side.checked_width(quadratic.shape(1));
  const ZeroErrors errors{feature_pass(side, start, design),
                          stride,
                          side.zeros.stored,
                          width,
                          sized(n * width, quadratic),
                          sized(n, signed_error),
                          sized(n, absolute_error)};
  run_pass(kernel, side, errors, n_threads);
}

void add_spectrum(const std::string& kernel, const Side& side, Matrix start, Matrix design,
                  Vector<double> low, int n_bins, Output<double> entries, Output<double> counted,
                  int n_threads) {
  const Index n = side.rows.n_rows;
  const Spectrum spectrum{feature_pass(side, start, design), sized(n, low), n_bins,
                          sized(n * n_bins * 8, entries), sized(n * n_bins * 8, counted)};
  run_pass(kernel, side, spectrum, n_threads);
}

template <class Columns>
RawRows raw_rows(const Vector<Index>& indptr, const Columns& indices, const Values& values,
                 Index n_columns) {
  const Index n = static_cast<Index>(indptr.size()) - 1;
  require(0 <= n && std::max(n, n_columns) <= std::numeric_limits<std::int32_t>::max(),
          "there are too many rows or columns, or none");
  sized(values.size(), indices);
  return {n, n_columns, static_cast<Index>(values.size()), indptr.data()};
}

// Calls with the data as that of these types which they have.
template <class T, class... Others, class Use>
bool with_type(const Values& array, const Use& use) {
  if (array.dtype() == nb::dtype<T>()) return use(static_cast<const T*>(array.data()));
  if constexpr (sizeof...(Others) > 0) return with_type<Others...>(array, use);
  throw std::invalid_argument("an array has a type that is not known");
}

bool take_canonical(Vector<Index> indptr, Values indices, Values values, Index n_columns,
                    bool whole, Maybe<Output<std::int32_t>> out_indices,
                    Maybe<Output<float>> out_values) {
  const auto rows = raw_rows(indptr, indices, values, n_columns);
  auto* to_indices = sized(rows.n_entries, out_indices);
  auto* to_values = sized(rows.n_entries, out_values);
  if (!rows.sound()) return false;
  return with_type<std::int32_t, Index>(indices, [&](auto* columns) {
    return with_type<float, double, std::int32_t, Index, std::uint8_t, std::uint16_t,
                     std::uint32_t>(values, [&](auto* counts) {
      nb::gil_scoped_release released;
      return copy_canonical(rows, columns, counts, whole, to_indices, to_values);
    });
  });
}

void transpose(Vector<Index> indptr, Vector<std::int32_t> indices, Values values, Index n_columns,
               Output<Index> out_indptr, Output<std::int32_t> out_rows,
               nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu> out_values) {
  const auto rows = raw_rows(indptr, indices, values, n_columns);
  require(rows.sound(), "compressed rows do not fit together");
  require(out_values.dtype() == values.dtype(), "values are of two types");
  auto* to_indptr = sized(n_columns + 1, out_indptr);
  auto* to_rows = sized(rows.n_entries, out_rows);
  auto* to_values = sized(rows.n_entries, out_values);
  const bool done = with_type<float, double, std::int8_t>(values, [&]<class T>(const T* counts) {
    nb::gil_scoped_release released;
    return sort_by_columns(rows, indices.data(), counts, to_indptr, to_rows,
                           static_cast<T*>(to_values));
  });
  require(done, "columns must rise within every row");
}

// KKT residual of a side, not divided by the total: sums of the values times sums of the absolute
// slopes that the bounds leave. Slopes of rows that are not counted are left out; empty: all are.
double side_residual(Matrix values, Matrix gradient, Vector<std::uint8_t> counted, Tables tables) {
  const auto n = static_cast<Index>(values.shape(0)), K = static_cast<Index>(values.shape(1));
  const double* gradients = sized(n * K, gradient);
  const std::uint8_t* counts = counted.size() > 0 ? sized(n, counted) : nullptr;
  const Bounds bounds = bounds_of(tables, n, K);
  std::vector<double> sizes(static_cast<std::size_t>(K)), slopes(sizes);
  nb::gil_scoped_release released;
  for (Index i = 0; i < n; ++i) {
    const Box box = bounds.at(i);
    const double *b = values.data() + i * K, *g = gradients + i * K;
    const double weight = counts == nullptr || counts[i] ? 1.0 : 0.0;
    for (Index k = 0; k < K; ++k) {
      const double slope = g[k] + box.penalty[k];
      const double up = slope < 0.0 ? 0.0 : slope, down = slope > 0.0 ? 0.0 : slope;
      const double low = b[k] <= box.lower[k] ? 0.0 : up, high = b[k] >= box.upper[k] ? 0.0 : down;
      sizes[k] += b[k];
      slopes[k] += weight * (low - high);  // without branches
    }
  }
  return std::inner_product(sizes.begin(), sizes.end(), slopes.begin(), 0.0) /
         std::max<double>(1.0, static_cast<double>(n));
}

// Goes beyond `to` by a multiple of the way since `since`; entries keep at least a part of `to`.
void extrapolate(Matrix to, Matrix since, double by, double least, Output<double> out) {
  const double *now = to.data(), *before = sized(static_cast<Index>(to.size()), since);
  double* beyond = sized(static_cast<Index>(to.size()), out);
  nb::gil_scoped_release released;
  for (std::size_t e = 0; e < to.size(); ++e)
    beyond[e] = std::max(now[e] + by * (now[e] - before[e]), least * now[e]);
}

int max_threads() {
  if (forked) return 1;
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Compiled half-step of log1pnmf; use log1pnmf.engines.native.";
  nb::class_<Side>(m, "Side", "Counts, exposure and zeros of one side of a problem.")
      .def(nb::init<Vector<Index>, Vector<std::int32_t>, Values, Vector<double>, Index,
                    Maybe<Vector<double>>, const std::string&, const std::string&,
                    Maybe<Vector<double>>, Maybe<Vector<double>>>())
      .def("set_batches", &Side::set_batches)
      .def("set_zeros", &Side::set_zeros);
  m.def("run", &run);
  m.def("add_statistics", &add_statistics);
  m.def("solve_programs", &solve_programs);
  m.def("survey_zeros", &survey_zeros);
  m.def("collect_zeros", &collect_zeros);
  m.def("zero_errors", &zero_errors);
  m.def("add_spectrum", &add_spectrum);
  m.def("take_canonical", &take_canonical);
  m.def("transpose", &transpose);
  m.def("side_residual", &side_residual);
  m.def("extrapolate", &extrapolate);
  m.def("runnable_kernels", &runnable_kernels);
  m.def("after_fork", [] { forked = true; });
  m.def("max_threads", &max_threads);
}
