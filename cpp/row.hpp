// One row's loss, gradient and Hessian at given coefficients, in sparse or exact form.
#pragma once

#include "exact_row.hpp"
#include "mean_sums.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

template <class Link, class Noise>
class RowEvaluator {
 public:
  RowEvaluator(const HalfStep& h, const Design& design)
      : exact_zeros_(h.model.exact_zeros), sparse_(h, design), exact_(h, design),
        sums_(h.n_components, sparse_.blocks.block, sparse_.blocks.capacity), zeros_(h, design),
        quartic_(h, design, Noise::kQuartic), concave_(h, design, zeros_), batch_sums_(h, design) {}

  // Given bounds, the Hessian may be that of the components which none holds back, if these are
  // few; the others have zeros.
  void start_row(const Row& row, const Box* box = nullptr) {
    box_ = box;
    sparse_.blocks.start_row(row);
    if (is_exact()) exact_.start_row(row);
    else concave_.start_row(row);
    zeros_.combine(row.number, !kSparseIsExact);
    if constexpr (Noise::kQuartic) quartic_.start_row(row.number);
  }

  const Row& row() const { return sparse_.blocks.row(); }
  const ZeroSums& zeros() const { return zeros_; }
  QuarticSums& quartic() { return quartic_; }

  // Sums of means over batches at b, see mean_sums.hpp.
  void sum_means(const double* b, double* to) {
    if constexpr (!Noise::kDispersed && !kSparseIsExact) {
      if (is_exact()) batch_sums_.sum(b, row(), to);
      else batch_sums_.sum(b, sparse_.blocks, to);
    }
  }

  // Of the counts, at the last evaluation: the smallest, and with dispersions the smallest
  // 1 / (1 + phi mean).
  double smallest_count() const { return sums_.smallest_count; }
  double smallest_ratio() const { return -largest_lane(-sums_.smallest_ratio); }

  // Whether a step d surely ends where the approximation of zeros holds.
  bool approximation_holds(const double* d) const {
    return Noise::kQuartic ? quartic_.holds_after(d) : concave_.holds_after(d);
  }

  // Whether a full Newton step d surely lowers the loss, see policies.hpp; from b where the last
  // evaluation with derivatives was.
  bool curvature_holds(const double* d) const {
    Changes changes;
    if (!is_dense()) {
      if (!sparse_.blocks.kept()) return false;
      sparse_.add_changes(d, changes);
    }
    if (!is_exact() || !changes.hold<Link, Noise>()) return changes.hold<Link, Noise>();
    return exact_.changes_hold(d, changes);
  }

  double loss(const double* b) { return evaluate<Level::loss>(b, nullptr, nullptr); }

  // H and g are filled as the level asks; returns the row's loss, without constants and penalty.
  // WithLoss: the loss takes the logarithms, which nothing else needs.
  template <Level L, bool WithLoss = true>
  double evaluate(const double* b, double* g, double* H) {
    begin<L>(b);
    for (Index from = 0; from < columns_to_visit(); from += block()) visit<L, WithLoss>(from);
    return end<L, WithLoss>(g, H);
  }

  // The same in parts: several rows may visit a block of columns one after the other while it is in
  // the cache.
  template <Level L>
  void begin(const double* b) {
    b_ = b;
    sums_.loss = Vec{};
    sums_.smallest_count = std::numeric_limits<double>::infinity();
    sums_.smallest_ratio = splat(1.0);
    if (L != Level::loss) sums_.derivatives.reset(L == Level::hessian);
    sums_.weight = sums_.weights;
    sums_.later = L == Level::hessian && box_ != nullptr && !is_exact() && sparse_.blocks.kept() &&
                  3 * box_->at_bounds(sparse_.blocks.K, b) >= sparse_.blocks.K;
    if (is_exact()) exact_.start_evaluation(sums_);
    concave_.start_evaluation();
    if constexpr (Noise::kQuartic) quartic_.start_evaluation(b);
  }
  Index columns_to_visit() const { return is_exact() ? exact_.end() : 0; }
  int block() const { return exact_.block(); }
  template <Level L, bool WithLoss>
  void visit(Index from) {
    if constexpr (!kSparseIsExact) exact_.template add_columns<L, WithLoss>(from, b_, sums_);
  }
  template <Level L, bool WithLoss>
  double end(double* g, double* H) {
    if constexpr (kSparseIsExact) {
      sparse_.template add_counts<L, WithLoss, false>(b_, sums_, concave_);
    } else if (!is_exact()) {
      sparse_.template add_counts<L, WithLoss, true>(b_, sums_, concave_);
      sparse_.template add_zeros<L, WithLoss>(b_, sums_, concave_);
    } else if (!is_dense()) {
      sparse_.template add_counts<L, WithLoss, false>(b_, sums_, concave_);
    }
    if (L == Level::hessian && is_exact()) exact_.add_stretches(sums_);
    if (L == Level::hessian && !sums_.later) sums_.derivatives.finish_hessian(H);
    if (L != Level::loss) sums_.derivatives.finish(g);
    double loss = horizontal_sum(sums_.loss);
    if (!is_exact()) loss = add_quadratics<L>(loss, g);
    if (L == Level::hessian && sums_.later) {
      sums_.derivatives.use([&](int k) { return !box_->holds(k, b_[k], g[k] + box_->penalty[k]); });
      sparse_.add_hessian(sums_);
      sums_.derivatives.finish_hessian(H);
    }
    if (L == Level::hessian && !is_exact() && !kSparseIsExact) {
      zeros_.add_hessian(H);
      if constexpr (Noise::kQuartic) quartic_.add_hessian(H);
    }
    return loss;
  }

 private:
  static constexpr bool kSparseIsExact = SparseRow<Link, Noise>::kIsExact;
  bool is_exact() const { return !kSparseIsExact && exact_zeros_; }
  bool is_dense() const { return is_exact() && exact_.dense(); }

  // What the quadratics of all entries add to loss and g.
  template <Level L>
  double add_quadratics(double loss, double* g) {
    if constexpr (kSparseIsExact) {
      if (L != Level::loss)
        for (int k = 0; k < sparse_.blocks.K; ++k) g[k] += zeros_.linear()[k];
      return loss + zeros_.linear_at(b_);
    }
    loss += zeros_.at(b_);
    if (L != Level::loss) zeros_.add_gradient(g);
    if constexpr (Noise::kQuartic) {
      loss += quartic_.loss();
      if (L != Level::loss) quartic_.add_gradient(g);
    }
    if constexpr (Noise::kDispersed)
      loss += concave_.excess(b_, L != Level::loss ? g : nullptr, sparse_, sums_);
    return loss;
  }

  bool exact_zeros_;
  SparseRow<Link, Noise> sparse_;
  ExactRow<Link, Noise> exact_;
  RowSums sums_;
  ZeroSums zeros_;
  QuarticSums quartic_;
  ConcavePart concave_;
  BatchSums batch_sums_;
  const double* b_ = nullptr;  // where the row is evaluated
  const Box* box_ = nullptr;   // its bounds, if they count
};

}  // namespace log1pnmf::LOG1PNMF_ISA
