"""Draw the first picture of README and site, wide and tall: ``PYTHONPATH=. python docs/treatment_figure.py``.

Blood cells from ../shared/data: about 1,900 cells of four types, half of them treated with interferon-beta,
and their 3,000 most frequent genes.
"""

import math
from pathlib import Path

import anndata
import matplotlib as mpl
import numpy as np
from figures import BLUE, FAINT, IMAGES, INK, ORANGE, STYLE
from matplotlib.figure import Figure
from paper.cell_types import associations, name_cell_types

import log1pnmf as lp

SOURCE = Path(__file__).parents[2] / "shared" / "data" / "kang_pbmc_ifnb_14k.h5ad"
TYPES = {"CD4 T": "T cells", "NK": "NK cells", "B": "B cells", "CD14 monocyte": "monocytes"}
N_CELLS, N_GENES, K, SEEDS = 3000, 3000, 8, 3


def cells():
    """Give counts, cell types and treatment of some of the cells."""
    data = anndata.read_h5ad(SOURCE)
    data = data[np.sort(np.random.default_rng(0).permutation(data.n_obs)[:N_CELLS])]
    totals = np.asarray(data.X.sum(axis=0)).ravel()
    data = data[:, np.sort(np.argsort(-totals)[:N_GENES])]
    treatment = data.obs["label"].to_numpy(str)
    types = name_cell_types(data.X.tocsr(), data.var_names.to_numpy(), treatment)
    common = np.isin(types, list(TYPES))
    return data.X[common], types[common], treatment[common]


def rising(fit, types, treatment) -> list[np.ndarray]:
    """Give the mean loadings, types x (untreated, treated), of the two factors that rise most."""
    strength = [row["treatment given type"] for row in associations(fit.loadings, types, treatment)]
    means = [
        [fit.loadings[(types == t) & (treatment == label)].mean(axis=0) for label in ("ctrl", "stim")]
        for t in TYPES
    ]
    table = np.array(means) / fit.loadings.max(axis=0)
    gain = table[:, 1].mean(axis=0) - table[:, 0].mean(axis=0)
    two = sorted(np.flatnonzero(gain > 0), key=lambda k: -strength[k])[:2]
    return sorted((table[:, :, k] for k in two), key=lambda one: one[-1, 1])


def draw(ax, factors: list[np.ndarray], title: str) -> None:
    """One line for each type and factor, from the mean of untreated to that of treated cells."""
    for colour, shift, table in zip((BLUE, ORANGE), (0.16, -0.16), factors, strict=True):
        for row, (before, after) in enumerate(table):
            y = len(table) - 1 - row + shift
            ax.plot([before, after], [y, y], color=colour, linewidth=2.5, solid_capstyle="round")
            ax.scatter([before], [y], color="white", edgecolor=colour, s=45, zorder=3)
            ax.scatter([after], [y], color=colour, s=45, zorder=3)
    ax.set_title(title)
    ax.set_yticks(range(len(TYPES)), list(TYPES.values())[::-1])
    ax.set(xlim=(-0.03, 1.0), ylim=(-0.5, len(TYPES) - 0.5), xlabel="mean loading (largest = 1)")
    ax.tick_params(axis="y", length=0)


def picture(tables: dict[float, list[np.ndarray]], *, tall: bool) -> Figure:
    """Both c: side by side, or one above the other for phones."""
    titles = {0.1: "c = 0.1: all cell types share a factor", math.inf: "c = ∞: monocytes have their own"}
    figure = Figure(figsize=(4.2, 5.4) if tall else (8.4, 3.1), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True) if tall else figure.subplots(1, 2, sharey=True)
    for ax, (c, factors) in zip(axes, tables.items(), strict=True):
        draw(ax, factors, titles[c])
    if tall:
        axes[0].set_xlabel("")
    for marker, text in (("white", "untreated"), (INK, "treated")):
        axes[1].scatter([], [], color=marker, edgecolor=INK, s=45, label=text)
    axes[1].legend(loc="upper right", labelcolor=INK, edgecolor=FAINT)
    return figure


def main() -> None:
    counts, types, treatment = cells()
    tables = {}
    for c in (0.1, math.inf):
        fits = [lp.fit_log1p_nmf(counts, K, c=c, random_state=seed, n_jobs=1) for seed in range(SEEDS)]
        best = max(fits, key=lambda fit: fit.log_likelihood)
        tables[c] = rising(best, types, treatment)
        print(c, [table.round(2).tolist() for table in tables[c]], flush=True)
    picture(tables, tall=False).savefig(IMAGES / "treatment.png", dpi=130)
    picture(tables, tall=True).savefig(IMAGES / "treatment-tall.png", dpi=150)


if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        main()
