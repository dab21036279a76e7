"""Whether factors are there: true ones are, one too many is not; every face says the same."""

import json
from dataclasses import replace

import anndata
import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf, tl
from log1pnmf.analysis import evidence, match_factors
from log1pnmf.cli import main
from log1pnmf.report import write_report


def true_loadings(rng=None):
    """Loadings of a baseline and two factors, 120 samples."""
    rng = np.random.default_rng(0) if rng is None else rng
    others = np.maximum(rng.normal(0.0, 0.5, (120, 2)), 0.0)
    return np.column_stack([rng.uniform(0.8, 1.0, 120), others / others.max(axis=0)])


def drawn(phi=0.0):
    """Counts of a baseline and two factors, 120 samples x 90 features."""
    rng = np.random.default_rng(0)
    loadings = true_loadings(rng)
    own = rng.exponential(1.5, (90, 2)) * (rng.random((90, 2)) < 0.3)
    means = np.expm1(loadings @ np.column_stack([rng.uniform(0.5, 1.5, 90), own]).T)
    if phi:
        means = means * rng.gamma(1.0 / phi, phi, means.shape)
    return rng.poisson(means)


@pytest.fixture(scope="module")
def three():
    return fit_log1p_nmf(drawn(), 3, tol=1e-6, n_jobs=1)


@pytest.mark.parametrize(("noise", "phi"), [("poisson", 0.0), ("nb", 0.2)])
def test_true_factors_stand_out_and_superfluous_ones_do_not(noise, phi):
    """In the same fit: the figure is about the factor, not about one factor fewer."""
    counts, loadings = drawn(phi), true_loadings()
    fit = fit_log1p_nmf(counts, 5, noise=noise, tol=1e-6, n_jobs=1)
    found = evidence(fit, counts, n_seeds=0, n_bootstrap=0, n_jobs=1)
    times = found.table()["times_noise"]
    true = match_factors(loadings, fit.loadings).pairs[1:, 1]  # without the baseline
    assert (times[true] > 1.5).all()
    assert np.sort(times)[:2].max() < 1.5
    assert times[true].min() > 1.3 * np.sort(times)[:2].max()
    named = found.judgement().split("noise: ")[1].split(" (")[0].split(", ")
    assert set(named) == {found.factor_names[k] for k in np.flatnonzero(times <= 1.5)}


def test_a_half_of_a_factor_can_be_spared_and_the_whole_cannot(three):
    """The other half takes over: its loadings are fitted again."""
    counts, fit = drawn(), three
    whole = evidence(fit, counts, n_seeds=0, n_bootstrap=0, n_jobs=1)
    first = np.arange(120) < 60
    halves = fit.loadings[:, [2]] * np.stack([first, ~first], axis=1)
    torn = replace(
        fit,
        loadings=np.column_stack([fit.loadings[:, :2], halves]),
        factors=fit.factors[:, [0, 1, 2, 2]],
        settings=replace(fit.settings, n_components=4),
    )
    found = evidence(torn, counts, n_seeds=0, n_bootstrap=0, n_jobs=1)
    assert (found.loss[2:] < 0.5 * whole.loss[2]).all()
    assert (whole.table()["times_noise"] > 2.0).all()


def test_a_part_of_the_samples_refutes_nothing():
    """What few samples do not show may be there all the same."""
    counts = drawn()
    more = fit_log1p_nmf(counts, 5, tol=1e-5, n_jobs=1)
    part = evidence(more, counts, n_seeds=0, n_bootstrap=0, max_samples=60, n_jobs=1)
    assert (part.table()["times_noise"] <= 1.5).any()
    assert (part.n_samples, part.n_all) == (60, 120)
    assert part.judgement().startswith("In 60 of 120 samples it is not clear whether these are there: ")


def test_the_loss_is_that_of_the_others_alone():
    """Two kinds of samples: without either factor, one is left, which keeps its features."""
    own = (np.arange(40)[:, None] < 20) == (np.arange(16) < 8)
    counts = np.random.default_rng(0).poisson(np.where(own, 8.0, 0.5))
    two, one = (fit_log1p_nmf(counts, k, n_jobs=1) for k in (2, 1))
    found = evidence(two, counts, n_seeds=2, n_bootstrap=0, n_jobs=1)
    assert (found.loss >= 0.999 * (two.log_likelihood - one.log_likelihood)).all()
    np.testing.assert_allclose(found.seeds, 1.0)
    assert np.isnan(found.bootstrap).all()
    assert found.deviance_percent[0] > 50.0


