// Sums over all entries of a row of the quadratics that approximate zeros; sparse form only.
//
// As in the paper, where exp(x) ~ eta_0 + eta_1 x + eta_2 x^2 for zeros, the quadratic of an entry
// is
//   q = t (a1 eta + a2 eta^2) + t^2 b2 eta^2,   a2 >= 0 >= b2,   b2 = 0 with Poisson noise.
// With eta = x'b its sum over the columns is linear'b + b'gram b + b'concave b, where linear and
// both matrices are weighted sums over columns that all rows share: O(K^2) for a row. With Poisson
// noise there may be a quartic part, see QuarticSums.
#pragma once

#include "row_blocks.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class ZeroSums {
 public:
  ZeroSums(const HalfStep& h, const Design& design)
      : K_(h.n_components), h_(h), design_(design),
        bent_(design.rank > 1 && h.model.noise != Noise::poisson), linear_(K_),
        gram_(Index{K_} * K_), concave_(bent_ ? Index{K_} * K_ : 0), gram_b_(K_), concave_b_(K_),
        weights_(Index{design.rank} * design.batches) {}

  // From the terms that all rows share; without squares only the linear part.
  void combine(Index i, bool squares) {
    if (design_.rank == 0) return;  // exact form
    const Batches& batches = h_.rows.batches;
    const int n = batches.column_batch != nullptr ? design_.batches : 1;
    const int rank = design_.rank, length = K_ * K_;
    const Index first = batches.row_batch != nullptr ? batches.row_batch[i] : 0;
    const double* own = weights(i, h_.zeros.row_linear, 1);
    add_up(own, design_.linear + first * K_, n, 1, K_, linear_);
    if (!squares) return;
    const double* terms = design_.gram + first * rank * length;
    own = weights(i, h_.zeros.row_quadratics, rank);
    add_up(own, terms, n, rank, length, gram_);
    if (bent_) add_up(own + 1, terms + length, n, rank, length, concave_);
  }

  const double* linear() const { return linear_; }
  const double* gram() const { return gram_; }
  double linear_at(const double* b) const { return dot(K_, linear_, b); }

  double at(const double* b) {
    for (int k = 0; k < K_; ++k) gram_b_[k] = dot(K_, gram_ + k * K_, b);
    concave_at_ = 0.0;
    if (bent_) {
      for (int k = 0; k < K_; ++k) concave_b_[k] = dot(K_, concave_ + k * K_, b);
      concave_at_ = dot(K_, concave_b_, b);
    }
    return linear_at(b) + dot(K_, gram_b_, b) + concave_at_;
  }
  double concave_at() const { return concave_at_; }  // at the point of the last call of at()
  double concave_at(const double* d) const {
    double sum = 0.0;
    for (int k = 0; k < K_; ++k) sum += dot(K_, concave_ + k * K_, d) * d[k];
    return sum;
  }

  // At the point of the last call of at().
  void add_gradient(double* g) const {
    for (int k = 0; k < K_; ++k) g[k] += linear_[k] + 2.0 * (gram_b_[k] + concave_b_[k]);
  }
  void add_concave(double times, double* g) const {
    for (int k = 0; k < K_; ++k) g[k] += times * concave_b_[k];
  }
  // Without the concave part, which lies below each of its tangents: a step that lowers the other
  // terms lowers the sum.
  void add_hessian(double* H) const {
    for (int i = 0; i < K_ * K_; ++i) H[i] += 2.0 * gram_[i];
  }

 private:
  // Of a row's terms; of those of every batch of columns, times powers of its effect.
  const double* weights(Index i, const double* terms, int rank) const {
    const int B = design_.batches;
    const double* own = terms + i * rank;
    if (h_.rows.batches.column_batch == nullptr) return own;
    const double* effects = h_.rows.batches.effects + i * B;
    double* to = weights_;
    for (int b = 0; b < B; ++b) {
      double power = 1.0;
      for (int p = 0; p < rank; ++p) *to++ = own[p] * (power *= effects[b]);
    }
    return weights_;
  }

  // Sum of n terms, each of some length, times their weights; the next of each is `step` further.
  // Buffers have room for a vector that begins inside.
  static void add_up(const double* weights, const double* terms, int n, int step, int length,
                     double* to) {
    each_vectors(length, [&]<int U>(Index at) {
      Vec sum[U] = {};
      const double* from = terms + at;
      for (int p = 0; p < n; ++p, from += Index{step} * length)
        EACH sum[u] += weights[p * step] * load(from + u * kLanes);
      EACH store(to + at + u * kLanes, sum[u]);
    });
  }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  bool bent_;  // whether there is a concave part
  Buffer linear_, gram_, concave_, gram_b_, concave_b_, weights_;
  double concave_at_ = 0.0;
};

