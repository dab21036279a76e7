"""Is a factor there? What is lost without it, and how often it comes back from other starts and samples.

**Without it.** The factor is removed and the loadings are fitted again, while the other factors stay. All
loadings are free. The weights of the other factors may rise, at most to twice what they are, to the mean of
their factor, or to the weight in the factor that was taken out: so another half of a true factor can take
over, but a factor of something else cannot take the place of a true one. If the others were quite free, it
would: every way would lead to the same fit with one factor fewer, and the loss would be the same for all.

**What noise gives.** A factor that is fitted to nothing but noise gains log-likelihood, too. Counts are
simulated from the fit without a factor, with the dispersions of the features. A superfluous factor is fitted
to them, all others moving along, and taken out in the same way. Both losses are of the same kind. Which
factor was missing hardly matters, so that the mean over three of them stands for all.

**Coming back.** Fits from other random starts (same counts), and to samples that are drawn with replacement
(bootstrap, from where the fit is), are matched with the fit by the correlation of loadings of the same
samples, which is the cosine of centred loadings. Factors are not compared: those of one fit resemble each
other, so the cosine of any two is high. A factor has come back where its match has 0.8 or more: in
simulations (200 samples, 150 features) the median over bootstrap samples was 0.9 to 1 for true factors, and
0.1 to 0.8 for those that one or two factors too many had made of noise, or torn apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import Seed, as_random, check_whole, new_seed, plural, quiet, shown
from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.anndata import fit_and_counts, is_annotated
from log1pnmf.fitting.fit import Fit, Keys, or_one
from log1pnmf.fitting.fit_counts import KNOWN, fit_again
from log1pnmf.fitting.fixed_factors import structure_of
from log1pnmf.fitting.runs import AdaptiveUpdate
from log1pnmf.fitting.settings import constraint_of
from log1pnmf.fitting.solver import Extrapolation, Point, alternate, solve_side
from log1pnmf.fitting.starts import lifted
from log1pnmf.model.predict import BLOCK_ENTRIES
from log1pnmf.model.problem import Array, Bounds, Constraint
from log1pnmf.model.simulate import draw_poisson

from .metrics import match_factors, null_deviance

COMES_BACK = 0.8  # correlation of loadings from which a factor of another fit is the same
LOOSEST, LONGEST = 1e-5, 100  # least tolerance of other fits, and most iterations
N_NOISE = 3  # factors that are fitted to noise
CLEARLY = 1.5  # times what noise gives: a larger loss is not noise
MOST_RISE = 2.0  # how many times larger any weight of the other factors may become without a factor
TINY = 0.002  # gain of an iteration, of that of a factor fitted to noise, below which a refit ends
MOST_ITERATIONS = 60  # of such a refit
BESIDE = 0.1  # part of the mean weight with which a factor begins that is to fit noise
ARRAYS = ("loss", "from_noise", "deviance_percent", "seeds", "bootstrap")
NUMBERS = ("n_seeds", "n_bootstrap", "n_samples", "n_all")


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Evidence for each factor; `evidence` makes it, see the example there.

    Arrays are of shape (n_components,).

    Parameters
    ----------
    loss : ndarray
        Log-likelihood that is lost without the factor when the others stay what they are, up to a rise of
        their weights; all loadings are fitted again. NaN for a fit with a single factor, inf where known
        factors and masks leave some counts to this one only.
    from_noise : ndarray
        The same loss of a factor that was fitted to noise, to counts simulated from the fit without a
        factor: the mean of three. 0 where the loss is inf.
    deviance_percent : ndarray
        The same as a percentage of the deviance that totals of samples and features leave.
    seeds, bootstrap : ndarray
        Part of the fits from other random starts, and to samples drawn with replacement, in which the factor
        comes back; NaN where there were none. Factors whose loadings were given always do.
    n_seeds, n_bootstrap : int
        How many fits.
    n_samples, n_all : int
        Samples that were used, and samples of the fit.
    factor_names : tuple of str
        Names of the factors.

    Examples
    --------
    >>> from log1pnmf import datasets, fit_log1p_nmf
    >>> counts = datasets.pancreas().counts[:100, :200]
    >>> found = evidence(fit_log1p_nmf(counts, 2), counts, n_seeds=2, n_bootstrap=2)
    >>> found.factor_names, found.bootstrap.tolist(), bool((found.times_noise > 1).all())
    (('k0', 'k1'), [1.0, 1.0], True)
    """

    loss: Array
    from_noise: Array
    deviance_percent: Array
    seeds: Array
    bootstrap: Array
    n_seeds: int
    n_bootstrap: int
    n_samples: int
    n_all: int
    factor_names: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"<Evidence of {plural(len(self.loss), 'factor')}: {plural(self.n_seeds, 'start')}, "
            f"{plural(self.n_bootstrap, 'bootstrap sample')}; table() lists it>"
        )

    def renamed(self, names: Any) -> Evidence:
        """Return the same with the names that factors have now."""
        return replace(self, factor_names=tuple(names))

    @property
    def times_noise(self) -> Array:
        """The loss without each factor, as a multiple of that without a factor fitted to noise."""
        beyond = np.where(self.loss > 0.0, np.inf, self.loss)
        return np.divide(self.loss, self.from_noise, out=beyond, where=self.from_noise > 0.0)

    def table(self) -> dict[str, Any]:
        """One row per factor; ``pandas.DataFrame(table)`` shows it.

        Columns: `factor`, `loss`, `from_noise`, `times_noise` (the loss over what noise gives),
        `deviance_percent`, `seeds` and `bootstrap`.
        """
        names = ("loss", "from_noise", "times_noise", "deviance_percent", "seeds", "bootstrap")
        factors = np.array(self.factor_names, dtype=object)
        return {"factor": factors, **{name: getattr(self, name) for name in names}}

    def kept(self) -> dict[str, Any]:
        """Return it as AnnData can hold it; `evidence_in` reads it back."""
        about = {"table": self.table(), **{name: getattr(self, name) for name in NUMBERS}}
        names = np.array(self.factor_names, dtype=object)
        return about | {"judgement": self.judgement(), "factor_names": names}

    def judgement(self) -> str:
        """Describe in words whether the factors are real."""
        if np.isnan(self.loss).any():
            return "There is one factor; without it there is no model to compare with."
        times = self.times_noise
        least = f"{times.min():,.1f} times" if times.min() < math.inf else "infinitely"
        weak, doubted = times <= CLEARLY, np.fmin(self.seeds, self.bootstrap) < 0.5
        all_explain = f"every factor explains {least} as much as a factor fitted to noise, or more."
        if self.n_samples < self.n_all:  # what they do not show may be there all the same
            part, unclear = f"In {self.n_samples:,} of {self.n_all:,} samples", weak | doubted
            if not unclear.any():
                return f"{part} {all_explain}"
            named = self._named(unclear)
            return f"{part} it is not clear whether these are there: {named}. Use more samples."
        text = f"{all_explain[0].upper()}{all_explain[1:]}"
        if weak.any():
            text = (
                f"No more than noise: {self._named(weak)} (without one of them, at most {CLEARLY:g} times as "
                "much is lost as without a factor fitted to noise). Try one factor fewer."
            )
        if doubted.any():
            named = self._named(doubted)
            return f"{text} Doubtful: {named}, found again in less than half of the other fits."
        known = self.n_seeds or self.n_bootstrap
        return f"{text} All factors came back in at least half of the other fits." if known else text

    def _named(self, which: NDArray[np.bool_]) -> str:
        return ", ".join(np.array(self.factor_names, dtype=object)[which])

    def summary(self) -> str:
        """List the evidence for every factor."""
        title = "Evidence (loss without the factor, in multiples of noise; found again: starts, bootstrap)"
        widest = max(3, *map(len, self.factor_names))
        lines = [
            f"  {name:>{widest}}  {loss:>12,.0f}  {times:>7.1f}  {_percent(seeds):>5}  {_percent(back):>5}"
            for name, loss, _, times, _, seeds, back in zip(*self.table().values(), strict=True)
        ]
        return "\n".join([title, *lines, f"  {self.judgement()}"])


