// The counts and listed zeros of a row in blocks laid out by component (X[k][entry]), for which
// their design rows are gathered; and what is accumulated over a block.
#pragma once

#include <limits>

#include "design.hpp"
#include "policies.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

constexpr int kLargestBlock = 256;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTile = 4;  // 32 vector registers
#else
constexpr int kTile = 3;  // 16
#endif

// Entries gathered together.
constexpr int kTogether = kLanes >= 4 ? kLanes : 4;

// So many entries of kGroup streams, transposed in registers and stored: p[entry][stream] ->
// X[stream][entry].
ALWAYS_INLINE void transpose_group(const double* const* p, double* X, Index stride) {
  Vec a[4];
#if LOG1PNMF_LANES == 8
  typedef double Half __attribute__((vector_size(32)));
  REPEAT (i, 4)  // entries i and i + 4
    a[i] = __builtin_shufflevector(load_as<Half>(p[i]), load_as<Half>(p[i + 4]), 0, 1, 2, 3, 4, 5,
                                   6, 7);
#else
  REPEAT (i, 4) a[i] = load(p[i]);
#endif
  const Vec even[] = {even_lanes(a[0], a[1]), even_lanes(a[2], a[3])};
  const Vec odd[] = {odd_lanes(a[0], a[1]), odd_lanes(a[2], a[3])};
#if LOG1PNMF_LANES >= 4
  store(X, even_pairs(even[0], even[1]));
  store(X + stride, even_pairs(odd[0], odd[1]));
  store(X + 2 * stride, odd_pairs(even[0], even[1]));
  store(X + 3 * stride, odd_pairs(odd[0], odd[1]));
#else
  REPEAT (i, 2) store(X + 2 * i, even[i]), store(X + stride + 2 * i, odd[i]);
#endif
}

// Rows of the packed design -> streams of a block, kTogether rows at a time. The last ones are
// filled up with the row of zeros. Streams is the number of streams where it is known when
// compiling, else 0.
template <int Streams>
inline void gather_rows(const Design& design, const std::int32_t* indices, int n, Index readable,
                        double* X, Index stride) {
  constexpr int kAhead = 32, kLine = 8;  // entries; doubles in a cache line
  const int streams = Streams > 0 ? Streams : design.streams;
  const double* packed = design.packed;
  for (int e = 0; e < n; e += kTogether) {
    const double* p[kTogether];
    REPEAT (i, kTogether) p[i] = packed + (e + i < n ? indices[e + i] : design.zero_row) * streams;
    if (e + kAhead + kTogether <= readable)
      REPEAT (i, kTogether) {
        const double* later = packed + static_cast<Index>(indices[e + kAhead + i]) * streams;
        for (int k = 0; k < streams; k += kLine) __builtin_prefetch(later + k);
      }
#pragma GCC unroll 8
    for (int k = 0; k < streams; k += kGroup) {
      transpose_group(p, X + k * stride + e, stride);
      REPEAT (i, kTogether) p[i] += kGroup;
    }
  }
}

inline void gather(const Design& design, const std::int32_t* indices, int n, Index readable,
                   double* X, Index stride) {
  with_constant<8>(design.streams / kGroup, [&](auto groups) {
    gather_rows<groups * kGroup>(design, indices, n, readable, X, stride);
  });
}

// Sums over a row: g = X'r, and the lower triangle of H = X'diag(w)X of some components, kept as
// vectors until the row ends.
class Accumulator {
 public:
  explicit Accumulator(int K)
      : K_(K), lanes_((row(K) + K + kLanes) * kLanes), sums_(row(K) + K + kLanes),
        even_(row(K) + kLanes), used_(K), h_(lanes_), g_(lanes_ + row(K) * kLanes) {}

  void reset(bool with_hessian) {
    first_ = first_hessian_ = true;
    if (!with_hessian) return;
    std::memset(even_, 0, sizeof(double) * row(K_));
    use([](int) { return true; });
  }

  // Chooses the components of H.
  template <class Chosen>
  void use(const Chosen& chosen) {
    n_used_ = 0;
    for (int k = 0; k < K_; ++k) {
      used_[n_used_] = k;  // no branch: the processor could not predict it
      n_used_ += chosen(k);
    }
  }

  // Given residuals, g too, of the same components.
  void add_hessian(const double* X, Index stride, int padded, const double* weight,
                   const double* residual = nullptr) {
    // the sums of up to six components fit into 32 registers
    const int tile = kTile == 4 && n_used_ <= 6 ? n_used_ : kTile;
    for (int i = 0; i < n_used_; i += tile)
      with_constant<kTile == 4 ? 6 : kTile>(std::min(tile, n_used_ - i), [&](auto n) {
        diagonal_tile<n>(X, stride, padded, weight, residual, i);
        for (int j = 0; j < i; j += kTile) below_tile<n>(X, stride, padded, weight, i, j);
      });
    first_hessian_ = false;
    if (residual != nullptr) first_ = false;
  }

