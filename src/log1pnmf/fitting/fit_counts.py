"""From parameters and counts to a `Fit`: everything is checked here, and nothing behind."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from inspect import Parameter, signature
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, get_args

import numpy as np

from log1pnmf._common.archive import StrPath
from log1pnmf._common.arrays import Numbers
from log1pnmf._common.checks import (
    Random,
    Seed,
    as_random,
    check_choice,
    check_whole,
    convergence_warning,
    one_for_each,
    plural,
    shown_after,
    warn,
)
from log1pnmf.counts.counts import Counts, SizesKind
from log1pnmf.counts.features import repeated
from log1pnmf.counts.splitting import split_counts
from log1pnmf.engines.base import RowSolver
from log1pnmf.engines.native import effective_threads
from log1pnmf.engines.registry import EngineKind, as_counts, check_memory, make_engine, resolve_engine
from log1pnmf.model.batch_effects import first_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.dispersion import FIRST_DISPERSION, DispersionKind, update_dispersions
from log1pnmf.model.noise import POISSON, NegativeBinomial, Noise
from log1pnmf.model.predict import score_parts
from log1pnmf.model.problem import Array, Problem, SizePrior, Structure
from log1pnmf.model.size_factors import WEIGHT

from .callbacks import Callback
from .checkpoint import CheckpointWriter, check_checkpoint, fingerprint, load_checkpoint
from .fit import Certificate, Fit
from .fixed_factors import structure_of
from .new_samples import project
from .runs import LARGEST_STORED, Run, Runs
from .settings import (
    CHOICES,
    GIVEN,
    LARGEST_EXACT,
    OTHERWISE,
    InitKind,
    LikelihoodKind,
    NoiseKind,
    Settings,
    constraint_of,
)
from .solver import PATIENCE, STATIONARY, Iteration, largest_residual, problem_at, residual_at
from .starts import check_start, continued_start, find_start
from .summary import NOISES, note_on_sizes

if TYPE_CHECKING:
    from typing_extensions import Unpack

F = TypeVar("F", bound=Callable[..., Any])

# ---------- parameters as users pass them: settings, and what was given beside them

SETTINGS = tuple(field.name for field in fields(Settings) if field.init)
KNOWN = ("fixed_loadings", "fixed_factors", "mask")  # what may be known of factors
FIRST = ("n_components", "c", "noise", "size_factors", "random_state", "n_jobs")
PARAMETERS = tuple(dict.fromkeys((*FIRST, *SETTINGS, *KNOWN[1:], "verbose")))
"""All parameters of a fit, in the order in which users see them; known loadings go with the counts."""


class FoldParameters(TypedDict, total=False):
    """Parameters of `log1pnmf.Log1pNMF`, for type checkers: those of `log1pnmf.select`."""

    size_factors: SizesKind | Numbers
    likelihood: LikelihoodKind
    zeros_tol: float
    dispersion: DispersionKind | float | Numbers
    init: InitKind | tuple[Any, Any] | Fit
    row_solver: RowSolver
    max_iter: int
    tol: float
    engine: EngineKind


class FitParameters(FoldParameters, total=False):
    """Those of a whole fit, without `c`."""

    noise: NoiseKind
    n_init: int
    l1: float | Literal["auto"]
    mask_penalty: float
    fixed_factors: Any
    mask: Any
    n_jobs: int | None
    verbose: int | None
    callbacks: Sequence[Callback]
    random_state: Seed


class SampleParameters(FitParameters, total=False):
    """With what belongs to samples."""

    batch: Any
    fixed_loadings: Any


def completed(kind: type, of: Callable[..., Any] | None = None, **defaults: Any) -> Callable[[F], F]:
    """Return a decorator that shows ``**parameters`` one by one; defaults may be those `of` a function."""
    given = {name: one.default for name, one in signature(of).parameters.items()} if of else {}

    def complete(function: F) -> F:
        shown, names = signature(function), kind.__annotations__
        own = list(shown.parameters.values())[:-1]
        for name in sorted(names.keys() - shown.parameters.keys(), key=(*PARAMETERS, *names).index):
            default = {name: default_of(name), **given, **defaults}[name]
            own.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default))
        function.__signature__ = shown.replace(parameters=own)  # type: ignore[attr-defined]
        return function

    return complete


def checked(**parameters: Any) -> tuple[Settings, dict[str, Any]]:
    """Check parameters; return settings ("given" stands for arrays), and the others as users gave them."""
    given: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        if name not in (*PARAMETERS, *SampleParameters.__annotations__, "checkpoint"):
            check_choice("a parameter of the fit", name, PARAMETERS)
        (values if name in SETTINGS else given)[name] = value
    for name in values.keys() & OTHERWISE.keys():
        if values[name] is None or isinstance(values[name], str):
            check_choice(name, values[name], CHOICES[name], otherwise=OTHERWISE[name])
        else:
            given[name], values[name] = values[name], GIVEN
    if isinstance(values.get("l1"), str):  # the settings have a number once it is chosen
        check_choice("l1", values["l1"], ("auto",), otherwise="a number")
        given["l1"] = values.pop("l1")
        if any(given.get(name) is not None for name in KNOWN):
            raise ValueError("l1='auto' chooses for factors of which nothing is known; pass a number")
    seed = given["random_state"] = values.get("random_state", Settings.random_state)
    whole = isinstance(seed, Integral) and not isinstance(seed, bool | np.bool_)
    settings = Settings(**{**values, "random_state": int(cast(int, seed)) if whole else None})
    if settings.n_init > 1 and settings.init == GIVEN:
        raise ValueError(f"n_init must be 1 with a given start, got {settings.n_init}: all would be the same")
    as_random(seed)
    effective_threads(given.get("n_jobs"))
    callbacks, verbose = given.get("callbacks", ()), given.get("verbose")
    if not isinstance(callbacks, Iterable) or not all(map(callable, callbacks := tuple(callbacks))):
        raise TypeError(f"callbacks must be a sequence of callables, got {callbacks!r}; pass a list")
    given["callbacks"] = callbacks
    if verbose is not None and not isinstance(verbose, bool | np.bool_):
        check_whole("verbose", verbose, least=0)
    if given.get("checkpoint") is not None:
        check_checkpoint(given["checkpoint"])
    return settings, given


def asked_again(fit: Fit) -> tuple[Settings, dict[str, Any]]:
    """Return what a fit was asked for, as `checked` does; a start of the user's own is forgotten."""
    asked = fit.asked.with_noise(fit.settings.noise)
    return replace(asked, init=Settings.init if asked.init == GIVEN else asked.init), {
        "size_factors": fit.size_factors if asked.size_factors == GIVEN else None,
        "dispersion": fit.dispersion if asked.dispersion == GIVEN else None,
        "batch": None if fit.batches is None else fit.batches.sample_names,
        **dict(zip(KNOWN, fit.known_parts, strict=True)),
        "random_state": asked.random_state,
        "verbose": 0,
    }