def evidence_in(source: Any, key: str | None = None) -> Evidence | None:
    """Read what `log1pnmf.tl.evidence` has written; None for what is no AnnData, or has none."""
    place = Keys(key).evidence
    if not is_annotated(source) or "n_all" not in source.uns.get(place, ()):
        return None
    about = source.uns[place]
    parts: dict[str, Any] = {name: np.asarray(about["table"][name], dtype=np.float64) for name in ARRAYS}
    parts |= {name: int(about[name]) for name in NUMBERS}
    return Evidence(**parts, factor_names=tuple(map(str, about["factor_names"])))


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


class EvidenceOptions(TypedDict, total=False):
    """Options of `evidence`, for type checkers."""

    n_seeds: int
    n_bootstrap: int
    max_samples: int | None
    random_state: Seed
    n_jobs: int | None
    verbose: int | None


def evidence(
    fit: Any,
    counts: Any,
    *,
    n_seeds: int = 3,
    n_bootstrap: int = 5,
    max_samples: int | None = None,
    random_state: Seed = 0,
    n_jobs: int | None = None,
    verbose: int | None = None,
) -> Evidence:
    """Measure for each factor what the fit loses without it, and how often it comes back.

    The page "Is each factor real?" explains the columns, and what this costs.

    Parameters
    ----------
    n_seeds : int
        Number of fits from other random starts; may be 0.
    n_bootstrap : int
        Number of fits to samples drawn with replacement; may be 0.
    max_samples : int, optional
        Number of random samples to use, the same ones every time. Weak and rare factors may not stand out
        from noise in few samples: such a part can confirm factors, but not refute them.

    See Also
    --------
    log1pnmf.select : Compare numbers of factors by held-out counts.
    log1pnmf.analysis.consensus : Factors that come back in other donors and with other numbers of factors.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> own = (np.arange(60)[:, None] < 30) == (np.arange(20) < 10)  # half of the features for each half
    >>> counts = np.random.default_rng(0).poisson(np.where(own, 6.0, 0.5))
    >>> found = evidence(Log1pNMF(2).fit(counts), counts, n_seeds=2, n_bootstrap=2)
    >>> bool((found.loss > 3 * found.from_noise).all()), found.bootstrap.tolist()
    (True, [1.0, 1.0])
    """
    for name, value in (("n_seeds", n_seeds), ("n_bootstrap", n_bootstrap)):
        check_whole(name, value, least=0)
    if max_samples is not None:
        check_whole("max_samples", max_samples, least=1)
    fit, whole = fit_and_counts(fit, counts)
    fit.check_whole("evidence fits the model again and")
    data, rows = whole.part_in_memory(max_samples)
    rng = as_random(random_state)
    k = fit.n_components if fit.n_components > 1 else 0
    with shown(verbose, "evidence") as on_fit, quiet(UserWarning):  # the fit itself has shown them
        n_done, of_all = 0, k + n_seeds + n_bootstrap

        def seen(result: Any = None) -> Any:
            nonlocal n_done
            n_done += 1
            on_fit(n_done, of_all)
            return result

        refits = _Refits.of(fit.normalized("max"), data, rows, n_jobs, lambda _: on_fit(n_done, of_all))
        loss, noise = np.full(fit.n_components, math.inf if k else math.nan), list[float]()
        for j in range(k):
            if refits.possible_without(j):
                less, alone = refits.without(data, refits.at, j)
                loss[j] = alone - refits.loss
                if not noise or j % math.ceil(k / N_NOISE) == 0:
                    noise.append(refits.loss_of_noise(less, j, new_seed(rng)))
            seen()
        seeds = [seen(refits.similarity(refits.fit, data, new_seed(rng))) for _ in range(n_seeds)]
        drawn = [np.sort(rng.choice(len(rows), len(rows))) for _ in range(n_bootstrap)]
        samples = ((refits.fit.of_rows(one), Counts.from_any(data.to_scipy()[one])) for one in drawn)
        again = [seen(refits.similarity(*one)) for one in samples]
    from_noise = np.where(np.isinf(loss), 0.0, np.mean(noise) if noise else math.nan)
    null = null_deviance(refits.fit, data, n_jobs)
    return Evidence(
        loss=loss,
        from_noise=from_noise,
        deviance_percent=100.0 * loss / null if null > 0.0 else np.full(len(loss), math.nan),
        seeds=_share(seeds, fit.kinds),
        bootstrap=_share(again, fit.kinds),
        n_seeds=n_seeds,
        n_bootstrap=n_bootstrap,
        n_samples=data.n_samples,
        n_all=whole.n_samples,
        factor_names=tuple(fit.factor_names),
    )


