"""Loadings on a map of the samples: a UMAP, a t-SNE, or positions in a tissue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure

from log1pnmf._common.colors import factor_colors
from log1pnmf.analysis.groups import labels_of
from log1pnmf.fitting.annotated import is_annotated

from .canvas import INK, drawing, figure_or_new
from .sources import drawable

__all__ = ["embedding"]

KNOWN = ("X_umap", "X_tsne", "X_draw_graph_fa", "spatial", "X_pca")
"""Names under which the map is searched, in this order."""

LIBRARIES = ("library_id", "section", "slide")
"""Columns of `obs` that tell sections in space apart."""

NONE = "#e6e9eb"
"""Colour of samples without the factor."""


@drawing
def embedding(
    adata: Any,
    basis: Any = None,
    *,
    factors: Sequence[int | str] | None = None,
    key: str | None = None,
    library_key: str | None = None,
    n_columns: int = 4,
    size: float | None = None,
    figure: Figure | SubFigure | None = None,
) -> Any:
    """Draw the loadings of each factor on a map of the samples (UMAP, t-SNE, space).

    Parameters
    ----------
    adata : AnnData, or anything that `log1pnmf.as_fit` takes
        Data with a fit by `log1pnmf.tl.log1p_nmf`, or a fit.
    basis : str or array of shape (n, 2), optional
        Name of the map in ``adata.obsm``, with or without ``X_``; by default the UMAP, or the first of t-SNE,
        force-directed graph, positions in space and PCA. Without AnnData, pass the positions.
    factors : sequence of int or str, optional
        Which factors to draw, by number or name; by default all.
    key : str, optional
        Name of the fit in an AnnData.
    library_key : str, optional
        Column of ``adata.obs`` with the section (slide, library) of every sample: each is drawn in panels of
        its own. Needed for positions in space if there are several sections.
    n_columns : int
        Number of panels in a row.
    size : float, optional
        Size of the points, in square points; by default it depends on their number.
    figure : Figure or SubFigure, optional
        Figure to draw on; by default a new one.

    Returns
    -------
    Figure

    Notes
    -----
    Each factor has the colour that it has in all other plots. Samples with large loadings are drawn last.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, pl
    >>> counts = np.random.default_rng(0).poisson(2.0, (50, 10))
    >>> model = Log1pNMF(3, tol=1e-3).fit(counts)
    >>> len(pl.embedding(model, np.random.default_rng(1).random((50, 2)), figure=Figure()).axes)
    3
    """
    shown = drawable(adata, key=key)
    places, found = _places(adata, basis, len(shown.loadings))
    names, labels = shown.factor_names, shown.factor_labels
    chosen = [_number(factor, names) for factor in (range(len(names)) if factors is None else factors)]
    sections = _sections(adata, found, library_key, len(places))
    drawn = [(k, section) for section in sections for k in chosen]
    columns = max(1, min(n_columns, len(drawn)))
    rows = -(-len(drawn) // columns)
    figure = figure_or_new(figure, (2.1 * columns, 2.15 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    colors = factor_colors(shown.n_components)
    points = size if size is not None else float(np.clip(12_000.0 / len(places), 0.4, 14.0))
    for ax, (k, section) in zip(panels, drawn, strict=False):
        values, own = shown.loadings[:, k], sections[section]
        order = own[np.argsort(values[own], kind="stable")]
        dark = INK if k == 0 else colors[k]  # the baseline's own grey would not be seen
        shades = LinearSegmentedColormap.from_list("factor", [NONE, dark])
        ax.scatter(
            *places[order].T,
            c=values[order],
            cmap=shades,
            vmin=0.0,
            vmax=max(float(values.max()), 1e-300),
            s=points,
            linewidths=0,
            rasterized=True,
        )
        ax.set_title(f"{section} {labels[k]}".strip(), loc="left", fontsize="small", color=INK)
        ax.set_aspect("equal", adjustable="datalim")
    for ax in panels:
        ax.axis("off")
    return figure


def _sections(
    source: Any, basis: str | None, library_key: str | None, n_samples: int
) -> dict[str, np.ndarray]:
    """Return which samples are drawn together; refuse to draw sections in space on top of each other."""
    if library_key is not None:
        labels = np.asarray(labels_of(source, library_key)).astype(str)
        return {name: np.flatnonzero(labels == name) for name in dict.fromkeys(labels)}
    for column in LIBRARIES if basis in ("spatial", "X_spatial") else ():
        n = source.obs[column].nunique() if column in source.obs else 0
        if n > 1:
            raise ValueError(
                f"the samples are of {n} sections (adata.obs[{column!r}]), whose positions overlap; pass "
                f"library_key={column!r} for panels of each, or draw one of them: "
                f"adata[adata.obs[{column!r}] == ...]"
            )
    return {"": np.arange(n_samples)}


def _number(factor: int | str, names: list[str]) -> int:
    if isinstance(factor, str):
        if factor not in names:
            raise ValueError(f"no factor is called {factor!r}; they are {', '.join(map(repr, names))}")
        return names.index(factor)
    if not 0 <= factor < len(names):
        raise ValueError(f"there are factors 0 to {len(names) - 1}, got {factor}")
    return int(factor)


def _places(source: Any, basis: Any, n: int) -> tuple[np.ndarray, str | None]:
    """Return the map, the first two columns of what is named or given, and its name."""
    found = None
    if basis is None or isinstance(basis, str):
        if not is_annotated(source):
            raise ValueError(
                "basis is needed: pass an array with two numbers for each sample, or AnnData with a UMAP"
            )
        there = list(source.obsm)
        wanted = KNOWN if basis is None else (basis, f"X_{basis}")
        found = next((name for name in wanted if name in there), None)
        if found is None:
            what = "no map of the samples" if basis is None else f"no {basis!r}"
            known = ", ".join(map(repr, there)) or "none"
            raise KeyError(
                f"adata.obsm has {what} (it has: {known}); run scanpy.tl.umap(adata), or pass basis="
            )
        basis = source.obsm[found]
    places = np.asarray(basis, dtype=np.float64)
    if places.ndim != 2 or len(places) != n or places.shape[1] < 2:
        raise ValueError(f"basis must have two numbers for each of the {n} samples, got shape {places.shape}")
    return places[:, :2], found
