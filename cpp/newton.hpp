// One safeguarded Newton step on min loss(b) + penalty'b, lower <= b <= upper.
#pragma once

#include "quadratic_program.hpp"
#include "row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

template <class Link, class Noise>
class NewtonRow {
 public:
  NewtonRow(const HalfStep& h, const Design& design)
      : K_(h.n_components), h_(h), design_(design), evaluator_(h, design), program_(K_),
        H_(static_cast<Index>(K_) * K_), g_(K_), trial_H_(static_cast<Index>(K_) * K_),
        trial_g_(K_), x_(K_), trial_(K_), leap_(K_) {}

  // One row is started, visits the columns of every block (exact form), and takes its steps at the
  // end.
  void start(Index i) {
    box_ = h_.bounds.at(i);
    evaluator_.start_row(row_at(h_, i), &box_);
    evaluator_.template begin<Level::hessian>(h_.start + i * K_);
  }
  void visit(Index from) {
    if (h_.with_loss) evaluator_.template visit<Level::hessian, true>(from);
    else evaluator_.template visit<Level::hessian, false>(from);
  }
  void take_steps() {
    const Row& row = evaluator_.row();
    const Index i = row.number;
    const double* b = h_.start + i * K_;
    double *out = h_.values + i * K_, *gradient = h_.gradient + i * K_;
    bool known = h_.with_loss;
    h_.loss[i] = known ? evaluator_.template end<Level::hessian, true>(gradient, H_)
                       : evaluator_.template end<Level::hessian, false>(gradient, H_);
    double now = h_.loss[i] + box_.cost(K_, b);
    h_.decrease[i] = 0.0;
    h_.rejected[i] = 0;
    smallest_ = evaluator_.smallest_count();
    if (row.count == 0) {  // without counts the optimum is the lower bound, whatever the design
      std::copy_n(box_.lower, K_, out);
      h_.decrease[i] = known ? now : penalised_loss(b);
      if (box_.above_zero(K_)) h_.decrease[i] -= penalised_loss(out);
      return;
    }
    std::copy_n(b, K_, out);
    std::copy_n(gradient, K_, g_ + 0);
    const int most = row.count <= kShortRow ? kMostSteps : kFewSteps;
    for (int step = 0; step < most; ++step) {
      for (int k = 0; k < K_; ++k) g_[k] += box_.penalty[k];
      double curvature;
      const double predicted = program_.solve(H_, g_, out, box_, x_, curvature);
      if (surely_falls(out, curvature)) {
        std::copy_n(x_ + 0, K_, out);
        h_.decrease[i] += predicted;
        return;
      }
      if (!known) now = penalised_loss(b);
      known = true;
      double after = now;
      if (leap(row, out)) after = try_point(leap_, now, predicted, out);
      if (!(after < now)) after = backtrack(now, predicted, out, h_.rejected[i]);
      h_.decrease[i] += now - after;
      if (!(after < now)) return;
      now = after;
    }
  }

  RowEvaluator<Link, Noise>& evaluator() { return evaluator_; }

 private:
  // Far from its optimum (a count whose eta is tiny: Newton can only double it) a row gets more
  // than one step. Such rows are few and mostly short; in a long row the other side's next change
  // matters more than the last digit here.
  static constexpr Index kShortRow = 64;
  static constexpr int kMostSteps = 20, kFewSteps = 2;

  double penalised_loss(const double* b) { return evaluator_.loss(b) + box_.cost(K_, b); }

  // Where every eta changes little, the full step must lower the loss and it need not be computed.
  // Cheap bounds on these changes come first; the changes themselves are computed only where the
  // bounds do not decide.
  bool surely_falls(const double* b, double curvature) {
    double change = 0.0;
    for (int k = 0; k < K_; ++k) {
      trial_[k] = x_[k] - b[k];
      change += std::abs(trial_[k]) * design_.largest[k];
    }
    if (!evaluator_.approximation_holds(trial_)) return false;
    return Noise::template surely_small<Link>(curvature, smallest_ * evaluator_.smallest_ratio(),
                                              change) ||
           evaluator_.curvature_holds(trial_);
  }

  // A Newton step can at best double an eta that is far too small for its count. The multiplicative
  // update of an additive model, b_k * up / down with the positive and negative parts of the
  // gradient, goes all the way in one step. It replaces Newton's coordinate where that ratio is
  // large. Behind an exponential link the largest mean grows by that ratio, not the eta: Poisson
  // noise would refuse so large a mean, but a dispersed one costs only its logarithm, and no step
  // leads back.
  bool leap(const Row& row, const double* b) {
    bool any = false;
    for (int k = 0; k < K_; ++k) {
      leap_[k] = x_[k];
      const double down =
          row.exposure * design_.slope_at_zero_of(h_.rows, row.number, k) + box_.penalty[k];
      const double up = down - g_[k];
      if (down > 0.0 && up > 4.0 * down && box_.lower[k] < box_.upper[k]) {
        // a coefficient at zero is lifted to a tenth of the smallest count
        double far = b[k] > 0.0 ? b[k] * (up / down) : 0.1 * smallest_ / down;
        if constexpr (Noise::kDispersed && !Link::kLinear) {
          const double widest = design_.largest[k],
                       grown = b[k] > 0.0 ? std::expm1(widest * b[k]) * (up / down) : widest * far;
          far = std::log1p(grown) / widest;
        }
        leap_[k] = std::min(box_.upper[k], far);
        any = true;
      }
    }
    return any;
  }

  // Moves to the point if the penalised loss there is lower by enough; gradient and Hessian are
  // then those at the point. Returns the penalised loss afterwards.
  double try_point(const double* point, double before, double predicted, double* out) {
    const double after = evaluator_.template evaluate<Level::hessian>(point, trial_g_, trial_H_) +
                         box_.cost(K_, point);
    if (!(after <= before - 0.01 * predicted) || !(after < before)) return before;
    std::copy_n(point, K_, out);
    swap(g_, trial_g_);
    swap(H_, trial_H_);
    return after;
  }

  // Shortens the step from `out` to x_ until the penalised loss falls.
  double backtrack(double before, double predicted, double* out, std::uint8_t& rejected) {
    double fraction = 1.0;
    for (int attempt = 0; attempt < 30; ++attempt) {
      for (int k = 0; k < K_; ++k)
        trial_[k] = attempt == 0 ? x_[k] : out[k] + fraction * (x_[k] - out[k]);
      const double after = try_point(trial_, before, fraction * predicted, out);
      if (after < before) return after;
      rejected = 1;
      fraction *= 0.5;
    }
    return before;
  }

  int K_;
  double smallest_ = 1.0;  // of the row's counts
  const HalfStep& h_;
  const Design& design_;
  Box box_{};  // of the row
  RowEvaluator<Link, Noise> evaluator_;
  QuadraticProgram program_;
  Buffer H_, g_, trial_H_, trial_g_, x_, trial_, leap_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
