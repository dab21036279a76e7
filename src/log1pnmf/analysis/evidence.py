"""Is a factor there? What is lost without it, and how often it comes back from other starts and samples.

**Without it.** The factor is taken out, and all that is left is fitted again from where it is, with the same
c and the same noise, dispersions included. The others may take its place, so the loss is that of one factor
fewer, and it is often the same for several factors.

**What noise gives.** A factor that is fitted to nothing but noise gains log-likelihood, too: about ``(sqrt(n)
+ sqrt(m))**2 / 2`` for n samples and m features, half the square of the largest singular value of an n x m
matrix of standard normal numbers. In simulations with one factor too many the loss was 0.9 to 1.1 times that,
with the right noise. With Poisson noise and overdispersed counts it is much more.

**Coming back.** Fits from other random starts (same counts), and to samples that are drawn with replacement
(bootstrap, from where the fit is), are matched with the fit by the correlation of loadings of the same
samples, which is the cosine of centred loadings. Factors are not compared: those of one fit resemble each
other, so the cosine of any two is high. A factor has come back where its match has 0.8 or more: in
simulations (200 samples, 150 features) the median over bootstrap samples was 0.9 to 1 for true factors, and
0.1 to 0.8 for those that one or two factors too many had made of noise, or torn apart.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_whole
from log1pnmf._common.randomness import as_random, new_seed
from log1pnmf._common.warn import convergence_warning
from log1pnmf._common.words import plural
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.annotated import is_annotated
from log1pnmf.fitting.as_fit import fit_and_counts
from log1pnmf.fitting.driver import ApproximationWarning, run_request
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import Keys
from log1pnmf.fitting.known import ImpossibleCountsError
from log1pnmf.fitting.request import Request
from log1pnmf.fitting.settings import GIVEN

from .metrics import log_likelihood, match_factors, null_deviance
from .selection.progress import OnFit, shown

__all__ = ["COMES_BACK", "Evidence", "evidence", "evidence_in"]

Array = NDArray[np.float64]

COMES_BACK = 0.8
"""Correlation of loadings from which a factor of another fit is the same."""

LOOSEST = 1e-6
"""Tolerance of the fits, where that of the fit itself is smaller: what is looked for is far larger."""

CLEARLY = 1.5
"""Times what noise gives: a larger loss is not noise."""


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Evidence for each factor; made by `evidence`. Arrays are of shape (n_components,).

    Parameters
    ----------
    loss : ndarray
        Log-likelihood that is lost when the factor is dropped and the rest is fitted again; NaN for a fit
        with a single factor, inf where known factors and masks leave some counts to this one only.
    deviance_percent : ndarray
        The same as a percentage of the deviance that totals of samples and features leave.
    seeds, bootstrap : ndarray
        Part of the fits from other random starts, and to samples drawn with replacement, in which the factor
        comes back; NaN where there were none. Factors whose loadings were given always do.
    from_noise : float
        What a factor fitted to pure noise is expected to gain.
    n_seeds, n_bootstrap, n_samples : int
        How many fits, and to how many samples.
    factor_names : tuple of str
        Names of the factors.
    """

    loss: Array
    deviance_percent: Array
    seeds: Array
    bootstrap: Array
    from_noise: float
    n_seeds: int
    n_bootstrap: int
    n_samples: int
    factor_names: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"<Evidence of {plural(len(self.loss), 'factor')}: {plural(self.n_seeds, 'start')}, "
            f"{plural(self.n_bootstrap, 'bootstrap sample')}; table() lists it>"
        )

    def renamed(self, names: Any) -> Evidence:
        """Give the same with the names that factors have now."""
        return replace(self, factor_names=tuple(names))

    def table(self) -> dict[str, Any]:
        """One row per factor; ``pandas.DataFrame(table)`` shows it.

        Returns
        -------
        dict of str to ndarray
            Columns `factor`, `loss`, `times_noise` (the loss over what noise gives), `deviance_percent`,
            `seeds` and `bootstrap`.
        """
        return {
            "factor": np.array(self.factor_names, dtype=object),
            "loss": self.loss,
            "times_noise": self.loss / self.from_noise,
            "deviance_percent": self.deviance_percent,
            "seeds": self.seeds,
            "bootstrap": self.bootstrap,
        }

    def kept(self) -> dict[str, Any]:
        """Give it as AnnData can hold it; `evidence_in` reads it back."""
        return {
            "table": self.table(),
            "from_noise": self.from_noise,
            "n_seeds": self.n_seeds,
            "n_bootstrap": self.n_bootstrap,
            "n_samples": self.n_samples,
            "judgement": self.judgement(),
            "factor_names": np.array(self.factor_names, dtype=object),
        }

    def judgement(self) -> str:
        """Say in words whether the factors are there.

        Returns
        -------
        str
        """
        least = float(np.min(self.loss))
        back = np.fmin(self.seeds, self.bootstrap)
        doubted = [name for name, share in zip(self.factor_names, back, strict=True) if share < 0.5]
        if math.isnan(least):
            text = "There is one factor; without it there is no model to compare with."
        elif least <= CLEARLY * self.from_noise:
            text = (
                f"One factor fewer explains the counts about as well: it would lose {least:,.0f} of "
                f"log-likelihood, and a factor fitted to noise gains about {self.from_noise:,.0f}."
            )
        else:
            text = (
                f"No factor can be spared: without one, {least:,.0f} or more of log-likelihood is lost, "
                f"{least / self.from_noise:,.1f} times what a factor fitted to noise gains."
            )
        if doubted:
            named = ", ".join(doubted)
            return f"{text} Doubtful: {named}, found again in less than half of the other fits."
        known = self.n_seeds or self.n_bootstrap
        return f"{text} All factors came back in at least half of the other fits." if known else text

    def summary(self) -> str:
        """List what speaks for every factor.

        Returns
        -------
        str
            Text to print.
        """
        title = "Evidence (loss without the factor, times what noise gives, back from starts, from bootstrap)"
        widest = max(3, *map(len, self.factor_names))
        lines = [
            f"  {name:>{widest}}  {loss:>12,.0f}  {times:>7.1f}  {_percent(seeds):>5}  {_percent(back):>5}"
            for name, loss, times, _, seeds, back in zip(*self.table().values(), strict=True)
        ]
        return "\n".join([title, *lines, f"  {self.judgement()}"])