  void add_gradient(const double* X, Index stride, int padded, const double* residual) {
    for (int i = 0; i < K_; i += kSlopes)
      with_constant<kSlopes>(std::min(kSlopes, K_ - i),
                             [&](auto n) { slopes<n>(X, stride, padded, residual, i); });
    first_ = false;
  }

  // To H, of all stretches with their weights.
  void add_stretches(const Stretches& stretches, const double* weights) {
    stretches.add(weights, even_);
  }

  void finish(double* g) {
    if (first_) std::memset(g_, 0, sizeof(double) * K_ * kLanes);
    for (Index n = 0; n < K_; n += kLanes) store(sums_ + n, horizontal_sums(g_ + n * kLanes));
    std::copy_n(sums_ + 0, K_, g);
  }

  // Zero for the components that are not used.
  void finish_hessian(double* H) {
    const Index length = row(n_used_);
    if (first_hessian_) std::memset(h_, 0, sizeof(double) * length * kLanes);
    for (Index n = 0; n < length; n += kLanes) store(sums_ + n, horizontal_sums(h_ + n * kLanes));
    if (n_used_ < K_) std::memset(H, 0, sizeof(double) * K_ * K_);
    const double *from = sums_, *even = even_;
    for (int k = 0; k < n_used_; ++k)
      for (int l = 0; l <= k; ++l)
        H[used_[k] * K_ + used_[l]] = H[used_[l] * K_ + used_[k]] = *from++ + *even++;
  }

 private:
  static constexpr int kSlopes = 8;                      // components of g in one pass
  static Index row(Index k) { return k * (k + 1) / 2; }  // where that of the triangle begins

  template <int R>
  void slopes(const double* X, Index stride, int padded, const double* residual, int i) {
    Vec g[R] = {};
    const double* x0 = X + i * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec r = load(residual + e);
      REPEAT (a, R) g[a] += r * load(x0 + a * stride + e);
    }
    REPEAT (a, R) add(g_ + (i + a) * kLanes, g[a], first_);
  }

  template <int R>
  void diagonal_tile(const double* X, Index stride, int padded, const double* weight,
                     const double* residual, int i) {
    Vec h[R][R] = {}, g[R] = {};
    const double* from[R];
    REPEAT (a, R) from[a] = X + used_[i + a] * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec w = load(weight + e);
      Vec x[R];
      REPEAT (a, R) x[a] = load(from[a] + e);
      if (residual != nullptr)
        REPEAT (a, R) g[a] += load(residual + e) * x[a];
      REPEAT (a, R) {
        const Vec wx = w * x[a];
        REPEAT (b, a + 1) h[a][b] += wx * x[b];
      }
    }
    REPEAT (a, R) {
      if (residual != nullptr) add(g_ + (i + a) * kLanes, g[a], first_);
      REPEAT (b, a + 1) add(h_ + (row(i + a) + i + b) * kLanes, h[a][b], first_hessian_);
    }
  }

  template <int R>
  void below_tile(const double* X, Index stride, int padded, const double* weight, int i, int j) {
    Vec h[R][kTile] = {};
    const double *x0[R], *z0[kTile];
    REPEAT (a, R) x0[a] = X + used_[i + a] * stride;
    REPEAT (b, kTile) z0[b] = X + used_[j + b] * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec w = load(weight + e);
      Vec z[kTile];
      REPEAT (b, kTile) z[b] = load(z0[b] + e);
      REPEAT (a, R) {
        const Vec wx = w * load(x0[a] + e);
        REPEAT (b, kTile) h[a][b] += wx * z[b];
      }
    }
    REPEAT (a, R)
      REPEAT (b, kTile) add(h_ + (row(i + a) + j + b) * kLanes, h[a][b], first_hessian_);
  }

  static void add(double* to, Vec v, bool first) { store(to, first ? v : load(to) + v); }

  int K_;
  // whether the next block is the first of the gradient and of the triangle: stored, not added
  bool first_ = true, first_hessian_ = true;
  Buffer lanes_, sums_, even_;
  std::vector<int> used_;  // components of H, n_used_ of them
  int n_used_ = 0;
  double *h_, *g_;  // in lanes_: the triangle, and after it the gradient
};

// Some entries of a row.
struct Entries {
  const std::int32_t* indices = nullptr;
  Index count = 0,
        readable = 0;  // entries; indices that may be read from the first on (for prefetching)
};