def _share(similarities: list[Array], kinds: list[str]) -> Array:
    """Part of the fits in which each factor comes back; known loadings, also constant ones, always do."""
    if not similarities:
        return np.full(len(kinds), math.nan)
    back = np.mean(np.array(similarities) >= COMES_BACK, axis=0)
    return np.where(np.array(kinds) == "loadings", 1.0, back)


@dataclass(frozen=True, eq=False)
class _Refits:
    """A fit to a subsample, its bounds, and refits that are compared with it."""

    fit: Fit
    data: Counts
    constraint: Constraint
    at: Point  # of the fit
    loss: float
    n_jobs: int | None
    on_iteration: Callable[[Any], object]  # returns nothing: a refit goes on

    @classmethod
    def of(cls, fit: Fit, data: Counts, rows: NDArray[np.int64], *how: Any) -> _Refits:
        """Refit to the subsample, from where the fit is."""
        fit = fit.of_rows(rows)
        known = structure_of(data, fit.settings, **dict(zip(KNOWN, fit.known_parts, strict=True)))
        start = Point(fit.loadings, fit.factors / fit.link.alpha)
        self = cls(fit, data, constraint_of(fit.settings, known), start, math.nan, *how)
        at, loss = self.refined(data, start, self.constraint)
        fit = replace(fit, loadings=at.loadings, factors=at.factors * fit.link.alpha)
        return replace(self, fit=fit, at=at, loss=loss)

    def loss_of_noise(self, less: Point, k: int, seed: int) -> float:
        """Return what is lost without a factor that was fitted to noise in place of another."""
        rng = np.random.default_rng(seed)
        counts = self.drawn(less, rng)
        beside = (
            np.insert(values, k, size * values.mean() * rng.uniform(0.1, 1.9, len(values)), axis=1)
            for values, size in ((less.loadings, 1.0), (less.factors, BESIDE))
        )
        more, least = self.refined(counts, Point(*beside), self.constraint)
        return self.without(counts, more, k)[1] - least

    def possible_without(self, k: int) -> bool:
        """Return whether other factors may explain all counts, within what is known of them."""
        if self.fit.factor_kinds is None:
            return True
        sides, n_factors = (self.constraint.loadings, self.constraint.factors), self.fit.n_components
        loadings, factors = (np.delete(side.tables(n_factors)[1] > 0.0, k, axis=1) for side in sides)
        table = self.data.to_scipy().tocoo()
        rows, columns = (loadings, table.row), (factors, table.col)
        may = [one[np.minimum(at, len(one) - 1)] for one, at in (rows, columns)]  # a single row is for all
        return bool((may[0] & may[1]).any(axis=1).all())

    def without(self, counts: Counts, at: Point, k: int) -> tuple[Point, float]:
        """Remove a factor and fit the loadings again; the other factors stay nearly the same."""
        kept = np.delete(np.arange(self.fit.n_components), k)
        factors, sides = at.factors[:, kept], (self.constraint.loadings, self.constraint.factors)
        loadings, own = (Bounds(*(one[:, kept] for one in side.tables(1 + len(kept)))) for side in sides)
        size = np.maximum(at.loadings.max(axis=0), 1e-100)  # of a factor without loadings
        gone = np.outer(at.factors[:, k] * size[k], 1.0 / size[kept])
        largest = np.maximum(np.maximum(MOST_RISE * factors, factors.mean(axis=0)), gone)
        held = replace(own, lower=own.clip(factors), upper=own.clip(largest))
        return self.refined(counts, Point(at.loadings[:, kept], factors), Constraint(loadings, held))

    def refined(self, counts: Counts, start: Point, constraint: Constraint) -> tuple[Point, float]:
        """Return loadings and factors near convergence, within their bounds, and the loss."""
        exact, bounds = make_engine("auto", self.fit.problem(counts), self.n_jobs), constraint.loadings
        loadings, factors = lifted(exact.problem, start.loadings, start.factors)
        at = Point(bounds.clip(loadings), constraint.factors.clip(factors))
        near = self.with_few_zeros(exact, at)
        loadings, _ = solve_side(near, "loadings", at.loadings, at.factors, bounds=bounds, tol=1e-5)
        at = replace(at, loadings=loadings)
        near = self.with_few_zeros(exact, at)
        n_small, small = 0, TINY * 0.5 * (math.sqrt(counts.n_samples) + math.sqrt(counts.n_features)) ** 2
        for last in alternate(
            near,
            at.loadings,
            at.factors,
            constraint=constraint,
            extrapolation=Extrapolation(),
            max_iter=MOST_ITERATIONS,
            residuals=False,
        ):
            self.on_iteration(last)
            at = Point(last.loadings, last.factors).on_host()
            n_small = n_small + 1 if last.relative_change * abs(last.objective) <= small else 0
            if n_small == 2:
                break
        return at, exact.loss(at.loadings, at.factors)

    def with_few_zeros(self, exact: Engine, at: Point) -> Engine:
        """Return an engine that approximates most zeros, where a fit would."""
        settings = self.fit.settings
        if exact.problem.zeros is not None or settings.why_exact(exact.problem.counts) is not None:
            return exact
        loss = exact.loss(at.loadings, at.factors)
        problem = AdaptiveUpdate(settings.zeros_tol).chosen(exact, at, loss, straight=True)
        return make_engine("auto", problem, self.n_jobs)

    def drawn(self, at: Point, rng: np.random.Generator) -> Counts:
        """Draw counts from means, as scattered as the counts are around the means of the fit."""
        fit, blocks, phi = self.fit, [], self.dispersion
        varied = np.flatnonzero(phi)
        for rows in dense_blocks(self.data.shape, BLOCK_ENTRIES):
            means = fit.exposure(rows) * fit.link.inverse(at.loadings[rows] @ at.factors.T * fit.link.alpha)
            means[:, varied] *= rng.gamma(1.0 / phi[varied], phi[varied], (len(means), len(varied)))
            blocks.append(draw_poisson(means, rng))
        return Counts.from_any(sparse.vstack(blocks, format="csr"))

    @cached_property
    def dispersion(self) -> Array:
        """Dispersions of the fit; those of a Poisson fit are found by the method of moments."""
        if self.fit.dispersion is not None:
            return self.fit.dispersion
        excess, squares = np.zeros((2, self.data.n_features))
        for rows in dense_blocks(self.data.shape, BLOCK_ENTRIES):
            means = self.fit.rates.of_rows(rows)
            excess += ((self.data.by_row.to_dense(rows) - means) ** 2 - means).sum(axis=0)
            squares += (means**2).sum(axis=0)
        return np.maximum(excess, 0.0) / or_one(squares)

    def similarity(self, fit: Fit, counts: Counts, seed: int | None = None) -> Array:
        """Fit again, roughly, from where a fit is or from a random start; return each factor's match."""
        changes: dict[str, Any] = {"tol": max(fit.asked.tol, LOOSEST)}
        changes["max_iter"] = min(fit.asked.max_iter, LONGEST)
        how: dict[str, Any] = {"n_jobs": self.n_jobs, "callbacks": [self.on_iteration]}
        if seed is not None:
            changes |= {"init": "random", "random_state": seed}
            how |= {"init": None, "random_state": seed}
        other = fit_again(fit, counts, fit.size_factors, changes=changes, **how)
        return match_factors(fit.loadings, other.loadings).similarity
