// The half-step over independent rows, as plain C++: no Python, no threads of its own, no
// instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace log1pnmf {

using Index = std::int64_t;

// Always inline: one function for all kernels would be compiled for one instruction set.
__attribute__((always_inline)) inline double dot(int K, const double* x, const double* b) {
  double sum = 0.0;
  for (int k = 0; k < K; ++k) sum += x[k] * b[k];
  return sum;
}

// Which entries of compressed rows there are.
struct Pattern {
  const Index* indptr;
  const std::int32_t* indices;
};

// How well batches of samples capture features: t_ij is multiplied by effects[row_batch_i][j]
// (n_batches x n_columns), or by effects[i][column_batch_j] (n_rows x n_batches). One of the two is
// set, or none: no batches.
struct Batches {
  int count;
  const std::int32_t* row_batch;
  const std::int32_t* column_batch;
  const double* effects;
  bool any() const { return effects != nullptr; }
};

// Compressed rows of the counts, with the exposure t_ij = row_exposure_i * column_exposure_j,
// batches aside.
struct Rows {
  Index n_rows, n_columns;
  const Index* indptr;
  const std::int32_t* indices;
  const float* values_f32;  // exactly one of the two is set
  const double *values_f64, *row_exposure;
  const double* column_exposure;                     // null: all 1
  const double *row_dispersion, *column_dispersion;  // negative binomial noise: one is set
  Batches batches{};
};

// The zero entries in sparse form. Those in `stored` are computed one by one. The loss of all
// others is approximated by a quadratic t_ij (a1 eta + a2 eta^2), whose constant term is left to
// the caller. Its coefficients belong to the row or to the column; with negative binomial noise the
// quadratic one is a2 + t b2. a2 is never negative, and zero with the identity link; b2 is never
// positive. With Poisson noise and rank 2 the approximation is a quartic: a4 (eta + kShift)^4 is
// added, a4 not negative. The sum over all entries of a row is taken in the form
//   row_linear_i (sum_j column_linear_j eta_ij) + sum_p row_quadratics_ip (sum_j
//   column_quadratics_pj eta_ij^2)
// of rank P (of a quartic: the second term with (eta_ij + kShift)^4 instead), and every entry that
// is computed subtracts its own. The part with b2 is concave and has no minimum: see ConcavePart.
// With batches every sum is over the columns of each batch, or with the effects of each; the p-th
// terms are multiplied by the p-th power of the effect.
constexpr double kShift = 0.25;
struct Zeros {
  Pattern stored;               // indptr null: none
  const double* row_quadratic;  // n_rows x 2, (a1, a2), or x 3, (a1, a2, b2 or a4); one of the two
  const double* column_quadratic;  // n_columns x 2 or x 3; numbers of single precision
  int rank;
  const double *row_linear, *row_quadratics;        // n_rows x 1 and x rank
  const double *column_linear, *column_quadratics;  // 1 and rank x n_columns
};

// See policies.hpp for what each link and noise is.
enum class Link { shifted_log, identity };
enum class Noise { poisson, negative_binomial };

// exact_zeros: visit every entry; otherwise see Zeros. The identity link is exact in that form, and
// has no other.
struct Model {
  Link link;
  Noise noise;
  bool exact_zeros;
};

// evaluate: loss and gradient, no step. statistics: and Hessian, added to what the outputs hold, as
// columns may come in pieces.
enum class Task { newton, coordinate, evaluate, statistics };

// lower <= b <= upper for the coefficients of a row, and what they cost, penalty'b. Where lower and
// upper are equal, a coefficient is a constant.
struct Box {
  const double *lower, *upper, *penalty;  // K each; upper may be inf
  double cost(int K, const double* b) const { return dot(K, penalty, b); }
  bool above_zero(int K) const {
    return std::any_of(lower, lower + K, [](double value) { return value > 0.0; });
  }
  int at_bounds(int K, const double* b) const {
    int n = 0;
    for (int k = 0; k < K; ++k) n += (b[k] <= lower[k]) | (b[k] >= upper[k]);
    return n;
  }
  // Whether a bound holds coordinate k back at this point, where loss and penalty have this slope.
  bool holds(int k, double at, double slope) const {
    const bool low = at <= lower[k], high = at >= upper[k];
    return (low & (high | (slope >= 0.0))) | (high & (slope <= 0.0));
  }
};

// Each of the three is the same for all rows, or has a row for each.
struct Bounds {
  struct Numbers {
    const double* values;
    Index stride;  // from one row to the next: 0 or K
    const double* at(Index row) const { return values + row * stride; }
  };
  Numbers lower, upper, penalty;
  Box at(Index row) const { return {lower.at(row), upper.at(row), penalty.at(row)}; }
};