def evidence_in(source: Any, key: str | None = None) -> Evidence | None:
    """Read what `log1pnmf.tl.evidence` has written; None for what is no AnnData, or has none."""
    place = Keys(key).evidence
    if not is_annotated(source) or "n_samples" not in source.uns.get(place, ()):
        return None
    about = source.uns[place]
    loss, percent, seeds, back = (
        np.asarray(about["table"][name], dtype=np.float64)
        for name in ("loss", "deviance_percent", "seeds", "bootstrap")
    )
    n_seeds, n_bootstrap, n_samples = (int(about[name]) for name in ("n_seeds", "n_bootstrap", "n_samples"))
    names, noise = tuple(map(str, about["factor_names"])), float(about["from_noise"])
    return Evidence(loss, percent, seeds, back, noise, n_seeds, n_bootstrap, n_samples, names)


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def evidence(
    fit: Any,
    counts: Any,
    *,
    n_seeds: int = 5,
    n_bootstrap: int = 10,
    max_samples: int | None = None,
    random_state: Any = 0,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Evidence:
    """Measure for each factor what the fit loses without it, and how often it comes back.

    This takes one more fit for every factor, seed and bootstrap sample. docs/choosing.md explains the
    columns.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        The fit.
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        The counts that were fitted. Of counts in chunks, only the samples kept in memory are used, up to
        8,192 at random.
    n_seeds : int
        Number of fits from other random starts; may be 0.
    n_bootstrap : int
        Number of fits to samples drawn with replacement; may be 0.
    max_samples : int, optional
        Number of random samples to use, the same ones every time.
    random_state : int, RandomState, Generator or None
        Seed or generator of the random numbers.
    n_jobs : int, optional
        Number of threads.
    verbose : int
        1 shows a progress bar.

    Returns
    -------
    Evidence

    See Also
    --------
    log1pnmf.select : Compare numbers of factors by held-out counts.
    log1pnmf.analysis.stability : Compare fits from several seeds.

    Examples
    --------
    >>> import numpy as np
    >>> from log1pnmf import Log1pNMF
    >>> own = (np.arange(60)[:, None] < 30) == (np.arange(20) < 10)  # half of the features for each half
    >>> counts = np.random.default_rng(0).poisson(np.where(own, 6.0, 0.5))
    >>> found = evidence(Log1pNMF(2).fit(counts), counts, n_seeds=2, n_bootstrap=2)
    >>> bool((found.loss > 5 * found.from_noise).all()), found.bootstrap.tolist()
    (True, [1.0, 1.0])
    """
    for name, value in (("n_seeds", n_seeds), ("n_bootstrap", n_bootstrap)):
        check_whole(name, value, least=0)
    if max_samples is not None:
        check_whole("max_samples", max_samples, least=1)
    fit, whole = fit_and_counts(fit, counts)
    fit.check_whole("evidence fits the model again and")
    data, rows = whole.part_in_memory(max_samples)
    known = _Known.of(fit, data, rows, n_jobs)
    rng = as_random(random_state)
    k = fit.n_components if fit.n_components > 1 else 0
    with shown(None, verbose, "evidence") as on_fit, warnings.catch_warnings():
        for kind in (convergence_warning(), ApproximationWarning):
            warnings.simplefilter("ignore", kind)  # the fit itself has said so
        seen = _Count(on_fit, k + n_seeds + n_bootstrap)
        loss = np.array([seen(known.loss_without(j)) for j in range(k)] or [math.nan])
        seeds = [seen(known.other_start(new_seed(rng))) for _ in range(n_seeds)]
        drawn = [rng.choice(len(rows), len(rows)) for _ in range(n_bootstrap)]
        again = [seen(known.other_samples(np.sort(chosen))) for chosen in drawn]
    n, m = data.shape
    null = null_deviance(known.fit, data, n_jobs)
    return Evidence(
        loss=loss,
        deviance_percent=100.0 * loss / null if null > 0.0 else np.full(len(loss), math.nan),
        seeds=_share(seeds, fit.kinds),
        bootstrap=_share(again, fit.kinds),
        from_noise=0.5 * (math.sqrt(n) + math.sqrt(m)) ** 2,
        n_seeds=n_seeds,
        n_bootstrap=n_bootstrap,
        n_samples=n,
        factor_names=tuple(fit.factor_names),
    )


def _share(similarities: list[Array], kinds: list[str]) -> Array:
    """Part of the fits in which each factor comes back; known loadings, also constant ones, always do."""
    if not similarities:
        return np.full(len(kinds), math.nan)
    back = np.mean(np.array(similarities) >= COMES_BACK, axis=0)
    return np.where(np.array(kinds) == "loadings", 1.0, back)


class _Count:
    """Tells of every result that it is handed through."""

    def __init__(self, on_fit: OnFit, of_all: int) -> None:
        self.on_fit, self.done, self.of_all = on_fit, 0, of_all

    def __call__(self, result: Any) -> Any:
        self.done += 1
        self.on_fit(self.done, self.of_all)
        return result


@dataclass(frozen=True, eq=False)
class _Known:
    """A fit to the samples that are looked at, and how to ask for others like it."""

    fit: Fit
    data: Counts
    log_likelihood: float
    n_jobs: int | None

    @classmethod
    def of(cls, fit: Fit, data: Counts, rows: NDArray[np.int64], n_jobs: int | None) -> _Known:
        """Gather it; where only some samples are looked at, their loadings and factors are fitted again."""
        if len(rows) < len(fit.loadings):
            part = _of_samples(fit, rows)
            again = run_request(_like(part, n_jobs).at(init=(part.loadings, part.factors)), data)
            fit = _of_factors(again, match_factors(part.loadings, again.loadings).pairs[:, 1])
        return cls(fit, data, _likelihood(fit, data, n_jobs), n_jobs)

    def loss_without(self, k: int) -> float:
        """Drop a factor, fit the rest again, and say how much lower the log-likelihood is."""
        less = _of_factors(self.fit, np.delete(np.arange(self.fit.n_components), k))
        try:
            without = run_request(_like(less, self.n_jobs).at(init=less), self.data)
        except ImpossibleCountsError:  # it is the only one that some counts may have
            return math.inf
        return self.log_likelihood - _likelihood(without, self.data, self.n_jobs)

    def other_start(self, seed: int) -> Array:
        """Fit from random numbers; give the similarity of each factor's match."""
        asked = _like(self.fit, self.n_jobs).at(init=None, random_state=seed)
        settings = replace(asked.settings, init="random")
        other = run_request(replace(asked, settings=settings, random_state=seed), self.data)
        return match_factors(self.fit.loadings, other.loadings).similarity

    def other_samples(self, chosen: NDArray[np.int64]) -> Array:
        """Fit to samples drawn with replacement, from where the fit is; give the same."""
        drawn = _of_samples(self.fit, chosen)
        request = _like(drawn, self.n_jobs).at(init=(drawn.loadings, drawn.factors))
        other = run_request(request, Counts.from_any(self.data.to_scipy()[chosen]))
        return match_factors(drawn.loadings, other.loadings).similarity


def _like(fit: Fit, n_jobs: int | None) -> Request:
    """Ask for what a fit was asked for, with its own size factors and a looser tolerance."""
    asked = Request.like(fit)
    request = asked.at(tol=max(asked.settings.tol, LOOSEST), n_init=1, n_components=fit.n_components)
    return replace(request.at(size_factors=GIVEN), size_factors=fit.size_factors, n_jobs=n_jobs)


def _of_samples(fit: Fit, rows: NDArray[np.int64]) -> Fit:
    """Take some samples of a fit."""
    batches = None if fit.batches is None else fit.batches.of_samples(rows)
    return replace(fit, loadings=fit.loadings[rows], size_factors=fit.size_factors[rows], batches=batches)


def _of_factors(fit: Fit, chosen: NDArray[np.intp]) -> Fit:
    """Take some factors of a fit, with what was known of them."""
    names, kinds, mask = fit.given_factor_names, fit.factor_kinds, fit.mask
    if kinds is not None and mask is not None:
        masked = np.flatnonzero(kinds == "mask")
        mask = mask[:, [int(np.flatnonzero(masked == k)[0]) for k in chosen if k in masked]]
    return replace(
        fit,
        loadings=fit.loadings[:, chosen],
        factors=fit.factors[:, chosen],
        settings=replace(fit.settings, n_components=len(chosen)),
        given_factor_names=None if names is None else names[chosen],
        factor_kinds=None if kinds is None else kinds[chosen],
        mask=mask if mask is not None and mask.shape[1] else None,
    )


def _likelihood(fit: Fit, counts: Counts, n_jobs: int | None) -> float:
    known = fit.log_likelihood
    return log_likelihood(fit, counts, n_jobs=n_jobs) if known is None else known
