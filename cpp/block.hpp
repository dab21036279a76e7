// A block of one row's entries, laid out by component, and what is accumulated over it.
#pragma once

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
#if LOG1PNMF_LANES == 8
  typedef double Quad __attribute__((vector_size(32)));
  Vec a[4];  // entries i and i + 4
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    Quad low, high;
    std::memcpy(&low, p[i], sizeof low);
    std::memcpy(&high, p[i + 4], sizeof high);
    a[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  const Vec even0 = __builtin_shufflevector(a[0], a[1], 0, 8, 2, 10, 4, 12, 6, 14);
  const Vec even1 = __builtin_shufflevector(a[2], a[3], 0, 8, 2, 10, 4, 12, 6, 14);
  const Vec odd0 = __builtin_shufflevector(a[0], a[1], 1, 9, 3, 11, 5, 13, 7, 15);
  const Vec odd1 = __builtin_shufflevector(a[2], a[3], 1, 9, 3, 11, 5, 13, 7, 15);
  store(X, __builtin_shufflevector(even0, even1, 0, 1, 8, 9, 4, 5, 12, 13));
  store(X + stride, __builtin_shufflevector(odd0, odd1, 0, 1, 8, 9, 4, 5, 12, 13));
  store(X + 2 * stride, __builtin_shufflevector(even0, even1, 2, 3, 10, 11, 6, 7, 14, 15));
  store(X + 3 * stride, __builtin_shufflevector(odd0, odd1, 2, 3, 10, 11, 6, 7, 14, 15));
#elif LOG1PNMF_LANES == 4
  Vec a[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) a[i] = load(p[i]);
  const Vec even0 = __builtin_shufflevector(a[0], a[1], 0, 4, 2, 6),
            odd0 = __builtin_shufflevector(a[0], a[1], 1, 5, 3, 7);
  const Vec even1 = __builtin_shufflevector(a[2], a[3], 0, 4, 2, 6),
            odd1 = __builtin_shufflevector(a[2], a[3], 1, 5, 3, 7);
  store(X, __builtin_shufflevector(even0, even1, 0, 1, 4, 5));
  store(X + stride, __builtin_shufflevector(odd0, odd1, 0, 1, 4, 5));
  store(X + 2 * stride, __builtin_shufflevector(even0, even1, 2, 3, 6, 7));
  store(X + 3 * stride, __builtin_shufflevector(odd0, odd1, 2, 3, 6, 7));
#else
  Vec a[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) a[i] = load(p[i]);
  store(X, __builtin_shufflevector(a[0], a[1], 0, 2));
  store(X + 2, __builtin_shufflevector(a[2], a[3], 0, 2));
  store(X + stride, __builtin_shufflevector(a[0], a[1], 1, 3));
  store(X + stride + 2, __builtin_shufflevector(a[2], a[3], 1, 3));
#endif
}

// Rows of the packed design -> streams of a block, kTogether rows at a time. The last ones are
// filled up with the row of zeros. Streams is the number of streams where it is known when
// compiling, else 0.
template <int Streams>
inline void gather_rows(const Design& design, const double* packed, const std::int32_t* indices,
                        int n, Index readable, double* X, Index stride) {
  constexpr int kAhead = 32, kLine = 8;  // entries; doubles in a cache line
  const int streams = Streams > 0 ? Streams : design.streams;
  for (int e = 0; e < n; e += kTogether) {
    const double* p[kTogether];
#pragma GCC unroll 8
    for (int i = 0; i < kTogether; ++i)
      p[i] = packed + (e + i < n ? indices[e + i] : design.zero_row) * streams;
    if (e + kAhead + kTogether <= readable)
#pragma GCC unroll 8
      for (int i = 0; i < kTogether; ++i) {
        const double* later = packed + static_cast<Index>(indices[e + kAhead + i]) * streams;
        for (int k = 0; k < streams; k += kLine) __builtin_prefetch(later + k);
      }
#pragma GCC unroll 8
    for (int k = 0; k < streams; k += kGroup) {
      transpose_group(p, X + k * stride + e, stride);
#pragma GCC unroll 8
      for (int i = 0; i < kTogether; ++i) p[i] += kGroup;
    }
  }
}

// `packed` is that of the design, or of its layout.
inline void gather(const Design& design, const double* packed, const std::int32_t* indices, int n,
                   Index readable, double* X, Index stride) {
  with_constant<8>(design.streams / kGroup, [&](auto groups) {
    gather_rows<groups * kGroup>(design, packed, indices, n, readable, X, stride);
  });
}

