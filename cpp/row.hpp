// One row's loss, gradient and Hessian at given coefficients, in sparse or exact form.
#pragma once

#include "entries.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

enum class Level { loss, gradient, hessian };

template <class Link, class Noise>
class RowEvaluator {
 public:
  RowEvaluator(const HalfStep& h, const Design& design)
      : K_(h.n_components),
        block_(block_size(K_)),
        h_(h),
        design_(design),
        sums_(K_),
        kept_(h.model.exact_zeros ? h.rows.n_columns : round_up(kKeptBytes / (8 * design.streams), block_)),
        X_(h.model.exact_zeros ? 0 : design.streams * kept_),
        y_(block_),
        eta_(block_),
        em_(block_),
        residual_(block_),
        weight_(block_),
        inverse_(kept_),
        own_exposure_(block_),
        own_dispersion_(block_),
        own_quadratic_(Noise::kQuadratic * block_),
        effects_(!h.rows.batches.any() ? 0 : h.model.exact_zeros ? design.padded : kept_),
        linear_(K_),
        gram_(static_cast<std::int64_t>(K_) * K_),
        gram_b_(K_) {}

  // Gathered blocks of a row stay valid for further evaluations of the same row if it is short enough.
  void start_row(const Row& row) {
    row_ = row;
    first_zero_ = round_up(row.count, block_);
    keeps_ = first_zero_ + row.stored.count <= kept_;
    gathered_ = 0;
    combine_terms(row);
    if (is_exact() && h_.rows.batches.any()) {
      for (std::int64_t j = 0; j < h_.rows.n_columns; ++j) effects_[j] = effect_of(j);
    }
    std::fill_n(static_cast<double*>(own_exposure_), block_, row.exposure);
    if (h_.rows.row_dispersion != nullptr)
      std::fill_n(static_cast<double*>(own_dispersion_), block_, h_.rows.row_dispersion[row.number]);
    if (!h_.model.exact_zeros && h_.zeros.row_quadratic != nullptr)
      for (int i = 0; i < Noise::kQuadratic; ++i)
        std::fill_n(own_quadratic_ + i * block_, block_, h_.zeros.row_quadratic[Noise::kQuadratic * row.number + i]);
  }

  // Sum of the quadratic over all entries of the row: linear'b + b'gram b; sparse form only.
  const double* linear() const { return linear_; }
  const double* gram() const { return gram_; }

  // Whether a full Newton step d surely lowers the loss, see the noise; from b where the last evaluation with derivatives was.
  bool curvature_holds(const double* d) {
    if (!(is_exact() ? row_.count <= kept_ : keeps_)) return false;
    Vec shrink = Vec{}, growth = Vec{};
    if (is_exact()) exact_changes(d, shrink, growth);
    else sparse_changes(d, shrink, growth);
    return Noise::template curvature_holds<Link>(largest_lane(shrink), largest_lane(growth));
  }

  // H and g are filled as the level asks; the row's loss is returned. Constants and penalty are left out.
  template <Level L>
  double evaluate(const double* b, double* g, double* H) {
    const Row& row = row_;
    if (L != Level::loss) sums_.reset();
    if constexpr (Noise::kWhole && Link::kLinear) apart_ = dot(linear_, b) > kApart;
    double loss = 0.0;
    if constexpr (kSparseIsExact) loss = sparse<L>(row, b);
    else loss = is_exact() ? exact<L>(row, b) : sparse<L>(row, b);
    if (L != Level::loss) sums_.finish(H, g, L == Level::hessian);
    if (!is_exact()) loss += whole_matrix_part<L>(b, g, H);
    return loss;
  }

 private:
  // With Poisson noise and the identity link the zero terms are linear, and their sum over all entries is exact.
  static constexpr bool kSparseIsExact = Link::kLinear && Noise::kPoisson;
  bool is_exact() const { return !kSparseIsExact && h_.model.exact_zeros; }

