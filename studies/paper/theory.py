"""The paper's theorems, in numbers and figures."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts.counts import Counts
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.model.problem import Problem
from studies.paper.drawing import panels
from studies.paper.geometry import loadings_towards, unit_rates, upper_right_hull
from studies.paper.study import Options, Report, run

SHIFTS = tuple(10.0**power for power in range(-2, 9))


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "theory", "Theorems")
    figure, axes = panels(2, 2, (9.0, 6.6))
    _large_c(report, axes[0, 0])
    _factor_effect(report, axes[0, 1])
    _concavity(report, axes[1, 0])
    _geometry(report, axes[1, 1])
    for ax in axes.ravel():
        ax.spines[["top", "right"]].set_visible(False)
    _multinomial(report)
    report.figure("checks", figure, "A: Theorem 1; B: Theorem 2; C: Theorem 3; D: Theorem 4.")
    report.save()


def _example(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    loadings, factors = rng.uniform(0.1, 1.0, size=(30, 3)), rng.uniform(0.1, 1.0, size=(20, 3))
    return rng.poisson(loadings @ factors.T).astype(float), loadings, factors


def likelihood_at(counts: np.ndarray, loadings: np.ndarray, factors: np.ndarray, c: float) -> float:
    """Log-likelihood with factors on the link scale, without size factors."""
    problem = Problem(Counts.from_any(counts), np.ones(len(counts)), ShiftedLog(c))
    return -negative_log_likelihood(problem, loadings, factors / problem.link.alpha)


def _large_c(report: Report, ax: Any) -> None:
    counts, loadings, factors = _example()
    limit = likelihood_at(counts, loadings, factors, math.inf)
    gaps = [abs(likelihood_at(counts, loadings, factors, c) - limit) for c in SHIFTS]
    ax.loglog(SHIFTS, gaps, "o-", color="#2176c7")
    ax.set(xlabel="c", ylabel="difference of log-likelihoods", title="A: log1p against standard Poisson NMF")
    slope = math.log10(gaps[-3] / gaps[-1]) / 2.0
    report.claim(
        "Theorem 1: the log-likelihood tends to that of standard Poisson NMF as c grows, for fixed L and F",
        paper="limit",
        ours=f"difference {gaps[-1]:.1e} at c = {SHIFTS[-1]:.0e}, falling as 1 / c^{slope:.2f}",
        agrees=gaps[-1] < 1e-5 and abs(slope - 1.0) < 0.05,
    )


def _factor_effect(report: Report, ax: Any) -> None:
    _, loadings, factors = _example(1)
    worst, gaps = 0.0, []
    for c in (*(10.0**power for power in range(-8, 0)), *SHIFTS[2:]):
        link = ShiftedLog(c)
        without, whole = (link.inverse(loadings[:, :k] @ factors[:, :k].T) for k in (2, 3))
        part = np.outer(loadings[:, 2], factors[:, 2])
        worst = max(worst, float(np.abs(link.alpha * np.log((whole + c) / (without + c)) / part - 1.0).max()))
        if c < 1.0:  # the same rates without the factor, at every c
            base = ShiftedLog(1.0).inverse(loadings[:, :2] @ factors[:, :2].T)
            added = link.inverse(link.link(base) + part)
            gaps.append((c, float(np.abs(np.log(added / base) - part).max())))
    ax.loglog(*zip(*gaps, strict=True), "o-", color="#2176c7")
    ax.set(xlabel="c", ylabel="|log fold change - l f|", title="B: effect of adding a factor")
    report.claim(
        "Theorem 2: alpha_c log((lam' + c) / (lam + c)) = l f; a log fold change as c falls to 0",
        paper="equality; limit",
        ours=f"relative difference up to {worst:.1e}; log fold change off by {gaps[0][1]:.1e} at "
        f"c = {gaps[0][0]:.0e}",
        agrees=worst < 1e-6 and gaps[0][1] < 1e-5,
    )


def _multinomial(report: Report) -> None:
    """With size factors, standard Poisson NMF keeps every total at its maximum; log1p NMF need not."""
    counts, _, _ = _example()
    off = {}
    for c in (math.inf, 1.0):
        fit = fit_log1p_nmf(
            counts, 2, c=c, likelihood="exact", init="nndsvd", tol=1e-12, max_iter=2000, n_jobs=1
        )
        totals = fit.size_factors * fit.link.inverse(fit.loadings @ fit.factors.T).sum(axis=1)
        off[c] = float(np.abs(totals / counts.sum(axis=1) - 1.0).max())
    report.claim(
        "Section 3.4: with size factors, fitted totals equal the observed ones at c = inf, and need not at "
        "other c",
        paper="equal; not guaranteed",
        ours=f"largest relative difference {off[math.inf]:.1e} at c = inf, {off[1.0]:.1e} at c = 1",
        agrees=off[math.inf] < 1e-4 < off[1.0],
    )


def _concavity(report: Report, ax: Any) -> None:
    counts, loadings, factors = _example(3)
    rng, steps, worst = np.random.default_rng(2), np.linspace(0.0, 1.0, 41), -math.inf
    for c in (1e-3, 1.0, 1e3, math.inf):
        others = [rng.uniform(0.1, 1.0, size=values.shape) for values in (loadings, factors)]
        in_loadings = [likelihood_at(counts, (1 - t) * loadings + t * others[0], factors, c) for t in steps]
        in_factors = [likelihood_at(counts, loadings, (1 - t) * factors + t * others[1], c) for t in steps]
        worst = max(worst, *(float(np.diff(values, 2).max()) for values in (in_loadings, in_factors)))
        ax.plot(steps, (np.array(in_loadings) - in_loadings[0]) / np.ptp(in_loadings), label=f"c = {c:g}")
    ax.set(
        xlabel="way between two loadings, factors fixed",
        ylabel="log-likelihood (scaled)",
        title="C: bi-concavity",
    )
    ax.legend(frameon=False, fontsize="x-small")
    report.claim(
        "Theorem 3: the log-likelihood is concave in L for fixed F, and the reverse",
        paper="concave",
        ours=f"largest second difference on lines between random points, c = 0.001 to inf: {worst:.1e}",
        agrees=worst < 0.0,
    )


def _geometry(report: Report, ax: Any) -> None:
    rng = np.random.default_rng(5)
    radius, angle = 3.0 * rng.beta(4.0, 1.0, size=60), rng.uniform(0.0, math.pi / 2, size=60)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    hull = upper_right_hull(points)
    ax.scatter(*points.T, s=14, color="#888888", linewidths=0)
    ax.plot(*points[hull].T, "o-", color="#2176c7", markerfacecolor="#c0392b", markeredgewidth=0)
    ax.set(xlabel="factor 1", ylabel="factor 2", title="D: what can stand out as c falls to 0")
    used, largest = set(), 0
    for way in np.linspace(0.002, math.pi / 2 - 0.002, 2000):
        rates, _ = unit_rates(points, 2e3 * np.array([math.cos(way), math.sin(way)]))
        seen = np.flatnonzero(rates > 1e-3)
        used |= set(seen.tolist())
        largest = max(largest, len(seen))
    errors = []
    for edge in pairwise(hull.tolist()):
        rates, _ = unit_rates(points, loadings_towards(points, edge, share=0.3, scale=1e4))
        errors.append(abs(rates[edge[0]] - 0.3) + abs(rates[edge[1]] - 0.7))
    report.claim(
        "Theorem 4: as c falls to 0, two factors reach all mixtures of neighbours on the upper right "
        "boundary, and nothing else",
        paper="exactly these",
        ours=f"{len(used)} of {len(points)} features ever stand out, {len(hull)} are on the boundary; at "
        f"most {largest} at a time; mixtures met to {max(errors):.0e}",
        agrees=used == set(hull.tolist()) and largest <= 2 and max(errors) < 1e-6,
    )


if __name__ == "__main__":
    run(study, __doc__)
