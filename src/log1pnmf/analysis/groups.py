"""Groups of samples: what users pass as `groupby`, and means by group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.fitting.annotated import is_annotated

__all__ = [
    "MISSING",
    "MOST_GROUPS",
    "Groups",
    "as_numbers",
    "check_length",
    "fold_groups",
    "group_means",
    "labels_of",
    "quarters",
    "read_groups",
    "read_labels",
]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MISSING = "NA"
"""Name of the group of samples without a label."""

FEWEST_FRACTIONS = 5
"""Numbers that are not whole, more of them different than this and than half of the samples, are a scale."""

MOST_GROUPS = 60
"""Most groups that a plot can show. Numbers with more different values are a scale, not groups."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each sample is in; the groups have an order.

    Parameters
    ----------
    codes : ndarray of int, shape (n,)
        Position in `names`.
    names : tuple of str
        Every group has at least one sample.

    Examples
    --------
    >>> groups = Groups.of(["b", "a", "b"])
    >>> groups.names, groups.codes.tolist(), groups.sizes.tolist()
    (('a', 'b'), [1, 0, 1], [1, 2])
    """

    codes: Indices
    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Any) -> Groups:
        """Group samples by their labels.

        Parameters
        ----------
        labels : array-like of shape (n,), pandas.Series or pandas.Categorical, or Groups
            Categories keep their order, other labels are sorted; missing ones make a last group, "NA".
        """
        if isinstance(labels, Groups):
            return labels
        categorical = getattr(labels, "cat", labels)  # a pandas Series keeps its categories there
        if hasattr(categorical, "categories") and hasattr(categorical, "codes"):
            codes = np.asarray(categorical.codes, dtype=np.intp)
            names = [str(name) for name in categorical.categories]
        else:
            codes, names = _sorted_groups(np.asarray(labels))
        return cls._without_empty(np.where(codes < 0, len(names), codes), [*names, MISSING])

    @classmethod
    def _without_empty(cls, codes: Indices, names: list[str]) -> Groups:
        used, packed = np.unique(codes, return_inverse=True)
        return cls(packed.astype(np.intp), tuple(names[code] for code in used))

    @property
    def labels(self) -> NDArray[np.object_]:
        """Name of the group of every sample."""
        return np.array(self.names, dtype=object)[self.codes]

    @property
    def sizes(self) -> Indices:
        """Number of samples in each group."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.intp)

    def __len__(self) -> int:
        return len(self.codes)


def _sorted_groups(labels: np.ndarray) -> tuple[Indices, list[str]]:
    """Codes (-1 where the label is missing) and names, sorted: numbers by size, all else as text."""
    if labels.ndim != 1:
        raise ValueError(f"groupby must have one label for each sample, got an array of shape {labels.shape}")
    missing = np.array([_is_missing(label) for label in labels.tolist()], dtype=bool)
    known = labels[~missing]
    if known.dtype.kind not in "biuf":
        known = np.array([str(label) for label in known.tolist()], dtype=np.str_)
    names, packed = np.unique(known, return_inverse=True)
    codes = np.full(len(labels), -1, dtype=np.intp)
    codes[~missing] = packed
    return codes, [str(name) for name in names.tolist()]


def _is_missing(label: object) -> bool:
    """Whether it is None, NaN or pandas' NA: only these do not surely equal themselves."""
    same = label == label  # noqa: PLR0124
    return label is None or not isinstance(same, bool | np.bool_) or not same


def numbers_of(labels: Any) -> Array | None:
    """Return labels that are numbers, NaN where one is missing; None for text, booleans and categories.

    Examples
    --------
    >>> numbers_of([31, None, 40]), numbers_of(["a", "b"]), numbers_of([True, False])
    (array([31., nan, 40.]), None, None)
    """
    if isinstance(labels, Groups) or hasattr(getattr(labels, "cat", labels), "categories"):
        return None
    values = np.asarray(labels)
    if values.dtype == object:
        kinds = {type(value) for value in values.ravel().tolist() if not _is_missing(value)}
        if not kinds <= {int, float, np.float64, np.float32, np.int64}:
            return None
        values = np.array([np.nan if _is_missing(value) else value for value in values.tolist()], dtype=float)
    if values.dtype.kind not in "iuf" or values.ndim != 1:
        return None
    return values.astype(np.float64)


def as_numbers(labels: Any) -> Array | None:
    """Return labels that are a scale: more numbers than there can be groups, or differing fractions; or None.

    Examples
    --------
    >>> as_numbers([1, 2, 2, 1]) is None, as_numbers(["a"] * 100) is None
    (True, True)
    >>> as_numbers(range(100)).shape, as_numbers([0.1, 0.5, 0.7, 1.2, 1.9, 2.5]).shape
    ((100,), (6,))
    """
    values = numbers_of(labels)
    if values is None:
        return None
    known = values[~np.isnan(values)]
    n_different = len(np.unique(known))
    fractions = n_different > max(FEWEST_FRACTIONS, len(known) / 2) and bool((known != np.rint(known)).any())
    return values if n_different > MOST_GROUPS or fractions else None