  // The row's own sums of the terms of the zeros.
  void combine_terms(const Row& row) {
    std::fill_n(static_cast<double*>(linear_), K_, 0.0);
    std::fill_n(static_cast<double*>(gram_), K_ * K_, 0.0);
    const std::int64_t i = row.number;
    const Batches& batches = h_.rows.batches;
    const int n = batches.column_batch != nullptr ? design_.rank * design_.batches : design_.rank;
    const std::int64_t first = batches.row_batch != nullptr ? batches.row_batch[i] * design_.rank : 0;
    for (int p = 0; p < n; ++p) {
      const double u = h_.zeros.row_linear[i * n + p], v = h_.zeros.row_quadratics[i * n + p];
      const double *linear = design_.linear + (first + p) * K_, *gram = design_.gram + (first + p) * K_ * K_;
      if (u != 0.0)
        for (int k = 0; k < K_; ++k) linear_[k] += u * linear[k];
      if (!kSparseIsExact && v != 0.0)
        for (int k = 0; k < K_ * K_; ++k) gram_[k] += v * gram[k];
    }
  }

  // What the quadratic form of the zero entries adds for the row as a whole.
  template <Level L>
  double whole_matrix_part(const double* b, double* g, double* H) {
    double sum = dot(linear_, b);
    if (L != Level::loss)
      for (int k = 0; k < K_; ++k) g[k] += linear_[k];
    if constexpr (kSparseIsExact) return apart_ ? row_.exposure * means_of_zeros(b) : sum;
    for (int k = 0; k < K_; ++k) {
      gram_b_[k] = dot(gram_ + k * K_, b);
      sum += gram_b_[k] * b[k];
    }
    if (L != Level::loss)
      for (int k = 0; k < K_; ++k) g[k] += 2.0 * gram_b_[k];
    if (L == Level::hessian)
      for (int i = 0; i < K_ * K_; ++i) H[i] += 2.0 * gram_[i];
    return sum;
  }

  double dot(const double* x, const double* b) const {
    double sum = 0.0;
    for (int k = 0; k < K_; ++k) sum += x[k] * b[k];
    return sum;
  }

  // At the identity link, without the row's exposure.
  double means_of_zeros(const double* b) const {
    double sum = 0.0;
    std::int64_t next = 0;
    for (std::int64_t j = 0; j < h_.rows.n_columns; ++j) {
      const double* x = design_.packed + j * design_.streams;
      if (next < row_.count && row_.indices[next] == j) ++next;
      else sum += (design_.exposure >= 0 ? x[design_.exposure] : 1.0) * (h_.rows.batches.any() ? effect_of(j) : 1.0) * dot(x, b);
    }
    return sum;
  }

  // By which the exposure of a column of the row is multiplied, with batches.
  double effect_of(std::int64_t j) const {
    const Batches& own = h_.rows.batches;
    if (own.row_batch != nullptr) return own.effects[own.row_batch[row_.number] * h_.rows.n_columns + j];
    return own.effects[row_.number * own.count + own.column_batch[j]];
  }

  void sparse_changes(const double* d, Vec& shrink, Vec& growth) const {
    for (std::int64_t from = 0; from < row_.count; from += block_) {
      const int padded = static_cast<int>(round_up(std::min<std::int64_t>(block_, row_.count - from), kLanes));
      const double* X = X_ + from * design_.streams;
      for (int e = 0; e < padded; e += kLanes) {
        Vec delta;
        linear_predictor<1>(X, block_, e, d, &delta);
        shrink = vmax(shrink, -delta * Link::relative_slope(load(inverse_ + from + e)));
        growth = vmax(growth, delta);
      }
    }
    for (std::int64_t from = 0; from < row_.stored.count; from += block_) {
      const int padded = static_cast<int>(round_up(std::min<std::int64_t>(block_, row_.stored.count - from), kLanes));
      for (int e = 0; e < padded; e += kLanes) {
        Vec delta;
        linear_predictor<1>(X_ + (first_zero_ + from) * design_.streams, block_, e, d, &delta);
        growth = vmax(growth, delta);
      }
    }
  }