def fit_again(fit: Fit, counts: Counts, sizes: Array, *, changes: Mapping[str, Any], **given: Any) -> Fit:
    """Fit what a fit was asked for, from where it is: with these size factors and changes of settings."""
    settings, asked = asked_again(fit)
    own = {"n_components": fit.n_components, "n_init": 1, "size_factors": GIVEN, **changes}
    asked |= {"size_factors": sizes, "init": (fit.loadings, fit.factors), **given}
    return fit_counts(counts, replace(settings, **own), **asked)


def default_of(name: str) -> Any:
    """Return the default of a parameter: every face of the package has the same."""
    return getattr(Settings, name, () if name == "callbacks" else None)


# ---------- noise="auto", l1="auto": which noise and which penalty the counts prefer, and why

TEST_FRACTION = 0.2  # share of the counts that is scored

MOST_ENTRIES, FEWEST_SAMPLES = 1e6, 200
"""Entries from which only some of the samples are looked at, and how many of these at least."""

MOST_PENALISED = 2e7  # the same for the choice of a penalty, which depends on the number of samples

L1_PATH = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Penalties that are tried: what the mean positive entry of a factor costs, in units of log-likelihood."""

ENOUGH: dict[str, Any] = {"init": "nndsvd", "max_iter": 50, "tol": 1e-6, "n_init": 1, "engine": "auto"}
"""Of the fits to the counts that are not held out."""


CONVERGED: dict[str, Any] = {"max_iter": 300, "tol": 1e-8}
"""Of the fits that choose a penalty: otherwise one would gain by further iterations."""


def choose_noise(asked: Settings, counts: Counts, **given: Any) -> tuple[Settings, str]:
    """Return settings with the noise that predicts held-out counts better around the same means, and why.

    A Poisson fit of a few iterations to the counts that are not held out has the means, and dispersions are
    found for these. Takes no random number from the fit, and does not depend on its random state.
    """
    train, test, _, given = _held_out(counts, MOST_ENTRIES, "noise", **given)
    found = _quick_fit(train, asked.with_noise("poisson"), given)
    kind: Any = asked.dispersion if asked.dispersion in get_args(DispersionKind) else "feature"
    means, point = found.rates, (found.loadings, found.factors / found.link.alpha)
    spectrum = make_engine("native", found.problem(train), given["n_jobs"]).mean_spectrum(*point)
    dispersions, _ = update_dispersions(train, point[1], spectrum, kind=kind)
    dispersed = replace(means, dispersion=dispersions.dispersion)
    poisson, nb = (score_parts(one, train, test, test_fraction=TEST_FRACTION) for one in (means, dispersed))
    gain, deviation = _gain(nb, poisson)
    noise = "nb" if gain > 1.64 * deviation else "poisson"  # the simpler, but for one in twenty by chance
    better = f"{'worse' if gain < 0.0 else 'better'} by {abs(gain):,.0f} units of log-likelihood"
    return asked.with_noise(noise), (
        f"noise='auto' chose {NOISES[noise]} noise: held-out counts of {len(nb):,} samples were scored, "
        f"and negative binomial noise predicts them {better} (standard error {deviation:,.0f})"
    )


def choose_l1(asked: Settings, counts: Counts, **given: Any) -> tuple[Settings, Fit | None, str]:
    """Return settings with a penalty, a fit to start from (None: as asked), and why.

    Fits follow each other along a path of growing penalties. A penalty is measured by what the mean positive
    entry of a factor costs, in units of log-likelihood: so the path is the same for every c and noise. The
    largest one is taken that predicts held-out counts as well as the best, within a standard error, which
    differences between samples give. Fits without a penalty may end in a poor optimum, so that two splits of
    the counts have to allow it. From another start than a fit without, a penalty may predict worse.
    """
    tried, taken = [0.0], len(L1_PATH)
    for split in range(2):
        train, test, share, how = _held_out(counts, MOST_PENALISED, "l1", split, **given)
        fit = _unpenalised(asked, train, **how)
        others = fit.factors[:, 1:]
        if split == 0 and others.any():
            unit = 1.0 / float(others[others > 0.0].mean())
            tried += [float(f"{cost * unit:.2g}") for cost in L1_PATH]
        scores = [score_parts(fit.rates, train, test, test_fraction=TEST_FRACTION)]
        for penalty in tried[1 : taken + 1]:
            part = {**how, "init": fit, "random_state": 0}
            fit = _quick_fit(train, replace(asked, l1=penalty * share), part, **CONVERGED)
            scores.append(score_parts(fit.rates, train, test, test_fraction=TEST_FRACTION))
            gain, deviation = _gain(scores[-1], max(scores, key=np.sum))
            if gain < -2.0 * deviation:
                break
        best = max(scores, key=np.sum)
        near = [gain >= -deviation for gain, deviation in (_gain(score, best) for score in scores)]
        taken = max(number for number, is_near in enumerate(near) if is_near)
        if taken == 0:
            break
    gain, deviation = _gain(scores[taken], scores[0])
    why = (
        f"l1='auto' chose {tried[taken]:g}, of {', '.join(f'{one:g}' for one in tried)}: it changes the "
        f"log-likelihood of the held-out counts that chose it ({len(best):,} samples) by {gain:+,.0f} "
        f"(standard error {deviation:,.0f})"
    )
    settings = replace(asked, l1=tried[taken])
    if taken == 0 or asked.init == GIVEN:
        return settings, None, why
    return replace(settings, init=GIVEN, n_init=1), _unpenalised(asked, counts, **given), why


def _unpenalised(asked: Settings, counts: Counts, *, random_state: Random, **given: Any) -> Fit:
    """Return a fit without a penalty, with the random numbers with which the fit itself would begin."""
    init = Settings.init if asked.init == GIVEN else asked.init
    given["random_state"] = deepcopy(random_state)
    return _quick_fit(counts, asked, given, **CONVERGED, init=init, n_init=asked.n_init)


def _held_out(
    counts: Counts, most: float, what: str, seed: int = 0, *, size_factors: Array, batch: Any, **given: Any
) -> tuple[Counts, Counts, float, dict[str, Any]]:
    """Return training and test part of some samples, the former's share of all, and what to fit it with."""
    n_samples = max(FEWEST_SAMPLES, int(most / counts.n_features))
    part, which = counts.part_in_memory(n_samples if counts.n_samples > n_samples else None)
    try:
        train, test = split_counts(part.on_host(), TEST_FRACTION, random_state=np.random.default_rng(seed))
    except ValueError as error:
        raise ValueError(f"{what}='auto' holds out counts to choose: {error}; or set {what}") from error
    given["size_factors"] = (1.0 - TEST_FRACTION) * size_factors[which]
    given["batch"] = None if batch is None else np.asarray(batch, dtype=object)[which]
    return train, test, (1.0 - TEST_FRACTION) * len(which) / counts.n_samples, given


