"""The paper's own fits: the R packages' starts and coordinate ascent, for the paper's number of iterations.

What the paper leaves open was read in the public scripts and packages that it names (log1pNMF, fastTopics)
and checked against their figures; docs/explanation/sparse-form.md has the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from log1pnmf.analysis.metrics import log_likelihood
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.callbacks import History
from log1pnmf.fitting.fit import Certificate, Fit, Stopped
from log1pnmf.fitting.runs import Run
from log1pnmf.fitting.settings import GIVEN, Settings, constraint_of
from log1pnmf.fitting.solver import alternate, residual_at
from log1pnmf.model.problem import Problem

Array = np.ndarray

RANK_ONE_ITERATIONS = 5
TINY = 1e-8  # the R package's start of all columns but the first


def r_uniform(seed: int) -> Callable[[int], Array]:
    """R's ``set.seed(seed)`` and then ``runif(n, 1e-8, 0.05)``: Mersenne Twister with R's own seeding."""
    state = []
    for i in range(50 + 625):
        seed = (69069 * seed + 1) % 2**32
        if i > 50:  # the first of the 625 is a position, which R overwrites
            state.append(seed)
    bits = np.random.MT19937()
    bits.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.array(state, dtype=np.uint32), "pos": 624},
    }
    return lambda n: 1e-8 + (0.05 - 1e-8) * bits.random_raw(n) * 2.3283064365386963e-10


def fit_as_in_r(
    counts: Counts,
    n_components: int,
    *,
    c: float,
    n_iter: int,
    seed: int,
    likelihood: str = "exact",
    size_factors: Any = "total",
    jobs: int = 2,
) -> Fit:
    """Fit as log1pNMF does after ``set.seed(seed)`` with ``init_method = "rank1"``.

    Five iterations with one factor from uniform noise, columns balanced, 1e-8 in all other columns, then
    `n_iter` iterations of coordinate ascent, loadings first.
    """
    settings = _settings(n_components, c=c, n_iter=n_iter, likelihood=likelihood)
    problem = Problem(counts, counts.size_factors(size_factors), settings.link, settings.zeros)
    engine = make_engine("native", problem, jobs)
    uniform = r_uniform(seed)
    one, _ = _iterate(engine, (uniform(counts.n_samples)[:, None], uniform(counts.n_features)[:, None]), 5)
    start = _beside(one.loadings, one.factors, n_components, tiny=TINY)
    fit = _fit(settings, engine, start, problem.size_factors, f"start: R, set.seed({seed})")
    if fit.certificate is None:
        exact = log_likelihood(fit, counts, n_jobs=jobs)
        fit = replace(fit, certificate=Certificate(exact, fit.approximate_log_likelihood))
    return fit


def fit_topic_model(
    counts: Counts, n_components: int, *, n_iter: int, tiny: float, size_factors: Any = "total", jobs: int = 2
) -> Fit:
    """Fit standard Poisson NMF as the paper does with fastTopics.

    It has no size factors: loadings carry the depth. They are divided by the size factors afterwards, as the
    paper does for its plots, which gives the same means. The start is the best rank-one fit and the constant
    `tiny` in all other columns.
    """
    settings = _settings(n_components, c=math.inf, n_iter=n_iter)
    problem = Problem(counts, np.ones(counts.n_samples), settings.link)
    engine = make_engine("native", problem, jobs)
    totals = counts.row_sums[:, None], counts.by_column.row_sums()[:, None] / counts.total
    start = _beside(*totals, n_components, tiny=tiny)
    return _fit(settings, engine, start, counts.size_factors(size_factors), f"start: rank one and {tiny:g}")


def _settings(n_components: int, *, c: float, n_iter: int, likelihood: str = "exact") -> Settings:
    return Settings(
        n_components=n_components,
        c=c,
        likelihood=likelihood,
        size_factors=GIVEN,
        init=GIVEN,
        row_solver="coordinate",
        max_iter=n_iter,
        tol=0.0,
        engine="native",
    )


def _beside(loadings: Array, factors: Array, n_components: int, *, tiny: float) -> tuple[Array, Array]:
    """Balance one factor and put constant columns beside it."""
    scale = np.sqrt(factors.mean() / loadings.mean())
    columns = (loadings * scale, factors / scale)
    wide = [np.hstack([column, np.full((len(column), n_components - 1), tiny)]) for column in columns]
    return wide[0], wide[1]


def _iterate(engine: Engine, start: tuple[Array, Array], n_iter: int) -> tuple[Any, History]:
    history, last = History(), None
    for last in alternate(engine, *start, row_solver="coordinate", max_iter=n_iter):
        history(last)
    return last, history


def _fit(settings: Settings, engine: Engine, start: tuple[Array, Array], sizes: Array, message: str) -> Fit:
    """Iterate, and show the end as a fit with these size factors; at c = inf they only scale loadings."""
    last, history = _iterate(engine, start, settings.max_iter)
    residual = residual_at(engine, last.loadings, last.factors, constraint=constraint_of(settings))
    loadings = last.loadings * (engine.problem.size_factors / sizes)[:, None]
    shown = replace(last, loadings=loadings, size_factors=sizes)
    stopped: Stopped = "max_iter" if last.index == settings.max_iter else "converged"
    run = Run(shown, history.table(), stopped, (0.0, 0.0), start="given")
    return replace(run.as_fit(settings, engine.problem), kkt_residual=residual, messages=(message,))
