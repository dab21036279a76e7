// min g'(x - b) + (x - b)'H(x - b)/2 over lower <= x <= upper, for a K x K positive semi-definite
// H and the coordinates that no bound holds back at b: the others stay, and only the entries of H
// between the former count. Near the optimum of a fit the active bounds rarely change: a direct
// solve comes first. Coordinates that it takes out of their bounds are put there, and the others
// solved again. Otherwise coordinate descent finds the active bounds, and a solve on the free
// coordinates finishes: neither alone is both quick on ill-conditioned H and safe at the bounds.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel.hpp"
#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

constexpr int padded_width(int K) { return K / kLanes * kLanes + kLanes; }  // more than K

// The program of K coordinates. N: their number where it is known when compiling, else 0; short
// loops of a known length are quicker.
template <int N>
struct ProgramSolver {
  const int n_coordinates;
  const double* H;
  const Box& box;
  double *x, *q;                    // the point, and its slopes g + H (x - b)
  double *inverse, *move, *matrix;  // scratch: K, K and K x padded_width(K)
  int* free;                        // K, with room for a vector

  // See QuadraticProgram::solve.
  double solve(const double* g, const double* b, double& curvature) {
    std::copy_n(g, K(), q);
    std::copy_n(b, K(), x);
    if (!direct_steps()) descend();
    double slope = 0.0;
    curvature = 0.0;
    for (int k = 0; k < K(); ++k) {
      slope += g[k] * (x[k] - b[k]);
      curvature += (q[k] - g[k]) * (x[k] - b[k]);
    }
    curvature = std::max(curvature, 0.0);
    return std::max(0.0, -(slope + 0.5 * curvature));
  }

 private:
  static constexpr int kMaxRounds = 20, kMaxSolves = 3;
  static constexpr double kTiny = 1e-290;

  int K() const { return N > 0 ? N : n_coordinates; }
  double inside(int k, double to) const {
    return std::min(box.upper[k], std::max(box.lower[k], to));
  }
  void shift(int k, double to) {
    const double delta = to - x[k];
    x[k] = to;
    const double* column = H + Index{k} * K();
    for (int l = 0; l < K(); l += kLanes) store(q + l, load(q + l) + delta * load(column + l));
  }

  // From wherever x is.
  void descend() {
    for (int k = 0; k < K(); ++k) {
      const double h = H[Index{k} * K() + k];
      inverse[k] = h > kTiny ? 1.0 / h : 0.0;
    }
    double total = 0.0;
    for (int round = 0; round < kMaxRounds; ++round) {
      total += sweep();
      const double last = sweep();
      total += last;
      if (last <= 1e-13 * total || (subspace_step() && optimal())) break;
    }
  }

  // One cycle of coordinate descent; returns the sum of H_kk delta_k^2.
  double sweep() {
    double gained = 0.0;
    for (int k = 0; k < K(); ++k) {
      const double h = H[Index{k} * K() + k];
      double to;
      if (h > kTiny) to = inside(k, x[k] - q[k] * inverse[k]);
      else if (q[k] > 0.0) to = box.lower[k];
      else continue;
      const double delta = to - x[k];
      if (delta == 0.0) continue;
      gained += h * delta * delta;
      shift(k, to);
    }
    return gained;
  }

  // Newton on all coordinates. Those that would leave their bounds are put there, and the others
  // are solved again. False where this does not end at the optimum, a coordinate depends on others,
  // or a number is not one.
  bool direct_steps() {
    int n = K();
    for (int k = 0; k < n; ++k) free[k] = k;
    for (int round = 0; round < kMaxSolves; ++round) {
      if (!solve_free(n)) return false;
      int left = 0;
      for (int i = 0; i < n; ++i) {
        const int k = free[i];
        const double to = x[k] + move[i];
        if (std::isnan(to)) return false;
        if (to >= box.lower[k] && to <= box.upper[k]) free[left++] = k;
        else shift(k, to < box.lower[k] ? box.lower[k] : box.upper[k]);
      }
      if (left == n) {
        for (int i = 0; i < n; ++i) shift(free[i], x[free[i]] + move[i]);
        return optimal();
      }
      n = left;
    }
    return false;
  }

