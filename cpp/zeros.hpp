// Passes over all samples of every feature: quadratics that approximate zeros, the list of zeros
// that are computed one by one, the error of the others, and the spectrum of the means.
//
// Rows are features and columns samples, as in the factors' half-step. The loss of a row's zeros
// over t, and the measure that is compared with thresholds, are laid out once over all samples; the
// measure is -1 where there is a count, and beyond the end. Poisson: the loss is expm1(eta), the
// measure eta. With a dispersion the loss is log(1 + phi t em) / (phi t), and the measure the
// larger of eta (not with the identity link, where em = eta) and phi t em.
#pragma once

#include <vector>

#include "row.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// A row's zeros, sample by sample.
struct ZerosScratch final : Plan::Workspace {
  ZerosScratch(Index padded, bool in_batches)
      : eta(padded), loss(padded), measure(padded), own(in_batches ? padded : 0) {}
  Buffer eta, loss, measure;
  Buffer own;                 // with batches: exposures, which are the row's own
  const double* t = nullptr;  // exposures
  Vec exposure(Index e) const { return load(t + e); }
};

// The design, padded with zeros, and the exposures; with batches, without their effects. Of kStep
// samples, one component stands after the other, so that a sweep over all samples reads memory from
// its beginning to its end.
class Samples {
 public:
  explicit Samples(const HalfStep& pass, Index stride = 1)
      : rows_(pass.rows), link_(pass.model.link), start_(pass.start), K_(pass.n_components),
        stride_(stride), n_((rows_.n_columns + stride - 1) / stride), padded_(round_up(n_, kStep)),
        transposed_(padded_ * K_), exposure_(padded_) {
    for (Index i = 0; i < n_; ++i) {
      for (int k = 0; k < K_; ++k) transposed_[place(k, i)] = pass.design[i * stride * K_ + k];
      exposure_[i] = rows_.column_exposure != nullptr ? rows_.column_exposure[i * stride] : 1.0;
    }
    sum_exposures(exposure_, totals_);
  }
  double scale() const {
    return n_ > 0 ? static_cast<double>(rows_.n_columns) / static_cast<double>(n_) : 1.0;
  }
  Index padded() const { return padded_; }
  int n_components() const { return K_; }
  Vec component(int k, Index e) const { return load(transposed_ + place(k, e)); }
  const double* totals() const { return totals_; }  // of the exposures and their squares
  void sum_exposures(const double* t, double* to) const {
    Vec sum = Vec{}, squares = Vec{};
    for (Index e = 0; e < padded_; e += kLanes) {
      const Vec own = load(t + e);
      sum += own;
      squares += own * own;
    }
    to[0] = horizontal_sum(sum);
    to[1] = horizontal_sum(squares);
  }
  void set_exposures(Index j, ZerosScratch& to) const {
    to.t = exposure_;
    if (!rows_.batches.any()) return;
    const double* effects = rows_.batches.effects + j * rows_.batches.count;
    for (Index i = 0; i < n_; ++i)
      to.own[i] = exposure_[i] * effects[rows_.batches.column_batch[i * stride_]];
    to.t = to.own;
  }
  std::unique_ptr<ZerosScratch> scratch() const {
    return std::make_unique<ZerosScratch>(padded_, rows_.batches.any());
  }
  bool dispersed() const { return rows_.row_dispersion != nullptr; }

  // Logarithms of the means of a row, in `measure`.
  void log_means(Index j, ZerosScratch& to) const {
    set_exposures(j, to);
    if (link_ == Link::identity) fill_log_means<IdentityLink>(start_ + j * K_, to);
    else fill_log_means<ShiftedLogLink>(start_ + j * K_, to);
  }

  // Loss and measure of the zeros that are not in `stored`.
  void lay_out(Index j, const Entries& stored, bool with_loss, ZerosScratch& to) const {
    set_exposures(j, to);
    if (link_ == Link::identity) fill<IdentityLink>(j, with_loss, to);
    else fill<ShiftedLogLink>(j, with_loss, to);
    for (const Entries& left_out : {counts_at(rows_, j), stored})
      for (Index p = 0; p < left_out.count; ++p)
        if (stride_ == 1 || left_out.indices[p] % stride_ == 0)
          to.measure[left_out.indices[p] / stride_] = -1.0;
    std::fill(to.measure + n_, to.measure + padded_, -1.0);
  }

