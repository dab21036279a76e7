"""Batches of a fit as arrays, and back; what comes back is checked."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from log1pnmf._common.archive import check_numbers
from log1pnmf.model.batches import Batches

from .settings import Settings

__all__ = ["BATCHES", "batch_parts", "batches_from"]

BATCHES = LABELS, EFFECTS, NAMES = "batch_labels", "batch_effects", "batch_names"


def batch_parts(batches: Batches) -> dict[str, np.ndarray]:
    """Take batches apart."""
    return {LABELS: batches.labels, EFFECTS: batches.effects, NAMES: np.array(batches.names, dtype=np.str_)}


def batches_from(
    arrays: Mapping[str, np.ndarray], loadings: np.ndarray, factors: np.ndarray, settings: Settings
) -> Batches | None:
    """Put together and check what `batch_parts` took apart; None where there were no batches."""
    if EFFECTS not in arrays:
        return None
    labels, effects, names = (np.asarray(arrays[name]) for name in (LABELS, EFFECTS, NAMES))
    if names.ndim != 1 or names.dtype.kind not in "OTU" or not len(names):
        raise ValueError("the names of batches must be text")
    check_numbers(EFFECTS, effects, (len(names), len(factors)), positive=True)
    if labels.dtype.kind not in "iu" or labels.shape != (len(loadings),):
        raise ValueError(f"{LABELS} must be a whole number for each of the {len(loadings)} samples")
    return Batches(labels, effects, settings.batch_strength, tuple(str(name) for name in names))
