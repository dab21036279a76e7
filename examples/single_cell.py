"""Single cells: factors (gene programmes) of human pancreas cells, with AnnData and scanpy habits.

    python examples/single_cell.py                       # what was found, in words
    python examples/single_cell.py --figure cells.png    # and the structure plot

With c = 1 factors multiply: cells share some and differ in others. With c = inf they add up, and factors
come close to cell types.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import anndata
import numpy as np

import log1pnmf as lp
from log1pnmf.analysis import effective_factors
from log1pnmf.datasets import pancreas


def cells(step: int = 1) -> anndata.AnnData:
    """The bundled data; every `step`-th cell."""
    data = pancreas()
    adata = anndata.AnnData(data.counts[::step])
    adata.var_names = data.feature_names
    adata.obs_names = [f"cell{i}" for i in range(adata.n_obs)]
    adata.obs["celltype"] = data.sample_labels[::step]
    return adata


def describe(adata: anndata.AnnData, key: str) -> None:
    """Top genes of every factor, and the cell types that have it."""
    about, loadings = adata.uns[key], adata.obsm[key]
    print(f"c = {about['c']:g}: log-likelihood {about['log_likelihood']:,.0f}, {about['n_iter']} iterations")
    means = adata.obs[["celltype"]].assign(**{str(k): column for k, column in enumerate(loadings.T)})
    means = means.groupby("celltype", observed=True).mean()
    top = lp.analysis.top_features(adata, 5, key=key)
    for k in range(loadings.shape[1]):
        genes = ", ".join(top["feature"][top["factor"] == f"k{k}"])
        types = ", ".join(f"{name} {value:.2f}" for name, value in means[str(k)].nlargest(3).items())
        print(f"  {k}: {genes:<42} mean loading {types}")
    print(f"  a cell takes part in {np.median(effective_factors(loadings)):.1f} factors (median)\n")


def same_type_neighbours(adata: anndata.AnnData, key: str) -> float:
    """How often a neighbour in the loadings is of the same cell type."""
    import scanpy as sc

    sc.pp.neighbors(adata, use_rep=key, n_neighbors=15, random_state=0)
    i, j = adata.obsp["connectivities"].nonzero()
    label = adata.obs["celltype"].to_numpy()
    return float((label[i] == label[j]).mean())


def main(
    figure: Path | None = None, *, n_components: int = 9, step: int = 1, **parameters: float
) -> anndata.AnnData:
    """Fit c = 1 and c = inf, print what was found, and return the data with the results."""
    adata = cells(step)
    lp.tl.sweep(adata, n_components, [1.0, np.inf], **parameters)
    keys = list(adata.uns["log1p_nmf_sweep"]["key"])
    for key in keys:
        describe(adata, key)
    if find_spec("scanpy") is not None:
        for key in keys:
            share = same_type_neighbours(adata, key)
            print(f"{key}: {share:.0%} of neighbours are of the same cell type")
    if figure is not None:
        axes = lp.pl.structure(adata, groupby="celltype", key=keys[0])
        axes.figure.savefig(figure, dpi=150, bbox_inches="tight")
        print(f"structure plot: {figure}")
    return adata


if __name__ == "__main__":
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--figure", type=Path, help="where to write the structure plot")
    parser.add_argument("-k", "--components", type=int, default=9, dest="n_components")
    main(**vars(parser.parse_args()))
