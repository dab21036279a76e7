"""The structure plot's numbers: which samples, in which order, with which colours."""

from __future__ import annotations

from typing import Any

import numpy as np

from log1pnmf._common.colors import ALIKE, factor_colors, matched_colors
from log1pnmf.analysis.arrange import Arrangement, arrange
from log1pnmf.analysis.decomposition import Decomposition
from log1pnmf.analysis.metrics import match_factors

from .subject import Subject

__all__ = ["MOST_SAMPLES", "arrange_samples", "model_colors", "structure_data"]

MOST_SAMPLES = 2000
"""Samples that are drawn and embedded; of more, a part of each group."""

THOUSANDTHS = 1000


def arrange_samples(subject: Subject) -> Arrangement:
    """Order the samples once for all models, so that a sample has the same place in every plot.

    Parameters
    ----------
    subject : Subject

    Returns
    -------
    Arrangement
        Neighbours are alike in all models together.
    """
    together = np.hstack([one.loadings for one in subject.shown])
    return arrange(together, subject.groups, max_samples=MOST_SAMPLES)


def model_colors(shown: tuple[Decomposition, ...], reference: int = 0) -> list[list[str]]:
    """Colour the factors of all models; those that correspond have the same colour.

    Parameters
    ----------
    shown : tuple of Decomposition
    reference : int
        Position of the model that the others are matched to.

    Returns
    -------
    list of list of str
        For each model, one colour for each factor.
    """
    first = shown[reference]
    palette = factor_colors(sum(one.n_components for one in shown))
    fresh = iter(palette[first.n_components :])
    colors = []
    for one in shown:
        if one is first:
            colors.append(palette[: one.n_components])
            continue
        match = match_factors(first.loadings, one.loadings)
        close = match.pairs[match.similarity >= ALIKE].tolist()
        colors.append(matched_colors(palette, close, one.n_components, fresh=fresh))
    return colors


def structure_data(subject: Subject, arrangement: Arrangement, colors: list[list[str]]) -> dict[str, Any]:
    """Gather what the page's script draws.

    Parameters
    ----------
    subject : Subject
    arrangement : Arrangement
    colors : list of list of str

    Returns
    -------
    dict
        Plain lists: names of the samples from left to right, spans of the groups, and for every model its
        loadings in thousandths, sample by sample.
    """
    order = arrangement.order
    return {
        "names": subject.sample_names[order].tolist(),
        "spans": [list(span) for span in arrangement.spans],
        "models": [
            {
                "label": label,
                "factors": one.factor_names,
                "colors": palette,
                "loadings": np.rint(one.loadings[order] * THOUSANDTHS).astype(int).ravel().tolist(),
            }
            for one, label, palette in zip(subject.shown, subject.labels, colors, strict=True)
        ],
    }
