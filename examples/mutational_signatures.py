"""Mutational signatures: which processes left the mutations of a tumour, and how many each.

    python examples/mutational_signatures.py                              # tumours made up here
    python examples/mutational_signatures.py --path sbs96.h5ad -k 10      # tumours x 96 channels

A single base substitution is one of 96 channels: six exchanges, each with the base before and the one after.
Mutations of different processes add up, so the link is the identity, c = inf. As a topic model the fit gives
signatures that sum to one, and the number of mutations that each of them left in a tumour.
"""

import argparse
from pathlib import Path

import numpy as np

from log1pnmf import Log1pNMF
from log1pnmf.analysis import match_factors, topic_model
from log1pnmf.datasets import made_up_tumours


def fit(counts: np.ndarray, n_signatures: int) -> tuple[np.ndarray, np.ndarray]:
    """Signatures (rows sum to one), and the mutations that each of them left in every tumour."""
    model = Log1pNMF(n_signatures, c=np.inf, size_factors="none").fit(counts)
    topics = topic_model(model)
    return topics.words, topics.proportions * topics.sizes[:, None]


def show(signature: np.ndarray, channels: list[str]) -> str:
    top = np.argsort(-signature)[:5]
    return ", ".join(f"{channels[j]} {signature[j]:.0%}" for j in top)


def recover() -> np.ndarray:
    """Find the made-up signatures again; how similar they are (cosine) is returned."""
    tumours = made_up_tumours()
    counts, truth = tumours.counts, tumours.signatures
    found, mutations = fit(counts, len(truth))
    match = match_factors(truth.T, found.T, measure="cosine")
    print(f"{len(counts)} tumours, {counts.sum():,} mutations, {len(truth)} made-up processes\n")
    for (k, j), cosine in zip(match.pairs, match.similarity, strict=True):
        agree = np.corrcoef(tumours.mutations[:, k], mutations[:, j])[0, 1]
        print(f"{tumours.processes[k]}: cosine {cosine:.3f} with the truth, mutations correlate {agree:.3f}")
        print(f"    {show(found[j], tumours.channels)}")
    return match.similarity


def read(path: Path, n_signatures: int) -> np.ndarray:
    """Signatures of real tumours, and in which kind of tumour each is found most."""
    import anndata

    adata = anndata.read_h5ad(path)
    found, mutations = fit(adata.X, n_signatures)
    print(f"{adata.n_obs:,} tumours, {int(adata.X.sum()):,} mutations, {n_signatures} signatures\n")
    order = np.argsort(-mutations.sum(axis=0))
    found, mutations = found[order], mutations[:, order]
    for k in range(n_signatures):
        print(f"signature {k}: {mutations[:, k].sum() / mutations.sum():.1%} of all mutations")
        print(f"    {show(found[k], list(adata.var_names))}")
        if "label" in adata.obs:
            mean = adata.obs.assign(n=mutations[:, k]).groupby("label", observed=True)["n"].mean().nlargest(3)
            print("    most in " + ", ".join(f"{name} ({n:,.0f} per tumour)" for name, n in mean.items()))
    return found


def main(path: Path | None = None, *, n_signatures: int = 10) -> np.ndarray:
    return recover() if path is None else read(path, n_signatures)


if __name__ == "__main__":
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--path", type=Path, help="h5ad file with counts of tumours x 96 channels")
    parser.add_argument("-k", "--signatures", type=int, default=10, dest="n_signatures", help="with --path")
    main(**vars(parser.parse_args()))
