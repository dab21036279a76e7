"""Are the p-values and intervals of markers what they say?

    python -m benchmarks.calibration           # all cases, to bench-out/calibration.json
    python -m benchmarks.calibration --quick   # a tenth of the simulations
    python -m benchmarks.calibration draw      # the picture of docs/markers.md from what was computed
    python -m benchmarks.calibration mcf7      # markers of MCF-7 against differential expression

Simulated are a baseline and two further factors. No feature has an effect of the last one; every feature has
one of the others. Loadings are the true ones unless a case says otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kstest, norm

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.markers import markers
from log1pnmf.analysis.markers.inference import ERRORS, Z95, infer
from log1pnmf.analysis.markers.regression import FeatureRegressions
from log1pnmf.analysis.markers.table import STATISTICS
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts, training_size_factors
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem

from .data import DATA, ROOT

NULL = 2
"""The factor without any effect."""


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Parameters
    ----------
    name : str
    c : float
    n_samples, n_features : int
    level : float
        Mean rate of the features, about.
    overdispersion : float
        Of negative binomial counts, ``variance = mean + overdispersion mean^2``; 0 is Poisson.
    """

    name: str
    c: float
    n_samples: int = 300
    n_features: int = 200
    level: float = 1.5
    overdispersion: float = 0.0


CASES = [
    *(Case(f"c = {c:g}", c) for c in (0.01, 1.0, 100.0, math.inf)),
    *(Case(f"c = {c:g}, rare features", c, n_samples=1000, level=0.03) for c in (1.0, math.inf)),
    *(Case(f"c = {c:g}, 20 samples", c, n_samples=20) for c in (1.0, math.inf)),
    Case("c = 1, 8 samples", 1.0, n_samples=8),
    *(Case(f"c = {c:g}, overdispersed", c, overdispersion=0.5) for c in (1.0, math.inf)),
    Case("c = 1, overdispersed, 20 samples", 1.0, n_samples=20, overdispersion=0.5),
]


