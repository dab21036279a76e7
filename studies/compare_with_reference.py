"""Print the tables of docs/developers/r-package.md: 63 fits of simulated counts beside the R package's.

    python studies/compare_with_reference.py [--reference ../shared/reference]

Every fit starts from the common start. Where it ends lower than the reference's by more than 1e-4 per entry,
random starts are tried (and, for Taylor at small c, the paper's own solver from the common start).
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf import fit_log1p_nmf
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import ApproximationWarning

SLACK = 1e-4
RESTARTS = 4
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "reference"


def fit_case(data: dict[str, np.ndarray], row: dict[str, str], **options: Any) -> tuple[Fit, float]:
    """Fit one line of the reference's table; also the CPU seconds it took."""
    c, method = float(row["cc"]), row["method"]
    start = data["start_loadings"], data["start_factors"] * max(1.0, c)  # given on the eta scale
    settings = {
        "init": start,
        "tol": 1e-9,
        "max_iter": 5000,
        "random_state": 0,
        "n_jobs": 1,
        "likelihood": method,
    }
    begun = time.process_time()
    fit = fit_log1p_nmf(data["counts"], 5, c=c, size_factors="none", **{**settings, **options})
    return fit, time.process_time() - begun


def per_entry(fit: Fit) -> float:
    assert fit.log_likelihood is not None
    n, m = fit.loadings.shape[0], fit.factors.shape[0]
    return float(fit.log_likelihood / (n * m))


def remark(data: dict[str, np.ndarray], row: dict[str, str], fit: Fit) -> str:
    """Look for the reason why a fit is worse than the reference's."""
    theirs = float(row["ll_per_entry"])
    if per_entry(fit) >= theirs - SLACK:
        return ""
    others = [fit_case(data, row, init="random", random_state=seed)[0] for seed in range(RESTARTS)]
    differences = ", ".join(f"{1e4 * (per_entry(other) - theirs):+.1f}" for other in others)
    text = f"random starts 0 to {RESTARTS - 1}: {differences}"
    if row["method"] == "taylor" and float(row["cc"]) < 0.1:
        n_iter = int(row["iters"])
        paper, _ = fit_case(data, row, row_solver="coordinate", tol=0.0, max_iter=n_iter)
        text += (
            f"; approximate objective {fit.objective:.1f}, the paper's solver after {n_iter} iterations "
            f"{paper.objective:.1f} (and {1e4 * (per_entry(paper) - theirs):+.1f})"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--reference", type=Path, default=BESIDE, help="folder with sim_results.csv")
    folder = parser.parse_args().reference
    warnings.simplefilter("ignore", ApproximationWarning)
    warnings.filterwarnings("ignore", message="not converged")
    with open(folder / "sim_results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    worse, better, seconds, theirs_seconds = 0, 0, 0.0, 0.0
    for generator in dict.fromkeys(row["generator"] for row in rows):
        data = dict(np.load(folder / f"sim_{generator}.npz"))
        print(f"\n### Counts from `{generator}`\n")
        print(
            "| c | method | reference | its iterations, CPU s "
            "| ours | difference | our iterations, CPU s | remark |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for row in (row for row in rows if row["generator"] == generator):
            fit, cpu = fit_case(data, row)
            theirs, ours, reason = float(row["ll_per_entry"]), per_entry(fit), remark(data, row, fit)
            their_cpu = int(row["iters"]) * float(row["cpu_per_iter"])
            print(
                f"| {float(row['cc']):g} | {row['method']} | {theirs:.6f} "
                f"| {row['iters']}{'' if row['converged'] == 'True' else ', not converged'}, {their_cpu:.0f} "
                f"| {ours:.6f} | {1e4 * (ours - theirs):+.1f} "
                f"| {fit.n_iter}{'' if fit.converged else ', not converged'}, {cpu:.1f} | {reason} |",
                flush=True,
            )
            worse, better = worse + (ours < theirs - SLACK), better + (ours > theirs + SLACK)
            seconds, theirs_seconds = seconds + cpu, theirs_seconds + their_cpu
    print(
        f"\n| {len(rows)} fits | R package | log1pnmf |\n|---|---|---|\n"
        f"| CPU seconds, all fits | {theirs_seconds:,.0f} | {seconds:.0f} |\n"
        f"| fits whose log-likelihood per entry is lower by more than {SLACK:g} | {better} | {worse} |"
    )


if __name__ == "__main__":
    main()
