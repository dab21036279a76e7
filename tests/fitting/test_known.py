"""Known loadings, known factors and masks: held to the bit, named, kept, and the rest is fitted as ever."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.optimize import minimize

import log1pnmf as lp
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.fit_counts import asked_again, fit_counts
from log1pnmf.fitting.fixed_factors import structure_of
from log1pnmf.fitting.ranking import ranking_of
from log1pnmf.fitting.settings import Settings
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.objective import entry_gradient, entry_loss
from log1pnmf.model.problem import Problem

N, M = 40, 25
RNG = np.random.default_rng(0)
DESIGN = np.c_[np.ones(N), np.arange(N) % 2, (np.arange(N) // 2) % 2 * 0.7]
FACTORS = RNG.gamma(0.5, 1.0, (M, 3)) + 0.05
NAMES = [f"g{j}" for j in range(M)]
COUNTS = RNG.poisson(np.expm1(0.8 * DESIGN @ FACTORS.T))
COUNTS[3], COUNTS[:, 7] = 0, 0  # a sample and a feature without counts
FRAME = pd.DataFrame(COUNTS, columns=NAMES)
SETS = {"first": NAMES[:12], "second": [*NAMES[8:20], "not in the data"]}


def fit(n_components, **parameters):
    return lp.fit_log1p_nmf(FRAME, n_components, **{"n_jobs": 1, "init": "nndsvd", **parameters})


@pytest.mark.parametrize("c", [1.0, math.inf])
def test_all_loadings_known_is_a_regression_for_every_feature(c):
    found = fit(3, fixed_loadings=DESIGN, c=c)
    assert found.converged
    assert np.array_equal(found.loadings, DESIGN)
    link, sizes = ShiftedLog(c), found.size_factors
    t = link.exposure_scale * sizes
    for j in range(0, M, 4):
        y = COUNTS[:, j].astype(float)

        def regression(b, y=y):
            eta = DESIGN @ b
            return entry_loss(y, eta, t, link).sum(), DESIGN.T @ entry_gradient(y, eta, t, link)

        how = {"method": "L-BFGS-B", "options": {"ftol": 1e-15, "gtol": 1e-10}}
        best = minimize(regression, np.full(3, 0.1), jac=True, bounds=[(0.0, None)] * 3, **how)
        ours = regression(found.factors[j] / link.alpha)[0]
        assert ours <= best.fun + 1e-6 * abs(best.fun) + 1e-9
    other = fit(3, fixed_loadings=DESIGN, c=c, init="random", random_state=1)  # there is one optimum
    np.testing.assert_allclose(other.factors, found.factors, atol=1e-5 if c == 1.0 else 1e-3)


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.gpu)])
def test_known_columns_keep_every_bit_beside_free_ones(engine):
    profile = FACTORS[:, 1] / 3.0
    known = {"fixed_loadings": DESIGN[:, :2], "fixed_factors": profile}
    found = fit(5, **known, engine=engine, c=3.0, max_iter=8)
    assert found.kinds == ["loadings", "loadings", "factors", "free", "free"]
    assert np.array_equal(found.loadings[:, :2], DESIGN[:, :2])
    assert np.array_equal(found.factors[:, 2], profile)
    again = found.normalized("factor_max")
    assert np.array_equal(again.factors[:, 2], profile)
    assert np.array_equal(again.loadings[:, :2], DESIGN[:, :2])
    assert again.factors[:, 3].max() == pytest.approx(1.0)


def test_a_known_factor_of_any_c_is_part_of_the_optimum():
    whole = fit(3, c=0.5)
    held = fit(3, c=0.5, fixed_factors=whole.factors[:, 1].copy(), init=whole)
    assert held.objective == pytest.approx(whole.objective, rel=1e-6)


def test_a_strict_mask_allows_nothing_outside_and_a_penalty_little():
    strict = fit(3, mask=SETS)
    assert strict.factor_names == ["first", "second", "k2"]
    inside = strict.mask
    assert inside.sum(axis=0).tolist() == [12, 12]
    assert not strict.factors[:, :2][~inside].any()
    soft = fit(3, mask=SETS, mask_penalty=30.0, init=strict)
    softer = fit(3, mask=SETS, mask_penalty=1.0, init=soft)
    outside = [one.factors[:, :2][~inside].sum() for one in (soft, softer)]
    assert 0.0 <= outside[0] < outside[1]
    assert soft.loadings.max() <= 1.0
    assert softer.log_likelihood >= soft.log_likelihood >= (1.0 + 1e-6) * strict.log_likelihood
    for one in (strict, soft, softer):
        assert one.converged
        assert one.kkt_residual < 1e-3


@pytest.mark.parametrize(("columns", "k", "spared"), [([1, 0], 4, 1), ([1], 3, 1)])
def test_a_penalty_spares_the_constant_column_or_else_the_first_free_one(columns, k, spared):
    known = structure_of(Counts.from_any(COUNTS), Settings(k, l1=2.0), fixed_loadings=DESIGN[:, columns])
    constraint = known.constraint(k, l1=2.0, mask_penalty=math.inf, alpha=1.0)
    expected = np.where(np.arange(k) == spared, 0.0, 2.0)
    assert constraint.factors.tables(k)[2][0].tolist() == expected.tolist()


def test_streamed_is_whole():
    options = {"likelihood": "exact", "n_jobs": 1}
    known = {"fixed_loadings": DESIGN[:, :2], "mask": {"a": NAMES[:20]}}
    chunks = lp.open_counts(COUNTS.astype(np.float32))
    whole = fit(4, **known, **options)
    known["mask"] = {"a": range(20)}
    streamed = lp.fit_log1p_nmf(chunks, 4, **known, init=whole, **options)
    assert np.array_equal(streamed.loadings[:, :2], DESIGN[:, :2])
    assert streamed.objective == pytest.approx(whole.objective, rel=1e-6)
    alone = lp.fit_log1p_nmf(chunks, 3, fixed_loadings=DESIGN, **options)
    assert alone.objective == pytest.approx(fit(3, fixed_loadings=DESIGN).objective, rel=1e-6)


@pytest.mark.filterwarnings("ignore:not converged")
def test_a_streamed_fit_holds_a_column_that_is_known_in_part(chunks_of):
    pattern = np.where(DESIGN[:, 1:] > 0.0, np.nan, 0.0)
    known = {"fixed_loadings": {"one": pattern[:, 0], "two": pattern[:, 1]}, "batch": np.arange(N) % 3}
    whole = fit(3, **known, likelihood="exact")
    chunks = lp.open_counts(chunks_of(sparse.csr_array(COUNTS), [0, 7, 22, N]))
    given = {**known, "likelihood": "exact", "n_jobs": 1, "tol": 1e-10}
    streamed = lp.fit_log1p_nmf(chunks, 3, init=fit(3, **known, max_iter=2), **given)
    loadings = np.asarray(streamed.loadings)
    assert not loadings[:, :2][pattern == 0.0].any()
    assert loadings[:, :2][np.isnan(pattern)].any()
    alone = lp.fit_log1p_nmf(chunks, 3, init="nndsvd", max_iter=3, **{**given, "tol": 0.0})  # its own start
    assert not np.asarray(alone.loadings)[:, :2][pattern == 0.0].any()
    assert streamed.objective == pytest.approx(whole.objective, rel=1e-6)


def test_files_keep_what_was_known_so_that_the_fit_can_be_made_again(tmp_path):
    found = fit(4, fixed_loadings={"everyone": 1, "treated": DESIGN[:, 1]}, mask={"a": NAMES[:20]})
    found.save(tmp_path / "fit.npz")
    again = lp.Fit.load(tmp_path / "fit.npz")
    assert again.kinds == ["loadings", "loadings", "mask", "free"]
    assert again.factor_names == ["everyone", "treated", "a", "k3"]
    model = lp.Log1pNMF.of(again)
    assert list(model.mask) == ["a"]
    assert model.fixed_factors is None
    settings, given = asked_again(again)
    assert np.array_equal(fit_counts(FRAME, settings, **given, n_jobs=1).factors, found.factors)


def test_new_samples_are_free_unless_their_loadings_are_given():
    model = lp.Log1pNMF(3, init="nndsvd", n_jobs=1).fit(FRAME, fixed_loadings=DESIGN[:, :2])
    free = model.transform(FRAME.iloc[:6], prior=0)
    assert not np.array_equal(free[:, :2], DESIGN[:6, :2])
    for prior in ("auto", 0):
        given = model.transform(FRAME.iloc[:6], fixed_loadings=DESIGN[:6, :2], prior=prior)
        assert np.array_equal(given[:, :2], DESIGN[:6, :2])
    counted = COUNTS[:6].any(axis=1)
    np.testing.assert_allclose(given[counted, 2], model.loadings_[:6][counted, 2], atol=1e-3)
    problem = Problem(Counts.from_any(COUNTS[:6]), model.fit_.size_factors[:6], model.fit_.link)
    engine, factors = NativeEngine(problem, 1), model.fit_.factors / model.fit_.link.alpha
    assert engine.loss(free, factors) <= engine.loss(given, factors) + 1e-9


@pytest.mark.parametrize("l1", [0.0, 1.0])
def test_who_has_a_factor_may_be_known_and_how_much_found(l1):
    pattern = np.where(DESIGN[:, 1:] > 0.0, np.nan, 0.0)
    found = fit(3, fixed_loadings={"one": pattern[:, 0], "two": pattern[:, 1]}, l1=l1)
    assert found.kinds == ["pattern", "pattern", "free"]
    assert not found.loadings[:, :2][pattern == 0.0].any()
    np.testing.assert_allclose(found.loadings.max(axis=0), 1.0)
    assert found.kkt_residual < 1e-3
    again = found.known_parts[0]["one"]
    assert np.array_equal(np.isnan(again), found.loadings[:, 0] > 0.0)
    if l1 == 0.0:
        assert found.log_likelihood > fit(3, fixed_loadings=DESIGN[:, 1:], tol=1e-7).log_likelihood


def test_frames_are_brought_into_the_order_of_the_data_and_arrays_are_masks_too():
    by_name, by_table = fit(2, mask={"a": NAMES[:20]}), fit(2, mask=np.arange(M)[None] < 20)
    assert by_table.factor_names == ["k0", "k1"]
    assert np.array_equal(by_name.factors, by_table.factors)
    order = np.random.default_rng(1).permutation(M)
    frame = pd.DataFrame({"known": FACTORS[:, 1]}, index=NAMES).iloc[order]
    found = fit(2, fixed_factors=frame)
    assert found.factor_names == ["known", "k1"]
    assert np.array_equal(found.factors[:, 0], FACTORS[:, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fixed_loadings": DESIGN[:5]}, "fixed_loadings must have 40 samples"),
        ({"fixed_loadings": -DESIGN}, "not negative, got -1.0 at row 0"),
        ({"fixed_loadings": np.where(DESIGN > 0, np.inf, 1.0)}, "finite"),
        ({"fixed_loadings": np.where(DESIGN > 0, np.nan, 1.0)}, "or 0 in some, and NaN"),
        ({"fixed_loadings": {"a": "x"}}, "must be numbers"),
        ({"fixed_loadings": 0.0 * DESIGN}, "zero throughout"),
        ({"fixed_factors": np.ones(7)}, "fixed_factors must have 25 features"),
        ({"fixed_factors": pd.DataFrame({"a": 1.0}, index=NAMES[1:])}, "no row for feature 'g0'"),
        ({"mask": {"a": ["x", "y"]}}, "none of the 2 features of set 'a' is in the data"),
        ({"mask": {"a": "g1"}}, "must be a list of features"),
        ({"mask": np.ones((1, 4), dtype=bool)}, "mask must be True or False"),
        ({"mask": {"a": NAMES[:3], "b": NAMES[4:]}}, "'g3' has counts in sample"),
        ({"fixed_loadings": DESIGN}, "n_components counts all factors"),
        ({"mask": {"a": NAMES}, "mask_penalty": -1.0}, "mask_penalty must be not negative"),
    ],
)
def test_contradictions_are_refused_in_one_sentence(given, message):
    with pytest.raises(ValueError, match=message):
        fit(2, **given)


def test_a_set_beside_a_constant_column_finds_its_samples_and_has_no_marker_outside():
    """A programme of five features in half of the samples, of which the set has three.

    From the same loadings for all samples it fell to zero, and stayed there. A regression on the loadings has
    no mask: features that the set lacks rise with it as well.
    """
    rng = np.random.default_rng(3)
    own = rng.random(80) < 0.5
    counts = rng.poisson(np.where(own[:, None] & (np.arange(10) < 5), 9.0, 1.0))
    known = {"fixed_loadings": {"everyone": 1.0}, "mask": {"short": [0, 1, 2]}, "size_factors": "none"}
    found = lp.fit_log1p_nmf(counts, 2, **known, init="nndsvd", max_iter=60, n_jobs=1)
    assert found.factors[:3, 1].min() > 1.0
    assert np.corrcoef(own, found.loadings[:, 1])[0, 1] > 0.8
    tested = lp.analysis.markers(found, counts, n_jobs=1)
    assert tested.adjusted_p[3:5, 1].max() < 0.05
    for by in ("score", "z"):
        assert set(tested.top_index(1, by=by)) == {0, 1, 2}
    assert set(ranking_of(found).top(1)) == {0, 1, 2}
