// Zero entries and the quadratics that stand in for them: which ones to visit, and how far off the others are.
//
// Rows are features and columns samples, as in the factors' half-step. A row's eta and expm1(eta) are laid out once over
// all samples; eta is -1 where there is a count, and beyond the end.
#pragma once

#include "row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// The design by component, padded with zeros, and the exposures.
class Samples {
 public:
  Samples(const Rows& rows, const double* design, int K)
      : K_(K), n_(rows.n_columns), padded_(round_up(n_, kStep)), transposed_(padded_ * K), exposure_(padded_) {
    for (std::int64_t i = 0; i < n_; ++i) {
      for (int k = 0; k < K; ++k) transposed_[k * padded_ + i] = design[i * K + k];
      exposure_[i] = rows.column_exposure != nullptr ? rows.column_exposure[i] : 1.0;
    }
  }
  std::int64_t padded() const { return padded_; }
  Vec exposure(std::int64_t e) const { return load(exposure_ + e); }

  // eta of a row, and expm1(eta) where em is not null.
  void lay_out(const double* b, const Entries& counts, const Entries& stored, double* eta_out, double* em_out) const {
    constexpr int U = kUnroll;
    for (std::int64_t e = 0; e < padded_; e += kStep) {
      Vec eta[U] = {}, em[U];
      for (int k = 0; k < K_; ++k)
        LOG1PNMF_EACH eta[u] += b[k] * load(transposed_ + k * padded_ + e + u * kLanes);
      LOG1PNMF_EACH store(eta_out + e + u * kLanes, eta[u]);
      if (em_out == nullptr) continue;
      LOG1PNMF_EACH eta[u] = ShiftedLogLink::clamp_eta(eta[u]);
      ShiftedLogLink::mean_part<U>(eta, em);
      LOG1PNMF_EACH store(em_out + e + u * kLanes, em[u]);
    }
    for (std::int64_t p = 0; p < counts.count; ++p) eta_out[counts.indices[p]] = -1.0;
    for (std::int64_t p = 0; p < stored.count; ++p) eta_out[stored.indices[p]] = -1.0;
    std::fill(eta_out + n_, eta_out + padded_, -1.0);
  }

 private:
  int K_;
  std::int64_t n_, padded_;
  Buffer transposed_, exposure_;
};

struct ZerosScratch final : Plan::Workspace {
  explicit ZerosScratch(std::int64_t padded) : eta(padded), em(padded) {}
  Buffer eta, em;
};

class ZeroSurveyPlan final : public Plan {
 public:
  explicit ZeroSurveyPlan(const ZeroSurvey& s) : s_(s), samples_(s.rows, s.design, s.n_components) {}
  std::unique_ptr<Workspace> workspace() const override { return std::make_unique<ZerosScratch>(samples_.padded()); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    samples_.lay_out(s_.start + j * s_.n_components, entries_at(s_.rows.indptr, s_.rows.indices, s_.rows.n_rows, j), {},
                     at.eta, at.em);
    Vec most = Vec{};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) most = vmax(most, load(at.eta + e));
    const double largest = largest_lane(most);
    for (int g = 0; g < s_.n_caps; ++g) {
      if (g > 0 && s_.caps[g - 1] >= largest) copy_last(j, g);   // no entry lies between the two caps
      else fit(at, j, g);
    }
  }

 private:
  static Vec below(Vec eta, double cap, Vec t) { return (eta >= 0.0) & (eta <= cap) ? t : Vec{}; }

  // Least squares of expm1(eta) on 1, eta, eta^2 over the entries below the cap, weighed by exposure: as a correction to
  // the expansion around the mean, so that nothing is lost where all eta are nearly equal.
  void fit(const ZerosScratch& at, std::int64_t j, int g) const {
    const double cap = s_.caps[g];
    const std::int64_t n = samples_.padded();
    Vec sums[3] = {};
    for (std::int64_t e = 0; e < n; e += kLanes) {
      const Vec eta = load(at.eta + e), w = below(eta, cap, samples_.exposure(e));
      sums[0] += w;
      sums[1] += w * eta;
      sums[2] += w * eta * eta;
    }
    const double total = horizontal_sum(sums[0]);
    const double mean = total > 0.0 ? horizontal_sum(sums[1]) / total : 0.0;
    const double variance = total > 0.0 ? std::max(0.0, horizontal_sum(sums[2]) / total - mean * mean) : 0.0;
    const double slope = std::exp(mean), scale = std::max(std::sqrt(variance), 1e-7 * (1.0 + mean));
    const double level = std::expm1(mean);
    Vec powers[5] = {}, pulls[3] = {};
    for (std::int64_t e = 0; e < n; e += kLanes) {
      const Vec eta = load(at.eta + e), w = below(eta, cap, samples_.exposure(e));
      const Vec d = eta - mean, x = d * (1.0 / scale);
      const Vec rest = load(at.em + e) - (level + slope * d * (1.0 + 0.5 * d));
      Vec power = w;
      for (int i = 0; i < 5; ++i) {
        powers[i] += power;
        if (i < 3) pulls[i] += power * rest;
        power *= x;
      }
    }
    double moments[5], right[3];
    for (int i = 0; i < 5; ++i) moments[i] = horizontal_sum(powers[i]);
    for (int i = 0; i < 3; ++i) right[i] = horizontal_sum(pulls[i]);
    solve(moments, right);
    // In powers of eta: level + slope d + slope d^2 / 2 + right0 + right1 x + right2 x^2.
    const double linear = slope + right[1] / scale, square = std::max(0.0, 0.5 * slope + right[2] / (scale * scale));
    const double a[3] = {level + right[0] - mean * (linear - mean * square), linear - 2.0 * mean * square, square};
    Vec error = Vec{}, above = Vec{};
    for (std::int64_t e = 0; e < n; e += kLanes) {
      const Vec eta = load(at.eta + e), w = below(eta, cap, samples_.exposure(e));
      const Vec off = load(at.em + e) - (a[0] + eta * (a[1] + a[2] * eta));
      error += w * vmax(off, -off);
      above += eta > cap ? splat(1.0) : Vec{};
    }
    const std::int64_t to = j * s_.n_caps + g;
    s_.error[to] = horizontal_sum(error);
    s_.n_above[to] = horizontal_sum(above);
    std::copy_n(a, 3, s_.quadratic + 3 * to);
  }

  // Normal equations of a quadratic, made solvable by a tiny ridge.
  static void solve(const double* moments, double* right) {
    double A[3][3];
    for (int i = 0; i < 3; ++i)
      for (int l = 0; l < 3; ++l) A[i][l] = moments[i + l];
    const double ridge = 1e-9 * moments[0] + 1e-300;
    for (int i = 0; i < 3; ++i) A[i][i] = A[i][i] * (1.0 + 1e-9) + ridge;
    for (int i = 0; i < 3; ++i)
      for (int l = i + 1; l < 3; ++l) {
        const double factor = A[l][i] / A[i][i];
        for (int c = i; c < 3; ++c) A[l][c] -= factor * A[i][c];
        right[l] -= factor * right[i];
      }
    for (int i = 2; i >= 0; --i) {
      for (int l = i + 1; l < 3; ++l) right[i] -= A[i][l] * right[l];
      right[i] /= A[i][i];
    }
  }

  void copy_last(std::int64_t j, int g) const {
    const std::int64_t to = j * s_.n_caps + g;
    s_.error[to] = s_.error[to - 1];
    s_.n_above[to] = s_.n_above[to - 1];
    std::copy_n(s_.quadratic + 3 * (to - 1), 3, s_.quadratic + 3 * to);
  }

  ZeroSurvey s_;
  Samples samples_;
};