def test_more_factors_than_the_counts_feed():
    """Some have no loadings left: the others may rise without limit."""
    few = np.array([[1, 0, 0, 2], [2, 0, 0, 4], [1, 0, 0, 2]])
    for counts in (few, 1000 * few):
        with pytest.warns(UserWarning, match="cannot determine so many"):
            fit = fit_log1p_nmf(counts, 5, c=np.inf, random_state=0, n_jobs=1)
        assert np.isfinite(evidence(fit, counts, n_seeds=1, n_bootstrap=1, n_jobs=1).loss).all()


def test_a_factor_that_alone_may_explain_some_counts_cannot_be_spared():
    counts = np.random.default_rng(0).poisson(3.0, (30, 8))
    mask = np.eye(2, dtype=bool).repeat(4, axis=0)
    for n_components, spared in ((2, [False, False]), (3, [True, True, True])):  # a third factor is free
        fit = fit_log1p_nmf(counts, n_components, mask=mask, tol=1e-4, n_jobs=1)
        assert np.isfinite(evidence(fit, counts, n_seeds=0, n_bootstrap=0, n_jobs=1).loss).tolist() == spared


def test_one_factor():
    counts = np.random.default_rng(0).poisson(2.0, (50, 8))
    alone = evidence(fit_log1p_nmf(counts, 1), counts, n_seeds=1, n_bootstrap=1, n_jobs=1)
    assert np.isnan(alone.loss).all()
    assert "one factor" in alone.judgement()
    with pytest.raises(ValueError, match="n_seeds"):
        evidence(fit_log1p_nmf(counts, 1), counts, n_seeds=-1)


def test_batches_and_what_is_known_of_factors():
    """They go along when samples are drawn and factors are dropped."""
    counts = drawn()
    known = {"half": (np.arange(120) < 60).astype(float), "everyone": 1.0}
    batch = np.repeat(["a", "b", "a"], 40)
    fixed = fit_log1p_nmf(counts, 4, tol=1e-5, n_jobs=1, fixed_loadings=known, batch=batch)
    held = evidence(fixed, counts, n_seeds=1, n_bootstrap=2, max_samples=100, n_jobs=1)
    assert held.factor_names[0] == "half"
    assert (held.bootstrap[:2] == 1.0).all()
    assert (held.seeds[:2] == 1.0).all()
    assert np.isfinite(held.loss).all()


def test_it_is_the_same_every_time(three, capsys):
    counts, model = drawn(), Log1pNMF.of(three)
    found = evidence(model, counts, n_seeds=2, n_bootstrap=2, verbose=1, n_jobs=1)
    again = evidence(model, counts, n_seeds=2, n_bootstrap=2, n_jobs=1)
    np.testing.assert_array_equal(found.loss, again.loss)
    np.testing.assert_array_equal(found.bootstrap, again.bootstrap)
    assert "7 of 7 fits" in capsys.readouterr().err


def test_the_report_has_what_anndata_keeps(tmp_path):
    adata = anndata.AnnData(drawn().astype(np.float32))
    tl.log1p_nmf(adata, 2, tol=1e-5, init="nndsvd", n_jobs=1)
    tl.evidence(adata, n_seeds=1, n_bootstrap=1, n_jobs=1)
    page = write_report(tmp_path / "report.html", adata).read_text()  # without counts it could not be found
    assert "Evidence for each factor" in page
    assert page.count("of 1</td>") == 4


def test_the_shell(tmp_path, capsys):
    np.savetxt(tmp_path / "counts.csv", drawn()[:, :20], fmt="%d", delimiter=",")
    out = str(tmp_path / "out")
    assert main(["fit", str(tmp_path / "counts.csv"), "-k", "2", "-o", out, "--set", "tol=1e-4"]) == 0
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
