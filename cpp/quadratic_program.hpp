// min g'(x - b) + (x - b)'H(x - b)/2 over lower <= x <= upper, for a K x K positive semi-definite
// H. A Cholesky solve with the bounds that are active at b is tried first: near the optimum of a
// fit these rarely change. Coordinates that it takes out of their bounds are put there, and the
// others solved again. Otherwise coordinate descent finds the active bounds, and a solve on the
// free coordinates finishes: neither alone is both quick on ill-conditioned H and safe at the
// bounds. Where both bounds are equal, b has to be there, and stays.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernel.hpp"
#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class QuadraticProgram {
 public:
  explicit QuadraticProgram(int K)
      : K_(K), q_(K), inverse_(K), move_(K), factor_(static_cast<Index>(K) * K), free_(new int[K]) {
  }
  ~QuadraticProgram() { delete[] free_; }
  QuadraticProgram(const QuadraticProgram&) = delete;
  QuadraticProgram& operator=(const QuadraticProgram&) = delete;

  // x holds the solution; curvature is (x-b)'H(x-b); the return value is the decrease of the
  // quadratic, >= 0.
  double solve(const double* H, const double* g, const double* b, const Box& box, double* x,
               double& curvature) {
    return with_constant<8>(K_, [&](auto n) { return solve<n>(H, g, b, box, x, curvature); });
  }

 private:
  static constexpr int kMaxRounds = 20, kMaxSolves = 3;

  // The number of components, N where it is known when compiling: short loops of a known length are
  // quicker.
  template <int N>
  int size() const {
    return N > 0 ? N : K_;
  }

  template <int N>
  double solve(const double* H, const double* g, const double* b, const Box& box, double* x,
               double& curvature) {
    const int K = size<N>();
    std::copy_n(g, K, static_cast<double*>(q_));
    std::copy_n(b, K, x);
    if (!direct_steps<N>(H, box, x)) descend<N>(H, box, x);
    double slope = 0.0;
    curvature = 0.0;
    for (int k = 0; k < K; ++k) {
      slope += g[k] * (x[k] - b[k]);
      curvature += (q_[k] - g[k]) * (x[k] - b[k]);  // q = g + H (x - b)
    }
    curvature = std::max(curvature, 0.0);
    return std::max(0.0, -(slope + 0.5 * curvature));
  }

  // From wherever x is, with q its slopes.
  template <int N>
  void descend(const double* H, const Box& box, double* x) {
    const int K = size<N>();
    for (int k = 0; k < K; ++k) {
      const double h = H[static_cast<Index>(k) * K + k];
      inverse_[k] = h > kTiny ? 1.0 / h : 0.0;
    }
    double total = 0.0;
    for (int round = 0; round < kMaxRounds; ++round) {
      total += sweep<N>(H, box, x);
      const double last = sweep<N>(H, box, x);
      total += last;
      if (last <= 1e-13 * total) break;
      if (subspace_step<N>(H, box, x) && optimal<N>(box, x)) break;
    }
  }

  template <int N>
  void shift(const double* H, double* x, int k, double to) {
    const int K = size<N>();
    const double delta = to - x[k];
    x[k] = to;
    const double* column = H + static_cast<Index>(k) * K;
    for (int l = 0; l < K; ++l) q_[l] += delta * column[l];
  }

  // One cycle of coordinate descent; returns the sum of H_kk delta_k^2.
  template <int N>
  double sweep(const double* H, const Box& box, double* x) {
    const int K = size<N>();
    double gained = 0.0;
    for (int k = 0; k < K; ++k) {
      const double h = H[static_cast<Index>(k) * K + k];
      double to;
      if (h > kTiny)
        to = std::min(box.upper[k], std::max(box.lower[k], x[k] - q_[k] * inverse_[k]));
      else if (q_[k] > 0.0) to = box.lower[k];
      else continue;
      const double delta = to - x[k];
      if (delta == 0.0) continue;
      gained += h * delta * delta;
      shift<N>(H, x, k, to);
    }
    return gained;
  }

  // Newton on the coordinates that no bound holds back. Those that would leave their bounds are put
  // there, and the others are solved again. False where this does not end at the optimum, a
  // coordinate depends on others, or a number is not one.
  template <int N>
  bool direct_steps(const double* H, const Box& box, double* x) {
    const int K = size<N>();
    int n = 0;
    for (int k = 0; k < K; ++k) {
      const bool low = x[k] <= box.lower[k], high = x[k] >= box.upper[k];
      if ((low && (high || q_[k] >= 0.0)) || (high && q_[k] <= 0.0)) continue;
      if (!factor_column<N>(H, k, n)) return false;
      free_[n++] = k;
    }
    for (int round = 0; round < kMaxSolves; ++round) {
      const double* s = solve_free<N>(n);
      int inside = 0;
      for (int i = 0; i < n; ++i) {
        const int k = free_[i];
        const double to = x[k] + s[i];
        if (std::isnan(to)) return false;
        if (to >= box.lower[k] && to <= box.upper[k]) free_[inside++] = k;
        else shift<N>(H, x, k, to < box.lower[k] ? box.lower[k] : box.upper[k]);
      }
      if (inside == n) {
        for (int i = 0; i < n; ++i) shift<N>(H, x, free_[i], x[free_[i]] + s[i]);
        return optimal<N>(box, x);
      }
      const int left = inside;
      n = 0;
      for (int i = 0; i < left; ++i) {
        if (!factor_column<N>(H, free_[i], n)) return false;
        free_[n++] = free_[i];
      }
    }
    return false;
  }

  // The step over the first n free coordinates, whose factor is known, to where their slopes
  // vanish.
  template <int N>
  const double* solve_free(int n) {
    const int K = size<N>();
    double* s = move_;
    for (int i = 0; i < n; ++i) {
      double sum = -q_[free_[i]];
      for (int j = 0; j < i; ++j) sum -= factor_[i * K + j] * s[j];
      s[i] = sum * factor_[i * K + i];
    }
    for (int i = n - 1; i >= 0; --i) {
      double sum = s[i];
      for (int j = i + 1; j < n; ++j) sum -= factor_[j * K + i] * s[j];
      s[i] = sum * factor_[i * K + i];
    }
    return s;
  }

  // Newton on the coordinates away from the bounds, as far as the bounds allow. True if the whole
  // step was taken.
  template <int N>
  bool subspace_step(const double* H, const Box& box, double* x) {
    const int K = size<N>();
    int n = 0;
    for (int k = 0; k < K; ++k)
      if (x[k] > box.lower[k] && x[k] < box.upper[k] && factor_column<N>(H, k, n)) free_[n++] = k;
    if (n == 0) return true;
    const double* s = solve_free<N>(n);
    double reach = 1.0;
    int blocking = -1;
    for (int i = 0; i < n; ++i) {
      const int k = free_[i];
      const double room = s[i] < 0.0   ? (box.lower[k] - x[k]) / s[i]
                          : s[i] > 0.0 ? (box.upper[k] - x[k]) / s[i]
                                       : 2.0;
      if (room < reach) {
        reach = room;
        blocking = i;
      }
    }
    for (int i = 0; i < n; ++i) {
      const int k = free_[i];
      double to = std::min(box.upper[k], std::max(box.lower[k], x[k] + reach * s[i]));
      if (i == blocking) to = s[i] < 0.0 ? box.lower[k] : box.upper[k];
      shift<N>(H, x, k, to);
    }
    return blocking < 0;
  }

  // Next row of the Cholesky factor of H over the free coordinates, its diagonal inverted; false
  // where k depends on those already there.
  template <int N>
  bool factor_column(const double* H, int k, int n) {
    const int K = size<N>();
    double* row = factor_ + static_cast<Index>(n) * K;
    double diagonal = H[static_cast<Index>(k) * K + k];
    const double smallest = 1e-13 * diagonal + kTiny;
    for (int i = 0; i < n; ++i) {
      double sum = H[static_cast<Index>(k) * K + free_[i]];
      const double* other = factor_ + static_cast<Index>(i) * K;
      for (int j = 0; j < i; ++j) sum -= row[j] * other[j];
      row[i] = sum * other[i];
      diagonal -= row[i] * row[i];
    }
    if (!(diagonal > smallest)) return false;
    row[n] = 1.0 / std::sqrt(diagonal);
    return true;
  }

  // After a full subspace step only the coordinates on the bounds can still want to move.
  template <int N>
  bool optimal(const Box& box, const double* x) const {
    const int K = size<N>();
    for (int k = 0; k < K; ++k) {
      if (box.lower[k] == box.upper[k]) continue;
      if ((x[k] <= box.lower[k] && q_[k] < 0.0) || (x[k] >= box.upper[k] && q_[k] > 0.0))
        return false;
    }
    return true;
  }

  static constexpr double kTiny = 1e-290;
  int K_;
  Buffer q_, inverse_, move_, factor_;  // inverse_: of the diagonal of H
  int* free_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
