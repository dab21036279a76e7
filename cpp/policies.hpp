// Link and noise of the model, as policies: the row solvers are templates over them, so that
// nothing is decided per entry.
//
// The mean of an entry is t * em, with the exposure t and em a function of eta = x'b. A link is
// a formula for em; noise is what an entry with that mean adds to the loss, and to its first and
// second derivatives in eta (residual and weight). Every entry adds its zero terms; a count y > 0
// adds its count terms to them. In sparse form a quadratic in eta approximates the zero terms of
// all entries; counts and listed zeros add by how much their own differ from it. A new link or
// noise is one more struct here, a name in kernel.hpp and a line in kernel.cpp (make_plan).
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace log1pnmf::LOG1PNMF_ISA {

// em = expm1(eta), whose derivatives are all em + 1.
struct ShiftedLogLink {
  static constexpr bool kLinear = false;
  // MostlySmall: whether it pays to check if all eta are small. Otherwise they are clamped, too.
  template <int U, bool MostlySmall = false>
  ALWAYS_INLINE static void mean_part(const Vec* eta, Vec* em) {
    if constexpr (MostlySmall) {
      Vec most = eta[0];
      EACH most = vmax(most, eta[u]);
      if (lanes_above(most, kSmallArgument) == 0) return expm1<U, true>(eta, em);
      Vec clamped[U];
      EACH clamped[u] = clamp_above(eta[u]);
      expm1<U>(clamped, em);
    } else expm1<U>(eta, em);
  }
  ALWAYS_INLINE static Vec clamp_above(Vec eta) { return vmin(eta, splat(kLargestEta)); }
  ALWAYS_INLINE static Vec clamp_eta(Vec eta) {
    return clamp_above(vmax(eta, splat(kSmallestEta)));
  }
  // em'/em, from 1/em.
  template <class T>
  static T relative_slope(T inverse) {
    return inverse + 1.0;
  }
};

// em = eta. Its zero terms are linear in eta, so that the sparse form is exact and the only one.
struct IdentityLink {
  static constexpr bool kLinear = true;
  template <int U, bool = false>
  ALWAYS_INLINE static void mean_part(const Vec* eta, Vec* em) {
    EACH em[u] = eta[u];
  }
  ALWAYS_INLINE static Vec clamp_above(Vec eta) { return eta; }  // eta is the mean, of any size
  ALWAYS_INLINE static Vec clamp_eta(Vec eta) { return vmax(eta, splat(kSmallestEta)); }
  template <class T>
  static T relative_slope(T inverse) {
    return inverse;
  }
};

// U vectors of entries: em, exposure, eta; the quadratic t (a1 eta + (a2 + t b2) eta^2) that
// approximates their zero terms in sparse form, with a2 >= 0 (0 with the identity link) and b2 <= 0
// (0 without dispersions), and a4 of a quartic; the dispersion phi, 1/phi, and log(D) and 1/D for D
// = 1 + phi t em.
template <int U>
struct EntriesAt {
  Vec em[U], t[U], eta[U], a1[U], a2[U], t_b2[U], a4[U], phi[U], inverse_phi[U], log_D[U],
      inverse_D[U];
};

// What U vectors of entries add to residual, weight and loss.
template <int U>
struct ZeroTerms {
  Vec residual[U], weight[U], loss[U];
};
template <int U>
struct CountTerms : ZeroTerms<U> {
  Vec inverse[U];  // 1/em
};

// 1/em, and log(em) in the place of the loss where it is wanted.
template <bool WithLoss, int U>
ALWAYS_INLINE void log_and_inverse(const Vec* em, CountTerms<U>& terms) {
  if constexpr (WithLoss) return log_and_reciprocal<U>(em, terms.loss, terms.inverse);
  EACH terms.loss[u] = Vec{};
  EACH terms.inverse[u] = em[u];
  reciprocals<U>(terms.inverse);
}

// The loss of an entry is t em - y log(em).
struct Poisson {
  static constexpr bool kDispersed = false;  // whether entries have a dispersion
  static constexpr bool kQuartic = false;    // whether quartics approximate the zero terms

  template <bool WithLoss, int U>
  ALWAYS_INLINE static void disperse(EntriesAt<U>&) {}

  template <class Link, bool WithLoss, int U>
  ALWAYS_INLINE static void count_terms(const double* y, const EntriesAt<U>& at,
                                        CountTerms<U>& terms) {
    log_and_inverse<WithLoss, U>(at.em, terms);
    EACH {
      const Vec count = load(y + u * kLanes), ratio = count * terms.inverse[u];
      terms.loss[u] = -(count * terms.loss[u]);
      terms.residual[u] = Link::kLinear ? -ratio : -(count + ratio);
      terms.weight[u] = Link::kLinear ? ratio * terms.inverse[u] : ratio * terms.inverse[u] + ratio;
    }
  }

  template <class Link, int U>
  ALWAYS_INLINE static void zero_terms(const EntriesAt<U>& at, ZeroTerms<U>& terms) {
    static_assert(!Link::kLinear);
    EACH {
      terms.loss[u] = at.t[u] * at.em[u];
      terms.residual[u] = terms.weight[u] = terms.loss[u] + at.t[u];
    }
  }

  // Whether the Hessian along a step surely stays below twice that at its start, so that a full
  // Newton step cannot raise the loss. shrink is the largest relative fall of a count's em to first
  // order, growth the largest rise of an eta. em falls at most by the factor 1 - shrink, so the
  // counts' curvature grows at most by (1 - shrink)^-2; that of the exponentials grows by e^growth.
  template <class Link>
  static bool curvature_holds(double shrink, double growth) {
    return shrink <= 0.27 && (Link::kLinear || growth <= 0.6);
  }

  // The same from cheap bounds: the step's curvature d'Hd in units of the smallest count bounds the
  // relative change of every count's eta; change bounds the absolute change of every eta.
  template <class Link>
  static bool surely_small(double curvature, double smallest, double change) {
    return curvature <= 0.04 * smallest && (change <= 0.2 || Link::kLinear);
  }
};

struct PoissonQuartic : Poisson {
  static constexpr bool kQuartic = true;
};

// the least dispersion; log(1 + phi mean) / phi is then the mean
constexpr double kSmallestPhi = 1e-100;

// With the mean t em and D = 1 + phi t em the loss of an entry is log(D) / phi + y (log(D) -
// log(em)). Its derivative is Poisson's over D. The weight is never below the second derivative and
// never negative: Poisson's over D, and where the count is above its mean what the falling 1/D adds
// to that.
struct NegativeBinomial {
  static constexpr bool kDispersed = true;
  static constexpr bool kQuartic = false;

  // What both kinds of terms need; what the rounding of D took from a small phi mean is added to
  // the logarithm again.
  template <bool WithLoss, int U>
  ALWAYS_INLINE static void disperse(EntriesAt<U>& at) {
    Vec x[U], D[U];
    EACH x[u] = at.phi[u] * (at.t[u] * at.em[u]);
    EACH D[u] = 1.0 + x[u];
    if constexpr (WithLoss) {
      log_and_reciprocal<U>(D, at.log_D, at.inverse_D);
      EACH at.log_D[u] += (x[u] - (D[u] - 1.0)) * at.inverse_D[u];
    } else {
      EACH at.log_D[u] = Vec{};
      EACH at.inverse_D[u] = D[u];
      reciprocals<U>(at.inverse_D);
    }
  }

  template <class Link, bool WithLoss, int U>
  ALWAYS_INLINE static void count_terms(const double* y, const EntriesAt<U>& at,
                                        CountTerms<U>& terms) {
    log_and_inverse<WithLoss, U>(at.em, terms);
    EACH {
      const Vec count = load(y + u * kLanes), pull = count * Link::relative_slope(terms.inverse[u]),
                ratio = at.inverse_D[u];
      const Vec push = Link::kLinear ? at.t[u] : at.t[u] * at.em[u] + at.t[u];
      terms.loss[u] = count * (at.log_D[u] - terms.loss[u]);
      terms.residual[u] = -(pull * ratio);
      terms.weight[u] =
          ratio * (pull * terms.inverse[u] + vmax(pull - push, Vec{}) * (at.phi[u] * push) * ratio);
    }
  }

  template <class Link, int U>
  ALWAYS_INLINE static void zero_terms(const EntriesAt<U>& at, ZeroTerms<U>& terms) {
    EACH {
      terms.loss[u] = at.log_D[u] * at.inverse_phi[u];
      terms.residual[u] =
          (Link::kLinear ? at.t[u] : at.t[u] * at.em[u] + at.t[u]) * at.inverse_D[u];
      terms.weight[u] = Link::kLinear ? Vec{} : terms.residual[u];
    }
  }

  // D falls with the mean, so the weight of a count grows at most by (1 - shrink)^-3.
  template <class Link>
  static bool curvature_holds(double shrink, double growth) {
    return shrink <= 0.2 && (Link::kLinear || growth <= 0.5);
  }

  // A count's weight is at least Poisson's over D: the smallest count comes with the largest D.
  template <class Link>
  static bool surely_small(double curvature, double smallest, double change) {
    return curvature <= (Link::kLinear ? 0.04 : 0.01) * smallest &&
           (change <= 0.1 || Link::kLinear);
  }
};

// Subtracts the quadratic from the zero terms: what is left is what a computed entry adds in sparse
// form. The concave part t b2 has no weight, see ZeroSums::add_hessian.
template <class Link, class Noise, int U>
ALWAYS_INLINE void less_quadratic(const EntriesAt<U>& at, ZeroTerms<U>& terms) {
  constexpr bool Dispersed = Noise::kDispersed;
  EACH {
    if constexpr (Noise::kQuartic) {
      const Vec x = at.eta[u] + kShift, second = at.t[u] * at.a4[u] * x * x;
      terms.loss[u] -= second * x * x;
      terms.residual[u] -= 4.0 * second * x;
      terms.weight[u] -= 12.0 * second;
    }
    const Vec square = !Dispersed ? at.a2[u] : Link::kLinear ? at.t_b2[u] : at.a2[u] + at.t_b2[u];
    terms.loss[u] -= at.t[u] * (at.eta[u] * (at.a1[u] + square * at.eta[u]));
    terms.residual[u] -= at.t[u] * (at.a1[u] + 2.0 * square * at.eta[u]);
    if constexpr (!(Link::kLinear && Dispersed)) terms.weight[u] -= 2.0 * at.t[u] * at.a2[u];
  }
}

// A count where eta is zero has no likelihood; its loss is this large finite number, so that no
// step takes a row there and any step leads a row out.
constexpr double kImpossible = 1e30;
ALWAYS_INLINE Vec impossible(Vec eta) {
  return vmax(1.0 - eta * (0.5 / kSmallestEta), Vec{}) * kImpossible;
}

}  // namespace log1pnmf::LOG1PNMF_ISA
