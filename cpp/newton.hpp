// One safeguarded Newton step on min loss(b) + penalty'b, 0 <= b <= upper.
#pragma once

#include "quadratic_program.hpp"
#include "row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class NewtonRow {
 public:
  NewtonRow(const HalfStep& h, const Design& design)
      : K_(h.n_components), h_(h), design_(design), evaluator_(h, design), program_(K_),
        H_(static_cast<std::int64_t>(K_) * K_), g_(K_), x_(K_), trial_(K_) {}

  void run(std::int64_t i) {
    const Row row = row_at(h_.rows, i);
    const double* b = h_.start + i * K_;
    double* out = h_.values + i * K_;
    double* gradient = h_.gradient + i * K_;
    evaluator_.start_row(row);
    const double before = evaluator_.evaluate<Level::hessian>(b, gradient, H_);
    h_.loss[i] = before;
    h_.rejected[i] = 0;
    if (row.count == 0) {   // without counts the optimum is zero whatever the design
      std::fill_n(out, K_, 0.0);
      h_.decrease[i] = before + penalty(b);
      return;
    }
    for (int k = 0; k < K_; ++k) g_[k] = gradient[k] + h_.penalty[k];
    double curvature;
    const double predicted = program_.solve(H_, g_, b, h_.upper, x_, curvature);
    if (surely_falls(b, curvature)) {
      std::copy_n(static_cast<double*>(x_), K_, out);
      h_.decrease[i] = predicted;
      return;
    }
    h_.decrease[i] = backtrack(b, before + penalty(b), predicted, out, h_.rejected[i]);
  }

 private:
  // Where every eta changes little, the full step must lower the loss and there is no need to look. The curvature
  // bounds the relative change of every count's eta (for counts >= 1) and the design's maxima the absolute one; only if
  // these cheap bounds say nothing are the changes themselves looked at.
  bool surely_falls(const double* b, double curvature) {
    double change = 0.0;
    for (int k = 0; k < K_; ++k) {
      trial_[k] = x_[k] - b[k];
      change += std::abs(trial_[k]) * design_.largest[k];
    }
    if (curvature <= 0.04 && (change <= 0.2 || h_.model.identity)) return true;
    return evaluator_.curvature_holds(trial_);
  }

  double backtrack(const double* b, double before, double predicted, double* out, std::uint8_t& rejected) {
    double fraction = 1.0;
    for (int attempt = 0; attempt < 30; ++attempt) {
      const double* candidate = x_;
      if (attempt > 0) {
        for (int k = 0; k < K_; ++k) trial_[k] = b[k] + fraction * (x_[k] - b[k]);
        candidate = trial_;
      }
      const double after = evaluator_.evaluate<Level::loss>(candidate, nullptr, nullptr) + penalty(candidate);
      if (after <= before - 0.01 * fraction * predicted) {
        std::copy_n(candidate, K_, out);
        return before - after;
      }
      rejected = 1;
      fraction *= 0.5;
    }
    std::copy_n(b, K_, out);
    return 0.0;
  }

  double penalty(const double* b) const {
    double sum = 0.0;
    for (int k = 0; k < K_; ++k) sum += h_.penalty[k] * b[k];
    return sum;
  }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  RowEvaluator evaluator_;
  QuadraticProgram program_;
  Buffer H_, g_, x_, trial_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
