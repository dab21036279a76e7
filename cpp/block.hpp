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
      REPEAT (a, R) g[a] += r * load(x0 + a * stride + e);
    }
    REPEAT (a, R) add(g_ + (i + a) * kLanes, g[a]);
  }

  template <int R>
  void diagonal_tile(const double* X, Index stride, int padded, const double* residual,
                     const double* weight, int i) {
    Vec h[R][R] = {}, g[R] = {};
    const double* x0 = X + i * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec w = load(weight + e), r = load(residual + e);
      Vec x[R];
      REPEAT (a, R) x[a] = load(x0 + a * stride + e);
      REPEAT (a, R) {
        const Vec wx = w * x[a];
        g[a] += r * x[a];
        REPEAT (b, a + 1) h[a][b] += wx * x[b];
      }
    }
    REPEAT (a, R) {
      add(g_ + (i + a) * kLanes, g[a]);
      REPEAT (b, a + 1) add(h_ + (row(i + a) + i + b) * kLanes, h[a][b]);
    }
  }

  template <int R>
  void below_tile(const double* X, Index stride, int padded, const double* weight, int i, int j) {
    Vec h[R][kTile] = {};
    const double *x0 = X + i * stride, *z0 = X + j * stride;
    for (int e = 0; e < padded; e += kLanes) {
      const Vec w = load(weight + e);
      Vec z[kTile];
      REPEAT (b, kTile) z[b] = load(z0 + b * stride + e);
      REPEAT (a, R) {
        const Vec wx = w * load(x0 + a * stride + e);
        REPEAT (b, kTile) h[a][b] += wx * z[b];
      }
    }
    REPEAT (a, R)
      REPEAT (b, kTile) add(h_ + (row(i + a) + j + b) * kLanes, h[a][b]);
  }

  static void add(double* to, Vec v) { store(to, load(to) + v); }

  int K_;
  Buffer lanes_, sums_, even_;
  double *h_, *g_;  // in lanes_: the triangle, and after it the gradient
};

}  // namespace log1pnmf::LOG1PNMF_ISA
