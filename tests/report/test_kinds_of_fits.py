"""Reports of fits that ended in other ways, or come in other things."""

import anndata
import numpy as np
import pandas as pd
import pytest

import log1pnmf as lp
from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import evidence, markers
from log1pnmf.analysis.groups import quarters
from log1pnmf.report import document, write_report

COUNTS = np.random.default_rng(0).poisson(2.0, (30, 8))


def test_the_iterations_of_an_adaptive_fit_are_drawn(tmp_path):
    fit = fit_log1p_nmf(COUNTS, 2, likelihood="adaptive", zeros_tol=1e-2, tol=1e-4)
    text = write_report(tmp_path / "r.html", fit).read_text()
    assert '<i class="line-3"></i>adaptive likelihood' in text
    assert "errors at zero counts sum to at most" in text


def test_a_fit_with_dispersions_is_judged_by_its_noise(tmp_path):
    """The report names the noise everywhere, draws dispersions with their trend, and tells what they hide."""
    counts = np.random.default_rng(0).negative_binomial(2, 0.4, (60, 20))
    hidden = counts * np.where((np.arange(60)[:, None] < 20) & (np.arange(20) < 6), 8, 1)

    def text(counts, n_components, noise):
        fit = fit_log1p_nmf(counts, n_components, noise=noise, init="nndsvd", tol=1e-4)
        return write_report(tmp_path / "r.html", fit, counts=counts, evidence=[None]).read_text()

    texts = {noise: text(counts, 2, noise) for noise in ("nb", "poisson")}
    assert "hide structure: residuals of these features (" in text(hidden, 1, "nb")
    assert "hide structure" not in "".join(texts.values())
    assert 'aria-label="Dispersions of features against their mean counts' in texts["nb"]
    assert texts["nb"].count('class="dots"') == texts["nb"].count('class="band"') == 1
    assert "times that of negative binomial counts" in texts["nb"]
    assert "under negative binomial noise" in texts["nb"]
    assert "times that of Poisson counts" in texts["poisson"]
    assert 'class="dots"' not in texts["poisson"]


def test_whether_factors_are_there(tmp_path, monkeypatch):
    """Found where the counts are small, taken where it is known, and otherwise the report says why not."""
    model = Log1pNMF(2, tol=1e-4, n_jobs=1).fit(COUNTS)

    def text(**more):
        return model.report(tmp_path / "r.html", counts=COUNTS, **more).read_text()

    assert "No more than noise" in text()
    assert "of 5</td>" in text()
    monkeypatch.setattr("log1pnmf.report.sections.LARGEST", 0.0)
    assert "Evidence for each factor" not in text()
    assert "would take 9 more fits of counts of this size" in text()
    found = evidence(model, COUNTS, n_seeds=0, n_bootstrap=3)
    assert "of 3</td>" in text(evidence=found)
    assert "more fits of counts" not in text(evidence=found)
    with pytest.raises(ValueError, match="evidence must be what"):
        text(evidence=evidence(fit_log1p_nmf(COUNTS, 1), COUNTS, n_seeds=0, n_bootstrap=0))


def marked(rng):
    """Counts in which factors have features of their own."""
    own = (np.arange(60)[:, None] < 30) == (np.arange(40) < 20)
    return rng.poisson(np.where(own, 3.0, 1.5))


def test_markers_that_were_computed_are_taken(tmp_path, monkeypatch):
    """The report tests a part of large data; what was tested on all samples can be given, and is stated."""
    counts = marked(np.random.default_rng(0))
    model = Log1pNMF(2, tol=1e-4, n_jobs=1).fit(counts)
    monkeypatch.setattr("log1pnmf.report.sections.LEAST_SAMPLES", 10)
    monkeypatch.setattr("log1pnmf.report.sections.TESTED_ENTRIES", 0)
    found = model.markers(counts)
    assert found.n_rising.tolist() == [len(found.top_index(k, None)) for k in range(2)]
    few = model.report(tmp_path / "few.html", counts=counts, evidence=[None]).read_text()
    assert "tested on 10 of 60 samples" in few
    given = model.report(tmp_path / "r.html", counts=counts, evidence=[None], markers=found).read_text()
    assert "tested on 60 of 60 samples" in given
    for k in range(2):
        assert f"{found.n_rising[k]} features rise significantly" in given
    with pytest.raises(ValueError, match="markers must be what"):
        model.report(tmp_path / "r.html", markers=["k0"])


