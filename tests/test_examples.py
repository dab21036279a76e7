"""The examples run, say what they should, and find what is known to be there."""

import importlib.util
import re
from functools import partial
from pathlib import Path

import anndata
import numpy as np
import pytest

from log1pnmf import Log1pNMF
from log1pnmf.datasets import made_up_tumours

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here():
    tested = {"text_topics", "mutational_signatures", "gene_sets", "single_cell"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
    for path in EXAMPLES.glob("*.py"):
        assert not re.search(r"log1pnmf(\.\w+)*\._", path.read_text()), f"{path.name} uses a private module"


def test_text_topics_are_parts_of_scipy(capsys):
    text_topics = example("text_topics")
    text_topics.Log1pNMF = partial(Log1pNMF, init="nndsvd", tol=1e-4)
    topics = text_topics.main()
    said = capsys.readouterr().out
    for pair in ({"loc", "scale"}, {"statistic", "test"}):
        assert any(pair <= set(topic) for topic in topics), (pair, topics)
    assert "statistic" in " ".join(said.splitlines()[-2:])  # where the new text belongs


def test_text_topics_of_files(tmp_path, capsys):
    text_topics = example("text_topics")
    pytest.importorskip("snowballstemmer")
    for i in range(6):
        text = "baking bakes baked bread" if i % 2 else "sailing sails sailed boats"
        (tmp_path / f"{i}.txt").write_text(text)
    topics = text_topics.main(tmp_path, n_topics=2, stem=True)
    assert {frozenset(topic) for topic in topics} == {
        frozenset({"bake", "bread"}),
        frozenset({"sail", "boat"}),
    }
    lines = tmp_path / "lines.txt"
    lines.write_text("red red apple\n\ngreen pear\nred apple\ngreen green pear\n")
    assert {frozenset(topic) for topic in text_topics.main(lines, n_topics=2)} == {
        frozenset({"red", "apple"}),
        frozenset({"green", "pear"}),
    }
    assert "most in: line " in capsys.readouterr().out


def test_signatures_are_recovered(capsys):
    similarity = example("mutational_signatures").main()
    assert len(similarity) == 4
    assert similarity.min() > 0.98
    assert "C>T before G: cosine 1.000" in capsys.readouterr().out


def test_signatures_of_a_file(tmp_path, capsys):
    signatures = example("mutational_signatures")
    tumours = made_up_tumours(60)
    exposures = tumours.mutations
    adata = anndata.AnnData(tumours.counts.astype(np.float32))
    adata.var_names = tumours.channels
    adata.obs_names = [f"tumour{i}" for i in range(60)]
    adata.obs["label"] = np.where(exposures[:, 0] > np.median(exposures[:, 0]), "sunny", "shady")
    adata.write_h5ad(tmp_path / "tumours.h5ad")
    found = signatures.main(tmp_path / "tumours.h5ad", n_signatures=4)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    said = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(said) if "[C>T]G" in line.split(",")[0])
    assert said[first + 1].startswith("    most in sunny")


@pytest.mark.filterwarnings("ignore:Changing the sparsity structure:scipy.sparse.SparseEfficiencyWarning")
def test_single_cells(tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    adata = example("single_cell").main(tmp_path / "cells.png", n_components=4, step=20, tol=1e-4)
    assert (tmp_path / "cells.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "c = 1: log-likelihood" in said
    assert "c = inf: log-likelihood" in said
    table = adata.uns["log1p_nmf_sweep"].set_index("c")
    assert table.loc[np.inf, "sparsity_loadings"] > table.loc[1.0, "sparsity_loadings"]


def test_gene_sets(capsys):
    table = example("gene_sets").main(step=5, tol=1e-4, init="nndsvd")
    sure = table[table["adjusted_p"] < 0.01]
    assert len(sure) >= 4
    assert "acinar enzymes" in set(sure["set"])
    assert sure["set"].is_unique
    assert sure["factor"].is_unique  # every set has a factor of its own
    said = " ".join(capsys.readouterr().out.split())  # columns are as wide as the longest gene
    assert "source target weight" in said
