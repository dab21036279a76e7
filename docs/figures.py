"""Draw the pictures of explanations: ``PYTHONPATH=. python docs/figures.py [NAME ...]``.

Everything is drawn from formulas or from the bundled data, with the public parts of the library.
"""

import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from sklearn.exceptions import ConvergenceWarning
from studies.paper.geometry import loadings_towards, unit_rates, upper_right_hull
from studies.usage import Counts as Screen
from studies.usage import draw_counts

import log1pnmf as lp
from log1pnmf.analysis import match_factors
from log1pnmf.analysis.groups import distinct_colors
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.solver import alternate
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

IMAGES = Path(__file__).parent / "img"
COMMON = ["acinar", "alpha", "beta", "delta", "ductal", "endothelial", "gamma"]
INK, FAINT = "#24292f", "#8c959f"
BLUE, ORANGE, GREEN, *_ = distinct_colors(9)
STYLE = {
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def choose_k() -> Figure:
    """Held-out likelihood and stability against K, for tumours that were simulated with four processes."""
    counts = lp.datasets.made_up_tumours().counts
    options = {"size_factors": "none", "n_jobs": 1}
    found = lp.select(counts, [1, 2, 3, 4, 5, 6, 7, 8], np.inf, **options)
    figure = Figure(figsize=(6.2, 4.9), layout="constrained")
    lp.pl.select(found, figure=figure)
    return figure


def newton_and_coordinate() -> Figure:
    """Objective against CPU time of both row solvers, from the same start, on one thread."""
    data = lp.datasets.pancreas()
    start = lp.Log1pNMF(9, c=1.0, likelihood="chebyshev", init="random", max_iter=1, **_QUIET).fit(
        data.counts
    )
    given = (start.fit_.loadings, start.fit_.factors)
    courses = {
        "coordinate ascent (the paper's)": _course(data.counts, given, row_solver="coordinate", max_iter=150),
        "Newton": _plain(data.counts, given, max_iter=150),
        "Newton, extrapolated (the default)": _course(data.counts, given, max_iter=150),
    }
    best = min(objective.min() for _, objective in courses.values())
    figure = Figure(figsize=(10.0, 3.8), layout="constrained")
    by_iteration, by_time = figure.subplots(1, 2, sharey=True)
    print("| solver | iterations | CPU s | objective above the best |\n|---|---|---|---|")
    for (name, (seconds, objective)), color in zip(courses.items(), (FAINT, GREEN, BLUE), strict=True):
        above = np.maximum(objective - best, 1.0)
        by_iteration.plot(above, color=color, label=name, linewidth=2)
        by_time.plot(seconds, above, color=color, linewidth=2)
        ended = "converged" if len(above) <= 150 else "still falling"
        print(f"| {name} | {len(above) - 1}, {ended} | {seconds[-1]:.1f} | {above[-1] - 1:,.0f} |")
    by_iteration.set(yscale="log", xlabel="iterations", ylabel="objective above the best found")
    by_time.set(xscale="log", xlabel="CPU seconds, one thread")
    by_iteration.legend(fontsize=9)
    return figure


_QUIET = {"random_state": 0, "n_jobs": 1, "tol": 1e-9}


def _course(counts, start, **options) -> tuple[np.ndarray, np.ndarray]:
    seen: list[tuple[float, float]] = []

    def watch(iteration) -> None:
        seen.append((time.process_time(), iteration.objective))

    settings = {"c": 1.0, "likelihood": "chebyshev", "init": start, **_QUIET, **options}
    lp.Log1pNMF(9, **settings).fit(counts, callbacks=[watch])
    seconds, objective = np.array(seen).T
    return seconds - seconds[0] + 1e-2, objective


def _plain(counts, start, *, max_iter: int) -> tuple[np.ndarray, np.ndarray]:
    """Newton steps without extrapolation, which no parameter asks for."""
    link, data = ShiftedLog(1.0), Counts.from_any(counts)
    engine = make_engine("native", Problem(data, data.size_factors("total"), link, quadratic(link)), 1)
    seen = [(time.process_time(), one.objective) for one in alternate(engine, *start, max_iter=max_iter)]
    seconds, objective = np.array(seen).T
    return seconds - seconds[0] + 1e-2, objective


def link() -> Figure:
    """The link for several c, both over itself and seen at small means."""
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    near, far = figure.subplots(1, 2)
    for ax, top in ((near, 3.0), (far, 300.0)):
        means = np.linspace(0.0, top, 400)
        shifts = [0.01, 0.1, 1.0, 10.0, np.inf]
        for c, color in zip(
            shifts, mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(shifts))), strict=True
        ):
            values = ShiftedLog(c).link(means)
            ax.plot(
                means, values / values[-1], color=color, linewidth=2, label=f"c = {c:g}".replace("inf", "∞")
            )
        ax.set(xlabel="mean count", ylabel="link, relative to its largest", xlim=(0, top), ylim=(0, 1.02))
    near.set_title("Small counts")
    far.set_title("Large counts")
    far.legend(fontsize=9)
    return figure