class ZeroCollectionPlan final : public Plan {
 public:
  explicit ZeroCollectionPlan(const ZeroCollection& c) : c_(c), samples_(c.rows, c.design, c.n_components) {}
  std::unique_ptr<Workspace> workspace() const override { return std::make_unique<ZerosScratch>(samples_.padded()); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    if (c_.n_above == nullptr && c_.indptr[j] == c_.indptr[j + 1]) return;
    samples_.lay_out(c_.start + j * c_.n_components, entries_at(c_.rows.indptr, c_.rows.indices, c_.rows.n_rows, j), {},
                     at.eta, nullptr);
    if (c_.n_above != nullptr) count(at, j);
    else list(at, j);
  }

 private:
  void count(const ZerosScratch& at, std::int64_t j) const {
    Vec above = Vec{}, below = Vec{};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) {
      const Vec eta = load(at.eta + e);
      above += eta > c_.caps[j] ? splat(1.0) : Vec{};
      below += (eta >= 0.0) & (eta <= c_.caps[j]) ? samples_.exposure(e) : Vec{};
    }
    c_.n_above[j] = static_cast<std::int64_t>(horizontal_sum(above));
    c_.exposure[j] = horizontal_sum(below);
  }

  void list(const ZerosScratch& at, std::int64_t j) const {
    std::int64_t to = c_.indptr[j];
    for (std::int64_t i = 0; i < c_.rows.n_columns && to < c_.indptr[j + 1]; ++i)
      if (at.eta[i] > c_.caps[j]) c_.indices[to++] = static_cast<std::int32_t>(i);
  }

  ZeroCollection c_;
  Samples samples_;
};

class ZeroErrorsPlan final : public Plan {
 public:
  explicit ZeroErrorsPlan(const ZeroErrors& z) : z_(z), samples_(z.rows, z.design, z.n_components) {}
  std::unique_ptr<Workspace> workspace() const override { return std::make_unique<ZerosScratch>(samples_.padded()); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    const std::int64_t n = z_.rows.n_rows;
    Entries stored;
    if (z_.stored.indptr != nullptr) stored = entries_at(z_.stored.indptr, z_.stored.indices, n, j);
    samples_.lay_out(z_.start + j * z_.n_components, entries_at(z_.rows.indptr, z_.rows.indices, n, j), stored, at.eta,
                     at.em);
    const double* a = z_.quadratic + 3 * j;
    Vec sum = Vec{}, absolute = Vec{};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) {
      const Vec eta = load(at.eta + e);
      const Vec off = load(at.em + e) - (a[0] + eta * (a[1] + a[2] * eta));
      const Vec w = eta >= 0.0 ? samples_.exposure(e) : Vec{};
      sum += w * off;
      absolute += w * vmax(off, -off);
    }
    z_.signed_error[j] = horizontal_sum(sum);
    z_.absolute_error[j] = horizontal_sum(absolute);
  }

 private:
  ZeroErrors z_;
  Samples samples_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