// The sum over all entries of a row of a4 t (eta + h)^4, h = kShift, the second part of a quartic.
// With the products p_j of any two of (x_j, h) and those of (b, 1), eta + h is (x_j, h)'(b, 1), its
// square p_j'p, and the sum p'(sum_j w_j p_j p_j')p: O(K^4) for a row, however long.
constexpr int n_products(int K) { return (K + 1) * (K + 2) / 2; }

// sum_j w_j p_j p_j', which all rows share.
inline void set_quartic_sums(const HalfStep& h, Buffer& found) {
  const int K = h.n_components, P = n_products(K);
  const Index m = h.rows.n_columns;
  const double* weights = h.zeros.column_quadratics + m;
  Accumulator sums(P);
  Buffer x(Index{K + 1} * kLargestBlock), products(Index{P} * kLargestBlock), w(kLargestBlock);
  found = Buffer(Index{P} * P + kStep);
  std::fill_n(x + K * kLargestBlock, kLargestBlock, kShift);
  sums.reset(true);
  for (Index from = 0; from < m; from += kLargestBlock) {
    const int n = static_cast<int>(std::min<Index>(kLargestBlock, m - from));
    for (int e = 0; e < n; ++e)
      for (int k = 0; k < K; ++k) x[k * kLargestBlock + e] = h.design[(from + e) * K + k];
    std::copy_n(weights + from, n, w + 0);
    std::fill(w + n, w + kLargestBlock, 0.0);
    double* to = products;
    for (int k = 0; k <= K; ++k)
      for (int l = 0; l <= k; ++l, to += kLargestBlock)
        for (int e = 0; e < kLargestBlock; e += kLanes)
          store(to + e, load(x + k * kLargestBlock + e) * load(x + l * kLargestBlock + e));
    sums.add_hessian(products, kLargestBlock, static_cast<int>(round_up(n, kLanes)), w);
  }
  sums.finish_hessian(found);
}

class QuarticSums {
 public:
  QuarticSums(const HalfStep& h, const Design& design, bool wanted)
      : K_(h.n_components), h_(h), design_(design), products_(wanted ? n_products(K_) : 0),
        square_(wanted ? n_products(K_) + kStep : 0), b_(K_ + 1), cube_(K_ + 1) {}

  void start_row(Index i) { weight_ = h_.zeros.row_quadratics[2 * i + 1]; }

  void start_evaluation(const double* b) {
    std::copy_n(b, K_, b_ + 0);
    b_[K_] = 1.0;
    double* to = products_;
    for (int k = 0; k <= K_; ++k)
      for (int l = 0; l <= k; ++l) *to++ = (l < k ? 2.0 : 1.0) * b_[k] * b_[l];
    squared_ = false;
  }

  // sum_j w_j (eta_j + h)^2 p_j of n rows whose evaluations have started. Four of them read the
  // shared sums once.
  static void square(QuarticSums* const* rows, int n) {
    if (n == kTogether) return sweep<kTogether>(rows);
    for (int r = 0; r < n; ++r) sweep<1>(rows + r);
  }

  double loss() {
    QuarticSums* self = this;
    if (!squared_) square(&self, 1);
    const double* own = square_;
    std::fill_n(cube_ + 0, K_ + 1, 0.0);
    for (int k = 0; k <= K_; ++k)
      for (int l = 0; l <= k; ++l, ++own) {
        cube_[k] += *own * b_[l];
        if (l < k) cube_[l] += *own * b_[k];
      }
    return weight_ * dot(K_ + 1, cube_, b_);
  }
  // After loss().
  void add_gradient(double* g) const {
    for (int k = 0; k < K_; ++k) g[k] += 4.0 * weight_ * cube_[k];
  }
  void add_hessian(double* H) const {
    const double* own = square_;
    for (int k = 0; k < K_; ++k)
      for (int l = 0; l <= k; ++l, ++own) {
        H[k * K_ + l] += 12.0 * weight_ * *own;
        if (l < k) H[l * K_ + k] += 12.0 * weight_ * *own;
      }
  }

  // Whether no eta rises by more than h in a step d. Then at s d the second derivative of an entry
  // is at most (1 + s)^2 times that at the start, and the step surely lowers the sum with it: the
  // integral of (1 - s) (1 + s)^2 is below 1.
  bool holds_after(const double* d) const {
    double rise = 0.0;
    for (int k = 0; k < K_; ++k) rise += std::max(0.0, d[k]) * design_.largest[k];
    return rise <= kShift;
  }

 private:
  static constexpr int kTogether = 4;

