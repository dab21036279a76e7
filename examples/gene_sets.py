"""From factors to gene sets: markers of the bundled pancreas data, in the forms that enrichment tools take.

    python examples/gene_sets.py

decoupler and gseapy are not needed here: the example prints what they are given, and does the simplest
enrichment itself (is a set over-represented among the markers of a factor?).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control, hypergeom

from log1pnmf import Log1pNMF, datasets
from log1pnmf.analysis import Markers

SETS = {
    "beta cell": "INS IAPP G6PC2 HADH ERO1B PCSK1 ADCYAP1 CDKN1C SLC30A8 NPTX2",
    "alpha cell": "GCG TTR TM4SF4 IRX2 LOXL4 GC FAP PCSK2 CRYBA2 PLCE1",
    "delta cell": "SST RBP4 HHEX LEPR PCSK1 GABRB3 CBLN4 ISL1",
    "acinar enzymes": "PRSS1 PRSS2 CELA3A CELA3B CTRB1 CTRB2 REG1A REG1B CPA1 PNLIP CPB1 CLPS",
    "extracellular matrix": "COL1A1 COL1A2 COL3A1 COL6A1 COL6A2 COL6A3 SPARC FN1 TIMP1 BGN LUM",
}


def enrichment(found: Markers, sets: dict[str, set[str]], n_top: int = 50) -> pd.DataFrame:
    """Test whether each set has more of a factor's first markers than chance would put there."""
    universe = set(found.feature_names)
    rows = []
    for k in range(found.n_components):
        top = set(found.top(k, n_top))
        for name, genes in sets.items():
            present = genes & universe
            shared = top & present
            p = hypergeom.sf(len(shared) - 1, len(universe), len(present), len(top))
            rows.append((k, name, len(shared), len(present), p, " ".join(sorted(shared))))
    table = pd.DataFrame(rows, columns=["factor", "set", "shared", "of", "p", "genes"])
    table["adjusted_p"] = false_discovery_control(table["p"])
    return table.sort_values("p", ignore_index=True)


def main(n_components: int = 6, *, step: int = 1, **options: Any) -> pd.DataFrame:
    """Fit to every `step`-th cell, find markers, and show them in every form."""
    data = datasets.pancreas()
    counts = data.counts[::step]
    options = {"random_state": 0, **options}
    model = Log1pNMF(n_components, c=1.0, **options).fit(counts)
    found = model.markers(counts, feature_names=data.feature_names)
    for k in range(n_components):
        print(f"factor {k}: {', '.join(found.top(k, 8))}")

    print("\nfor decoupler, data= (its methods also take any network as net=):")
    matrix = pd.DataFrame(found.log2_fold_change.T, found.factor_names, found.feature_names)
    print(matrix.iloc[:, :5].round(2).to_string())
    print("\nfor decoupler, net= (to score other data with these factors):")
    columns = {"factor": "source", "feature": "target", "log2_fold_change": "weight"}
    network = pd.DataFrame(found.table(3))[list(columns)].rename(columns=columns)
    print(network.round(2).to_string(index=False))
    print("\nfor gseapy, prerank(rnk=...), factor 1; as a file it is a .rnk:")
    print(matrix.iloc[1].sort_values(ascending=False).head(4).round(2).to_string())

    table = enrichment(found, {name: set(genes.split()) for name, genes in SETS.items()})
    sure = table[table["adjusted_p"] < 0.01]
    print("\nsets over-represented among the first 50 markers of a factor:")
    print(sure.assign(p=np.char.mod("%.0e", sure["p"])).drop(columns="adjusted_p").to_string(index=False))
    return table


if __name__ == "__main__":
    main()