def _quick_fit(train: Counts, asked: Settings, given: dict[str, Any], **changed: Any) -> Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", convergence_warning())
        settings = replace(asked, **{**ENOUGH, **changed}, size_factors=GIVEN)
        return fit_counts(train, settings, **given, verbose=0)


def _gain(score: Array, other: Array) -> tuple[float, float]:
    """Return by how much one score is better, summed over samples, and the standard error of that."""
    gains = score - other
    return float(gains.sum()), float(gains.std(ddof=len(gains) > 1)) * math.sqrt(len(gains))


# ---------- the start that a user gave


def given_start(
    init: Any, problem: Problem, settings: Settings, random_state: Any, n_jobs: int | None
) -> tuple[Array, Array]:
    """Return the start that was given; other samples than those of a fit have their loadings for it."""
    if not isinstance(init, Fit):
        return check_start(init, problem.counts.shape, settings.n_components)
    fit, counts = init, problem.counts
    if counts.n_features != len(fit.factors):
        what = f"{len(fit.factors)} features, but the counts have {counts.n_features}"
    elif (
        fit.feature_names is not None
        and counts.feature_names is not None
        and not np.array_equal(fit.feature_names, counts.feature_names)
    ):
        j = int(np.argmax(fit.feature_names != counts.feature_names))
        was, now = fit.feature_names[j], counts.feature_names[j]
        what = f"other features (column {j} was {was!r}, now is {now!r})"
    else:
        before = None
        if counts.n_samples != len(fit.loadings):
            how: Any = {"engine": settings.engine, "n_jobs": n_jobs, "prior": 0.0}
            before = project(fit, counts, problem.size_factors, **how).loadings
        rng = as_random(random_state)
        return continued_start(fit, problem, settings.n_components, rng, loadings=before)
    raise ValueError(
        f"the fit to start from has {what}; pass the same features in the same order, or start without it"
    )


