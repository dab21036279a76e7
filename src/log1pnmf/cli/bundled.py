"""The bundled data at c = 1 and c = inf, and a report about them: ``python -m log1pnmf.cli.bundled``."""

from __future__ import annotations

import math
import textwrap
import warnings
from pathlib import Path

from sklearn.exceptions import ConvergenceWarning

from log1pnmf import datasets
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.metrics import deviance_explained
from log1pnmf.datasets import Dataset
from log1pnmf.estimator import Log1pNMF
from log1pnmf.fitting.summary import top_features
from log1pnmf.report.comparison import compare
from log1pnmf.report.document import write_report
from log1pnmf.report.factors import served_groups
from log1pnmf.report.words import link_in_words

__all__ = ["fit_both", "main", "table"]

N_COMPONENTS = 9
N_TOP = 6
MAX_ITER = 1000
SOURCE = "Human pancreatic islets, donor 1 of Baron et al. 2016; comes with the package"


def main(out: str | Path = "demo-out") -> Path:
    """Fit the bundled data at c = 1 and c = inf, print what was found and write a report.

    Parameters
    ----------
    out : str or PathLike
        Folder of the report; made where it is not there.

    Returns
    -------
    Path
        Of the report.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    data = datasets.pancreas()
    n, m = data.counts.shape
    groups = Groups.of(data.sample_labels)
    print(f"Pancreas: {n:,} cells of {len(groups.names)} types, {m:,} genes, {data.counts.nnz:,} non-zeros")
    models = fit_both(data, verbose=1)
    for model in models:
        print(f"\n{_summary(model, data)}\n\n{table(model, data)}")
    report = write_report(
        folder / "report.html",
        models,
        title="Human pancreatic islet cells",
        sample_names=[f"cell {i}" for i in range(n)],
        feature_names=data.feature_names,
        groupby=groups,
        group_name="cell type",
        source=SOURCE,
        command="log1pnmf demo",
        counts=data.counts,
    )
    print("\nserves: cell types whose mean loading is at least half of the factor's highest")
    print(f"\n{_what_to_look_at(models, groups)}")
    print(f"\nReport: {report}\nOpen it in a browser: {report.resolve().as_uri()}")
    return report


def fit_both(data: Dataset, *, verbose: int = 0) -> list[Log1pNMF]:
    """Fit counts twice: parts that multiply, and parts that add up.

    Parameters
    ----------
    data : Dataset
    verbose : int
        1 shows a progress bar.

    Returns
    -------
    list of Log1pNMF
        At c = 1 and at c = inf.
    """
    models = []
    for c, likelihood in ((1.0, "refined"), (math.inf, "exact")):
        model = Log1pNMF(
            N_COMPONENTS,
            c=c,
            likelihood=likelihood,
            init="nndsvd",
            max_iter=MAX_ITER,
            random_state=0,
            verbose=verbose,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # summary and report say it
            models.append(model.fit(data.counts))
    return models


def table(model: Log1pNMF, data: Dataset) -> str:
    """Describe each factor in a line: how many and which cell types it serves, and its top genes.

    Parameters
    ----------
    model : Log1pNMF
    data : Dataset

    Returns
    -------
    str
    """
    shown, groups = model.fit_.normalized("max"), Groups.of(data.sample_labels)
    means = group_means(shown.loadings, groups)
    lines = [f"{'factor':>6}  {'serves':>6}  {'most in':<20}top genes"]
    for k, name in enumerate(shown.factor_names):
        served = served_groups(means[:, k], groups.names)
        genes = ", ".join(data.feature_names[top_features(shown.factors.T, k, N_TOP)])
        lines.append(f"{name:>6}  {len(served):>6}  {served[0] if served else 'none':<20}{genes}")
    return "\n".join(lines)


def _summary(model: Log1pNMF, data: Dataset) -> str:
    fit = model.fit_
    state = "converged" if fit.converged else "not converged"
    explained = deviance_explained(model, data.counts)
    return (
        f"c = {fit.c:g}, {link_in_words(fit.c)}: {fit.n_iter} iterations in {fit.seconds:.1f} s, {state}, "
        f"KKT residual {fit.kkt_residual:.0e}\n"
        f"log-likelihood {fit.log_likelihood:,.0f}; {explained:.1%} of the deviance explained"
    )


def _what_to_look_at(models: list[Log1pNMF], groups: Groups) -> str:
    comparison = compare([model.fit_.normalized("max") for model in models], groups=groups)
    lines = [textwrap.fill(text, 100) for text in (comparison.headline, *comparison.paragraphs)]
    return "\n".join(["What to look at in the two structure plots of the report:", *lines])


if __name__ == "__main__":
    main()
