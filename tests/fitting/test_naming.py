"""Names of factors: given once, they are in every table, plot and file."""

import dataclasses
import math

import numpy as np
import pytest

from log1pnmf import Fit, Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import suggest_names, topic_model
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import NORMALIZATIONS, arranged, evenness, factor_shares
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.report import write_report

COUNTS = np.random.default_rng(0).poisson(np.where(np.eye(3).repeat(20, 0).repeat(8, 1), 6.0, 0.5))
GENES = [f"g{j}" for j in range(24)]


@pytest.fixture
def model():
    return Log1pNMF(3, init="nndsvd", tol=1e-4, random_state=0, n_jobs=1).fit(COUNTS)


@pytest.mark.filterwarnings("ignore:in 1 of 1 comparison:UserWarning")
def test_names_are_everywhere(model, tmp_path):
    assert model.rename_factors({"k1": "one", 2: "two"}) is model
    names = ["k0", "one", "two"]
    assert model.fit_.factor_names == names
    assert list(dict.fromkeys(model.top_features(3).factor)) == names
    for split in (False, True):
        found = model.markers(COUNTS, split=split)
        assert list(dict.fromkeys(found.table()["factor"])) == names
        assert found.top("two", 4) == found.top(2, 4)
    assert model.usage(np.repeat(["a", "b"], 30), replicate=True).table()["factor"].tolist() == names
    assert "  two  " in model.summary()
    assert ">two<" in write_report(tmp_path / "r.html", model).read_text().replace(" <", "<")
    model.save(tmp_path / "model.npz")
    assert Fit.load(tmp_path / "model.npz").factor_names == names
    assert Log1pNMF.load(tmp_path / "model.npz").fit_.normalized("factor_sum").factor_names == names
    model.fit(COUNTS)  # another fit has names of its own
    assert model.fit_.factor_names == ["k0", "k1", "k2"]


def test_refusals(model):
    for names, message in (
        ({"k7": "x"}, "a factor must be one of 'k0', 'k1', 'k2' or 0 to 2, got 'k7'"),
        (["a", "b"], "there are 3 factors, got 2 names"),
        ({"k1": "k0"}, "a name of its own, got 'k0' twice"),
        ({"k1": "a\nb"}, "printable letters"),
    ):
        with pytest.raises(ValueError, match=message):
            model.rename_factors(names)


def test_suggestions(model, tmp_path):
    kinds = np.repeat(["x", "y", "z"], 20)
    by_group = suggest_names(model, groups=kinds)
    strongest = [kinds[np.argmax(column)] for column in model.loadings_.T]
    assert by_group["name"].tolist() == strongest
    sets = {"first": GENES[:8], "second": GENES[8:16], "none": GENES[::5], "elsewhere": ["q"]}
    lines = [f"{name}\tabout\t" + "\t".join(members) for name, members in sets.items()]
    (tmp_path / "sets.gmt").write_text("\n".join(lines) + "\n")
    table = suggest_names(model, tmp_path / "sets.gmt", feature_names=GENES)
    assert sorted(table["name"].dropna()) == ["first", "second"]
    assert "8 of its first" in " ".join(table["reason"])
    clusters = {"groups": np.repeat(["0", "1", "8"], 20), "feature_names": GENES}
    assert sorted(suggest_names(model, tmp_path / "sets.gmt", **clusters)["name"])[:2] == ["first", "group 8"]
    assert set(suggest_names(model, sets, groups=kinds, feature_names=GENES)["name"]) == set("xyz")
    model.rename_factors(dict(table.dropna()[["factor", "name"]].to_numpy()))
    assert {"first", "second"} <= set(model.fit_.factor_names)
    with pytest.raises(ValueError, match="no set has a feature of the fit"):
        suggest_names(model, sets)
    with pytest.raises(ValueError, match="pass gene_sets, groups or both"):
        suggest_names(model)
    (tmp_path / "bad.gmt").write_text("only a name\n")
    with pytest.raises(ValueError, match="has no name or no features"):
        suggest_names(model, tmp_path / "bad.gmt")


rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(50, 3)) @ rng.gamma(0.5, size=(3, 30)) + 0.3)
OPTIONS = {"n_components": 3, "random_state": 0, "n_jobs": 1, "tol": 1e-7}


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("c", [0.1, math.inf])
def test_the_scale_does_not_change_the_fit(normalize, c):
    usual = Log1pNMF(c=c, **OPTIONS).fit(Y)
    fit = usual.fit_.normalized(normalize)
    model = Log1pNMF.of(fit)
    eta = usual.loadings_ @ usual.components_
    np.testing.assert_allclose(model.loadings_ @ model.components_, eta, rtol=1e-12, atol=1e-300)
    factors = model.components_.T / fit.link.alpha
    found = negative_log_likelihood(fit.problem(Counts.from_any(Y)), model.loadings_, factors)
    assert -found == pytest.approx(model.log_likelihood_, rel=1e-10)
    expected = usual.transform(Y[:5]) @ usual.components_
    np.testing.assert_allclose(model.transform(Y[:5]) @ model.components_, expected, rtol=1e-9, atol=1e-12)
    assert model.score(Y) == pytest.approx(usual.score(Y), rel=1e-12)
    back = fit.normalized("max")
    np.testing.assert_allclose(back.loadings, usual.loadings_, rtol=1e-12)
    with pytest.raises(ValueError, match=r"normalize must be one of 'max', .* got 'sum'"):
        fit.normalized("sum")


