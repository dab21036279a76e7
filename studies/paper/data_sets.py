"""The data: sizes that the paper names, and those of our files."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from studies.paper.study import Options, Report, run


class Named(NamedTuple):
    """A data set as the paper describes it."""

    file: str
    shape: tuple[int, int]
    zeros: float
    least: int
    groups: dict[str, int] | None = None


PAPER = {
    "MCF-7 bulk RNA-seq": Named(
        "mcf7_bulk", (41, 16733), 0.09, 4, {"EtOH": 10, "RA": 11, "TGFb": 9, "RA+TGFb": 11}
    ),
    "BBC news": Named("bbc_news", (2127, 5861), 0.98, 5),
}


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "data_sets", "The data")
    for name, named in PAPER.items():
        _compare(report, name, named, options.read(named.file))
    report.claim(
        "mouse pancreas with cytokines (Stancill 2021)",
        paper="7,606 x 18,195, about 82% zeros",
        ours="no file with these counts is at hand; blood cells with and without interferon-beta replace it",
        agrees=None,
    )
    report.note(
        "MCF-7: our file follows the paper's rule for genes, and a stricter rule does not give 16,733 "
        "either. The paper's number may be a misprint of 16,773."
    )
    report.save()


def _compare(report: Report, name: str, named: Named, data: Any) -> None:
    zeros = 1.0 - data.X.nnz / np.prod(data.shape)
    seen = np.asarray((data.X > 0).sum(axis=0)).ravel()
    report.claim(
        f"{name}: size of the count matrix",
        paper=f"{named.shape[0]:,} x {named.shape[1]:,}, about {named.zeros:.0%} zeros",
        ours=f"{data.shape[0]:,} x {data.shape[1]:,}, {zeros:.1%} zeros; {(seen >= named.least).sum():,} "
        f"features are in at least {named.least} samples, as the paper asks, and "
        f"{(seen > named.least).sum():,} in at least {named.least + 1}",
        agrees=data.shape == named.shape and round(zeros, 2) == named.zeros,
    )
    if named.groups:
        labels = np.asarray(data.obs["label"])
        counted = {group: int((labels == group).sum()) for group in named.groups}
        report.claim(
            f"{name}: samples of every treatment",
            paper=", ".join(f"{group} {n}" for group, n in named.groups.items()),
            ours=", ".join(f"{group} {n}" for group, n in counted.items()),
            agrees=counted == named.groups,
        )


if __name__ == "__main__":
    run(study, __doc__)
