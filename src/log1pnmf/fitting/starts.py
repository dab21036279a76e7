"""Where a fit starts: rank-one, random, non-negative SVD, or given. Everything is on the eta scale.

Which optimum is found depends on the start. No start has an entry from which the solver could not leave, rows
and columns without counts are zero, and no two columns are alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from log1pnmf._common.arrays import on_host
from log1pnmf._common.checks import Random, check_choice, new_seed
from log1pnmf.counts.counts import check_unmasked
from log1pnmf.engines.base import Engine
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem

from .fit import Fit, scale_of, scaled
from .settings import INITS
from .solver import Stopping, alternate

# ---------- where a fit starts

Array = NDArray[np.float64]

STARTS = tuple(init for init in INITS if init != "auto")
TINY = 1e-8  # relative to the baseline: the product of two such columns does not change the fit
LIFTED = 1e-3  # relative to the column's mean, where a given start has zeros that rule out a count
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
        loadings, factors = (_beside(column, n_components, rng) for column in rank_one(engine, rng))
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
    rates = problem.counts.by_column.row_sums() / problem.size_factors.sum()
    loadings = rng.uniform(0.5, 1.5, size=(problem.counts.n_samples, 1))
    factors = (_eta(problem, rates) * rng.uniform(0.5, 1.5, size=rates.shape))[:, None]
    loadings, factors = _without_empty(problem, loadings, factors)
    stopping = Stopping(tol)
    for iteration in alternate(engine, loadings, factors, max_iter=max_iter):
        loadings, factors = iteration.loadings, iteration.factors
        if stopping(iteration):
            break
    return on_host(loadings), on_host(factors)


def _beside(column: Array, n_components: int, rng: Random) -> Array:
    """Put tiny random columns beside the baseline."""
    size = (len(column), n_components - 1)
    return np.hstack([column, TINY * column.mean() * rng.uniform(0.5, 1.5, size=size)])


def _eta(problem: Problem, rates: Array) -> Array:
    return problem.link.link(rates) / problem.link.alpha


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
    return _fill(loadings, rng), _fill(factors, rng)


def _linked(problem: Problem) -> sparse.csr_array:
    """Take counts to the eta scale, entry by entry; zeros stay zeros."""
    matrix, exposure = problem.counts.to_scipy(), problem.loadings_side.row_exposure
    i, batches = np.repeat(np.arange(len(exposure)), np.diff(matrix.indptr)), problem.batches
    values = matrix.data / exposure[i]
    if batches is not None:
        values = values / batches.effects[batches.labels[i], matrix.indices]
    values = values if problem.link.is_identity else np.log1p(values)
    return sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def _fill(values: Array, rng: Random) -> Array:
    mean = values.mean() if values.any() else 1.0
    return np.where(values > 0.0, values, SVD_FILL * mean * rng.uniform(0.5, 1.5, size=values.shape))


# ---------------------------------------------------------------- given


def check_start(start: Any, shape: tuple[int, int], n_components: int) -> tuple[Array, Array]:
    """Check a start given by the user.

    `start`: arrays of shape (n, K) and (m, K), finite and non-negative. Factors may be K x m, as
    `components_` are; where m = K they are taken as m x K.
    """
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
        check_unmasked(values, f"init {name}")
        try:
            array = np.array(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"init {name} must be numbers, got {type(values).__name__}") from None
        if name == "factors" and array.shape == (n_components, n) and n != n_components:
            array = np.ascontiguousarray(array.T)
        if array.shape != (n, n_components):
            also = f" or ({n_components}, {n})" if name == "factors" else ""
            raise ValueError(f"init {name} must have shape ({n}, {n_components}){also}, got {array.shape}")
        bad = ~(np.isfinite(array) & (array >= 0.0))
        if bad.any():
            i, k = (int(x) for x in np.argwhere(bad)[0])
            raise ValueError(
                f"init {name} must be finite and not negative, got {array[i, k]} at row {i}, column {k}"
            )
        checked.append(array)
    return checked[0], checked[1]


def adapt_start(problem: Problem, loadings: Array, factors: Array, rng: Random) -> tuple[Array, Array]:
    """Make a checked start usable.

    Counts whose mean would be zero get small positive loadings and factors, columns that are zero on both
    sides or copies of each other get noise, empty rows and columns become zero. Nothing else is changed.
    """
    loadings, factors, seen = loadings.copy(), factors.copy(), set()
    used = np.asarray(loadings.any(axis=0) | factors.any(axis=0))
    for k in range(loadings.shape[1]):
        digest = _digest(loadings, factors, k)
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


def _digest(loadings: Array, factors: Array, k: int) -> int:
    """Return columns apart; the zero has no sign here."""
    return hash(((loadings[:, k] + 0.0).tobytes(), (factors[:, k] + 0.0).tobytes()))


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
    """Raise every entry to a small part of its column's mean; empty rows and columns are zero."""
    loadings, factors = (np.maximum(values, LIFTED * values.mean(axis=0)) for values in (loadings, factors))
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

    low = high = math.log(float(_eta(problem, np.asarray(rate))) / eta.max())
    while excess(low) > 0.0:
        low -= 1.0
    while excess(high) < 0.0:
        high += 1.0
    root = scipy.optimize.brentq(excess, low, high, xtol=1e-9) if low < high else low
    scale = math.exp(0.5 * root)
    return loadings * scale, factors * scale


# ---------- starting a fit where another one ended: other samples, more or fewer factors, another link


def continued_start(
    fit: Fit,
    problem: Problem,
    n_components: int,
    rng: Random,
    *,
    loadings: Array | None = None,
) -> tuple[Array, Array]:
    """Make a start for `problem` from an earlier fit.

    Factors that are to be added are tiny and random, so that the start fits as the earlier fit did; when
    there are to be fewer, those with the largest share of the signal stay, and the baseline. When `c` has
    changed the loadings stay, with a largest value of 1, and each factor goes from the old link to the new
    one as the rates of a sample that has only this factor, fully; then all are scaled alike, so that the
    fitted total is that of the counts.
    """
    scale = scale_of(fit.loadings, fit.factors, "max", fit.kinds)
    old = scaled(fit.loadings if loadings is None else loadings, fit.factors, scale)
    old_loadings, old_factors = (side[:, :n_components] for side in old)
    if problem.link != fit.link:
        old_loadings, old_factors = _relinked(problem, old_loadings, old_factors, fit.link, rng)
    n_more = n_components - old_loadings.shape[1]
    return _with_more(old_loadings, n_more, rng), _with_more(old_factors, n_more, rng)


def _relinked(
    problem: Problem, loadings: Array, factors: Array, old: ShiftedLog, rng: Random
) -> tuple[Array, Array]:
    link = problem.link
    with np.errstate(over="ignore"):
        rates = np.minimum(old.inverse(factors), problem.counts.total)
    scaled_loadings, scaled_factors = match_total(problem, loadings, link.link(rates) / link.alpha, rng)
    return scaled_loadings, scaled_factors * link.alpha


def _with_more(values: Array, n_more: int, rng: Random) -> Array:
    """Add tiny random columns."""
    more = TINY * values.mean() * rng.uniform(0.5, 1.5, size=(len(values), n_more))
    return np.hstack([values, more])
