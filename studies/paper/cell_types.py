"""Cell types of blood cells from marker genes, and how factors relate to them and to a treatment."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

MARKERS = {  # well known, and little changed by interferon
    "CD4 T": ("CD3D", "CD3E", "IL7R", "LTB", "CD27", "LDHB"),
    "CD8 T": ("CD8A", "CD8B", "CD3D", "GZMK", "CCL5", "CD2"),
    "NK": ("GNLY", "NKG7", "KLRD1", "PRF1", "KLRC1", "FGFBP2"),
    "B": ("MS4A1", "CD79A", "CD79B", "CD74", "BANK1", "TCL1A"),
    "CD14 monocyte": ("CD14", "S100A8", "S100A9", "LYZ", "VCAN", "FCN1"),
    "CD16 monocyte": ("FCGR3A", "MS4A7", "VMO1", "CDKN1C", "LST1", "AIF1"),
    "dendritic": ("FCER1A", "CLEC10A", "CD1C", "HLA-DQA1", "CST3", "CCR7"),
    "megakaryocyte": ("PPBP", "PF4", "GNG11", "SDPR", "CLU", "NRGN"),
}


def name_cell_types(counts: sparse.csr_matrix, genes: np.ndarray, condition: np.ndarray) -> np.ndarray:
    """Give each cell the type whose markers stand out most in it, compared with cells of its condition."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    place = {gene: j for j, gene in enumerate(genes)}
    scores = []
    for markers in MARKERS.values():
        columns = [place[gene] for gene in markers if gene in place]
        levels = np.log1p(1e4 * counts[:, columns].toarray() / totals[:, None])
        for label in np.unique(condition):
            inside = condition == label
            spread = levels[inside].std(axis=0)
            levels[inside] = (levels[inside] - levels[inside].mean(axis=0)) / np.where(
                spread > 0, spread, 1.0
            )
        scores.append(levels.mean(axis=1))
    return np.array(list(MARKERS))[np.argmax(scores, axis=0)]


def associations(loadings: np.ndarray, types: np.ndarray, condition: np.ndarray) -> list[dict[str, Any]]:
    """For every factor: how much of its variance the treatment explains given the type, and the reverse.

    Returns
    -------
    list of dict
        "treatment given type": part of the variance that is between treated and untreated cells of the same
        type; "type given treatment": the reverse; "shared": how evenly the treatment's effect is spread over
        the types, from 1 / n_types (one type has it all) to 1.
    """
    both = np.char.add(np.char.add(types.astype(str), "|"), condition.astype(str))
    rows = []
    for loading in loadings.T:
        whole = _explained(loading, both)
        effect = np.array(_effects(loading, types, condition))
        strength = np.maximum(effect * np.sign(effect[np.argmax(np.abs(effect))]), 0.0)
        total = float((strength**2).sum())
        rows.append(
            {
                "treatment given type": whole - _explained(loading, types),
                "type given treatment": whole - _explained(loading, condition),
                "shared": float(strength.sum() ** 2 / (len(strength) * total)) if total > 0 else 0.0,
            }
        )
    return rows


def _explained(values: np.ndarray, groups: np.ndarray) -> float:
    _, codes = np.unique(groups, return_inverse=True)
    sizes = np.bincount(codes)
    means = np.bincount(codes, values) / sizes
    total = float(((values - values.mean()) ** 2).sum())
    return float((sizes * (means - values.mean()) ** 2).sum()) / total if total > 0 else 0.0


def _effects(loading: np.ndarray, types: np.ndarray, condition: np.ndarray) -> list[float]:
    """Mean loading of treated minus untreated cells, for every type that has enough of both."""
    treated = condition == "stim"
    effects = []
    for name in np.unique(types):
        inside = types == name
        if min((inside & treated).sum(), (inside & ~treated).sum()) >= 10:
            effects.append(float(loading[inside & treated].mean() - loading[inside & ~treated].mean()))
    return effects or [0.0]