# ---------- from counts to a Fit

MOST_NAMED = 5  # features that a message about batches names

LEAST_DEVIANCE = 1e-9  # deviance per count below which it is rounding error

LARGEST_TOTAL = 1e9
"""Total count of a sample up to which rounding errors of its log-likelihood stay below 1e-6."""

POOR_APPROXIMATION = 0.02
"""Part of the log-likelihood by which the approximation may be off before a fit warns."""


class ApproximationWarning(UserWarning):
    """The quadratic approximation of zero counts is poor for this fit."""


@completed(SampleParameters)
def fit_log1p_nmf(
    counts: Any,
    n_components: int,
    *,
    c: float = 1.0,
    checkpoint: StrPath | None = None,
    resume: StrPath | None = None,
    **parameters: Unpack[SampleParameters],
) -> Fit:
    """Fit Poisson NMF with the shifted-log link.

    Parameters
    ----------
    counts : array, sparse matrix, data frame, Counts or source
        Samples x features; see `log1pnmf.counts.Counts.from_any`. Matrices of PyTorch and CuPy are copied to
        the memory of the host. Counts larger than memory: see `log1pnmf.open_counts`.
    n_components : int
        Number of factors, K.
    c : float
        Shift of the link: factors multiply at small c and add up at inf, which is standard Poisson NMF.
    resume : str or PathLike, optional
        Checkpoint to continue from. Counts and settings must be the same (`n_jobs` may differ). The result
        has the same bits as if the fit had never stopped, apart from the seconds. A checkpoint of a finished
        fit returns its result; a fit that a callback or Ctrl-C stopped is continued.
    **parameters : optional
        All other parameters as in `log1pnmf.Log1pNMF` and its `fit`, with the same defaults. Pass a `Fit` as
        `init` to continue it.

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

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> fit = fit_log1p_nmf(pancreas().counts[:100, :300], 3, c=1.0)
    >>> fit.loadings.shape, fit.factors.shape, fit.stopped
    ((100, 3), (300, 3), 'converged')
    """
    settings, given = checked(n_components=n_components, c=c, checkpoint=checkpoint, **parameters)
    return fit_counts(counts, settings, **given, resume=resume)


