// Zero entries and the quadratics that stand in for them: which ones to visit, and how far off the others are.
//
// Rows are features and columns samples, as in the factors' half-step. What a row's zeros cost over t, and the measure that
// is held against caps, are laid out once over all samples; the measure is -1 where there is a count, and beyond the end.
// Poisson: the cost is expm1(eta), the measure eta. With a dispersion the cost is log(1 + phi t em) / (phi t), and the
// measure the larger of eta (not with the identity link, where em = eta) and phi t em.
#pragma once

#include "row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// A row's zeros, sample by sample.
struct ZerosScratch final : Plan::Workspace {
  ZerosScratch(std::int64_t padded, bool in_batches)
      : eta(padded), cost(padded), measure(padded), own(in_batches ? padded : 0) {}
  Buffer eta, cost, measure;
  Buffer own;                  // with batches: exposures, which are the row's own
  const double* t = nullptr;   // exposures
  Vec exposure(std::int64_t e) const { return load(t + e); }
};

// The design, padded with zeros, and the exposures; with batches, without their effects. Of kStep samples, one component
// stands after the other, so that a sweep over all samples reads memory from its beginning to its end.
class Samples {
 public:
  Samples(const Rows& rows, Link link, const double* design, int K, std::int64_t stride = 1)
      : rows_(rows), link_(link), K_(K), stride_(stride), n_((rows.n_columns + stride - 1) / stride),
        padded_(round_up(n_, kStep)), transposed_(padded_ * K), exposure_(padded_) {
    for (std::int64_t i = 0; i < n_; ++i) {
      for (int k = 0; k < K; ++k) transposed_[place(k, i)] = design[i * stride * K + k];
      exposure_[i] = rows.column_exposure != nullptr ? rows.column_exposure[i * stride] : 1.0;
    }
    sum_exposures(exposure_, totals_);
  }
  double scale() const { return n_ > 0 ? static_cast<double>(rows_.n_columns) / static_cast<double>(n_) : 1.0; }
  std::int64_t padded() const { return padded_; }
  int n_components() const { return K_; }
  Vec component(int k, std::int64_t e) const { return load(transposed_ + place(k, e)); }
  const double* totals() const { return totals_; }   // of the exposures and their squares
  void sum_exposures(const double* t, double* to) const {
    Vec sum = Vec{}, squares = Vec{};
    for (std::int64_t e = 0; e < padded_; e += kLanes) {
      const Vec own = load(t + e);
      sum += own;
      squares += own * own;
    }
    to[0] = horizontal_sum(sum);
    to[1] = horizontal_sum(squares);
  }
  void set_exposures(std::int64_t j, ZerosScratch& to) const {
    to.t = exposure_;
    if (!rows_.batches.any()) return;
    const double* effects = rows_.batches.effects + j * rows_.batches.count;
    for (std::int64_t i = 0; i < n_; ++i) to.own[i] = exposure_[i] * effects[rows_.batches.column_batch[i * stride_]];
    to.t = to.own;
  }
  std::unique_ptr<ZerosScratch> scratch() const {
    return std::make_unique<ZerosScratch>(padded_, rows_.batches.any());
  }
  bool dispersed() const { return rows_.row_dispersion != nullptr; }

  // Logarithms of the means of a row, in `measure`.
  void log_means(std::int64_t j, const double* b, ZerosScratch& to) const {
    set_exposures(j, to);
    if (link_ == Link::identity) fill_log_means<IdentityLink>(b, to);
    else fill_log_means<ShiftedLogLink>(b, to);
  }

  void lay_out(std::int64_t j, const double* b, const Entries& stored, bool with_cost, ZerosScratch& to) const {
    set_exposures(j, to);
    if (link_ == Link::identity) fill<IdentityLink>(j, b, with_cost, to);
    else fill<ShiftedLogLink>(j, b, with_cost, to);
    for (const Entries& left_out : {entries_at(rows_.indptr, rows_.indices, rows_.n_rows, j), stored})
      for (std::int64_t p = 0; p < left_out.count; ++p)
        if (stride_ == 1 || left_out.indices[p] % stride_ == 0) to.measure[left_out.indices[p] / stride_] = -1.0;
    std::fill(to.measure + n_, to.measure + padded_, -1.0);
  }

