// Vectors of the widest register the translation unit is compiled for, and the two transcendental
// functions the model needs. The file is included once per instruction set (see CMakeLists.txt),
// each time inside its own namespace.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "kernel.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LOG1PNMF_LANES 8
#elif defined(__AVX2__)
#define LOG1PNMF_LANES 4
#else
#define LOG1PNMF_LANES 2
#endif

namespace log1pnmf::LOG1PNMF_ISA {

constexpr int kLanes = LOG1PNMF_LANES;
constexpr int kUnroll = 4;  // independent vectors in flight, to hide the latency of the polynomials
// Entries handled together; every buffer is padded to a multiple of it
constexpr int kStep = kLanes * kUnroll;

// For what is called for every few entries, which compilers leave as calls through memory.
#define ALWAYS_INLINE __attribute__((always_inline)) inline
#define REPEAT(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i)
// Over U vectors at a time, one operation after the other: the latency of one chain is hidden
// behind the others and every constant is loaded once.
#define EACH REPEAT (u, U)

typedef double Vec __attribute__((vector_size(8 * LOG1PNMF_LANES)));
typedef std::int64_t VecI __attribute__((vector_size(8 * LOG1PNMF_LANES)));
typedef std::uint64_t VecU __attribute__((vector_size(8 * LOG1PNMF_LANES)));
typedef std::int32_t VecI32 __attribute__((vector_size(4 * LOG1PNMF_LANES)));

template <class V>
ALWAYS_INLINE V load_as(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
ALWAYS_INLINE Vec load(const double* p) { return load_as<Vec>(p); }
ALWAYS_INLINE void store(double* p, Vec v) { std::memcpy(p, &v, sizeof v); }
ALWAYS_INLINE Vec splat(double x) { return x - Vec{}; }

// The lanes of two vectors in another order; those of b are counted after those of a.
template <int... I>
ALWAYS_INLINE Vec shuffle(Vec a, Vec b) {
  return __builtin_shufflevector(a, b, I...);
}

// from[at[i]] of every lane i.
ALWAYS_INLINE Vec load_at(const double* from, VecI32 at) {
#if LOG1PNMF_LANES == 8  // compilers on their own load the lanes one by one
  return (Vec)_mm512_mask_i32gather_pd(_mm512_setzero_pd(), 0xff, (__m256i)at, from, 8);
#elif LOG1PNMF_LANES == 4
  return Vec{from[at[0]], from[at[1]], from[at[2]], from[at[3]]};
#else
  return Vec{from[at[0]], from[at[1]]};
#endif
}

// Integers in the place of doubles.
ALWAYS_INLINE Index as_integer(const double* p) { return load_as<Index>(p); }

// Two floats in the place of each double; little-endian.
ALWAYS_INLINE double as_pair(double first, double second) {
  const float both[] = {static_cast<float>(first), static_cast<float>(second)};
  return load_as<double>(both);
}
ALWAYS_INLINE void load_pairs(const double* p, Vec& first, Vec& second) {
#if defined(__aarch64__)
  const uint64x2_t bits = vreinterpretq_u64_f64(vld1q_f64(p));
  first = (Vec)vcvt_f64_f32(vreinterpret_f32_u32(vmovn_u64(bits)));
  second = (Vec)vcvt_f64_f32(vreinterpret_f32_u32(vshrn_n_u64(bits, 32)));
#else
  typedef float VecF __attribute__((vector_size(4 * LOG1PNMF_LANES)));
  const auto bits = load_as<VecU>(p);
  first = __builtin_convertvector((VecF) __builtin_convertvector(bits, VecI32), Vec);
  second = __builtin_convertvector((VecF) __builtin_convertvector(bits >> 32, VecI32), Vec);
#endif
}

// The entries of a table of n numbers at the integers of a vector; the table has room for a vector.
ALWAYS_INLINE Vec look_up(const double* table, [[maybe_unused]] int n, const double* at) {
  const auto which = load_as<VecI>(at);
#if LOG1PNMF_LANES == 8
  if (n <= kLanes)
    return (Vec)_mm512_maskz_permutexvar_pd(0xff, (__m512i)which, (__m512d)load(table));
#endif
  return load_at(table, __builtin_convertvector(which, VecI32));
}

#if LOG1PNMF_LANES == 8
// Adds every lane of v to the vector of sums that its integer selects; each is below kLanes.
ALWAYS_INLINE void add_by_label(Vec v, const double* labels, Vec* sums) {
  const auto which = (__m512i)load_as<VecI>(labels);
  REPEAT (b, kLanes)
    sums[b] = (Vec)_mm512_mask_add_pd((__m512d)sums[b],
                                      _mm512_cmpeq_epi64_mask(which, _mm512_set1_epi64(b)),
                                      (__m512d)sums[b], (__m512d)v);
}
#endif

// One instruction each; compilers make a comparison and a blend of a < b ? a : b.
#if defined(__aarch64__)
#define LOG1PNMF_EXTREME(which, sign) (Vec) v##which##q_f64((float64x2_t)a, (float64x2_t)b)
#elif LOG1PNMF_LANES == 8
#define LOG1PNMF_EXTREME(which, sign) (Vec) _mm512_maskz_##which##_pd(0xff, (__m512d)a, (__m512d)b)
#elif LOG1PNMF_LANES == 4
#define LOG1PNMF_EXTREME(which, sign) (Vec) _mm256_##which##_pd((__m256d)a, (__m256d)b)
#else
#define LOG1PNMF_EXTREME(which, sign) a sign b ? a : b
#endif
ALWAYS_INLINE Vec vmin(Vec a, Vec b) { return LOG1PNMF_EXTREME(min, <); }
ALWAYS_INLINE Vec vmax(Vec a, Vec b) { return LOG1PNMF_EXTREME(max, >); }

template <int U>
ALWAYS_INLINE void reciprocals(Vec* x) {
#if defined(__aarch64__)  // division takes 14 cycles; an estimate and three Newton steps take 4
  float64x2_t r[U], correction[U];
  EACH r[u] = vrecpeq_f64((float64x2_t)x[u]);
  REPEAT (i, 3) {
    EACH correction[u] = vrecpsq_f64((float64x2_t)x[u], r[u]);
    EACH r[u] = vmulq_f64(r[u], correction[u]);
  }
  EACH x[u] = (Vec)r[u];
#else
  EACH x[u] = 1.0 / x[u];
#endif
}

// Lanes by halves: i with i + 4, then with i + 2, then with i + 1.
template <class F>
ALWAYS_INLINE double fold(Vec v, const F& f) {
#if LOG1PNMF_LANES == 8
  v = f(v, shuffle<4, 5, 6, 7, 0, 1, 2, 3>(v, v));
  v = f(v, shuffle<2, 3, 0, 1, 6, 7, 4, 5>(v, v));
#elif LOG1PNMF_LANES == 4
  v = f(v, shuffle<2, 3, 0, 1>(v, v));
#endif
  return f(v, splat(v[1]))[0];
}
ALWAYS_INLINE double horizontal_sum(Vec v) {
  return fold(v, [](Vec a, Vec b) { return a + b; });
}
ALWAYS_INLINE double largest_lane(Vec v) {
  return fold(v, [](Vec a, Vec b) { return vmax(a, b); });
}

// Every other lane, or pair of lanes, of two vectors in turns: what transposes four vectors.
#if LOG1PNMF_LANES == 8
ALWAYS_INLINE Vec even_lanes(Vec a, Vec b) { return shuffle<0, 8, 2, 10, 4, 12, 6, 14>(a, b); }
ALWAYS_INLINE Vec odd_lanes(Vec a, Vec b) { return shuffle<1, 9, 3, 11, 5, 13, 7, 15>(a, b); }
ALWAYS_INLINE Vec even_pairs(Vec a, Vec b) { return shuffle<0, 1, 8, 9, 4, 5, 12, 13>(a, b); }
ALWAYS_INLINE Vec odd_pairs(Vec a, Vec b) { return shuffle<2, 3, 10, 11, 6, 7, 14, 15>(a, b); }
#elif LOG1PNMF_LANES == 4
ALWAYS_INLINE Vec even_lanes(Vec a, Vec b) { return shuffle<0, 4, 2, 6>(a, b); }
ALWAYS_INLINE Vec odd_lanes(Vec a, Vec b) { return shuffle<1, 5, 3, 7>(a, b); }
ALWAYS_INLINE Vec even_pairs(Vec a, Vec b) { return shuffle<0, 1, 4, 5>(a, b); }
ALWAYS_INLINE Vec odd_pairs(Vec a, Vec b) { return shuffle<2, 3, 6, 7>(a, b); }
#else
ALWAYS_INLINE Vec even_lanes(Vec a, Vec b) { return shuffle<0, 2>(a, b); }
ALWAYS_INLINE Vec odd_lanes(Vec a, Vec b) { return shuffle<1, 3>(a, b); }
#endif

// Of kLanes vectors, one after the other.
ALWAYS_INLINE Vec horizontal_sums(const double* from) {
#if LOG1PNMF_LANES == 8
  Vec two[4], four[2];
  REPEAT (i, 4) {
    const Vec a = load(from + 2 * i * kLanes), b = load(from + (2 * i + 1) * kLanes);
    two[i] = even_lanes(a, b) + odd_lanes(a, b);
  }
  REPEAT (i, 2)
    four[i] = even_pairs(two[2 * i], two[2 * i + 1]) + odd_pairs(two[2 * i], two[2 * i + 1]);
  return shuffle<0, 1, 2, 3, 8, 9, 10, 11>(four[0], four[1]) +
         shuffle<4, 5, 6, 7, 12, 13, 14, 15>(four[0], four[1]);
#elif LOG1PNMF_LANES == 2
  const Vec a = load(from), b = load(from + kLanes);
  return even_lanes(a, b) + odd_lanes(a, b);
#else
  double sums[kLanes];
  REPEAT (i, kLanes) sums[i] = horizontal_sum(load(from + i * kLanes));
  return load(sums);
#endif
}

// One bit for every lane above a number.
ALWAYS_INLINE unsigned lanes_above(Vec v, double x) {
#if LOG1PNMF_LANES == 8
  return _mm512_cmp_pd_mask((__m512d)v, _mm512_set1_pd(x), _CMP_GT_OQ);
#elif LOG1PNMF_LANES == 4
  return static_cast<unsigned>(_mm256_movemask_pd((__m256d)(v > x)));
#else
  const VecI above = v > x;
  unsigned bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(above[i] & 1) << i;
  return bits;
#endif
}

// The numbers of the lanes whose bits are set, counted from `first`; up to kLanes numbers are
// written, and the end of those that count is given back.
ALWAYS_INLINE std::int32_t* put_lanes(unsigned bits, std::int32_t first, std::int32_t* to) {
#if LOG1PNMF_LANES == 8
  const __m256i all =
      _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  _mm256_storeu_si256((__m256i*)to, _mm256_maskz_compress_epi32(static_cast<__mmask8>(bits), all));
  return to + __builtin_popcount(bits);
#else
  for (; bits != 0; bits &= bits - 1) *to++ = first + __builtin_ctz(bits);
  return to;
#endif
}

// Beyond it exp is held constant: e^500 leaves room for sums of squares
constexpr double kLargestEta = 500.0;
// The least eta under a positive count; 1/em^2 stays finite
constexpr double kSmallestEta = 1e-100;

// expm1 for 0 <= x <= kLargestEta, relative error below 4e-16. x = k ln2 + r, expm1(x) = 2^k
// expm1(r) + (2^k - 1). Small: no x is above kSmallArgument, so that k is 0; the bits are the same.
constexpr double kSmallArgument = 0.34;
template <int U, bool Small = false>
ALWAYS_INLINE void expm1(const Vec* x, Vec* result) {
  // 1.5 * 2^52: adding it rounds to an integer kept in the low bits; 1023 more makes it the
  // exponent of a double
  constexpr double kMagic = 6755399441055744.0 + 1023.0;
  constexpr double kQ[] = {
      2.7620088445409748161e-7,  2.7557268459997064772e-6, 0.000024801521295954375131,
      0.00019841269863053616878, 0.0013888888917213716901, 0.0083333333333300618325,
      0.041666666666624127873,   0.16666666666666667453,   0.50000000000000010221};
  Vec shifted[U], r[U], q[U];
  if constexpr (Small) EACH r[u] = x[u];
  else {
    EACH shifted[u] = x[u] * 1.4426950408889634 + kMagic;
    EACH q[u] = shifted[u] - kMagic;
    // ln2 in two parts, so that k times the high one is exact
    EACH r[u] = x[u] - q[u] * 6.93147180369123816490e-01;
    EACH r[u] = r[u] - q[u] * 1.90821492927058770002e-10;
  }
  EACH q[u] = splat(2.5100385495510319078e-8);
  REPEAT (i, 9) EACH q[u] = q[u] * r[u] + kQ[i];
  EACH q[u] = (r[u] * r[u]) * q[u] + r[u];
  if constexpr (Small) EACH result[u] = q[u];
  else {
    EACH r[u] = (Vec)((VecI)shifted[u] << 52);  // 2^k
    EACH result[u] = r[u] * q[u] + (r[u] - 1.0);
  }
}

// log(x) and 1/x of positive normal numbers, sharing one division; log's error is below 4e-16
// relative or absolute.
template <int U>
ALWAYS_INLINE void log_and_reciprocal(const Vec* x, Vec* log, Vec* reciprocal) {
  constexpr std::int64_t kSqrtHalf = 0x3fe6a09e667f3bcd, kOne = 0x3ff0000000000000,
                         kTwo52 = 0x4330000000000000;
  constexpr double kP[] = {0.18140185202493246359, 0.22222862476849540619, 0.28571424136516348361,
                           0.40000000011212199523, 0.66666666666662080436};
  // Values are positive, so the shift may be logical; AVX2 has no arithmetic one.
  VecI biased[U];
  Vec m[U], inverse[U], exponent[U], s[U], z[U], p[U];
  EACH biased[u] = (VecI)((VecU)((VecI)x[u] + (kOne - kSqrtHalf)) >> 52);
  EACH m[u] = (Vec)((VecI)x[u] - ((biased[u] - 1023) << 52));
  EACH exponent[u] = (Vec)(biased[u] | kTwo52) - (4503599627370496.0 + 1023.0);
  EACH s[u] = m[u] + 1.0;
  EACH inverse[u] = x[u] * s[u];
  reciprocals<U>(inverse);
  EACH reciprocal[u] = inverse[u] * s[u];
  EACH s[u] = (m[u] - 1.0) * (inverse[u] * x[u]);
  EACH z[u] = s[u] * s[u];
  EACH p[u] = splat(0.16621947090177399488);
  REPEAT (i, 5) EACH p[u] = p[u] * z[u] + kP[i];
  EACH p[u] = (s[u] * z[u]) * p[u] + exponent[u] * 1.90821492927058770002e-10;
  EACH log[u] = exponent[u] * 6.93147180369123816490e-01 + (s[u] * 2.0 + p[u]);
}

inline Index round_up(Index n, Index to) { return (n + to - 1) / to * to; }

// Calls f with n as a constant (std::integral_constant), or with 0 where n is not from 1 to N:
// loops of a known length are quicker.
template <int N, class F>
ALWAYS_INLINE auto with_constant(int n, const F& f) {
  if (n == N) return f(std::integral_constant<int, N>{});
  if constexpr (N > 1) return with_constant<N - 1>(n, f);
  else return f(std::integral_constant<int, 0>{});
}

// Calls f<U> with the first number of every U vectors out of n numbers: kUnroll as long as there
// are as many, then 1.
template <class F>
ALWAYS_INLINE void each_vectors(Index n, const F& f) {
  Index at = 0;
  for (; at + kStep <= n; at += kStep) f.template operator()<kUnroll>(at);
  for (; at < n; at += kLanes) f.template operator()<1>(at);
}

// Zeroed doubles on a cache line boundary.
class Buffer {
 public:
  explicit Buffer(Index count = 0) : data_(allocate(count)) {}
  ~Buffer() { ::operator delete(data_, std::align_val_t(64)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(Buffer&& other) noexcept {
    swap(*this, other);
    return *this;
  }
  operator double*() const { return data_; }
  friend void swap(Buffer& a, Buffer& b) noexcept { std::swap(a.data_, b.data_); }

 private:
  static double* allocate(Index count) {
    const auto bytes = sizeof(double) * static_cast<std::size_t>(count + 8);
    void* p = ::operator new(bytes, std::align_val_t(64));
    std::memset(p, 0, bytes);
    return static_cast<double*>(p);
  }
  double* data_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
