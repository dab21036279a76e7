"""Reports on many groups, on a scale, without groups, and on features that have identifiers."""

import anndata
import numpy as np
import pandas as pd
import pytest

import log1pnmf as lp
from log1pnmf.analysis.groups import quarters
from log1pnmf.report import write_report


@pytest.fixture(scope="module")
def adata():
    rng = np.random.default_rng(0)
    adata = anndata.AnnData(rng.poisson(2.0, (144, 12)))
    adata.var_names = [f"ENSG{j:011d}" for j in range(12)]
    adata.var["symbol"] = [f"GENE{j}" for j in range(12)]
    adata.var["used"] = np.arange(12) != 3
    adata.obs["cluster"] = pd.Categorical([f"cluster {i % 48:02d}" for i in range(144)])
    adata.obs["score"] = rng.normal(size=144)
    lp.tl.log1p_nmf(adata, 3, mask_var="used", tol=1e-3)
    return adata


def page(adata, tmp_path, **options):
    return write_report(tmp_path / "report.html", adata, **options).read_text(encoding="utf-8")


def test_a_table_of_many_groups_is_folded_and_few_are_named(adata, tmp_path):
    text = page(adata, tmp_path, groupby="cluster")
    assert "<summary>Mean loading by cluster (40 groups)</summary>" in text
    sentence = text.split("Used by ")[1].split(".")[0]
    assert sentence.count("cluster") <= 3
    assert "Mean loading by" not in page(adata, tmp_path)


def test_a_scale_is_four_ranges_with_the_same_digits(adata, tmp_path):
    text = page(adata, tmp_path, groupby="score")
    assert "<h3>Mean loading by score</h3>" in text
    names = quarters(adata.obs["score"].to_numpy()).names
    assert all(name in text for name in names)
    assert len({len(part.split(".")[1]) for name in names for part in name.split(" to ")}) == 1


def test_symbols_are_shown_for_identifiers(adata, tmp_path):
    text = page(adata, tmp_path, gene_symbols="symbol")
    assert "GENE4" in text
    assert "ENSG" not in text
    assert "GENE3<" not in text  # not among the features of the fit
    with pytest.raises(KeyError, match=r"adata\.var has no column 'symbols'"):
        page(adata, tmp_path, gene_symbols="symbols")
    with pytest.raises(ValueError, match=r"gene_symbols='symbol' names a column of adata\.var"):
        page(lp.as_fit(adata), tmp_path, gene_symbols="symbol")
