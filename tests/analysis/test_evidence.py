"""Whether factors are there: true ones are, one too many is not; every face says the same."""

import json

import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import evidence
from log1pnmf.report import write_report


def drawn(phi=0.0):
    """Counts of a baseline and two factors, 120 samples x 90 features."""
    rng = np.random.default_rng(0)
    others = np.maximum(rng.normal(0.0, 0.5, (120, 2)), 0.0)
    loadings = np.column_stack([rng.uniform(0.8, 1.0, 120), others / others.max(axis=0)])
    own = rng.exponential(1.5, (90, 2)) * (rng.random((90, 2)) < 0.3)
    means = np.expm1(loadings @ np.column_stack([rng.uniform(0.5, 1.5, 90), own]).T)
    if phi:
        means = means * rng.gamma(1.0 / phi, phi, means.shape)
    return rng.poisson(means)


@pytest.mark.parametrize(("noise", "phi"), [("poisson", 0.0), ("nb", 0.2)])
def test_planted_factors_are_there_and_one_too_many_is_not(noise, phi):
    counts = drawn(phi)
    right, more = (fit_log1p_nmf(counts, k, noise=noise, tol=1e-6, n_jobs=1) for k in (3, 4))
    found, extra = (evidence(fit, counts, n_seeds=0, n_bootstrap=5, n_jobs=1) for fit in (right, more))
    assert (found.loss > 1.5 * found.from_noise).all()
    assert (found.bootstrap >= 0.6).all()
    assert "No factor can be spared" in found.judgement()
    assert (extra.loss < 1.4 * extra.from_noise).all()
    assert extra.bootstrap.min() < 0.5
    assert extra.bootstrap.min() < found.bootstrap.min()
    assert "One factor fewer explains the counts about as well" in extra.judgement()
    assert "Doubtful" in extra.judgement()


def test_the_loss_is_that_of_a_fit_with_one_factor_fewer():
    """Two kinds of samples: without either factor, one is left, and that fit is known."""
    own = (np.arange(40)[:, None] < 20) == (np.arange(16) < 8)
    counts = np.random.default_rng(0).poisson(np.where(own, 8.0, 0.5))
    two, one = (fit_log1p_nmf(counts, k, n_jobs=1) for k in (2, 1))
    found = evidence(two, counts, n_seeds=2, n_bootstrap=0, n_jobs=1)
    np.testing.assert_allclose(found.loss, two.log_likelihood - one.log_likelihood, rtol=1e-3)
    np.testing.assert_allclose(found.seeds, 1.0)
    assert np.isnan(found.bootstrap).all()
    assert found.deviance_percent[0] > 50.0


def test_one_factor_and_some_samples():
    counts = np.random.default_rng(0).poisson(2.0, (50, 8))
    alone = evidence(fit_log1p_nmf(counts, 1), counts, n_seeds=1, n_bootstrap=1, n_jobs=1)
    assert np.isnan(alone.loss).all()
    assert "one factor" in alone.judgement()
    some = evidence(fit_log1p_nmf(counts, 2), counts, n_seeds=1, n_bootstrap=0, max_samples=30, n_jobs=1)
    assert some.n_samples == 30
    assert np.isfinite(some.loss).all()
    with pytest.raises(ValueError, match="n_seeds"):
        evidence(fit_log1p_nmf(counts, 1), counts, n_seeds=-1)


def test_batches_and_what_is_known_of_factors():
    """They go along when samples are drawn and factors are dropped."""
    counts = drawn()
    batch = np.repeat(["a", "b"], 60)
    model = Log1pNMF(3, tol=1e-5, n_jobs=1).fit(counts, batch=batch)
    found = model.evidence(counts, n_seeds=1, n_bootstrap=2)
    assert (found.loss > 1.5 * found.from_noise).all()
    assert (found.bootstrap == 1.0).all()
    known = {"half": (np.arange(120) < 60).astype(float), "everyone": 1.0}
    fixed = fit_log1p_nmf(counts, 4, tol=1e-5, n_jobs=1, fixed_loadings=known)
    held = evidence(fixed, counts, n_seeds=1, n_bootstrap=2, max_samples=100, n_jobs=1)
    assert held.factor_names[0] == "half"
    assert (held.bootstrap[:2] == 1.0).all()
    assert (held.seeds[:2] == 1.0).all()
    assert np.isfinite(held.loss).all()


def test_it_is_the_same_every_time_and_shown_by_the_summary(capsys):
    counts = drawn()
    model = Log1pNMF(3, tol=1e-5, n_jobs=1).fit(counts)
    assert "Evidence" not in model.summary()
    found = model.evidence(counts, n_seeds=2, n_bootstrap=2, verbose=1)
    again = model.evidence(counts, n_seeds=2, n_bootstrap=2)
    np.testing.assert_array_equal(found.loss, again.loss)
    np.testing.assert_array_equal(found.bootstrap, again.bootstrap)
    assert "7 of 7 fits" in capsys.readouterr().err
    model.rename_factors({"k1": "rare"})
    assert "Evidence" in model.summary()
    assert "  rare  " in model.summary().split("Evidence")[1]
    assert "Evidence" not in model.fit(counts).summary()


def test_anndata_keeps_it_for_the_summary_and_the_report(tmp_path):
    anndata = pytest.importorskip("anndata")
    from log1pnmf import tl

    adata = anndata.AnnData(drawn().astype(np.float32))
    tl.log1p_nmf(adata, 2, tol=1e-5, init="nndsvd", n_jobs=1)
    tl.evidence(adata, n_seeds=1, n_bootstrap=1, n_jobs=1)
    tl.rename_factors(adata, {"k1": "rare"})
    kept = adata.uns["log1p_nmf_evidence"]
    assert kept["table"]["factor"].tolist() == ["k0", "rare"]
    assert list(kept["table"]) == ["factor", "loss", "times_noise", "deviance_percent", "seeds", "bootstrap"]
    adata.write_h5ad(tmp_path / "kept.h5ad")
    again = anndata.read_h5ad(tmp_path / "kept.h5ad")
    assert kept["judgement"] in Log1pNMF.of(again).summary()
    page = write_report(tmp_path / "report.html", again).read_text()  # without counts it could not be found
    assert "Evidence for each factor" in page
    assert page.count("of 1</td>") == 4
    tl.log1p_nmf(again, 2, c=10.0, tol=1e-5, init="nndsvd", n_jobs=1)
    assert "Evidence" not in Log1pNMF.of(again).summary(), "it was about another fit"


def test_the_shell(tmp_path, capsys):
    pytest.importorskip("typer")
    from log1pnmf.cli import main

    np.savetxt(tmp_path / "counts.csv", drawn()[:, :20], fmt="%d", delimiter=",")
    out = str(tmp_path / "out")
    assert main(["fit", str(tmp_path / "counts.csv"), "-k", "2", "-o", out, "--tol", "1e-4"]) == 0
    capsys.readouterr()
    table = tmp_path / "evidence.csv"
    options = ["--seeds", "1", "--bootstrap", "1", "--json", "-o", str(table)]
    assert main(["evidence", out, *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["factor"] == ["k0", "k1"]
    assert len(table.read_text().splitlines()) == 3
    assert main(["evidence", out, "--seeds", "0", "--bootstrap", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["k0", "k1"]
    (tmp_path / "counts.csv").unlink()
    assert main(["evidence", out]) == 2
    assert "cannot be read again" in capsys.readouterr().err
