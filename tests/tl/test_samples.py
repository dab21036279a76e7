"""Samples that are dropped, reordered or projected take their loadings along, and work goes on with them."""

import anndata
import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf.analysis import log_likelihood, markers, usage

FAST = {"tol": 1e-4, "n_jobs": 1}


@pytest.fixture(scope="module", params=[{}, {"noise": "nb", "batch_key": "chip", "size_factors": "fit"}])
def fitted(request):
    """60 samples of two kinds from six donors; some factors have features of their own."""
    rng = np.random.default_rng(0)
    own = (np.arange(60)[:, None] % 2 == 0) == (np.arange(16) < 8)
    adata = anndata.AnnData(rng.poisson(np.where(own, 6.0, 0.5)).astype(np.float32))
    adata.obs_names, adata.var_names = [f"cell{i}" for i in range(60)], [f"gene{j}" for j in range(16)]
    adata.obs["donor"] = [f"d{i // 10}" for i in range(60)]
    adata.obs["condition"] = np.repeat(["a", "b"], 30)
    adata.obs["chip"] = np.repeat(["x", "y", "x", "y"], 15)
    lp.tl.log1p_nmf(adata, 2, **request.param, **FAST)
    return adata


REORDERED = np.random.default_rng(1).permutation(60)


@pytest.fixture(params=["reordered", "some of them"])
def chosen(request):
    return REORDERED if request.param == "reordered" else REORDERED[:45]


def table(adata, what):
    return adata.uns[f"log1p_nmf_{what}"]["table"]


def assert_tables(found, expected):
    """Both with the same rows; numbers may differ by the order in which they were summed up."""
    assert list(found.columns) == list(expected)
    for name, column in expected.items():
        if np.asarray(column).dtype.kind == "f":
            np.testing.assert_allclose(found[name], column, rtol=1e-6, atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name].astype(str), np.asarray(column).astype(str))


def test_loadings_sizes_and_batches_follow_the_samples(fitted, chosen):
    fit, part = lp.as_fit(fitted), lp.as_fit(fitted[chosen])  # a view
    np.testing.assert_array_equal(part.loadings, fit.loadings[chosen])
    np.testing.assert_array_equal(part.size_factors, fit.size_factors[chosen])
    np.testing.assert_array_equal(part.sample_names, fit.sample_names[chosen])
    np.testing.assert_array_equal(part.exposure(), fit.exposure()[chosen] if fit.batches else part.exposure())
    if len(chosen) == 60:
        assert np.isclose(part.log_likelihood, log_likelihood(part, fitted[chosen].X), rtol=1e-9)


def test_markers_and_usage_are_those_of_these_samples(fitted, chosen):
    fit, part = lp.as_fit(fitted), fitted[chosen].copy()
    lp.tl.markers(part, n_top=None)
    batches = fit.batches and fit.batches.of_samples(chosen)
    alone = fit.of_samples(fit.loadings[chosen], fit.size_factors[chosen], batches, "some samples")
    assert_tables(table(part, "markers"), markers(alone, part.X).table())
    lp.tl.usage(part, "condition", replicate="donor")
    assert_tables(
        table(part, "usage"), usage(alone, part.obs["condition"], replicate=part.obs["donor"]).table()
    )


def test_order_does_not_matter(fitted):
    other = fitted[REORDERED].copy()
    assert lp.as_fit(other).whole
    assert lp.as_fit(other).log_likelihood == lp.as_fit(fitted).log_likelihood
    for adata in (other, whole := fitted.copy()):
        lp.tl.markers(adata, n_top=None)
        lp.tl.usage(adata, "condition", replicate="donor")
    for what in ("markers", "usage"):
        assert_tables(table(other, what), table(whole, what))
    lp.tl.evidence(other, n_seeds=2, n_bootstrap=0)


def test_what_needs_the_whole_fit_refuses_some_samples(fitted, tmp_path):
    part = fitted[:40].copy()
    model = lp.Log1pNMF.of(part)
    assert model.fit_.log_likelihood is None
    assert "these are 40 of the 60 samples" in model.summary()
    model.save(tmp_path / "part.npz")
    assert not lp.Fit.load(tmp_path / "part.npz").whole
    with pytest.raises(ValueError, match=r"evidence .* needs all 60 samples of the fit, .*original object"):
        lp.tl.evidence(part)


def test_samples_that_are_not_in_the_fit_are_refused(fitted):
    part = fitted[:40].copy()
    part.obs_names = [f"new{i}" for i in range(40)]
    with pytest.raises(ValueError, match=r"40 of the 40 samples .* \(first 'new0'\); .*tl\.transform"):
        lp.as_fit(part)
    renamed = fitted.copy()
    renamed.obs_names = [f"new{i}" for i in range(60)]
    assert lp.as_fit(renamed).whole  # all are there, in the same order


@pytest.mark.filterwarnings("ignore:Observation names are not unique:UserWarning")
def test_names_of_samples_that_occur_twice_do_not_tell_which_is_which(fitted):
    twice = fitted.copy()
    twice.obs_names = ["cell", "cell", *fitted.obs_names[2:]]
    lp.tl.log1p_nmf(twice, 1, **FAST)
    with pytest.raises(ValueError, match=r"occur there twice \(first 'cell'\)"):
        lp.as_fit(twice[:20])
    assert not lp.as_fit(twice[5:20]).whole


def test_loadings_that_were_changed_are_not_the_fit(fitted):
    changed = fitted.copy()
    changed.obsm["X_log1p_nmf"] = changed.obsm["X_log1p_nmf"] * 0.5
    found = lp.as_fit(changed)
    assert not found.whole
    assert found.log_likelihood is None


def test_projected_samples_have_markers_and_usage(fitted):
    fit = lp.as_fit(fitted)
    new = anndata.AnnData(fitted.X[::-1, ::-1].copy(), fitted.obs[::-1], fitted.var[::-1])
    batch_key = None if fit.batches is None else "chip"
    lp.tl.transform(new, fitted, std=True, batch_key=batch_key, prior=0)
    np.testing.assert_allclose(new.obsm["X_log1p_nmf"], fit.loadings[::-1], atol=0.05)
    projected = lp.as_fit(new)
    assert not projected.whole
    np.testing.assert_array_equal(projected.feature_names, fit.feature_names)
    lp.tl.markers(new)
    lp.tl.usage(new[:40].copy(), "condition", replicate="donor")
    model, frame = lp.Log1pNMF.of(fitted), new.to_df()
    if batch_key is None:
        again = model.markers(frame, loadings=model.transform(frame, prior=0))
        assert_tables(table(new, "markers"), again.table(100))
        with pytest.raises(ValueError, match="loadings must have one row for each of the 60 samples, got 5"):
            model.markers(frame, loadings=fit.loadings[:5])
    assert set(table(new, "markers")["feature"]) <= set(new.var_names)
    again = fitted.copy()
    lp.tl.transform(again, new, batch_key=batch_key, prior=0)  # the factors are the same
    direct = lp.tl.transform(fitted, fitted, batch_key=batch_key, prior=0, copy=True)
    np.testing.assert_allclose(again.obsm["X_log1p_nmf"], direct.obsm["X_log1p_nmf"], atol=1e-3)
    with pytest.raises(ValueError, match="needs all 60 samples of the fit"):
        lp.tl.evidence(new)
