"""Sparsity and correlation across c on the three data sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from log1pnmf import pl
from log1pnmf.analysis.metrics import factor_correlation, hoyer
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from studies.paper import bbc, cytokine, mcf7
from studies.paper.drawing import pyplot
from studies.paper.forms import Case
from studies.paper.study import Options, Report, best, last_gain, run

SHIFTS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0, math.inf)
MEASURES = {
    "factor_correlation": "mean absolute Spearman between factors",
    "sparsity_loadings": "Hoyer sparsity of L",
    "sparsity_factors": "Hoyer sparsity of F",
}
KINDS = ("faithful", "converged")
KANG_CELLS = 600


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "across_c", "Sparsity and correlation across c")
    report.note(
        "A claim agrees if the rank correlation of the measure with c is at least 0.9. This asks for a rise "
        "at nearly every step. Where a measure hardly changes, the order of nearly equal values decides; the "
        "figures show how large the changes are. Faithful fits have one seed each and are stopped before "
        "they converge. BBC has converged fits only: faithful ones at every c would take half an hour more."
    )
    for name, fit in _data_sets(report, options).items():
        shifts = options.pick(SHIFTS, (1e-1, 1.0, math.inf))
        rows = [row for c in shifts for row in _rows(fit(c), c)]
        report.table(name.replace(" ", "-").lower(), rows, f"{name}: every fit.", show=False)
        for kind in dict.fromkeys(row["fit"] for row in rows):
            _trend(report, name, kind, [row for row in rows if row["fit"] == kind])
        _gaps(report, name, rows)
        report.save()  # what there is so far


def _gaps(report: Report, name: str, rows: list[dict[str, Any]]) -> None:
    """How far the faithful fits are from converged ones: a reason for what they show."""
    kinds = [{row["c"]: row["log_likelihood"] for row in rows if row["fit"] == kind} for kind in KINDS]
    gaps = {c: kinds[1][c] - kinds[0][c] for c in kinds[0]}
    if gaps:
        least, most = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
        report.note(
            f"{name}: faithful fits end between {abs(gaps[least]):,.0f} (c = {least:g}) and "
            f"{gaps[most]:,.0f} (c = {most:g}) units of log-likelihood below converged ones. The gap differs "
            "from c to c. This is likely why the two kinds of fits disagree."
        )


def _rows(fits: dict[str, list[Fit]], c: float) -> list[dict[str, Any]]:
    """Measures of the best fit of each kind, and their range over seeds."""
    rows = []
    for kind, found in fits.items():
        top = best(found)
        row: dict[str, Any] = {"fit": kind, "c": c, "log_likelihood": float(top.log_likelihood or math.nan)}
        for measure in MEASURES:
            values = [_measure(fit, measure) for fit in found]
            row[measure] = _measure(top, measure)
            row[f"{measure}_range"] = max(values) - min(values)
        row |= {"iterations": top.n_iter, "converged": top.converged, "last_gain": last_gain(top)}
        rows.append(row)
    return rows


def _measure(fit: Fit, name: str) -> float:
    if name == "factor_correlation":
        return factor_correlation(fit.factors)
    return float(hoyer(fit.loadings if name == "sparsity_loadings" else fit.factors).mean())


def _trend(report: Report, name: str, kind: str, rows: list[dict[str, Any]]) -> None:
    figure = pyplot.figure(figsize=(10.0, 2.8), layout="constrained")
    table = {key: np.array([row[key] for row in rows]) for key in ("c", *MEASURES)}
    pl.sweep(table, figure=figure)
    figure.suptitle(f"{name}, {kind} fits", fontsize="medium")
    report.figure(f"{name}-{kind}".replace(" ", "-").lower(), figure, f"{name}, {kind} fits.")
    for measure, words in MEASURES.items():
        values = table[measure]
        trend = float(spearmanr(np.arange(len(values)), values)[0])
        spread = max(row[f"{measure}_range"] for row in rows)
        report.claim(
            f"{name}, {kind}: {words} rises with c",
            paper="rises",
            ours=f"{values[0]:.2f} at c = {rows[0]['c']:g} to {values[-1]:.2f} at c = inf; Spearman of the "
            f"trend {trend:.2f}",
            agrees=trend >= 0.9,
            spread=f"range over seeds up to {spread:.2f}" if spread > 0 else "",
        )


# ---------------------------------------------------------------- what is fitted


def _data_sets(report: Report, options: Options) -> dict[str, Callable[[float], dict[str, list[Fit]]]]:
    """For each data set a function from c to fits, by kind."""
    seeds = options.pick((0, 1), (0,))
    samples, articles, cells = options.read("mcf7_bulk"), bbc.read(options), _few_cells(options)
    names = ("mcf7", "bbc", f"kang-{cells.n_samples}")
    mcf7_fits, bbc_fits, kang_fits = (report.fits(name) for name in names)

    def of_mcf7(c: float) -> dict[str, list[Fit]]:
        return both(mcf7.make_case(samples, mcf7_fits, c), mcf7.SEED)

    def of_bbc(c: float) -> dict[str, list[Fit]]:
        return {"converged": bbc.make_case(articles, bbc_fits, c).fit_converged("whole", seeds)}

    def of_kang(c: float) -> dict[str, list[Fit]]:
        return both(cytokine.make_case(cells, kang_fits, c), cytokine.SEED)

    def both(case: Case, seed: int) -> dict[str, list[Fit]]:
        return {
            "faithful": [case.fit_faithful("whole", seed)],
            "converged": case.fit_converged("whole", seeds),
        }

    return {"MCF-7": of_mcf7, "BBC": of_bbc, "blood cells": of_kang}


def _few_cells(options: Options) -> Counts:
    """Fewer cells and genes, so that exact fits at small c take minutes."""
    whole = cytokine.read(options).counts.to_scipy().tocsr()[: options.pick(KANG_CELLS, 100)]
    often = np.asarray((whole > 0).sum(axis=0)).ravel() >= options.pick(20, 5)
    return Counts.from_any(whole[:, often])


if __name__ == "__main__":
    run(study, __doc__)