def test_every_scale_is_what_it_says():
    fit = fit_log1p_nmf(Y, **OPTIONS)
    np.testing.assert_array_equal(fit.loadings.max(axis=0), 1.0)
    np.testing.assert_allclose(fit.normalized("factor_max").factors.max(axis=0), 1.0)
    np.testing.assert_allclose(fit.normalized("factor_sum").factors.sum(axis=0), 1.0)
    np.testing.assert_array_equal(fit.normalized("none").factors, fit.factors)


def test_the_baseline_comes_first_then_by_share():
    even, small = np.ones(50), np.full(50, 1e-6)
    block = np.r_[np.ones(10), np.zeros(40)]
    factors = np.outer(np.ones(30), [10.0, 3.0, 1.0, 40.0])
    loadings = np.c_[block, even, small, block[::-1]]

    def order(l1):
        _, shown = arranged(loadings, factors, l1=l1)
        return [factors[0].tolist().index(value) for value in shown[0]]

    # the second is the most even of those that count; the third is as even but carries nothing
    assert order(l1=0.0) == [1, 3, 0, 2]
    assert order(l1=1.0) == [0, 3, 1, 2]
    np.testing.assert_allclose(evenness(loadings), [0.2, 1.0, 1.0, 0.2])
    np.testing.assert_allclose(factor_shares(loadings, factors).sum(), 1.0)


def test_the_order_does_not_depend_on_that_of_the_solver_and_empty_factors_do_not_divide_by_zero():
    fit, shuffle = fit_log1p_nmf(Y, **OPTIONS), [2, 0, 1]
    other = arranged(fit.loadings[:, shuffle], fit.factors[:, shuffle], normalize=fit.scale)
    for one, again in zip((fit.loadings, fit.factors), other, strict=True):
        np.testing.assert_array_equal(one, again)
    loadings, factors = fit.loadings.copy(), fit.factors.copy()
    loadings[:, 1] = factors[:, 1] = 0.0
    for how in NORMALIZATIONS:
        shown = arranged(loadings, factors, normalize=how)
        for side in shown:
            assert np.isfinite(side).all()
            assert (side[:, :2].max(axis=0) > 0.0).all()
            assert not side[:, 2].any()


def test_topics_are_the_same_model_and_documents_have_their_own_size_at_the_optimum():
    y = Y.copy()
    y[3] = 0  # a document without words
    model = Log1pNMF(c=math.inf, **{**OPTIONS, "tol": 1e-12}).fit(y)
    topics, components = topic_model(model), model.components_
    np.testing.assert_allclose(topics.proportions.sum(axis=1), 1.0)
    np.testing.assert_allclose(topics.proportions[3], 1 / 3)
    np.testing.assert_allclose(topics.words, components / components.sum(axis=1, keepdims=True))
    means = model.inverse_transform(model.loadings_, model.fit_.size_factors)
    expected = topics.sizes[:, None] * (topics.proportions @ topics.words)
    np.testing.assert_allclose(expected, means, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(topics.sizes, y.sum(axis=1), rtol=1e-4)
    with pytest.raises(ValueError, match=r"needs c = inf.*fitted with c = 2.*Log1pNMF\(c=np.inf\)"):
        topic_model(fit_log1p_nmf(Y, c=2.0, **OPTIONS))


def test_the_certificate_is_the_exact_log_likelihood():
    exact = Log1pNMF(c=0.5, **OPTIONS).fit(Y).certificate_
    assert exact.gap == 0.0
    assert "no gap" in str(exact)
    model = Log1pNMF(c=1.0, likelihood="chebyshev", **OPTIONS).fit(Y)
    found, fit = model.certificate_, model.fit_
    problem, factors = fit.problem(Counts.from_any(Y)), fit.factors / fit.link.alpha
    expected = -negative_log_likelihood(problem, fit.loadings, factors)
    assert found.log_likelihood == pytest.approx(expected, rel=1e-12)
    assert found.gap == pytest.approx(fit.approximate_log_likelihood - expected, rel=1e-9)
    assert found.gap != 0.0
    assert f"off by {found.gap:,.1f}" in str(found)
    assert str(found) in model.summary()
    model.fit_ = dataclasses.replace(fit, certificate=None)
    assert model.log_likelihood_ is None
    assert "log1pnmf.analysis.log_likelihood" in model.summary()
