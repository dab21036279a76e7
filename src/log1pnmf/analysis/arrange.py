"""Samples from left to right, so that neighbours look alike: by group, and inside a group by similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.cluster.vq import vq

__all__ = ["MISSING", "MOST_GROUPS", "Arrangement", "Groups", "arrange", "as_numbers"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MISSING = "NA"
"""Name of the group of samples without a label."""

MOST_GROUPS = 60
"""Groups that a plot can show; numbers with more different values than that are a scale, not groups."""

MOST_LEAVES = 300
"""Points that are put in order by hierarchical clustering; of larger groups these many centres."""

LLOYD_ROUNDS = 8

LEAST_PER_GROUP = 20
"""Samples that a group keeps where some have to be left out, if there is room."""


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

        Returns
        -------
        Groups
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
        raise ValueError(f"groups must have one label for each sample, got an array of shape {labels.shape}")
    missing = np.array([_is_missing(label) for label in labels.tolist()], dtype=bool)
    known = labels[~missing]
    if known.dtype.kind not in "biuf":
        known = np.array([str(label) for label in known.tolist()], dtype=np.str_)
    names, packed = np.unique(known, return_inverse=True)
    codes = np.full(len(labels), -1, dtype=np.intp)
    codes[~missing] = packed
    return codes, [str(name) for name in names.tolist()]


def _is_missing(label: object) -> bool:
    """Whether it is None, NaN or pandas' NA, the only things that do not equal themselves for sure."""
    same = label == label  # noqa: PLR0124
    return label is None or not isinstance(same, bool | np.bool_) or not same


def as_numbers(labels: Any) -> Array | None:
    """Read labels as a scale: numbers with more different values than there can be groups; else None.

    Examples
    --------
    >>> as_numbers([1, 2, 2, 1]) is None, as_numbers(["a"] * 100) is None
    (True, True)
    >>> as_numbers(range(100)).shape
    (100,)
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
    values = values.astype(np.float64)
    known = values[~np.isnan(values)]
    return values if len(np.unique(known)) > MOST_GROUPS else None


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Samples in the order in which they are drawn.

    Parameters
    ----------
    order : ndarray of int
        Samples from left to right; without those that were left out.
    spans : tuple of (str, int, int)
        Group, start and stop: its samples are ``order[start:stop]``. One span without a name where there are
        no groups.
    scale : ndarray of float, optional
        Where samples are in the order of a number: that number, from left to right; NaN at the end where it
        is missing.
    """

    order: Indices
    spans: tuple[tuple[str, int, int], ...]
    scale: Array | None = None