 private:
  std::int64_t place(int k, std::int64_t i) const { return i / kStep * kStep * K_ + k * kStep + i % kStep; }

  template <class L>
  void fill_log_means(const double* b, ZerosScratch& to) const {
    constexpr int U = kUnroll;
    for (std::int64_t e = 0; e < padded_; e += kStep) {
      Vec eta[U], mean[U], log[U], inverse[U];
      predictors<U>(e, b, eta);
      LOG1PNMF_EACH eta[u] = L::clamp_eta(eta[u]);
      L::template mean_part<U>(eta, mean);
      LOG1PNMF_EACH mean[u] = vmax(mean[u] * to.exposure(e + u * kLanes), splat(1e-100));
      log_and_reciprocal<U>(mean, log, inverse);
      LOG1PNMF_EACH store(to.measure + e + u * kLanes, log[u]);
    }
  }

  template <int U>
  void predictors(std::int64_t e, const double* b, Vec* eta) const {
    LOG1PNMF_EACH eta[u] = Vec{};
    for (int k = 0; k < K_; ++k)
      LOG1PNMF_EACH eta[u] += b[k] * component(k, e + u * kLanes);
  }

  template <class L>
  void fill(std::int64_t j, const double* b, bool with_cost, ZerosScratch& to) const {
    constexpr int U = kUnroll;
    const Vec phi = splat(dispersed() ? rows_.row_dispersion[j] : 0.0);
    for (std::int64_t e = 0; e < padded_; e += kStep) {
      EntriesAt<U> at;
      predictors<U>(e, b, at.eta);
      LOG1PNMF_EACH store(to.eta + e + u * kLanes, at.eta[u]);
      if (!with_cost && !dispersed()) {
        LOG1PNMF_EACH store(to.measure + e + u * kLanes, at.eta[u]);
        continue;
      }
      Vec measure[U];
      LOG1PNMF_EACH measure[u] = L::kLinear ? Vec{} : at.eta[u];
      LOG1PNMF_EACH at.eta[u] = L::clamp_eta(at.eta[u]);
      L::template mean_part<U>(at.eta, at.em);
      LOG1PNMF_EACH store(to.cost + e + u * kLanes, at.em[u]);
      if (dispersed()) {   // with t = 1 and phi t for the dispersion the zero terms are those over t
        LOG1PNMF_EACH at.t[u] = splat(1.0);
        LOG1PNMF_EACH at.phi[u] = phi * to.exposure(e + u * kLanes);
        LOG1PNMF_EACH measure[u] = vmax(measure[u], at.phi[u] * at.em[u]);
        LOG1PNMF_EACH at.phi[u] = vmax(at.phi[u], splat(kSmallestPhi));
        LOG1PNMF_EACH at.inverse_phi[u] = at.phi[u];
        reciprocals<U>(at.inverse_phi);
        ZeroTerms<U> z;
        NegativeBinomial::disperse<true, U>(at);
        NegativeBinomial::zero_terms<L, U>(at, z);
        LOG1PNMF_EACH store(to.cost + e + u * kLanes, z.loss[u]);
      }
      LOG1PNMF_EACH store(to.measure + e + u * kLanes, measure[u]);
    }
  }

  Rows rows_;
  Link link_;
  int K_;
  std::int64_t stride_, n_, padded_;
  Buffer transposed_, exposure_;
  double totals_[2];
};

// The cost of a zero over t as a polynomial in eta; with a dispersion its constant and its square depend linearly on t.
struct Polynomial {
  double a[5] = {};
  bool dispersed = false;
  Vec at(Vec eta, Vec t) const {
    const Vec own = a[0] + eta * (a[1] + a[2] * eta);
    return dispersed ? own + t * (a[3] + eta * eta * a[4]) : own;
  }
};

