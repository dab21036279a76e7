"""A cytokine across cell types (K = 13): interferon-beta in blood cells at c = 1 and c = inf.

The paper's pancreas counts are not available; Kang's (2018) blood cells with and without interferon-beta have
the same design: cell types crossed with a treatment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from studies.paper.cell_types import MARKERS, associations, name_cell_types
from studies.paper.drawing import panels, structures
from studies.paper.faithful import fit_as_in_r, fit_topic_model
from studies.paper.forms import Case, choose_l1, describe
from studies.paper.study import Fits, Options, Report, best, run

SEED = 1  # of the paper's script
N_CELLS, LEAST_CELLS = 2000, 10
PENALTIES = (1.0, 10.0, 30.0, 100.0)
INTERFERON = ("ISG15", "IFI6", "IFIT1", "IFIT3", "MX1", "ISG20", "CXCL10")
SEEDS = {1.0: (0, 1), math.inf: (0, 1, 2, 3)}
NAMES = {1.0: "c = 1", math.inf: "c = inf"}
STRONG = 0.2  # part of a factor's variance that makes it a treatment factor
SHARED = 0.8  # evenness over types from which an effect counts as shared by them


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of the study with what is known of them."""

    counts: Counts
    genes: np.ndarray
    condition: np.ndarray
    types: np.ndarray


def read(options: Options) -> Cells:
    """Take a random part of the cells, so that the paper's solver has time to run, and genes seen in it."""
    data = options.read("kang_pbmc_ifnb_14k")
    genes, condition = np.asarray(data.var_names), np.asarray(data.obs["label"]).astype(str)
    types = name_cell_types(data.X, genes, condition)
    n_cells = options.pick(N_CELLS, 300)
    cells = np.sort(np.random.default_rng(0).choice(len(types), n_cells, replace=False))
    counts = data.X[cells]
    kept = np.asarray((counts > 0).sum(axis=0)).ravel() >= LEAST_CELLS
    return Cells(Counts.from_any(counts[:, kept]), genes[kept], condition[cells], types[cells])


class Reading:
    """A fit with its treatment factor.

    Parameters
    ----------
    loadings, factors : ndarray
    cells : Cells
    """

    def __init__(self, loadings: np.ndarray, factors: np.ndarray, cells: Cells) -> None:
        size = np.where(loadings.max(axis=0) > 0.0, loadings.max(axis=0), 1.0)
        self.loadings, self.factors, self.cells = loadings / size, factors * size, cells
        self.table = associations(self.loadings, cells.types, cells.condition)
        self.treatment = int(np.argmax([row["treatment given type"] for row in self.table]))

    @property
    def strength(self) -> float:
        """Part of the variance of the treatment factor that the treatment explains, given the type."""
        return float(self.table[self.treatment]["treatment given type"])

    @property
    def shared(self) -> float:
        """How evenly the effect on the treatment factor is spread over cell types."""
        return float(self.table[self.treatment]["shared"])

    @property
    def n_treatment(self) -> int:
        """Number of factors that the treatment explains well."""
        return sum(row["treatment given type"] >= STRONG for row in self.table)

    def interferon(self, n: int = 20) -> int:
        """Interferon genes among the top n of the treatment factor."""
        top = self.cells.genes[np.argsort(-self.factors[:, self.treatment])[:n]]
        return len(set(top) & set(INTERFERON))

    def by_treatment(self) -> tuple[np.ndarray, np.ndarray]:
        """Give loadings and factors, those that the treatment explains best first."""
        order = np.argsort([-row["treatment given type"] for row in self.table], kind="stable")
        return self.loadings[:, order], self.factors[:, order]

    def row(self) -> dict[str, Any]:
        """Summary as columns of a table."""
        top = self.cells.genes[np.argsort(-self.factors[:, self.treatment])[:10]]
        return {
            "treatment factors": self.n_treatment,
            "strongest: treatment given type": self.strength,
            "strongest: type given treatment": self.table[self.treatment]["type given treatment"],
            "strongest: shared over types": self.shared,
            "interferon genes in its top 20": self.interferon(),
            "its top 10": " ".join(top),
        }


def make_case(counts: Counts, fits: Fits, c: float) -> Case:
    """Blood cells with the settings of the paper's pancreas study; the faithful fit is approximate."""
    n_iter, jobs = fits.options.pick(250, 5), fits.options.jobs

    def faithful(counts: Counts, *, size_factors: Any, seed: int) -> Fit:
        common = {"n_iter": n_iter, "size_factors": size_factors, "jobs": jobs}
        if math.isinf(c):
            return fit_topic_model(counts, 13, tiny=1e-5, **common)
        return fit_as_in_r(counts, 13, c=c, seed=seed, likelihood="chebyshev", **common)

    likelihood = "adaptive" if 1.0 <= c < math.inf else "exact"
    return Case(fits, counts, 13, c, faithful, likelihood, tol=1e-7, rank_one_only=True)


