"""Known factors and loadings: tables, mappings and sets are checked and become a `Structure`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import Random, check_not_negative
from log1pnmf.counts.counts import Counts, check_unmasked
from log1pnmf.engines.base import Engine
from log1pnmf.model.noise import POISSON
from log1pnmf.model.problem import FREE_KIND, Array, Constraint, Problem, Structure
from log1pnmf.model.zeros import quadratic

from .fit import check_factor_names, usual_factor_names
from .settings import Settings
from .solver import Point, alternate

# ---------- known factors and loadings, as users pass them


def parts_of_known(known: Structure, n_components: int) -> dict[str, Any]:
    """Return what a `Fit` keeps of it, beside its loadings and factors."""
    names, usual = known.names, usual_factor_names(n_components)
    kinds = known.kinds + [FREE_KIND] * (n_components - known.n_known)
    parts: dict[str, Any] = {"factor_kinds": np.array(kinds, dtype=object)}
    if known.mask.size:
        parts["mask"] = known.mask
    if names:
        called = np.array([*names, *usual[len(names) :]], dtype=object)
        check_factor_names(called, n_components)
        parts["given_factor_names"] = called
    return parts


def structure_of(
    counts: Counts,
    settings: Settings,
    *,
    fixed_loadings: Any = None,
    fixed_factors: Any = None,
    mask: Any = None,
) -> Structure | None:
    """Check what is known of factors; None where nothing is."""
    if fixed_loadings is None and fixed_factors is None and mask is None:
        return None
    (n, m), samples, features = counts.shape, counts.sample_names, counts.feature_names
    loadings, called = known_columns("fixed_loadings", fixed_loadings, n, samples)
    factors, called_factors = known_columns("fixed_factors", fixed_factors, m, features)
    allowed, called_sets = _mask(mask, m, features)
    names = [*called, *called_factors, *called_sets]
    if len(names) > settings.n_components:
        raise ValueError(
            f"n_components counts all factors, also the known ones: there are {len(names)} of these, but "
            f"n_components={settings.n_components}; pass n_components={len(names)} or more"
        )
    usual = usual_factor_names(settings.n_components)
    final = [usual[k] if name is None else name for k, name in enumerate(names)]
    known = Structure(loadings, factors, allowed, tuple(final) if final != usual[: len(final)] else ())
    _check_possible(counts, known, settings)
    return known


def known_columns(
    what: str, given: Any, length: int, names: NDArray[np.object_] | None = None
) -> tuple[Array, list[str | None]]:
    """Check numbers that are one column for each factor."""
    if given is None:
        return np.zeros((length, 0)), []
    called: list[str | None] | None = None
    if hasattr(given, "columns") and hasattr(given, "index"):
        given, called = _frame(what, given, length, names)
    elif isinstance(given, Mapping):
        given, called = list(given.values()), [str(name) for name in given]
        columns = [numbers_of(what, one) for one in given]
        if any(one.shape not in ((), (length,)) for one in columns) or not columns:
            raise ValueError(f"{what} must have one number for all, or {length} of them, for every name")
        given = np.array([np.broadcast_to(one, length) for one in columns]).T
    values = numbers_of(what, given)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim == 2 and len(values) != length and values.shape[1] == length:
        values = values.T
    if values.ndim != 2 or len(values) != length or not values.shape[1]:
        each = "samples" if what == "fixed_loadings" else "features"
        raise ValueError(f"{what} must have {length} {each} x factors, got shape {values.shape}")
    unknown = np.isnan(values) if what == "fixed_loadings" else np.zeros(values.shape, dtype=bool)
    some = unknown.any(axis=0)
    if (np.nan_to_num(values)[:, some] != 0.0).any() or unknown.all(axis=0).any():
        raise ValueError(
            f"a column of {what} has to be known in all samples; or 0 in some, and NaN where it is not known"
        )
    check_not_negative(what, values, unknown)
    if not values.any(axis=0).all():
        k = int(np.argmin(values.any(axis=0)))
        raise ValueError(f"column {k} of {what} is zero throughout: leave it out")
    return np.ascontiguousarray(values), called or [None] * values.shape[1]


def numbers_of(what: str, given: Any) -> Array:
    """Return a copy of numbers as an array; refuse what is masked or no number."""
    check_unmasked(given, what)
    try:
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what} must be numbers, got {type(given).__name__}") from None


def _frame(what: str, frame: Any, length: int, names: Any) -> tuple[Any, list[str | None]]:
    """Take the columns of a data frame, in the order of the samples or features."""
    if names is not None and len(frame) != length and len(set(map(str, frame.columns)) & set(names)):
        frame = frame.T
    called: list[str | None] = [str(name) for name in frame.columns]
    if names is None or frame.index.dtype.kind in "iu":
        return frame.to_numpy(), called
    places = {str(name): i for i, name in enumerate(frame.index)}
    missing = [str(name) for name in names if str(name) not in places]
    if missing:
        each = "sample" if what == "fixed_loadings" else "feature"
        raise ValueError(
            f"{what} has no row for {each} {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f"; its rows have to be named as the {each}s are"
        )
    return frame.to_numpy()[[places[str(name)] for name in names]], called


# ---------------------------------------------------------------- sets of features


def _mask(given: Any, m: int, names: Any) -> tuple[NDArray[np.bool_], list[str | None]]:
    if given is None:
        return np.zeros((m, 0), dtype=bool), []
    if isinstance(given, Mapping):
        places = {str(name): j for j, name in enumerate(range(m) if names is None else names)}
        columns = [_members(str(name), one, m, places) for name, one in given.items()]
        if not columns:
            raise ValueError("mask has no set of features: pass at least one, or None")
        return np.array(columns).T, [str(name) for name in given]
    called: list[str | None] | None = None
    if hasattr(given, "columns") and hasattr(given, "index"):
        given, called = given.to_numpy(), [str(name) for name in given.index]
    mask = np.asarray(given)
    if mask.ndim == 2 and mask.shape[1] != m and len(mask) == m:
        mask = mask.T
    if mask.ndim != 2 or mask.shape[1] != m or mask.dtype != bool:
        raise ValueError(
            f"mask must be True or False for factors x {m} features, or a dict of name to features; got an "
            f"array of {mask.dtype} with shape {mask.shape}"
        )
    if not mask.any(axis=1).all():
        raise ValueError(f"row {int(np.argmin(mask.any(axis=1)))} of mask allows no feature: leave it out")
    if called is None or len(called) != len(mask):
        called = [None] * len(mask)
    return np.ascontiguousarray(mask.T), called


def _members(name: str, members: Any, m: int, places: Mapping[str, int]) -> NDArray[np.bool_]:
    """Which features are in a set; names that the data do not have are left out."""
    inside = np.zeros(m, dtype=bool)
    if isinstance(members, str):
        raise ValueError(f"set {name!r} of mask must be a list of features, got the text {members!r}")
    members = list(members)
    if len(members) == m and all(isinstance(one, bool | np.bool_) for one in members):
        inside[:] = members
    else:
        inside[[places[str(one)] for one in members if str(one) in places]] = True
    if not inside.any():
        known = ", ".join(repr(one) for one in list(places)[:3])
        raise ValueError(
            f"none of the {len(members)} features of set {name!r} is in the data, whose features are "
            f"{known} and so on: leave the set out, or use the same kind of names"
        )
    return inside


def _check_possible(counts: Counts, known: Structure, settings: Settings) -> None:
    """Refuse counts that no factor may explain; a free factor may explain all."""
    if known.n_known < settings.n_components or (known.mask.size and np.isfinite(settings.mask_penalty)):
        return
    uncovered = ~(known.factors.any(axis=1) | known.mask.any(axis=1))
    without = ~known.loadings.any(axis=1)
    if not uncovered.any() or not without.any() or not counts.in_memory:
        return
    entries = counts.to_scipy().tocsr()[np.flatnonzero(without)][:, np.flatnonzero(uncovered)]
    if entries.nnz:
        i, j = (int(at[0]) for at in entries.nonzero())
        i, j = int(np.flatnonzero(without)[i]), int(np.flatnonzero(uncovered)[j])
        feature = f"feature {j}" if counts.feature_names is None else f"feature {counts.feature_names[j]!r}"
        raise ValueError(
            f"{feature} has counts in sample {i}, but no factor may explain them there; add a free factor "
            f"(n_components={settings.n_components + 1}), or a number for mask_penalty"
        )


# ---------- where a fit starts of whose factors something is known

BESIDE = 0.1  # part of the mean signal that a known factor has at first, beside free ones
N_FIRST = 5  # iterations with Poisson noise before others
FARTHEST = 5.0  # times that the loading of a set may be above or below that of a mean sample at first
OUTSIDE = 1e-3  # part of that which features outside of a mask have at first, where they may have any


def beside_known(
    problem: Problem, known: Structure, free: Point | None, constraint: Constraint, rng: Random
) -> Point:
    """Put known factors before the start of the free ones.

    What is not known of a factor begins with the mean profile of the features, or with the same loadings for
    all samples, at a small part of the signal. Samples begin with more of a set of which they have more
    counts: with the same for all, a set beside a baseline could fall to zero, and would stay there.
    """
    n, alpha = problem.counts.n_samples, problem.link.alpha
    profile = problem.profile[:, None]
    part = BESIDE if free is not None else 1.0 / known.n_known
    given = np.where(np.isnan(known.loadings), 1.0, known.loadings)
    size = np.maximum(given.mean(axis=0), np.finfo(np.float64).tiny)
    level = part * profile.mean() * alpha / known.factors.mean(axis=0)
    spread = rng.uniform(0.8, 1.2, size=(n, known.mask.shape[1]))
    loadings = [given, np.tile(level, (n, 1)), np.sqrt(part) * spread * _shares(problem, known.mask)]
    factors = [
        part * profile / size,
        known.factors / alpha,
        np.sqrt(part) * profile * np.where(known.mask, 1.0, OUTSIDE),
    ]
    if free is not None:
        loadings.append(free.loadings)
        factors.append(free.factors)
    return within(constraint, Point(np.hstack(loadings), np.hstack(factors)))


def _shares(problem: Problem, mask: NDArray[np.bool_]) -> Array:
    """Divide the counts of each set in every sample by those of a mean sample of its size; samples x sets."""
    rates = problem.counts.by_column.row_sums() / problem.size_factors.sum()
    expected = np.outer(problem.size_factors, rates @ mask)
    seen = np.asarray(problem.counts.on_host().by_row.to_scipy() @ mask.astype(np.float64))
    ratio = np.divide(seen, expected, out=np.ones_like(expected), where=expected > 0.0)
    return ratio.clip(1.0 / FARTHEST, FARTHEST)


def improved(
    make: Callable[[Problem], Engine], problem: Problem, pair: Point, constraint: Constraint
) -> Point:
    """Go some iterations with Poisson noise: with another, steps from a crude start may go too far."""
    zeros = None if problem.link.is_identity else quadratic(problem.link)
    engine, reached = make(replace(problem, noise=POISSON, zeros=zeros)), pair
    for iteration in alternate(engine, pair.loadings, pair.factors, constraint=constraint, max_iter=N_FIRST):
        here = iteration.on_host()
        reached = Point(here.loadings, here.factors)
    return reached


def within(constraint: Constraint, pair: Point) -> Point:
    """Move a start to the bounds; what is known is then as it is known."""
    return Point(constraint.loadings.clip(pair.loadings), constraint.factors.clip(pair.factors))