  template <int R>
  static void sweep(QuarticSums* const* rows) {
    constexpr int U = 2;
    const int P = n_products(rows[0]->K_);
    const double* weights[R];
    REPEAT (r, R) weights[r] = rows[r]->products_;
    for (int at = 0; at < P; at += U * kLanes) {
      const double* terms = rows[0]->design_.quartic + at;
      Vec sum[R][U] = {};
      for (int p = 0; p < P; ++p, terms += P) {
        Vec own[U];
        EACH own[u] = load(terms + u * kLanes);
        REPEAT (r, R) EACH sum[r][u] += weights[r][p] * own[u];
      }
      REPEAT (r, R) EACH store(rows[r]->square_ + at + u * kLanes, sum[r][u]);
    }
    REPEAT (r, R) rows[r]->squared_ = true;
  }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  Buffer products_, square_, b_, cube_;
  double weight_ = 0.0;
  bool squared_ = false;
};

// Keeps a row from following the concave part, which has no minimum, away from where it was fitted.
//
// Over the approximated zeros (all entries less those that are computed one by one) let
//   A = sum t eta,   C = -2 sum t^2 b2 eta^2,
// the least that their mean terms add along the ray to b, and what the concave part -C/2 takes from
// that. The approximation holds while C <= rho A. Beyond, (C - rho A)^2 / (2 C) is added: at s b
// both terms together are -s rho A + rho^2 A^2 / (2 C), with A and C at b, a straight line.
class ConcavePart {
 public:
  ConcavePart(const HalfStep& h, const Design& design, const ZeroSums& zeros)
      : K_(h.n_components), h_(h), design_(design), zeros_(zeros), gradient_(K_) {}

  void start_row(const Row& row) { row_ = row; }
  void start_evaluation() { A_computed_ = C_computed_ = Vec{}; }

  // Entries that are computed one by one.
  template <int U>
  ALWAYS_INLINE void add(const EntriesAt<U>& at) {
    EACH A_computed_ += at.t[u] * at.eta[u];
    EACH C_computed_ -= 2.0 * (at.t[u] * at.eta[u]) * (at.t_b2[u] * at.eta[u]);
  }

  // What is added to the loss at b, after ZeroSums::at(b); its gradient is added to g unless null.
  template <class SparseRow, class RowSums>
  double excess(const double* b, double* g, SparseRow& entries, RowSums& sums) {
    double slope = 0.0;
    for (int k = 0; k < K_; ++k) slope += slope_at_zero(k) * b[k];
    C_all_ = -2.0 * zeros_.concave_at();
    const double A_all = row_.exposure * slope;
    C_ = C_all_ - horizontal_sum(C_computed_);
    A_ = A_all - horizontal_sum(A_computed_);
    if (!(C_ > kRounding * C_all_)) C_ = 0.0;
    if (!(A_ > kRounding * A_all)) A_ = 0.0;
    if (C_all_ > kLargestC) return kImpossible;
    const double beyond = C_ - kRho * A_;
    if (!(C_ > 0.0 && beyond > 1e-9 * C_)) return 0.0;
    if (g != nullptr) add_gradient(b, beyond / C_, g, entries, sums);
    return 0.5 * beyond * beyond / C_;
  }

  // Whether a step d from the last evaluation surely ends where C <= rho A: the root of C is a
  // norm, and the changes of all entries bound those of the approximated zeros.
  bool holds_after(const double* d) const {
    if (!(C_all_ > 0.0)) return true;
    double fall = 0.0;
    for (int k = 0; k < K_; ++k) fall += row_.exposure * slope_at_zero(k) * std::max(0.0, -d[k]);
    const double root = std::sqrt(C_) + std::sqrt(std::max(0.0, -2.0 * zeros_.concave_at(d)));
    return root == 0.0 || root * root <= kRho * (A_ - fall);
  }

 private:
  static constexpr double kRho = 0.7;
  static constexpr double kRounding = 1e-12;  // of the sum over all entries: less may be rounding
  static constexpr double kLargestC = 1e10;   // more makes differences of sums unreliable

  // With ratio = (C - rho A) / C the derivatives in C and A are ratio - ratio^2 / 2 and -rho ratio.
  // A second pass over the entries: few rows are beyond, and not for long.
  template <class SparseRow, class RowSums>
  void add_gradient(const double* b, double ratio, double* g, SparseRow& entries, RowSums& sums) {
    const double by_C = ratio - 0.5 * ratio * ratio, by_A = -kRho * ratio;
    sums.derivatives.reset(false);
    entries.add_concave_gradient(b, by_C, by_A, sums);
    sums.derivatives.finish(gradient_);
    zeros_.add_concave(-4.0 * by_C, gradient_);
    for (int k = 0; k < K_; ++k) g[k] += gradient_[k] + by_A * row_.exposure * slope_at_zero(k);
  }

  double slope_at_zero(int k) const { return design_.slope_at_zero_of(h_.rows, row_.number, k); }

  int K_;
  const HalfStep& h_;
  const Design& design_;
  const ZeroSums& zeros_;
  Row row_{};
  Vec A_computed_ = Vec{}, C_computed_ = Vec{};
  double C_all_ = 0.0, C_ = 0.0, A_ = 0.0;  // at the last evaluation
  Buffer gradient_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