  void exact_changes(const double* d, Vec& shrink, Vec& growth) {
    const std::int64_t m = round_up(h_.rows.n_columns, kStep);
    double most = 0.0;
    for (std::int64_t from = 0, next = 0; from < m; from += block_) {
      const int padded = static_cast<int>(std::min<std::int64_t>(block_, m - from));
      for (int e = 0; e < padded; e += kStep) {
        Vec delta[kUnroll];
        linear_predictor<kUnroll>(design_.transposed + from, design_.padded, e, d, delta);
        for (int u = 0; u < kUnroll; ++u) {
          store(residual_ + e + u * kLanes, delta[u]);
          growth = vmax(growth, delta[u]);
        }
      }
      for (; next < row_.count && row_.indices[next] < from + padded; ++next)
        most = std::max(most, -residual_[row_.indices[next] - from] * Link::relative_slope(inverse_[next]));
    }
    shrink = splat(most);
  }

  template <Level L>
  double sparse(const Row& row, const double* b) {
    Vec loss[kUnroll] = {}, lowest = splat(1.0);
    for (std::int64_t from = 0; from < row.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, row.count - from));
      const int padded = static_cast<int>(round_up(n, kLanes));
      const double* X = gathered(row, from, n, from);
      read_values(h_.rows, row.offset + from, n, y_);
      std::fill(y_ + n, y_ + padded, 0.0);
      double* inverse = inverse_ + (keeps_ ? from : 0);
      int e = 0;
      for (; e + kStep <= n; e += kStep) means<kUnroll>(X, e, b, lowest, loss);
      for (; e < padded; e += kLanes) means<1>(X, e, b, lowest, loss);
      for (e = 0; e + kStep <= padded; e += kStep) terms<L, kUnroll>(X, e, inverse, loss);
      for (; e < padded; e += kLanes) terms<L, 1>(X, e, inverse, loss);
      accumulate<L>(X, block_, padded);
    }
    if (-largest_lane(-lowest) <= kSmallestEta) loss[0] += kImpossible / kLanes;
    if constexpr (!kSparseIsExact)
      for (std::int64_t from = 0; from < row.stored.count; from += block_) {
        const int n = static_cast<int>(std::min<std::int64_t>(block_, row.stored.count - from));
        const int padded = static_cast<int>(round_up(n, kLanes));
        const double* X = gathered(row.stored, from, n, first_zero_ + from);
        int e = 0;
        for (; e + kStep <= padded; e += kStep) zero_terms<L, kUnroll>(X, e, b, loss);
        for (; e < padded; e += kLanes) zero_terms<L, 1>(X, e, b, loss);
        accumulate<L>(X, block_, padded);
      }
    return total(loss);
  }

  // The block of n entries from `from` on, at its place among all blocks of the row.
  const double* gathered(const Entries& entries, std::int64_t from, int n, std::int64_t place) {
    double* X = X_;
    if (keeps_) X += place * design_.streams;
    if (place >= gathered_ || !keeps_) {
      gather(design_, entries.indices + from, n, entries.readable - from, X, block_);
      gathered_ = place + n;
      if (h_.rows.batches.any()) gather_effects(entries.indices + from, n, effects_ + (keeps_ ? place : 0));
    }
    if (h_.rows.batches.any()) effects_here_ = effects_ + (keeps_ ? place : 0);
    return X;
  }

  void gather_effects(const std::int32_t* indices, int n, double* to) const {
    const Batches& own = h_.rows.batches;
    if (own.row_batch != nullptr) {
      const double* effects = own.effects + own.row_batch[row_.number] * h_.rows.n_columns;
      for (int e = 0; e < n; ++e) to[e] = effects[indices[e]];
    } else {
      const double* effects = own.effects + row_.number * own.count;
      for (int e = 0; e < n; ++e) to[e] = effects[own.column_batch[indices[e]]];
    }
    std::fill(to + n, to + round_up(n, kLanes), 0.0);
  }

  template <int U>
  LOG1PNMF_INLINE void linear_predictor(const double* X, std::int64_t stride, int e, const double* b, Vec* eta) const {
    LOG1PNMF_EACH eta[u] = Vec{};
    for (int k = 0; k < K_; ++k)
      LOG1PNMF_EACH eta[u] += b[k] * load(X + k * stride + e + u * kLanes);
  }

  // eta and em of U vectors of entries. Two loops, this and the next, because one has more in flight than registers.
  template <int U>
  LOG1PNMF_INLINE void means(const double* X, int e, const double* b, Vec& lowest, Vec* loss) {
    Vec eta[U], em[U];
    linear_predictor<U>(X, block_, e, b, eta);
    if constexpr (U == 1) loss[0] += load(y_ + e) * impossible(eta[0]);   // padding, if any, is here
    else LOG1PNMF_EACH lowest = vmin(lowest, eta[u]);
    LOG1PNMF_EACH eta[u] = Link::clamp_eta(eta[u]);
    Link::template mean_part<U>(eta, em);
    LOG1PNMF_EACH store(em_ + e + u * kLanes, em[u]);
    if constexpr (!kSparseIsExact) LOG1PNMF_EACH store(eta_ + e + u * kLanes, eta[u]);
  }

  // Exposure and dispersion of U vectors of entries.
  template <int U>
  LOG1PNMF_INLINE void belongings(const double* X, std::int64_t stride, int e, EntriesAt<U>& at) const {
    LOG1PNMF_EACH at.t[u] = load(own_exposure_ + u * kLanes);
    if (design_.exposure >= 0) LOG1PNMF_EACH at.t[u] *= load(X + design_.exposure * stride + e + u * kLanes);
    if (effects_here_ != nullptr) LOG1PNMF_EACH at.t[u] *= load(effects_here_ + e + u * kLanes);
    if constexpr (Noise::kDispersed) {
      const double* from = design_.dispersion >= 0 ? X + design_.dispersion * stride + e : own_dispersion_;
      LOG1PNMF_EACH at.phi[u] = load(from + u * kLanes);
    }
  }

  // What stands in for their zero terms; needs their exposure.
  template <int U>
  LOG1PNMF_INLINE void quadratics(const double* X, int e, EntriesAt<U>& at) const {
    const double* from = design_.quadratic >= 0 ? X + design_.quadratic * block_ + e : own_quadratic_;
    LOG1PNMF_EACH at.a1[u] = load(from + u * kLanes);
    LOG1PNMF_EACH at.a2[u] = load(from + block_ + u * kLanes);
    if constexpr (Noise::kDispersed) LOG1PNMF_EACH at.a1[u] += at.t[u] * load(from + 2 * block_ + u * kLanes);
  }

  // The whole of a zero that is visited: no logarithm, no division.
  template <Level L, int U>
  LOG1PNMF_INLINE void zero_terms(const double* X, int e, const double* b, Vec* loss) {
    EntriesAt<U> at;
    linear_predictor<U>(X, block_, e, b, at.eta);
    LOG1PNMF_EACH at.eta[u] = Link::clamp_eta(at.eta[u]);
    Link::template mean_part<U>(at.eta, at.em);
    belongings<U>(X, block_, e, at);
    quadratics<U>(X, e, at);
    ZeroTerms<U> z;
    if constexpr (!kSparseIsExact) Noise::template zero_terms<Link, U>(at, z);
    less_quadratic<U>(at, z);
    LOG1PNMF_EACH {
      loss[u] += z.loss[u];
      if constexpr (L != Level::loss) store(residual_ + e + u * kLanes, z.residual[u]);
      if constexpr (L == Level::hessian) store(weight_ + e + u * kLanes, z.weight[u]);
    }
  }

  template <Level L, int U>
  LOG1PNMF_INLINE void terms(const double* X, int e, double* inverse, Vec* loss) {
    EntriesAt<U> at;
    LOG1PNMF_EACH at.em[u] = load(em_ + e + u * kLanes);
    if constexpr (Noise::kWhole || !kSparseIsExact) belongings<U>(X, block_, e, at);
    CountTerms<U> c;
    Noise::template count_terms<Link, U>(y_ + e, at, c);
    if constexpr (!kSparseIsExact) {
      LOG1PNMF_EACH at.eta[u] = load(eta_ + e + u * kLanes);
      quadratics<U>(X, e, at);
      ZeroTerms<U> z;
      Noise::template zero_terms<Link, U>(at, z);
      less_quadratic<U>(at, z);
      LOG1PNMF_EACH {
        c.loss[u] += Noise::kWhole ? z.loss[u] - at.t[u] * at.em[u] : z.loss[u];
        c.residual[u] += z.residual[u];
        c.weight[u] += z.weight[u];
      }
    } else if constexpr (Noise::kWhole) {   // the zero entries' form is exact and adds the mean
      if (!apart_) LOG1PNMF_EACH c.loss[u] -= at.t[u] * at.em[u];
    }
    LOG1PNMF_EACH {
      const int to = e + u * kLanes;
      loss[u] += c.loss[u];
      if constexpr (L != Level::loss) store(residual_ + to, c.residual[u]);
      if constexpr (L == Level::hessian) {
        store(weight_ + to, c.weight[u]);
        store(inverse + to, c.inverse[u]);
      }
    }
  }

  template <Level L>
  double exact(const Row& row, const double* b) {
    Vec loss[kUnroll] = {};
    const std::int64_t m = round_up(h_.rows.n_columns, kStep);
    std::int64_t next = 0;   // first non-zero not yet visited
    for (std::int64_t from = 0; from < m; from += block_) {
      const double* X = design_.transposed + from;
      const int padded = static_cast<int>(std::min<std::int64_t>(block_, m - from));
      if (h_.rows.batches.any()) effects_here_ = effects_ + from;
      for (int e = 0; e < padded; e += kStep) exact_group<L>(X, e, b, loss);
      std::int64_t end = next;
      while (end < row.count && row.indices[end] < from + padded) ++end;
      if (end > next) scatter_counts<L>(row, next, static_cast<int>(end - next), from, loss);
      next = end;
      if constexpr (Noise::kWhole)   // em of the counts is zero by now
        for (int e = 0; e < padded; e += kLanes) {
          EntriesAt<1> at;
          belongings<1>(X, design_.padded, e, at);
          loss[0] += at.t[0] * load(em_ + e);
        }
      accumulate<L>(X, design_.padded, padded);
    }
    return total(loss);
  }

  template <Level L>
  LOG1PNMF_INLINE void exact_group(const double* X, int e, const double* b, Vec* loss) {
    constexpr int U = kUnroll;
    EntriesAt<U> at;
    linear_predictor<U>(X, design_.padded, e, b, at.eta);
    LOG1PNMF_EACH at.eta[u] = Link::clamp_eta(at.eta[u]);
    Link::template mean_part<U>(at.eta, at.em);
    belongings<U>(X, design_.padded, e, at);
    ZeroTerms<U> z;
    if constexpr (!kSparseIsExact) Noise::template zero_terms<Link, U>(at, z);
    LOG1PNMF_EACH {
      const int to = e + u * kLanes;
      if constexpr (!Noise::kWhole) loss[u] += z.loss[u];
      store(em_ + to, at.em[u]);
      if constexpr (L != Level::loss) store(residual_ + to, z.residual[u]);
      if constexpr (L == Level::hessian) store(weight_ + to, z.weight[u]);
    }
  }

  template <Level L>
  void scatter_counts(const Row& row, std::int64_t first, int n, std::int64_t from, Vec* loss) {
    alignas(64) double em[kLargestBlock], t[kLargestBlock], phi[kLargestBlock];
    alignas(64) double residual[kLargestBlock], weight[kLargestBlock];
    const std::int32_t* indices = row.indices + first;
    const int padded = static_cast<int>(round_up(n, kLanes));
    for (int p = 0; p < n; ++p) em[p] = em_[indices[p] - from];
    std::fill(em + n, em + padded, 1.0);
    if constexpr (Noise::kWhole || Noise::kDispersed) {
      const double* exposure = design_.transposed + design_.exposure * design_.padded;
      for (int p = 0; p < n; ++p) t[p] = row.exposure * exposure[indices[p]];
      if (h_.rows.batches.any())
        for (int p = 0; p < n; ++p) t[p] *= effects_[indices[p]];
      std::fill(t + n, t + padded, 0.0);
    }
    if constexpr (Noise::kDispersed) {
      const double* dispersion = design_.transposed + design_.dispersion * design_.padded;
      for (int p = 0; p < n; ++p) phi[p] = design_.dispersion >= 0 ? dispersion[indices[p]] : own_dispersion_[0];
      std::fill(phi + n, phi + padded, 0.0);
    }
    if constexpr (Noise::kWhole)   // their loss has the mean
      for (int p = 0; p < n; ++p) em_[indices[p] - from] = 0.0;
    read_values(h_.rows, row.offset + first, n, y_);
    std::fill(y_ + n, y_ + padded, 0.0);
    for (int p = 0; p < padded; p += kLanes) {
      EntriesAt<1> at;
      at.em[0] = load(em + p);
      if constexpr (Noise::kWhole || Noise::kDispersed) at.t[0] = load(t + p);
      if constexpr (Noise::kDispersed) at.phi[0] = load(phi + p);
      loss[0] += load(y_ + p) * impossible(at.em[0]);
      CountTerms<1> c;
      Noise::template count_terms<Link, 1>(y_ + p, at, c);
      loss[0] += c.loss[0];
      store(residual + p, c.residual[0]);
      store(weight + p, c.weight[0]);
      store(em + p, c.inverse[0]);
    }
    if constexpr (L != Level::loss)
      for (int p = 0; p < n; ++p) residual_[indices[p] - from] += residual[p];
    if constexpr (L == Level::hessian) {
      for (int p = 0; p < n; ++p) weight_[indices[p] - from] += weight[p];
      if (row.count <= kept_) std::copy_n(em, n, inverse_ + first);
    }
  }

  template <Level L>
  void accumulate(const double* X, std::int64_t stride, int padded) {
    if constexpr (L == Level::gradient) sums_.add_gradient(X, stride, padded, residual_);
    if constexpr (L == Level::hessian) sums_.add_block(X, stride, padded, residual_, weight_);
  }

  static double total(const Vec* loss) {
    Vec sum = loss[0];
    for (int u = 1; u < kUnroll; ++u) sum += loss[u];
    return horizontal_sum(sum);
  }

  static constexpr double kApart = 1e9;   // means of a row whose rounding errors would show
  static constexpr std::int64_t kKeptBytes = 1 << 19;   // well inside a second-level cache

  int K_, block_;
  const HalfStep& h_;
  const Design& design_;
  Accumulator sums_;
  std::int64_t kept_;            // longest row whose gathered blocks are kept
  Buffer X_, y_, eta_, em_, residual_, weight_, inverse_;
  Buffer own_exposure_, own_dispersion_, own_quadratic_;   // of the row, once for every entry of a block
  Buffer effects_;               // with batches: of the entries whose blocks are kept; exact form: of all columns
  const double* effects_here_ = nullptr;   // where those of the block at hand begin
  Buffer linear_, gram_, gram_b_;
  Row row_{};
  bool keeps_ = false;           // whether the row's gathered blocks are kept
  bool apart_ = false;           // identity: whether the zeros' means are summed one by one, not as all less the counts'
  std::int64_t gathered_ = 0;    // entries of the row gathered so far
  std::int64_t first_zero_ = 0;  // where the blocks of the stored zeros begin
};

}  // namespace log1pnmf::LOG1PNMF_ISA
