"""``noise="auto"``: which noise the counts prefer, and why."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import numpy as np

from log1pnmf._common.warn import convergence_warning
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts
from log1pnmf.model.dispersion import DispersionKind, renewed
from log1pnmf.model.prediction import Rates, score_parts

from .fit import Fit
from .request import Request
from .settings import GIVEN

__all__ = ["NoiseChoice", "choose_noise"]

TEST_FRACTION = 0.2
"""Share of the counts that is scored."""

MOST_ENTRIES, FEWEST_SAMPLES = 1e6, 200
"""Entries from which only some of the samples are looked at, and how many of these at least."""

ENOUGH: dict[str, Any] = {"init": "nndsvd", "max_iter": 50, "tol": 1e-6, "n_init": 1, "engine": "auto"}
"""Of the fit whose means both kinds of noise are given."""


@dataclass(frozen=True)
class NoiseChoice:
    """Which of two kinds of noise predicts held-out counts better.

    Parameters
    ----------
    gain : float
        Held-out log-likelihood with negative binomial noise minus that with Poisson noise.
    error : float
        Its standard error over samples.
    n_samples : int
        Samples that were looked at.
    """

    gain: float
    error: float
    n_samples: int

    @property
    def noise(self) -> str:
        """Poisson, the simpler one, unless the other is better by more than one standard error."""
        return "nb" if self.gain > self.error else "poisson"

    def __str__(self) -> str:
        name = {"nb": "negative binomial", "poisson": "Poisson"}[self.noise]
        if self.gain < 0.0:
            why = f"negative binomial noise predicts them worse by {-self.gain:,.0f}"
        else:
            why = f"negative binomial noise predicts them better by {self.gain:,.0f}"
        return (
            f"noise='auto' took {name} noise: held-out counts of {self.n_samples:,} samples were scored, and "
            f"{why} units of log-likelihood (standard error {self.error:,.0f})"
        )


def choose_noise(request: Request, counts: Counts, fit: Callable[[Request, Counts], Fit]) -> NoiseChoice:
    """Score held-out counts with both kinds of noise around the same means.

    A share of the counts is held out. The rest is fitted with Poisson noise for a few iterations, which gives
    the means, and the dispersions are found for these. So it takes a small part of the time of a fit. The
    answer does not depend on the random state of the request, and takes no random number from it.

    Parameters
    ----------
    request : Request
        Its factors that are known are looked for here.
    counts : Counts
        If they are many, or in chunks, some of the samples are looked at.
    fit : callable
        Fits what a request asks for.
    """
    asked = request.settings
    most = max(FEWEST_SAMPLES, int(MOST_ENTRIES / counts.n_features))
    part, which = counts.part_in_memory(most if counts.n_samples > most else None)
    part, rng = part.on_host(), np.random.default_rng(0)
    train, test = _split(part, rng)
    sizes = counts.size_factors(asked.size_factors if request.size_factors is None else request.size_factors)
    batch = None if request.batch is None else np.asarray(request.batch, dtype=object)[which]
    quick = Request(
        replace(asked.with_noise("poisson"), **ENOUGH, size_factors=GIVEN),
        size_factors=(1.0 - TEST_FRACTION) * sizes[which],
        batch=batch,
        n_jobs=request.n_jobs,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", convergence_warning())
        found = fit(quick, train)
    return _compared(found, train, test, _kind(asked.dispersion))


def _split(counts: Counts, rng: np.random.Generator) -> tuple[Counts, Counts]:
    try:
        return split_counts(counts, TEST_FRACTION, random_state=rng)
    except ValueError as error:
        raise ValueError(f"noise='auto' holds out counts to choose: {error}; or name the noise") from error


def _kind(dispersion: str) -> DispersionKind:
    return cast(DispersionKind, dispersion) if dispersion in get_args(DispersionKind) else "feature"


def _compared(fit: Fit, train: Counts, test: Counts, kind: DispersionKind) -> NoiseChoice:
    """Score the test part with the means of a fit, with and without dispersions."""
    alpha = fit.link.alpha
    problem = replace(fit.problem(train), zeros=None)
    dispersions, _ = renewed(problem, fit.loadings, fit.factors / alpha, kind=kind)
    plain = Rates(fit.loadings, fit.factors, fit.link, fit.size_factors, None, fit.batches)
    scores: list[Any] = [
        score_parts(rates, train, test, test_fraction=TEST_FRACTION)
        for rates in (plain, replace(plain, dispersion=dispersions.dispersion))
    ]
    gains = scores[1] - scores[0]
    error = float(gains.std(ddof=1)) * math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return NoiseChoice(float(gains.sum()), error, len(gains))
