// A block of one row's entries, laid out by component, and what is accumulated over it.
#pragma once

#include "design.hpp"
#include "policies.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

constexpr int kLargestBlock = 128;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTile = 4;   // 32 vector registers
#else
constexpr int kTile = 3;   // 16
#endif

inline int block_size(int K) { return K <= 24 ? 128 : K <= 56 ? 64 : 32; }

// Four entries of kGroup streams, transposed in registers and stored: p[entry][stream] -> X[stream][entry].
LOG1PNMF_INLINE void transpose_group(const double* const* p, double* X, std::int64_t stride) {
#if LOG1PNMF_LANES >= 4
  typedef double Quad __attribute__((vector_size(32)));
  Quad a[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) std::memcpy(&a[i], p[i], sizeof a[i]);
  const Quad even0 = __builtin_shufflevector(a[0], a[1], 0, 4, 2, 6), odd0 = __builtin_shufflevector(a[0], a[1], 1, 5, 3, 7);
  const Quad even1 = __builtin_shufflevector(a[2], a[3], 0, 4, 2, 6), odd1 = __builtin_shufflevector(a[2], a[3], 1, 5, 3, 7);
  a[0] = __builtin_shufflevector(even0, even1, 0, 1, 4, 5);
  a[1] = __builtin_shufflevector(odd0, odd1, 0, 1, 4, 5);
  a[2] = __builtin_shufflevector(even0, even1, 2, 3, 6, 7);
  a[3] = __builtin_shufflevector(odd0, odd1, 2, 3, 6, 7);
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) std::memcpy(X + k * stride, &a[k], sizeof a[k]);
#else
  typedef double Pair __attribute__((vector_size(16)));
  Pair a[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) std::memcpy(&a[i], p[i], sizeof a[i]);
  const Pair even0 = __builtin_shufflevector(a[0], a[1], 0, 2), even1 = __builtin_shufflevector(a[2], a[3], 0, 2);
  const Pair odd0 = __builtin_shufflevector(a[0], a[1], 1, 3), odd1 = __builtin_shufflevector(a[2], a[3], 1, 3);
  std::memcpy(X, &even0, sizeof even0);
  std::memcpy(X + 2, &even1, sizeof even1);
  std::memcpy(X + stride, &odd0, sizeof odd0);
  std::memcpy(X + stride + 2, &odd1, sizeof odd1);
#endif
}

// Rows of the packed design -> streams of a block, four rows at a time. Pads with zero rows.
// Streams is the number of streams where it is known when compiling, else 0.
template <int Streams>
inline void gather_rows(const Design& design, const std::int32_t* indices, int n, std::int64_t readable, double* X,
                        std::int64_t stride) {
  constexpr int kAhead = 16, kLine = 8;   // entries; doubles in a cache line
  const int streams = Streams > 0 ? Streams : design.streams;
  int e = 0;
  for (; e + 4 <= n; e += 4) {
    const double* p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) p[i] = design.packed + static_cast<std::int64_t>(indices[e + i]) * streams;
    if (e + kAhead + 4 <= readable)
      for (int i = 0; i < 4; ++i) {
        const double* later = design.packed + static_cast<std::int64_t>(indices[e + kAhead + i]) * streams;
        for (int k = 0; k < streams; k += kLine) __builtin_prefetch(later + k);
      }
#pragma GCC unroll 8
    for (int k = 0; k < streams; k += kGroup) {
      transpose_group(p, X + k * stride + e, stride);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) p[i] += kGroup;
    }
  }
  const int padded = static_cast<int>(round_up(n, kLanes));
  for (; e < padded; ++e)
    for (int k = 0; k < streams; ++k)
      X[k * stride + e] = e < n ? design.packed[static_cast<std::int64_t>(indices[e]) * streams + k] : 0.0;
}

inline void gather(const Design& design, const std::int32_t* indices, int n, std::int64_t readable, double* X,
                   std::int64_t stride) {
  switch (design.streams / kGroup) {
    case 1: return gather_rows<1 * kGroup>(design, indices, n, readable, X, stride);
    case 2: return gather_rows<2 * kGroup>(design, indices, n, readable, X, stride);
    case 3: return gather_rows<3 * kGroup>(design, indices, n, readable, X, stride);
    case 4: return gather_rows<4 * kGroup>(design, indices, n, readable, X, stride);
    case 5: return gather_rows<5 * kGroup>(design, indices, n, readable, X, stride);
    case 6: return gather_rows<6 * kGroup>(design, indices, n, readable, X, stride);
    case 7: return gather_rows<7 * kGroup>(design, indices, n, readable, X, stride);
    case 8: return gather_rows<8 * kGroup>(design, indices, n, readable, X, stride);
    default: return gather_rows<0>(design, indices, n, readable, X, stride);
  }
}