// Least squares with n unknowns, made solvable by a tiny ridge; the matrix is symmetric, its lower triangle filled. Unknowns
// that are fixed keep their values.
struct Fixed {
  bool is[5] = {};
  double value[5] = {};
  void set(int i, double to) { is[i] = true, value[i] = to; }
};
template <int N>
inline void least_squares(double (&A)[N][N], double* right, const Fixed& fixed) {
  const double ridge = 1e-9 * A[0][0] + 1e-300;
  for (int i = 0; i < N; ++i)
    for (int l = i + 1; l < N; ++l) A[i][l] = A[l][i];
  for (int i = 0; i < N; ++i) A[i][i] += i == 0 ? 1e-300 : ridge + 1e-9 * A[i][i];
  for (int i = 0; i < N; ++i) {
    if (!fixed.is[i]) continue;
    for (int l = 0; l < N; ++l) {
      right[l] -= A[l][i] * fixed.value[i];
      A[l][i] = A[i][l] = 0.0;
    }
    A[i][i] = 1.0;
    right[i] = fixed.value[i];
  }
  for (int i = 0; i < N; ++i)
    for (int l = i + 1; l < N; ++l) {
      const double factor = A[l][i] / A[i][i];
      for (int c = i; c < N; ++c) A[l][c] -= factor * A[i][c];
      right[l] -= factor * right[i];
    }
  for (int i = N - 1; i >= 0; --i) {
    for (int l = i + 1; l < N; ++l) right[i] -= A[i][l] * right[l];
    right[i] /= A[i][i];
  }
}

