"""Laws of the starts."""

import math
from itertools import count
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
from scipy import sparse

from log1pnmf import Log1pNMF, fit_log1p_nmf, open_counts
from log1pnmf._common.checks import as_random
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting import starts
from log1pnmf.fitting.solver import Extrapolation, alternate
from log1pnmf.fitting.starts import (
    STARTS,
    _Follower,
    adapt_start,
    best_split,
    check_start,
    halved,
    initialize,
    most_useful,
    rank_one,
    search,
)
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

SHIFTS = [1e-6, 1.0, math.inf]


def simulated(n=60, m=50, k=4, seed=0):
    """Counts with sparse factors, one empty row and one empty column."""
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(0.3, 2.0, size=(n, k)) @ rng.gamma(0.3, 1.0, size=(k, m)))
    y[4], y[:, 7] = 0, 0
    return y


Y = simulated()


def engine_for(c, y=Y):
    counts = Counts.from_any(y)
    return NativeEngine(Problem(counts, counts.size_factors("total"), ShiftedLog(c)), 1)


@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("init", STARTS)
@pytest.mark.parametrize("n_components", [1, 55])
def test_a_start_is_usable(c, init, n_components):
    engine = engine_for(c)
    counts = engine.problem.counts
    loadings, factors = initialize(engine, n_components, init, as_random(0))
    assert loadings.shape == (60, n_components)
    assert factors.shape == (50, n_components)
    empty_rows, empty_columns = counts.row_sums == 0, counts.by_column.row_sums() == 0
    for values, empty in ((loadings, empty_rows), (factors, empty_columns)):
        assert empty.any()
        np.testing.assert_array_equal(values[empty], 0.0)
        assert (values[~empty] > 0).all()
        assert np.isfinite(values).all()
        assert len(np.unique(values, axis=1).T) == n_components  # no two columns alike
    assert math.isfinite(engine.loss(loadings, factors))


@pytest.mark.parametrize("init", [*STARTS, "auto"])
def test_seeds_decide(init):
    engine = engine_for(1.0)

    def found(seed):
        if init == "auto":
            return searched(engine, seed=seed)[0].loadings
        return initialize(engine, 4, init, as_random(seed))[0]

    one, same, other, legacy = map(found, (0, 0, 1, np.random.RandomState(0)))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.isfinite(legacy).all()