 private:
  Index place(int k, Index i) const { return i / kStep * kStep * K_ + k * kStep + i % kStep; }

  template <class L>
  void fill_log_means(const double* b, ZerosScratch& to) const {
    constexpr int U = kUnroll;
    for (Index e = 0; e < padded_; e += kStep) {
      Vec eta[U], mean[U], log[U], inverse[U];
      predictors<U>(e, b, eta);
      EACH eta[u] = L::clamp_eta(eta[u]);
      L::template mean_part<U>(eta, mean);
      EACH mean[u] = vmax(mean[u] * to.exposure(e + u * kLanes), splat(1e-100));
      log_and_reciprocal<U>(mean, log, inverse);
      EACH store(to.measure + e + u * kLanes, log[u]);
    }
  }

  template <int U>
  void predictors(Index e, const double* b, Vec* eta) const {
    EACH eta[u] = Vec{};
    for (int k = 0; k < K_; ++k) EACH eta[u] += b[k] * component(k, e + u * kLanes);
  }

  template <class L>
  void fill(Index j, bool with_loss, ZerosScratch& to) const {
    constexpr int U = kUnroll;
    const double* b = start_ + j * K_;
    const Vec phi = splat(dispersed() ? rows_.row_dispersion[j] : 0.0);
    for (Index e = 0; e < padded_; e += kStep) {
      EntriesAt<U> at;
      predictors<U>(e, b, at.eta);
      EACH store(to.eta + e + u * kLanes, at.eta[u]);
      if (!with_loss && !dispersed()) {
        EACH store(to.measure + e + u * kLanes, at.eta[u]);
        continue;
      }
      Vec measure[U];
      EACH measure[u] = L::kLinear ? Vec{} : at.eta[u];
      EACH at.eta[u] = L::clamp_eta(at.eta[u]);
      L::template mean_part<U>(at.eta, at.em);
      EACH store(to.loss + e + u * kLanes, at.em[u]);
      if (dispersed()) {  // with t = 1 and phi t for the dispersion the zero terms are those over t
        EACH at.t[u] = splat(1.0);
        EACH at.phi[u] = phi * to.exposure(e + u * kLanes);
        EACH measure[u] = vmax(measure[u], at.phi[u] * at.em[u]);
        EACH at.phi[u] = vmax(at.phi[u], splat(kSmallestPhi));
        EACH at.inverse_phi[u] = at.phi[u];
        reciprocals<U>(at.inverse_phi);
        ZeroTerms<U> z;
        NegativeBinomial::disperse<true, U>(at);
        NegativeBinomial::zero_terms<L, U>(at, z);
        EACH store(to.loss + e + u * kLanes, z.loss[u]);
      }
      EACH store(to.measure + e + u * kLanes, measure[u]);
    }
  }

  Rows rows_;
  Link link_;
  const double* start_;
  int K_;
  Index stride_, n_, padded_;
  Buffer transposed_, exposure_;
  double totals_[2];
};

// The loss of a zero over t as a polynomial in eta: of 4 coefficients the last is that of
// (eta + kShift)^4; with a dispersion, of 5, the constant and the square depend linearly on t.
struct Polynomial {
  int width;
  double a[5] = {};
  Vec at(Vec eta, Vec t) const {
    const Vec own = a[0] + eta * (a[1] + a[2] * eta);
    if (width == 3) return own;
    const Vec square = (eta + kShift) * (eta + kShift);
    return own + (width == 4 ? a[3] * (square * square) : t * (a[3] + eta * eta * a[4]));
  }
};

