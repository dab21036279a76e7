"""Sections of a tissue in an AnnData object: their samples, the size of a spot, the image under the spots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.spatial
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf.fitting.anndata import column_of, is_annotated

Array = NDArray[np.float64]

LIBRARIES = ("library_id", "section", "slide")  # columns of `obs` that tell sections apart
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
    wanted = (
        () if image == "none" else (image, *IMAGES)
    )  # the other resolution where the wanted one is missing
    for name in wanted:
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
