"""Structure plots of the three data sets at every c (the paper's additional figures)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.metrics import effective_factors, match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from studies.paper import bbc, cytokine
from studies.paper.across_c import KANG_CELLS, SHIFTS
from studies.paper.drawing import TREATMENTS, structures
from studies.paper.mcf7_picture import GROUPS, Picture
from studies.paper.study import Fits, Options, Report, run

Shown = tuple[np.ndarray, np.ndarray]


class Data(NamedTuple):
    """Counts, groups of the samples, and how a fit is put in order: after that at c = inf, if None."""

    counts: Any
    n_components: int
    labels: np.ndarray
    groups: tuple[str, ...]
    order: Callable[[Fit], Shown] | None = None


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "structures", "Structure plots across c")
    report.note(
        'Each fit starts from a singular value decomposition (`init="nndsvd"`, `tol=1e-5`, at most 60 '
        "iterations): enough for a picture, and quick. Factors are matched to those at c = inf, so that a "
        "colour means the same factor in all panels of a figure; MCF-7's are baseline, RA and TGF-beta. "
        "Memberships: how many factors a sample takes part in (exponential of the entropy)."
    )
    for name, data in _data_sets(options).items():
        fits = report.fits(f"structures-{name.replace(' ', '-').lower()}")
        rows, shown = across(data, fits)
        report.figure(
            name.replace(" ", "-").lower(),
            structures(shown, data.labels, data.groups, colors=TREATMENTS if data.order else None),
            f"{name}: loadings at every c.",
        )
        report.table(name.replace(" ", "-").lower(), rows, f"{name}: the fits of the figure.")
        _claims(report, name, rows)
        report.save()


def across(data: Data, fits: Fits) -> tuple[list[dict[str, Any]], dict[str, Shown]]:
    """Fit at every c, the largest first; rows of a table, and loadings and factors in order."""
    rows, shown = [], {}
    for c in reversed(fits.options.pick(SHIFTS, SHIFTS[1::3])):
        fit = fits.get(lambda c=c: _fit(data, c, fits.options), c=c)
        scale = np.maximum(fit.loadings.max(axis=0), 1e-300)
        loadings, factors = fit.loadings / scale, fit.factors * scale
        if data.order is not None:
            loadings, factors = data.order(fit)
        elif shown:
            pairs = match_factors(next(iter(shown.values()))[0], loadings).pairs
            loadings, factors = (table[:, pairs[np.argsort(pairs[:, 0]), 1]] for table in (loadings, factors))
        shown[f"c = {c:g}"] = loadings, factors
        first = next(iter(shown.values()))[0]
        rows.append(
            {
                "c": c,
                "log-likelihood": float(fit.log_likelihood),
                "iterations": fit.n_iter,
                "memberships": float(effective_factors(loadings).mean()),
                "correlation with the loadings at c = inf": float(
                    match_factors(first, loadings).similarity.mean()
                ),
            }
        )
    return rows, shown


def _fit(data: Data, c: float, options: Options) -> Fit:
    return fit_log1p_nmf(
        data.counts,
        data.n_components,
        c=c,
        init="nndsvd",
        tol=1e-5,
        max_iter=options.pick(60, 5),
        random_state=0,
        n_jobs=options.jobs,
    )


def _claims(report: Report, name: str, rows: list[dict[str, Any]]) -> None:
    least, most = rows[-1], rows[0]
    if name != "MCF-7":
        report.claim(
            f"{name}: a sample takes part in more factors at small c than at c = inf",
            paper="modular against clustered",
            ours=f"{least['memberships']:.1f} at c = {least['c']:g}, {most['memberships']:.1f} at c = inf",
            agrees=least["memberships"] > most["memberships"],
        )
    at = {row["c"]: row["correlation with the loadings at c = inf"] for row in rows}
    if name == "BBC" and 1.0 in at:
        report.claim(
            "BBC: loadings at c = 1 somewhat resemble those at c = inf, those at c = 0.001 do not",
            paper="somewhat similar",
            ours=f"mean correlation of matched loadings {at[1.0]:.2f} at c = 1, {at[least['c']]:.2f} at "
            f"c = {least['c']:g}",
            agrees=at[1.0] > max(0.5, at[least["c"]]),
        )


def _data_sets(options: Options) -> dict[str, Data]:
    samples, articles, cells = options.read("mcf7_bulk"), bbc.read(options), cytokine.read(options)
    few = cells.counts.to_scipy().tocsr()[: options.pick(KANG_CELLS, 100)]
    often = np.asarray((few > 0).sum(axis=0)).ravel() >= options.pick(20, 5)
    types = cells.types[: few.shape[0]]

    def treatments(fit: Fit) -> Shown:
        picture = Picture(fit, samples)
        return picture.loadings, picture.factors

    return {
        "MCF-7": Data(samples.X, 3, np.asarray(samples.obs["label"]), GROUPS, treatments),
        "blood cells": Data(Counts.from_any(few[:, often]), 13, types, tuple(np.unique(types))),
        "BBC": Data(articles.X, 10, np.asarray(articles.obs["label"]), bbc.CATEGORIES),
    }


if __name__ == "__main__":
    run(study, __doc__)
