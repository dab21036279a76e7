"""What batches do: the features that differ most, and groups that the model cannot separate from a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from log1pnmf._common.checks import shown
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.new_samples import counts_of
from log1pnmf.model.batches import batch_labels
from log1pnmf.model.problem import Problem

MOST = 0.95  # part of a group, or of a batch, that makes it nearly all of it


def batch_findings(fit: Any, counts: Any = None, *, n_top: int = 5) -> dict[str, Any]:
    """Describe how much of the deviance batches explain, and which features have the largest effects in each.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        Fitted with `batch`.
    counts : array, sparse matrix, data frame or Counts, optional
        The counts that were fitted. Every entry is used.
    n_top : int
        Number of features to list for each batch.

    Returns
    -------
    dict of columns
        One row for each batch, and one for all samples, "all"; ``pandas.DataFrame`` shows it. Columns:
        `batch`; `n_samples`; `excess`, the share by which the deviance would grow without effects, NaN
        without counts; `features`, names and effects of those with the largest effects, up or down.
    """
    found = as_fit(fit)
    batches = found.batches
    if batches is None:
        raise ValueError("the fit has no batches; fit with batch=...")
    names, places = found.feature_labels, range(batches.n_batches)
    largest = [batches.differing(b, n_top) for b in places]
    features = [[(str(names[j]), float(batches.effects[b, j])) for j in own] for b, own in enumerate(largest)]
    sums = np.full((batches.n_batches, 2), np.nan)
    if counts is not None:
        matrix, factors = counts_of(found, counts), found.factors / found.link.alpha
        with shown(None, "deviance without effects of batches", "part") as show:
            for b in places:
                rows = np.flatnonzero(batches.labels == b)
                own, sizes = Counts.from_any(matrix.to_scipy()[rows]), found.size_factors[rows]
                how: Any = {"noise": found.noise, "batches": batches.of_samples(rows)}
                problem, constant = Problem(own, sizes, found.link, **how), found.noise.constant(own)
                for k, one in enumerate((problem, replace(problem, batches=None))):
                    sums[b, k] = make_engine("auto", one).loss(found.loadings[rows], factors) - constant
                show(b + 1, batches.n_batches)
    sums = np.vstack([sums, sums.sum(axis=0)])
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = sums[:, 1] / sums[:, 0] - 1.0
    sizes = np.bincount(batches.labels, minlength=batches.n_batches).tolist()
    return {
        "batch": [*batches.names, "all"],
        "n_samples": [*sizes, len(batches.labels)],
        "excess": excess,
        "features": [*features, []],
    }


def confounded_groups(fit: Any, groups: Any) -> list[str]:
    """Find groups of samples that coincide with a batch, so that the model cannot separate the two.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        Fitted with `batch`.
    groups : array of shape (n,)
        Group of interest of every sample: condition, tissue, cell type.

    Returns
    -------
    list of str
        One sentence for every group that is (nearly) all of its batches.
    """
    batches = as_fit(fit).batches
    if batches is None:
        return []
    names = np.array(batch_labels(groups, len(batches.labels)), dtype=object)
    kinds = list(dict.fromkeys(names))
    if len(kinds) < 2:
        return []
    sentences = []
    for kind in kinds:
        inside = np.bincount(batches.labels[names == kind], minlength=batches.n_batches)
        sizes = np.bincount(batches.labels, minlength=batches.n_batches)
        own = inside >= MOST * np.maximum(sizes, 1)  # batches that are nearly all of this group
        if own.any() and inside[own].sum() >= MOST * inside.sum():
            listed = ", ".join(repr(batches.names[b]) for b in np.flatnonzero(own))
            which = f"batch {listed}" if own.sum() == 1 else f"the batches {listed}"
            sentences.append(
                f"group {kind!r} is all of {which}: the model cannot separate the two, and an apparent "
                "batch effect may belong to the group"
            )
    return sentences
