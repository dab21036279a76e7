"""Groups of samples: what users pass as `groupby`, and means by group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice, check_one_each, is_missing, quiet
from log1pnmf.fitting.anndata import column_of, is_annotated
from log1pnmf.fitting.fit import SHARED, Fit, evenness
from log1pnmf.model.problem import Array

from .metrics import match_factors

Indices = NDArray[np.intp]

MISSING = "NA"  # name of the group of samples without a label
# numbers are a scale, not groups, if they have more different values than a plot can show as groups, or
# fractions with more different values than `FEWEST_FRACTIONS` and than half of the samples
MOST_GROUPS, FEWEST_FRACTIONS = 60, 5


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each sample is in; the groups have an order."""

    codes: Indices  # (n,): position in `names`
    names: tuple[str, ...]  # every group has at least one sample

    @classmethod
    def of(cls, labels: Any) -> Groups:
        """Group samples by their labels."""
        if isinstance(labels, Groups):
            return labels
        categorical = getattr(labels, "cat", labels)  # a pandas Series keeps its categories there
        if hasattr(categorical, "categories") and hasattr(categorical, "codes"):
            codes = np.asarray(categorical.codes, dtype=np.intp)
            names = [str(name) for name in categorical.categories]
            return cls._without_empty(np.where(codes < 0, len(names), codes), [*names, MISSING])
        values = np.asarray(labels)
        if values.ndim != 1:
            raise ValueError(
                f"groupby must have one label for each sample, got an array of shape {values.shape}"
            )
        known = np.array([not is_missing(label) for label in values.tolist()], dtype=bool)
        if values.dtype.kind not in "biuf":  # numbers are sorted by size, all else as text
            values = np.array([str(label) for label in values.tolist()], dtype=np.str_)
        different, packed = np.unique(values[known], return_inverse=True)
        codes = np.full(len(values), len(different), dtype=np.intp)
        codes[known] = packed
        return cls._without_empty(codes, [*map(str, different.tolist()), MISSING])

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


def numbers_of(labels: Any) -> Array | None:
    """Return labels that are numbers, NaN where one is missing; None for text, booleans and categories."""
    if isinstance(labels, Groups) or hasattr(getattr(labels, "cat", labels), "categories"):
        return None
    values = np.asarray(labels)
    if values.dtype == object:
        kinds = {type(value) for value in values.ravel().tolist() if not is_missing(value)}
        if not kinds <= {int, float, np.float64, np.float32, np.int64}:
            return None
        values = np.array([np.nan if is_missing(value) else value for value in values.tolist()], dtype=float)
    if values.dtype.kind not in "iuf" or values.ndim != 1:
        return None
    return values.astype(np.float64)


def as_numbers(labels: Any) -> Array | None:
    """Return labels that are a scale: more numbers than there can be groups, or differing fractions; or None.

    >>> [as_numbers(labels) is None for labels in ([1, 2, 2, 1], ["a"] * 100, range(100), [True, False])]
    [True, True, False, True]
    """
    values = numbers_of(labels)
    if values is None:
        return None
    known = values[~np.isnan(values)]
    n_different = len(np.unique(known))
    fractions = n_different > max(FEWEST_FRACTIONS, len(known) / 2) and bool((known != np.rint(known)).any())
    return values if n_different > MOST_GROUPS or fractions else None


def labels_of(source: Any, groupby: Any) -> Any:
    """Find the labels that a user means: a column of ``adata.obs``, or the labels themselves."""
    if not isinstance(groupby, str):
        return groupby
    if not is_annotated(source):
        raise ValueError(
            f"groupby={groupby!r} names a column of adata.obs, but the source is a {type(source).__name__}; "
            "pass the labels themselves, one for each sample"
        )
    return column_of(source, "obs", groupby, "groupby")


def read_labels(source: Any, groupby: Any, *, scale: bool = True) -> Any:
    """Read groups or, with `scale`, numbers to sort samples by; refuse more groups than a plot can show."""
    labels = labels_of(source, groupby)
    called = f"groupby={groupby!r}" if isinstance(groupby, str) else "groupby"
    if as_numbers(labels) is not None:
        if scale:
            return labels
        raise ValueError(
            f"{called} holds numbers with more than {MOST_GROUPS} different values, too many for "
            "groups; cut them into ranges first, for instance with pandas.qcut(values, 4), or use "
            "log1pnmf.pl.structure, which sorts the samples by them"
        )
    groups = Groups.of(labels)
    if len(groups.names) > MOST_GROUPS:
        raise ValueError(
            f"{called} has {len(groups.names)} different labels, more than the {MOST_GROUPS} "
            "groups that a plot can show; merge some, or choose a column with fewer"
        )
    return groups


def groups_of(source: Any, groupby: Any, n_samples: int) -> tuple[Groups, bool]:
    """Return groups of samples, and whether they are ranges of numbers."""
    labels = labels_of(source, groupby)
    numbers = as_numbers(labels)
    groups = Groups.of(labels) if numbers is None else quarters(numbers)
    check_one_each("groupby", groups.codes, n_samples)
    return groups, numbers is not None


