"""The structure plot's numbers: which samples, in which order, with which colours."""

from __future__ import annotations

from typing import Any

import numpy as np

from log1pnmf.analysis.arrange import Arrangement, arrange

from .inputs import ReportInput

__all__ = ["MOST_SAMPLES", "arrange_samples", "structure_data"]

MOST_SAMPLES = 2000
"""Samples that are drawn and embedded; of more, a part of each group."""

THOUSANDTHS = 1000


def arrange_samples(inputs: ReportInput) -> Arrangement:
    """Order the samples once for all fits, so that a sample has the same place in every plot."""
    together = np.hstack([fit.loadings for fit in inputs.fits])
    return arrange(together, inputs.groups, max_samples=MOST_SAMPLES)


def structure_data(inputs: ReportInput, arrangement: Arrangement, colors: list[list[str]]) -> dict[str, Any]:
    """Return what the script of the page draws, as plain lists; loadings are in thousandths."""
    order = arrangement.order
    return {
        "names": inputs.sample_names[order].tolist(),
        "spans": [list(span) for span in arrangement.spans],
        "models": [
            {
                "label": label,
                "factors": fit.factor_labels,
                "colors": palette,
                "loadings": np.rint(fit.loadings[order] * THOUSANDTHS).astype(int).ravel().tolist(),
                "weights": fit.factors.sum(axis=0).tolist(),
            }
            for fit, label, palette in zip(inputs.fits, inputs.labels, colors, strict=True)
        ],
    }