def fit_counts(
    counts: Any,
    settings: Settings,
    *,
    size_factors: Any = None,
    dispersion: Any = None,
    init: Any = None,
    l1: Any = None,
    batch: Any = None,
    fixed_loadings: Any = None,
    fixed_factors: Any = None,
    mask: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = None,
    verbose: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: StrPath | None = None,
    resume: StrPath | None = None,
) -> Fit:
    """Fit what is asked for: the one way in for all faces. `settings` and all others are as in `checked`."""
    started, rng, progress, keep = time.perf_counter(), as_random(random_state), None, None
    loaded = None if resume is None else load_checkpoint(resume)
    asked = settings if init is None else settings.having(init=GIVEN, n_init=1)
    data = as_counts(counts, asked.engine)
    check_enough(data, asked)
    batches = None if batch is None else _batches(batch, asked, data, init)
    parts, known = dict(zip(KNOWN, (fixed_loadings, fixed_factors, mask), strict=True)), None
    if any(part is not None for part in parts.values()):
        known = structure_of(data, asked, **parts)
    sizes = data.size_factors(asked.size_factors if size_factors is None else size_factors)
    chosen, choices = asked, list[str]()
    how: dict[str, Any] = {"size_factors": sizes, "batch": batch, "n_jobs": n_jobs}
    if asked.noise == "auto":
        chosen, why = choose_noise(asked, data, **how)
        choices.append(why)
    if l1 is not None:
        chosen, near, why = choose_l1(chosen, data, dispersion=dispersion, random_state=rng, **how)
        asked, init = asked.having(l1=chosen.l1), init if near is None else near
        choices.append(why)
    name = resolve_engine(asked.engine, data, asked.n_components, asked.row_solver)
    check_memory(name, data, asked.n_components, effective_threads(n_jobs))
    settings = chosen.resolved(name, data)
    problem = _problem(settings, data, sizes, batches, dispersion=dispersion, init=init)
    start = None if init is None else given_start(init, problem, asked, random_state, n_jobs)
    if loaded is not None or checkpoint is not None:
        identity = fingerprint(  # reads all counts
            settings,
            data,
            size_factors=[sizes],
            dispersion=[np.asarray(dispersion, dtype=np.float64)],
            init=start,
            batch=problem.batches and [problem.batches.labels],
            known=known and [known.loadings, known.factors, known.mask],
        )
        if loaded is not None:
            loaded.check_same(identity)
            progress, rng, started = loaded.progress, loaded.rng, started - loaded.seconds
        if checkpoint is not None:
            keep = CheckpointWriter(checkpoint, identity, rng, started)
    after = shown_after(verbose)
    find: Any = {"settings": chosen, "given": start, "known": known, "n_jobs": n_jobs, "after": after}
    runs = Runs(
        settings=settings,
        engine=make_engine(name, problem, n_jobs, row_solver=settings.row_solver, after=after),
        rng=rng,
        start=partial(find_start, **find),
        constraint=constraint_of(settings, known),
        callbacks=callbacks,
        after=after,
        keep=keep,
    )
    run, first = (None, 0) if progress is None else (progress.best, progress.restart)
    for number in range(first, settings.n_init):
        run = runs.follow(number, run, progress if number == first else None)
        if run.stopped in ("interrupted", "callback"):
            break
    assert run is not None
    if keep is not None:
        keep.close()
    last: dict[str, Any] = {"asked": chosen, "known": known, "n_jobs": n_jobs}
    try:
        fit = _finished(run, runs, **last)
    except KeyboardInterrupt:  # the fit is worth keeping without its last figures
        fit = _finished(replace(run, stopped="interrupted"), runs, **last)
    return replace(
        fit,
        asked=asked,
        batches=fit.batches or batches,
        messages=(*choices, *fit.messages),
        seconds=time.perf_counter() - started,
    )


