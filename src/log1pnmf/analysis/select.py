"""Selection of c, K, penalty and noise: fits of a grid to folds of the counts, in parallel, resumable."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from log1pnmf._common import checks
from log1pnmf._common.archive import StrPath, check_writable
from log1pnmf._common.checks import OnStep, Seed, convergence_warning, quiet, shown, warn
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import check_fraction
from log1pnmf.engines.native import effective_threads
from log1pnmf.engines.registry import ENGINES, resolve_engine
from log1pnmf.fitting.checkpoint import fingerprint
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import (
    KNOWN,
    FoldParameters,
    check_enough,
    checked,
    choose_noise,
    completed,
    fit_counts,
)
from log1pnmf.fitting.settings import INITS, NoiseKind, Settings
from log1pnmf.fitting.summary import note_on_sizes
from log1pnmf.model.batches import Batches

from .grid import HOLDOUTS, Fitter, Grid, Holdout, Job, Part, ScoredFit, Setting, make_folds
from .selection import Done, Selection, in_every_fold, next_numbers, read_done, write_done
from .stability import agreement

if TYPE_CHECKING:
    from typing_extensions import Unpack

NOT_FOR_SELECTION = ("checkpoint", "callbacks", "n_init", *KNOWN)

N_FOLDS = 3  # how often counts or samples are held out, by default
N_SEEDS = 3  # fits of a setting to all counts, by default: their agreement is the setting's stability
MAX_SAMPLES = 2000  # samples to fit at most, by default
ENOUGH: FoldParameters = {"init": "nndsvd", "tol": 1e-5, "max_iter": 100, "engine": "auto"}  # by default

MOST_CHECKED, FEWEST_CHECKED = 5e5, 200  # entries, and samples at least, to check totals as size factors with

CHECK: dict[str, Any] = {"init": "nndsvd", "max_iter": 60, "tol": 1e-6, "engine": "auto"}
CHECK |= {"size_factors": "fit", "likelihood": "auto", "row_solver": "newton"}


class SelectOptions(FoldParameters, total=False):
    """Options of `select`, for type checkers."""

    l1: float | Iterable[float]
    noise: NoiseKind | Iterable[NoiseKind]
    holdout: Holdout
    n_folds: int
    test_fraction: float
    n_starts: int
    n_seeds: int
    max_samples: int | None
    n_jobs: int | None
    verbose: int | None
    resume: StrPath | None
    on_fit: OnStep | None


@completed(FoldParameters, **ENOUGH)
def select(
    counts: Any,
    n_components: int | Iterable[int],
    c: float | Iterable[float] = 1.0,
    *,
    l1: float | Iterable[float] = 0.0,
    noise: NoiseKind | Iterable[NoiseKind] = "auto",
    holdout: Holdout = "counts",
    n_folds: int = N_FOLDS,
    test_fraction: float = 0.2,
    n_starts: int = 1,
    n_seeds: int = N_SEEDS,
    max_samples: int | None = MAX_SAMPLES,
    random_state: Seed = 0,
    batch: Any = None,
    n_jobs: int | None = None,
    verbose: int | None = None,
    resume: StrPath | None = None,
    on_fit: OnStep | None = None,
    **parameters: Unpack[FoldParameters],
) -> Selection:
    """Choose c, K and the penalty by held-out log-likelihood, and by stability over seeds.

    Parameters
    ----------
    counts : array, sparse matrix, data frame or Counts
        Whole numbers, samples x features.
    n_components : int or sequence of int
        Numbers of factors to choose from. They are tried from the smallest on, until two in a row predict
        worse than the best by more than two standard errors. Of more than six values, such as
        ``range(2, 31)``, every step first doubles the number; then the gaps around the best are halved.
    c, l1 : number or sequence of numbers
        All combinations are compared, for every number of factors that is tried.
    noise : {"auto", "poisson", "nb"} or sequence of them
        "auto" chooses one as a fit does, for the largest number of factors; of several, each is compared with
        every combination. Poisson noise leads to too many factors and a too small c where counts vary more.
    holdout : {"counts", "samples"}
        "counts" holds out a share of all counts (`log1pnmf.counts.folds`) and fits all samples. "samples"
        holds out ``1 / n_folds`` of the samples: their loadings come from some of their features, and the
        others are scored. Use it if counts vary more than Poisson counts (see Notes).
    n_folds : int
        Number of folds.
    test_fraction : float
        Share of the counts to score, at most ``1 / n_folds``; with "samples", share of the features.
    n_starts : int
        Number of starts of every fit. The first continues from a neighbouring setting (fewer factors at
        the largest c; then the next larger c; then the next larger penalty), the others use `init`. The fit
        with the best training objective is kept.
    n_seeds : int
        Number of fits to all counts, from random starts, of the settings that may be chosen: the best, the
        simplest within one standard error, and the next smaller number of factors; all of them where the
        best is the largest number. The mean similarity of matched factors is the stability. 0 skips this.
    max_samples : int, optional
        Number of random samples to fit at most, the same ones every time; None uses all. Factors that are
        rare in them are not found.
    batch : array of shape (n_samples,), optional
        Batch of every sample; the training part of each fold estimates the effects of batches.
    n_jobs : int, optional
        Number of fits that run at the same time, each with one thread; None and -1 use all cores. The result
        does not depend on it.
    resume : str or PathLike, optional
        File that keeps what is done, written after every fit. If it exists, the call continues from it, and
        the result is the same as without the interruption. Counts and settings must be the same.
    on_fit : callable, optional
        Called after every fit, with the number of finished fits and of those planned so far.
    **parameters : optional
        Other parameters as in `log1pnmf.Log1pNMF`. Those of the start and the end of a fit have other
        defaults, which are enough to compare fits. Scores are always exact.

    Warns
    -----
    ConvergenceWarning
        If fits reached `max_iter` before they converged; the message has their number.
    RuntimeWarning
        If Ctrl-C was pressed; the result then has the settings that were fitted in every fold.

    Notes
    -----
    c and the penalty mean the same as in a fit to all counts (`log1pnmf.counts.training_size_factors`).

    If factors change the totals of samples and totals are the size factors, a small c and further factors
    seem better than they are. The judgement then has a warning.

    The two parts of a count are independent only if counts are Poisson. If counts vary more, too many factors
    seem useful with ``holdout="counts"`` and Poisson noise; with ``holdout="samples"`` they do only if the
    excess of one feature predicts that of another.

    See Also
    --------
    log1pnmf.pl.select : Draw the result.
    log1pnmf.analysis.evidence : Test each factor of one fit.
    log1pnmf.analysis.heldout_score : A scorer for GridSearchCV.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:150, :300]
    >>> found = select(counts, [1, 3], [0.1, 1, float("inf")], n_folds=2, n_seeds=0)
    >>> found.best.n_components, len(found.settings)
    (3, 6)
    >>> found.one_se.parameters["n_components"]  # Log1pNMF(**found.one_se.parameters).fit(counts)
    3
    """
    grid = Grid.of(c, n_components, l1, noise)
    checks.check_choice("holdout", holdout, HOLDOUTS)
    checks.check_whole("n_folds", n_folds, least=1 if holdout == "counts" else 2)
    for name, number, least in (("n_starts", n_starts, 1), ("n_seeds", n_seeds, 0)):
        checks.check_whole(name, number, least=least)
    if max_samples is not None:
        checks.check_whole("max_samples", max_samples, least=2)
    if n_seeds == 1:
        raise ValueError("n_seeds must be 0 or at least 2, got 1: fits are compared with each other")
    checks.check_absent(parameters, NOT_FOR_SELECTION, "the fits of a selection")
    parameters = {**ENOUGH, **parameters}
    checks.check_choice("init", parameters["init"], INITS)  # every fold needs a start of its own
    checks.check_choice("engine", parameters["engine"], ENGINES)
    everything = Counts.from_any(counts)
    data, rows = everything.part_in_memory(max_samples)
    first = {"n_components": grid.n_components[0], "c": grid.c[0], "l1": grid.l1[0], "noise": grid.noise[-1]}
    seed = checks.new_seed(checks.as_random(random_state))
    settings, given = checked(**parameters, **first, random_state=seed, batch=batch)
    check_enough(data, settings)
    if "dispersion" in given:
        raise ValueError("dispersion must be 'feature' or 'shared' here: every fold finds its own")
    batches = None
    if batch is not None:
        totals = settings.size_factors == "total"
        batches = Batches.of(batch, everything.shape, by_counts=totals).of_samples(rows)
        batches = batches if batches.n_batches > 1 else None  # one is none
    settings = replace(settings, engine=resolve_engine(settings.engine, data, max(grid.n_components)))
    sizes = given.get("size_factors", settings.size_factors)
    sizes = sizes if isinstance(sizes, str) else everything.size_factors(sizes)[rows]
    batch, notes = None if batches is None else batches.sample_names, list[str]()
    if "auto" in ([noise] if isinstance(noise, str) else noise):
        own = {"size_factors": data.size_factors(sizes), "batch": batch, "n_jobs": n_jobs}
        grid, notes = _chosen(grid, settings, data, **own)
    arrays = {"size_factors": [data.size_factors(sizes)], "batch": batches and [batches.labels]}
    how: dict[str, Any] = {"holdout": holdout, "test_fraction": check_fraction(test_fraction)}
    about = fingerprint(settings, data, **arrays) | how | {"seed": seed}
    about |= {"grid": {name: list(values) for name, values in asdict(grid).items()}, "n_folds": int(n_folds)}
    about |= {"n_starts": int(n_starts), "n_seeds": int(n_seeds), "n_samples": everything.n_samples}
    done = _resumed(resume, about, keeps_seed=random_state is None)
    seed, interrupted = done.about["seed"], threading.Event()
    # filters of warnings belong to the whole process: set once here, and not by the threads
    with shown(verbose, "select", on_step=on_fit) as show, quiet(), threadpool_limits(1, "blas"):
        parts = make_folds(data, n_folds, **how, size_factors=sizes, seed=seed, batch=batch)
        parts.append(Part(n_folds, data, data.size_factors(sizes), batch))
        fitters = [Fitter(part, grid, settings, seed, n_starts, interrupted.is_set) for part in parts]
        finished = _run(done, fitters, effective_threads(n_jobs), interrupted, path=resume, on_fit=show)
    selection = _selection(done, grid, finished)
    if isinstance(sizes, str) and sizes == "total" and finished:
        note = _note_on_sizes(data, settings, grid, selection.best)
        note = _note_on_totals(done, fitters[0], selection.best) if note is None else note
        notes += [] if note is None else [note]
    return replace(selection, about={**selection.about, "notes": notes})


def _chosen(grid: Grid, settings: Settings, data: Counts, **given: Any) -> tuple[Grid, list[str]]:
    # fewer factors, a larger penalty or a wrong c would leave structure to the noise: Poisson if any c allows
    most = replace(settings, n_components=grid.n_components[-1], l1=grid.l1[-1])
    for c in grid.c:
        chosen, why = choose_noise(replace(most, c=c), data, **given)
        if chosen.noise == "poisson":
            break
    return replace(grid, noise=(chosen.noise,)), [f"{why}."]


def _selection(done: Done, grid: Grid, finished: bool) -> Selection:
    """Return the result, with warnings about what is missing or has not converged."""
    n_folds, total = done.about["n_folds"], len(done.records)  # those with other seeds are not counted
    if not finished:
        if not in_every_fold(grid, done.records, n_folds):
            raise KeyboardInterrupt
        left_out = "settings that were not fitted in every fold are left out"
        warn(f"interrupted after {total} of at most {len(grid) * n_folds} fits: {left_out}", RuntimeWarning)
    selection = Selection.of(grid, done.records, done.about, done.agreements)
    missed = int(np.count_nonzero(~selection.numbers["converged"]))
    if missed:
        warn(f"{missed} of {total} fits have not converged; raise max_iter", convergence_warning())
    return selection


def _note_on_sizes(data: Counts, settings: Settings, grid: Grid, best: Setting) -> str | None:
    """Return a note where values of c were compared by totals as sizes, and factors change totals."""
    shifts = [c for c in grid.c if math.isfinite(c)]
    if len(shifts) < 2:
        return None
    part, _ = data.part_in_memory(max(FEWEST_CHECKED, int(MOST_CHECKED / data.n_features)))
    own = {**best.parameters, "c": min(best.c, shifts[0])}
    settings = replace(settings.with_noise(best.noise), **own, **CHECK)
    with quiet():
        note = note_on_sizes(fit_counts(part, settings, n_jobs=1, verbose=0), part)
    return None if note is None else f"{note[0].upper()}{note[1:]}."


def _note_on_totals(done: Done, fold: Fitter, best: Setting) -> str | None:
    """Return a note where held-out counts of a fold are predicted better without size factors."""
    if len(fold.grid.n_components) == 1 or done.about["holdout"] != "counts":
        return None
    sizes = fold.part.size_factors
    equal = replace(fold.part, size_factors=np.full_like(sizes, sizes.mean()))
    with quiet():
        without = replace(fold, part=equal).scored(best, None)[1].by_sample
    own = next(one for one in done.records if (one.fold, one.setting) == (fold.part.number, best))
    gain = without - own.by_sample
    error = gain.std() * math.sqrt(len(gain))
    if gain.sum() <= error:
        return None
    return (
        "Totals are poor size factors here: without size factors this model predicts held-out counts better, "
        f"by {gain.sum():,.0f} (standard error {error:,.0f}), and further factors make up for wrong sizes. "
        "Choose K with size_factors='none', or give the depth of the samples if it is known."
    )


def _resumed(path: StrPath | None, about: dict[str, Any], *, keeps_seed: bool) -> Done:
    """Read what is done, where there is a file; refuse one that is about something else."""
    if path is None or not os.path.exists(path):
        if path is not None:
            check_writable(path, "resume")
        return Done([], {}, {}, about)
    done = read_done(path)
    here = dict(about)
    if keeps_seed:  # no seed was asked for: go on with the one of the file
        here["seed"] = done.about["seed"]
        here["settings"] = {**here["settings"], "random_state": done.about["settings"]["random_state"]}
    different = [name for name, value in here.items() if done.about.get(name) != value]
    if different:
        raise ValueError(
            f"resume: {os.fspath(path)} is of another selection: {', '.join(different)} differ. Pass the "
            "same counts and options, or another file"
        )
    return done


def _run(
    done: Done,
    fitters: Sequence[Fitter],
    n_jobs: int,
    interrupted: threading.Event,
    *,
    path: StrPath | None,
    on_fit: OnStep,
) -> bool:
    """Do what is left, each fit when the one that it starts from is done; return whether all is done."""
    *folds, whole = fitters
    grid = whole.grid

    def lasts(job: Job) -> bool:  # factors may be added to it, or it is compared with other seeds
        return grid.before(job.setting, ()) is None or job.part == len(folds)

    def work(job: Job, start: Fit | None) -> tuple[Fit, ScoredFit | None]:
        if job.part == len(folds):
            return whole.from_seed(job.setting, job.seed), None
        return folds[job.part].scored(job.setting, start)

    n_done, running = 0, dict[Future[tuple[Fit, ScoredFit | None]], Job]()
    with ThreadPoolExecutor(n_jobs) as pool:
        try:
            for left in _rounds(done, grid):
                waiting = list(left)
                while left:
                    starts = {None: None} | done.fits
                    ready = [job for job in waiting if left[job] in starts]
                    for job in ready[: n_jobs - len(running)]:
                        waiting.remove(job)
                        running[pool.submit(work, job, starts[left[job]])] = job
                    if not running:
                        raise ValueError("resume: the file lacks fits that others start from; start again")
                    for future in wait(running, return_when=FIRST_COMPLETED)[0]:
                        job, n_done = running.pop(future), n_done + 1
                        del left[job]
                        kept = {*left.values(), *filter(lasts, (job, *done.fits))}
                        _keep(done, job, *future.result(), kept=kept)
                        if path is not None:
                            write_done(path, done)
                        on_fit(n_done, n_done + len(left))
        except BaseException as error:
            interrupted.set()
            pool.shutdown(cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
            return False
    return True


def _rounds(done: Done, grid: Grid) -> Iterator[dict[Job, Job | None]]:
    """Yield fits that are left, with those that they start from; the next round depends on their scores."""
    parts, n_seeds = range(done.about["n_folds"]), done.about["n_seeds"]
    tried, found = tuple[int, ...](), None
    while numbers := next_numbers(grid, None if found is None else found.summary):
        scored = {Job(record.fold, record.setting) for record in done.records}
        new = [Job(part, one) for one in replace(grid, n_components=tuple(numbers)) for part in parts]
        starts = {job: grid.before(job.setting, tried) for job in new if job not in scored}
        yield {job: None if one is None else Job(job.part, one) for job, one in starts.items()}
        tried = tuple(sorted((*tried, *numbers)))
        found = Selection.of(replace(grid, n_components=tried), done.records, done.about)
    assert found is not None  # there is a first number
    settings = [one for one in found.to_compare if one not in done.agreements]
    seeds = [Job(len(parts), setting, seed) for setting in settings[::-1] for seed in range(n_seeds)]
    yield {job: None for job in seeds if job not in done.fits}


def _keep(done: Done, job: Job, fit: Fit, record: ScoredFit | None, *, kept: set[Job | None]) -> None:
    """Take in a fit, and forget those that no other fit starts from or is compared with any more."""
    done.fits[job] = fit
    if record is not None:
        done.records.append(record)
    else:
        seeds = [job._replace(seed=seed) for seed in range(done.about["n_seeds"])]
        if all(one in done.fits for one in seeds):
            done.agreements[job.setting] = agreement([done.fits.pop(one) for one in seeds])
    done.fits = {one: fit for one, fit in done.fits.items() if one in kept}