def arrange(
    loadings: Array, groups: Any = None, *, max_samples: int | None = None, random_state: int = 0
) -> Arrangement:
    """Put samples in order: group by group, and neighbours in a group alike.

    Parameters
    ----------
    loadings : array of shape (n, K)
    groups : array-like of shape (n,) or Groups, optional
        Label of every sample, see `Groups.of`. Numbers with more than 60 different values are no groups:
        they put the samples in order.
    max_samples : int, optional
        Samples to keep at most. Groups are thinned alike, but small ones keep more of theirs, so that they
        can still be seen.
    random_state : int
        Which samples are kept, and where the ordering of large groups starts.

    Returns
    -------
    Arrangement
        The same for the same arguments.

    Notes
    -----
    Up to 300 samples of a group are the leaves of an average-linkage tree, in the order that makes the path
    along them shortest. Larger groups are first divided around 300 centres, the centres put in order in the
    same way, and the samples of a centre sorted along the line from the centre before it to the one after it.

    Examples
    --------
    >>> arrangement = arrange([[0.9], [0.1], [0.5], [0.2]], ["x", "y", "x", "y"])
    >>> arrangement.order.tolist(), arrangement.spans
    ([0, 2, 3, 1], (('x', 0, 2), ('y', 2, 4)))
    """
    values = np.asarray(loadings, dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError(f"loadings must be a finite table of samples x factors, got shape {values.shape}")
    n = len(values)
    scale = as_numbers(groups) if groups is not None else None
    if scale is not None:
        return _along(_one_for_each(scale, n), max_samples)
    which = Groups(np.zeros(n, dtype=np.intp), ("",)) if groups is None else Groups.of(groups)
    _one_for_each(which, n)
    rng = np.random.default_rng(random_state)
    parts, spans, start = [], [], 0
    for code, (name, quota) in enumerate(zip(which.names, _quotas(which.sizes, max_samples), strict=True)):
        members = np.flatnonzero(which.codes == code)
        if quota < len(members):
            members = np.sort(rng.choice(members, size=quota, replace=False))
        parts.append(members[_path(values[members], rng)])
        spans.append((name, start, start + len(members)))
        start += len(members)
    return Arrangement(np.concatenate(parts), tuple(spans))


def _one_for_each(labels: Any, n: int) -> Any:
    if len(labels) != n:
        raise ValueError(f"groups must have one label for each of the {n} samples, got {len(labels)}")
    return labels


def _along(scale: Array, max_samples: int | None) -> Arrangement:
    """Put samples in the order of a number; those without it have a span of their own at the end."""
    order = np.argsort(scale, kind="stable")
    if max_samples is not None and max_samples < len(order):
        order = order[np.linspace(0, len(order) - 1, max_samples).round().astype(np.intp)]
    known = int(np.count_nonzero(~np.isnan(scale[order])))
    spans = [("", 0, known), (MISSING, known, len(order))]
    return Arrangement(order, tuple(span for span in spans if span[1] < span[2]), scale[order])


def _quotas(sizes: Indices, max_samples: int | None) -> Indices:
    """How many samples each group keeps: in proportion to its size, but none less than a least number."""
    total = int(sizes.sum())
    if max_samples is None or max_samples >= total:
        return sizes
    if max_samples < len(sizes):
        raise ValueError(
            f"max_samples must be at least the number of groups, {len(sizes)}, got {max_samples}; "
            "raise it or merge groups"
        )
    least = np.minimum(sizes, min(LEAST_PER_GROUP, max_samples // len(sizes)))
    room, rest = max_samples - int(least.sum()), sizes - least
    exact = rest * (room / rest.sum())
    quotas = least + np.floor(exact).astype(np.intp)
    largest = np.argsort(-(exact - np.floor(exact)), kind="stable")
    quotas[largest[: max_samples - int(quotas.sum())]] += 1
    return np.minimum(quotas, sizes)


def _path(points: Array, rng: np.random.Generator) -> Indices:
    """Order of points along a short path through all of them; the end with the larger sum comes first."""
    order = _shortest_leaves(points) if len(points) <= MOST_LEAVES else _through_centres(points, rng)
    sums = points[order].sum(axis=1)
    half = len(order) // 2
    backwards = half > 0 and sums[:half].mean() < sums[len(order) - half :].mean()
    return order[::-1] if backwards else order


def _shortest_leaves(points: Array) -> Indices:
    if len(points) <= 2:
        return np.arange(len(points))
    return leaves_list(linkage(points, method="average", optimal_ordering=True)).astype(np.intp)


def _through_centres(points: Array, rng: np.random.Generator) -> Indices:
    centres, nearest = _centres(points, rng)
    path = _shortest_leaves(centres)
    centres, position = centres[path], np.argsort(path)[nearest]
    ends = np.concatenate((centres[:1], centres, centres[-1:]))
    direction = ends[2:] - ends[:-2]  # from the centre before to the one after
    along = np.einsum("ik,ik->i", points, direction[position])
    return np.lexsort((along, position))


def _centres(points: Array, rng: np.random.Generator) -> tuple[Array, Indices]:
    """Find centres by a few rounds of Lloyd's algorithm, and the nearest one of every point."""
    centres = points[rng.choice(len(points), size=MOST_LEAVES, replace=False)]
    for _ in range(LLOYD_ROUNDS):
        nearest = vq(points, centres)[0]
        used, nearest = np.unique(nearest, return_inverse=True)
        sums = np.stack([np.bincount(nearest, column, len(used)) for column in points.T], axis=1)
        centres = sums / np.bincount(nearest)[:, None]
    return centres, nearest.astype(np.intp)