def _problem(
    settings: Settings, counts: Counts, sizes: Array, batches: Batches | None, *, dispersion: Any, init: Any
) -> Problem:
    """Return the problem with which a fit begins; an earlier fit gives the parameters it has found."""
    before = init if isinstance(init, Fit) else None
    if dispersion is None and before is not None and len(before.factors) == counts.n_features:
        dispersion = before.dispersion
    if batches is not None and batches.n_batches == 1:
        batches = None  # a single batch is the same as no batch
    if batches is not None and (batches.effects == 1.0).all():
        batches = first_effects(batches, counts, sizes)
    noise: Noise = POISSON
    if settings.noise != "poisson":
        own = FIRST_DISPERSION if dispersion is None else dispersion
        noise = NegativeBinomial(one_for_each("dispersion", own, counts.n_features))
    prior = SizePrior(np.full(len(sizes), sizes.mean()), WEIGHT) if settings.fits_sizes else None
    if prior is not None and before is not None and before.size_factors.shape == sizes.shape:
        sizes = before.size_factors
    return Problem(counts, sizes, settings.link, settings.zeros, noise, batches, prior)


def _batches(batch: Any, asked: Settings, counts: Counts, init: Any) -> Batches:
    """Return the batches with which a fit begins; their effects are those of an earlier fit, or 1."""
    own = Batches.of(batch, counts.shape, by_counts=asked.size_factors == "total")
    known = init.batches if isinstance(init, Fit) else None
    if known is not None and known.names == own.names and known.effects.shape == own.effects.shape:
        return replace(own, effects=known.effects)
    return own


