// The means of a row, summed up over the columns of each batch.
#pragma once

#include "row_blocks.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// Poisson noise; not the identity link, where the sums are those of the design.
class RowMeans : protected RowBlocks {
 protected:
  RowMeans(const HalfStep& h, const Design& design, bool weighs)
      : RowBlocks(h, design, weighs), n_terms_(K_ + K_ * (K_ + 1) / 2), stride_(round_up(design.batches, kLanes)),
        terms_(h.batch_sums != nullptr ? n_terms_ * stride_ : 0), quadratics_(stride_), means_(h.batch_sums != nullptr ? block_ : 0),
        lanes_(h.batch_sums != nullptr ? round_up(design.batches, kLanes) * kLanes : 0),
        keeps_em_(h.batch_sums != nullptr), em_(!keeps_em_ ? block_ : h.model.exact_zeros ? design.padded : kept_),
        eta_(!keeps_em_ || h.model.exact_zeros ? block_ : kept_), evaluated_at_(K_), step_(K_) {
    if (h.batch_sums == nullptr || h.model.exact_zeros) return;
    for (int batch = 0; batch < design.batches; ++batch) {
      const double *linear = design.linear + batch * K_, *gram = design.gram + std::int64_t{batch} * K_ * K_;
      double* to = terms_ + batch;
      for (int k = 0; k < K_; ++k, to += stride_) *to = linear[k];
      for (int k = 0; k < K_; ++k)
        for (int l = 0; l <= k; ++l, to += stride_) *to = (l < k ? 2.0 : 1.0) * gram[k * K_ + l];
    }
  }

  // As if all effects were 1; one number for every batch, n_rows apart. In sparse form a quadratic is the mean of a zero that
  // is not visited, but for its constant.
  template <class Link>
  void sum(const double* b, double* to) {
    std::fill_n(static_cast<double*>(lanes_), design_.batches * kLanes, 0.0);
    double most = 0.0;
    for (int k = 0; k < K_; ++k) {
      step_[k] = b[k] - evaluated_at_[k];
      most += std::abs(step_[k]) * design_.largest[k];
    }
    const bool near = has_em_ && most <= kNear;
    if (h_.model.exact_zeros) add_all<Link>(b);
    else {
      if (near) add_visited<Link, true>(b);
      else add_visited<Link, false>(b);
      add_quadratics(b);
    }
    for (int first = 0; first < design_.batches; first += kLanes) {
      double sums[kLanes];
      store(sums, row_.exposure * (load(quadratics_ + first) + horizontal_sums(lanes_ + std::int64_t{first} * kLanes)));
      for (int i = 0; i < kLanes && first + i < design_.batches; ++i) to[(first + i) * h_.rows.n_rows] = sums[i];
    }
  }

 private:
  template <class Link, bool Near>
  void add_visited(const double* b) {
    add_visited<Link, Near>(row_, 0, b);
    add_visited<Link, Near>(row_.stored, first_zero_, b);
  }
  template <class Link, bool Near>
  void add_visited(const Entries& entries, std::int64_t place, const double* b) {
    for (std::int64_t from = 0; from < entries.count; from += block_) {
      const int n = static_cast<int>(std::min<std::int64_t>(block_, entries.count - from));
      const double* X = gathered(entries, from, n, place + from);
      int e = 0;
      for (; e + kStep <= n; e += kStep) keep_means<Link, Near, kUnroll>(X, e, place + from, b);
      for (; e < n; e += kLanes) keep_means<Link, Near, 1>(X, e, place + from, b);
      add(X + design_.label * block_, n);
    }
  }

  template <class Link>
  void add_all(const double* b) {
    for (int batch = 0; batch < design_.batches; ++batch) {
      Vec sum[kUnroll] = {};
      std::int64_t e = design_.first[batch];
      for (; e + kStep <= design_.first[batch + 1]; e += kStep) add_means<Link, kUnroll>(e, b, sum);
      for (; e < design_.first[batch + 1]; e += kLanes) add_means<Link, 1>(e, b, sum);
      for (int u = 1; u < kUnroll; ++u) sum[0] += sum[u];
      store(lanes_ + batch * kLanes, sum[0]);
    }
  }

