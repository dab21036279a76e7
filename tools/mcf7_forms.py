"""Print the table of docs/sparse-form.md: MCF-7 (K = 3, c = 1, exact) by three routes.

    python tools/mcf7_forms.py [faithful] [converged] [sparse] [--seeds 0 1 2] [--data ../shared/data]

One line per fit: what was reached, what it cost, and the picture that an analyst would see.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning

from log1pnmf import fit_log1p_nmf
from log1pnmf.result import Fit

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
GROUPS = ("EtOH", "RA", "TGFb", "RA+TGFb")
TOP_GENES = {  # the paper's table for c = 1
    "baseline": ["KRT8", "COX1", "ND4", "ND5", "ATP6", "CYTB", "COX2", "COX3", "ACTB", "EEF1A1"],
    "RA": ["CYP26B1", "CYP26A1", "SLC5A5", "STRA6", "SHROOM1", "HOXA1", "LCN2", "KDR", "PTPRH", "SERPINA3"],
    "TGFb": ["TP63", "GABRP", "TCIM", "SPOCK1", "DOCK4", "MGP", "KIAA2012", "COL4A3", "NCF2", "PTPRB"],
}


class Picture:
    """What is read from a fit: columns of L with maximum 1, in the order baseline, RA, TGFb.

    Parameters
    ----------
    fit : Fit
    data : AnnData
    baseline : int, optional
        Its column; by default the one that the untreated samples load on most.
    """

    def __init__(self, fit: Fit, data: Any, baseline: int | None = None) -> None:
        size, labels = fit.loadings.max(axis=0), np.asarray(data.obs["label"])
        loadings = fit.loadings / size
        means = {group: loadings[labels == group].mean(axis=0) for group in GROUPS}
        first = int(np.argmax(means["EtOH"])) if baseline is None else baseline
        others = [k for k in range(3) if k != first]
        ra = max(others, key=lambda k: float(means["RA"][k] - means["TGFb"][k]))
        self.order = [first, ra, *(k for k in others if k != ra)]
        self.means = {group: mean[self.order] for group, mean in means.items()}
        self.factors = (fit.factors * size)[:, self.order]
        self.symbols = np.asarray(data.var["Symbol"])

    def top_genes(self, k: int, n: int = 10) -> list[str]:
        """Genes with the largest factor entries."""
        return list(self.symbols[np.argsort(-self.factors[:, k])[:n]])

    def found(self) -> list[int]:
        """How many of the paper's ten top genes are among ours: baseline, RA, TGFb."""
        return [len(set(self.top_genes(k)) & set(TOP_GENES[name])) for k, name in enumerate(TOP_GENES)]

    @property
    def correlation(self) -> float:
        """Spearman correlation of the two treatment factors."""
        return float(spearmanr(self.factors[:, 1], self.factors[:, 2])[0])


def fit_mcf7(data: Any, **options: Any) -> Fit:
    return fit_log1p_nmf(data.X, 3, c=1.0, likelihood="exact", **options)


def as_start(fit: Fit, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Give a fit as the start of a penalised one: loadings of at most 1, baseline first."""
    size, order = fit.loadings.max(axis=0), Picture(fit, data).order
    return (fit.loadings / size)[:, order], (fit.factors * size)[:, order]


def show(name: str, data: Any, baseline: int | None = None, **options: Any) -> Fit:
    begun = time.process_time()
    fit = fit_mcf7(data, n_jobs=1, **options)
    seconds = time.process_time() - begun
    picture = Picture(fit, data, baseline)
    by_group = " ".join(f"{picture.means[group][0]:.2f}" for group in GROUPS)
    gain = -fit.history["objective"][-1] + fit.history["objective"][-2]
    print(
        f"| {name} | {fit.log_likelihood:,.0f} | {fit.objective:,.0f} | {by_group} "
        f"| {' '.join(map(str, picture.found()))} | {picture.correlation:.2f} "
        f"| {fit.n_iter}{'' if fit.converged else ', not converged'} | {gain:.2g} | {seconds:.0f} |",
        flush=True,
    )
    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("forms", nargs="*", default=["converged", "sparse", "faithful"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=BESIDE)
    chosen = parser.parse_args()
    import anndata

    warnings.simplefilter("ignore", ConvergenceWarning)
    data = anndata.read_h5ad(chosen.data / "mcf7_bulk.h5ad")
    print(
        "| fit | log-likelihood | objective | baseline loading EtOH, RA, TGFb, RA+TGFb "
        "| of the paper's top 10: baseline, RA, TGFb | Spearman RA, TGFb | iterations | last gain | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    best: Fit | None = None
    if "converged" in chosen.forms or "sparse" in chosen.forms:
        for seed in chosen.seeds:
            fit = show(f"converged, seed {seed}", data, random_state=seed)
            best = fit if best is None or fit.objective < best.objective else best
    if "sparse" in chosen.forms:
        assert best is not None
        for l1 in (10.0, 30.0):
            penalised: dict[str, Any] = {"l1": l1, "baseline": 0, "tol": 1e-7}
            for seed in chosen.seeds:
                show(f"l1 = {l1:g}, rank-one start, seed {seed}", data, random_state=seed, **penalised)
            show(f"l1 = {l1:g}, from the converged fit", data, init=as_start(best, data), **penalised)
    if "faithful" in chosen.forms:
        faithful: dict[str, Any] = {"row_solver": "coordinate", "tol": 0.0, "max_iter": 1000}
        for seed in chosen.seeds:
            show(f"faithful, seed {seed}", data, random_state=seed, **faithful)


if __name__ == "__main__":
    main()
