// One Newton step in the logarithms of the effects of batches, for given means; see src/log1pnmf/model/batch_effects.py.
//
// A feature has the loss sum_b expected_b q_b - seen_b log(q_b). Steps of the logarithms sum to 0 over the batches of every
// feature, and weighed to 0 over the features of every batch: step_b = free_b - (pushed_b - share_b sum(pushed)), with
// pushed_b = z_b w / bend_b and one number z for every batch, which the caller finds from the sums of the first pass.
#pragma once

#include <cmath>

#include "kernel.hpp"
#include "memory.hpp"
#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

class EffectsPass {
 public:
  explicit EffectsPass(const EffectsStep& s)
      : s_(s), B_(s.n_batches), lanes_(6 * std::int64_t{B_} * kStep), matrix_(std::int64_t{B_} * B_ * kLanes), sums_(2 * std::int64_t{B_} * kLanes) {}

  // The equations for z, and how far levels are off. The matrix is symmetric: a share is an inverse times a number of the feature.
  void equations() {
    Vec off = Vec{};
    for (std::int64_t j = 0; j < s_.n_features; j += kStep) {
      read(j);
      Vec level[U] = {};
      for (int b = 0; b < B_; ++b) {
        Vec log[U], by_weight[U], moved = Vec{}, now = Vec{};
        fetch(s_.logs + b * s_.n_features + j);
        part(s_.logs + b * s_.n_features, j, 0.0, log);
        LOG1PNMF_EACH {
          level[u] += log[u];
          moved += weights_[u] * load(free(b) + u * kLanes);
          now += weights_[u] * log[u];
          by_weight[u] = weights_[u] * weights_[u] * load(inverse(b) + u * kLanes);
        }
        add(sums_ + b * kLanes, moved);
        add(sums_ + (B_ + b) * kLanes, now);
        for (int a = 0; a <= b; ++a) {
          Vec sum = Vec{};
          LOG1PNMF_EACH sum += by_weight[u] * ((a == b ? 1.0 : 0.0) - load(share(a) + u * kLanes));
          add(matrix_ + (b * B_ + a) * kLanes, sum);
        }
      }
      LOG1PNMF_EACH off = vmax(off, vmax(level[u], -level[u]));
    }
    double largest = largest_lane(off);
    for (int b = 0; b < B_; ++b) {
      s_.right[b] = horizontal_sum(load(sums_ + b * kLanes));
      largest = std::max(largest, std::abs(horizontal_sum(load(sums_ + (B_ + b) * kLanes))));
      for (int a = 0; a <= b; ++a) s_.matrix[b * B_ + a] = s_.matrix[a * B_ + b] = horizontal_sum(load(matrix_ + (b * B_ + a) * kLanes));
    }
    s_.found[0] = largest;
  }

  // Takes the step: new effects, the longest part of it, and by how much the objective changes.
  void move() {
    Vec longest = Vec{}, change = Vec{};
    for (std::int64_t j = 0; j < s_.n_features; j += kStep) {
      read(j);
      Vec all[U] = {};
      for (int b = 0; b < B_; ++b)
        LOG1PNMF_EACH all[u] += load(inverse(b) + u * kLanes) * (s_.z[b] * weights_[u]);
      for (int b = 0; b < B_; ++b) {
        Vec step[U], growth[U];
        LOG1PNMF_EACH {
          const int e = u * kLanes;
          step[u] = load(free(b) + e) - (load(inverse(b) + e) * (s_.z[b] * weights_[u]) - load(share(b) + e) * all[u]);
          longest = vmax(longest, vmax(step[u], -step[u]));
          step[u] = vmin(vmax(step[u], splat(-1.0)), splat(1.0));
        }
        expm1<U>(step, growth);
        LOG1PNMF_EACH {
          const int e = u * kLanes;
          const Vec q = load(effects(b) + e), bent = load(bend(b) + e);
          change += bent * growth[u] - (bent - load(slope(b) + e)) * step[u];
          write(s_.effects_after + b * s_.n_features, j + e, q + q * growth[u]);
        }
      }
    }
    s_.found[0] = largest_lane(longest);
    s_.found[1] = horizontal_sum(change);
  }

 private:
  static constexpr int U = kUnroll;   // vectors of features at a time

  double* at(int kind, int b) const { return lanes_ + (kind * std::int64_t{B_} + b) * kStep; }
  double* effects(int b) const { return at(0, b); }
  double* bend(int b) const { return at(1, b); }
  double* slope(int b) const { return at(2, b); }
  double* inverse(int b) const { return at(3, b); }
  double* share(int b) const { return at(4, b); }
  double* free(int b) const { return at(5, b); }
  static void add(double* to, Vec v) { store(to, load(to) + v); }
  static void load_all(const double* from, Vec* to) { LOG1PNMF_EACH to[u] = load(from + u * kLanes); }
  static void store_all(double* to, const Vec* v) { LOG1PNMF_EACH store(to + u * kLanes, v[u]); }