def study(options: Options) -> None:
    """Run the study."""
    report = Report(
        options, "cytokine", "A cytokine across cell types: interferon-beta in blood cells (K = 13)"
    )
    cells = read(options)
    report.note(
        f"These data replace the paper's pancreas data: {cells.counts.n_samples:,} of 13,999 cells, "
        f"chosen at random, and the {cells.counts.n_features:,} genes that at least {LEAST_CELLS} of them "
        "have. Cell types come from marker genes."
    )
    fits = report.fits("kang")
    cases = {c: make_case(cells.counts, fits, c) for c in (1.0, math.inf)}
    rows: list[dict[str, Any]] = []
    shown, readings = {}, {}
    for c, case in cases.items():
        seeds = options.pick(SEEDS[c], (0,))
        for name, (whole, train) in _three_fits(report, case, seeds).items():
            reading = Reading(whole.loadings, whole.factors, cells)
            readings[c, name.split(",")[0]] = reading
            rows.append({"c": NAMES[c], **describe(name, whole, case.heldout(train), fits), **reading.row()})
            shown[f"{NAMES[c]}, {name}"] = reading.by_treatment()
        spread = [Reading(fit.loadings, fit.factors, cells) for fit in case.fit_converged("whole", seeds)]
        _claims(report, c, {form: reading for (at, form), reading in readings.items() if at == c}, spread)
    report.table("forms", rows, "The same data and model, fitted in three ways.")
    _contrast(report, readings)
    groups = np.char.add(np.char.add(cells.types, " "), cells.condition)
    report.figure(
        "structure",
        structures(shown, groups, _order(groups)),
        "Loadings by cell type and treatment; k1 is the factor that the "
        "treatment explains best (given the type), k2 the next, and so on.",
    )
    _associations(report, readings)
    _likelihoods(report, cells, fits, best(cases[1.0].fit_converged("whole", options.pick(SEEDS[1.0], (0,)))))
    report.save()


def _three_fits(report: Report, case: Case, seeds: Sequence[int]) -> dict[str, tuple[Fit, Fit]]:
    """Faithful, converged and (c = 1) sparse fits, each of the whole counts and of their training part."""
    chosen = {
        "faithful": (case.fit_faithful("whole", SEED), case.fit_faithful("train", SEED)),
        "converged": (
            best(case.fit_converged("whole", seeds)),
            best(case.fit_converged("train", seeds[:1])),
        ),
    }
    if not math.isinf(case.c):
        choice = choose_l1(case, report.options.pick(PENALTIES, (1.0,)), seeds[:1])
        report.table("penalties", choice.rows, "c = 1: penalties, judged on held-out counts.")
        l1, reason = choice.shown(case.heldout(chosen["faithful"][1]))
        report.note(f"c = 1: {choice} {reason}")
        chosen[f"sparse, l1 = {l1:g}"] = (
            best(case.fit_sparse("whole", l1, seeds[:1])),
            best(case.fit_sparse("train", l1, seeds[:1])),
        )
    return chosen


def _order(groups: np.ndarray) -> list[str]:
    names = [f"{name} {label}" for name in MARKERS for label in ("ctrl", "stim")]
    return [name for name in names if name in set(groups)]


def _claims(report: Report, c: float, readings: dict[str, Reading], spread: list[Reading]) -> None:
    for form, reading in readings.items():
        seeds = spread if form == "converged" else []
        if c == 1.0:
            report.claim(
                f"c = 1, {form}: interferon genes are first in the treatment factor",
                paper="treatment genes are first (Cxcl10 for interferon-gamma)",
                ours=f"{reading.interferon()} of {len(INTERFERON)} in the top 20",
                agrees=reading.interferon() >= 5,
                spread=", ".join(str(one.interferon()) for one in seeds),
            )
        spread_over_seeds = ", ".join(f"{one.shared:.2f} ({one.n_treatment})" for one in seeds)
        ours = (
            f"treatment explains {reading.strength:.0%} of the strongest treatment factor within types; its "
            f"effect is shared over types to {reading.shared:.2f}"
        )
        number = (
            f"{reading.n_treatment} factors have more than {STRONG:.0%} explained by treatment within types"
        )
        if c == 1.0:
            report.claim(
                f"c = 1, {form}: one factor captures the treatment in all cell types",
                paper="yes, one for each cytokine",
                ours=ours,
                agrees=reading.shared > SHARED,
                spread=spread_over_seeds,
            )
            report.claim(
                f"c = 1, {form}: no other factor is needed for the treatment",
                paper="hardly any overlap of cell type and treatment factors",
                ours=number,
                agrees=reading.n_treatment == 1,
            )
        else:
            report.claim(
                f"c = inf, {form}: the treatment is split over factors that are bound to cell types",
                paper="treatment factors are exclusive to a cell type or hard to interpret",
                ours=f"{ours}; {number}",
                agrees=reading.n_treatment > 1 and reading.shared <= SHARED,
                spread=spread_over_seeds,
            )