struct HalfStep {
  Rows rows;
  Zeros zeros;  // unless model.exact_zeros
  Model model;
  Task task;
  bool with_loss;  // newton: whether the loss at the start is wanted
  int n_components;
  const double* start;   // n_rows x K
  const double* design;  // n_columns x K
  Bounds bounds;         // of the coefficients
  double* values;        // n_rows x K, out (untouched by evaluate)
  double* gradient;      // n_rows x K, out: at start, without the penalty
  double* loss;          // n_rows, out: at start, without constants and penalty; see with_loss
  double* decrease;      // n_rows, out: by the step, measured where it was checked, else predicted
  std::uint8_t* rejected;  // n_rows, out: 1 where the full step was refused
  double* hessian;         // n_rows x K(K+1)/2, lower triangle by rows, out: statistics only
  double* batch_sums;  // batches of columns x n_rows, out: see mean_sums.hpp; newton: at values,
                       // evaluate: at start; null: not wanted
};

// One quadratic program per row, min g'(x - b) + (x - b)'H(x - b)/2 + penalty'x within bounds.
struct Programs {
  Index n_rows;
  int n_components;
  const double* hessian;   // as statistics leaves it
  const double* gradient;  // n_rows x K
  const double* start;     // n_rows x K
  Bounds bounds;
  double* values;     // n_rows x K, out
  double* decrease;   // n_rows, out: of the quadratic
  double* curvature;  // n_rows, out: (x - b)'H(x - b)
};

// Below are passes over all samples of every feature: rows are features, columns samples. Of the
// half-step they use the problem, start and design.

// How well a quadratic in eta approximates the loss over t (expm1(eta) with Poisson noise) at the
// zero entries of every row with eta below a threshold; with dispersions also phi t em below it. A
// quadratic is fitted to every row and threshold by least squares, weighted by exposure.
struct ZeroSurvey {
  HalfStep pass;
  Index stride;  // only every so many-th sample is used; sums are scaled up
  bool convex;   // with dispersions: no concave part
  int width;     // of the coefficients: 3, of a quartic 4, with dispersions 5
  int n_thresholds;
  const double* thresholds;  // ascending
  double* error;             // n_rows x n_thresholds, out: sum of t |loss / t - quadratic| below it
  double* n_above;           // n_rows x n_thresholds, out: zero entries above it
  double* quadratic;         // n_rows x n_thresholds x width, out: constant, linear, quadratic
                             // coefficient; then a4, or a constant and a quadratic one for t^2
};

// The zero entries of every row above the row's threshold, and the exposure of the others.
struct ZeroCollection {
  HalfStep pass;
  const double* thresholds;          // n_rows
  std::vector<std::int32_t>* found;  // n_rows, out
  double* exposure;                  // n_rows x 2, out: sums of t and t^2 over the zeros below
};

// Sum over the zero entries that are not stored of t (loss / t - quadratic), and of its absolute
// value.
struct ZeroErrors {
  HalfStep pass;
  Index stride;  // as in ZeroSurvey
  Pattern stored;
  int width;                // as in ZeroSurvey
  const double* quadratic;  // n_rows x width
  double* signed_error;     // n_rows, out
  double* absolute_error;   // n_rows, out
};

// The means of every row (a feature), condensed: see SpectrumPlan.
struct Spectrum {
  HalfStep pass;
  const double* low;  // n_rows: where the first bin begins
  int n_bins;
  double* entries;  // n_rows x n_bins x 8, out: added to what it holds
  double* counted;  // the same, weighted by the counts
};

// Built once for a job, shared by all rows and threads.
class Plan {
 public:
  virtual ~Plan() = default;
  // Scratch memory of one thread.
  class Workspace {
   public:
    virtual ~Workspace() = default;
  };
  virtual std::unique_ptr<Workspace> workspace() const = 0;
  virtual void run_row(Index row, Workspace&) const = 0;  // or that group of rows
  virtual int rows_together() const { return 1; }         // in a group
};

using Job = std::variant<HalfStep, Programs, ZeroSurvey, ZeroCollection, ZeroErrors, Spectrum>;

struct Kernel {
  const char* name;
  std::unique_ptr<Plan> (*plan)(const Job&);
};

std::vector<std::string> runnable_kernels();         // those this processor can run, fastest first
const Kernel& find_kernel(const std::string& name);  // one of them; throws std::invalid_argument

}  // namespace log1pnmf
