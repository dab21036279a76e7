"""Three fits of one data set: faithful to the paper, converged, and sparse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis import select
from log1pnmf.analysis.heldout import heldout_log_likelihood
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts, training_size_factors
from log1pnmf.fitting.fit import Fit
from studies.paper.study import Fits, best, last_gain

TEST_FRACTION = 0.1
SPARSE_TOL = 1e-7
FORMS = ("faithful", "converged", "sparse")


@dataclass(frozen=True, eq=False)
class Case:
    """One data set and model, fitted as a whole and with a part of every count held out.

    Parameters
    ----------
    fits : Fits
    counts : Counts
    n_components : int
    c : float
    faithful : callable
        The paper's fit of given counts with given size factors.
    likelihood : str
        Of the converged and the sparse fits.
    tol : float
        Of the converged fits; with a penalty at least 1e-7.
    baseline : callable, optional
        Which column of a fit is to be the one without a penalty; by default the most even one.
    rank_one_only : bool
        Whether sparse fits begin at rank-one starts only.
    """

    fits: Fits
    counts: Counts
    n_components: int
    c: float
    faithful: Callable[..., Fit]
    likelihood: str = "exact"
    tol: float = 1e-8
    baseline: Callable[[Fit], int] | None = None
    rank_one_only: bool = False

    @cached_property
    def split(self) -> tuple[Counts, Counts]:
        """Training and test part of every count."""
        return split_counts(self.counts, TEST_FRACTION, random_state=0)

    def of(self, part: str) -> tuple[Counts, Any]:
        """Counts and size factors of the whole data or of its training part."""
        if part == "whole":
            return self.counts, "total"
        train, _ = self.split
        return train, training_size_factors(train, TEST_FRACTION)

    def fit_faithful(self, part: str, seed: int) -> Fit:
        """Fit as the paper does."""
        counts, sizes = self.of(part)
        return self.fits.get(
            lambda: self.faithful(counts, size_factors=sizes, seed=seed),
            form="faithful",
            part=part,
            c=self.c,
            seed=seed,
        )

    def fit_converged(self, part: str, seeds: Sequence[int]) -> list[Fit]:
        """Fit to convergence, one for each seed."""
        return [self._fit(part, form="converged", seed=seed) for seed in seeds]

    def fit_sparse(self, part: str, l1: float, seeds: Sequence[int]) -> list[Fit]:
        """Fit with a penalty: from rank-one starts, and from the best converged fit of the same counts."""
        fits = [self._fit(part, form="sparse", l1=l1, seed=seed) for seed in seeds]
        if self.rank_one_only:
            return fits
        start = self._as_start(best(self.fit_converged(part, seeds)))
        return [*fits, self._fit(part, form="sparse", l1=l1, seed=seeds[0], start=start)]

    def _fit(
        self,
        part: str,
        *,
        form: str,
        seed: int,
        l1: float = 0.0,
        start: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Fit:
        counts, sizes = self.of(part)
        share = 1.0 if part == "whole" else 1.0 - TEST_FRACTION

        def make() -> Fit:
            return fit_log1p_nmf(
                counts,
                self.n_components,
                c=self.c,
                likelihood=self.likelihood,
                size_factors=sizes,
                init="rank1" if start is None else start,
                l1=l1 * share,
                tol=max(self.tol, SPARSE_TOL) if l1 else self.tol,
                n_jobs=self.fits.options.jobs,
                max_iter=self.fits.options.pick(1000, 10),
                random_state=seed,
            )

        named = {} if start is None else {"start": "converged"}
        penalty = {"l1": l1} if l1 else {}
        return self.fits.get(make, form=form, part=part, c=self.c, **penalty, seed=seed, **named)

    def _as_start(self, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
        """Give a fit as the start of a penalised one: loadings of at most 1, the baseline first."""
        first = 0 if self.baseline is None else self.baseline(fit)
        order = [first, *(k for k in range(self.n_components) if k != first)]
        return fit.loadings[:, order], fit.factors[:, order]

    def heldout(self, fit: Fit) -> np.ndarray:
        """Log-likelihood of the held-out counts, sample by sample, under a fit to the training part."""
        return heldout_log_likelihood(fit, *self.split, test_fraction=TEST_FRACTION)


# ---------------------------------------------------------------- choice of the penalty


@dataclass(frozen=True, eq=False)
class Choice:
    """Penalties tried on the training part, and the one chosen.

    Parameters
    ----------
    rows : list of dict
        One for each penalty, 0 first.
    best, chosen : float
        Penalty with the highest held-out log-likelihood; the largest one that is not significantly worse.
    fits : mapping of float to Fit
        Fits to the training part, by penalty; empty where there are several training parts.
    """

    rows: list[dict[str, Any]]
    best: float
    chosen: float
    fits: Mapping[float, Fit]

    def shown(self, faithful: np.ndarray) -> tuple[float, str]:
        """Penalty of the sparse fit that is shown, and why: the chosen one, if there is one.

        Otherwise the largest that predicts held-out counts no worse than the paper's own fit (`faithful`,
        sample by sample); the smallest, if none does.
        """
        if self.chosen:
            return self.chosen, f"The sparse fit has the chosen penalty, l1 = {self.chosen:g}."
        scores = {row["l1"]: row["held-out log-likelihood"] for row in self.rows if row["l1"] > 0}
        near = [l1 for l1, score in scores.items() if score >= float(faithful.sum())]
        if not near:
            least = min(scores)
            return least, f"The sparse fit has the smallest penalty that was tried, l1 = {least:g}."
        return max(near), (
            f"The sparse fit has l1 = {max(near):g}, the largest penalty that predicts held-out counts no "
            "worse than the faithful fit."
        )

    def __str__(self) -> str:
        text = f"the held-out log-likelihood is highest at l1 = {self.best:g}"
        if not self.chosen:
            return f"{text}. Every penalty that was tried is more than one standard error below it."
        return f"{text}; l1 = {self.chosen:g} is the largest penalty within one standard error of it."


def choose_l1(case: Case, penalties: Sequence[float], seeds: Sequence[int]) -> Choice:
    """Choose a penalty on held-out counts, by the rule of one standard error.

    Of several starts that with the lowest objective counts. The largest penalty is chosen whose held-out
    log-likelihood is within one standard error (of the difference, over samples) of the best one.
    """
    fits = {0.0: best(case.fit_converged("train", seeds))}
    for l1 in penalties:
        fits[l1] = best(case.fit_sparse("train", l1, seeds))
    scores = {l1: case.heldout(fit) for l1, fit in fits.items()}
    top = max(scores, key=lambda l1: float(scores[l1].sum()))
    rows = []
    chosen = top
    for l1, fit in fits.items():
        behind = scores[top] - scores[l1]
        error = float(behind.std(ddof=1) * math.sqrt(len(behind))) if l1 != top else 0.0
        if l1 > chosen and float(behind.sum()) <= error:
            chosen = l1
        rows.append(
            {
                "l1": l1,
                "training log-likelihood": float(fit.log_likelihood or math.nan),
                "held-out log-likelihood": float(scores[l1].sum()),
                "behind the best": float(behind.sum()),
                "standard error": error,
                "zeros in the factors": float((fit.factors[:, 1:] <= 0.0).mean()),
                "iterations": fit.n_iter,
                "converged": fit.converged,
            }
        )
    return Choice(rows, top, chosen, fits)


def choose_l1_by_samples(case: Case, penalties: Sequence[float]) -> Choice:
    """Choose a penalty on held-out samples, by the rule of one standard error.

    Counts that vary more than Poisson counts do, as replicates of an experiment, share the excess between the
    two parts of a split count; samples that were held out do not (docs/how-to/choosing.md).
    """
    options = case.fits.options
    folder = options.fits / "selections"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.fits.folder.name}_c={case.c:g}_{len(penalties)}.npz"
    if options.fresh:
        path.unlink(missing_ok=True)
    found = select(
        case.counts,
        case.n_components,
        case.c,
        l1=[0.0, *penalties],
        noise="poisson",
        holdout="samples",
        n_folds=options.pick(3, 2),
        n_seeds=0,
        likelihood=case.likelihood,
        tol=1e-6,
        max_iter=options.pick(300, 10),
        random_state=0,
        n_jobs=options.jobs,
        resume=path,
    )
    summary = found.summary
    order = np.argsort(summary["l1"])
    names = {
        "l1": "l1",
        "log_likelihood": "held-out log-likelihood",
        "difference": "difference to the best",
        "se_difference": "standard error",
    }
    rows = [{name: float(summary[key][i]) for key, name in names.items()} for i in order]
    return Choice(rows, found.best.l1, found.one_se.l1, {})


# ---------------------------------------------------------------- tables


def describe(name: str, fit: Fit, heldout: np.ndarray | None, fits: Fits) -> dict[str, Any]:
    """Row of the table of forms."""
    return {
        "fit": name,
        "log-likelihood": float(fit.log_likelihood or math.nan),
        "held-out log-likelihood": math.nan if heldout is None else float(heldout.sum()),
        "iterations": fit.n_iter,
        "converged": fit.converged,
        "gain of the last iteration": last_gain(fit),
        "KKT residual": fit.kkt_residual,
        "CPU seconds": fits.cost(fit).cpu_seconds,
    }