def group_means(loadings: Array, groups: Groups) -> Array:
    """Return the mean loading of every group (row) on every factor."""
    check_one_each("groupby", groups.codes, len(loadings))
    sums = np.stack([np.bincount(groups.codes, column) for column in loadings.T], axis=1)
    return sums / groups.sizes[:, None]


def fold_groups(groups: Groups, most: int) -> Groups:
    """Merge the smallest groups where there are more than `most`; the merged group comes last.

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

    >>> quarters(np.arange(100.0)).names
    ('0.0 to 24.8', '24.8 to 49.5', '49.5 to 74.2', '74.2 to 99.0')
    """
    ends = np.quantile(values[~np.isnan(values)], np.linspace(0.0, 1.0, 5))
    names = [*(f"{low} to {high}" for low, high in pairwise(_alike(ends))), MISSING]
    codes = np.where(np.isnan(values), 4, np.searchsorted(ends[1:-1], values, side="right"))
    return Groups._without_empty(codes, names)


def _alike(values: Array) -> list[str]:
    """Write numbers with as many decimals each, so that they differ in three digits."""
    span = float(np.ptp(values))
    large = float(np.abs(values).max())
    if not 1e-3 <= span <= 1e6 or large > 1e6:
        return [f"{value:.3g}" for value in values]
    decimals = max(0, 2 - math.floor(math.log10(span)))
    return [f"{value:.{decimals}f}" for value in values]


# ---------- colours of factors; those of several fits that correspond have the same one

PALE, BASELINE = "#d0d0d0", "#5a6675"  # of a baseline that all samples share, and of any other one

# The first nine are safe for common kinds of colour blindness (after Okabe and Ito, with purple and brown).
# Each further one is neither pale, dark nor grey, and as distant as possible from those before it in OKLab.
COLORS = """
    #0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0d94a #6a3d9a #7a4a21 #00e196
    #004b5a #006900 #b42d69 #ff96ff #8778f0 #780f4b #2df0ff #87b400 #877800 #1e2da5
    #876996 #ff9696 #87b496 #a50000 #b4a5ff #007869 #b44bb4 #2d96b4 #b48769 #e14b69
    #d278f0 #0096ff #a55a4b #5a5ad2 #3c4b0f #3c8700 #a5f069 #ff782d #c3c378 #9696c3
    #784b69 #f0c3ff #4b3c69 #781e00 #96e1b4 #00d2d2 #ffc387 #ff78c3 #961e87 #a5961e
    #87d2ff #d2a5c3 #5a692d #690f78 #00c369 #3c5a87 #00b4b4 #3ca52d #ff6978 #c32d2d
"""
ALIKE = 0.5  # correlation from which factors of two fits that correspond have the same colour


def distinct_colors(n: int) -> list[str]:
    """Return n colours; after the 60th they start again."""
    return list(islice(cycle(COLORS.split()), n))


def point_colors(n: int) -> list[str]:
    """Return the colours of n factors in plots of points and lines, where pale grey would not be seen."""
    return [BASELINE, *distinct_colors(n)][:n]


def factor_colors(loadings: Array) -> list[str]:
    """Return the colours of the factors of a fit in plots of areas and in the report.

    The first factor, the baseline, is pale grey only where all samples share it, so that it is a background
    to the others: its evenness is at least `SHARED` (a standard deviation of at most half of its mean), as of
    the factors that `dominant_factor` leaves out. A baseline that samples do not share is part of the result.
    """
    colors = point_colors(loadings.shape[1])
    return [PALE, *colors[1:]] if evenness(loadings[:, :1])[0] >= SHARED else colors


def colors_of_fits(fits: Sequence[Fit], reference: int = 0) -> list[list[str]]:
    """Return colours for the factors of several fits: where they match the reference, its colours."""
    tables = [fit.loadings for fit in fits]
    first, palette = tables[reference], factor_colors(fits[reference].loadings)
    fresh = iter(distinct_colors(sum(table.shape[1] for table in tables))[len(palette) - 1 :])
    colors = []
    for table in tables:
        if table is first:
            colors.append(palette)
            continue
        match = match_factors(first, table)
        alike = {b: palette[a] for a, b in match.pairs[match.similarity >= ALIKE].tolist()}
        colors.append([alike[k] if k in alike else next(fresh) for k in range(table.shape[1])])
    return colors


# ---------- order of samples in plots: by group, and within a group so that neighbours are similar

