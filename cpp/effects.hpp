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
      : s_(s), B_(s.n_batches), lanes_(6 * std::int64_t{B_} * kLanes), matrix_(std::int64_t{B_} * B_ * kLanes), sums_(2 * std::int64_t{B_} * kLanes) {}

  // The equations for z, and how far levels are off.
  void equations() {
    Vec off = Vec{};
    for (std::int64_t j = 0; j < s_.n_features; j += kLanes) {
      read(j);
      const Vec w = weights_;
      Vec level = Vec{};
      for (int b = 0; b < B_; ++b) {
        Vec log, unused;
        const Vec q = load(effects(b));
        log_and_reciprocal<1>(&q, &log, &unused);
        level += log;
        add(sums_ + b * kLanes, w * load(free(b)));
        add(sums_ + (B_ + b) * kLanes, w * log);
        const Vec by_weight = w * w * load(inverse(b));
        for (int a = 0; a < B_; ++a) add(matrix_ + (b * B_ + a) * kLanes, by_weight * ((a == b ? 1.0 : 0.0) - load(share(a))));
      }
      off = vmax(off, vmax(level, -level));
    }
    double largest = largest_lane(off);
    for (int b = 0; b < B_; ++b) {
      s_.right[b] = horizontal_sum(load(sums_ + b * kLanes));
      largest = std::max(largest, std::abs(horizontal_sum(load(sums_ + (B_ + b) * kLanes))));
      for (int a = 0; a < B_; ++a) s_.matrix[b * B_ + a] = horizontal_sum(load(matrix_ + (b * B_ + a) * kLanes));
    }
    s_.found[0] = largest;
  }

  // Takes the step: new effects, the longest part of it, and by how much the objective changes.
  void move() {
    Vec longest = Vec{}, change = Vec{};
    for (std::int64_t j = 0; j < s_.n_features; j += kLanes) {
      read(j);
      Vec all = Vec{};
      for (int b = 0; b < B_; ++b) all += load(inverse(b)) * (s_.z[b] * weights_);
      for (int b = 0; b < B_; ++b) {
        Vec step = load(free(b)) - (load(inverse(b)) * (s_.z[b] * weights_) - load(share(b)) * all);
        longest = vmax(longest, vmax(step, -step));
        step = vmin(vmax(step, splat(-1.0)), splat(1.0));
        Vec growth;
        expm1<1>(&step, &growth);
        const Vec q = load(effects(b)), bend = load(this->bend(b));
        change += bend * growth - (bend - load(slope(b))) * step;
        write(s_.effects_after + b * s_.n_features, j, q + q * growth);
      }
    }
    s_.found[0] = largest_lane(longest);
    s_.found[1] = horizontal_sum(change);
  }

 private:
  double* at(int kind, int b) const { return lanes_ + (kind * std::int64_t{B_} + b) * kLanes; }
  double* effects(int b) const { return at(0, b); }
  double* bend(int b) const { return at(1, b); }
  double* slope(int b) const { return at(2, b); }
  double* inverse(int b) const { return at(3, b); }
  double* share(int b) const { return at(4, b); }
  double* free(int b) const { return at(5, b); }
  static void add(double* to, Vec v) { store(to, load(to) + v); }

  // Some features; those beyond the end change nothing: they weigh nothing, and are where they should be.
  void read(std::int64_t j) {
    weights_ = part(s_.weights, j, 0.0);
    Vec inverses = Vec{}, steps = Vec{};
    for (int b = 0; b < B_; ++b) {
      const std::int64_t from = b * s_.n_features;
      const Vec q = part(s_.effects + from, j, 1.0), seen = part(s_.totals + from, j, 1.0) + s_.pull;
      const Vec bent = (part(s_.means + from, j, 1.0) + s_.pull) * q;
      Vec one = bent;
      reciprocals<1>(&one);
      store(effects(b), q);
      store(bend(b), bent);
      store(slope(b), bent - seen);
      store(inverse(b), one);
      store(free(b), (seen - bent) * one);
      inverses += one;
      steps += load(free(b));
    }
    reciprocals<1>(&inverses);
    for (int b = 0; b < B_; ++b) {
      const Vec own = load(inverse(b)) * inverses;
      store(share(b), own);
      store(free(b), load(free(b)) - own * steps);
    }
  }

  Vec part(const double* from, std::int64_t j, double beyond) const {
    if (j + kLanes <= s_.n_features) return load(from + j);
    double lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = j + i < s_.n_features ? from[j + i] : beyond;
    return load(lanes);
  }
  void write(double* to, std::int64_t j, Vec v) const {
    if (j + kLanes <= s_.n_features) return store(to + j, v);
    double lanes[kLanes];
    store(lanes, v);
    std::copy_n(lanes, s_.n_features - j, to + j);
  }

  EffectsStep s_;
  int B_;
  Buffer lanes_, matrix_, sums_;
  Vec weights_ = Vec{};
};

}  // namespace log1pnmf::LOG1PNMF_ISA
