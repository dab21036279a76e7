"""Problems of every form, with a point to look at them from; test_laws.py has the laws of all."""

import math
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import numpy as np
from tests.reference_engine import ReferenceEngine
from tests.reference_engine import example as plain

from log1pnmf.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.registry import has_card
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import AdaptiveZeros, caps_for, choose, quadratic


def other_engines(problem, *, without_a_card=True):
    """The reference, and PyTorch's where that is installed; only zeros are done without a card."""
    yield ReferenceEngine(problem)
    if find_spec("triton") is not None and (without_a_card or has_card()):
        from log1pnmf.engines.torch.engine import TorchEngine

        yield TorchEngine(problem, precision="float64")


# ---------- adaptive zeros


def with_zeros(seed, *, n=40, m=30, K=3, c=1.0, limit=1e-2, dispersed=False, quartic=False):
    """A problem with adaptive zeros chosen at one point, and another point nearby."""
    rng = np.random.default_rng(seed)
    loadings, factors = rng.gamma(0.6, 0.6, (n, K)), rng.gamma(0.6, 0.6, (m, K))
    sizes, link = rng.gamma(3.0, 0.5, n) + 0.05, ShiftedLog(c)
    means = sizes[:, None] * link.mean(np.minimum(loadings @ factors.T, 5.0))
    noise = NegativeBinomial(rng.gamma(0.5, 1.0, m) * (rng.random(m) > 0.2)) if dispersed else POISSON
    counts = Counts.from_any(rng.poisson(np.minimum(means, 100.0)))
    exact = Problem(counts, sizes, link, noise=noise)
    engine = NativeEngine(exact)
    caps = caps_for(1e-4, quartic=quartic)
    chosen = choose(engine.survey_zeros(loadings, factors, caps, quartic=quartic), limit)
    stored, exposure = engine.collect_zeros(loadings, factors, chosen.caps)
    zeros = AdaptiveZeros(chosen.quadratics, stored, exposure, chosen.caps, chosen.error)
    near = [x * rng.uniform(0.8, 1.2, x.shape) for x in (loadings, factors)]
    return exact, replace(exact, zeros=zeros), (loadings, factors), near


# ---------- all zeros visited: sparse and dense rows, similar columns and others

SPREADS = {"similar": (-4.0, 0.1), "mixed": (-3.0, 2.0)}
"""Logarithms of the features' levels: mean and standard deviation."""


def sparse_rows(spread, *, c=1.0, K=3, n=90, m=400, dispersed=False, batches=None, seed=0):
    """Sparse counts but for some dense rows on both sides, with loadings and factors near the truth."""
    rng = np.random.default_rng(seed)
    link, (mean, deviation) = ShiftedLog(c), SPREADS[spread]
    loadings = rng.uniform(0.2, 1.0, (n, K)) * 3.0 / K
    factors = rng.uniform(0.2, 1.0, (m, K)) * np.exp(rng.normal(mean, deviation, (m, 1)))
    factors[:5] = rng.uniform(0.5, 1.5, (5, K))
    sizes = rng.uniform(0.5, 2.0, n)
    sizes[:3] = 40.0
    eta = np.minimum(loadings @ factors.T, 5.0)
    y = rng.poisson(sizes[:, None] * link.mean(eta))
    y[7], y[:, 11] = 0, 0
    own = None
    if batches is not None:
        effects = np.exp(rng.normal(0.0, 0.3, (batches, m)))
        own = Batches(rng.integers(0, batches, n), effects, 3.0)
    noise = NegativeBinomial(rng.uniform(0.05, 2.0, m)) if dispersed else POISSON
    return Problem(Counts.from_any(y), sizes, link, noise=noise, batches=own), loadings, factors


SPARSE_FORMS = {
    "poisson": {},
    "small c": {"c": 1e-2},
    "dispersed": {"dispersed": True},
    "dispersed, identity": {"dispersed": True, "c": math.inf},
    "batches": {"batches": 3},
    "dispersed, batches": {"dispersed": True, "batches": 3},
    "many components": {"K": 26},
}


# ---------- batches

N, M, K, B = 90, 30, 3, 4
DISPERSED = NegativeBinomial(np.linspace(0.0, 0.9, M))


def batched(c, *, noise=POISSON, scale=1.0):
    rng = np.random.default_rng(5)
    means = scale * rng.gamma(0.4, 1.0, (N, K)) @ rng.gamma(0.4, 1.0, (K, M))
    batches = Batches(rng.integers(0, B, N), np.exp(rng.normal(0.0, 0.5, (B, M))), 3.0)
    counts = Counts.from_any(rng.poisson(means))
    return Problem(counts, rng.uniform(0.5, 2.0, N), ShiftedLog(c), noise=noise, batches=batches)


