"""Genes of MCF-7 that a treatment changes, by PyDESeq2; without that package, those found earlier."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from typing import Any

import numpy as np

from studies.paper.study import ROOT, Options

KEPT = ROOT / "studies" / "paper" / "results" / "mcf7-differential.csv"
LARGEST_P, LEAST_LOG2_FOLD = 0.01, 1.0
GROUPS = ("neither", "RA", "TGFb", "both")


def changed_genes(data: Any, options: Options) -> np.ndarray:
    """Name the group of every gene: higher under RA, TGFb, both or neither."""
    names = np.asarray(data.var_names)
    path = options.results / KEPT.name
    if find_spec("pydeseq2") is not None and (options.fresh or not path.exists()):
        up = {treatment: _higher_under(data, treatment, options.jobs) for treatment in ("RA", "TGFb")}
        groups = np.array(GROUPS)[up["RA"] + 2 * up["TGFb"]]
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["gene", "group"])
            writer.writerows(zip(names[groups != "neither"], groups[groups != "neither"], strict=True))
        return groups
    source = path if path.exists() else KEPT
    if not source.exists():
        raise FileNotFoundError(f"{source} is missing and PyDESeq2 is not installed: pip install pydeseq2")
    with source.open(newline="") as file:
        known = {row["gene"]: row["group"] for row in csv.DictReader(file)}
    return np.array([known.get(name, "neither") for name in names])


def _higher_under(data: Any, treatment: str, jobs: int) -> np.ndarray:
    """Whether each gene is higher under a treatment than in untreated samples."""
    import pandas
    from pydeseq2.dds import DeseqDataSet
    from pydeseq2.ds import DeseqStats

    chosen = np.isin(data.obs["label"], ["EtOH", treatment])
    counts = pandas.DataFrame(
        data.X[chosen].toarray().astype(int), index=data.obs_names[chosen], columns=data.var_names
    )
    about = pandas.DataFrame({"label": data.obs["label"][chosen].astype(str)}, index=counts.index)
    fitted = DeseqDataSet(counts=counts, metadata=about, design="~label", quiet=True, n_cpus=jobs)
    fitted.deseq2()
    tested = DeseqStats(fitted, contrast=["label", treatment, "EtOH"], quiet=True, n_cpus=jobs)
    tested.summary()
    table = tested.results_df.reindex(data.var_names)
    return np.asarray((table["padj"] < LARGEST_P) & (table["log2FoldChange"] > LEAST_LOG2_FOLD))