@pytest.mark.parametrize("n_top", [30, 3])
def test_markers_kept_in_anndata_are_taken_if_they_are_enough(tmp_path, n_top):
    from log1pnmf import tl

    adata = anndata.AnnData(marked(np.random.default_rng(0)).astype(np.float32))
    tl.log1p_nmf(adata, 2, tol=1e-4, n_jobs=1)
    tl.markers(adata, n_top=n_top, n_jobs=1)
    assert adata.uns["log1p_nmf_markers"]["n_rising"].min() > 3
    adata.write_h5ad(tmp_path / "a.h5ad")
    back = anndata.read_h5ad(tmp_path / "a.h5ad")
    found = markers(back, back.X, n_jobs=1)
    page = write_report(tmp_path / "r.html", back).read_text()
    if n_top == 3:
        assert "rise significantly with it" not in page
        return
    for k in range(2):
        assert f"{found.n_rising[k]} features rise significantly with it" in page
        j = int(found.top_index(k, 1)[0])
        assert f'data-value="{found.adjusted_p[j, k]}"' in page


def test_reproducing_call_names_all_that_was_given(tmp_path):
    counts = np.random.default_rng(0).poisson(3.0, (30, 6))
    known = {"fixed_loadings": {"half": np.arange(30) % 2}, "fixed_factors": {"flat": np.ones(6)}}
    fit = fit_log1p_nmf(counts, 3, init="nndsvd", tol=1e-3, batch=np.arange(30) % 3, **known)
    call = document._call(fit)
    assert call == (
        "Log1pNMF(n_components=3, init='nndsvd', tol=0.001, fixed_factors=...)"
        ".fit(counts, batch=..., fixed_loadings=...)"
    )
    compile(call, "report", "eval")
    text = write_report(tmp_path / "r.html", fit, counts=counts, evidence=[None]).read_text()
    assert text.count("the deviance of this fit would be") == 1  # in the section on batches, not in the notes


def test_the_head_names_noise_and_batches(tmp_path):
    batch, groups = np.arange(30) % 3, ["a", "b"] * 15
    fit = fit_log1p_nmf(COUNTS, 2, init="nndsvd", tol=1e-2, noise="nb", dispersion=0.3, batch=batch)
    text = write_report(tmp_path / "r.html", fit, groupby=groups).read_text().replace("\xa0", " ")
    assert "30 samples in 3 batches and 8 features, 2 factors at c = 1, negative binomial noise" in text
    assert "Used by all 2 groups" not in text
    several = write_report(tmp_path / "s.html", [fit, fit]).read_text().replace("\xa0", " ")
    assert "30 samples in 3 batches and 8 features, 2 factors" in several
    assert "negative binomial noise" in several.split("</header>")[0]


# ---------- many groups, a scale, and features that have identifiers


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
    assert quarters(np.arange(0.0, 4e7, 1e4)).names[0] == "0 to 1e+07"


def test_symbols_are_shown_for_identifiers(adata, tmp_path):
    text = page(adata, tmp_path, gene_symbols="symbol")
    assert "GENE4" in text
    assert "ENSG" not in text
    assert "GENE3<" not in text  # not among the features of the fit
    with pytest.raises(KeyError, match=r"adata\.var has no column 'symbols'"):
        page(adata, tmp_path, gene_symbols="symbols")
    with pytest.raises(ValueError, match=r"gene_symbols='symbol' names a column of adata\.var"):
        page(lp.as_fit(adata), tmp_path, gene_symbols="symbol")