// Sums over a row: g = X'r, and the lower triangle of H = X'diag(w)X, kept as vectors until the row
// ends.
class Accumulator {
 public:
  explicit Accumulator(int K)
      : K_(K), lanes_((row(K) + K + kLanes) * kLanes), sums_(row(K) + K + kLanes),
        even_(row(K) + kLanes), h_(lanes_), g_(lanes_ + row(K) * kLanes) {}

  void reset(bool with_hessian) {
    if (with_hessian) std::memset(h_, 0, sizeof(double) * row(K_) * kLanes);
    if (with_hessian) std::memset(even_, 0, sizeof(double) * row(K_));
    std::memset(g_, 0, sizeof(double) * K_ * kLanes);
  }

  void add_block(const double* X, Index stride, int padded, const double* residual,
                 const double* weight) {
    if constexpr (kTile == 4) {  // the sums of up to six components fit into the registers
      if (K_ == 5) return diagonal_tile<5>(X, stride, padded, residual, weight, 0);
      if (K_ == 6) return diagonal_tile<6>(X, stride, padded, residual, weight, 0);
    }
    for (int i = 0; i < K_; i += kTile)
      with_constant<kTile>(std::min(kTile, K_ - i), [&](auto n) {
        diagonal_tile<n>(X, stride, padded, residual, weight, i);
        for (int j = 0; j < i; j += kTile) below_tile<n>(X, stride, padded, weight, i, j);
      });
  }

  void add_gradient(const double* X, Index stride, int padded, const double* residual) {
    for (int i = 0; i < K_; i += kSlopes)
      with_constant<kSlopes>(std::min(kSlopes, K_ - i),
                             [&](auto n) { slopes<n>(X, stride, padded, residual, i); });
  }

  // To H, of all stretches with their weights.
  void add_stretches(const Stretches& stretches, const double* weights) {
    stretches.add(weights, even_);
  }

  void finish(double* H, double* g, bool with_hessian) {
    const Index slopes = row(K_);
    for (Index n = with_hessian ? 0 : slopes; n < slopes + K_; n += kLanes)
      store(sums_ + n, horizontal_sums(lanes_ + n * kLanes));
    std::copy_n(sums_ + slopes, K_, g);
    if (!with_hessian) return;
    const double *from = sums_, *even = even_;
    for (int k = 0; k < K_; ++k)
      for (int l = 0; l <= k; ++l) H[k * K_ + l] = H[l * K_ + k] = *from++ + *even++;
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
#pragma GCC unroll 8
      for (int a = 0; a < R; ++a) g[a] += r * load(x0 + a * stride + e);
    }
#pragma GCC unroll 8
    for (int a = 0; a < R; ++a) add(g_ + (i + a) * kLanes, g[a]);
  }

  template <int R>
  void diagonal_tile(const double* X, Index stride, int padded, const double* residual,
                     const double* weight, int i) {
    Vec h[R][R] = {}, g[R] = {};
    const double* x0 = X + i * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec w = load(weight + e), r = load(residual + e);
      Vec x[R];
#pragma GCC unroll 8
      for (int a = 0; a < R; ++a) x[a] = load(x0 + a * stride + e);
#pragma GCC unroll 8
      for (int a = 0; a < R; ++a) {
        const Vec wx = w * x[a];
        g[a] += r * x[a];
#pragma GCC unroll 8
        for (int b = 0; b <= a; ++b) h[a][b] += wx * x[b];
      }
    }
#pragma GCC unroll 8
    for (int a = 0; a < R; ++a) {
      add(g_ + (i + a) * kLanes, g[a]);
#pragma GCC unroll 8
      for (int b = 0; b <= a; ++b) add(h_ + (row(i + a) + i + b) * kLanes, h[a][b]);
    }
  }

  template <int R>
  void below_tile(const double* X, Index stride, int padded, const double* weight, int i, int j) {
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
      for (int b = 0; b < kTile; ++b) add(h_ + (row(i + a) + j + b) * kLanes, h[a][b]);
  }

  static void add(double* to, Vec v) { store(to, load(to) + v); }

  int K_;
  Buffer lanes_, sums_, even_;
  double *h_, *g_;  // in lanes_: the triangle, and after it the gradient
};

}  // namespace log1pnmf::LOG1PNMF_ISA
