"""Draw the first picture of README and site, wide and tall: ``PYTHONPATH=. python docs/treatment_figure.py``.

Blood cells from ../shared/data: about 1,900 cells of four types, half of them treated with interferon-beta,
and their 3,000 most frequent genes. The picture shows the best of twelve starts at each c; it is drawn from
the starts that are known to be the best. ``--all`` fits all of them, and prints in how many the response is
shared; ``--all --c 0.1 0.3 1 inf --l1 0 3 10 30`` prints the table of docs/explanation/geometry.md.
"""

import argparse
import math
from pathlib import Path

import anndata
import matplotlib as mpl
import numpy as np
from figures import BLUE, FAINT, IMAGES, INK, ORANGE, STYLE
from matplotlib.figure import Figure
from studies.paper.cell_types import associations, name_cell_types

import log1pnmf as lp

SOURCE = Path(__file__).parents[2] / "shared" / "data" / "kang_pbmc_ifnb_14k.h5ad"
TYPES = {"CD4 T": "T cells", "NK": "NK cells", "B": "B cells", "CD14 monocyte": "monocytes"}
N_CELLS, N_GENES, K, L1 = 3000, 3000, 8, 3.0
STARTS = [("auto", seed) for seed in range(8)] + [("random", seed) for seed in range(8, 12)]
BEST = {0.3: ("random", 10), math.inf: ("auto", 2)}
SHARED = 0.5


def cells():
    """Return counts, cell types and treatment of some of the cells."""
    data = anndata.read_h5ad(SOURCE)
    data = data[np.sort(np.random.default_rng(0).permutation(data.n_obs)[:N_CELLS])]
    totals = np.asarray(data.X.sum(axis=0)).ravel()
    data = data[:, np.sort(np.argsort(-totals)[:N_GENES])]
    treatment = data.obs["label"].to_numpy(str)
    types = name_cell_types(data.X.tocsr(), data.var_names.to_numpy(), treatment)
    common = np.isin(types, list(TYPES))
    return data.X[common], types[common], treatment[common]


def fitted(counts, c, l1, start) -> lp.Fit:
    """Return the default fit at one c and penalty, from one start."""
    init, seed = start
    return lp.fit_log1p_nmf(counts, K, c=c, l1=l1, init=init, random_state=seed, n_jobs=1)


def rising(fit, types, treatment) -> list[np.ndarray]:
    """Return mean loadings, types x (untreated, treated), of the two factors that rise most."""
    strength = [row["treatment given type"] for row in associations(fit.loadings, types, treatment)]
    means = [
        [fit.loadings[(types == t) & (treatment == label)].mean(axis=0) for label in ("ctrl", "stim")]
        for t in TYPES
    ]
    table = np.array(means) / fit.loadings.max(axis=0)
    gain = table[:, 1].mean(axis=0) - table[:, 0].mean(axis=0)
    two = sorted(np.flatnonzero(gain > 0), key=lambda k: -strength[k])[:2]
    return [table[:, :, k] for k in two]


def is_shared(table: np.ndarray) -> bool:
    """Whether a factor rises in every type at least half as much as in the type where it rises most."""
    rise = table[:, 1] - table[:, 0]
    return bool(rise.min() >= SHARED * rise.max())


def all_starts(counts, types, treatment, *, c, l1=L1) -> list[tuple[float, list[np.ndarray]]]:
    """Return objective and rising factors of every start, the best first."""
    fits = (fitted(counts, c, l1, start) for start in STARTS)
    found = [(fit.objective, rising(fit, types, treatment)) for fit in fits]
    return sorted(found, key=lambda one: one[0])


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
    titles = {0.3: "c = 0.3: all types share the response", math.inf: "c = ∞: monocytes share little of it"}
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="fit all starts and count; draws nothing")
    parser.add_argument("--c", type=float, nargs="+", default=list(BEST))
    parser.add_argument("--l1", type=float, nargs="+", default=[L1])
    given = parser.parse_args()
    data = cells()
    if given.all:
        print("| penalty |", " | ".join(f"c = {c:g}" for c in given.c), "|")
        print("|---" * (1 + len(given.c)), "|", sep="")
        for l1 in given.l1:
            row = []
            for c in given.c:
                shared = [is_shared(tables[0]) for _, tables in all_starts(*data, c=c, l1=l1)]
                row.append(f"{sum(shared)} ({'yes' if shared[0] else 'no'})")
            print(f"| `l1={l1:g}` |", " | ".join(row), "|", flush=True)
        return
    counts, types, treatment = data
    tables = {c: rising(fitted(counts, c, L1, start), types, treatment) for c, start in BEST.items()}
    for c, factors in tables.items():
        print(c, [table.round(2).tolist() for table in factors], flush=True)
    picture(tables, tall=False).savefig(IMAGES / "treatment.png", dpi=130)
    picture(tables, tall=True).savefig(IMAGES / "treatment-tall.png", dpi=150)


if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        main()