def _contrast(report: Report, readings: dict[tuple[float, str], Reading]) -> None:
    for form, other in (("faithful", "faithful"), ("converged", "converged"), ("sparse", "converged")):
        one, two = (
            float(reading.table[reading.treatment]["type given treatment"])
            for reading in (readings[1.0, form], readings[math.inf, other])
        )
        report.claim(
            f"the treatment factor is less tied to a cell type at c = 1 ({form}) than at c = inf ({other})",
            paper="c = inf: exclusive to alpha cells, with their marker Gcg first",
            ours=f"variance explained by type given treatment: {one:.0%} against {two:.0%}",
            agrees=one < two,
        )


def _associations(report: Report, readings: dict[tuple[float, str], Reading]) -> None:
    figure, axes = panels(1, len(readings), (3.0 * len(readings), 3.0))
    rows = []
    for ax, ((c, form), reading) in zip(axes[0], readings.items(), strict=True):
        given = [row["treatment given type"] for row in reading.table]
        reverse = [row["type given treatment"] for row in reading.table]
        ax.scatter(reverse, given, s=[10 + 60 * row["shared"] for row in reading.table], color="#2176c7")
        ax.set(xlim=(-0.03, 1), ylim=(-0.03, 1), xlabel="type given treatment", ylabel="treatment given type")
        ax.set_title(f"{NAMES[c]}, {form}", loc="left", fontsize="medium")
        ax.spines[["top", "right"]].set_visible(False)
        for k, row in enumerate(reading.table):
            top = " ".join(reading.cells.genes[np.argsort(-reading.factors[:, k])[:10]])
            rows.append({"c": NAMES[c], "fit": form, "factor": k + 1, **row, "top 10 genes": top})
    report.figure(
        "associations",
        figure,
        "Each factor: variance explained by the treatment and by the cell type, each given the other; large "
        "points: the effect is shared by all types.",
    )
    report.table("factors", rows, "All factors of all fits.", show=False)


def _likelihoods(report: Report, cells: Cells, fits: Fits, exact: Fit) -> None:
    """Exact (as adaptive), Chebyshev and Frobenius NMF of log1p counts, as in the paper's appendix."""
    options = fits.options
    chebyshev = fits.get(
        lambda: fit_log1p_nmf(
            cells.counts,
            13,
            c=1.0,
            likelihood="chebyshev",
            tol=1e-7,
            max_iter=options.pick(1000, 10),
            n_jobs=options.jobs,
            random_state=0,
        ),
        form="chebyshev",
        c=1.0,
        seed=0,
    )
    loadings, factors, seconds = _frobenius(cells, options)
    readings = {
        "exact": Reading(exact.loadings, exact.factors, cells),
        "Chebyshev": Reading(chebyshev.loadings, chebyshev.factors, cells),
        "Frobenius NMF of log1p counts": Reading(loadings, factors, cells),
    }
    rows = []
    for name, reading in readings.items():
        similarity = match_factors(readings["exact"].loadings, reading.loadings).similarity
        rows.append(
            {"fit": name, "similarity of loadings to exact": float(similarity.mean()), **reading.row()}
        )
    spent = (*(fits.cost(fit).cpu_seconds for fit in (exact, chebyshev)), seconds)
    for row, value in zip(rows, spent, strict=True):
        row["CPU seconds"] = value
    report.table("likelihoods", rows, "c = 1: exact, approximate and transformed counts, each converged.")
    near, far = (float(row["similarity of loadings to exact"]) for row in rows[1:])
    report.claim(
        "c = 1: the quadratic approximation is closer to the exact fit than Frobenius NMF of log1p counts",
        paper="clearly more similar",
        ours=f"mean correlation of matched loadings {near:.2f} against {far:.2f}",
        agrees=near > far,
    )


def _frobenius(cells: Cells, options: Options) -> tuple[np.ndarray, np.ndarray, float]:
    from sklearn.decomposition import NMF

    began = time.process_time()
    counts = cells.counts.to_scipy().tocsr()
    sizes = cells.counts.size_factors("total")
    scaled = counts.multiply(1.0 / sizes[:, None]).tocsr()
    scaled.data = np.log1p(scaled.data)
    model = NMF(13, init="nndsvda", max_iter=options.pick(300, 20), tol=1e-4, random_state=0)
    loadings = model.fit_transform(scaled)
    return loadings, model.components_.T, time.process_time() - began


if __name__ == "__main__":
    run(study, __doc__)