def approximation() -> Figure:
    """What a zero count contributes, and the quadratic in its place."""
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    for ax, c in zip(figure.subplots(1, 2), (1.0, 0.01), strict=True):
        eta = np.linspace(0.0, 1.35 * np.log1p(1.0 / c), 300)
        chebyshev, taylor = (quadratic(ShiftedLog(c), kind=kind) for kind in ("chebyshev", "taylor"))
        ax.axvspan(0.0, np.log1p(1.0 / c), color="#eef3f8", zorder=0)
        ax.plot(eta, np.expm1(eta), color=INK, linewidth=2.2, label="exact")
        for kind, color, name in ((chebyshev, BLUE, "Chebyshev (default)"), (taylor, ORANGE, "Taylor")):
            ax.plot(eta, kind.a0m1 + kind.a1 * eta + kind.a2 * eta**2, color=color, linewidth=1.8, label=name)
        ax.set(title=f"c = {c:g}", xlabel="sum of loading × factor", ylabel="mean of a zero count / c")
    figure.axes[0].legend(fontsize=9)
    return figure


def geometry() -> Figure:
    """Two factors as a plane, and the rates of all features as c falls towards 0."""
    points = np.random.default_rng(4).gamma(1.5, 0.45, size=(60, 2))
    hull = upper_right_hull(points)
    edge = (int(hull[1]), int(hull[2]))
    figure = Figure(figsize=(11.0, 3.9), layout="constrained")
    for ax, scale in zip(figure.subplots(1, 3, sharex=True, sharey=True), (0.4, 3.5, 300.0), strict=True):
        rates, c = unit_rates(points, loadings_towards(points, edge, scale=scale))
        ax.plot(*points[hull].T, color=FAINT, linewidth=1.2, zorder=1)
        ax.scatter(*points.T, color=FAINT, s=6, zorder=2)
        ax.scatter(*points.T, color=BLUE, s=1200.0 * rates, alpha=0.75, linewidth=0, zorder=3)
        share = rates[list(edge)].sum()
        ax.set_title(
            f"c = {c:.2g}: two features have {share:.0%}" if c > 1e-9 else f"c → 0: two have {share:.0%}"
        )
        ax.set(xlabel="entry in factor 1", xlim=(-0.1, 2.8), ylim=(-0.1, 2.6))
    figure.axes[0].set_ylabel("entry in factor 2")
    return figure


def across_c() -> Figure:
    """The same cells from c = inf to 0.001; a colour follows its factor from panel to panel."""
    data, shifts = lp.datasets.pancreas(), (np.inf, 10.0, 1.0, 0.1, 0.001)
    types = np.where(np.isin(data.sample_labels, COMMON), data.sample_labels, "other")[::3]
    fits = {fit.c: fit for fit in lp.sweep(data.counts[::3], 9, shifts, n_jobs=1).fits}
    figure, before = Figure(figsize=(8.4, 3.9), layout="constrained"), None
    for ax, c in zip(figure.subplots(len(shifts), 1), shifts, strict=True):
        fit = fits[c]
        if before is not None:
            order = match_factors(before, fit.loadings).order()
            fit = replace(fit, loadings=fit.loadings[:, order], factors=fit.factors[:, order])
        before = fit.loadings
        lp.pl.structure(fit, types, ax=ax, heights="shares", legend=False)
        ax.set(title="", yticks=[])
        ax.spines["left"].set_visible(False)
        name = f"c = {c:g}".replace("inf", "∞")
        ax.set_ylabel(name, rotation=0, ha="right", va="center")
        if c != shifts[-1]:
            for label in ax.texts:
                label.set_visible(False)
    return figure


def guides() -> Figure:
    """Differences of 200 guides to controls, of which 20 shift two of 8 factors (`studies.usage`)."""
    screen = {"guides": 200, "donors": (3, 0), "n_factors": 8, "shifted": (1, 3), "shift": 2.5}
    counts, guide, replicate, _, factors = draw_counts(Screen("", **screen), np.random.default_rng(0))
    names = np.where(guide > 0, [f"guide {one:03.0f}" for one in guide], "control")
    fit = lp.fit_log1p_nmf(counts, 8, fixed_factors=factors, n_jobs=1, random_state=0)
    found = lp.analysis.usage(fit, names, replicate=replicate, reference="control")
    figure = Figure(figsize=(6.0, 5.3), layout="constrained")
    lp.pl.usage(found, figure=figure)
    return figure


FIGURES = {
    "across-c": across_c,
    "newton-and-coordinate": newton_and_coordinate,
    "choose-k": choose_k,
    "link-scales": link,
    "approximation": approximation,
    "geometry": geometry,
    "usage-guides": guides,
}


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", lp.ApproximationWarning)
    with mpl.rc_context(STYLE):
        for name in names or FIGURES:
            path = IMAGES / f"{name}.png"
            FIGURES[name]().savefig(path, dpi=130)
            Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
