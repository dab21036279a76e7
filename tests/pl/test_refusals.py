"""What plots refuse, with what to do instead."""

from dataclasses import replace

import anndata
import numpy as np
import pytest

from log1pnmf import pl
from log1pnmf.analysis.groups import read_labels
from log1pnmf.pl.canvas import fit_of_arrays, fit_to_draw

BARE = anndata.AnnData(np.zeros((4, 3)), obs={"type": list("abab")}, obsm={"X_pca": np.zeros((4, 2))})
JOINED = anndata.AnnData(np.zeros((4, 3)), obsm={"X_log1p_nmf": np.eye(4, 2)})  # as by anndata.concat
TABLE = {"c": [1.0, np.inf], "sparsity_factors": [0.1, 0.2]}
MANY = fit_of_arrays(np.random.default_rng(0).random((400, 3)), np.ones((5, 3)), 1.0)
NUMBERS, NAMES = np.random.default_rng(1).random(400), [f"cell {i}" for i in range(400)]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda fit: pl.convergence(replace(fit, history={})), ValueError, "c = 1 has no history"),
        (lambda fit: pl.convergence(fit, names="ab"), ValueError, "for each of the 1 sources, got 2"),
        (lambda _: pl.sweep(TABLE, measures=["sparsity"]), ValueError, "no column 'sparsity'"),
        (lambda _: pl.sweep(3), TypeError, "table of a sweep, got int"),
        (lambda fit: pl.compare(fit, MANY), ValueError, "same samples, got 60 and 400"),
        (lambda fit: pl.factor_scatter(fit, 1, 4), ValueError, "or 0 to 3, got 4"),
        (lambda fit: pl.top_features(fit, feature_names=["a"]), ValueError, "one name for each of 30"),
        (lambda fit: pl.top_features(fit, kind="pie"), ValueError, "kind must be one of .*, got 'pie'"),
        (lambda fit: pl.top_features(fit, gene_symbols="x"), ValueError, r"names a column of adata\.var"),
        (lambda _: pl.top_features(JOINED, gene_symbols="x", feature_names=["a"]), ValueError, "one of them"),
        (lambda fit: pl.structure(fit, heights="sum"), ValueError, "'loadings', 'shares', got 'sum'"),
        (lambda fit: pl.structure(fit, "celltype"), ValueError, r"names a column of adata\.obs"),
        (lambda fit: pl.structure(fit, ["a"] * 10), ValueError, "each of the 60 samples, got 10"),
        (lambda _: pl.structure(MANY, NAMES), ValueError, "400 different labels, more than the 60 groups"),
        (lambda _: pl.loadings_by_group(MANY, NAMES), ValueError, "400 different labels, more than the 60"),
        (lambda _: pl.loadings_by_group(MANY, NUMBERS), ValueError, "for groups; cut .* pandas.qcut"),
        (pl.embedding, ValueError, "basis is needed"),
        (lambda fit: pl.embedding(fit, np.zeros((5, 2))), ValueError, "for each of the 60 samples"),
        (lambda fit: pl.embedding(fit, np.zeros((60, 2)), factors=["k9"]), ValueError, "got 'k9'"),
        (lambda _: pl.structure(JOINED), KeyError, r"varm has no 'log1p_nmf'.*concat drops"),
        (lambda _: read_labels(BARE, "kind", scale=False), KeyError, "no column 'kind'; it has: 'type'"),
        (lambda _: fit_to_draw([1, 2]), TypeError, r"expected a Fit, a fitted Log1pNMF, .* got list"),
        (lambda fit: fit_to_draw(fit, key="k"), ValueError, "key='k' is for AnnData, got Fit"),
        (lambda _: fit_to_draw(BARE), KeyError, r"adata\.obsm has no 'X_log1p_nmf' \(it has: "),
    ],
)
def test_refusals(shown, call, error, words):
    with pytest.raises(error, match=words):
        call(shown)