MOST_LEAVES = 300  # that hierarchical clustering orders; larger groups are first reduced to so many centres
KMEANS_ROUNDS = 8
LEAST_PER_GROUP = 20  # samples that a group keeps when samples are left out, if there is room


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Samples in the order in which they are drawn."""

    order: Indices  # samples from left to right; without those that were left out
    # group, start and stop: its samples are ``order[start:stop]``. Without groups: one span without name
    spans: tuple[tuple[str, int, int], ...]
    # the number by which samples are ordered, from left to right; missing ones (NaN) are at the end
    scale: Array | None = None


def arrange(loadings: Array, groupby: Any = None, *, max_samples: int | None = None) -> Arrangement:
    """Put samples in order: group by group (or along a number), with similar samples side by side.

    Up to 300 samples of a group are the leaves of an average-linkage tree, in the order that makes the path
    along them shortest. Larger groups are first divided around 300 centres (k-means). The centres are ordered
    in the same way, and the samples of a centre along the line from the centre before to the one after it.
    """
    values = np.asarray(loadings, dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError(f"loadings must be a finite table of samples x factors, got shape {values.shape}")
    n = len(values)
    which = Groups(np.zeros(n, dtype=np.intp), ("",)) if groupby is None else groupby
    scale = as_numbers(which)
    if scale is not None:
        check_one_each("groupby", scale, n)
        return _along(scale, max_samples)
    which = Groups.of(which)
    check_one_each("groupby", which.codes, n)
    rng = np.random.default_rng(0)
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
    """Order of points along a path through centres, which k-means finds."""
    start = points[rng.choice(len(points), size=MOST_LEAVES, replace=False)]
    with quiet(UserWarning):  # empty clusters, which are dropped
        centres, nearest = scipy.cluster.vq.kmeans2(points, start, iter=KMEANS_ROUNDS, minit="matrix")
    used, nearest = np.unique(nearest, return_inverse=True)
    path = _shortest_leaves(centres[used])
    centres, position = centres[used][path], np.argsort(path)[nearest]
    ends = np.concatenate((centres[:1], centres, centres[-1:]))
    direction = ends[2:] - ends[:-2]  # from the centre before to the one after
    along = np.einsum("ik,ik->i", points, direction[position])
    return np.lexsort((along, position))


# ---------- sections of a tissue in an AnnData object

LIBRARIES = ("library_id", "section", "slide")  # columns of `obs` with the section
IMAGES = ("hires", "lowres")


@dataclass(frozen=True, eq=False)
class Section:
    """Samples that are drawn together."""

    name: str  # empty where there is only one section
    samples: NDArray[np.intp]  # positions of the samples among all
    places: Array  # of these samples; y points downwards
    diameter: float  # of a spot, in the units of the places
    image: Any = None
    extent: tuple[float, float, float, float] | None = None  # of the image: left, right, bottom, top


def sections_of(adata: Any, library_key: str | None = None, image: str = "hires") -> list[Section]:
    """Return the sections of ``adata.obsm["spatial"]``; images and spots as scanpy's readers keep them."""
    check_choice("image", image, (*IMAGES, "none"))
    if not is_annotated(adata) or "spatial" not in adata.obsm:
        raise KeyError("positions in space are needed: pass AnnData with two columns in obsm['spatial']")
    places = np.asarray(adata.obsm["spatial"], dtype=np.float64)[:, :2]
    if not np.isfinite(places).all():
        raise ValueError("adata.obsm['spatial'] holds values that are not finite; drop these samples")
    libraries = adata.uns.get("spatial", {})
    if library_key is None:
        library_key = next((name for name in LIBRARIES if name in adata.obs), None)
    if library_key is not None:
        labels = column_of(adata, "obs", library_key, "library_key").astype(str).to_numpy()
    elif len(libraries) > 1:
        raise ValueError(
            f"adata.uns['spatial'] has {len(libraries)} libraries; pass library_key, the column of adata.obs "
            "with the library of every sample"
        )
    else:
        labels = np.full(len(places), "")
    names = list(dict.fromkeys(labels))
    if len(names) == len(libraries) == 1:
        libraries = {names[0]: next(iter(libraries.values()))}
    sections = []
    for name in names:
        samples = np.flatnonzero(labels == name)
        own = _library(libraries.get(name, {}), image)
        own.setdefault("diameter", spacing(places[samples]))
        sections.append(Section(name if len(names) > 1 else "", samples, places[samples], **own))
    return sections


def _library(library: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Return diameter, image and extent of a library, where it has them."""
    scales, images = library.get("scalefactors", {}), library.get("images", {})
    found: dict[str, Any] = {}
    if "spot_diameter_fullres" in scales:
        found["diameter"] = float(scales["spot_diameter_fullres"])
    for name in () if image == "none" else (image, *IMAGES):  # the other one where the wanted one is missing
        scale = scales.get(f"tissue_{name}_scalef")
        if name in images and scale is not None:
            height, width = np.asarray(images[name]).shape[:2]
            return found | {"image": images[name], "extent": (0.0, width / scale, height / scale, 0.0)}
    return found


def spacing(places: Array) -> float:
    """Return the median distance of a sample to its nearest neighbour; 1 if no two places differ."""
    places = np.unique(places, axis=0)
    if len(places) < 2:
        return 1.0
    return float(np.median(scipy.spatial.KDTree(places).query(places, k=2)[0][:, 1]))
