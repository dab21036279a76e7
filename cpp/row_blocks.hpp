// What the entries of one row are: their design rows in blocks, exposures, dispersions, and what stands in for their zeros.
#pragma once

#include "entries.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class RowBlocks {
 protected:
  // weighs: whether the exposures of single entries are looked at.
  RowBlocks(const HalfStep& h, const Design& design, bool weighs)
      : K_(h.n_components),
        block_(block_size(K_)),
        h_(h),
        design_(design),
        kept_(h.model.exact_zeros ? h.rows.n_columns : round_up(kKeptBytes / (8 * design.streams), block_)),
        X_(h.model.exact_zeros ? 0 : design.streams * kept_),
        in_batches_(weighs && h.rows.batches.any()),
        effects_(!in_batches_ ? 0 : h.model.exact_zeros ? design.padded : kept_),
        labels_(in_batches_ && !h.model.exact_zeros && h.rows.batches.column_batch != nullptr ? kept_ : 0) {}

  // Gathered blocks of a row stay valid for further evaluations of the same row if it is short enough.
  void start_row(const Row& row) {
    row_ = row;
    first_zero_ = round_up(row.count, block_);
    keeps_ = first_zero_ + row.stored.count <= kept_;
    gathered_ = 0;
    if (h_.model.exact_zeros && in_batches_) all_effects();
    if (h_.rows.row_dispersion != nullptr) {
      own_phi_ = std::max(h_.rows.row_dispersion[row.number], kSmallestPhi);
      own_inverse_phi_ = 1.0 / own_phi_;
    }
    if (h_.model.exact_zeros || h_.zeros.row_quadratic == nullptr) return;
    const int width = h_.model.noise == Noise::negative_binomial ? 3 : 2;
    for (int i = 0; i < width; ++i) own_quadratic_[i] = h_.zeros.row_quadratic[width * row.number + i];
  }

  // By which the exposure of a column of the row is multiplied, with batches.
  double effect_of(std::int64_t j) const {
    const std::int32_t* batch = h_.rows.batches.column_batch;
    return effects_of_row()[batch != nullptr ? batch[j] : j];
  }

  // The block of n entries from `from` on, at its place among all blocks of the row.
  const double* gathered(const Entries& entries, std::int64_t from, int n, std::int64_t place) {
    double* X = X_;
    here_ = keeps_ ? place : 0;
    if (keeps_) X += place * design_.streams;
    if (place >= gathered_ || !keeps_) {
      gather(design_, entries.indices + from, n, entries.readable - from, X, block_);
      gathered_ = place + n;
      if (in_batches_) gather_effects(entries.indices + from, n);
    }
    if (in_batches_) effects_here_ = effects_ + here_;
    return X;
  }

  void gather_effects(const std::int32_t* indices, int n) {
    const std::int32_t* batch = h_.rows.batches.column_batch;
    const double* effects = effects_of_row();
    double* to = effects_ + here_;
    std::int32_t* labels = batch != nullptr ? labels_.data() + here_ : nullptr;
    int e = 0;
    for (; e + kLanes <= n; e += kLanes) {
      VecI32 at = load(indices + e);
      if (batch != nullptr) store(labels + e, at = load_at(batch, at));
      store(to + e, load_at(effects, at));
    }
    for (; e < n; ++e) {
      std::int32_t at = indices[e];
      if (batch != nullptr) at = labels[e] = batch[at];
      to[e] = effects[at];
    }
    std::fill(to + n, to + round_up(n, kLanes), 0.0);
  }

  void all_effects() {
    const std::int32_t* batch = h_.rows.batches.column_batch;
    const double* effects = effects_of_row();
    const std::int64_t m = h_.rows.n_columns;
    std::int64_t j = 0;
    if (batch == nullptr) std::copy_n(effects, m, static_cast<double*>(effects_));
    else
      for (; j + kLanes <= m; j += kLanes) store(effects_ + j, load_at(effects, load(batch + j)));
    if (batch != nullptr)
      for (; j < m; ++j) effects_[j] = effects[batch[j]];
  }

  // Of every column, or of every batch of columns.
  const double* effects_of_row() const {
    const Batches& own = h_.rows.batches;
    return own.effects + (own.row_batch != nullptr ? own.row_batch[row_.number] * h_.rows.n_columns : row_.number * own.count);
  }

  template <int U>
  LOG1PNMF_INLINE void linear_predictor(const double* X, std::int64_t stride, int e, const double* b, Vec* eta) const {
    LOG1PNMF_EACH eta[u] = Vec{};
    for (int k = 0; k < K_; ++k)
      LOG1PNMF_EACH eta[u] += b[k] * load(X + k * stride + e + u * kLanes);
  }

  // Exposure and dispersion of U vectors of entries.
  template <bool Dispersed, int U>
  LOG1PNMF_INLINE void belongings(const double* X, std::int64_t stride, int e, EntriesAt<U>& at) const {
    LOG1PNMF_EACH at.t[u] = splat(row_.exposure);
    if (design_.exposure >= 0) LOG1PNMF_EACH at.t[u] *= load(X + design_.exposure * stride + e + u * kLanes);
    if (effects_here_ != nullptr) LOG1PNMF_EACH at.t[u] *= load(effects_here_ + e + u * kLanes);
    if constexpr (Dispersed) {
      if (design_.dispersion < 0) {
        LOG1PNMF_EACH at.phi[u] = splat(own_phi_);
        LOG1PNMF_EACH at.inverse_phi[u] = splat(own_inverse_phi_);
      } else {
        const double* from = X + design_.dispersion * stride + e;
        LOG1PNMF_EACH at.phi[u] = vmax(load(from + u * kLanes), splat(kSmallestPhi));
        LOG1PNMF_EACH at.inverse_phi[u] = at.phi[u];
        reciprocals<U>(at.inverse_phi);
      }
    }
  }

  // What stands in for their zero terms; needs their exposure.
  template <bool Dispersed, int U>
  LOG1PNMF_INLINE void quadratics(const double* X, int e, EntriesAt<U>& at) const {
    if (design_.quadratic < 0) {
      LOG1PNMF_EACH at.a1[u] = splat(own_quadratic_[0]);
      LOG1PNMF_EACH at.a2[u] = splat(own_quadratic_[1]);
      if constexpr (Dispersed) LOG1PNMF_EACH at.a1[u] += at.t[u] * own_quadratic_[2];
    } else {
      const double* from = X + design_.quadratic * block_ + e;
      LOG1PNMF_EACH at.a1[u] = load(from + u * kLanes);
      LOG1PNMF_EACH at.a2[u] = load(from + block_ + u * kLanes);
      if constexpr (Dispersed) LOG1PNMF_EACH at.a1[u] += at.t[u] * load(from + 2 * block_ + u * kLanes);
    }
  }

  static constexpr std::int64_t kKeptBytes = 1 << 19;   // well inside a second-level cache

  int K_, block_;
  const HalfStep& h_;
  const Design& design_;
  std::int64_t kept_;            // longest row whose gathered blocks are kept
  Buffer X_;                     // those blocks, or the one at hand
  Row row_{};
  bool keeps_ = false;           // whether the row's gathered blocks are kept
  double own_phi_ = 0.0, own_inverse_phi_ = 0.0, own_quadratic_[3] = {};   // of the row
  bool in_batches_;              // whether entries have effects
  Buffer effects_;               // with batches: of the entries whose blocks are kept; exact form: of all columns
  std::vector<std::int32_t> labels_;       // with batches of columns: of the same entries
  std::int64_t here_ = 0;                  // where the block at hand begins
  const double* effects_here_ = nullptr;   // its effects
  std::int64_t gathered_ = 0;    // entries of the row gathered so far
  std::int64_t first_zero_ = 0;  // where the blocks of the stored zeros begin
};

}  // namespace log1pnmf::LOG1PNMF_ISA