class ZeroSurveyPlan final : public Plan {
 public:
  explicit ZeroSurveyPlan(const ZeroSurvey& s) : s_(s), samples_(s.rows, s.link, s.design, s.n_components, s.stride) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    samples_.lay_out(j, s_.start + j * s_.n_components, {}, true, at);
    Vec most = Vec{};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) most = vmax(most, load(at.measure + e));
    const double largest = largest_lane(most);
    for (int g = 0; g < s_.n_caps; ++g) {
      if (g > 0 && s_.caps[g - 1] >= largest) copy_last(j, g);   // no entry lies between the two caps
      else if (samples_.dispersed()) fit<5>(at, j, g);
      else fit<3>(at, j, g);
    }
  }

 private:
  // Mean and spread of a number over the entries below a cap, weighed by exposure.
  struct Scale {
    double mean = 0.0, spread = 1.0;
  };
  static Scale scale_of(double total, double sum, double squares) {
    if (!(total > 0.0)) return {};
    const double mean = sum / total, variance = std::max(0.0, squares / total - mean * mean);
    return {mean, std::max(std::sqrt(variance), 1e-7 * (1.0 + std::abs(mean)))};
  }

  // What is known without a look at the entries: em expanded around the mean eta, and with a dispersion the first term of
  // what its logarithm takes away. Also how the numbers of the entries are standardised.
  struct Expansion {
    Scale of_eta, of_t;
    double level, slope, curve, bent;   // em ~ level + slope d + curve d^2; bent t eta^2
    double unit = 1.0;                  // the size of t eta^2
    double most_bent = 0.0;             // how large the coefficient of t eta^2 may be
  };

  // Weighed least squares over the entries below the cap, on powers of the standardised eta; of 5, the last two are the
  // standardised t and t eta^2. They correct an expansion, so that nothing is lost where all eta are nearly equal.
  // The coefficient of eta^2 is not negative (Poisson: clipped), and zero with the identity link. That of t eta^2
  // is not positive, and bounded (kMostBent and so on); zero where the survey asks for straight ones.
  template <int N>
  void fit(const ZerosScratch& at, std::int64_t j, int g) const {
    const double cap = s_.caps[g];
    const Expansion known = expansion<N>(at, j, cap);
    Vec products[N][N] = {}, pulls[N] = {};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) {
      const Vec eta = load(at.eta + e), t = at.exposure(e), w = below(at, e, cap, t);
      const Vec d = eta - known.of_eta.mean;
      Vec rest = load(at.cost + e) - (known.level + d * (known.slope + known.curve * d)), basis[N];
      basis[0] = splat(1.0);
      basis[1] = d * (1.0 / known.of_eta.spread);
      basis[2] = basis[1] * basis[1];
      if constexpr (N == 5) {
        const Vec square = t * eta * eta;
        rest -= known.bent * square;
        basis[3] = (t - known.of_t.mean) * (1.0 / known.of_t.spread);
        basis[4] = square * (1.0 / known.unit);
      }
      for (int i = 0; i < N; ++i) {
        const Vec wi = w * basis[i];
        pulls[i] += wi * rest;
        for (int l = 0; l <= i; ++l) products[i][l] += wi * basis[l];
      }
    }
    double x[5] = {}, least[5], most[5];
    bounds<N>(known, least, most);
    Fixed fixed;
    if (N == 5 && s_.link == Link::identity) fixed.set(2, 0.0);
    for (bool again = true; again;) {
      double A[N][N];
      for (int i = 0; i < N; ++i) {
        x[i] = horizontal_sum(pulls[i]);
        for (int l = 0; l <= i; ++l) A[i][l] = horizontal_sum(products[i][l]);
      }
      least_squares<N>(A, x, fixed);
      again = false;
      for (int i = 0; i < N; ++i)
        if (!fixed.is[i] && !(x[i] >= least[i] && x[i] <= most[i])) fixed.set(i, std::clamp(x[i], least[i], most[i])), again = true;
    }
    finish<N>(at, j, g, unscaled<N>(x, known));
  }

  // Of the standardised numbers. All but the constants stay within a few times those of the expansion: where zeros have nearly the same eta
  // these would be anything, and what is fitted to a few zeros would be far too large for the entries that are visited.
  template <int N>
  void bounds(const Expansion& known, double* least, double* most) const {
    for (int i = 0; i < N; ++i) most[i] = std::numeric_limits<double>::infinity(), least[i] = -most[i];
    if constexpr (N == 5) {
      const double spread = known.of_eta.spread, steepest = kSteepest * known.slope;
      const double bent = s_.straight ? 0.0 : std::max(-known.most_bent, steepest * known.slope * known.bent);
      least[1] = ((s_.straight ? 0.0 : kFlattest) - 1.0) * known.slope * spread, most[1] = (steepest - known.slope) * spread;
      least[2] = -known.curve * spread * spread, most[2] = (steepest - known.curve) * spread * spread;
      least[4] = (bent - known.bent) * known.unit, most[4] = -known.bent * known.unit;
    }
  }

  template <int N>
  Expansion expansion(const ZerosScratch& at, std::int64_t j, double cap) const {
    Vec sums[7] = {}, widest = Vec{}, largest = Vec{};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) {
      const Vec eta = load(at.eta + e), t = at.exposure(e), w = below(at, e, cap, t);
      sums[0] += w;
      sums[1] += w * eta;
      sums[2] += w * eta * eta;
      if constexpr (N == 5) {
        const Vec square = t * eta * eta;
        sums[3] += w * t;
        sums[4] += w * t * t;
        sums[5] += w * square * square;
        sums[6] += w * square;
        widest = vmax(widest, w * eta);
        largest = vmax(largest, t * eta);
      }
    }
    const double total = horizontal_sum(sums[0]);
    Expansion found;
    found.of_eta = scale_of(total, horizontal_sum(sums[1]), horizontal_sum(sums[2]));
    found.of_t = scale_of(total, horizontal_sum(sums[3]), horizontal_sum(sums[4]));
    const bool identity = s_.link == Link::identity;
    found.level = identity ? found.of_eta.mean : std::expm1(found.of_eta.mean);
    found.slope = identity ? 1.0 : std::exp(found.of_eta.mean);
    found.curve = identity ? 0.0 : 0.5 * found.slope;
    found.bent = N == 5 ? -0.5 * s_.rows.row_dispersion[j] : 0.0;
    if (total > 0.0) found.unit = std::max(std::sqrt(horizontal_sum(sums[5]) / total), 1e-100);
    const double most = largest_lane(widest), far = largest_lane(largest), squares = horizontal_sum(sums[6]);
    if (most > 0.0) found.most_bent = std::min({0.5 * kMostBent / most, 0.5 * kMostOfAll * horizontal_sum(sums[1]) / squares, kLargestBend / (far * far)});
    return found;
  }

  // From the standardised numbers back to powers of eta and t.
  template <int N>
  static Polynomial unscaled(const double* x, const Expansion& known) {
    const double m = known.of_eta.mean, spread = known.of_eta.spread;
    const double constant = x[0] + known.level, linear = x[1] / spread + known.slope;
    const double square = std::max(0.0, x[2] / (spread * spread) + known.curve);
    Polynomial p;
    p.a[0] = constant - m * (linear - m * square);
    p.a[1] = linear - 2.0 * m * square;
    p.a[2] = square;
    if constexpr (N == 5) {
      p.dispersed = true;
      p.a[3] = x[3] / known.of_t.spread;
      p.a[0] -= known.of_t.mean * p.a[3];
      p.a[4] = x[4] / known.unit + known.bent;
      if (p.a[4] > 1e-12 * known.bent) p.a[4] = 0.0;   // the rest is rounding
    }
    return p;
  }

  template <int N>
  void finish(const ZerosScratch& at, std::int64_t j, int g, const Polynomial& p) const {
    const double cap = s_.caps[g];
    Vec error = Vec{}, above = Vec{};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) {
      const Vec t = at.exposure(e), off = load(at.cost + e) - p.at(load(at.eta + e), t);
      error += below(at, e, cap, t) * vmax(off, -off);
      above += load(at.measure + e) > cap ? splat(1.0) : Vec{};
    }
    const std::int64_t to = j * s_.n_caps + g;
    s_.error[to] = samples_.scale() * horizontal_sum(error);
    s_.n_above[to] = samples_.scale() * horizontal_sum(above);
    std::copy_n(p.a, N, s_.quadratic + N * to);
  }

  static Vec below(const ZerosScratch& at, std::int64_t e, double cap, Vec t) {
    const Vec measure = load(at.measure + e);
    return (measure >= 0.0) & (measure <= cap) ? t : Vec{};
  }

  void copy_last(std::int64_t j, int g) const {
    const std::int64_t to = j * s_.n_caps + g;
    const int width = samples_.dispersed() ? 5 : 3;
    s_.error[to] = s_.error[to - 1];
    s_.n_above[to] = s_.n_above[to - 1];
    std::copy_n(s_.quadratic + width * (to - 1), width, s_.quadratic + width * to);
  }

  static constexpr double kMostBent = 0.35, kMostOfAll = 0.2;   // part of the slope of a mean: of any zero, of all of them
  static constexpr double kLargestBend = 1e3;                   // of any entry; it is subtracted from sums where entries are visited
  static constexpr double kFlattest = 0.9, kSteepest = 4.0;   // slopes of a mean; more is left than RowEvaluator lets the concave part take

  ZeroSurvey s_;
  Samples samples_;
};

