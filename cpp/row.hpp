// One row's loss, gradient and Hessian at given coefficients, in sparse or exact form.
#pragma once

#include "block.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

enum class Level { loss, gradient, hessian };

struct Row {
  const std::int32_t* indices;
  std::int64_t count, readable;   // non-zeros of the row; indices that may be read from there on (for prefetching)
  std::int64_t offset;            // of the first non-zero in the value array
  double exposure;
};

inline Row row_at(const Rows& rows, std::int64_t i) {
  const std::int64_t from = rows.indptr[i];
  return {rows.indices + from, rows.indptr[i + 1] - from, rows.indptr[rows.n_rows] - from, from, rows.row_exposure[i]};
}

inline void read_values(const Rows& rows, std::int64_t offset, std::int64_t n, double* y) {
  if (rows.values_f32 != nullptr) std::copy_n(rows.values_f32 + offset, n, y);
  else std::copy_n(rows.values_f64 + offset, n, y);
}

// Smallest of n > 0 counts; sixteen at a time, so that it costs nothing beside reading them.
template <class T>
double smallest_of(const T* y, std::int64_t n) {
  constexpr int kWidth = 16;
  T lane[kWidth];
  std::fill_n(lane, kWidth, y[0]);
  std::int64_t at = 0;
  for (; at + kWidth <= n; at += kWidth)
    for (int i = 0; i < kWidth; ++i) lane[i] = y[at + i] < lane[i] ? y[at + i] : lane[i];
  for (; at < n; ++at) lane[0] = std::min(lane[0], y[at]);
  return *std::min_element(lane, lane + kWidth);
}
inline double smallest_count(const Rows& rows, const Row& row) {
  if (rows.values_f32 != nullptr) return smallest_of(rows.values_f32 + row.offset, row.count);
  return smallest_of(rows.values_f64 + row.offset, row.count);
}

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
        gram_b_(K_) {}

  // Gathered blocks of a row stay valid for further evaluations of the same row if it is short enough.
  void start_row(const Row& row) {
    row_ = row;
    gathered_ = 0;
  }

  // Whether the Hessian along the way to b + d surely stays below twice that at b, where the last evaluation with
  // derivatives was. With q = -delta (1 + 1/em), em falls at most by the factor 1 - q, so the counts' curvature grows
  // at most by (1 - q)^-2; the exponentials' grows by e^delta. A full Newton step then cannot raise the loss.
  bool curvature_holds(const double* d) {
    if (row_.count > kept_) return false;
    Vec shrink = Vec{}, growth = Vec{};
    if (h_.model.exact_zeros) exact_changes(d, shrink, growth);
    else sparse_changes(d, shrink, growth);
    return largest_lane(shrink) <= 0.27 && (h_.model.identity || largest_lane(growth) <= 0.6);
  }

  // H and g are filled as the level asks; the row's loss is returned. Constants and penalty are left out.
  template <Level L>
  double evaluate(const double* b, double* g, double* H) {
    const Row& row = row_;
    if (L != Level::loss) sums_.reset();
    apart_ = h_.model.large && h_.model.identity && row.exposure * dot(design_.linear, b) > kApart;
    double loss;
    if (h_.model.exact_zeros) loss = exact<L>(row, b);
    else if (h_.model.identity) loss = h_.model.large ? sparse<true, true, L>(row, b) : sparse<true, false, L>(row, b);
    else loss = h_.model.large ? sparse<false, true, L>(row, b) : sparse<false, false, L>(row, b);
    if (L != Level::loss) sums_.finish(H, g, L == Level::hessian);
    if (!h_.model.exact_zeros) loss += whole_matrix_part<L>(row.exposure, b, g, H);
    return loss;
  }

 private:
  // What the quadratic form of the zero entries adds for the row as a whole.
  template <Level L>
  double whole_matrix_part(double t, const double* b, double* g, double* H) {
    const double a1 = h_.model.a1, a2 = h_.model.a2;
    double linear = 0.0, quadratic = 0.0;
    for (int k = 0; k < K_; ++k) {
      double sum = 0.0;
      if (a2 != 0.0)
        for (int l = 0; l < K_; ++l) sum += design_.gram[k * K_ + l] * b[l];
      gram_b_[k] = sum;
      linear += design_.linear[k] * b[k];
      quadratic += sum * b[k];
    }
    if (L != Level::loss)
      for (int k = 0; k < K_; ++k) g[k] += t * (a1 * design_.linear[k] + 2.0 * a2 * gram_b_[k]);
    if (L == Level::hessian && a2 != 0.0)
      for (int i = 0; i < K_ * K_; ++i) H[i] += 2.0 * a2 * t * design_.gram[i];
    return apart_ ? t * means_of_zeros(b) : t * (a1 * linear + a2 * quadratic);
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
      else sum += x[K_] * dot(x, b);
    }
    return sum;
  }

  void sparse_changes(const double* d, Vec& shrink, Vec& growth) const {
    const double one = h_.model.identity ? 0.0 : 1.0;
    for (std::int64_t from = 0; from < row_.count; from += block_) {
      const int padded = static_cast<int>(round_up(std::min<std::int64_t>(block_, row_.count - from), kLanes));
      const double* X = X_ + from * design_.streams;
      for (int e = 0; e < padded; e += kLanes) {
        Vec delta;
        linear_predictor<1>(X, block_, e, d, &delta);
        shrink = vmax(shrink, -delta * (load(inverse_ + from + e) + one));
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
        most = std::max(most, -residual_[row_.indices[next] - from] * (1.0 + inverse_[next]));
    }
    shrink = splat(most);
  }

  template <bool Identity, bool Large, Level L>
  double sparse(const Row& row, const double* b) {
    Vec loss[kUnroll] = {}, lowest = splat(1.0);
    for (std::int64_t from = 0; from < row.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, row.count - from));
      const int padded = static_cast<int>(round_up(n, kLanes));
      double* X = X_;
      if (row.count <= kept_) X += from * design_.streams;
      if (from >= gathered_ || row.count > kept_) {
        gather(design_, row.indices + from, n, row.readable - from, X, block_);
        gathered_ = from + n;
      }
      read_values(h_.rows, row.offset + from, n, y_);
      std::fill(y_ + n, y_ + padded, 0.0);
      double* inverse = inverse_ + (row.count <= kept_ ? from : 0);
      int e = 0;
      for (; e + kStep <= n; e += kStep) means<Identity, kUnroll>(X, e, b, lowest, loss);
      for (; e < padded; e += kLanes) means<Identity, 1>(X, e, b, lowest, loss);
      for (e = 0; e + kStep <= padded; e += kStep) terms<Identity, Large, L, kUnroll>(X, e, row.exposure, inverse, loss);
      for (; e < padded; e += kLanes) terms<Identity, Large, L, 1>(X, e, row.exposure, inverse, loss);
      accumulate<L>(X, block_, padded);
    }
    if (-largest_lane(-lowest) <= kSmallestEta) loss[0] += kImpossible / kLanes;
    return total(loss);
  }

  template <int U>
  void linear_predictor(const double* X, std::int64_t stride, int e, const double* b, Vec* eta) const {
    LOG1PNMF_EACH eta[u] = Vec{};
    for (int k = 0; k < K_; ++k)
      LOG1PNMF_EACH eta[u] += b[k] * load(X + k * stride + e + u * kLanes);
  }

  // eta and em of U vectors of entries. Two loops, this and the next, because one has more in flight than registers.
  template <bool Identity, int U>
  void means(const double* X, int e, const double* b, Vec& lowest, Vec* loss) {
    Vec eta[U], em[U];
    linear_predictor<U>(X, block_, e, b, eta);
    if constexpr (U == 1) loss[0] += load(y_ + e) * impossible(eta[0]);   // padding, if any, is here
    else LOG1PNMF_EACH lowest = vmin(lowest, eta[u]);
    LOG1PNMF_EACH eta[u] = clamp_eta<Identity>(eta[u]);
    mean_part<Identity, U>(eta, em);
    LOG1PNMF_EACH store(em_ + e + u * kLanes, em[u]);
    if constexpr (!Identity) LOG1PNMF_EACH store(eta_ + e + u * kLanes, eta[u]);
  }

  template <bool Identity, bool Large, Level L, int U>
  void terms(const double* X, int e, double exposure, double* inverse, Vec* loss) {
    Vec em[U];
    LOG1PNMF_EACH em[u] = load(em_ + e + u * kLanes);
    [[maybe_unused]] Vec mean[U];
    if constexpr (Large) LOG1PNMF_EACH mean[u] = exposure * load(X + K_ * block_ + e + u * kLanes) * em[u];
    CountTerms<U> c;
    count_terms<Identity, Large, U>(y_ + e, em, mean, c);
    if constexpr (Identity) {   // the zero entries' form is exact and adds the mean
      if constexpr (Large)
        if (!apart_) LOG1PNMF_EACH c.loss[u] -= mean[u];
    } else {
      const double a1 = h_.model.a1, a2 = h_.model.a2;
      LOG1PNMF_EACH {
        const Vec t = exposure * load(X + K_ * block_ + e + u * kLanes), eta = load(eta_ + e + u * kLanes);
        if constexpr (Large) c.loss[u] -= t * (eta * (a1 + a2 * eta));
        else c.loss[u] += t * (em[u] - eta * (a1 + a2 * eta));
        c.residual[u] += t * (em[u] - 2.0 * a2 * eta + (1.0 - a1));
        c.weight[u] += t * (em[u] + (1.0 - 2.0 * a2));
      }
    }
    LOG1PNMF_EACH {
      const int at = e + u * kLanes;
      loss[u] += c.loss[u];
      if constexpr (L != Level::loss) store(residual_ + at, c.residual[u]);
      if constexpr (L == Level::hessian) {
        store(weight_ + at, c.weight[u]);
        store(inverse + at, c.inverse[u]);
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
      for (int e = 0; e < padded; e += kStep) exact_group<L>(X, e, b, row.exposure, loss);
      std::int64_t end = next;
      while (end < row.count && row.indices[end] < from + padded) ++end;
      if (end > next && h_.model.large) scatter_counts<true, L>(row, next, static_cast<int>(end - next), from, loss);
      else if (end > next) scatter_counts<false, L>(row, next, static_cast<int>(end - next), from, loss);
      next = end;
      if (h_.model.large)   // em of the counts is zero by now
        for (int e = 0; e < padded; e += kLanes) loss[0] += row.exposure * load(X + K_ * design_.padded + e) * load(em_ + e);
      accumulate<L>(X, design_.padded, padded);
    }
    return total(loss);
  }

  template <Level L>
  void exact_group(const double* X, int e, const double* b, double exposure, Vec* loss) {
    Vec eta[kUnroll], em[kUnroll];
    linear_predictor<kUnroll>(X, design_.padded, e, b, eta);
    constexpr int U = kUnroll;
    LOG1PNMF_EACH eta[u] = clamp_eta<false>(eta[u]);
    expm1<U>(eta, em);
    LOG1PNMF_EACH {
      const int at = e + u * kLanes;
      const Vec t = exposure * load(X + K_ * design_.padded + at);
      const Vec mean = t * em[u];
      if (!h_.model.large) loss[u] += mean;
      store(em_ + at, em[u]);
      if constexpr (L != Level::loss) store(residual_ + at, mean + t);
      if constexpr (L == Level::hessian) store(weight_ + at, mean + t);
    }
  }

  template <bool Large, Level L>
  void scatter_counts(const Row& row, std::int64_t first, int n, std::int64_t from, Vec* loss) {
    alignas(64) double em[kLargestBlock], mean[kLargestBlock], residual[kLargestBlock], weight[kLargestBlock];
    const std::int32_t* indices = row.indices + first;
    for (int p = 0; p < n; ++p) em[p] = em_[indices[p] - from];
    if constexpr (Large) {   // their loss has the mean
      const double* t = design_.transposed + K_ * design_.padded;
      for (int p = 0; p < n; ++p) {
        mean[p] = row.exposure * t[indices[p]] * em[p];
        em_[indices[p] - from] = 0.0;
      }
    }
    read_values(h_.rows, row.offset + first, n, y_);
    const int padded = static_cast<int>(round_up(n, kLanes));
    std::fill(em + n, em + padded, 1.0);
    if constexpr (Large) std::fill(mean + n, mean + padded, 0.0);
    std::fill(y_ + n, y_ + padded, 0.0);
    for (int p = 0; p < padded; p += kLanes) {
      const Vec at = load(em + p);
      Vec mean_at = Vec{};
      if constexpr (Large) mean_at = load(mean + p);
      loss[0] += load(y_ + p) * impossible(at);
      CountTerms<1> c;
      count_terms<false, Large, 1>(y_ + p, &at, &mean_at, c);
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
  Buffer X_, y_, eta_, em_, residual_, weight_, inverse_, gram_b_;
  Row row_{};
  bool apart_ = false;           // identity: whether the zeros' means are summed one by one, not as all less the counts'
  std::int64_t gathered_ = 0;    // entries of the row gathered so far
};

}  // namespace log1pnmf::LOG1PNMF_ISA
