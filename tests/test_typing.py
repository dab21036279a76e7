"""A type checker finds misspelled parameters and choices in the script of a user, and nothing else."""

import inspect
import re
from pathlib import Path

import pytest
from tools.public_names import public_names

import log1pnmf as lp
from log1pnmf.analysis.evidence import EvidenceOptions
from log1pnmf.analysis.markers import MarkerOptions
from log1pnmf.analysis.select import SelectOptions
from log1pnmf.analysis.stability import ConsensusOptions
from log1pnmf.analysis.usage import SampleOptions
from log1pnmf.fitting.fit_counts import FoldParameters, SampleParameters

ROOT = Path(__file__).parents[1]
SCRIPT = """
import numpy as np
from anndata import AnnData

import log1pnmf as lp

counts = np.ones((4, 3))
fit = lp.fit_log1p_nmf(counts, 2, c=0.1, noise="nb", size_factors=np.ones(4), n_jobs=1)
model = lp.Log1pNMF(2, noise="nb", size_factors=[1.0] * 4, init=fit, random_state=None).fit(counts)
loadings: np.ndarray = model.transform(counts)
loadings, errors = model.transform(counts, return_std=True, features="shared")
model.report("report.html", counts=counts, groupby=["a", "a", "b", "b"], notes=["two groups"])
print(model.fit_transform(counts, batch=[0, 0, 1, 1]).shape, model.loadings_.sum(), model.top_features(3))
found = lp.select(counts, range(1, 3), [0.1, 1.0], noise=["poisson", "nb"], holdout="samples", tol=1e-4)
print(found.best.n_components, lp.analysis.markers(fit, counts, errors="model").top(0, by="z"))
lp.extend_features(fit.renamed({"k1": "acinar", 0: "baseline"}), counts, n_jobs=1)


def annotated(adata: AnnData) -> None:
    lp.tl.log1p_nmf(adata, 2, noise="nb", likelihood="exact", random_state=1)
    copied = lp.tl.log1p_nmf(adata, 2, copy=True, key_added="other")
    assert copied is not None
    lp.tl.markers(adata, n_top=None, errors="model", copy=True)
    lp.tl.usage(adata, "condition", replicate="donor", relative_to=["k1", 2])
    lp.tl.select(adata, range(2, 5), noise=["nb"], tol=1e-3, holdout="samples")
    lp.pl.structure(adata, "group", heights="shares", save="structure.png").set_title("cells")


lp.fit_log1p_nmf(counts, 2, noise="nbb")  # wrong: noise
lp.fit_log1p_nmf(counts, 2, nois="nb")  # wrong: nois
lp.fit_log1p_nfm(counts, 2)  # wrong: fit_log1p_nfm
lp.Log1pNMF(2, noise="nbb")  # wrong: noise
lp.Log1pNMF(2, size_factors="totals")  # wrong: size_factors
lp.Log1pNMF(2, dispersion="gene")  # wrong: dispersion
lp.Log1pNMF(2, l1="aut")  # wrong: l1
lp.Log1pNMF(2).fit(counts, size_factors="fitted")  # wrong: size_factors
lp.Log1pNMF(2).fit(counts, batches=[1, 1, 2, 2])  # wrong: batches
lp.Log1pNMF(2).top_features(3, by="weigth")  # wrong: by
lp.Log1pNMF(2).transform(counts).shap  # wrong: shap
lp.Log1pNMF(2).transform(counts, featurs="shared")  # wrong: featurs
lp.select(counts, 2, holdout="sample")  # wrong: holdout
lp.select(counts, 2, engine="gpu")  # wrong: engine
lp.sweep(counts, 2, [1.0], likelihood="exakt")  # wrong: likelihood
lp.analysis.markers(fit, counts, errors="robust")  # wrong: errors
lp.analysis.usage(fit, [0, 1], replicat=[0, 1])  # wrong: replicat
lp.analysis.perplexity(fit, counts, size_factors="totals")  # wrong: size_factors
lp.tl.log1p_nmf(None, 2, row_solver="newtn")  # wrong: row_solver
lp.tl.transform(None, fit, pior=3.0)  # wrong: pior
lp.tl.markers(None, n_topp=3)  # wrong: n_topp
lp.tl.usage(None, "group", relativ_to=None)  # wrong: relativ_to
lp.tl.evidence(None, n_seed=3)  # wrong: n_seed
lp.tl.select(None, 2, noise="nbb")  # wrong: noise
lp.tl.consensus(None, [2, 3], min_fit=1)  # wrong: min_fit
model.fit_transform(counts, size_factor="fit")  # wrong: size_factor
model.report("report.html", titel="Cells")  # wrong: titel
model.markers(counts, error="model")  # wrong: error
model.usage([0, 1], replicats=[0, 1])  # wrong: replicats
lp.pl.volcano(None, 0, n_lables=3)  # wrong: n_lables
lp.pl.structure(fit, heights="share")  # wrong: heights
lp.pl.spatial(None, image="high")  # wrong: image
lp.pl.select(None, over="k")  # wrong: over
"""


def test_a_type_checker_finds_what_is_misspelled_and_nothing_else(tmp_path, monkeypatch):
    mypy = pytest.importorskip("mypy.api")
    monkeypatch.chdir(ROOT)  # for the configuration, strict as the package itself, and the cache
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "".join(f"print(lp.{name})\n" for name in lp.__all__))
    told, failed, _ = mypy.run([str(script), "--no-pretty"])
    assert not failed
    assert told.count(": error: ") == told.count("script.py:") - told.count(": note: ")
    errors = dict(reversed(re.findall(r"script\.py:(\d+): error: (.*)", told)))  # the first of every line
    wrong = re.findall(r"# wrong: (\w+)", SCRIPT)
    lines = [number for number, line in enumerate(SCRIPT.splitlines(), 1) if "# wrong" in line]
    assert sorted(map(int, errors)) == lines, told
    for name, number in zip(wrong, lines, strict=True):
        assert f'"{name}"' in errors[str(number)]


def test_signatures_show_every_parameter():
    """So that editors and notebooks complete them; columns of tables and fields of settings have any name."""
    for thing in public_names().values():
        for name, function in (vars(thing) if inspect.isclass(thing) else {"": thing}).items():
            if inspect.isfunction(function) and name not in ("columns", "having") and name[:1] != "_":
                parameters = inspect.signature(function).parameters.values()
                assert all(one.kind is not one.VAR_KEYWORD for one in parameters), function


@pytest.mark.parametrize(
    ("function", "options", "others"),
    [
        (lp.analysis.markers, MarkerOptions, {}),
        (lp.analysis.usage, SampleOptions, {"replicate", "key"}),
        (lp.analysis.evidence, EvidenceOptions, {}),
        (lp.select, SelectOptions, {"random_state", "batch", *FoldParameters.__annotations__}),
        (lp.analysis.consensus, ConsensusOptions, {"groupby", *SampleParameters.__annotations__}),
    ],
)
def test_options_are_the_keywords_of_the_function(function, options, others):
    shown = [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert {one.name for one in shown} - {*others} == options.__annotations__.keys() - {*others}


def test_a_misspelled_keyword_of_a_plot_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_lables'"):
        lp.pl.volcano(None, 0, n_lables=3)
