"""Are the tests of markers what they say?

    python -m studies.calibration known     # true loadings
    python -m studies.calibration noise     # overdispersed counts, factors from other samples, both noises
    python -m studies.calibration fits      # factors fitted to noise; features planted among real data
    python -m studies.calibration mcf7      # markers of MCF-7 against differential expression

These are the tables of docs/results/tests.md; `--quick` takes a tenth of the simulations.

Simulated are a baseline and two further factors. A third of the features is the same in all samples, a third
rises with factor 1 only, a third with factor 2. Tested is factor 2, with the true loadings.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
from benchmarks.data import DATA, ROOT
from scipy.stats import t as student
from tests.analysis.simulated_markers import FACTOR, Case, calibrate, draw, means_of, shares, simulate

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.analysis.marker_tests import (
    ERRORS,
    estimate_loadings,
    infer,
    infer_from_fit,
    regress,
)
from log1pnmf.analysis.markers import By, markers
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.new_samples import project
from log1pnmf.fitting.ranking import stand_ins
from log1pnmf.model.problem import Problem

NOISES = ("poisson", "nb")
LINKS = (0.1, 1.0, math.inf)
STATISTICS = get_args(By)


CASES = [
    *(Case(f"c = {c:g}", c) for c in (0.01, 1.0, 100.0, math.inf)),
    *(Case(f"c = {c:g}, loadings correlated 0.7", c, correlation=0.7) for c in (0.01, 1.0, 100.0, math.inf)),
    *(
        Case(f"c = {c:g}, correlated 0.7, baseline falls", c, correlation=0.7, fall=0.3)
        for c in (1.0, math.inf)
    ),
    *(Case(f"c = {c:g}, three kinds of samples", c, kinds=True) for c in (1.0, math.inf)),
    *(Case(f"c = {c:g}, overdispersed", c, overdispersion=0.5) for c in (1.0, math.inf)),
    *(
        Case(f"c = {c:g}, overdispersed, correlated 0.7", c, overdispersion=0.5, correlation=0.7)
        for c in (1.0, math.inf)
    ),
    *(Case(f"c = {c:g}, rare features", c, n_samples=1000, level=0.03) for c in (1.0, math.inf)),
    *(Case(f"c = {c:g}, 20 samples", c, n_samples=20) for c in (1.0, math.inf)),
    Case("c = 1, 20 samples, overdispersed", 1.0, n_samples=20, overdispersion=0.5),
    Case("c = 1, 8 samples", 1.0, n_samples=8),
]


NOISY = [
    Case(
        f"c = {c:g}, dispersion {phi:g}{', correlated 0.7' if correlation else ''}",
        c,
        600,
        300,
        1.5,
        phi,
        correlation,
    )
    for c in (1.0, math.inf)
    for phi in (0.5, 1.5)
    for correlation in (0.0, 0.7)
]
"""Cases for `projected`: half of the samples are fitted."""


def projected(case: Case, n_simulations: int) -> dict[str, dict[str, float]]:
    """Fit half of the samples, find the loadings of the others from these factors, and test there.

    The start is the truth, so that it is clear which factor is which.
    """
    rows: dict[str, list[list[float]]] = {f"{noise}, {one}": [] for noise in NOISES for one in ERRORS}
    known: dict[str, list[float]] = {name: [] for name in rows}
    for seed in range(n_simulations):
        counts, loadings, factors, sizes, kind = simulate(case, seed)
        half = len(counts) // 2
        for noise in NOISES:
            start = loadings[:half], factors
            fit = fit_log1p_nmf(
                counts[:half], 3, c=case.c, noise=noise, init=start, size_factors=sizes[:half], n_jobs=1
            )
            own = match_factors(loadings[:half], fit.loadings).order()[FACTOR]
            others = np.ascontiguousarray(
                project(fit, counts[half:], sizes[half:], prior=0.0, n_jobs=1).loadings
            )
            problem = Problem(Counts.from_any(counts[half:]), sizes[half:], fit.link, noise=fit.noise)
            for errors in ERRORS:
                found, reliability = infer_from_fit(fit, problem, others, errors=errors, n_jobs=1)
                rows[f"{noise}, {errors}"].append(shares(student.sf(found.z[:, own], half - 3), kind))
                known[f"{noise}, {errors}"].append(float(reliability[own]))
    return {name: row | {"reliability": float(np.mean(known[name]))} for name, row in means_of(rows).items()}


# ---------------------------------------------------------------- on fits


def planted(fit: Fit, counts: Any, *, n_features: int = 400, overdispersion: float = 0.0) -> dict[str, float]:
    """Test features without structure, of all levels, on the loadings of a fit and their errors.

    The fit has not seen these features, so that nothing of theirs has to be taken out of the loadings.
    """
    rng, fit = np.random.default_rng(0), fit.normalized("max")
    rates = np.exp(rng.uniform(np.log(0.1), np.log(5.0), n_features))
    tested = Counts.from_any(draw(fit.size_factors[:, None] * rates, overdispersion, rng))
    loadings, sizes = np.ascontiguousarray(fit.loadings), fit.size_factors
    seen = Problem(Counts.from_any(counts), sizes, fit.link)
    estimated = estimate_loadings(fit, seen, loadings, errors="sandwich", own=False)
    problem = Problem(tested, sizes, fit.link)
    start = np.repeat(fit.link.link(rates)[:, None] / fit.link.alpha, fit.n_components, axis=1)
    around = stand_ins(estimated.values, sizes, estimated.excess(sizes))
    found = infer(problem, estimated, regress(problem, loadings, start, 1), around, errors="sandwich")
    known = around.comparable & (estimated.reliability(sizes) > 0.0)
    return _describe(student.sf(found.z[:, known], len(loadings) - fit.n_components))


def from_noise(n_simulations: int, *, split: bool, c: float = 1.0) -> dict[str, float]:
    """Fit three factors to counts without any structure, and test them."""
    p = []
    for seed in range(n_simulations):
        rng = np.random.default_rng([seed, 99])
        rates = np.exp(0.3 * rng.standard_normal(200))[:, None] * rng.uniform(0.5, 4.0, 200)
        counts = rng.poisson(rates)
        fit = fit_log1p_nmf(counts, 3, c=c, likelihood="exact", tol=1e-6, random_state=seed, n_jobs=1)
        p.append(markers(fit, counts, split=split, n_jobs=1).p.ravel())
    return _describe(np.concatenate(p))


def _describe(p: np.ndarray) -> dict[str, float]:
    p = p[~np.isnan(p)]
    return {"p below 0.05": float(np.mean(p <= 0.05)), "p below 0.01": float(np.mean(p <= 0.01))}


def real_fits() -> Iterator[tuple[str, float, Fit, Any]]:
    """Fit subsamples of real data; each takes seconds. Also their names, c and counts."""
    from .rankings import DATA_SETS, subsample

    for name, c in itertools.product(DATA_SETS, LINKS):
        counts, k = subsample(name).counts, DATA_SETS[name].n_components
        fit = fit_log1p_nmf(counts, k, c=c, tol=1e-5, max_iter=150, random_state=0, n_jobs=1)
        yield name, c, fit, counts


# ---------------------------------------------------------------- MCF-7


def mcf7_fits(penalties: tuple[float, ...]) -> Iterator[tuple[float, Fit, Any]]:
    """Fit MCF-7 with each penalty, from the optimum without one; also the data."""
    import anndata

    from studies.paper.mcf7_picture import untreated_column

    data = anndata.read_h5ad(DATA / "mcf7_bulk.h5ad")
    optimum = fit_log1p_nmf(data.X, 3, likelihood="exact", random_state=0)
    first = untreated_column(optimum, data)
    order = [first, *(k for k in range(3) if k != first)]
    start = optimum.loadings[:, order], optimum.factors[:, order]
    for l1 in penalties:
        yield l1, fit_log1p_nmf(data.X, 3, likelihood="exact", l1=l1, init=start, tol=1e-7), data


def treatment_factor(fit: Fit, data: Any, treatment: str) -> int:
    """Say which factor of MCF-7 rises most under a treatment."""
    labels = np.asarray(data.obs["label"])
    treated, untreated = (fit.loadings[labels == name].mean(axis=0) for name in (treatment, "EtOH"))
    return int(np.argmax(treated - untreated))


def mcf7(penalties: tuple[float, ...] = (10.0, 30.0)) -> list[dict[str, Any]]:
    """Precision of the first 100 markers of each treatment: those that PyDESeq2 finds higher under it."""
    from studies.paper.differential import KEPT, changed_genes
    from studies.paper.study import Options

    rows = []
    for l1, fit, data in mcf7_fits(penalties):
        groups = changed_genes(data, Options(DATA, KEPT.parent, ROOT / "paper-out"))
        for errors in ERRORS:
            found = markers(fit, data.X, errors=errors, feature_names=data.var_names)
            for name in ("RA", "TGFb"):
                column = treatment_factor(fit, data, name)
                row: dict[str, Any] = {"l1": l1, "errors": errors, "factor": name}
                for by in STATISTICS:
                    top = found.top_index(column, 100, by=by)
                    row[by] = float(np.mean(np.isin(groups[top], [name, "both"])))
                row["significant"] = int((found.adjusted_p[:, column] < 0.01).sum())
                rows.append(row)
    return rows


def _mcf7_table(rows: list[dict[str, Any]]) -> str:
    head = ["l1", "errors", "factor", *(f"`{by}`" for by in STATISTICS), "adjusted p < 0.01"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        shown = [f"{row[by]:.2f}" for by in STATISTICS]
        lines.append([f"{row['l1']:g}", row["errors"], row["factor"], *shown, f"{row['significant']:,}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---------------------------------------------------------------- running


def fits(out: Path, n_simulations: int) -> None:
    """Test features without structure on fits: of noise, and of real data."""
    done: dict[str, Any] = {"n_simulations": n_simulations}
    print("| tested | p <= 0.05 | p <= 0.01 |\n|---|---|---|")
    for c in (1.0, math.inf):
        for split in (False, True):
            name = f"noise, c = {c:g}, {'other half of the counts' if split else 'same counts'}"
            _print(done, name, from_noise(n_simulations, split=split, c=c))
    kinds, rows = {"Poisson": 0.0, "overdispersed": 0.7}, {}
    for name, c, fit, counts in real_fits():
        for kind, overdispersion in kinds.items():
            row = done[f"{name}, c = {c:g}, {kind}"] = planted(fit, counts, overdispersion=overdispersion)
            rows.setdefault(name, []).append(f"{row['p below 0.05']:.3f}")
    head = [f"c = {c:g}, {kind}" for c in LINKS for kind in kinds]
    print("\n| planted in, p <= 0.05 |", " | ".join(head), "|\n|" + "---|" * (1 + len(head)))
    for name, row in rows.items():
        print(f"| {name} |", " | ".join(row), "|")
    (out / "calibration-fits.json").write_text(json.dumps(done))


def _table(
    cases: list[Case],
    measure: Callable[[Case, int], dict[str, dict[str, float]]],
    n_simulations: int,
    kept: Path,
) -> dict[str, Any]:
    """Measure cases and print them; cases that were measured before with as many simulations are kept."""
    print(
        "| simulated | errors | constant features, p <= 0.05 | p <= 0.01 | of the other factor, p <= 0.05 "
        "| false among adjusted p <= 0.05 | found | reliability |\n|" + "---|" * 8
    )
    before: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    done: dict[str, Any] = before if before.get("n_simulations") == n_simulations else {}
    done["n_simulations"] = n_simulations
    for case in cases:
        if case.name not in done:
            done[case.name] = measure(case, n_simulations)
            kept.write_text(json.dumps(done))
        for errors, row in done[case.name].items():
            print(
                f"| {case.name} | {errors} | {row['constant']:.3f} | {row['constant, 0.01']:.4f} "
                f"| {row['of another factor']:.3f} | {row['false discoveries']:.1%} | {row['found']:.0%} "
                f"| {row.get('reliability', 1.0):.2f} |",
                flush=True,
            )
    return done


def _print(done: dict[str, Any], name: str, row: dict[str, float]) -> None:
    done[name] = row
    print(f"| {name} | {row['p below 0.05']:.3f} | {row['p below 0.01']:.4f} |", flush=True)


def main() -> None:
    """Read what is wanted from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["known", "noise", "fits", "mcf7"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--simulations", type=int, help="of each case; 30 by default, 20 for noise")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    usual = 20 if options.what == "noise" else 30
    n_simulations = options.simulations or (usual // 10 if options.quick else usual)
    if options.what == "known":
        _table(CASES, calibrate, n_simulations, options.out / "calibration-known.json")
    elif options.what == "fits":
        fits(options.out, n_simulations)
    elif options.what == "noise":
        _table(NOISY, projected, n_simulations, options.out / "calibration-noise.json")
    else:
        print(_mcf7_table(mcf7()))


if __name__ == "__main__":
    main()