def simulate(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw counts; also loadings, factors (link scale) and size factors."""
    rng = np.random.default_rng([seed, case.n_samples, case.n_features])
    n, m, link = case.n_samples, case.n_features, ShiftedLog(case.c)
    loadings = np.zeros((n, 3))
    loadings[:, 0] = rng.uniform(0.6, 1.0, n)
    for k in (1, NULL):
        loadings[:, k] = np.where(rng.random(n) < 0.4, rng.uniform(0.2, 1.0, n), 0.0)
        loadings[rng.integers(n), k] = 1.0
    loadings /= loadings.max(axis=0)
    factors = np.zeros((m, 3))
    factors[:, 0] = link.link(case.level * rng.uniform(0.3, 2.0, m))
    factors[:, 1] = link.link(case.level * rng.uniform(0.5, 3.0, m))
    sizes = np.exp(0.3 * rng.standard_normal(n))
    means = sizes[:, None] * link.inverse(loadings @ factors.T)
    if case.overdispersion > 0.0:
        means = means * rng.gamma(1.0 / case.overdispersion, case.overdispersion, size=means.shape)
    return rng.poisson(means), loadings, factors, sizes


def calibrate(case: Case, n_simulations: int) -> dict[str, dict[str, Any]]:
    """Simulate a case and compare p-values and intervals with the truth, for both kinds of errors."""
    p: dict[str, list[np.ndarray]] = {errors: [] for errors in ERRORS}
    covered: dict[str, list[np.ndarray]] = {errors: [] for errors in ERRORS}
    for seed in range(n_simulations):
        counts, loadings, factors, sizes = simulate(case, seed)
        problem = Problem(Counts.from_any(counts), sizes, ShiftedLog(case.c))
        regressions = FeatureRegressions(problem, loadings, 1)
        truth = factors / problem.link.alpha
        found = regressions.solve(truth)
        for errors in ERRORS:
            inference = infer(regressions, found, errors=errors)
            p[errors].append(norm.sf(inference.z[:, NULL]))
            distance = np.abs(found - truth)[:, :NULL]
            covered[errors].append(distance <= Z95 * inference.error[:, :NULL])
    return {errors: describe(np.concatenate(p[errors]), np.concatenate(covered[errors])) for errors in ERRORS}


def describe(p: np.ndarray, covered: np.ndarray) -> dict[str, Any]:
    """Sum up: how often p-values are small, whether they are smaller than uniform ones, and coverage."""
    return {
        "p below 0.05": float(np.mean(p <= 0.05)),
        "p below 0.01": float(np.mean(p <= 0.01)),
        # against p-values that tend to be smaller than uniform ones
        "KS, one-sided": float(kstest(p, "uniform", alternative="greater").pvalue),
        "coverage": covered.mean(axis=0).tolist(),
        "quantiles": np.quantile(p, np.linspace(0.0, 1.0, 201)).tolist(),
    }


# ---------------------------------------------------------------- loadings that were estimated


def from_fit(n_simulations: int, *, held_out: bool) -> dict[str, Any]:
    """Fit two factors to counts without any structure: p-values of the one that is not the baseline."""
    p: dict[str, list[np.ndarray]] = {"effect": [], "net effect": []}
    for seed in range(n_simulations):
        rng = np.random.default_rng([seed, 99])
        rates = np.exp(0.3 * rng.standard_normal(200))[:, None] * rng.uniform(0.5, 4.0, 200)
        counts = rng.poisson(rates)
        train, test = (counts, counts)
        sizes: Any = "total"
        if held_out:
            train, test = split_counts(counts, 0.5, random_state=seed)
            sizes = training_size_factors(train, 0.5)
        fit = fit_log1p_nmf(
            train, 2, likelihood="exact", size_factors=sizes, l1=3.0, tol=1e-6, random_state=seed, n_jobs=1
        )
        found = markers(fit, test, n_jobs=1)
        p["effect"].append(found.p[:, 1])
        p["net effect"].append(found.net_p[:, 1])
    return {what: describe(np.concatenate(values), np.zeros((1, 1))) for what, values in p.items()}


# ---------------------------------------------------------------- MCF-7


def mcf7(penalties: tuple[float, ...] = (10.0, 30.0)) -> list[dict[str, Any]]:
    """Precision of the first 100 markers of each treatment: those that PyDESeq2 finds higher under it."""
    import anndata
    from paper.differential import KEPT, changed_genes
    from paper.mcf7_picture import untreated_column
    from paper.study import Options

    data = anndata.read_h5ad(DATA / "mcf7_bulk.h5ad")
    groups, labels = (
        changed_genes(data, Options(DATA, KEPT.parent, ROOT / "paper-out")),
        np.asarray(data.obs["label"]),
    )
    optimum = fit_log1p_nmf(data.X, 3, likelihood="exact", random_state=0)
    first = untreated_column(optimum, data)
    order = [first, *(k for k in range(3) if k != first)]
    start = optimum.loadings[:, order], optimum.factors[:, order]
    rows = []
    for l1 in penalties:
        fit = fit_log1p_nmf(data.X, 3, likelihood="exact", l1=l1, init=start, tol=1e-7)
        for errors in ERRORS:
            found = markers(fit, data.X, errors=errors, feature_names=data.var_names)
            for name in ("RA", "TGFb"):
                column = int(np.argmax(_rises(fit.loadings, labels, name)))
                row: dict[str, Any] = {"l1": l1, "errors": errors, "factor": name}
                for by in STATISTICS:
                    top = found.top_index(column, 100, by=by)
                    row[by] = float(np.mean(np.isin(groups[top], [name, "both"])))
                row["significant"] = int((found.adjusted_p[:, column] < 0.01).sum())
                row["significant, net"] = int((found.adjusted_net_p[:, column] < 0.01).sum())
                row["first"] = found.top(column, 10)
                rows.append(row)
    return rows


def _rises(loadings: np.ndarray, labels: np.ndarray, treatment: str) -> np.ndarray:
    return loadings[labels == treatment].mean(axis=0) - loadings[labels == "EtOH"].mean(axis=0)


# ---------------------------------------------------------------- running


def run(out: Path, n_simulations: int) -> None:
    """Compute all cases that are not there yet and print them."""
    path = out / "calibration.json"
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    jobs: dict[str, Any] = {case.name: lambda case=case: calibrate(case, n_simulations) for case in CASES}
    jobs["no structure, fitted"] = lambda: from_fit(n_simulations, held_out=False)
    jobs["no structure, fitted to the other half"] = lambda: from_fit(n_simulations, held_out=True)
    for name, job in jobs.items():
        if done.get(name, {}).get("simulations", 0) < n_simulations:
            done[name] = {"simulations": n_simulations, **job()}
            path.write_text(json.dumps(done))
        for what, found in done[name].items():
            if what != "simulations":
                print(_line(name, what, found), flush=True)


def _line(name: str, errors: str, found: dict[str, Any]) -> str:
    coverage = ", ".join(f"{value:.1%}" for value in found["coverage"])
    return (
        f"| {name} | {errors} | {found['p below 0.05']:.3f} | {found['p below 0.01']:.4f} "
        f"| {found['KS, one-sided']:.2g} | {coverage if len(found['coverage']) > 1 else ''} |"
    )


def draw(out: Path, path: Path) -> None:
    """Draw quantiles of the p-values without effect."""
    from matplotlib.figure import Figure

    done = json.loads((out / "calibration.json").read_text())
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    panels = {
        "as modelled": [("c = 0.01", "model"), ("c = 1", "model"), ("c = inf", "model")],
        "overdispersed (c = 1)": [("c = 1, overdispersed", "model"), ("c = 1, overdispersed", "sandwich")],
        "loadings from noise": [
            ("no structure, fitted", "effect"),
            ("no structure, fitted", "net effect"),
            ("no structure, fitted to the other half", "net effect"),
        ],
    }
    for ax, (title, lines) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        ax.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8, linestyle=":")
        for name, errors in lines:
            quantiles = done[name][errors]["quantiles"]
            label = name.removeprefix("no structure, ")
            if not title.startswith("as"):
                label = errors if title.startswith("over") else f"{label}: {errors}"
            ax.plot(np.linspace(0, 1, len(quantiles)), quantiles, linewidth=1.5, label=label)
        ax.set_title(title, loc="left", fontsize="medium")
        ax.set_xlabel("uniform")
        ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(0.0, -0.2))
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("p-values without effect")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Read what is wanted from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", default="run", choices=["run", "draw", "mcf7"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    if options.what == "run":
        run(options.out, 5 if options.quick else 50)
    elif options.what == "draw":
        draw(options.out, ROOT / "docs" / "img" / "markers-calibration.png")
    else:
        for row in mcf7():
            print(json.dumps(row))


if __name__ == "__main__":
    main()
