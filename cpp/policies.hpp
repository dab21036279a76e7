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
  static void mean_part(const Vec* eta, Vec* em) { expm1<U>(eta, em); }
  static Vec clamp_eta(Vec eta) { return vmin(vmax(eta, splat(kSmallestEta)), splat(kLargestEta)); }
  // em'/em, from 1/em.
  template <class T>
  static T relative_slope(T inverse) { return inverse + 1.0; }
};

// em = eta. Its zero terms are linear in eta, so that the sparse form is exact and the only one.
struct IdentityLink {
  static constexpr bool kLinear = true;
  template <int U>
  static void mean_part(const Vec* eta, Vec* em) { LOG1PNMF_EACH em[u] = eta[u]; }
  static Vec clamp_eta(Vec eta) { return vmax(eta, splat(kSmallestEta)); }   // eta is the mean, of any size
  template <class T>
  static T relative_slope(T inverse) { return inverse; }
};

// What U vectors of entries add to loss, residual and weight; inverse is 1/em.
template <int U>
struct CountTerms {
  Vec residual[U], weight[U], loss[U], inverse[U];
};

// The loss of an entry is t em - y log(em). Large: that of a count is t em - y - y log(t em / y), where nothing cancels; it
// is slower, and matters where counts are large.
template <bool Large>
struct Poisson {
  static constexpr bool kPoisson = true;
  static constexpr bool kWhole = Large;   // whether the loss of a count's terms is its whole loss, zero terms included

  template <class Link, int U>
  static void count_terms(const double* y, const Vec* em, [[maybe_unused]] const Vec* mean, CountTerms<U>& terms) {
    if constexpr (Large) {
      Vec counts[U];
      LOG1PNMF_EACH counts[u] = load(y + u * kLanes);
      deviance_and_reciprocal<U>(counts, em, mean, terms.loss, terms.inverse);
    } else log_and_reciprocal<U>(em, terms.loss, terms.inverse);
    LOG1PNMF_EACH {
      const Vec count = load(y + u * kLanes), ratio = count * terms.inverse[u];
      if constexpr (!Large) terms.loss[u] = -(count * terms.loss[u]);
      terms.residual[u] = Link::kLinear ? -ratio : -(count + ratio);
      terms.weight[u] = Link::kLinear ? ratio * terms.inverse[u] : ratio * terms.inverse[u] + ratio;
    }
  }

  // Zero terms of a link that is not linear; residual and weight are the same.
  static void zero_terms(Vec t, Vec em, Vec& loss, Vec& slope) {
    loss = t * em;
    slope = loss + t;
  }

  // Zero terms less those of the quadratic t (a1 eta + a2 eta^2); with a linear link there is no difference.
  template <class Link, int U>
  static void add_excess(const Vec* t, const Vec* em, const Vec* eta, const Vec* a1, const Vec* a2, CountTerms<U>& terms) {
    static_assert(!Link::kLinear);
    LOG1PNMF_EACH {
      if constexpr (Large) terms.loss[u] -= t[u] * (eta[u] * (a1[u] + a2[u] * eta[u]));
      else terms.loss[u] += t[u] * (em[u] - eta[u] * (a1[u] + a2[u] * eta[u]));
      terms.residual[u] += t[u] * (em[u] - 2.0 * a2[u] * eta[u] + (1.0 - a1[u]));
      terms.weight[u] += t[u] * (em[u] + (1.0 - 2.0 * a2[u]));
    }
  }

  // The same for entries that are zero.
  template <class Link, int U>
  static void excess(const Vec* t, const Vec* em, const Vec* eta, const Vec* a1, const Vec* a2, CountTerms<U>& terms) {
    static_assert(!Link::kLinear);
    LOG1PNMF_EACH {
      terms.loss[u] = t[u] * (em[u] - eta[u] * (a1[u] + a2[u] * eta[u]));
      terms.residual[u] = t[u] * (em[u] - 2.0 * a2[u] * eta[u] + (1.0 - a1[u]));
      terms.weight[u] = t[u] * (em[u] + (1.0 - 2.0 * a2[u]));
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

// A count where eta is zero has no likelihood; its loss is this large finite number, so that no step takes a row there and
// any step leads a row out.
constexpr double kImpossible = 1e30;
inline Vec impossible(Vec eta) { return vmax(1.0 - eta * (0.5 / kSmallestEta), Vec{}) * kImpossible; }

}  // namespace log1pnmf::LOG1PNMF_ISA
