// Link and noise of the model, as policies: the row solvers are templates over them, so that nothing is decided per entry.
//
// The mean of an entry is t * em, with the exposure t and em a function of eta = x'b. A link says what em is; noise says
// what an entry with that mean adds to the loss, and to its first and second derivatives in eta (residual and weight).
// Every entry adds its zero terms; a count y > 0 adds its count terms to them. In sparse form a quadratic in eta stands in
// for the zero terms of all entries; counts, and zeros that are visited, add what their zero terms are above it.
// A new link or noise is one more struct here, a name in kernel.hpp and a line in kernel.cpp (make_plan).
#pragma once

#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// em = expm1(eta), whose derivatives are all em + 1.
struct ShiftedLogLink {
  static constexpr bool kLinear = false;
  template <int U>
  LOG1PNMF_INLINE static void mean_part(const Vec* eta, Vec* em) { expm1<U>(eta, em); }
  LOG1PNMF_INLINE static Vec clamp_eta(Vec eta) { return vmin(vmax(eta, splat(kSmallestEta)), splat(kLargestEta)); }
  // em'/em, from 1/em.
  template <class T>
  static T relative_slope(T inverse) { return inverse + 1.0; }
};

// em = eta. Its zero terms are linear in eta, so that the sparse form is exact and the only one.
struct IdentityLink {
  static constexpr bool kLinear = true;
  template <int U>
  LOG1PNMF_INLINE static void mean_part(const Vec* eta, Vec* em) { LOG1PNMF_EACH em[u] = eta[u]; }
  LOG1PNMF_INLINE static Vec clamp_eta(Vec eta) { return vmax(eta, splat(kSmallestEta)); }   // eta is the mean, of any size
  template <class T>
  static T relative_slope(T inverse) { return inverse; }
};

// What U vectors of entries are: em, exposure, dispersion, eta; and the quadratic t (a1 eta + a2 eta^2) that stands in for
// their zero terms in sparse form.
template <int U>
struct EntriesAt {
  Vec em[U], t[U], phi[U], eta[U], a1[U], a2[U];
};

// What U vectors of entries add to loss, residual and weight; inverse is 1/em.
template <int U>
struct CountTerms {
  Vec residual[U], weight[U], loss[U], inverse[U];
};

// The zero terms of U vectors of entries.
template <int U>
struct ZeroTerms {
  Vec residual[U], weight[U], loss[U];
};

// The loss of an entry is t em - y log(em). Large: that of a count is t em - y - y log(t em / y), where nothing cancels; it
// is slower, and matters where counts are large.
template <bool Large>
struct Poisson {
  static constexpr bool kPoisson = true;
  static constexpr bool kDispersed = false;   // whether entries have a dispersion
  static constexpr bool kWhole = Large;       // whether the loss of a count's terms is its whole loss, zero terms included
  static constexpr int kQuadratic = 2;        // numbers that say what stands in for a zero

  template <class Link, int U>
  LOG1PNMF_INLINE static void count_terms(const double* y, const EntriesAt<U>& at, CountTerms<U>& terms) {
    if constexpr (Large) {
      Vec counts[U], mean[U];
      LOG1PNMF_EACH counts[u] = load(y + u * kLanes);
      LOG1PNMF_EACH mean[u] = at.t[u] * at.em[u];
      deviance_and_reciprocal<U>(counts, at.em, mean, terms.loss, terms.inverse);
    } else log_and_reciprocal<U>(at.em, terms.loss, terms.inverse);
    LOG1PNMF_EACH {
      const Vec count = load(y + u * kLanes), ratio = count * terms.inverse[u];
      if constexpr (!Large) terms.loss[u] = -(count * terms.loss[u]);
      terms.residual[u] = Link::kLinear ? -ratio : -(count + ratio);
      terms.weight[u] = Link::kLinear ? ratio * terms.inverse[u] : ratio * terms.inverse[u] + ratio;
    }
  }

  template <class Link, int U>
  LOG1PNMF_INLINE static void zero_terms(const EntriesAt<U>& at, ZeroTerms<U>& terms) {
    static_assert(!Link::kLinear);
    LOG1PNMF_EACH {
      terms.loss[u] = at.t[u] * at.em[u];
      terms.residual[u] = terms.weight[u] = terms.loss[u] + at.t[u];
    }
  }

  // Whether the Hessian along a step surely stays below twice that at its start, so that a full Newton step cannot raise
  // the loss. shrink is the largest relative fall of a count's em to first order, growth the largest rise of an eta. em
  // falls at most by the factor 1 - shrink, so the counts' curvature grows at most by (1 - shrink)^-2; that of the
  // exponentials grows by e^growth.
  template <class Link>
  static bool curvature_holds(double shrink, double growth) { return shrink <= 0.27 && (Link::kLinear || growth <= 0.6); }