  // Some features; those beyond the end change nothing: they weigh nothing, and are where they should be.
  void read(std::int64_t j) {
    part(s_.weights, j, 0.0, weights_);
    Vec inverses[U] = {}, steps[U] = {};
    for (int b = 0; b < B_; ++b) {
      const std::int64_t from = b * s_.n_features;
      Vec q[U], seen[U], bent[U], one[U];
      for (const double* all : {s_.effects, s_.totals, s_.means}) fetch(all + from + j);
      part(s_.effects + from, j, 1.0, q);
      part(s_.totals + from, j, 1.0, seen);
      part(s_.means + from, j, 1.0, bent);
      LOG1PNMF_EACH {
        seen[u] += s_.pull;
        one[u] = bent[u] = (bent[u] + s_.pull) * q[u];
      }
      reciprocals<U>(one);
      store_all(effects(b), q);
      store_all(bend(b), bent);
      store_all(inverse(b), one);
      LOG1PNMF_EACH {
        const Vec off = bent[u] - seen[u], own = -(off * one[u]);
        store(slope(b) + u * kLanes, off);
        store(free(b) + u * kLanes, own);
        inverses[u] += one[u];
        steps[u] += own;
      }
    }
    reciprocals<U>(inverses);
    for (int b = 0; b < B_; ++b)
      LOG1PNMF_EACH {
        const int e = u * kLanes;
        const Vec own = load(inverse(b) + e) * inverses[u];
        store(share(b) + e, own);
        store(free(b) + e, load(free(b) + e) - own * steps[u]);
      }
  }

  // Batches are far apart in memory, and there are too many for the processor to guess what comes next.
  static void fetch(const double* from) {
    constexpr int kAhead = 4 * kStep, kLine = 8;   // doubles in a cache line
    for (int i = 0; i < kStep; i += kLine) __builtin_prefetch(from + kAhead + i);
  }

  void part(const double* from, std::int64_t j, double beyond, Vec* to) const {
    if (j + kStep <= s_.n_features) return load_all(from + j, to);
    double lanes[kStep];
    for (int i = 0; i < kStep; ++i) lanes[i] = j + i < s_.n_features ? from[j + i] : beyond;
    load_all(lanes, to);
  }
  void write(double* to, std::int64_t j, Vec v) const {
    if (j + kLanes <= s_.n_features) return store(to + j, v);
    double lanes[kLanes];
    store(lanes, v);
    if (j < s_.n_features) std::copy_n(lanes, s_.n_features - j, to + j);
  }

  EffectsStep s_;
  int B_;
  Buffer lanes_, matrix_, sums_;
  Vec weights_[U] = {};
};

// to * (to / since)^power, where no ratio is far from 1; says whether it was so. Where ratios are near 1, the binomial series
// is exact to the last bit.
inline bool further_effects(const FurtherEffects& f) {
  constexpr int U = kUnroll, kTerms = 8;
  constexpr double kNearlyOne = 1.0 / 64.0, kFar = 0.5;
  double series[kTerms + 1] = {1.0};
  for (int k = 1; k <= kTerms; ++k) series[k] = series[k - 1] * (f.power - k + 1.0) / k;
  Vec most = Vec{};
  for (std::int64_t i = 0; i < f.n; i += kStep) {
    double lanes[3][kStep];
    const double *to = f.to + i, *since = f.since + i;
    double* out = f.out + i;
    const auto n = static_cast<int>(std::min<std::int64_t>(kStep, f.n - i));
    if (n < kStep) {
      for (double* one : lanes) std::fill_n(one, kStep, 1.0);
      std::copy_n(to, n, lanes[0]);
      std::copy_n(since, n, lanes[1]);
      to = lanes[0], since = lanes[1], out = lanes[2];
    }
    Vec change[U], sum[U];
    LOG1PNMF_EACH change[u] = load(since + u * kLanes);
    reciprocals<U>(change);
    LOG1PNMF_EACH change[u] *= load(to + u * kLanes) - load(since + u * kLanes);
    Vec here = Vec{};
    LOG1PNMF_EACH here = vmax(here, vmax(change[u], -change[u]));
    most = vmax(most, here);
    if (lanes_above(here, kNearlyOne) == 0) {
      LOG1PNMF_EACH sum[u] = splat(series[kTerms]);
#pragma GCC unroll 8
      for (int k = kTerms - 1; k > 0; --k) LOG1PNMF_EACH sum[u] = sum[u] * change[u] + series[k];
      LOG1PNMF_EACH sum[u] *= change[u];
    } else {
      Vec unused[U];
      LOG1PNMF_EACH change[u] += 1.0;
      log_and_reciprocal<U>(change, change, unused);
      LOG1PNMF_EACH change[u] *= f.power;
      expm1<U>(change, sum);
    }
    LOG1PNMF_EACH {
      const Vec last = load(to + u * kLanes), found = last + last * sum[u];
      store(out + u * kLanes, vmin(vmax(found, splat(1.0 / f.largest)), splat(f.largest)));
    }
    if (n < kStep) std::copy_n(lanes[2], n, f.out + i);
  }
  return largest_lane(most) <= kFar;
}

}  // namespace log1pnmf::LOG1PNMF_ISA