def point():
    rng = np.random.default_rng(6)
    return rng.uniform(0.05, 0.8, (N, K)), rng.uniform(0.05, 0.8, (M, K))


def adaptive_of(problem, engine):
    caps = caps_for(1e-2, dispersed=problem.noise is not POISSON)
    chosen = choose(engine.survey_zeros(*point(), caps), 20.0)
    stored, exposure = engine.collect_zeros(*point(), chosen.caps)
    zeros = AdaptiveZeros(chosen.quadratics, stored, exposure, chosen.caps, chosen.error)
    return replace(problem, zeros=zeros)


def cases():
    for c in (1.0, 0.05):
        simple = batched(c)
        yield f"exact, c={c}", simple
        yield f"approximate, c={c}", replace(simple, zeros=quadratic(simple.link))
        yield f"adaptive, c={c}", adaptive_of(simple, ReferenceEngine(simple))
    yield "identity", batched(math.inf)
    for c in (1.0, math.inf):
        dispersed = batched(c, noise=DISPERSED)
        yield f"dispersed, c={c}", dispersed
        yield f"dispersed and adaptive, c={c}", adaptive_of(dispersed, ReferenceEngine(dispersed))
    yield "large counts", batched(1.0, scale=1e7)


BATCHED = dict(cases())


def many_batches():
    """Give batches of any size: some have one sample, the last has none."""
    rng, n_batches = np.random.default_rng(8), 37
    labels = np.minimum(rng.geometric(0.1, N) - 1, n_batches - 2)
    return Batches(labels, np.exp(rng.normal(0.0, 0.5, (n_batches, M))))


def few_features(n_components):
    """Give a problem in which effects travel with the factors, unless these leave no room."""
    rng, m, link = np.random.default_rng(9), 5, ShiftedLog(1.0)
    batches = Batches(rng.integers(0, 2, N), np.exp(rng.normal(0.0, 0.5, (2, m))))
    counts = Counts.from_any(rng.poisson(2.0, (N, m)))
    problem = Problem(counts, rng.uniform(0.5, 2.0, N), link, quadratic(link), batches=batches)
    return problem, *(rng.uniform(0.05, 0.8, (rows, n_components)) for rows in (N, m))


# ---------- all of them

FORMS = [
    (1e-3, None),
    (1.0, None),
    (1e-2, "chebyshev"),
    (1.0, "chebyshev"),
    (1e4, "taylor"),
    (math.inf, None),
]
LINKS = [(0.02, False), (1.0, False), (20.0, False), (0.02, True), (1.0, True), (math.inf, True)]
"""c, and whether there are dispersions; with Poisson noise the identity link has no zeros to choose."""


@cache
def problems():
    """Return (problem, loadings, factors) by name."""
    made = {f"{form}": plain(*form, m=150) for form in FORMS}
    for form in FORMS[1::2]:
        made |= {f"{form}, K={K}": plain(*form, K, m=150) for K in (1, 8, 9, 33)}
        made[f"{form}, wide"] = plain(*form, m=150, wide=True)
    for c, dispersed in LINKS:
        exact, adaptive, _, near = with_zeros(1, n=300, m=3, K=5, c=c, dispersed=dispersed)
        made[f"adaptive, {c}, {dispersed}"] = adaptive, *near
        made[f"few features, {c}, {dispersed}"] = exact, *near
    for K in (1, 5, 24):
        _, quartic, _, near = with_zeros(1, n=60, m=50, K=K, c=0.02, quartic=True)
        made[f"quartic, K={K}"] = quartic, *near
    made["poor quartics"] = plain(0.02, "quartic", m=150)
    _, single, _, near = with_zeros(1, n=1, m=1, K=5, dispersed=True)
    made["one entry"] = single, *near
    for spread in SPREADS:
        made |= {f"{spread}, {form}": sparse_rows(spread, **how) for form, how in SPARSE_FORMS.items()}
    made |= {f"batches, few features, K={K}": few_features(K) for K in (2, 3, 4)}
    for name in ("exact, c=1.0", "approximate, c=1.0", "dispersed, c=1.0", "large counts"):
        made[f"many batches, {name}"] = replace(BATCHED[name], batches=many_batches()), *point()
    return made | {f"batches, {name}": (problem, *point()) for name, problem in BATCHED.items()}