def check_enough(counts: Counts, asked: Settings) -> None:
    """Refuse counts that cannot be fitted, and warn where there are too few of them for the factors."""
    if counts.nnz == 0:
        raise ValueError(f"counts are all zero (shape {counts.shape}): pass data with at least one count")
    if (largest := float(counts.row_sums.max())) > LARGEST_TOTAL:
        raise ValueError(
            f"a sample must not have more than {LARGEST_TOTAL:.0e} counts in all, got {largest:.3g}, whose "
            "log-likelihood would lose digits; leave it out, or divide all counts by the same number"
        )
    if asked.fits_sizes and not counts.in_memory:
        raise ValueError(
            "size_factors='fit' needs counts in memory, but these are in chunks; load them, or use "
            "size_factors='total'"
        )
    if min(counts.shape) < asked.n_components:
        warn(
            f"n_components={asked.n_components} is larger than the number of samples or features (shape "
            f"{counts.shape}), which cannot determine so many; use at most {min(counts.shape)}",
            UserWarning,
        )


def _finished(run: Run, runs: Runs, *, asked: Settings, known: Structure | None, n_jobs: int | None) -> Fit:
    """Return the fit of a run with messages, KKT residual and certificate; warn if it has not converged."""
    settings, last = runs.settings, run.last
    engine = runs.engine.with_problem(problem_at(runs.engine.problem, last))
    problem, fit = engine.problem, run.as_fit(settings, engine.problem, known=known)
    messages = _about_data(problem.counts) + ([] if engine.note is None else [engine.note])
    if run.start != settings.init:
        messages.append(f"init={settings.init!r} chose the start {run.start!r}")
    if fit.stopped != "interrupted":
        residual = residual_at(engine, last.loadings, last.factors, constraint=runs.constraint)
        fit = replace(fit, kkt_residual=residual)
    if fit.stopped == "interrupted":
        messages.append(f"interrupted after {last.index} iterations: the fit has not converged")
        warn(f"{messages[-1]}; the result is the state at that point", RuntimeWarning)
    elif fit.stopped == "callback":
        messages.append(f"stopped by a callback after {last.index} iterations")
    elif fit.stopped != "converged":
        messages.append(f"not converged {_why_not(fit, last)}")
        warn(messages[-1], convergence_warning())
    messages += _about_zeros(asked, settings, run, problem)
    if problem.batches is not None and fit.stopped != "interrupted":
        messages.append(_about_batches(problem, problem.batches, last))
    if settings.size_factors == "fit" and not settings.fits_sizes:
        messages.append(
            "size factors are the totals: at c=inf the loadings absorb any size, so there is nothing to fit"
        )
    about_sizes = note_on_sizes(fit, problem.counts) if settings.fits_sizes else None
    messages += [] if about_sizes is None else [about_sizes]
    if fit.certificate is None:
        fit = replace(fit, certificate=_certificate(fit, problem.counts, n_jobs, messages))
    return replace(fit, messages=tuple(messages))


def _why_not(fit: Fit, last: Iteration) -> str:
    """Describe why a fit that ran to its end has not converged, and what to do."""
    change, tol = last.relative_change, fit.settings.tol
    if fit.stopped == "stalled":
        return (
            f"after {last.index} iterations: no step lowers the objective any more, but this is not an "
            f"optimum (KKT residual {fit.kkt_residual:.1e}; at most {STATIONARY:.0e} at one). Counts or size "
            "factors may differ by too many orders of magnitude: rescale or drop the extreme ones, or try "
            "another init"
        )
    after = f"after max_iter={fit.settings.max_iter} iterations"
    advice = "raise max_iter, or continue from here with init=fit"
    if change > tol:
        return (
            f"{after}: the last one still lowered the objective by {change:.1e} of its size (tol={tol:.1e}); "
            f"{advice}"
        )
    if not last.kkt_residual <= largest_residual(tol):
        return (
            f"{after}: the last one gained less than tol={tol:.1e}, but this is a plateau and not an optimum "
            f"(KKT residual {last.kkt_residual:.1e}; at most {largest_residual(tol):.0e} at one); "
            "raise max_iter"
        )
    return (
        f"{after}: too few of the last ones in a row lowered the objective by less than tol={tol:.1e} of its "
        f"size ({PATIENCE} are needed, and one after a dropped extrapolation does not count); {advice}"
    )