// Least squares with n unknowns, made solvable by a tiny ridge; the matrix is symmetric, its lower
// triangle filled. Unknowns that are fixed keep their values.
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
  explicit ZeroSurveyPlan(const ZeroSurvey& s) : s_(s), samples_(s.pass, s.stride) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(Index j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    samples_.lay_out(j, {}, true, at);
    Vec most = Vec{};
    for (Index e = 0; e < samples_.padded(); e += kLanes) most = vmax(most, load(at.measure + e));
    const double largest = largest_lane(most);
    for (int g = 0; g < s_.n_thresholds; ++g) {
      if (g > 0 && s_.thresholds[g - 1] >= largest)
        copy_last(j, g);  // no entry lies between the two thresholds
      else if (s_.width == 5) fit<5>(at, j, g);
      else if (s_.width == 4) fit<4>(at, j, g);
      else fit<3>(at, j, g);
    }
  }

 private:
  // Mean and spread of a number over the entries below a threshold, weighted by exposure.
  struct Scale {
    double mean = 0.0, spread = 1.0;
  };
  static Scale scale_of(double total, double sum, double squares) {
    if (!(total > 0.0)) return {};
    const double mean = sum / total, variance = std::max(0.0, squares / total - mean * mean);
    return {mean, std::max(std::sqrt(variance), 1e-7 * (1.0 + std::abs(mean)))};
  }

  // What follows without evaluating the entries: em expanded around the mean eta, and with a
  // dispersion the first term of what its logarithm takes away. Also how the numbers of the entries
  // are standardised.
  struct Expansion {
    Scale of_eta, of_t;
    double level, slope, curve, b2;  // em ~ level + slope d + curve d^2; b2 t eta^2
    double unit = 1.0;               // the size of t eta^2, of a quartic that of its part
    double largest_b2 = 0.0;         // how large the coefficient of t eta^2 may be
  };

  // Weighed least squares over the entries below the threshold, on powers of the standardised eta;
  // of 5, the last two are the standardised t and t eta^2. They correct an expansion, so that
  // nothing is lost where all eta are nearly equal. The coefficient of eta^2 is not negative
  // (Poisson: clipped), and zero with the identity link. That of t eta^2 is not positive, and
  // bounded (kShareOfAny and so on); zero where the survey asks for convex ones. Of 4, the last is
  // (eta + kShift)^4 less its line through the mean eta; its coefficient is not negative.
  template <int N>
  void fit(const ZerosScratch& at, Index j, int g) const {
    const double threshold = s_.thresholds[g];
    const Expansion known = expansion<N>(at, j, threshold);
    Vec products[N][N] = {}, pulls[N] = {};
    for (Index e = 0; e < samples_.padded(); e += kLanes) {
      const Vec eta = load(at.eta + e), t = at.exposure(e), w = below(at, e, threshold, t);
      const Vec d = eta - known.of_eta.mean;
      Vec rest = load(at.loss + e) - (known.level + d * (known.slope + known.curve * d)), basis[N];
      basis[0] = splat(1.0);
      basis[1] = d * (1.0 / known.of_eta.spread);
      basis[2] = basis[1] * basis[1];
      if constexpr (N == 4) {
        const double M = known.of_eta.mean + kShift;
        basis[3] = d * d * (d * (d + 4.0 * M) + 6.0 * M * M) * (1.0 / known.unit);
      }
      if constexpr (N == 5) {
        const Vec square = t * eta * eta;
        rest -= known.b2 * square;
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
    if (N == 5 && s_.pass.model.link == Link::identity) fixed.set(2, 0.0);
    for (bool again = true; again;) {
      double A[N][N];
      for (int i = 0; i < N; ++i) {
        x[i] = horizontal_sum(pulls[i]);
        for (int l = 0; l <= i; ++l) A[i][l] = horizontal_sum(products[i][l]);
      }
      least_squares<N>(A, x, fixed);
      again = false;
      for (int i = 0; i < N; ++i)
        if (!fixed.is[i] && !(x[i] >= least[i] && x[i] <= most[i]))
          fixed.set(i, std::clamp(x[i], least[i], most[i])), again = true;
    }
    finish<N>(at, j, g, unscaled<N>(x, known));
  }

  // Of the standardised numbers. All but the constants stay within a few times those of the
  // expansion: where zeros have nearly the same eta these would be anything, and what is fitted to
  // a few zeros would be far too large for the entries that are computed.
  template <int N>
  void bounds(const Expansion& known, double* least, double* most) const {
    for (int i = 0; i < N; ++i)
      most[i] = std::numeric_limits<double>::infinity(), least[i] = -most[i];
    const double spread = known.of_eta.spread;
    if constexpr (N == 4) least[2] = -known.curve * spread * spread, least[3] = 0.0;
    if constexpr (N == 5) {
      const double steepest = kSteepest * known.slope;
      const double b2 =
          s_.convex ? 0.0 : std::max(-known.largest_b2, steepest * known.slope * known.b2);
      least[1] = ((s_.convex ? 0.0 : kFlattest) - 1.0) * known.slope * spread,
      most[1] = (steepest - known.slope) * spread;
      least[2] = -known.curve * spread * spread,
      most[2] = (steepest - known.curve) * spread * spread;
      least[4] = (b2 - known.b2) * known.unit, most[4] = -known.b2 * known.unit;
    }
  }

  template <int N>
  Expansion expansion(const ZerosScratch& at, Index j, double threshold) const {
    Vec sums[7] = {}, widest = Vec{}, largest = Vec{};
    for (Index e = 0; e < samples_.padded(); e += kLanes) {
      const Vec eta = load(at.eta + e), t = at.exposure(e), w = below(at, e, threshold, t);
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
    const bool identity = s_.pass.model.link == Link::identity;
    found.level = identity ? found.of_eta.mean : std::expm1(found.of_eta.mean);
    found.slope = identity ? 1.0 : std::exp(found.of_eta.mean);
    found.curve = identity ? 0.0 : 0.5 * found.slope;
    found.b2 = N == 5 ? -0.5 * s_.pass.rows.row_dispersion[j] : 0.0;
    if (total > 0.0) found.unit = std::max(std::sqrt(horizontal_sum(sums[5]) / total), 1e-100);
    if constexpr (N == 4) {
      const double d = found.of_eta.spread, M = found.of_eta.mean + kShift;
      found.unit = d * d * (d * d + 4.0 * M * d + 6.0 * M * M);
    }
    const double most = largest_lane(widest), far = largest_lane(largest),
                 squares = horizontal_sum(sums[6]);
    if (most > 0.0)
      found.largest_b2 =
          std::min({0.5 * kShareOfAny / most, 0.5 * kShareOfAll * horizontal_sum(sums[1]) / squares,
                    kLargestC / (far * far)});
    return found;
  }

  // From the standardised numbers back to powers of eta and t.
  template <int N>
  static Polynomial unscaled(const double* x, const Expansion& known) {
    const double m = known.of_eta.mean, spread = known.of_eta.spread;
    double constant = x[0] + known.level, linear = x[1] / spread + known.slope;
    const double square = std::max(0.0, x[2] / (spread * spread) + known.curve);
    Polynomial p{N};
    if constexpr (N == 4) {
      const double M = m + kShift;
      p.a[3] = std::max(0.0, x[3] / known.unit);
      constant -= p.a[3] * M * M * M * M;
      linear -= p.a[3] * 4.0 * M * M * M;
    }
    p.a[0] = constant - m * (linear - m * square);
    p.a[1] = linear - 2.0 * m * square;
    p.a[2] = square;
    if constexpr (N == 5) {
      p.a[3] = x[3] / known.of_t.spread;
      p.a[0] -= known.of_t.mean * p.a[3];
      p.a[4] = x[4] / known.unit + known.b2;
      if (p.a[4] > 1e-12 * known.b2) p.a[4] = 0.0;  // smaller ones are rounding errors
    }
    return p;
  }

  template <int N>
  void finish(const ZerosScratch& at, Index j, int g, const Polynomial& p) const {
    const double threshold = s_.thresholds[g];
    Vec error = Vec{}, above = Vec{};
    for (Index e = 0; e < samples_.padded(); e += kLanes) {
      const Vec t = at.exposure(e), off = load(at.loss + e) - p.at(load(at.eta + e), t);
      error += below(at, e, threshold, t) * vmax(off, -off);
      above += load(at.measure + e) > threshold ? splat(1.0) : Vec{};
    }
    const Index to = j * s_.n_thresholds + g;
    s_.error[to] = samples_.scale() * horizontal_sum(error);
    s_.n_above[to] = samples_.scale() * horizontal_sum(above);
    std::copy_n(p.a, N, s_.quadratic + N * to);
  }

  static Vec below(const ZerosScratch& at, Index e, double threshold, Vec t) {
    const Vec measure = load(at.measure + e);
    return (measure >= 0.0) & (measure <= threshold) ? t : Vec{};
  }

  void copy_last(Index j, int g) const {
    const Index to = j * s_.n_thresholds + g;
    const int width = s_.width;
    s_.error[to] = s_.error[to - 1];
    s_.n_above[to] = s_.n_above[to - 1];
    std::copy_n(s_.quadratic + width * (to - 1), width, s_.quadratic + width * to);
  }

  // What the concave part may take from the slope of a mean: of any zero, of all of them.
  static constexpr double kShareOfAny = 0.35, kShareOfAll = 0.2;
  // The largest concave part of any entry: it is subtracted where entries are computed one by one.
  static constexpr double kLargestC = 1e3;
  // Slopes of a mean; more is left than ConcavePart lets the concave part take.
  static constexpr double kFlattest = 0.9, kSteepest = 4.0;

  ZeroSurvey s_;
  Samples samples_;
};

class ZeroErrorsPlan final : public Plan {
 public:
  explicit ZeroErrorsPlan(const ZeroErrors& z) : z_(z), samples_(z.pass, z.stride) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(Index j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    samples_.lay_out(j, entries_at(z_.stored, z_.pass.rows.n_rows, j), true, at);
    Polynomial p{z_.width};
    std::copy_n(z_.quadratic + p.width * j, p.width, p.a);
    Vec sum = Vec{}, absolute = Vec{};
    for (Index e = 0; e < samples_.padded(); e += kLanes) {
      const Vec t = at.exposure(e), off = load(at.loss + e) - p.at(load(at.eta + e), t);
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

// Zeros above the threshold of their row. Poisson: kTogether rows share what is loaded of the
// design, and nothing is laid out.
class ZeroCollectionPlan final : public Plan {
 public:
  static constexpr int kTogether = 4;
  int rows_together() const override { return kTogether; }

  explicit ZeroCollectionPlan(const ZeroCollection& c) : c_(c), samples_(c.pass) {}

  struct Scratch final : Workspace {
    explicit Scratch(const Samples& samples)
        : zeros(samples.scratch()), weights(kTogether * samples.n_components()),
          used(samples.n_components()) {
      for (auto& row : rows) {
        row.counted.resize(static_cast<std::size_t>(samples.padded() / kLanes));
        row.found.resize(static_cast<std::size_t>(samples.padded() + kLanes));
      }
    }
    struct Row {
      std::vector<std::uint8_t> counted;  // a bit for every sample, kLanes of them together
      std::vector<std::int32_t> found;
      std::int32_t* end;
    };
    std::unique_ptr<ZerosScratch> zeros;
    Buffer weights;         // of the rows, component by component
    std::vector<int> used;  // components that are not zero in all of the rows
    Row rows[kTogether];
  };
  std::unique_ptr<Workspace> workspace() const override {
    return std::make_unique<Scratch>(samples_);
  }

  void run_row(Index group, Workspace& workspace) const override {
    auto& at = static_cast<Scratch&>(workspace);
    const Index first = group * kTogether;
    const int n = static_cast<int>(std::min<Index>(kTogether, c_.pass.rows.n_rows - first));
    for (int r = 0; r < n; ++r) mark_counts(first + r, at.rows[r]);
    if (samples_.dispersed()) {
      for (int r = 0; r < n; ++r) {
        samples_.lay_out(first + r, {}, false, *at.zeros);
        for (Index e = 0; e < samples_.padded(); e += kLanes)
          add(e, load(at.zeros->measure + e), c_.thresholds[first + r], at.rows[r]);
      }
    } else screen(first, n, at);
    for (int r = 0; r < n; ++r) finish(first + r, at.rows[r], *at.zeros);
  }

 private:
  void mark_counts(Index j, Scratch::Row& row) const {
    const Entries counts = counts_at(c_.pass.rows, j);
    std::fill(row.counted.begin(), row.counted.end(), std::uint8_t{0});
    for (Index p = 0; p < counts.count; ++p)
      row.counted[counts.indices[p] / kLanes] |=
          static_cast<std::uint8_t>(1u << (counts.indices[p] % kLanes));
    row.end = row.found.data();
  }

  static void add(Index e, Vec measure, double threshold, Scratch::Row& row) {
    row.end = put_lanes(lanes_above(measure, threshold) & ~unsigned{row.counted[e / kLanes]},
                        static_cast<std::int32_t>(e), row.end);
  }

  void screen(Index first, int n, Scratch& at) const {
    constexpr int R = kTogether, U = 2;
    int n_used = 0;
    for (int k = 0; k < c_.pass.n_components; ++k) {
      bool any = false;
      for (int r = 0; r < R; ++r) {
        const double b = r < n ? c_.pass.start[(first + r) * c_.pass.n_components + k] : 0.0;
        at.weights[n_used * R + r] = b;
        any = any || b != 0.0;
      }
      if (any) at.used[n_used++] = k;
    }
    for (Index e = 0; e < samples_.padded(); e += U * kLanes) {
      Vec eta[R][U] = {};
      for (int k = 0; k < n_used; ++k) {
        Vec design[U];
        EACH design[u] = samples_.component(at.used[k], e + u * kLanes);
        for (int r = 0; r < R; ++r) EACH eta[r][u] += at.weights[k * R + r] * design[u];
      }
      for (int r = 0; r < n; ++r)
        EACH add(e + u * kLanes, eta[r][u], c_.thresholds[first + r], at.rows[r]);
    }
  }

  // Padding is above no threshold: there eta is 0. The exposure of the others is that of all,
  // without counts and zeros found.
  void finish(Index j, const Scratch::Row& row, ZerosScratch& at) const {
    const Entries counts = counts_at(c_.pass.rows, j);
    const std::int32_t* found = row.found.data();
    const Index n_found = row.end - found;
    c_.found[j].assign(found, found + n_found);
    samples_.set_exposures(j, at);
    double left[2] = {samples_.totals()[0], samples_.totals()[1]};
    if (c_.pass.rows.batches.any()) samples_.sum_exposures(at.t, left);
    const auto take = [&](const std::int32_t* indices, Index n) {
      double sum = 0.0, squares = 0.0;
      for (Index i = 0; i < n; ++i) {
        const double t = at.t[indices[i]];
        sum += t;
        squares += t * t;
      }
      left[0] -= sum;
      left[1] -= squares;
    };
    take(counts.indices, counts.count);
    take(found, n_found);
    const bool none = counts.count + n_found >= c_.pass.rows.n_columns;
    for (int i = 0; i < 2; ++i) c_.exposure[2 * j + i] = none ? 0.0 : std::max(0.0, left[i]);
  }

  ZeroCollection c_;
  Samples samples_;
};

// Rows are features and columns samples. A mean is in bin b of its row if its logarithm is between
// low + b and low + b + 1; those beyond both ends are in the first and in the last bin, at their
// outer ends. With d from -1 to 1 inside of a bin, its sums are those of d^0 to d^7: over all
// entries, and over counts times d^p.
class SpectrumPlan final : public Plan {
 public:
  explicit SpectrumPlan(const Spectrum& s) : s_(s), samples_(s.pass) {}
  std::unique_ptr<Workspace> workspace() const override { return samples_.scratch(); }

  void run_row(Index j, Workspace& workspace) const override {
    auto& at = static_cast<ZerosScratch&>(workspace);
    samples_.log_means(j, at);
    double *to = s_.entries + j * s_.n_bins * kPowers, *place = at.measure;
    for (Index i = 0; i < s_.pass.rows.n_columns; ++i) place[i] = inside(place[i] - s_.low[j]);
    for (Index i = 0; i < s_.pass.rows.n_columns; ++i) add(to, place[i], 1.0);
    const Entries counts = counts_at(s_.pass.rows, j);
    to = s_.counted + j * s_.n_bins * kPowers;
    double y[kPiece];
    for (Index from = 0; from < counts.count; from += kPiece) {
      const Index n = std::min<Index>(kPiece, counts.count - from);
      read_values(s_.pass.rows, s_.pass.rows.indptr[j] + from, n, y);
      for (Index p = 0; p < n; ++p) add(to, place[counts.indices[from + p]], y[p]);
    }
  }

 private:
  static constexpr int kPowers = 8, kPiece = 256;
  typedef double Eight __attribute__((vector_size(64)));

  double inside(double place) const { return std::min(std::max(place, 0.0), s_.n_bins - 1e-9); }

  static void add(double* bins, double place, double weight) {
    const auto bin = static_cast<Index>(place);
    const double d = 2.0 * (place - static_cast<double>(bin)) - 1.0, d2 = d * d, d4 = d2 * d2;
    const Eight one = {1, 0, 1, 0, 1, 0, 1, 0}, two = {1, 1, 0, 0, 1, 1, 0, 0},
                four = {1, 1, 1, 1, 0, 0, 0, 0};
    Eight sums;
    double* to = bins + kPowers * bin;
    std::memcpy(&sums, to, sizeof sums);
    sums +=
        (one + (1.0 - one) * d) * (two + (1.0 - two) * d2) * ((four + (1.0 - four) * d4) * weight);
    std::memcpy(to, &sums, sizeof sums);
  }

  Spectrum s_;
  Samples samples_;
};

}  // namespace log1pnmf::LOG1PNMF_ISA
