"""``log1pnmf demo``: the bundled data at c = 1 and c = inf, and a report about them."""

from __future__ import annotations

import math
import textwrap
import warnings
from pathlib import Path
from typing import Annotated

from log1pnmf._common.checks import convergence_warning
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.metrics import deviance_explained
from log1pnmf.cli import options as common
from log1pnmf.datasets import Dataset, pancreas
from log1pnmf.fitting.fit import Fit, c_name
from log1pnmf.fitting.fit_counts import fit_log1p_nmf
from log1pnmf.fitting.ranking import ranking_of
from log1pnmf.fitting.summary import link_in_words

N_COMPONENTS = 9
N_TOP = 6
MAX_ITER = 1000
SOURCE = "Human pancreatic islets, donor 1 of Baron et al. 2016; comes with the package"


def demo(
    *,
    output: Annotated[Path, common.output("FOLDER", "Folder for the report.", "-o", "--output")] = Path(
        "demo-out"
    ),
) -> int:
    """Fit the bundled pancreas data and write a report.

    Human cells, 9 factors, c = 1 and c = inf.
    """
    run_demo(output)
    return 0


def run_demo(folder: Path, data: Dataset | None = None, *, max_iter: int = MAX_ITER) -> Path:
    """Fit the bundled data, print what was found and write a report."""
    from log1pnmf.report.comparison import compare
    from log1pnmf.report.document import write_report

    folder.mkdir(parents=True, exist_ok=True)
    data = pancreas() if data is None else data
    n, m = data.counts.shape
    groups = Groups.of(data.sample_labels)
    print(f"Pancreas: {n:,} cells of {len(groups.names)} types, {m:,} genes, {data.counts.nnz:,} non-zeros")
    fits = []
    for c in (1.0, math.inf):  # parts that multiply, and parts that add up
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", convergence_warning())  # summary and report say it
            fit = fit_log1p_nmf(data.counts, N_COMPONENTS, c=c, max_iter=max_iter, verbose=1)
        cells = [f"cell {i}" for i in range(n)]
        fits.append(fit.named(feature_names=data.feature_names, sample_names=cells))
    for fit in fits:
        print(f"\n{_describe(fit, data, groups)}")
    report = write_report(
        folder / "report.html",
        fits,
        title="Human pancreatic islet cells",
        groupby=groups,
        group_name="cell type",
        source=SOURCE,
        command="log1pnmf demo",
        counts=data.counts,
    )
    print("\ngroups: number of cell types whose mean loading is at least half of the factor's highest")
    print("\nWhat to look at in the two structure plots of the report:")
    comparison = compare(fits, groups=groups)
    for text in (comparison.headline, *comparison.paragraphs):
        print(textwrap.fill(text, 100))
    print(f"\nReport: {report}\nOpen it in a browser: {report.resolve().as_uri()}")
    return report


def _describe(fit: Fit, data: Dataset, groups: Groups) -> str:
    """Describe a fit, and each factor in a line: how many cell types use it, which most, its top genes."""
    from log1pnmf.report.sections import served_groups

    state = "converged" if fit.converged else "not converged"
    explained = deviance_explained(fit, data.counts)
    lines = [
        f"c = {c_name(fit.c)}, {link_in_words(fit.c)}: {fit.n_iter} iterations in {fit.seconds:.1f} s, "
        f"{state}",
        f"log-likelihood {fit.log_likelihood:,.0f}; {explained:.1%} of the deviance explained",
        "",
        f"{'factor':>6}  {'groups':>6}  {'most in':<20}top genes",
    ]
    means, ranking = group_means(fit.loadings, groups), ranking_of(fit)
    for k, name in enumerate(fit.factor_names):
        served = served_groups(means[:, k], groups.names)
        genes = ", ".join(data.feature_names[ranking.top(k, N_TOP)])
        lines.append(f"{name:>6}  {len(served):>6}  {served[0] if served else 'none':<20}{genes}")
    return "\n".join(lines)