// Sums over a row: loss, g = X'r, and the lower triangle of H = X'diag(w)X, kept as vectors until the row ends.
class Accumulator {
 public:
  explicit Accumulator(int K) : K_(K), h_(static_cast<std::int64_t>(K) * K * kLanes), g_(static_cast<std::int64_t>(K) * kLanes) {}

  void reset() {
    std::memset(h_, 0, sizeof(double) * K_ * K_ * kLanes);
    std::memset(g_, 0, sizeof(double) * K_ * kLanes);
  }

  void add_block(const double* X, std::int64_t stride, int padded, const double* residual, const double* weight) {
    for (int i = 0; i < K_; i += kTile) {
      diagonal(std::min(kTile, K_ - i), X, stride, padded, residual, weight, i);
      for (int j = 0; j < i; j += kTile) below(std::min(kTile, K_ - i), X, stride, padded, weight, i, j);
    }
  }

  void add_gradient(const double* X, std::int64_t stride, int padded, const double* residual) {
    for (int i = 0; i < K_; i += kTile) {
      const int rows = std::min(kTile, K_ - i);
      Vec g[kTile] = {};
      for (int e = 0; e < padded; e += kLanes) {
        const Vec r = load(residual + e);
#pragma GCC unroll 4
        for (int a = 0; a < kTile; ++a) g[a] += r * load(X + (i + (a < rows ? a : 0)) * stride + e);
      }
      for (int a = 0; a < rows; ++a) add(g_ + (i + a) * kLanes, g[a]);
    }
  }

  void finish(double* H, double* g, bool with_hessian) const {
    for (int k = 0; k < K_; ++k) {
      g[k] = horizontal_sum(load(g_ + k * kLanes));
      if (!with_hessian) continue;
      for (int l = 0; l <= k; ++l)
        H[k * K_ + l] = H[l * K_ + k] = horizontal_sum(load(h_ + (k * K_ + l) * kLanes));
    }
  }

 private:
  template <int R>
  void diagonal_tile(const double* X, std::int64_t stride, int padded, const double* residual, const double* weight, int i) {
    Vec h[R][R] = {}, g[R] = {};
    const double* x0 = X + i * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec w = load(weight + e), r = load(residual + e);
      Vec x[R];
#pragma GCC unroll 4
      for (int a = 0; a < R; ++a) x[a] = load(x0 + a * stride + e);
#pragma GCC unroll 4
      for (int a = 0; a < R; ++a) {
        const Vec wx = w * x[a];
        g[a] += r * x[a];
#pragma GCC unroll 4
        for (int b = 0; b <= a; ++b) h[a][b] += wx * x[b];
      }
    }
#pragma GCC unroll 4
    for (int a = 0; a < R; ++a) {
      add(g_ + (i + a) * kLanes, g[a]);
#pragma GCC unroll 4
      for (int b = 0; b <= a; ++b) add(h_ + ((i + a) * K_ + i + b) * kLanes, h[a][b]);
    }
  }

  template <int R>
  void below_tile(const double* X, std::int64_t stride, int padded, const double* weight, int i, int j) {
    Vec h[R][kTile] = {};
    const double *x0 = X + i * stride, *z0 = X + j * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec w = load(weight + e);
      Vec z[kTile];
#pragma GCC unroll 4
      for (int b = 0; b < kTile; ++b) z[b] = load(z0 + b * stride + e);
#pragma GCC unroll 4
      for (int a = 0; a < R; ++a) {
        const Vec wx = w * load(x0 + a * stride + e);
#pragma GCC unroll 4
        for (int b = 0; b < kTile; ++b) h[a][b] += wx * z[b];
      }
    }
#pragma GCC unroll 4
    for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < kTile; ++b) add(h_ + ((i + a) * K_ + j + b) * kLanes, h[a][b]);
  }

  void diagonal(int rows, const double* X, std::int64_t stride, int padded, const double* r, const double* w, int i) {
    switch (rows) {
      case 1: return diagonal_tile<1>(X, stride, padded, r, w, i);
      case 2: return diagonal_tile<2>(X, stride, padded, r, w, i);
      case 3: return diagonal_tile<3>(X, stride, padded, r, w, i);
      default: return diagonal_tile<kTile>(X, stride, padded, r, w, i);
    }
  }
  void below(int rows, const double* X, std::int64_t stride, int padded, const double* w, int i, int j) {
    switch (rows) {
      case 1: return below_tile<1>(X, stride, padded, w, i, j);
      case 2: return below_tile<2>(X, stride, padded, w, i, j);
      case 3: return below_tile<3>(X, stride, padded, w, i, j);
      default: return below_tile<kTile>(X, stride, padded, w, i, j);
    }
  }
  static void add(double* to, Vec v) { store(to, load(to) + v); }

  int K_;
  Buffer h_, g_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
