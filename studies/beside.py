"""This package beside cNMF, GeneNMF, Spectra and scanpy: what each does, and CPU seconds of an analysis.

    python -m studies.beside                       # the table of docs/results/others.md
    python -m studies.beside --python OTHER/python # an interpreter that has cNMF, Spectra and leidenalg

Analysed are all sorted blood cells (pbmc_facs: 3,774 x 16,791, the size of a bone-marrow sample) with 12
factors: from raw counts in memory to factors and a list of genes for each. Every analysis has a process of
its own and one thread; imports are not counted. GeneNMF is a package for R and was not run. Spectra takes up
to 10,000 epochs, fewer where its steps have become short; `SHORT` of them are timed (all of them were tried
on 2026-11-19: 274 in 40 minutes, in 560 CPU s). Tests of genes are also timed apart, since not every program
has some.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT.parent / "shared" / "data" / "pbmc_facs.h5ad"
K, EPOCHS, SHORT = 12, 10_000, 5
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

# ---------------------------------------------------------------- one analysis each


def seconds_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    before = time.process_time()
    function(*arguments, **options)
    return time.process_time() - before


def all_genes(adata: Any) -> dict[str, float]:
    import log1pnmf as lp

    lp.tl.log1p_nmf(adata, K, n_jobs=1)
    return {"tests": seconds_of(lp.tl.markers, adata, n_jobs=1)}


def variable_genes(adata: Any) -> dict[str, float]:
    import log1pnmf as lp

    lp.tl.log1p_nmf(adata, K, mask_var="variable:2000", n_jobs=1)
    lp.tl.extend_features(adata, n_jobs=1)
    return {"tests": seconds_of(lp.tl.markers, adata, key="log1p_nmf_all", n_jobs=1)}


def cnmf(adata: Any) -> dict[str, float]:
    from cnmf import cNMF

    with tempfile.TemporaryDirectory() as folder:
        adata.write_h5ad(path := f"{folder}/counts.h5ad")
        run = cNMF(output_dir=folder, name="run")
        run.prepare(path, components=[K], n_iter=20, seed=0)
        run.factorize()
        run.combine()
        run.consensus(K, density_threshold=0.5, show_clustering=False)
    return {}


def scanpy(adata: Any) -> dict[str, float]:
    import scanpy as sc

    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=2000)
    sc.pp.pca(adata)
    sc.pp.neighbors(adata)
    sc.tl.leiden(adata)
    return {"tests": seconds_of(sc.tl.rank_genes_groups, adata, "leiden", method="wilcoxon")}


def spectra(adata: Any) -> dict[str, float]:
    """Return the CPU seconds of an epoch."""
    import scanpy as sc
    import Spectra

    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=2000)
    adata.X = adata.X.toarray()
    sets = Spectra.default_gene_sets.load()["global"]
    few, more = (
        seconds_of(Spectra.est_spectra, adata, sets, use_cell_types=False, num_epochs=n)
        for n in (1, 1 + SHORT)
    )
    return {"start": few, "epoch": (more - few) / SHORT}


ANALYSES: dict[str, tuple[str, str, Callable[[Any], dict[str, float]]]] = {
    "log1pnmf": ("log1pnmf, all genes", "log1pnmf", all_genes),
    "variable": ("log1pnmf, 2,000 variable genes, then all", "log1pnmf", variable_genes),
    "cnmf": ("cNMF, 20 runs, 2,000 variable genes", "cnmf", cnmf),
    "spectra": ("Spectra, its global gene sets", "scspectra", spectra),
    "scanpy": ("scanpy, Leiden clusters, Wilcoxon tests", "scanpy", scanpy),
}
"""What is run, the distribution that it needs, and the analysis."""


def alone(name: str) -> None:
    """Run one analysis in this process; print its CPU seconds and the version of the program."""
    import importlib.metadata

    import anndata

    warnings.simplefilter("ignore")
    adata = anndata.read_h5ad(FILE)
    adata.var_names = adata.var.pop("symbol").astype(str).to_list()
    adata.var_names_make_unique()
    _, distribution, analysis = ANALYSES[name]
    small = adata[:300, :600].copy()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(Exception):
            analysis(small)  # imports and compilation
        before = time.process_time()
        found = analysis(adata)
        seconds = time.process_time() - before
    version = importlib.metadata.version(distribution)
    print(json.dumps({"version": version, "cpu": seconds, "tests": None, **found}))


# ---------------------------------------------------------------- the table

# from the documentation of the programs: model; number of factors; genes of a factor; donors
WHAT = {
    "log1pnmf": "counts, from additive to multiplicative | held-out counts, stability | tests with errors | "
    "in the model, or a consensus of fits to each",
    "cnmf": "NMF of scaled variable genes, consensus over seeds | error and stability of each K | "
    "regression of each gene on usages | Harmony before the fits",
    "genenmf": "NMF of variable genes, meta-programs over samples | given | genes that recur | fits to each",
    "spectra": "log counts, with gene sets and cell types | number of gene sets, or eigenvalues | "
    "largest weights | –",
    "scanpy": "principal components, clusters of cells | resolution is given | tests between clusters | "
    "ComBat, wrappers of others",
}
WHAT["variable"] = WHAT["log1pnmf"]


def as_table(found: dict[str, Any]) -> str:
    head = "| program | version | model | number of factors | genes of a factor | donors | CPU s | tests |"
    lines = [head, "|" + "---|" * 8]
    for name, (title, *_) in ANALYSES.items():
        version, shown, tests = "–", "not run", "–"
        if name in found:
            version, shown = found[name]["version"], f"{found[name]['cpu']:,.0f}"
            if "epoch" in found[name]:
                start, epoch = found[name]["start"], found[name]["epoch"]
                shown = f"{start:.0f}, then {epoch:.1f} per epoch (up to {EPOCHS:,})"
            tests = "none" if found[name]["tests"] is None else f"{found[name]['tests']:,.0f}"
        lines.append(f"| {title} | {version} | {WHAT[name]} | {shown} | {tests} |")
        if name == "cnmf":
            lines.append(f"| GeneNMF (R) | – | {WHAT['genenmf']} | not run | – |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    other = os.environ.get("OTHERS_PYTHON", sys.executable)
    parser.add_argument("--python", default=other, help="interpreter of the other programs [$OTHERS_PYTHON]")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-out" / "beside.jsonl")
    parser.add_argument("--alone", choices=ANALYSES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        alone(given.alone)
        return
    given.json.parent.mkdir(parents=True, exist_ok=True)
    lines = given.json.read_text().splitlines() if given.json.exists() else []
    found = {row["name"]: row for row in map(json.loads, lines)}
    for name in ANALYSES:
        if name not in found and (row := measured(name, given.python)):
            found[name] = row
            with given.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(as_table(found))


def measured(name: str, python: str) -> dict[str, Any] | None:
    """Return CPU seconds and version; None where the program is missing or fails."""
    words = [sys.executable if ANALYSES[name][1] == "log1pnmf" else python, __file__, "--alone", name]
    environment = os.environ | dict.fromkeys(THREADS, "1")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return {"name": name, **json.loads(done.stdout.splitlines()[-1])}


if __name__ == "__main__":
    main()