inline Entries entries_at(const Pattern& all, Index n_rows, Index i) {
  if (all.indptr == nullptr) return {};
  const Index from = all.indptr[i];
  return {all.indices + from, all.indptr[i + 1] - from, all.indptr[n_rows] - from};
}
inline Entries counts_at(const Rows& rows, Index i) {
  return entries_at({rows.indptr, rows.indices}, rows.n_rows, i);
}

struct Row : Entries {  // the non-zeros
  Index number = 0;
  Index offset = 0;  // of the first non-zero in the value array
  double exposure = 0.0;
  Entries stored;  // listed zeros, in sparse form
};

inline Row row_at(const HalfStep& h, Index i) {
  return {counts_at(h.rows, i), i, h.rows.indptr[i], h.rows.row_exposure[i],
          entries_at(h.zeros.stored, h.rows.n_rows, i)};
}

// Reads n counts, and gives the smallest of them.
template <class T>
double read_as_doubles(const T* from, Index n, double* to) {
  typedef T Some __attribute__((vector_size(sizeof(T) * kLanes)));
  Vec least = splat(std::numeric_limits<double>::infinity());
  Index at = 0;
  for (; at + kLanes <= n; at += kLanes) {
    const Vec y = __builtin_convertvector(load_as<Some>(from + at), Vec);
    store(to + at, y);
    least = vmin(least, y);
  }
  double smallest = -largest_lane(-least);
  for (; at < n; ++at) {
    to[at] = from[at];
    smallest = std::min(smallest, to[at]);
  }
  return smallest;
}
inline double read_values(const Rows& rows, Index offset, Index n, double* y) {
  if (rows.values_f32 != nullptr) return read_as_doubles(rows.values_f32 + offset, n, y);
  return read_as_doubles(rows.values_f64 + offset, n, y);
}

// eta = x'b of U vectors of entries, from entry e of a block on.
template <int U>
ALWAYS_INLINE void linear_predictor(int K, const double* X, Index stride, int e, const double* b,
                                    Vec* eta) {
  EACH eta[u] = Vec{};
  for (int k = 0; k < K; ++k) EACH eta[u] += b[k] * load(X + k * stride + e + u * kLanes);
}

// Effects of the batches of a row: of every column, or of every batch of columns.
inline const double* effects_of_row(const Rows& rows, Index i) {
  const Batches& own = rows.batches;
  return own.effects + (own.row_batch ? own.row_batch[i] * rows.n_columns : i * own.count);
}

// The dispersion phi of entries: that of their row, or a stream of the design.
class Dispersions {
 public:
  Dispersions(const HalfStep& h, const Design& design)
      : of_rows_(h.rows.row_dispersion), stream_(design.dispersion) {}

  void start_row(Index i) {
    if (of_rows_ == nullptr) return;
    phi_ = std::max(of_rows_[i], kSmallestPhi);
    inverse_ = 1.0 / phi_;
  }

  template <int U>
  ALWAYS_INLINE void fill(const double* X, Index stride, int e, EntriesAt<U>& at) const {
    if (stream_ < 0) {
      EACH at.phi[u] = splat(phi_);
      EACH at.inverse_phi[u] = splat(inverse_);
    } else {
      const double* from = X + stream_ * stride + e;
      EACH at.phi[u] = vmax(load(from + u * kLanes), splat(kSmallestPhi));
      EACH at.inverse_phi[u] = at.phi[u];
      reciprocals<U>(at.inverse_phi);
    }
  }

 private:
  const double* of_rows_;
  int stream_;
  double phi_ = 0.0, inverse_ = 0.0;
};

// Gathered blocks: first those of the counts, then those of the listed zeros. They stay valid for
// further evaluations of the row if it is short enough.
class RowBlocks {
 public:
  const int K, block;    // components; entries of a block
  const Index capacity;  // entries of the longest row whose blocks are kept

  RowBlocks(const HalfStep& h, const Design& design)
      : K(h.n_components), block(block_size(K, h.model.exact_zeros)),
        capacity(std::min(round_up(kKeptBytes / (8 * design.streams), block),
                          round_up(h.rows.n_columns, block) + block)),
        h_(h), design_(design), dispersions_(h, design), X_(design.streams * capacity),
        gathers_effects_(weighs_entries(h) && h.rows.batches.row_batch != nullptr),
        effects_(design.label >= 0  ? design.batches
                 : gathers_effects_ ? capacity
                                    : 0) {}

