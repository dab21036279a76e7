"""MCF-7 (K = 3): a baseline and two treatments at c = 1 and c = inf, in three kinds of fits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from studies.paper.differential import changed_genes
from studies.paper.drawing import forms_figure, gene_scores, sample_scores
from studies.paper.faithful import fit_as_in_r, fit_topic_model
from studies.paper.forms import Case, choose_l1, choose_l1_by_samples, describe
from studies.paper.mcf7_picture import GROUPS, Picture, untreated_column
from studies.paper.published import MCF7_GENES, MCF7_SPEARMAN
from studies.paper.study import Fits, Options, Report, best, run

SEED = 10  # of the paper's script
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
NAMES = {1.0: "c = 1", math.inf: "c = inf"}


def make_case(data: Any, fits: Fits, c: float) -> Case:
    """MCF-7 with the settings of the paper."""
    n_iter, jobs = fits.options.pick(1000, 30), fits.options.jobs

    def faithful(counts: Counts, *, size_factors: Any, seed: int) -> Fit:
        if math.isinf(c):
            return fit_topic_model(counts, 3, n_iter=n_iter, tiny=1e-8, size_factors=size_factors, jobs=jobs)
        return fit_as_in_r(counts, 3, c=c, n_iter=n_iter, seed=seed, size_factors=size_factors, jobs=jobs)

    return Case(
        fits, Counts.from_any(data.X), 3, c, faithful, baseline=lambda fit: untreated_column(fit, data)
    )


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "mcf7", "MCF-7 bulk RNA-seq (K = 3)")
    data = options.read("mcf7_bulk")
    fits = report.fits("mcf7")
    cases = {c: make_case(data, fits, c) for c in (1.0, math.inf)}
    faithful = {c: case.fit_faithful("whole", SEED) for c, case in cases.items()}
    pictures = {c: Picture(fit, data) for c, fit in faithful.items()}
    for c, picture in pictures.items():
        _published_claims(report, picture, NAMES[c])
    _spread(report, cases[1.0], data, options)
    labels, groups = np.asarray(data.obs["label"]), changed_genes(data, options)
    report.figure("scores", sample_scores(pictures.values(), labels, GROUPS), "Sample scores, faithful fits.")
    report.figure(
        "genes",
        gene_scores(pictures.values(), groups),
        "Gene scores of the treatment factors, faithful fits; colours: differential expression (PyDESeq2).",
    )
    _differential_claim(report, pictures, groups)
    report.save()  # what there is so far: the rest takes longer
    _forms(report, cases, data, options)
    report.save()


def _published_claims(report: Report, picture: Picture, name: str) -> None:
    value = MCF7_SPEARMAN[picture.c]
    report.claim(
        f"{name}, faithful: Spearman correlation of the two treatment factors",
        paper=f"{value:.2f}",
        ours=f"{picture.correlation:.3f}",
        agrees=abs(picture.correlation - value) <= 0.03,
    )
    for (factor, _), found in zip(MCF7_GENES[picture.c].items(), picture.found(), strict=True):
        report.claim(
            f"{name}, faithful: top 10 genes of the {factor} factor",
            paper="10 genes",
            ours=f"{found} of them",
            agrees=found >= 9,
        )
    loads = ", ".join(f"{group} {picture.means[group][0]:.2f}" for group in GROUPS)
    if math.isinf(picture.c):
        agrees = float(picture.means["RA+TGFb"][0]) < 0.15
        paper = "falls, to near 0 in RA+TGFb"
    else:
        agrees, paper = picture.least_baseline > 0.6, "high in all samples"
    report.claim(f"{name}, faithful: mean baseline loading", paper=paper, ours=loads, agrees=agrees)


def _spread(report: Report, case: Case, data: Any, options: Options) -> None:
    """How the faithful fit depends on the seed: the claims of c = 1 again."""
    seeds = options.pick((SEED, 1, 2), (SEED,))
    rows = []
    for seed in seeds:
        fit = case.fit_faithful("whole", seed)
        row = describe("faithful", fit, None, case.fits)
        rows.append({"R seed": seed, **row, **_reading(Picture(fit, data))})
        del rows[-1]["held-out log-likelihood"]
    report.table("seeds", rows, "The paper's solver and start at c = 1 with other seeds.")
    good = sum(min(Picture(case.fit_faithful("whole", s), data).found()[1:]) >= 9 for s in seeds)
    report.claim(
        "c = 1, faithful: the picture does not depend on the seed",
        paper="not stated (one seed, 10)",
        ours=f"{good} of {len(seeds)} seeds show it",
        agrees=None,
        spread=", ".join(f"seed {row['R seed']}: {row['Spearman']:.2f}" for row in rows),
    )


def _reading(picture: Picture) -> dict[str, Any]:
    return {
        "Spearman": picture.correlation,
        **{f"baseline {group}": float(picture.means[group][0]) for group in GROUPS},
        "paper's genes: baseline, RA, TGFb": " ".join(map(str, picture.found())),
    }


def _differential_claim(report: Report, pictures: dict[float, Picture], groups: np.ndarray) -> None:
    parts = {
        c: [
            float(np.mean([groups[j] in (name, "both") for j in np.argsort(-picture.factors[:, k])[:100]]))
            for k, name in ((1, "RA"), (2, "TGFb"))
        ]
        for c, picture in pictures.items()
    }
    report.claim(
        "faithful: genes with the highest scores at c = 1 are generally found by differential expression",
        paper="generally",
        ours=f"of the top 100, RA {parts[1.0][0]:.0%} and TGFb {parts[1.0][1]:.0%} "
        f"(c = inf: {parts[math.inf][0]:.0%} and {parts[math.inf][1]:.0%})",
        agrees=min(parts[1.0]) > 0.7 and max(parts[math.inf]) < 0.3,
    )


# ---------------------------------------------------------------- the three forms


def _forms(report: Report, cases: dict[float, Case], data: Any, options: Options) -> None:
    seeds = options.pick((0, 1, 2), (0,))
    rows, panels = [], {}
    for c, case in cases.items():
        converged = {part: case.fit_converged(part, seeds) for part in ("whole", "train")}
        chosen = {
            "faithful": {part: case.fit_faithful(part, SEED) for part in ("whole", "train")},
            "converged": {part: best(found) for part, found in converged.items()},
        }
        if c == 1.0:
            l1 = _choose(report, case, data, options)
            sparse = case.fit_sparse("whole", l1, seeds)
            chosen[f"sparse, l1 = {l1:g}"] = {
                "whole": best(sparse),
                "train": best(case.fit_sparse("train", l1, seeds[:1])),
            }
            _converged_claims(report, converged["whole"], faithful=chosen["faithful"]["whole"], data=data)
            _sparse_claims(report, l1, sparse, data)
        for name, parts in chosen.items():
            picture = Picture(parts["whole"], data, 0 if name.startswith("sparse") else None)
            heldout = case.heldout(parts["train"])
            row = describe(name, parts["whole"], heldout, case.fits)
            rows.append({"c": NAMES[c], **row, **_reading(picture)})
            panels[f"{NAMES[c]}, {name}"] = picture
    report.table("forms", rows, "The same data and model, fitted in three ways.")
    report.figure(
        "forms",
        forms_figure(panels, np.asarray(data.obs["label"]), GROUPS),
        "Sample scores and treatment factors of the three fits.",
    )


def _choose(report: Report, case: Case, data: Any, options: Options) -> float:
    """Choose a penalty on held-out counts, and show the same on held-out samples."""
    penalties = options.pick(PENALTIES, (1.0, 10.0))
    by_counts = choose_l1(case, penalties, (0,))
    rows = [
        {**row, **_reading(Picture(by_counts.fits[row["l1"]], data, 0 if row["l1"] else None))}
        for row in by_counts.rows
    ]
    report.table(
        "penalties", rows, "c = 1: penalties, fitted to nine tenths of every count and judged on the last."
    )
    by_samples = choose_l1_by_samples(case, penalties)
    report.table(
        "penalties-samples", by_samples.rows, "c = 1: penalties, judged on samples left out of the fit."
    )
    report.note(f"c = 1, counts held out: {by_counts}")
    report.note(f"c = 1, samples held out: {by_samples}")
    l1, reason = by_counts.shown(case.heldout(case.fit_faithful("train", SEED)))
    report.note(reason)
    return l1


def _converged_claims(report: Report, fits: list[Fit], *, faithful: Fit, data: Any) -> None:
    pictures = [Picture(fit, data) for fit in fits]
    top = best(fits)
    picture = Picture(top, data)
    report.claim(
        "c = 1, converged: the published picture is the maximum of the likelihood",
        paper="not stated; its figures are read as if it were",
        ours=f"log-likelihood {top.log_likelihood:,.0f}, {top.log_likelihood - faithful.log_likelihood:,.0f} "
        f"above the faithful fit; Spearman {picture.correlation:.2f}, baseline in RA+TGFb "
        f"{picture.means['RA+TGFb'][0]:.2f}, paper's genes {picture.found()}",
        agrees=picture.least_baseline > 0.6 and min(picture.found()[1:]) >= 8,
        spread=", ".join(f"{p.correlation:.2f}" for p in pictures) + " (Spearman by seed)",
    )
    found, by_weight = picture.found_by_fold_change(), picture.found()
    report.claim(
        "c = 1, converged: the paper's genes are first in the treatment factors, ranked by fold change "
        "against the samples' other factors, not by weight",
        paper="10 of 10 in each (by weight, faithful fit)",
        ours=f"RA {found[1]}, TGFb {found[2]} of 10 (by weight {by_weight[1]} and {by_weight[2]}): the "
        "picture is largely a matter of how the factors are read",
        agrees=min(found[1:]) >= 8,
        spread=", ".join(f"{p.found_by_fold_change()[1:]}" for p in pictures),
    )


def _sparse_claims(report: Report, l1: float, fits: list[Fit], data: Any) -> None:
    top = best(fits)
    picture = Picture(top, data, 0)
    found = picture.found()
    spread = ", ".join(f"{Picture(fit, data, 0).found()[1:]}" for fit in fits)
    report.claim(
        f"c = 1, sparse (l1 = {l1:g}), converged: the paper's genes are first in the treatment factors",
        paper="10 of 10 in each (not penalised)",
        ours=f"RA {found[1]}, TGFb {found[2]} of 10",
        agrees=top.converged and min(found[1:]) >= 8,
        spread=f"by start: {spread}",
    )
    report.claim(
        f"c = 1, sparse (l1 = {l1:g}), converged: baseline loading in every group",
        paper="high in all samples",
        ours=", ".join(f"{group} {picture.means[group][0]:.2f}" for group in GROUPS),
        agrees=top.converged and picture.least_baseline > 0.6,
        spread=", ".join(f"{Picture(fit, data, 0).least_baseline:.2f}" for fit in fits)
        + " (least, by start)",
    )


if __name__ == "__main__":
    run(study, __doc__)