  // The move of the n free coordinates to where their slopes vanish, by Gauss-Jordan elimination;
  // column n has minus the slopes. One that depends on others stays, and the result is false.
  bool solve_free(int n) {
    const int width = padded_width(n);
    for (int i = 0; i < n; ++i) {
      double* row = matrix + i * width;
      for (int c = 0; c < n; c += kLanes)
        store(row + c, load_at(H + Index{free[i]} * K(), load_as<VecI32>(free + c)));
      row[n] = -q[free[i]];
    }
    bool all = true;
    for (int i = 0; i < n; ++i) {
      const double* pivot = matrix + i * width;
      const bool usable = pivot[i] > 1e-13 * H[Index{free[i]} * (K() + 1)] + kTiny;
      all &= usable;
      move[i] = usable ? 1.0 / pivot[i] : 0.0;
      for (int r = 0; r < n; ++r) {
        double* row = matrix + r * width;
        const Vec times = splat(r == i ? 0.0 : row[i] * move[i]);
        for (int c = i / kLanes * kLanes; c < width; c += kLanes)  // zeros come before
          store(row + c, load(row + c) - times * load(pivot + c));
      }
    }
    for (int i = 0; i < n; ++i) move[i] *= matrix[i * width + n];
    return all;
  }

  // Newton on the coordinates away from the bounds, as far as the bounds allow. True if the whole
  // step was taken.
  bool subspace_step() {
    int n = 0, blocking = -1;
    for (int k = 0; k < K(); ++k)
      if (x[k] > box.lower[k] && x[k] < box.upper[k]) free[n++] = k;
    solve_free(n);
    const auto bound = [&](int i) { return (move[i] < 0.0 ? box.lower : box.upper)[free[i]]; };
    double reach = 1.0;
    for (int i = 0; i < n; ++i) {
      const double room = move[i] != 0.0 ? (bound(i) - x[free[i]]) / move[i] : 2.0;
      if (room < reach) reach = room, blocking = i;
    }
    for (int i = 0; i < n; ++i)
      shift(free[i], i == blocking ? bound(i) : inside(free[i], x[free[i]] + reach * move[i]));
    return blocking < 0;
  }

  // After a full subspace step only the coordinates on the bounds can still want to move.
  bool optimal() const {
    bool wants = false;
    for (int k = 0; k < K(); ++k) {
      wants |= (x[k] <= box.lower[k]) & (q[k] < 0.0);
      wants |= (x[k] >= box.upper[k]) & (q[k] > 0.0);
    }
    return !wants;
  }
};

class QuadraticProgram {
 public:
  explicit QuadraticProgram(int K)
      : K_(K), q_(K), inverse_(K), move_(K), matrix_(K * padded_width(K)), H_(Index{K} * K), g_(K),
        b_(K), x_(K), lower_(K), upper_(K), free_(K + kLanes), used_(K + kLanes) {}

  // x holds the solution; curvature is (x-b)'H(x-b); the return value is the decrease of the
  // quadratic, >= 0.
  double solve(const double* H, const double* g, const double* b, const Box& box, double* x,
               double& curvature) {
    int n = 0;
    for (int k = 0; k < K_; ++k) {
      used_[n] = k;  // no branch: the processor could not predict it
      n += !box.holds(k, b[k], g[k]);
    }
    if (n == K_) return solve_all(n, H, g, b, box, x, curvature);
    for (int i = 0; i < n; ++i) {
      const int k = used_[i];
      g_[i] = g[k], b_[i] = b[k], lower_[i] = box.lower[k], upper_[i] = box.upper[k];
      for (int j = 0; j < n; j += kLanes)
        store(H_ + i * n + j, load_at(H + Index{k} * K_, load_as<VecI32>(used_.data() + j)));
    }
    const Box own{lower_, upper_, nullptr};
    const double decrease = solve_all(n, H_, g_, b_, own, x_, curvature);
    std::copy_n(b, K_, x);
    for (int i = 0; i < n; ++i) x[used_[i]] = x_[i];
    return decrease;
  }

 private:
  double solve_all(int n, const double* H, const double* g, const double* b, const Box& box,
                   double* x, double& curvature) {
    return with_constant<8>(n, [&](auto size) {
      ProgramSolver<size> solver{n, H, box, x, q_, inverse_, move_, matrix_, free_.data()};
      return solver.solve(g, b, curvature);
    });
  }

  int K_;
  Buffer q_, inverse_, move_, matrix_;
  Buffer H_, g_, b_, x_, lower_, upper_;  // of the coordinates that may move
  std::vector<int> free_, used_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
