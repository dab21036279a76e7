"""Counts of a baseline and two factors, and how often tests of markers call features that do not rise.

A third of the features is the same in all samples, a third rises with factor 1 only, a third with factor 2.
Tested is factor 2, with the true loadings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from log1pnmf.analysis.marker_tests import ERRORS, EstimatedLoadings, infer, regress
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.ranking import stand_ins
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

FACTOR = 2
"""The one that is tested."""


@dataclass(frozen=True)
class Case:
    """About `level` counts, and a baseline that falls by `fall`, or mixtures of three kinds."""

    name: str
    c: float
    n_samples: int = 300
    n_features: int = 300
    level: float = 1.5
    overdispersion: float = 0.0
    correlation: float = 0.0
    fall: float = 0.0
    kinds: bool = False


def simulate(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw counts; also loadings, factors (link scale), size factors, and which kind each feature is of."""
    rng = np.random.default_rng([seed, case.n_samples, case.n_features])
    n, m, link = case.n_samples, case.n_features, ShiftedLog(case.c)
    if case.kinds:
        loadings = rng.dirichlet([0.3] * 3, n)
    else:
        both = [[1.0, case.correlation], [case.correlation, 1.0]]
        others = np.maximum(rng.multivariate_normal([0.2, 0.2], both, n), 0.0)
        others /= others.max(axis=0)
        baseline = rng.uniform(0.9, 1.0, n) * (1.0 - case.fall * others[:, 1])
        loadings = np.column_stack([baseline, others])
    loadings /= loadings.max(axis=0)
    kind = np.arange(m) * 3 // m
    rates = case.level * rng.uniform(0.3, 2.0, m)
    extra = link.link(case.level * rng.uniform(0.5, 3.0, m))
    factors = np.repeat(link.link(rates)[:, None], 3, axis=1) if case.kinds else np.zeros((m, 3))
    factors[:, 0] = link.link(rates)
    for k in (1, FACTOR):
        factors[kind == k, k] += extra[kind == k]
    means = link.inverse(loadings @ factors.T)
    means[:, kind == 0] = rates[kind == 0]
    sizes = np.exp(0.3 * rng.standard_normal(n))
    return draw(sizes[:, None] * means, case.overdispersion, rng), loadings, factors, sizes, kind


def draw(means: np.ndarray, overdispersion: float, rng: np.random.Generator) -> np.ndarray:
    if overdispersion > 0.0:
        means = means * rng.gamma(1.0 / overdispersion, overdispersion, size=means.shape)
    return rng.poisson(means)


def calibrate(case: Case, n_simulations: int) -> dict[str, dict[str, float]]:
    """Simulate a case: how often each kind of feature is called, and how many discoveries are false."""
    rows: dict[str, list[list[float]]] = {errors: [] for errors in ERRORS}
    for seed in range(n_simulations):
        counts, loadings, factors, sizes, kind = simulate(case, seed)
        problem = Problem(Counts.from_any(counts), sizes, ShiftedLog(case.c))
        known, around = EstimatedLoadings.known(loadings, len(factors)), stand_ins(loadings, sizes)
        coefficients = regress(problem, loadings, factors / problem.link.alpha, 1)
        for errors in ERRORS:
            z = infer(problem, known, coefficients, around, errors=errors).z[:, FACTOR]
            rows[errors].append(shares(student.sf(z, len(loadings) - 3), kind))
    return means_of(rows)


MEASURED = ("constant", "constant, 0.01", "of another factor", "found", "false discoveries")


def shares(p: np.ndarray, kind: np.ndarray) -> list[float]:
    """Say how much of each kind of features is called: `MEASURED`."""
    called = false_discovery_control(p) <= 0.05
    return [
        float(np.mean(p[kind == 0] <= 0.05)),
        float(np.mean(p[kind == 0] <= 0.01)),
        float(np.mean(p[kind == 1] <= 0.05)),
        float(np.mean(called[kind == FACTOR])),
        float(np.sum(called[kind != FACTOR]) / max(np.sum(called), 1)),
    ]


def means_of(rows: dict[str, list[list[float]]]) -> dict[str, dict[str, float]]:
    return {
        name: dict(zip(MEASURED, np.mean(values, axis=0).tolist(), strict=True))
        for name, values in rows.items()
    }
