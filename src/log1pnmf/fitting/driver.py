"""From counts to a `Fit`: data, engines and starts come together here, and scales are converted."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.atomic import StrPath
from log1pnmf._common.checks import one_for_each
from log1pnmf._common.randomness import as_random
from log1pnmf._common.warn import convergence_warning, warn
from log1pnmf._common.words import plural
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import repeated
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import as_counts, check_memory, make_engine, resolve_engine
from log1pnmf.engines.threads import effective_threads
from log1pnmf.fitting.certificate import LARGEST_CERTIFIED
from log1pnmf.fitting.facts import Certificate
from log1pnmf.fitting.solver.alternate import residual_at
from log1pnmf.fitting.solver.stopping import PATIENCE, STATIONARY, largest_residual
from log1pnmf.model.batch_effects import first_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.noise import Noise
from log1pnmf.model.problem import Problem
from log1pnmf.model.structure import Structure
from log1pnmf.model.zeros import AdaptiveZeros

from .certificate import exact_log_likelihood
from .checkpoint import CheckpointWriter, fingerprint, load_checkpoint
from .fit import Fit
from .known import checksums, constraint_of, structure_of
from .noise_choice import choose_noise
from .parameters import first_noise, first_problem, renewal_of
from .renewal import LARGEST_STORED
from .request import KNOWN, Request
from .runs import Run, best_run
from .settings import Settings
from .size_notes import note_on_sizes
from .start_choice import start_of

__all__ = ["ApproximationWarning", "check_any", "fit_log1p_nmf", "run_request"]

Array = NDArray[np.float64]

MOST_NAMED = 5
"""Features that a message about batches names."""

LEAST_DEVIANCE = 1e-9
"""Deviance per count below which it is rounding error."""

POOR_APPROXIMATION = 0.02
"""Part of the log-likelihood by which the approximation may be off before a fit warns."""


class ApproximationWarning(UserWarning):
    """The quadratic approximation of zero counts is poor for this fit."""


def fit_log1p_nmf(counts: Any, n_components: int, *, resume: StrPath | None = None, **parameters: Any) -> Fit:
    """Fit Poisson NMF with the shifted-log link.

    Parameters
    ----------
    counts : array, sparse matrix, data frame, Counts or source
        Samples x features; see `log1pnmf.counts.Counts.from_any`. Sparse matrices of PyTorch and CuPy stay on
        their device. Counts larger than memory: see `log1pnmf.open_counts`.
    n_components : int
        Number of factors, K.
    resume : str or PathLike, optional
        Checkpoint to continue from. Counts and settings must be the same (`n_jobs` may differ). The result
        has the same bits as if the fit had never stopped, apart from the seconds. A checkpoint of a finished
        fit returns its result; a fit that a callback or Ctrl-C stopped is continued.
    **parameters : optional
        All others of `log1pnmf.Log1pNMF`, with the same defaults, except `warm_start`. Pass a `Fit` as `init`
        to continue it.

    Returns
    -------
    Fit

    Warns
    -----
    ConvergenceWarning
        If the fit reached `max_iter` before it converged, or stalled far from an optimum.
    ApproximationWarning
        If the exact log-likelihood of an approximate fit is far from the approximate one.
    RuntimeWarning
        If Ctrl-C was pressed (the fit so far is returned), or a checkpoint could not be written.

    See Also
    --------
    log1pnmf.Log1pNMF : The same as a scikit-learn estimator.
    log1pnmf.tl.log1p_nmf : The same for AnnData.
    log1pnmf.select : Choose c, the number of factors and the noise.

    References
    ----------
    .. [1] E. Weine, P. Carbonetto, R. A. Irizarry and M. Stephens (2026). A New Family of Poisson
       Non-negative Matrix Factorization Methods Using the Shifted Log Link. arXiv:2601.05845.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> fit = fit_log1p_nmf(pancreas().counts[:200], 3, c=1.0)
    >>> fit.loadings.shape, fit.factors.shape, fit.stopped
    ((200, 3), (2425, 3), 'converged')
    """
    return run_request(Request.of(n_components=n_components, **parameters), counts, resume=resume)


def run_request(request: Request, counts: Any, *, resume: StrPath | None = None) -> Fit:
    """Fit what is asked for.

    Parameters
    ----------
    counts : object
        As in `fit_log1p_nmf`.
    """
    asked = request.settings
    loaded = None if resume is None else load_checkpoint(resume)
    rng = as_random(request.random_state)
    started = time.perf_counter()
    data = as_counts(counts, request.engine or asked.engine)
    _check_enough(data, asked.n_components)
    sizes = data.size_factors(asked.size_factors if request.size_factors is None else request.size_factors)
    _check_sizes(asked, data)
    given = _batches(request, data)
    choice = choose_noise(request, data, run_request) if asked.noise == "auto" else None
    if choice is not None:
        request = replace(request, settings=asked.with_noise(choice.noise))
    noise = _noise(request, data)
    batches = given if given is not None and given.n_batches > 1 else None  # one is none, to the last bit
    if batches is not None and (batches.effects == 1.0).all():
        batches = first_effects(batches, data, sizes)
    engine = resolve_engine(
        request.engine or asked.engine,
        data,
        asked.n_components,
        asked.row_solver,
        noise=noise,
        batched=batches is not None,
    )
    settings = request.settings.resolved(engine, data)
    known = structure_of(data, settings, **{name: getattr(request, name) for name in KNOWN})
    constraint = constraint_of(settings, known)
    check_memory(engine, data, asked.n_components, effective_threads(request.n_jobs))

    def remake(problem: Problem) -> Engine:
        return make_engine(
            request.engine or engine,
            problem,
            request.n_jobs,
            row_solver=settings.row_solver,
            constraint=constraint,
            verbose=request.verbose,
        )

    problem = first_problem(settings, data, sizes, noise, batches)
    before = request.init
    if settings.fits_sizes and isinstance(before, Fit) and before.size_factors.shape == sizes.shape:
        problem = replace(problem, size_factors=before.size_factors)
    start = start_of(request, problem, known)
    identity = {}
    if loaded is not None or request.checkpoint is not None:  # it reads all counts
        identity = fingerprint(settings, data, sizes, start, request.dispersion, batches=batches)
        identity["settings"] |= checksums(known)
    if loaded is not None:
        loaded.check_same(identity)
        rng, started = loaded.rng, started - loaded.seconds
    keep = None
    if request.checkpoint is not None:
        keep = CheckpointWriter(request.checkpoint, request.checkpoint_every)
        keep.begin(identity, rng, started)
    run = best_run(
        settings,
        remake,
        problem,
        rng,
        start=start,
        renewal=renewal_of(settings, remake, data, batched=batches is not None, constraint=constraint),
        known=known,
        callbacks=request.callbacks,
        verbose=request.verbose,
        resumed=None if loaded is None else loaded.progress,
        keep=keep,
    )
    if keep is not None:
        keep.close()
    ended = remake(run.changed.put_into(problem))
    try:
        fit = _finish(settings, ended, run, request, known)
    except KeyboardInterrupt:  # the fit is worth keeping without its last figures
        fit = _finish(settings, ended, replace(run, stopped="interrupted"), request, known)
    fit = replace(fit, batches=given if batches is None else fit.batches)
    if choice is not None:
        fit = replace(fit, messages=(str(choice), *fit.messages))
    return replace(fit, asked=asked, seconds=time.perf_counter() - started)


def _batches(request: Request, counts: Counts) -> Batches | None:
    """Give the batches with which a fit begins; their effects are those of an earlier fit, or 1."""
    if request.batch is None:
        return None
    asked = request.settings
    totals = asked.size_factors == "total"
    own = Batches.of(request.batch, counts.shape, asked.batch_strength, by_counts=totals)
    known = request.init.batches if isinstance(request.init, Fit) else None
    if known is not None and known.names == own.names and known.effects.shape == own.effects.shape:
        return replace(own, effects=known.effects)
    return own


def _check_sizes(asked: Settings, counts: Counts) -> None:
    if asked.fits_sizes and not counts.in_memory:
        raise ValueError(
            "size_factors='fit' needs counts in memory, but these are in chunks; load them, or use "
            "size_factors='total'"
        )


def _noise(request: Request, counts: Counts) -> Noise:
    """Give the noise with which a fit begins."""
    settings, known = request.settings, request.dispersion
    if known is None and isinstance(request.init, Fit) and len(request.init.factors) == counts.n_features:
        known = request.init.dispersion
    if settings.noise == "poisson" or known is None:
        return first_noise(settings, counts.n_features)
    return NegativeBinomial(one_for_each("dispersion", known, counts.n_features))


def check_any(counts: Counts) -> None:
    """Refuse counts that are all zero."""
    if counts.nnz == 0:
        raise ValueError(f"counts are all zero (shape {counts.shape}): pass data with at least one count")


def _check_enough(counts: Counts, n_components: int) -> None:
    """Refuse counts that are all zero, and warn where they are too few to tell the factors apart."""
    check_any(counts)
    if min(counts.shape) < n_components:
        warn(
            f"n_components={n_components} is larger than the number of samples or features (shape "
            f"{counts.shape}), which cannot determine so many; use at most {min(counts.shape)}",
            UserWarning,
        )


def _finish(settings: Settings, engine: Engine, run: Run, request: Request, known: Structure | None) -> Fit:
    last, problem = run.last, engine.problem
    messages = _about_data(problem.counts)
    if run.start != settings.init:
        messages.append(f"init={settings.init!r} chose the start {run.start!r}")
    kkt_residual = last.kkt_residual
    if run.stopped != "interrupted":
        constraint = constraint_of(settings, known)
        kkt_residual = residual_at(engine, last.loadings, last.factors, constraint=constraint)
    if run.stopped == "interrupted":
        messages.append(f"interrupted after {last.index} iterations: the fit has not converged")
        warn(f"{messages[-1]}; the result is the state at that point", RuntimeWarning)
    elif run.stopped == "callback":
        messages.append(f"stopped by a callback after {last.index} iterations")
    elif run.stopped != "converged":
        messages.append(f"not converged {_why_not(settings, run, kkt_residual)}")
        warn(messages[-1], convergence_warning())
    messages += _about_zeros(request.settings, settings, run, problem)
    messages += _about_batches(engine, run)
    if settings.size_factors == "fit" and not settings.fits_sizes:
        messages.append(
            "size factors are the totals: at c=inf the loadings absorb any size, so there is nothing to fit"
        )
    fit = run.as_fit(settings, problem, known=known, kkt_residual=kkt_residual)
    about_sizes = note_on_sizes(fit, problem.counts) if settings.fits_sizes else None
    messages += [] if about_sizes is None else [about_sizes]
    certificate = fit.certificate
    if certificate is None:
        certificate = _certificate(fit, problem.counts, request, messages)
    return replace(fit, certificate=certificate, messages=tuple(messages))


def _why_not(settings: Settings, run: Run, kkt_residual: float) -> str:
    """Say why a fit that ran to its end has not converged, and what to do."""
    change, tol = run.last.relative_change, settings.tol
    if run.stopped == "stalled":
        return (
            f"after {run.last.index} iterations: no step lowers the objective any more, but this is not an "
            f"optimum (KKT residual {kkt_residual:.1e}; at most {STATIONARY:.0e} at one). Counts or size "
            "factors may differ by too many orders of magnitude: rescale or drop the extreme ones, or try "
            "another init"
        )
    after = f"after max_iter={settings.max_iter} iterations"
    advice = "raise max_iter, or continue from here with init=fit"
    if change > tol:
        return (
            f"{after}: the last one still lowered the objective by {change:.1e} of its size (tol={tol:.1e}); "
            f"{advice}"
        )
    if not run.last.kkt_residual <= largest_residual(tol):
        return (
            f"{after}: the last one gained less than tol={tol:.1e}, but this is a plateau and not an optimum "
            f"(KKT residual {run.last.kkt_residual:.1e}; at most {largest_residual(tol):.0e} at one); "
            "raise max_iter"
        )
    return (
        f"{after}: too few of the last ones in a row lowered the objective by less than tol={tol:.1e} of its "
        f"size ({PATIENCE} are needed, and one after a dropped extrapolation does not count); {advice}"
    )


def _certificate(fit: Fit, counts: Counts, request: Request, messages: list[str]) -> Certificate | None:
    """Exact log-likelihood of an approximate fit, unless that takes too long."""
    entries = math.prod(counts.shape)
    if fit.stopped == "interrupted":
        messages.append("the exact log-likelihood was not computed because the fit was interrupted")
        return None
    if entries > LARGEST_CERTIFIED:
        messages.append(
            f"the exact log-likelihood was not computed: it visits all {entries:,} entries "
            f"(computed up to {LARGEST_CERTIFIED:,.0f})"
        )
        return None
    certificate = exact_log_likelihood(
        fit, counts, engine=request.engine or fit.settings.engine, n_jobs=request.n_jobs
    )
    exact, gap = certificate.log_likelihood, certificate.gap
    messages.append(f"the approximate log-likelihood differs from the exact one by {gap:,.0f}")
    if abs(gap) > POOR_APPROXIMATION * abs(exact) and abs(gap) > 1.0:
        share = f", {abs(gap / exact):.0%} of it" if exact else ""
        messages[-1] += (
            f"{share}: zero counts have large fitted means here; use likelihood='adaptive' (or 'exact')"
        )
        warn(messages[-1], ApproximationWarning)
    return certificate


def _about_zeros(asked: Settings, settings: Settings, run: Run, problem: Problem) -> list[str]:
    """Say how zero counts were treated, and why, unless that was asked for."""
    if (settings.link.is_identity and settings.noise == "poisson") or run.errors is None:
        return []
    if settings.likelihood == "exact" and asked.likelihood == "auto":
        return [f"every zero count was visited: {settings.why_exact(problem.counts)}"]
    if settings.likelihood != "adaptive" and run.last.likelihood != "adaptive":  # it was stopped on its way
        return []
    zeros = run.changed.zeros
    if not isinstance(zeros, AdaptiveZeros):
        message = (
            f"every zero count was visited: to keep their errors within zeros_tol={settings.zeros_tol:g}, "
            f"more than {LARGEST_STORED:.0%} of all entries would have to be, which costs as much"
        )
        if asked.likelihood == "adaptive":
            warn(f"{message}; raise zeros_tol, or use likelihood='exact'", ApproximationWarning)
        return [message]
    share = run.errors[1] / abs(run.last.loss) if run.last.loss else 0.0
    visited = f"{zeros.stored.nnz:,}" if problem.counts.in_memory else "some"
    return [
        f"{visited} zero counts were visited one by one; a quadratic per feature approximates the others, "
        f"with errors that sum to {share:.1e} of the log-likelihood (zeros_tol={settings.zeros_tol:g})"
    ]


def _about_batches(engine: Engine, run: Run) -> list[str]:
    """Say how much of the deviance the effects of batches take, and where they are largest."""
    problem, last = engine.problem, run.last
    batches = problem.batches
    if batches is None or run.stopped == "interrupted":
        return []
    # the zeros of chunks are found anew in every pass
    same = replace(problem, zeros=None) if problem.counts.in_memory else problem
    constant = problem.noise.constant(problem.counts)
    deviance, without = (
        make_engine("auto", one).loss(last.loadings, last.factors) - constant
        for one in (same, replace(same, batches=None))
    )
    names = problem.counts.feature_names
    spread = np.abs(np.log2(batches.effects)).max(axis=0)
    largest = np.argsort(-spread, kind="stable")[:MOST_NAMED]
    listed = ", ".join(f"{j if names is None else names[j]} ({2 ** spread[j]:.1f} times)" for j in largest)
    taken = "this fit leaves no deviance"
    if deviance > LEAST_DEVIANCE * problem.counts.total:
        share = without / deviance - 1.0
        taken = f"without their effects the deviance of this fit would be {share:.1%} larger"
    return [f"{batches.n_batches} batches: {taken}; features that differ most: {listed}"]


def _about_data(counts: Counts) -> list[str]:
    messages = []
    twice = [] if counts.feature_names is None else repeated(counts.feature_names)
    if twice:
        messages.append(
            f"{plural(len(twice), 'feature name occurs', 'feature names occur')} more than once (first "
            f"{twice[0]!r}), so features of other data cannot be matched by name; make names unique before "
            "fitting (adata.var_names_make_unique())"
        )
        warn(messages[-1], UserWarning)
    for n, what in ((counts.n_empty_rows, "samples"), (counts.n_empty_columns, "features")):
        if n:
            messages.append(f"{what} without any count: {n}; they were given zeros")
    return messages