  void start_row(const Row& row) {
    row_ = row;
    first_zero_ = round_up(row.count, block);
    kept_ = first_zero_ + row.stored.count <= capacity;
    gathered_ = 0;
    dispersions_.start_row(row.number);
    if (design_.label >= 0) {
      const double* effects = effects_of_row(h_.rows, row.number);
      for (int b = 0; b < design_.batches; ++b) effects_[b] = effects[b] * row.exposure;
    }
    if (h_.model.exact_zeros || h_.zeros.row_quadratic == nullptr) return;
    const int width = design_.rank + 1;
    std::copy_n(h_.zeros.row_quadratic + width * row.number, width, quadratic_);
  }

  const Row& row() const { return row_; }
  bool kept() const { return kept_; }
  Index first_zero() const { return first_zero_; }        // where the listed zeros begin
  const double* quadratic() const { return quadratic_; }  // a1, a2 and b2 or a4 of the row
  const double* at(Index place) const { return X_ + place * design_.streams; }
  int length(const Entries& entries, Index from) const {
    return static_cast<int>(std::min<Index>(block, entries.count - from));
  }

  // The block of n entries from `from` on, at its place among all blocks of the row.
  const double* gathered(const Entries& entries, Index from, int n, Index place) {
    const Index here = kept_ ? place : 0;
    double* X = X_ + here * design_.streams;
    const std::int32_t* indices = entries.indices + from;
    if (place >= gathered_ || !kept_) {
      gather(design_, indices, n, entries.readable - from, X, block);
      gathered_ = place + n;
      if (gathers_effects_) gather_effects(indices, n, effects_ + here);
    }
    if (gathers_effects_) effects_here_ = effects_ + here;
    return X;
  }

  // Exposure t, and with Dispersed the dispersion, of U vectors of entries.
  template <bool Dispersed, int U>
  ALWAYS_INLINE void exposures(const double* X, int e, EntriesAt<U>& at) const {
    EACH at.t[u] = splat(row_.exposure);
    if (design_.label >= 0) {
      const double* labels = X + design_.label * block + e;
      EACH at.t[u] = look_up(effects_, design_.batches, labels + u * kLanes);
    }
    if (design_.exposure >= 0) EACH at.t[u] *= load(X + design_.exposure * block + e + u * kLanes);
    if (effects_here_ != nullptr) EACH at.t[u] *= load(effects_here_ + e + u * kLanes);
    if constexpr (Dispersed) dispersions_.fill<U>(X, block, e, at);
  }

  // The quadratic that approximates the zero terms of U vectors of entries, from their exposure.
  template <class Link, class Noise, int U>
  ALWAYS_INLINE void quadratics(const double* X, int e, EntriesAt<U>& at) const {
    constexpr bool Dispersed = Noise::kDispersed;
    constexpr bool kSquare = !(Link::kLinear && Dispersed);
    if (design_.quadratic < 0) {
      EACH at.a1[u] = splat(quadratic_[0]);
      if constexpr (kSquare) EACH at.a2[u] = splat(quadratic_[1]);
      if constexpr (Dispersed) EACH at.t_b2[u] = at.t[u] * quadratic_[2];
      if constexpr (Noise::kQuartic) EACH at.a4[u] = splat(quadratic_[2]);
    } else {
      const double* from = X + design_.quadratic * block + e;
      EACH load_pairs(from + u * kLanes, at.a1[u], kSquare ? at.a2[u] : at.t_b2[u]);
      if constexpr (kSquare && Dispersed) EACH at.t_b2[u] = load(from + block + u * kLanes);
      if constexpr (Dispersed) EACH at.t_b2[u] *= at.t[u];
      if constexpr (Noise::kQuartic) EACH at.a4[u] = load(from + block + u * kLanes);
    }
  }

 private:
  static constexpr Index kKeptBytes = 1 << 19;  // well inside a second-level cache

  void gather_effects(const std::int32_t* indices, int n, double* __restrict to) const {
    const double* effects = effects_of_row(h_.rows, row_.number);
    for (int e = 0; e < n; ++e) to[e] = effects[indices[e]];
    std::fill(to + n, to + round_up(n, kLanes), 0.0);
  }

  const HalfStep& h_;
  const Design& design_;
  Dispersions dispersions_;
  Buffer X_;  // the blocks of the row, or the one at hand
  Row row_{};
  bool kept_ = false;   // whether the row's blocks are kept
  Index gathered_ = 0;  // entries of the row gathered so far
  Index first_zero_ = 0;
  double quadratic_[3] = {};
  bool gathers_effects_;                  // whether effects are gathered by themselves
  Buffer effects_;                        // batches of rows: of the entries of the kept blocks;
                                          // of columns: the exposure of every batch
  const double* effects_here_ = nullptr;  // of the block at hand
};

}  // namespace log1pnmf::LOG1PNMF_ISA
