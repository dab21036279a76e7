// What the entries of one row are: their design rows in blocks, exposures, dispersions, and what stands in for their zeros.
#pragma once

#include "entries.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class RowBlocks {
 protected:
  // weighs: whether the exposures of single entries are looked at.
  RowBlocks(const HalfStep& h, const Design& design, bool weighs)
      : K_(h.n_components),
        block_(block_size(K_, h.model.exact_zeros)),
        h_(h),
        design_(design),
        kept_(std::min(round_up(kKeptBytes / (8 * design.streams), block_), round_up(h.rows.n_columns, block_) + block_)),
        X_(design.streams * kept_),
        own_(design.carries ? (design.zero_row + 1) * design.streams : 0),
        packed_(design.carries ? own_ : design.packed),
        in_batches_(weighs && !design.carries && h.rows.batches.row_batch != nullptr),
        effects_(design.label >= 0 ? design.batches : in_batches_ ? kept_ : 0),
        levels_(design.first.empty() ? 0 : design.columns / kLanes) {
    if (design.carries) std::copy_n(static_cast<const double*>(design.packed), (design.zero_row + 1) * design.streams, static_cast<double*>(own_));
  }

  // Gathered blocks of a row stay valid for further evaluations of the same row if it is short enough.
  void start_row(const Row& row) {
    row_ = row;
    first_zero_ = round_up(row.count, block_);
    keeps_ = first_zero_ + row.stored.count <= kept_;
    gathered_ = 0;
    if (design_.carries) carry_effects();
    for (int b = 0; !design_.first.empty() && b < design_.batches; ++b)
      std::fill(levels_ + design_.first[b] / kLanes, levels_ + design_.first[b + 1] / kLanes, row.exposure * effects_of_row()[b]);
    if (design_.label >= 0) std::transform(effects_of_row(), effects_of_row() + design_.batches, effects_ + 0, [&](double q) { return q * row.exposure; });
    if (h_.rows.row_dispersion != nullptr) {
      own_phi_ = std::max(h_.rows.row_dispersion[row.number], kSmallestPhi);
      own_inverse_phi_ = 1.0 / own_phi_;
    }
    if (h_.model.exact_zeros || h_.zeros.row_quadratic == nullptr) return;
    std::copy_n(h_.zeros.row_quadratic + (design_.rank + 1) * row.number, design_.rank + 1, own_quadratic_);
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
      gather(design_, packed_, entries.indices + from, n, entries.readable - from, X, block_);
      gathered_ = place + n;
      if (in_batches_) gather_effects(entries.indices + from, n);
    }
    if (in_batches_) effects_here_ = effects_ + here_;
    return X;
  }

  // Writes the effects of the row's batch into the design, unless they are there: rows come batch by batch.
  void carry_effects() {
    const std::int32_t batch = h_.rows.batches.row_batch[row_.number];
    if (batch == carried_) return;
    const double* effects = effects_of_row();
    double* to = own_ + design_.exposure;
    for (std::int64_t j = 0; j < h_.rows.n_columns; ++j, to += design_.streams) *to = effects[j];
    carried_ = batch;
  }

  void gather_effects(const std::int32_t* indices, int n) {
    const double* effects = effects_of_row();
    double* to = effects_ + here_;
    int e = 0;
    for (; e + kLanes <= n; e += kLanes) store(to + e, load_at(effects, load(indices + e)));
    for (; e < n; ++e) to[e] = effects[indices[e]];
    std::fill(to + n, to + round_up(n, kLanes), 0.0);
  }

  // Exact form: the block of columns from here on.
  const double* columns(std::int64_t from) {
    const double* X = design_.transposed + from;
    const std::int32_t* batch = h_.rows.batches.row_batch;
    exposure_here_ = batch != nullptr ? design_.exposures + batch[row_.number] * design_.padded + from : X + design_.exposure * design_.padded;
    if (!design_.first.empty()) levels_here_ = levels_ + from / kLanes;
    return X;
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

  // Exposure and dispersion of U vectors of entries, which were gathered or (Exact) are all columns of a block.
  template <bool Exact, bool Dispersed, int U>
  LOG1PNMF_INLINE void belongings(const double* X, std::int64_t stride, int e, EntriesAt<U>& at) const {
    LOG1PNMF_EACH at.t[u] = splat(row_.exposure);
    if constexpr (Exact) {
      if (levels_here_ != nullptr) LOG1PNMF_EACH at.t[u] = splat(levels_here_[e / kLanes + u]);
      LOG1PNMF_EACH at.t[u] *= load(exposure_here_ + e + u * kLanes);
    } else {
      if (design_.label >= 0) LOG1PNMF_EACH at.t[u] = look_up(effects_, design_.batches, X + design_.label * stride + e + u * kLanes);
      if (design_.exposure >= 0) LOG1PNMF_EACH at.t[u] *= load(X + design_.exposure * stride + e + u * kLanes);
      if (effects_here_ != nullptr) LOG1PNMF_EACH at.t[u] *= load(effects_here_ + e + u * kLanes);
    }
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

  bool in_batches() const { return h_.rows.batches.any(); }
  // Exact form: times the effects of batches, and where these are of columns times the row's exposure.
  template <int U>
  LOG1PNMF_INLINE void effects_on(int e, Vec* rise) const {
    if (levels_here_ != nullptr) LOG1PNMF_EACH rise[u] *= splat(levels_here_[e / kLanes + u]);
    if (h_.rows.batches.row_batch != nullptr) LOG1PNMF_EACH rise[u] *= load(exposure_here_ + e + u * kLanes);
  }

  // What stands in for their zero terms; needs their exposure.
  template <class Link, bool Dispersed, int U>
  LOG1PNMF_INLINE void quadratics(const double* X, int e, EntriesAt<U>& at) const {
    constexpr bool kSquare = !(Link::kLinear && Dispersed);
    if (design_.quadratic < 0) {
      LOG1PNMF_EACH at.a1[u] = splat(own_quadratic_[0]);
      if constexpr (kSquare) LOG1PNMF_EACH at.a2[u] = splat(own_quadratic_[1]);
      if constexpr (Dispersed) LOG1PNMF_EACH at.bent[u] = at.t[u] * own_quadratic_[2];
    } else {
      const double* from = X + design_.quadratic * block_ + e;
      LOG1PNMF_EACH load_pairs(from + u * kLanes, at.a1[u], kSquare ? at.a2[u] : at.bent[u]);
      if constexpr (kSquare && Dispersed) LOG1PNMF_EACH at.bent[u] = load(from + block_ + u * kLanes);
      if constexpr (Dispersed) LOG1PNMF_EACH at.bent[u] *= at.t[u];
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
  Buffer own_;                   // the packed design of this thread, with the effects of a batch
  const double* packed_;         // this one, or that of all
  std::int32_t carried_ = -1;    // whose effects these are
  bool in_batches_;              // whether effects are gathered by themselves
  Buffer effects_;               // with batches of rows: of the entries whose blocks are kept; of columns: the exposure of every batch
  std::int64_t here_ = 0;                  // where the block at hand begins
  const double* effects_here_ = nullptr;   // its effects
  Buffer levels_;                          // exact form, batches of columns: the exposure of every vector
  const double *exposure_here_ = nullptr, *levels_here_ = nullptr;   // exact form: of the block at hand
  std::int64_t gathered_ = 0;    // entries of the row gathered so far
  std::int64_t first_zero_ = 0;  // where the blocks of the stored zeros begin
};

}  // namespace log1pnmf::LOG1PNMF_ISA
