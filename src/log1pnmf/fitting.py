"""Counts in, `Fit` out: start, phases, restarts. The only place where scales are converted."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from .checkpoint import Keeper, fingerprint, load_checkpoint
from .counts import Counts
from .engines.base import Engine, RowSolver
from .engines.native import effective_threads
from .engines.registry import as_counts, check_memory, make_engine, resolve_engine
from .initialize import as_random, check_start
from .persist import StrPath
from .result import Fit
from .runs import STATIONARY, Run, best_run
from .settings import Settings, check_number
from .solver.alternate import residual_at
from .solver.callbacks import Callback
from .solver.stopping import PATIENCE
from .streaming.problem import problem_of

__all__ = ["ApproximationWarning", "fit_log1p_nmf"]

Array = NDArray[np.float64]

LARGEST_CERTIFIED = 2e8
"""Entries up to which the exact log-likelihood of an approximate fit is computed."""

POOR_APPROXIMATION = 0.02
"""Part of the log-likelihood by which the approximation may be off before a fit warns."""


class ApproximationWarning(UserWarning):
    """The quadratic approximation of the zero counts is far off at the fit it led to."""


def fit_log1p_nmf(
    counts: Any,
    n_components: int,
    *,
    c: float = 1.0,
    likelihood: str = "auto",
    approximation: str = "chebyshev",
    interval: tuple[float, float] | None = None,
    size_factors: Any = "total",
    init: Any = "rank1",
    n_init: int = 1,
    l1: float = 0.0,
    row_solver: RowSolver = "newton",
    extrapolate: bool | Literal["auto"] = "auto",
    max_iter: int = 1000,
    tol: float = 1e-8,
    n_jobs: int | None = None,
    engine: str = "auto",
    random_state: Any = None,
    callbacks: Sequence[Callback] = (),
    verbose: int = 0,
    checkpoint: StrPath | None = None,
    checkpoint_every: float = 30.0,
    resume: StrPath | None = None,
) -> Fit:
    """Fit Poisson NMF with the shifted-log link.

    Parameters
    ----------
    counts : array, sparse matrix, data frame, Counts or source
        Samples x features; see `log1pnmf.counts.Counts.from_any`. Sparse matrices of PyTorch and CuPy stay on
        their device. Counts larger than memory: see `log1pnmf.streaming.open_counts`.
    n_components : int
        Number of factors, K.
    c : float
        Shift of the link, positive; inf is standard Poisson NMF.
    likelihood : {"auto", "approximate", "exact", "refined"}
        "approximate" replaces the mean of zero counts by a quadratic and costs only the non-zeros; "refined"
        goes on with exact iterations from there; "auto" is approximate for ``c >= 1`` and exact below. With
        ``c = inf`` every one of them is exact, at the cost of the non-zeros.
    approximation : {"chebyshev", "taylor"}
        Which quadratic.
    interval : (low, high), optional
        Where "chebyshev" is to hold, on the link scale; see `log1pnmf.approximation.chebyshev`.
    size_factors : {"total", "none"} or array of shape (n,)
        Exposure of the samples; "total" is their total count divided by its mean.
    init : {"rank1", "random", "nndsvd"} or (loadings, factors)
        Start; a given one is on the link scale. See `log1pnmf.initialize`.
    n_init : int
        Number of starts; the fit with the lowest objective is kept.
    l1 : float
        Penalty on the sum of all factors but the first (the baseline), in units of log-likelihood on the link
        scale. Where it is positive, loadings are bounded by 1.
    row_solver : {"newton", "coordinate"}
        "coordinate" is the paper's own algorithm.
    extrapolate : bool or "auto"
        Whether to go beyond each update in the direction of the last ones; "auto": with "newton" only.
    max_iter : int
        Updates of both factors at most, in each phase.
    tol : float
        Relative fall of the objective per iteration at which to stop.
    n_jobs : int, optional
        Threads; None and -1 are all available cores, -2 all but one, as in scikit-learn. The result is the
        same for any number. A forked process uses one.
    engine : {"auto", "native", "reference", "torch", "torch-float64", "streaming"}
        What computes the half-steps; see `log1pnmf.engines.registry.make_engine`. "auto" takes a CUDA card
        where there is one and enough to do, otherwise the compiled core; `Fit.settings` says which. With
        "streaming", taken by itself for counts that are not in memory, `init` is that of a sample of rows
        that is fitted first.
    random_state : int, RandomState, Generator or None
    callbacks : sequence of callables
        Called with every `log1pnmf.solver.iteration.Iteration`; a true result stops the fit.
    verbose : int
        1 shows a progress bar.
    checkpoint : str or PathLike, optional
        File to which the state of the fit is written every so often and at its end, whole or not at all.
    checkpoint_every : float
        Seconds between two writes; 0 writes after every iteration.
    resume : str or PathLike, optional
        Checkpoint to go on from, of the same counts and settings (`n_jobs` may differ): the result has the
        same bits as if the fit had never stopped, seconds aside. Random numbers go on from there as well.
        That of a finished fit gives its result; that of one which a callback or Ctrl-C stopped goes on.

    Returns
    -------
    Fit

    Warns
    -----
    ConvergenceWarning
        When `max_iter` was reached first, or the solver stalled far from an optimum.
    ApproximationWarning
        When the exact log-likelihood of an approximate fit is far from the approximate one.
    RuntimeWarning
        When Ctrl-C was pressed (the fit so far is returned), and when a checkpoint could not be written.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> fit = fit_log1p_nmf(pancreas().counts[:200], 3, c=1.0, tol=1e-5, random_state=0)
    >>> fit.loadings.shape, fit.factors.shape, fit.converged
    ((200, 3), (2425, 3), True)
    """
    settings = Settings(
        n_components=n_components,
        c=c,
        likelihood=likelihood,
        approximation=approximation,
        interval=interval,
        size_factors=size_factors,
        init=init,
        n_init=n_init,
        l1=l1,
        row_solver=row_solver,
        extrapolate=extrapolate,
        max_iter=max_iter,
        tol=tol,
        n_jobs=n_jobs,
        engine=engine,
        callbacks=tuple(callbacks),
        verbose=verbose,
    )
    check_number("checkpoint_every", checkpoint_every)
    keeper = None if checkpoint is None else Keeper(checkpoint, checkpoint_every)
    loaded = None if resume is None else load_checkpoint(resume)
    rng = as_random(random_state)
    started = time.perf_counter()
    data = as_counts(counts, engine)
    sizes = data.size_factors(size_factors)
    settings = replace(settings, engine=resolve_engine(engine, data, n_components, row_solver))
    check_memory(settings.engine, data, n_components, effective_threads(n_jobs))
    if not isinstance(init, str):
        settings = replace(settings, init=check_start(init, data.shape, n_components))
    if loaded is not None:
        loaded.check_same(fingerprint(settings, data, sizes, random_state))
        rng, started = loaded.rng, started - loaded.seconds
    if keeper is not None:
        keeper.begin(fingerprint(settings, data, sizes, random_state), rng, started)
    engines = [
        make_engine(
            settings.engine, problem_of(data, sizes, settings.link, phase.zeros), n_jobs, verbose=verbose
        )
        for phase in settings.phases
    ]
    run = best_run(settings, engines, rng, resumed=None if loaded is None else loaded.progress, keep=keeper)
    if keeper is not None:
        keeper.close()
    try:
        return _finish(settings, engines[run.phase], run, started)
    except KeyboardInterrupt:  # the last figures can be done without, the fit cannot
        run = replace(run, reason="interrupted", all_met=False)
        return _finish(settings, engines[run.phase], run, started)


# ---------------------------------------------------------------- the end


def _finish(settings: Settings, engine: Engine, run: Run, started: float) -> Fit:
    last, counts, sizes = run.last, engine.problem.counts, engine.problem.size_factors
    messages = _about_data(counts)
    kkt_residual = last.kkt_residual
    if run.reason != "interrupted":
        kkt_residual = residual_at(
            engine, last.loadings, last.factors, penalty=settings.penalty, upper=settings.upper
        )
    if run.reason == "interrupted":
        messages.append(f"interrupted after {last.index} iterations: the fit has not converged")
        warnings.warn(f"{messages[-1]}; it is what was reached so far", RuntimeWarning, stacklevel=3)
    elif run.reason == "callback":
        messages.append(f"stopped by a callback after {last.index} iterations")
    elif not run.all_met:
        messages.append(f"not converged {_why_not(settings, run, kkt_residual)}")
        warnings.warn(messages[-1], ConvergenceWarning, stacklevel=3)
    exact = -last.loss if last.likelihood == "exact" else None
    if exact is None:
        exact = _certify(settings, counts, sizes, run, messages)
    return Fit(
        loadings=last.loadings,
        factors=last.factors * settings.link.alpha,
        c=settings.link.c,
        size_factors=sizes,
        log_likelihood=exact,
        approximate_log_likelihood=-last.loss if last.likelihood == "approximate" else None,
        objective=last.objective,
        kkt_residual=kkt_residual,
        converged=run.all_met,
        n_iter=last.index,
        seconds=time.perf_counter() - started,
        history=run.history.table(),
        settings=settings.as_dict(),
        messages=tuple(messages),
        stopped=run.reason,
    )


def _why_not(settings: Settings, run: Run, kkt_residual: float) -> str:
    """Why a fit that ran to its end has not converged, and what to do."""
    change, tol = run.last.relative_change, settings.phases[run.phase].tol
    if run.reason == "stalled":
        return (
            f"after {run.last.index} iterations: no step lowers the objective any more, but this is not an "
            f"optimum (KKT residual {kkt_residual:.1e}; at most {STATIONARY:.0e} at one). Counts or size "
            "factors may differ by too many orders of magnitude: rescale or drop the extreme ones, or try "
            "another init"
        )
    after = f"after max_iter={settings.max_iter} iterations"
    advice = "raise max_iter or tol, or go on from here with init=(loadings, factors)"
    if change > tol:
        return (
            f"{after}: the last one still lowered the objective by {change:.1e} of its size (tol={tol:.1e}); "
            f"{advice}"
        )
    history = run.history.table()
    here = history["iteration"][history["likelihood"] == run.last.likelihood]
    if here[-1] - here[0] < settings.max_iter - 1:
        return f"{after} of the approximate phase (the exact phase has converged); raise max_iter or tol"
    return (
        f"{after}: too few of the last ones in a row lowered the objective by less than tol={tol:.1e} of its "
        f"size ({PATIENCE} are needed, and one after a dropped extrapolation does not count); {advice}"
    )


def _certify(settings: Settings, counts: Counts, sizes: Array, run: Run, messages: list[str]) -> float | None:
    """Exact log-likelihood of an approximate fit, unless that takes too long."""
    entries = math.prod(counts.shape)
    if run.reason == "interrupted":
        messages.append("the exact log-likelihood was not computed because the fit was interrupted")
        return None
    if entries > LARGEST_CERTIFIED:
        messages.append(
            f"the exact log-likelihood was not computed: it visits all {entries:,} entries "
            f"(computed up to {LARGEST_CERTIFIED:,.0f})"
        )
        return None
    problem = problem_of(counts, sizes, settings.link)
    engine = make_engine(settings.engine, problem, settings.n_jobs)
    exact = -engine.loss(run.last.loadings, run.last.factors)
    gap = -run.last.loss - exact
    messages.append(f"the approximate log-likelihood differs from the exact one by {gap:,.0f}")
    if abs(gap) > POOR_APPROXIMATION * abs(exact) and abs(gap) > 1.0:
        messages[-1] += (
            f", {abs(gap / exact):.0%} of it: zero counts have large fitted means here; "
            "use likelihood='refined' (or 'exact')"
        )
        warnings.warn(messages[-1], ApproximationWarning, stacklevel=4)
    return exact


def _about_data(counts: Counts) -> list[str]:
    messages = []
    for n, what in ((counts.n_empty_rows, "samples"), (counts.n_empty_columns, "features")):
        if n:
            messages.append(f"{what} without any count: {n}; they were given zeros")
    return messages