  // The same from cheap bounds: the step's curvature d'Hd in units of the smallest count bounds the relative change of
  // every count's eta; change bounds the absolute change of every eta.
  template <class Link>
  static bool surely_small(double curvature, double smallest, double change) {
    return curvature <= 0.04 * smallest && (change <= 0.2 || Link::kLinear);
  }
};

// With the mean t em and D = 1 + phi t em the loss of an entry is log(D) / phi + y (log(D) - log(em)). Its derivative is
// Poisson's over D. The weight is never below the second derivative and never negative: Poisson's over D, and where the
// count is above its mean what the falling 1/D adds to that.
struct NegativeBinomial {
  static constexpr bool kPoisson = false, kDispersed = true, kWhole = false;
  static constexpr int kQuadratic = 3;

  template <class Link, int U>
  LOG1PNMF_INLINE static void count_terms(const double* y, const EntriesAt<U>& at, CountTerms<U>& terms) {
    Vec spread[U], log_spread[U], ratio[U];
    LOG1PNMF_EACH spread[u] = 1.0 + at.phi[u] * (at.t[u] * at.em[u]);
    log_and_reciprocal<U>(at.em, terms.loss, terms.inverse);
    log_and_reciprocal<U>(spread, log_spread, ratio);
    LOG1PNMF_EACH {
      const Vec count = load(y + u * kLanes), pull = count * Link::relative_slope(terms.inverse[u]);
      const Vec push = Link::kLinear ? at.t[u] : at.t[u] * at.em[u] + at.t[u];
      terms.loss[u] = count * (log_spread[u] - terms.loss[u]);
      terms.residual[u] = -(pull * ratio[u]);
      terms.weight[u] = ratio[u] * (pull * terms.inverse[u] + vmax(pull - push, Vec{}) * (at.phi[u] * push) * ratio[u]);
    }
  }

  // log(1 + x) / x times the mean, by its series where x is small.
  template <class Link, int U>
  LOG1PNMF_INLINE static void zero_terms(const EntriesAt<U>& at, ZeroTerms<U>& terms) {
    Vec mean[U], x[U], spread[U], log_spread[U], ratio[U], inverse[U], series[U];
    LOG1PNMF_EACH mean[u] = at.t[u] * at.em[u];
    LOG1PNMF_EACH x[u] = at.phi[u] * mean[u];
    LOG1PNMF_EACH spread[u] = 1.0 + x[u];
    log_and_reciprocal<U>(spread, log_spread, ratio);
    LOG1PNMF_EACH inverse[u] = vmax(x[u], splat(1e-300));
    reciprocals<U>(inverse);
    LOG1PNMF_EACH series[u] = splat(-1.0 / 8.0);
#pragma GCC unroll 7
    for (int i = 7; i > 0; --i) LOG1PNMF_EACH series[u] = series[u] * x[u] + (i % 2 == 1 ? 1.0 : -1.0) / i;
    LOG1PNMF_EACH {
      terms.loss[u] = mean[u] * (x[u] < 0.02 ? series[u] : log_spread[u] * inverse[u]);
      terms.residual[u] = (Link::kLinear ? at.t[u] : mean[u] + at.t[u]) * ratio[u];
      terms.weight[u] = Link::kLinear ? Vec{} : terms.residual[u];
    }
  }

  // D falls with the mean, so the weight of a count grows at most by (1 - shrink)^-3.
  template <class Link>
  static bool curvature_holds(double shrink, double growth) { return shrink <= 0.2 && (Link::kLinear || growth <= 0.5); }

  template <class Link>
  static bool surely_small(double, double, double) { return false; }   // D may be large: no cheap bound
};

// What stands in for the zero terms in sparse form is taken off: what is left is what a visited entry adds.
template <int U>
LOG1PNMF_INLINE void less_quadratic(const EntriesAt<U>& at, ZeroTerms<U>& terms) {
  LOG1PNMF_EACH {
    terms.loss[u] -= at.t[u] * (at.eta[u] * (at.a1[u] + at.a2[u] * at.eta[u]));
    terms.residual[u] -= at.t[u] * (at.a1[u] + 2.0 * at.a2[u] * at.eta[u]);
    terms.weight[u] -= 2.0 * at.t[u] * at.a2[u];
  }
}

// A count where eta is zero has no likelihood; its loss is this large finite number, so that no step takes a row there and
// any step leads a row out.
constexpr double kImpossible = 1e30;
LOG1PNMF_INLINE Vec impossible(Vec eta) { return vmax(1.0 - eta * (0.5 / kSmallestEta), Vec{}) * kImpossible; }

}  // namespace log1pnmf::LOG1PNMF_ISA
