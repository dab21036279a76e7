"""Where a fit starts: rank-one, random, non-negative SVD, given, or "auto". Everything is on the eta scale.

Which optimum is found depends on the start. No start has an entry from which the solver could not leave, rows
and columns without counts are zero, and no two columns are alike.

"auto" makes a few iterations from several starts at sparse cost, the non-negative SVD and random ones. Where
they reach the same objective, there is no more to find. Otherwise the best one is changed, a few iterations
follow, and the better of both is kept: it gets factors of other starts, random ones take the place of some
(`studies.starts`), and one factor ends and another is split in two (`best_split`).
Below c = 1 starts differ little and iterations are expensive: it is the SVD.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from log1pnmf._common.arrays import on_host
from log1pnmf._common.checks import Progress, Random, check_choice, check_not_negative, new_seed
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import make_engine
from log1pnmf.model.noise import POISSON
from log1pnmf.model.problem import FREE, Constraint, Problem, Structure
from log1pnmf.model.zeros import quadratic

from .fit import Fit, arranged, scale_of, scaled
from .fixed_factors import beside_known, improved, numbers_of, within
from .runs import AdaptiveUpdate, Runs
from .settings import GIVEN, INITS, Settings, constraint_of
from .solver import Extrapolation, Point, Stopping, alternate, engine_at, finds_effects

# ---------- where a fit starts

Array = NDArray[np.float64]

STARTS = tuple(init for init in INITS if init != "auto")
TINY = 1e-8  # relative to the baseline: the product of two such columns does not change the fit
LIFTED = 1e-3  # relative to the column's mean, where a given start has zeros that rule out a count
RAISED = 0.1  # likewise, after a change: an eta that is too small only doubles in a step, others fall at once
SVD_FILL = 1e-2  # relative to the mean, where the SVD leaves zeros
SAMPLE = 300  # rows and columns on which the fitted total is matched


def initialize(engine: Engine, n_components: int, init: str, rng: Random) -> tuple[Array, Array]:
    """Make a start.

    `init`: "rank1": the best single factor, and tiny random columns beside it (the paper's start); "random":
    positive noise whose fitted total is that of the counts; "nndsvd": non-negative SVD of ``log1p(y / (c
    s))``, of ``y / s`` for the identity link.
    """
    check_choice("init", init, STARTS)
    problem = engine.problem
    if init == "rank1":
        loadings, factors = (_with_more(column, n_components - 1, rng) for column in rank_one(engine, rng))
        return _without_empty(problem, loadings, factors)
    if init == "random":
        loadings, factors = (rng.uniform(0.1, 1.0, size=(n, n_components)) for n in problem.counts.shape)
    else:
        loadings, factors = _nndsvd(problem, n_components, rng)
    return match_total(problem, *_without_empty(problem, loadings, factors), rng)


# ---------------------------------------------------------------- rank one


def rank_one(engine: Engine, rng: Random, *, tol: float = 1e-6, max_iter: int = 50) -> tuple[Array, Array]:
    """Fit a single factor, to a loose tolerance."""
    problem = engine.problem
    loadings = rng.uniform(0.5, 1.5, size=(problem.counts.n_samples, 1))
    factors = (problem.profile * rng.uniform(0.5, 1.5, size=problem.counts.n_features))[:, None]
    loadings, factors = _without_empty(problem, loadings, factors)
    stopping = Stopping(tol)
    for iteration in alternate(engine, loadings, factors, max_iter=max_iter):
        loadings, factors = iteration.loadings, iteration.factors
        if stopping(iteration):
            break
    return on_host(loadings), on_host(factors)


# ---------------------------------------------------------------- non-negative SVD


def _nndsvd(problem: Problem, n_components: int, rng: Random) -> tuple[Array, Array]:
    """Boutsidis and Gallopoulos (2008): of each singular pair, the stronger of its two signs."""
    matrix = _linked(problem)
    rank = min(n_components, *matrix.shape)
    from sklearn.utils.extmath import randomized_svd  # only this start needs it

    with threadpool_limits(1, user_api="blas"):  # thin products: more threads only spin and change bits
        left, strength, right = randomized_svd(matrix, rank, random_state=new_seed(rng))
    loadings, factors = np.zeros((matrix.shape[0], n_components)), np.zeros((matrix.shape[1], n_components))
    for k in range(rank):
        u, v = left[:, k], right[k]
        parts = [(np.maximum(sign * u, 0.0), np.maximum(sign * v, 0.0)) for sign in (1.0, -1.0)]
        u, v = max(parts, key=lambda part: float(np.linalg.norm(part[0]) * np.linalg.norm(part[1])))
        size = float(np.linalg.norm(u) * np.linalg.norm(v))
        if size > 0.0:
            root = math.sqrt(strength[k] * size)
            loadings[:, k], factors[:, k] = root * u / np.linalg.norm(u), root * v / np.linalg.norm(v)
    for values in (loadings, factors):
        mean = values.mean() if values.any() else 1.0
        noise = SVD_FILL * mean * rng.uniform(0.5, 1.5, size=values.shape)
        np.copyto(values, noise, where=values <= 0.0)
    return loadings, factors


def _linked(problem: Problem) -> sparse.csr_array:
    """Take counts to the eta scale, entry by entry; zeros stay zeros."""
    matrix, exposure, batches = problem.counts.to_scipy(), problem.exposure, problem.batches
    i = np.repeat(np.arange(len(exposure)), np.diff(matrix.indptr))
    values = matrix.data / exposure[i]
    if batches is not None:
        values = values / batches.effects[batches.labels[i], matrix.indices]
    values = values if problem.link.is_identity else np.log1p(values)
    return sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


# ---------------------------------------------------------------- given


def check_start(start: Any, shape: tuple[int, int], n_components: int) -> tuple[Array, Array]:
    """Check loadings (n, K) and factors (m, K), or K x m as `components_` are unless m = K."""
    try:
        given = dict(zip(("loadings", "factors"), start, strict=True))
    except (TypeError, ValueError):
        advice = "; pass its fit, model.fit_" if hasattr(start, "get_params") else ""
        raise ValueError(
            f"init must be one of {', '.join(map(repr, INITS))}, (loadings, factors) or a Fit, "
            f"got {type(start).__name__}{advice}"
        ) from None
    checked = []
    for (name, values), n in zip(given.items(), shape, strict=True):
        array = numbers_of(f"init {name}", values)
        if name == "factors" and array.shape == (n_components, n) and n != n_components:
            array = np.ascontiguousarray(array.T)
        if array.shape != (n, n_components):
            also = f" or ({n_components}, {n})" if name == "factors" else ""
            raise ValueError(f"init {name} must have shape ({n}, {n_components}){also}, got {array.shape}")
        check_not_negative(f"init {name}", array)
        checked.append(array)
    return checked[0], checked[1]


def adapt_start(problem: Problem, loadings: Array, factors: Array, rng: Random) -> tuple[Array, Array]:
    """Make a checked start usable: every count has a mean, every column entries, no two are alike."""
    loadings, factors, seen = loadings.copy(), factors.copy(), set()
    used = np.asarray(loadings.any(axis=0) | factors.any(axis=0))
    for k in range(loadings.shape[1]):
        digest = hash(((loadings[:, k] + 0.0).tobytes(), (factors[:, k] + 0.0).tobytes()))  # 0 has no sign
        if not used[k]:
            for values in (loadings, factors):
                mean = values.mean() if values.any() else 1.0
                values[:, k] = LIFTED * mean * rng.uniform(0.5, 1.5, size=len(values))
        elif digest in seen:
            loadings[:, k] *= rng.uniform(0.9, 1.1, size=len(loadings))
            factors[:, k] *= rng.uniform(0.9, 1.1, size=len(factors))
        seen.add(digest)
    rows, columns = _impossible(problem, loadings, factors)
    for values, where in ((loadings, rows), (factors, columns)):
        if where.any():
            means = values.mean(axis=0)
            least = LIFTED * np.where(means > 0.0, means, means.mean() if means.any() else 1.0)
            values[where] = np.maximum(values[where], least)
    return _without_empty(problem, loadings, factors)


def _impossible(problem: Problem, loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Rows and columns in which a positive count has mean zero, as masks."""
    counts = problem.counts
    bad_rows, bad_columns = (np.zeros(n, dtype=bool) for n in counts.shape)
    (of_rows, on_rows), (of_columns, on_columns) = (
        (values > 0.0, (np.diff(side.indptr) > 0)[:, None])
        for values, side in ((loadings, counts.by_row), (factors, counts.by_column))
    )
    in_all_rows, in_all_columns = of_rows.all(axis=0, where=on_rows), of_columns.all(axis=0, where=on_columns)
    if (
        (in_all_rows & in_all_columns).any()
        or (in_all_columns.all() and (of_rows.any(axis=1, keepdims=True) | ~on_rows).all())
        or (in_all_rows.all() and (of_columns.any(axis=1, keepdims=True) | ~on_columns).all())
    ):  # no need to visit every count
        return bad_rows, bad_columns
    rows = counts.by_row
    for i, entries in rows.entry_blocks(1 << 16):
        j = on_host(rows.indices[entries])
        bad = np.einsum("ek,ek->e", loadings[i], factors[j]) <= 0.0
        bad_rows[i[bad]] = True
        bad_columns[j[bad]] = True
    return bad_rows, bad_columns


# ---------------------------------------------------------------- shared


def lifted(problem: Problem, loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Raise every entry to a part of its column's mean; empty rows and columns are zero."""
    loadings, factors = (np.maximum(values, RAISED * values.mean(axis=0)) for values in (loadings, factors))
    return _without_empty(problem, loadings, factors)


def _without_empty(problem: Problem, loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Set rows and columns without counts to zero, their optimum."""
    counts = problem.counts
    empty_rows = np.diff(counts.by_row.indptr) == 0
    empty_columns = np.diff(counts.by_column.indptr) == 0
    return np.where(empty_rows[:, None], 0.0, loadings), np.where(empty_columns[:, None], 0.0, factors)


def match_total(problem: Problem, loadings: Array, factors: Array, rng: Random) -> tuple[Array, Array]:
    """Scale a start so that its fitted total is the counts' total, judged on a sample of rows and columns."""
    counts, link = problem.counts, problem.link
    i, j = (rng.permutation(n)[:SAMPLE] for n in counts.shape)
    eta, exposure = loadings[i] @ factors[j].T, problem.size_factors[i]
    rate = counts.total / (problem.size_factors.sum() * counts.n_features)
    if not rate > 0.0 or not eta.max() > 0.0:
        return loadings, factors

    def excess(log_scale: float) -> float:
        with np.errstate(over="ignore"):
            means = link.mean(math.exp(log_scale) * eta)
        fitted = float(exposure @ means.mean(axis=1)) / float(exposure.sum())
        return math.log(min(fitted, 1e300) / rate)

    low = high = math.log(float(link.link(rate) / link.alpha) / eta.max())
    while excess(low) > 0.0:
        low -= 1.0
    while excess(high) < 0.0:
        high += 1.0
    root = scipy.optimize.brentq(excess, low, high, xtol=1e-9) if low < high else low
    scale = math.exp(0.5 * root)
    return loadings * scale, factors * scale


# ---------- starting a fit where another one ended: other samples, more or fewer factors, another link


def continued_start(
    fit: Fit, problem: Problem, n_components: int, rng: Random, *, loadings: Array | None = None
) -> tuple[Array, Array]:
    """Make a start for `problem` from an earlier fit.

    Factors that are added are tiny and random; those with the largest share of the signal stay where there
    are to be fewer, and the baseline. When `c` has changed, a factor goes from the old link to the new one as
    the rates of a sample that has only this factor, fully; then all are scaled to the total of the counts.
    """
    scale = scale_of(fit.loadings, fit.factors, "max", fit.kinds)
    old = scaled(fit.loadings if loadings is None else loadings, fit.factors, scale)
    old_loadings, old_factors = (side[:, :n_components] for side in old)
    if problem.link != fit.link:
        with np.errstate(over="ignore"):
            rates = np.minimum(fit.link.inverse(old_factors), problem.counts.total)
        eta = problem.link.link(rates) / problem.link.alpha
        old_loadings, eta = match_total(problem, old_loadings, eta, rng)
        old_factors = eta * problem.link.alpha
    n_more = n_components - old_loadings.shape[1]
    return _with_more(old_loadings, n_more, rng), _with_more(old_factors, n_more, rng)


def _with_more(values: Array, n_more: int, rng: Random) -> Array:
    """Add tiny random columns."""
    more = TINY * values.mean() * rng.uniform(0.5, 1.5, size=(len(values), n_more))
    return np.hstack([values, more])


# ---------- which start a fit has

Given: TypeAlias = tuple[Array, Array]
"""Checked loadings and factors on the link scale."""


def find_start(
    engine: Engine,
    rng: Random,
    number: int = 0,
    *,
    settings: Settings,
    given: Given | None = None,
    known: Structure | None = None,
    n_jobs: int | None = None,
    after: float | None = None,
) -> tuple[Point, str]:
    """Return a start, and its name: "given", what ``settings.init`` names, or what "auto" chose.

    `number`: how many starts there were before.
    """
    sample = engine.sample()
    if given is not None:
        return _given_start(engine, settings, rng, given, known, streamed=sample is not None), GIVEN
    if sample is not None:
        how: Any = {"settings": settings, "known": known, "n_jobs": n_jobs, "after": after}
        return sampled_start(engine, *sample, rng, number, **how)
    threads: Any = {"n_threads": n_jobs, "n_components": settings.n_components}
    make, pair, name = partial(make_engine, settings.engine, **threads), None, "known"
    n_free = settings.n_components - (0 if known is None else known.n_known)
    if n_free and settings.init == "auto":
        pair, name = search(engine, n_free, rng, make=make, number=number, after=after)
    elif n_free:
        pair, name = Point(*initialize(engine, n_free, settings.init, rng)), settings.init
    if known is not None:
        constraint = constraint_of(settings, known)
        pair = beside_known(engine.problem, known, pair, constraint, rng)
        if engine.problem.noise.name != "poisson":
            pair = improved(make, engine.problem, pair, constraint)
    assert pair is not None
    return pair, name


def _given_start(
    engine: Engine, settings: Settings, rng: Random, given: Given, known: Structure | None, *, streamed: bool
) -> Point:
    """Make the user's start usable; what is known of factors is put into it."""
    problem, factors = engine.problem, given[1] / settings.link.alpha
    if streamed:
        pair = lifted_start(engine, given[0], factors)
    else:
        pair = Point(*adapt_start(problem, given[0], factors, rng))
    if known is None:
        return pair
    constraint = constraint_of(settings, known)
    pair = within(constraint, pair)
    if streamed:
        return pair
    return within(constraint, Point(*adapt_start(problem, pair.loadings, pair.factors, rng)))


# ---------- where a streamed fit starts

SAMPLE_TOL = 1e-6
SAMPLE_ITERATIONS = 100


def sampled_start(
    engine: Engine,
    part: Engine,
    rows: NDArray[np.int64],
    rng: Random,
    number: int,
    *,
    settings: Settings,
    known: Structure | None,
    **how: Any,
) -> tuple[Point, str]:
    """Fit the rows that were kept in memory, and find the loadings of all rows for their factors."""
    likelihood = settings.likelihood if settings.zeros is not None else engine.problem.likelihood
    few: Any = {"n_init": 1, "tol": SAMPLE_TOL, "max_iter": SAMPLE_ITERATIONS}
    own, here = replace(settings, likelihood=likelihood, **few), known and known.of_samples(rows)
    run = Runs(
        settings=own,
        engine=part,
        rng=rng,
        start=lambda part, rng, _: find_start(part, rng, number, settings=settings, known=here, **how),
        constraint=constraint_of(own, here),
    ).follow(0)
    pair = Point(run.last.loadings, run.last.factors)
    return spread(engine, pair, constraint_of(settings, known)), run.start


def spread(engine: Engine, pair: Point, constraint: Constraint) -> Point:
    """Find the loadings of all rows for the factors of some; features not seen in these get their mean."""
    loadings, factors = pair.loadings, pair.factors
    if constraint.scale_is_free:
        loadings, factors = _balanced(loadings, factors)
    mean = loadings.mean(axis=0)
    level = engine.problem.profile / max(float(mean.sum()), np.finfo(np.float64).tiny)
    least = np.where(factors.any(axis=1), LIFTED, 1.0) * level  # others may have counts where these have none
    factors = constraint.factors.clip(np.maximum(factors, least[:, None]))
    typical = np.maximum(mean, 1e-3 * loadings.mean())
    bounds = constraint.loadings
    return Point(engine.settle(bounds.clip(typical), factors, bounds), factors)


def lifted_start(engine: Engine, loadings: Array, factors: Array) -> Point:
    """Make a checked start usable: samples and features with counts have something to begin with."""
    counts = engine.problem.counts
    values = []
    for side, rows in ((loadings, counts.by_row), (factors, counts.by_column)):
        counted = np.diff(rows.indptr) > 0
        mean = float(side.mean()) if side.any() else 1.0
        lifted = np.where(~side.any(axis=1, keepdims=True), LIFTED * mean, side)
        values.append(np.where(counted[:, None], lifted, 0.0))
    return Point(values[0], values[1])


def _balanced(loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Return both sides of every column the same mean, so that the solver has nothing to rescale."""
    of_loadings, of_factors = loadings.mean(axis=0), factors.mean(axis=0)
    used = (of_loadings > 0.0) & (of_factors > 0.0)
    by = np.where(used, np.sqrt(np.where(used, of_loadings, 1.0) / np.where(used, of_factors, 1.0)), 1.0)
    return loadings / by, factors * by


# ---------- the start "auto"

SMALLEST_SEARCHED = 1.0
"""The smallest c at which starts are compared."""
PER_FACTOR, MOST_SEARCHED = (300, 450), 6000
"""Samples on which starts are compared, for each factor and in all; others get loadings later. The second
is for c = inf, where iterations are cheaper: an optimum of too few samples may not be one of all."""
FEWEST = 1e-3
"""Share of these samples in which a feature has counts at least, if it is to take part."""
SMALL, FEW = 1_000_000, 5
"""Non-zeros up to which iterations are cheap; fewer factors have few optima, whatever iterations cost."""
N_RANDOM, ALONE = (1, 3), 20
"""Random starts beside the SVD, more where iterations are cheap, and iterations from each start."""
MEDIUM, SETTLED = 3_000_000, 10
"""Non-zeros up to which a start that was found on some samples is regrouped on all, after some iterations."""
MOST_REGROUPED, MOST_VAIN, ONE_LESS, REGROUPED = (6, 24), 4, 3, 10
"""Regroupings of factors (at least one for each where iterations are dear), how many in a row without a gain
end them, and iterations without the factor that ends and after the split."""
MOST_EXCHANGED, MOST_FAILED, AGAIN = 24, (12, 4), 25
"""Perturbations where iterations are cheap, likewise; fewer fail where starts were crossed before."""
UNLIKE, GROWN, CROSSED = 0.9, 3, 8
"""Cosine below which a factor is new, and iterations with new ones besides and with the best of all."""
EXCHANGED = (2, 4)
"""Factors that a perturbation exchanges, in turn; at most half of all."""
GAINED, WORTHWHILE = 2e-5, 1e-4
"""Gain of a change of either kind, relative to the objective, from which on it encourages further ones."""
AGREED, N_AGREEING = 3e-5, (2, 3)
"""How near objectives are, relative to them, if starts lead to the same optimum, and how many have to."""
DRIFT = 3e-4
"""How much worse a perturbation may be, relative to the objective: few iterations do not show small gains."""
FIRST_LOOK = 3
"""Iterations after which zeros are checked that were chosen for other loadings and factors."""
SEARCH_ERRORS = 3e-4
"""`zeros_tol` of the search."""
NEARLY_CONVERGED = 1e-6
"""Two changes of the objective in a row that are smaller, relative to it, end the iterations from a start."""

Make: TypeAlias = Callable[[Problem], Engine]
"""Makes the engine of a problem whose counts are in memory."""
End: TypeAlias = tuple[Point, float]
"""Where iterations lead, and the objective there."""


def search(
    engine: Engine, n_components: int, rng: Random, *, make: Make, number: int = 0, after: float | None = None
) -> tuple[Point, str]:
    """Find a start for counts in memory."""
    first = "nndsvd" if number == 0 else "random"
    K, problem = n_components, engine.problem
    if K == 1 or problem.link.c < SMALLEST_SEARCHED:
        name = "rank1" if K == 1 else first
        return Point(*initialize(engine, K, name, rng)), name
    exact = replace(problem, zeros=None, noise=POISSON, size_prior=None)
    identity = problem.link.is_identity
    n_searched = min(MOST_SEARCHED, max(1000, PER_FACTOR[identity] * K))
    part, rows = problem.counts.part_in_memory(n_searched)
    whole = len(rows) == problem.counts.n_samples
    searched, features = exact, np.arange(problem.counts.n_features)
    if not whole:
        part = part.on_host()
        seen = np.diff(part.by_column.indptr)
        common = seen >= FEWEST * len(rows)
        features = np.flatnonzero(common if common.sum() > K else seen >= 0)
        batches = None if problem.batches is None else problem.batches.of_samples(rows).of_features(features)
        part = Counts.from_any(part.to_scipy()[:, features])
        searched = replace(exact, counts=part, size_factors=problem.size_factors[rows], batches=batches)
    small = whole and part.nnz <= SMALL and K >= FEW
    names = (first, *["random"] * N_RANDOM[small])
    label = "searching for a start"
    with nullcontext() if after is None else Progress(label, "iteration", after=after) as bar:
        follower = _Follower(make, make(searched), bar)
        ends: list[End] = []
        agree = False  # whether the lowest objectives are those of the same optimum
        while len(ends) < len(names) and not agree:
            if bar is not None:
                bar.describe(f"{label} ({len(ends) + 1} of {len(names)})")
            ends.append(follower.advance(initialize(follower.engine, K, names[len(ends)], rng), ALONE))
            best = min(range(len(ends)), key=lambda one: ends[one][1])
            pair, least = ends[best]
            agree = sum(end - least <= AGREED * abs(least) for _, end in ends) == N_AGREEING[small]
        most = max(MOST_REGROUPED[small], 0 if small else K)
        crosses = small and identity and not agree  # logarithms of means are alike in all factors
        if crosses:
            with threadpool_limits(1, user_api="blas"):  # the same bits for any number of threads
                pair, least = follower.crossed(ends, pair, least)
            pair, least = follower.regrouped(pair, least, rng, most)
        if not agree and (small or K == 2):
            pair, least = follower.moved(pair, least, rng, MOST_FAILED[crosses])
        if small or not agree:
            pair, least = follower.regrouped(pair, least, rng, most)
        if not whole:
            pair = _on_all(make, exact, pair, features)
            if not agree and problem.counts.nnz <= MEDIUM:  # an optimum of some samples may not be one of all
                follower = _Follower(make, make(exact), bar, follower.n_seen)
                found = follower.advance(lifted(exact, pair.loadings, pair.factors), SETTLED)
                pair, _ = follower.regrouped(*found, rng, most, MOST_VAIN - 1)
    ordered = arranged(pair.loadings, pair.factors)  # with a penalty, the first factor is the one without
    return Point(*adapt_start(problem, *ordered, rng)), names[best]


def _on_all(make: Make, problem: Problem, pair: Point, features: NDArray[np.int64]) -> Point:
    """Return what was found for some samples and features for all of them."""
    factors = np.zeros((problem.counts.n_features, pair.factors.shape[1]))
    factors[features] = pair.factors
    everyone = make(replace(problem, zeros=quadratic(problem.link)))
    return spread(everyone, Point(pair.loadings, factors), FREE).on_host()


class _Follower:
    """Follows the solver from one start after the other, with adaptive zeros, and improves where it leads."""

    def __init__(self, make: Make, exact: Engine, bar: Progress | None = None, n_seen: int = 0) -> None:
        self.make, self.exact, self.bar, self.n_seen = make, exact, bar, n_seen
        identity = exact.problem.link.is_identity
        self.update = None if identity else AdaptiveUpdate(SEARCH_ERRORS, early=1.0)
        self.engine = exact if self.update is None else make(self.update.begin(exact))
        self.effects = finds_effects(exact)
        # an objective, and the factors that no regrouping has ended there yet
        self.left: tuple[float, list[int]] = (math.nan, [])

    def crossed(self, ends: list[End], best: Point, least: float) -> End:
        """Add what factors other ends have and the best one has not, and drop those that matter least."""
        problem, exposure = self.exact.problem, self.exact.problem.exposure[:, None]
        matrix, K = _linked(problem), best.factors.shape[1]
        matrix.data *= np.repeat(exposure, np.diff(matrix.indptr))
        for other, _ in sorted(ends, key=lambda end: end[1])[1:]:
            a, b = (np.maximum(np.linalg.norm(point.factors, axis=0), SMALLEST) for point in (best, other))
            new = (best.factors.T @ other.factors / np.outer(a, b)).max(axis=0) < UNLIKE
            if not new.any():
                continue
            pairs = (best.loadings, other.loadings), (best.factors, other.factors)
            point, _ = self.advance(lifted(problem, *(np.c_[a, b[:, new]] for a, b in pairs)), GROWN)
            kept = most_useful(matrix, exposure * point.loadings, point.factors, K)
            if max(kept) < K:  # none is new
                continue
            few = lifted(problem, point.loadings[:, kept], point.factors[:, kept])
            child, reached = self.advance(few, CROSSED, least)
            if reached < least:
                best, least = child, reached
        return best, least

    def moved(self, pair: Point, least: float, rng: Random, most_failed: int) -> End:
        """Exchange some factors, again and again, and return the best point that was reached."""
        problem, best, n_failed = self.exact.problem, pair, 0
        for number, n_new in enumerate(islice(cycle(EXCHANGED), MOST_EXCHANGED), 1):
            self._describe(number, MOST_EXCHANGED)
            new = lifted(problem, *exchanged(pair.loadings, pair.factors, n_new, rng))
            not_far = least + DRIFT * abs(least)
            other, reached = self.advance(new, AGAIN, not_far)
            n_failed = 0 if least - reached > WORTHWHILE * abs(least) else n_failed + 1
            if reached < not_far:
                pair = other
            if reached < least:
                best, least = other, reached
            if n_failed == most_failed:
                break
        return best, least

    def regrouped(self, best: Point, least: float, rng: Random, most: int, most_vain: int = MOST_VAIN) -> End:
        """End a factor and, a few iterations later, split another, as long as that gains."""
        problem, exposure = self.exact.problem, self.exact.problem.exposure[:, None]
        matrix, K = _linked(problem), best.factors.shape[1]
        matrix.data *= np.repeat(exposure, np.diff(matrix.indptr))
        n_failed, (at, left) = 0, self.left
        for number in range(1, most + 1):
            self._describe(number, most)
            if not at - least <= WORTHWHILE * abs(least):  # another point
                at, left = least, list(rng.permutation(K))
            if not left or n_failed == most_vain:
                break
            ended = left.pop()
            fewer = (np.delete(side, ended, axis=1) for side in (best.loadings, best.factors))
            point, _ = self.advance(lifted(problem, *fewer), ONE_LESS)
            parts = matrix, exposure * point.loadings, point.factors
            with threadpool_limits(1, user_api="blas"):  # the same bits for any number of threads
                loadings, factors = halved(*parts, best_split(*parts, rng))
            order = np.insert(np.arange(K - 1), ended, K - 1)  # the second half comes where one ended
            pair = lifted(problem, (loadings / exposure)[:, order], factors[:, order])
            other, reached = self.advance(pair, REGROUPED, least)
            n_failed = 0 if least - reached > GAINED * abs(least) else n_failed + 1
            if reached < least:
                best, least = other, reached
        self.left = at, left
        return best, least

    def _describe(self, number: int, most: int) -> None:
        if self.bar is not None:
            self.bar.describe(f"improving the start ({number} of at most {most})")

    def advance(self, start: tuple[Array, Array], n_iterations: int, target: float = math.inf) -> End:
        """Return where iterations lead, errors of zeros put right; fewer where the target is out of reach."""
        batches, last = self.exact.problem.batches, None
        if self.effects and batches is not None:  # every start begins with the same effects
            self.engine = engine_at(self.engine, batches.effects)
        for most in (FIRST_LOOK, n_iterations):
            iterations = alternate(
                self.engine,
                *(start if last is None else (last.loadings, last.factors)),
                extrapolation=Extrapolation(),
                max_iter=most,
                after=last,
                new_problem=last is not None,
                effects=self.effects,
                residuals=False,
            )
            n_small = 0
            for last in iterations:
                if self.bar is not None:
                    self.bar.show(self.n_seen + last.index)
                n_small = n_small + 1 if last.relative_change <= NEARLY_CONVERGED else 0
                ahead = (n_iterations - last.index) * last.relative_change * abs(last.objective)
                hopeless = last.index >= FIRST_LOOK and last.objective - target > 0.5 * ahead  # it slows down
                if n_small == 2 or hopeless:
                    break
            assert last is not None
            end, self.engine = Point(last.loadings, last.factors), engine_at(self.engine, last.effects)
            signed, error = self.engine.zero_errors(end.loadings, end.factors, roughly=True)
            if self.update is not None:  # one choice of zeros serves all starts while its errors are small
                how: Any = {"index": last.index, "final": False, "error": error}
                fresh = self.update(self.engine, end, last.loss, **how)
                self.engine = self.engine if fresh is None else self.make(fresh.problem)
            if hopeless:
                break
        assert last is not None
        self.n_seen += last.index
        return end.on_host(), last.objective + signed


def exchanged(loadings: Array, factors: Array, n_new: int, rng: Random) -> tuple[Array, Array]:
    """Put the mean of all samples with noise in the place of random columns, at most half of them.

    The columns that stay say less in the mean, so that the sum of all stays about the same.
    """
    n_samples, n_components = loadings.shape
    n_new = min(n_new, n_components // 2)
    kept = np.sort(rng.permutation(n_components)[n_new:])
    loadings, factors = loadings[:, kept], factors[:, kept]
    mean = (factors @ loadings.mean(axis=0))[:, None] / n_components
    of_samples, of_features = (rng.uniform(0.1, 1.9, size=(n, n_new)) for n in (n_samples, len(factors)))
    return np.c_[loadings, of_samples], np.c_[factors * (1.0 - n_new / n_components), mean * of_features]


# ---------- which factor is split, and how

# A factor's own part of a count is the count times its share of eta, its expected part if the link is the
# identity. The first axis of a correspondence analysis of a factor's own counts, scores u of samples and v of
# features, makes two factors of it, ``l (1 + u), f (1 + v)`` and ``l (1 - u), f (1 - v)``, halved. With the
# identity link the log-likelihood gains at least what the own counts z gain, ``sum z log(new / old)`` less
# the change of the total, before a single iteration; with others this ranks factors. Some rows are enough.

MOST_ROWS, MOST_ENTRIES, FEWEST_ROWS = 1000, 150_000, 50  # by which splits are ranked
BLOCK = 1 << 12  # entries at a time
N_POWER = 4  # steps of the power method
STEEPEST = 0.9  # largest score: no entry of a split factor becomes zero
SMALLEST = 1e-30  # in place of zero, under a division

Split: TypeAlias = tuple[int, Array, float]
"""A factor, scores of features, and a guess of what is gained."""


def best_split(matrix: sparse.csr_array, loadings: Array, factors: Array, rng: Random) -> Split:
    """Return the split that promises most; counts are on the scale of ``loadings @ factors.T``."""
    n, best = len(loadings), (0, np.zeros(0), -math.inf)
    most = min(MOST_ROWS, max(FEWEST_ROWS, MOST_ENTRIES * n // max(matrix.nnz, 1)))
    rows = np.sort(rng.permutation(n)[:most])
    matrix = matrix[rows]
    i, j, parts = _parts(matrix, loadings[rows], factors)
    ratio = matrix.data / np.maximum(parts.sum(axis=0), SMALLEST)
    for k, part in enumerate(parts):
        own = sparse.csr_array((ratio * part, j, matrix.indptr), shape=matrix.shape)
        of_rows, of_features = own.sum(axis=1), own.sum(axis=0)
        scores = _first_axis(own, rng)
        u, v = _of_samples(own, scores), np.clip(scores, -STEEPEST, STEEPEST)
        excess = (of_rows @ u) * (of_features @ v) / max(of_rows.sum(), SMALLEST)
        gain = n / len(rows) * float(own.data @ np.log1p(u[i] * v[j]) - excess)
        if gain > best[2]:
            best = k, scores, gain
    return best


def halved(matrix: sparse.csr_array, loadings: Array, factors: Array, split: Split) -> tuple[Array, Array]:
    """Split a factor, the second half last; the scores of all samples follow from those of features."""
    k, scores, _ = split
    own, rows = matrix.copy(), np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    for at in range(0, own.nnz, BLOCK):  # a block of entries stays in the cache
        i, j = rows[at : at + BLOCK], own.indices[at : at + BLOCK]
        eta = np.einsum("ek,ek->e", loadings[i], factors[j])
        own.data[at : at + BLOCK] *= loadings[i, k] * factors[j, k] / np.maximum(eta, SMALLEST)
    u, v = _of_samples(own, scores), np.clip(scores, -STEEPEST, STEEPEST)
    loadings = np.c_[loadings, loadings[:, k] * (1.0 - u)]
    factors = np.c_[factors, 0.5 * factors[:, k] * (1.0 - v)]
    loadings[:, k] *= 1.0 + u
    factors[:, k] *= 0.5 * (1.0 + v)
    return loadings, factors


def most_useful(matrix: sparse.csr_array, loadings: Array, factors: Array, n: int) -> list[int]:
    """Return the n factors that are left when the one whose end costs least is dropped, again and again."""
    *_, parts = _parts(matrix, loadings, factors)
    kept, eta, counts = list(range(len(parts))), parts.sum(axis=0), np.float32(matrix.data)
    while len(kept) > n:
        shares = (parts[k] / np.maximum(eta, SMALLEST) for k in kept)
        lost = [-counts @ (np.log(np.maximum(1.0 - own, 0.05)) + own) for own in shares]
        eta -= parts[kept.pop(int(np.argmin(lost)))]
    return kept


def _parts(matrix: sparse.csr_array, loadings: Array, factors: Array) -> tuple[Any, Any, Any]:
    """Return row and column of each entry, and the part of every factor there, exact enough for a guess."""
    i, j = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices
    return i, j, np.take(np.float32(loadings.T), i, axis=1) * np.take(np.float32(factors.T), j, axis=1)


def _of_samples(own: sparse.csr_array, scores: Array) -> Array:
    """Return the scores of samples that follow from those of features, clipped."""
    sums = own.sum(axis=1)
    found = own @ scores / np.maximum(sums, SMALLEST)
    found /= max(math.sqrt(sums @ found**2 / max(sums.sum(), SMALLEST)), SMALLEST)
    return np.clip(found, -STEEPEST, STEEPEST)


def _first_axis(own: sparse.csr_array, rng: Random) -> Array:
    """Return scores of columns, whose mean is 0 and variance 1, weighted by their sums."""
    rows, columns = own.sum(axis=1), own.sum(axis=0)
    total = max(rows.sum(), SMALLEST)
    a, b = np.sqrt(rows / total), np.sqrt(columns / total)
    inverse_a, inverse_b = (np.where(x > 0.0, 1.0 / np.maximum(x, 1e-150), 0.0) for x in (a, b))
    v = rng.normal(size=len(b))
    for _ in range(N_POWER):
        v -= b * (b @ v)
        u = inverse_a * (own @ (inverse_b * v)) / total
        u -= a * (a @ u)
        u /= max(float(np.linalg.norm(u)), SMALLEST)
        v = inverse_b * (own.T @ (inverse_a * u)) / total
        v -= b * (b @ v)
        v /= max(float(np.linalg.norm(v)), SMALLEST)
    return v * inverse_b