@pytest.mark.parametrize("c", SHIFTS)
def test_tiny_columns_do_not_change_the_fit_of_rank_one(c):
    engine = engine_for(c)
    loadings, factors = rank_one(engine, as_random(0))
    start = initialize(engine, 5, "rank1", as_random(0))
    np.testing.assert_array_equal(start[0][:, :1], loadings)
    assert engine.loss(*start) == pytest.approx(engine.loss(loadings, factors), rel=1e-9)
    if c == math.inf:  # the optimum is known
        counts, sizes = engine.problem.counts, engine.problem.size_factors[:, None]
        expected = np.outer(counts.row_sums, counts.by_column.row_sums()) / counts.total
        np.testing.assert_allclose(sizes * (loadings @ factors.T), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("init", ["random", "nndsvd"])
def test_the_fitted_total_is_that_of_the_counts(c, init):
    engine = engine_for(c)
    problem = engine.problem
    loadings, factors = initialize(engine, 3, init, as_random(0))
    fitted = problem.size_factors @ problem.link.mean(loadings @ factors.T).sum(axis=1)
    assert fitted == pytest.approx(problem.counts.total, rel=0.02)


def test_nndsvd_does_not_densify():
    y = sparse.random_array((30_000, 40_000), density=4e-5, rng=0).ceil()  # 9.6 GB if it did
    counts, link = Counts.from_any(y), ShiftedLog(1.0)
    problem = Problem(counts, counts.size_factors("none"), link, quadratic(link))
    assert initialize(NativeEngine(problem, 1), 2, "nndsvd", as_random(0))[0].shape == (30_000, 2)


def test_a_good_start_is_taken_as_it_is():
    engine = engine_for(1.0)
    start = initialize(engine, 3, "random", as_random(0))
    checked = check_start(start, (60, 50), 3)
    assert checked[0] is not start[0]
    adapted = adapt_start(engine.problem, *checked, as_random(1))
    for values, original in zip(adapted, start, strict=True):
        np.testing.assert_array_equal(values, original)


def test_impossible_counts_are_lifted():
    engine = engine_for(1.0)
    loadings, factors = initialize(engine, 3, "random", as_random(0))
    loadings[0] = 0.0
    factors[3] = 0.0
    loadings[1, 0] = 0.0  # harmless
    adapted, others = adapt_start(engine.problem, loadings, factors, as_random(1))
    assert (adapted[0] > 0).all()
    assert (others[3] > 0).all()
    assert adapted[1, 0] in (0.0, pytest.approx(1e-3 * loadings[:, 0].mean()))
    y, eta = engine.problem.counts.to_scipy().toarray(), adapted @ others.T
    assert (eta[y > 0] > 0).all()
    assert engine.loss(adapted, others) < 1e9
    apart = Problem(Counts.from_any([[3, 1], [1, 4]]), np.ones(2), ShiftedLog(1.0))  # disjoint supports
    loadings, factors = adapt_start(apart, np.eye(2), np.eye(2), as_random(0))
    assert (loadings @ factors.T > 0).all()


def test_copies_are_told_apart_and_columns_that_are_zero_on_both_sides_come_alive():
    engine = engine_for(1.0)
    start = initialize(engine, 1, "random", as_random(0))
    loadings, factors = (np.c_[np.repeat(one, 3, axis=1), np.zeros(len(one))] for one in start)
    adapted, others = adapt_start(engine.problem, loadings, factors, as_random(0))
    assert len(np.unique(adapted, axis=1).T) == 4
    np.testing.assert_allclose(adapted[:, :3], loadings[:, :3], rtol=0.11)
    np.testing.assert_allclose(others[:, :3], factors[:, :3], rtol=0.11)
    assert adapted[:, 3].any()
    assert others[:, 3].any()


ALONE = starts.ALONE
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")


TWO_BLOCKS = np.kron(np.eye(2, dtype=int), np.ones((30, 20), dtype=int))
TWO_BLOCKS *= np.random.default_rng(0).poisson(20, (60, 40))


def searched(engine, k=4, seed=0, **options):
    return search(engine, k, as_random(seed), make=lambda problem: NativeEngine(problem, 1), **options)


def moved(follower, start, seed):
    rng = as_random(seed)
    return follower.regrouped(*follower.moved(*start, rng, 8), rng, starts.MOST_REGROUPED[1])[0]


def test_moves_leave_a_poor_optimum_in_which_iterations_stay():
    rng = np.random.default_rng(2)
    y = rng.poisson(rng.gamma(0.1, 3.0, size=(100, 12)) @ rng.gamma(0.1, 2.0, size=(12, 80)))
    follower = _Follower(lambda problem: NativeEngine(problem, 1), engine_for(math.inf, y))
    pair, objective = start = follower.advance(initialize(follower.exact, 12, "random", as_random(2)), ALONE)
    better = moved(follower, start, 2)
    further = follower.advance((pair.loadings, pair.factors), 300)[1]
    assert further > 0.999 * objective
    assert follower.exact.loss(better.loadings, better.factors) < 0.97 * objective


def test_a_move_that_regroups_gains_what_it_promises():
    """With the identity link, what own counts gain is a lower bound of what the log-likelihood gains."""
    y = simulated(80, 60)
    engine = engine_for(math.inf, y)
    s, matrix = engine.problem.size_factors[:, None], engine.problem.counts.to_scipy().astype(float)
    *_, last = alternate(engine, *initialize(engine, 5, "random", as_random(1)), max_iter=5)
    at = matrix, s * last.loadings, last.factors
    for seed in range(5):
        split = best_split(*at, as_random(seed))
        loadings, factors = halved(*at, split)
        gain = last.loss - engine.loss(loadings / s, factors)
        assert 0.0 < split[2] <= gain + 1e-6 * abs(last.loss)


def test_a_factor_of_few_samples_is_useful():
    """Three samples of 20,000 have counts of their own: what explains them stays, and a copy goes."""
    y = np.zeros((20_000, 40))
    y[:, :30] = np.random.default_rng(0).poisson(3.0, (20_000, 30))
    y[[5, 5000, 9000], 30:] = 3000.0
    common = np.arange(40) < 30
    loadings = np.c_[np.ones((20_000, 2)), y[:, -1] > 0.0]
    factors = np.stack([2.85 * common, 0.15 * common, 3000.0 * ~common], axis=1)
    assert most_useful(sparse.csr_array(y), loadings, factors, 2) == [0, 2]


def test_a_regrouping_mends_what_is_wrong():
    """Three blocks of samples and features: one factor has two of them, and two factors share the third."""
    blocks = np.repeat(np.arange(3), 30)
    y = np.random.default_rng(0).poisson(np.where(blocks[:, None] == blocks, 6.0, 0.02))
    follower = _Follower(lambda problem: NativeEngine(problem, 1), engine_for(math.inf, y))
    shares = np.random.default_rng(1).uniform(0.3, 0.7, size=90)
    wrong = np.stack([blocks < 2, (blocks == 2) * shares, (blocks == 2) * (1.0 - shares)], axis=1) + 1e-3
    third = (blocks == 2) + 1e-3
    start = follower.advance((wrong, np.c_[wrong[:, 0], third, third]), ALONE)
    better, objective = follower.regrouped(*start, as_random(0), 3)
    dominant = better.loadings.argmax(axis=1)
    assert len(set(zip(dominant, blocks, strict=True))) == len(set(dominant)) == 3
    assert objective < 0.9 * start[1]


def test_crossed_starts_have_the_best_of_both():
    """Six blocks: each start has one factor for two of them and two for another, but not the same ones."""
    blocks = np.repeat(np.arange(6), 20)
    y = np.random.default_rng(0).poisson(np.where(blocks[:, None] == blocks, 6.0, 0.02))
    follower = _Follower(lambda problem: NativeEngine(problem, 1), engine_for(math.inf, y))
    ends, shares = [], np.random.default_rng(1).uniform(0.3, 0.7, size=120)
    for merged, split in (((0, 1), 5), ((2, 3), 4)):
        own = np.stack([blocks == block for block in range(6)], axis=1).astype(float)
        own[:, merged[0]] += own[:, merged[1]]
        own[:, merged[1]] = own[:, split] * shares
        own[:, split] *= 1.0 - shares
        ends.append(follower.advance((own + 1e-3, own + 1e-3), ALONE))
    ends.sort(key=lambda end: end[1])
    crossed, objective = follower.crossed(ends, *ends[0])
    dominant = crossed.loadings.argmax(axis=1)
    assert len(set(zip(dominant, blocks, strict=True))) == len(set(dominant)) == 6
    assert objective < 0.9 * ends[0][1]
    assert follower.crossed(ends[:1], *ends[0]) == ends[0]


def test_moves_never_lose():
    for seed in range(3):
        engine = engine_for(math.inf, simulated(seed=seed))
        follower = _Follower(lambda problem: NativeEngine(problem, 1), engine)
        start = follower.advance(initialize(engine, 5, "random", as_random(seed)), ALONE)
        better = moved(follower, start, seed)
        assert engine.loss(better.loadings, better.factors) <= start[1] * (1.0 + 1e-12)
    follower.left = start[1], []  # every factor has ended once from here: nothing is left to try
    n_seen = follower.n_seen
    assert follower.regrouped(*start, as_random(0), 3) == start
    assert follower.n_seen == n_seen


@pytest.mark.parametrize(("c", "k"), [(1e-6, 5), (1.0, 22), (math.inf, 1), (math.inf, 5)])
def test_the_start_is_usable(c, k):
    engine = engine_for(c, Y[:25, :20])
    pair, name = searched(engine, k)
    loadings, factors = pair.loadings, pair.factors
    assert (loadings.shape, factors.shape) == ((25, k), (20, k))
    assert not loadings[4].any()
    assert not factors[7].any()
    assert min(loadings.min(), factors.min()) >= 0.0
    assert math.isfinite(engine.loss(loadings, factors))
    assert name in {"random", "nndsvd", "rank1"}


def test_it_is_never_behind_the_svd():
    """At c = inf the search is exact, so that what it takes can be compared."""
    for seed in range(4):
        engine = engine_for(math.inf, simulated(seed=seed))
        pair, _ = search(engine, 4, as_random(seed), make=lambda one: NativeEngine(one, 1))
        svd = initialize(engine, 4, "nndsvd", as_random(seed))  # its zeros are filled otherwise: slack
        *_, last = alternate(engine, *svd, extrapolation=Extrapolation(), max_iter=ALONE)
        assert engine.loss(pair.loadings, pair.factors) <= last.objective * (1.0 + 1e-5)


def test_larger_data_race_on_a_part(monkeypatch):
    """Samples beside the part get loadings for its factors; features without a count in it can still come."""
    engine = engine_for(math.inf, np.c_[simulated(300, 50), np.arange(300) == 3])  # a feature with one count
    monkeypatch.setattr(starts, "AGREED", -1.0)
    losses, few = [], starts.MEDIUM  # entries up to which regroupings on all samples follow
    for most, medium in ((1000, 0), (30, few), (30, 0)):
        monkeypatch.setattr(starts, "MOST_SEARCHED", most)
        monkeypatch.setattr(starts, "MEDIUM", medium)
        pair, _ = searched(engine)
        losses.append(engine.loss(pair.loadings, pair.factors))
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    assert losses[1] < losses[2]
    monkeypatch.setattr(starts, "FEWEST", 2.0)  # no feature has counts in enough samples: all take part
    rare, _ = searched(engine)
    assert math.isfinite(engine.loss(rare.loadings, rare.factors))


@pytest.mark.parametrize(
    ("engine", "c"),
    [("streaming", 1.0), ("streaming", math.inf), pytest.param("torch", 1.0, marks=pytest.mark.gpu)],
)
def test_every_engine_has_it(engine, c):
    few, options = Y[:25, :20], {"c": c, "tol": 1e-4, "likelihood": "chebyshev"}
    fit = fit_log1p_nmf(open_counts(few) if engine == "streaming" else few, 2, engine=engine, **options)
    native = fit_log1p_nmf(few, 2, **options)
    assert fit.converged
    assert fit.objective == pytest.approx(native.objective, rel=1e-3)


@pytest.mark.parametrize("options", [{"l1": 0.5, "c": 0.5}, {"row_solver": "coordinate", "c": math.inf}])
def test_with_a_penalty_and_with_the_solver_of_the_paper(options):
    fit = fit_log1p_nmf(Y, 3, tol=1e-5, max_iter=3000, **options)
    assert fit.converged
    assert fit.loadings.max() <= 1.0


def test_the_fit_says_what_was_taken():
    model = Log1pNMF(4, c=0.1, random_state=0).fit(Y)
    assert model.fit_.asked.init == model.fit_.settings.init == "auto"
    said = "init='auto' chose the start 'nndsvd'"
    assert said in model.fit_.messages
    assert said in model.summary()
    assert not any("chose the start" in text for text in Log1pNMF(4, init="nndsvd").fit(Y).fit_.messages)


@pytest.mark.parametrize("n_init", [1, 2])
def test_a_resumed_fit_races_no_more_and_knows_what_was_taken(tmp_path, monkeypatch, n_init):
    options = {"c": math.inf, "n_init": n_init, "checkpoint": tmp_path / "fit.npz"}
    whole = fit_log1p_nmf(Y, 4, **options)
    seen = count(1)

    def stop(iteration):
        return next(seen) == (3 if n_init == 1 else whole.n_iter + 5)

    fit_log1p_nmf(Y, 4, callbacks=[stop], **options)
    if n_init == 1:
        monkeypatch.setattr(starts, "search", None)  # would fail
    again = fit_log1p_nmf(Y, 4, resume=tmp_path / "fit.npz", **options)
    np.testing.assert_array_equal(again.loadings, whole.loadings)
    assert again.messages == whole.messages


@pytest.mark.parametrize("c", [0.1, math.inf])
def test_several_starts_are_not_the_same_one(monkeypatch, c):
    taken = []
    monkeypatch.setattr(starts, "search", lambda *a, **b: taken.append(search(*a, **b)) or taken[-1])
    fit_log1p_nmf(Y, 4, c=c, n_init=3)
    assert len(taken) == 3
    assert {name for _, name in taken[1:]} == {"random"}
    assert not np.array_equal(taken[1][0].loadings, taken[2][0].loadings)


def test_ctrl_c_in_a_later_race_gives_the_best_so_far(monkeypatch):
    races = [DEFAULT, KeyboardInterrupt, DEFAULT]
    monkeypatch.setattr(starts, "search", Mock(wraps=search, side_effect=races))
    with pytest.warns(RuntimeWarning, match="interrupted"):
        fit = fit_log1p_nmf(Y, 4, c=math.inf, n_init=3)
    assert fit.stopped == "interrupted"
    assert fit.objective == fit_log1p_nmf(Y, 4, c=math.inf).objective


def test_starts_that_agree_end_the_search(monkeypatch):
    """Two well separated blocks have one optimum: two starts find it, and no move is tried."""
    n_searched = []
    advance = starts._Follower.advance
    monkeypatch.setattr(starts._Follower, "advance", lambda *a: n_searched.append(a[2]) or advance(*a))
    searched(engine_for(math.inf, TWO_BLOCKS), 2)
    assert n_searched == [starts.ALONE] * 2
    n_searched.clear()
    monkeypatch.setattr(starts, "AGREED", -1.0)
    searched(engine_for(math.inf, TWO_BLOCKS), 2)
    assert n_searched[:2] == [starts.ALONE] * 2
    assert set(n_searched[2:]) == {starts.AGAIN, starts.ONE_LESS, starts.REGROUPED}


def test_iterations_end_where_nothing_more_is_to_come(monkeypatch):
    """They have nearly converged, or a target cannot be reached at half the pace of the last one."""
    engine = engine_for(math.inf, np.random.default_rng(0).poisson(4.0, (40, 30)))

    def followed(target=math.inf):
        follower = _Follower(lambda one: NativeEngine(one, 1), engine)
        return follower.advance(initialize(engine, 2, "nndsvd", as_random(0)), 40, target)[1], follower.n_seen

    early = followed()
    monkeypatch.setattr(starts, "NEARLY_CONVERGED", -1.0)
    reached, n_seen = followed()
    assert early[0] == pytest.approx(reached, rel=3e-5)
    assert early[1] < n_seen
    assert followed(1.01 * reached) == (reached, n_seen)
    assert followed(0.999 * reached)[1] < n_seen
    assert followed(0.5 * reached)[1] == starts.FIRST_LOOK
