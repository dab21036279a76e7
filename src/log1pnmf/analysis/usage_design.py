"""What loadings are compared on: units (replicates or samples), their groups or numbers, and covariates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice

from .groups import Groups, numbers_of

__all__ = ["Design", "Units", "covariate_columns", "gather"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

INDEPENDENT = 1e-8
"""Of a column's length: what other columns must leave of it, or it cannot be told from them."""


@dataclass(frozen=True, eq=False)
class Units:
    """Observations of a test.

    Parameters
    ----------
    means : ndarray of shape (n_units, K)
        Mean loadings; slopes, where the number differs between samples of a replicate.
    groups : ndarray of shape (n_units,)
        Name of the group, or the number.
    order : tuple of str or None
        Groups in their order; None for a number.
    blocks : ndarray of int or None
        Replicate of every unit, where replicates have samples in several groups.
    covariates : ndarray of shape (n_units, n_covariates)
    within : bool
        Whether `means` are slopes within replicates.
    """

    means: Array
    groups: NDArray[Any]
    order: tuple[str, ...] | None
    blocks: Indices | None
    covariates: Array
    within: bool = False


def gather(
    loadings: Array, groups: Groups | Array, replicate: Any, covariates: Array, kept: NDArray[np.bool_]
) -> Units:
    """Bring samples together to the units that are compared; those that are not kept are left out."""
    rows = np.flatnonzero(kept)
    if not len(rows):
        raise ValueError("no sample has a group and all covariates; check the labels")
    donors = _replicates(replicate, len(loadings))[rows]
    loadings, covariates = loadings[rows], covariates[rows]
    if isinstance(groups, Groups):
        codes = groups.codes[rows]
        pairs, unit = np.unique(np.stack([codes, donors]), axis=1, return_inverse=True)
        names = np.array(groups.names, dtype=object)
        several = len(np.unique(pairs[1])) < pairs.shape[1]
        order = tuple(str(names[code]) for code in np.unique(codes))
        blocks = pairs[1].astype(np.intp) if several else None
        unit = unit.ravel()
        return Units(_means(loadings, unit), names[pairs[0]], order, blocks, _means(covariates, unit))
    values, unit = groups[rows], np.unique(donors, return_inverse=True)[1].ravel()
    centres = _means(values[:, None], unit)[:, 0]
    spread = values - centres[unit]
    varies = np.bincount(unit, np.abs(spread) > 1e-9 * np.abs(values).max()) > 0
    if not varies.any():
        return Units(_means(loadings, unit), centres, None, None, _means(covariates, unit))
    several = np.bincount(unit) > 1
    if not varies[several].all():
        first = np.unique(values[unit == np.argmax(varies)])[:2]
        raise ValueError(
            f"the number has several values in {varies.sum()} of {several.sum()} replicates (in one, "
            f"{first[0]:g} and {first[1]:g}), and one value in the others; use one value for each replicate, "
            "or only replicates in which it varies"
        )
    return _slopes(loadings, spread, unit, covariates)


def _slopes(loadings: Array, spread: Array, unit: Indices, covariates: Array) -> Units:
    """Find the slope on a number within every replicate; one observation each, to be compared with zero."""
    squares = np.bincount(unit, spread**2)
    good = squares > 0.0
    products = np.stack([np.bincount(unit, spread * column) for column in loadings.T], axis=1)
    slopes = np.asarray(products[good] / squares[good, None], dtype=np.float64)
    return Units(slopes, np.zeros(len(slopes)), None, None, _means(covariates, unit)[good], within=True)


def _replicates(replicate: Any, n: int) -> Indices:
    if replicate is None or replicate is True:
        return np.arange(n)
    codes = Groups.of(replicate).codes
    if len(codes) != n:
        raise ValueError(f"replicate must have one label for each of the {n} samples, got {len(codes)}")
    return codes


def _means(values: Array, unit: Indices) -> Array:
    sizes = np.bincount(unit)
    sums = [np.bincount(unit, column) for column in values.T]
    return np.stack(sums, axis=1) / sizes[:, None] if sums else np.zeros((len(sizes), 0))


@dataclass(frozen=True, eq=False)
class Design:
    """A linear model of units.

    Parameters
    ----------
    matrix : ndarray of shape (n_units, n_coefficients)
    tested : list of int
        Columns that are tested.
    comparisons : tuple of str
        What they are, group names; empty for a number.
    reference : str or None
    """

    matrix: Array
    tested: list[int]
    comparisons: tuple[str, ...]
    reference: str | None

    @classmethod
    def of(cls, units: Units, reference: str | None) -> Design:
        """Make the columns, and refuse what cannot be told apart."""
        n = len(units.means)
        centred = units.covariates - units.covariates.mean(axis=0)
        if units.order is None:
            if reference is not None:
                raise ValueError(f"reference={reference!r} is for groups, not for numbers; leave it out")
            wanted = np.ones((n, 1)) if units.within else (units.groups - units.groups.mean())[:, None]
            base = np.zeros((n, 0)) if units.within else np.ones((n, 1))
            return cls._checked(base, centred, wanted, (), None)
        if len(units.order) < 2:
            raise ValueError(f"all samples are in the group {units.order[0]!r}: there is nothing to compare")
        first = units.order[0] if reference is None else reference
        check_choice("reference", first, units.order)
        others = tuple(name for name in units.order if name != first)
        wanted = np.stack([units.groups == name for name in others], axis=1).astype(np.float64)
        base = np.ones((n, 1))
        if units.blocks is not None:
            base = (units.blocks[:, None] == np.unique(units.blocks)).astype(np.float64)
        return cls._checked(base, centred, wanted, others, first)

    @classmethod
    def _checked(
        cls, base: Array, covariates: Array, wanted: Array, others: tuple[str, ...], first: str | None
    ) -> Design:
        matrix = np.concatenate([wanted, base, covariates], axis=1)
        for column in range(wanted.shape[1]):
            rest = np.delete(matrix, column, axis=1)
            left = matrix[:, column] - rest @ np.linalg.lstsq(rest, matrix[:, column], rcond=None)[0]
            if np.linalg.norm(left) <= INDEPENDENT * max(float(np.linalg.norm(matrix[:, column])), 1e-300):
                what = f"the group {others[column]!r}" if others else "the number"
                raise ValueError(
                    f"{what} cannot be separated from the replicates and covariates, because they change "
                    "together; leave covariates out, or check the labels"
                )
        return cls(matrix, list(range(wanted.shape[1])), others, first)


def covariate_columns(covariates: Any, n: int) -> Array:
    """Make columns of numbers: labels become one column for each but the first."""
    if covariates is None:
        return np.zeros((n, 0))
    if hasattr(covariates, "columns"):
        named = [(str(name), covariates[name]) for name in covariates.columns]
    elif isinstance(covariates, Mapping):
        named = [(str(name), values) for name, values in covariates.items()]
    else:
        array = np.asarray(covariates)
        array = array[:, None] if array.ndim == 1 else array
        named = [(str(place), column) for place, column in enumerate(array.T)]
    columns = []
    for name, values in named:
        if len(values) != n:
            raise ValueError(
                f"covariate {name!r} must have one value for each of the {n} samples, got {len(values)}"
            )
        numbers = numbers_of(values)
        if numbers is not None:
            columns.append(numbers)
            continue
        labels = Groups.of(values)
        columns += [(labels.codes == code).astype(np.float64) for code in range(1, len(labels.names))]
    return np.stack(columns, axis=1) if columns else np.zeros((n, 0))