# ---------------------------------------------------------------- what users pass as groupby


def labels_of(source: Any, groupby: Any) -> Any:
    """Find the labels that a user means: a column of ``adata.obs``, or the labels themselves."""
    if not isinstance(groupby, str):
        return groupby
    if not is_annotated(source):
        raise ValueError(
            f"groupby={groupby!r} names a column of adata.obs, but the source is a {type(source).__name__}; "
            "pass the labels themselves, one for each sample"
        )
    if groupby not in source.obs:
        known = ", ".join(map(repr, source.obs.columns)) or "none"
        raise KeyError(f"adata.obs has no column {groupby!r}; it has: {known}")
    return source.obs[groupby]


def read_labels(source: Any, groupby: Any) -> Any:
    """Read groups, or numbers to sort the samples by; refuse more groups than a plot can show.

    Examples
    --------
    >>> read_labels(None, ["b", "a", "b"]).names
    ('a', 'b')
    """
    labels = labels_of(source, groupby)
    if as_numbers(labels) is not None:
        return labels
    groups = Groups.of(labels)
    if len(groups.names) > MOST_GROUPS:
        raise ValueError(
            f"{_called(groupby)} has {len(groups.names)} different labels, more than the {MOST_GROUPS} "
            "groups that a plot can show; merge some, or choose a column with fewer"
        )
    return groups


def read_groups(source: Any, groupby: Any) -> Groups:
    """Read groups; refuse numbers on a scale, and more groups than a plot can show.

    Examples
    --------
    >>> read_groups(None, ["b", "a", "b"]).names
    ('a', 'b')
    """
    labels = read_labels(source, groupby)
    if isinstance(labels, Groups):
        return labels
    raise ValueError(
        f"{_called(groupby)} holds numbers with more than {MOST_GROUPS} different values, too many for "
        "groups; cut them into ranges first, for instance with pandas.qcut(values, 4), or use "
        "log1pnmf.pl.structure, which sorts the samples by them"
    )


def _called(groupby: Any) -> str:
    return f"groupby={groupby!r}" if isinstance(groupby, str) else "groupby"


# ---------------------------------------------------------------- what is done with groups


def check_length(labels: np.ndarray, n: int) -> None:
    """Refuse labels of another number of samples."""
    if len(labels) != n:
        raise ValueError(f"groupby must have one label for each of the {n} samples, got {len(labels)}")


def group_means(loadings: Array, groups: Groups) -> Array:
    """Mean loading of every group (row) on every factor.

    Examples
    --------
    >>> group_means(np.array([[1.0], [3.0], [5.0]]), Groups.of(["a", "a", "b"])).tolist()
    [[2.0], [5.0]]
    """
    check_length(groups.codes, len(loadings))
    sums = np.stack([np.bincount(groups.codes, column) for column in loadings.T], axis=1)
    return sums / groups.sizes[:, None]


def fold_groups(groups: Groups, most: int) -> Groups:
    """Merge the smallest groups where there are more than `most`; the merged group comes last.

    Examples
    --------
    >>> folded = fold_groups(Groups.of(["a", "b", "b", "c", "d", "d"]), 3)
    >>> folded.names, folded.codes.tolist()
    (('b', 'd', '2 other groups'), [2, 0, 0, 2, 1, 1])
    """
    if len(groups.names) <= most:
        return groups
    kept = np.sort(np.argsort(-groups.sizes, kind="stable")[: most - 1])
    position = np.full(len(groups.names), most - 1, dtype=np.intp)
    position[kept] = np.arange(most - 1)
    names = [groups.names[code] for code in kept]
    return Groups(position[groups.codes], (*names, f"{len(groups.names) - len(kept)} other groups"))


def quarters(values: Array) -> Groups:
    """Cut numbers into four ranges with as many samples each; NaN are a group of their own.

    Examples
    --------
    >>> quarters(np.arange(100.0)).names
    ('0.0 to 24.8', '24.8 to 49.5', '49.5 to 74.2', '74.2 to 99.0')
    """
    ends = np.quantile(values[~np.isnan(values)], np.linspace(0.0, 1.0, 5))
    names = [*(f"{low} to {high}" for low, high in pairwise(_alike(ends))), MISSING]
    codes = np.where(np.isnan(values), 4, np.searchsorted(ends[1:-1], values, side="right"))
    return Groups._without_empty(codes, names)


def _alike(values: Array) -> list[str]:
    """Write numbers with as many decimals each, so that three digits tell them apart."""
    span = float(np.ptp(values))
    large = float(np.abs(values).max())
    if not 1e-3 <= span <= 1e6 or large > 1e6:
        return [f"{value:.3g}" for value in values]
    decimals = max(0, 2 - math.floor(math.log10(span)))
    return [f"{value:.{decimals}f}" for value in values]