class ZeroErrorsPlan final : public Plan {
 public:
  explicit ZeroErrorsPlan(const ZeroErrors& z) : z_(z), samples_(z.rows, z.link, z.design, z.n_components, z.stride) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(std::int64_t j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    Entries stored;
    if (z_.stored.indptr != nullptr) stored = entries_at(z_.stored.indptr, z_.stored.indices, z_.rows.n_rows, j);
    samples_.lay_out(j, z_.start + j * z_.n_components, stored, true, at);
    Polynomial p;
    p.dispersed = samples_.dispersed();
    const int width = p.dispersed ? 5 : 3;
    std::copy_n(z_.quadratic + width * j, width, p.a);
    Vec sum = Vec{}, absolute = Vec{};
    for (std::int64_t e = 0; e < samples_.padded(); e += kLanes) {
      const Vec t = at.exposure(e), off = load(at.cost + e) - p.at(load(at.eta + e), t);
      const Vec w = load(at.measure + e) >= 0.0 ? t : Vec{};
      sum += w * off;
      absolute += w * vmax(off, -off);
    }
    z_.signed_error[j] = samples_.scale() * horizontal_sum(sum);
    z_.absolute_error[j] = samples_.scale() * horizontal_sum(absolute);
  }

 private:
  ZeroErrors z_;
  Samples samples_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
