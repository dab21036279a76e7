"""Order of samples in plots: by group, and within a group so that neighbours are similar."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from .groups import MISSING, Groups, as_numbers, check_length

__all__ = ["Arrangement", "arrange"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MOST_LEAVES = 300
"""Most points that hierarchical clustering orders; larger groups are first reduced to so many centres."""

KMEANS_ROUNDS = 8

LEAST_PER_GROUP = 20
"""Fewest samples that a group keeps when samples are left out, if there is room."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Samples in the order in which they are drawn.

    Parameters
    ----------
    order : ndarray of int
        Samples from left to right; without those that were left out.
    spans : tuple of (str, int, int)
        Group, start and stop: its samples are ``order[start:stop]``. Without groups: one span without name.
    scale : ndarray of float, optional
        The number by which samples are ordered, from left to right; missing ones (NaN) are at the end.
    """

    order: Indices
    spans: tuple[tuple[str, int, int], ...]
    scale: Array | None = None


def arrange(
    loadings: Array, groupby: Any = None, *, max_samples: int | None = None, random_state: int = 0
) -> Arrangement:
    """Put samples in order: group by group, with similar samples side by side.

    Parameters
    ----------
    groupby : array-like of shape (n,) or Groups, optional
        Label of every sample, see `Groups.of`. Numbers with more than 60 different values are no groups:
        samples are sorted by them.
    max_samples : int, optional
        Most samples to keep. Small groups keep a larger part of theirs, so that they can still be seen.
    random_state : int
        For the choice of samples, and for the start of the clustering of large groups.

    Returns
    -------
    Arrangement
        The same for the same arguments.

    Notes
    -----
    Up to 300 samples of a group are the leaves of an average-linkage tree, in the order that makes the path
    along them shortest. Larger groups are first divided around 300 centres (k-means). The centres are ordered
    in the same way, and the samples of a centre along the line from the centre before to the one after it.

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
    which = Groups(np.zeros(n, dtype=np.intp), ("",)) if groupby is None else groupby
    scale = as_numbers(which)
    if scale is not None:
        check_length(scale, n)
        return _along(scale, max_samples)
    which = Groups.of(which)
    check_length(which.codes, n)
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


def _along(scale: Array, max_samples: int | None) -> Arrangement:
    """Sort samples by a number; those without one have a span of their own at the end."""
    order = np.argsort(scale, kind="stable")
    if max_samples is not None and max_samples < len(order):
        order = order[np.linspace(0, len(order) - 1, max_samples).round().astype(np.intp)]
    known = int(np.count_nonzero(~np.isnan(scale[order])))
    spans = [("", 0, known), (MISSING, known, len(order))]
    return Arrangement(order, tuple(span for span in spans if span[1] < span[2]), scale[order])


def _quotas(sizes: Indices, max_samples: int | None) -> Indices:
    """How many samples each group keeps: in proportion to its size, but at least a few."""
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
    """Order of points along a short path; the end with the larger sums comes first."""
    order = _shortest_leaves(points) if len(points) <= MOST_LEAVES else _through_centres(points, rng)
    sums = points[order].sum(axis=1)
    half = len(order) // 2
    backwards = half > 0 and sums[:half].mean() < sums[len(order) - half :].mean()
    return order[::-1] if backwards else order


def _shortest_leaves(points: Array) -> Indices:
    if len(points) <= 2:
        return np.arange(len(points))
    tree = scipy.cluster.hierarchy.linkage(points, method="average", optimal_ordering=True)
    return scipy.cluster.hierarchy.leaves_list(tree).astype(np.intp)


def _through_centres(points: Array, rng: np.random.Generator) -> Indices:
    centres, nearest = _centres(points, rng)
    path = _shortest_leaves(centres)
    centres, position = centres[path], np.argsort(path)[nearest]
    ends = np.concatenate((centres[:1], centres, centres[-1:]))
    direction = ends[2:] - ends[:-2]  # from the centre before to the one after
    along = np.einsum("ik,ik->i", points, direction[position])
    return np.lexsort((along, position))


def _centres(points: Array, rng: np.random.Generator) -> tuple[Array, Indices]:
    """Centres by k-means, and the nearest one of every point."""
    start = points[rng.choice(len(points), size=MOST_LEAVES, replace=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # empty clusters, which are dropped below
        centres, nearest = scipy.cluster.vq.kmeans2(points, start, iter=KMEANS_ROUNDS, minit="matrix")
    used, nearest = np.unique(nearest, return_inverse=True)
    return centres[used], nearest.astype(np.intp)
