// The half-step over independent rows, as plain C++: no Python, no threads of its own, no instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace log1pnmf {

// Compressed rows of the counts, with the rank-one exposure t_ij = row_exposure_i * column_exposure_j.
struct Rows {
  std::int64_t n_rows, n_columns;
  const std::int64_t* indptr;
  const std::int32_t* indices;
  const float* values_f32;    // exactly one of the two is set
  const double* values_f64;
  const double* row_exposure;
  const double* column_exposure;
};

// identity: em = eta instead of expm1(eta). exact_zeros: visit every entry; otherwise the zero entries' expm1(eta) is
// a1*eta + a2*eta^2 (its constant term is left to the caller). large: the loss of a count is its deviance,
// t*em - y - y*log(t*em/y), where nothing cancels; otherwise t*em - y*log(em), which is quicker.
struct Model {
  bool identity, exact_zeros, large;
  double a1, a2;
};

// evaluate: loss and gradient, no step. statistics: loss, gradient and Hessian, added to what the outputs hold, so that rows
// whose columns come in pieces are summed up piece by piece.
enum class Task { newton, coordinate, evaluate, statistics };

struct HalfStep {
  Rows rows;
  Model model;
  Task task;
  int n_components;
  const double* start;      // n_rows x K
  const double* design;     // n_columns x K
  const double* penalty;    // K
  double upper;             // bound on every coefficient, may be inf
  double* values;           // n_rows x K, out (untouched by evaluate)
  double* gradient;         // n_rows x K, out: at start, without the penalty
  double* loss;             // n_rows, out: at start, without constants and penalty
  double* decrease;         // n_rows, out: what the step gains, measured where the step was checked, else predicted
  std::uint8_t* rejected;   // n_rows, out: 1 where the full step was refused
  double* hessian;          // n_rows x K(K+1)/2, lower triangle by rows, out: statistics only
};

// One quadratic program per row, min g'(x - b) + (x - b)'H(x - b)/2 + penalty'x over 0 <= x <= upper.
struct Programs {
  std::int64_t n_rows;
  int n_components;
  const double* hessian;    // as statistics leaves it
  const double* gradient;   // n_rows x K
  const double* start;      // n_rows x K
  const double* penalty;    // K
  double upper;
  double* values;           // n_rows x K, out
  double* decrease;         // n_rows, out: of the quadratic
  double* curvature;        // n_rows, out: (x - b)'H(x - b)
};

// Built once per half-step from the design, shared by all rows and threads.
class Plan {
 public:
  virtual ~Plan() = default;
  // Scratch memory of one thread.
  class Workspace {
   public:
    virtual ~Workspace() = default;
  };
  virtual std::unique_ptr<Workspace> workspace() const = 0;
  virtual void run_row(std::int64_t row, Workspace&) const = 0;
};

struct Kernel {
  const char* name;
  std::unique_ptr<Plan> (*plan)(const HalfStep&);
  std::unique_ptr<Plan> (*programs)(const Programs&);
  void (*expm1)(const double* x, double* y, std::int64_t n);   // the vector functions, open to accuracy tests
  void (*log)(const double* x, double* y, std::int64_t n);
};

std::vector<std::string> runnable_kernels();          // those this processor can run, fastest first
const Kernel& find_kernel(const std::string& name);   // one of them; throws std::invalid_argument

}  // namespace log1pnmf