  // Every lane has sums of its own, so that no sum waits for the one before.
  void add(const double* batch, int n) {
    double *lanes = lanes_, *means = means_;
    int e = 0;
#if LOG1PNMF_LANES == 8
    if (design_.batches <= kLanes) {   // in registers
      Vec sums[kLanes];
      for (int b = 0; b < kLanes; ++b) sums[b] = load(lanes + b * kLanes);
      for (; e < n; e += kLanes) add_by_label(load(means + e), batch + e, sums);
      for (int b = 0; b < kLanes; ++b) store(lanes + b * kLanes, sums[b]);
      return;
    }
#endif
    for (; e + kLanes <= n; e += kLanes)
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i) lanes[as_integer(batch + e + i) * kLanes + i] += means[e + i];
    for (; e < n; ++e) lanes[as_integer(batch + e) * kLanes] += means[e];
  }

  template <class Link, bool Near, int U>
  LOG1PNMF_INLINE void keep_means(const double* X, int e, std::int64_t place, const double* b) {
    Vec means[U];
    means_at<Link, true, Near, U>(X + e, block_, place + e, b, means);
    LOG1PNMF_EACH store(means_ + e + u * kLanes, means[u]);
  }

  template <class Link, int U>
  LOG1PNMF_INLINE void add_means(std::int64_t e, const double* b, Vec* sum) {
    Vec means[U];
    means_at<Link, false, false, U>(design_.transposed + e, design_.padded, e, b, means);
    LOG1PNMF_EACH sum[u] += means[u];
  }

  // Near: no eta of the row has changed much.
  template <class Link, bool LessQuadratic, bool Near, int U>
  LOG1PNMF_INLINE void means_at(const double* X, std::int64_t stride, std::int64_t place, const double* b, Vec* em) {
    Vec eta[U];
    if (!((Near || has_em_) && means_nearby<LessQuadratic, Near, U>(X, stride, place, em, eta))) {
      linear_predictor<U>(X, stride, 0, b, eta);
      LOG1PNMF_EACH eta[u] = Link::clamp_eta(eta[u]);
      Link::template mean_part<U>(eta, em);
    }
    if constexpr (LessQuadratic) LOG1PNMF_EACH em[u] -= eta[u] * (own_quadratic_[0] + own_quadratic_[1] * eta[u]);
    if (design_.exposure >= 0) LOG1PNMF_EACH em[u] *= load(X + design_.exposure * stride + u * kLanes);
  }

  // em and eta from those of the last evaluation, em by a series, where no eta has changed much since; says whether it was so.
  template <bool WithEta, bool Near, int U>
  LOG1PNMF_INLINE bool means_nearby(const double* X, std::int64_t stride, std::int64_t place, Vec* em, Vec* eta) {
    constexpr double kSeries[] = {1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0};
    Vec change[U], growth[U], most = Vec{};
    linear_predictor<U>(X, stride, 0, step_, change);
    if constexpr (!Near) {
      LOG1PNMF_EACH most = vmax(most, vmax(change[u], -change[u]));
      if (lanes_above(most, kNear) != 0) return false;
    }
    LOG1PNMF_EACH growth[u] = splat(1.0 / 120.0);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) LOG1PNMF_EACH growth[u] = growth[u] * change[u] + kSeries[i];
    LOG1PNMF_EACH em[u] = load(em_ + place + u * kLanes);
    LOG1PNMF_EACH em[u] = vmax(em[u] + (em[u] + 1.0) * (growth[u] * change[u]), splat(kSmallestEta));
    if constexpr (WithEta) LOG1PNMF_EACH eta[u] = vmax(load(eta_ + place + u * kLanes) + change[u], splat(kSmallestEta));
    return true;
  }

  // Of all columns of each batch: a1 linear'b + a2 b'gram b. A lane is a batch.
  void add_quadratics(const double* b) {
    std::int64_t batch = 0;
    for (; batch + kStep <= stride_; batch += kStep) add_quadratics<kUnroll>(b, batch);
    for (; batch < stride_; batch += kLanes) add_quadratics<1>(b, batch);
  }
  template <int U>
  LOG1PNMF_INLINE void add_quadratics(const double* b, std::int64_t batch) {
    const double a1 = own_quadratic_[0], a2 = own_quadratic_[1], *linear = terms_ + batch, *gram = linear + K_ * stride_;
    Vec sum[U] = {}, square[U] = {};
    for (int k = 0; k < K_; ++k, linear += stride_) {
      Vec own[U] = {};
      for (int l = 0; l <= k; ++l, gram += stride_) LOG1PNMF_EACH own[u] += b[l] * load(gram + u * kLanes);
      LOG1PNMF_EACH sum[u] += b[k] * load(linear + u * kLanes);
      LOG1PNMF_EACH square[u] += b[k] * own[u];
    }
    LOG1PNMF_EACH store(quadratics_ + batch + u * kLanes, a1 * sum[u] + a2 * square[u]);
  }

  static constexpr double kNear = 1.0 / 32.0;

  int n_terms_;
  std::int64_t stride_;
  Buffer terms_, quadratics_;             // n_terms x stride: K of linear, then the lower triangle of gram; of every batch
  Buffer means_, lanes_;                  // of a block; of every batch, by lane

 protected:
  bool keeps_em_, has_em_ = false;        // whether em of a row may be kept, and of this one is
  Buffer em_, eta_, evaluated_at_;        // of the block, or of the row at the last evaluation; where that was

 private:
  Buffer step_;                           // since
};

}  // namespace log1pnmf::LOG1PNMF_ISA