def _certificate(fit: Fit, counts: Counts, n_jobs: int | None, messages: list[str]) -> Certificate | None:
    """Exact log-likelihood of an approximate fit, unless that takes too long."""
    entries = math.prod(counts.shape)
    if fit.stopped == "interrupted":
        messages.append("the exact log-likelihood was not computed because the fit was interrupted")
        return None
    if entries > LARGEST_EXACT:
        messages.append(
            f"the exact log-likelihood was not computed: it evaluates all {entries:,} entries "
            f"(computed up to {LARGEST_EXACT:,.0f})"
        )
        return None
    engine = make_engine(fit.settings.engine, fit.problem(counts), n_jobs)
    exact = -engine.loss(fit.loadings, fit.factors / fit.link.alpha)
    certificate = Certificate(exact, fit.approximate_log_likelihood)
    gap = certificate.gap
    messages.append(f"the approximate log-likelihood differs from the exact one by {gap:,.0f}")
    if abs(gap) > POOR_APPROXIMATION * abs(exact) and abs(gap) > 1.0:
        share = f" ({abs(gap / exact):.0%})" if exact else ""
        messages[-1] += (
            f"{share}: zero counts have large fitted means here; use likelihood='adaptive' (or 'exact')"
        )
        warn(messages[-1], ApproximationWarning)
    return certificate


def _about_zeros(asked: Settings, settings: Settings, run: Run, problem: Problem) -> list[str]:
    """Describe how zero counts were treated, and why, unless that was asked for."""
    if (settings.link.is_identity and settings.noise == "poisson") or run.errors is None:
        return []
    if settings.likelihood == "exact" and asked.likelihood == "auto":
        return [f"every zero count was evaluated: {settings.why_exact(problem.counts)}"]
    if settings.likelihood != "adaptive" and run.last.likelihood != "adaptive":  # it was stopped on its way
        return []
    zeros = run.last.zeros
    if zeros is None:
        message = (
            f"every zero count was evaluated: to keep their errors within zeros_tol={settings.zeros_tol:g}, "
            f"more than {LARGEST_STORED:.0%} of all entries would have to be, which costs as much"
        )
        if asked.likelihood == "adaptive":
            warn(f"{message}; raise zeros_tol, or use likelihood='exact'", ApproximationWarning)
        return [message]
    share = run.errors[1] / abs(run.last.loss) if run.last.loss else 0.0
    visited = f"{zeros.stored.nnz:,}" if problem.counts.in_memory else "some"
    return [
        f"{visited} zero counts were evaluated one by one; a quadratic per feature approximates the others, "
        f"with errors that sum to {share:.1e} of the log-likelihood (zeros_tol={settings.zeros_tol:g})"
    ]


def _about_batches(problem: Problem, batches: Batches, last: Iteration) -> str:
    """Describe how much of the deviance the effects of batches take, and where they are largest."""
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
        taken = f"without their effects, the factors being the same, the deviance would be {share:.1%} larger"
    return f"{batches.n_batches} batches: {taken}; features that differ most: {listed}"


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
    for n, what in zip(counts.n_empty, ("samples", "features"), strict=True):
        if n:
            messages.append(f"{what} without any count: {n}; they were given zeros")
    return messages
