"""Laws of the start "auto": it takes the better one, says so, and fits stay reproducible."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf, open_counts
from log1pnmf._common.checks import as_random
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting import starts as race_module
from log1pnmf.fitting.solver import Extrapolation, alternate
from log1pnmf.fitting.starts import _Racer, initialize, race, ranked_moves, regrouped
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

ALONE = race_module.ALONE[1]
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")


def simulated(n=60, m=50, k=4, seed=0):
    """Counts with sparse factors, one empty row and one empty column."""
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(0.3, 2.0, size=(n, k)) @ rng.gamma(0.3, 1.0, size=(k, m)))
    y[4], y[:, 7] = 0, 0
    return y


Y = simulated()
TWO_BLOCKS = np.kron(np.eye(2, dtype=int), np.ones((30, 20), dtype=int))
TWO_BLOCKS *= np.random.default_rng(0).poisson(20, (60, 40))


def engine_for(c, y=Y):
    counts = Counts.from_any(y)
    return NativeEngine(Problem(counts, counts.size_factors("total"), ShiftedLog(c)), 1)


def raced(engine, k=4, seed=0, **options):
    return race(engine, k, as_random(seed), make=lambda problem: NativeEngine(problem, 1), **options)


def moved(racer, start, seed):
    pair, objective = start
    rng = as_random(seed)
    return racer.regrouped(*racer.moved(pair, objective, rng), rng, race_module.MOST_REGROUPED[1])


def test_moves_leave_a_poor_optimum_in_which_iterations_stay():
    rng = np.random.default_rng(2)
    y = rng.poisson(rng.gamma(0.1, 3.0, size=(100, 12)) @ rng.gamma(0.1, 2.0, size=(12, 80)))
    racer = _Racer(lambda problem: NativeEngine(problem, 1), engine_for(math.inf, y))
    pair, objective = start = racer.advance(initialize(racer.exact, 12, "random", as_random(2)), ALONE)
    better = moved(racer, start, 2)
    further = racer.advance((pair.loadings, pair.factors), 300)[1]
    assert further > 0.999 * objective
    assert racer.exact.loss(better.loadings, better.factors) < 0.97 * objective


def test_a_move_that_regroups_gains_what_it_promises():
    """With the identity link, what own counts gain is a lower bound of what the log-likelihood gains."""
    y = simulated(80, 60)
    engine = engine_for(math.inf, y)
    s, matrix = engine.problem.size_factors[:, None], engine.problem.counts.to_scipy().astype(float)
    *_, last = alternate(engine, *initialize(engine, 5, "random", as_random(1)), max_iter=5)
    moves = ranked_moves(matrix, s * last.loadings, last.factors, as_random(0))
    assert len(moves) == 10 * 3
    assert [move.gain for move in moves] == sorted((move.gain for move in moves), reverse=True)
    for move in moves[:10]:
        loadings, factors = regrouped(matrix, s * last.loadings, last.factors, move)
        gain = last.loss - engine.loss(loadings / s, factors)
        assert gain >= move.gain - 1e-6 * abs(last.loss)


def test_the_first_move_regroups_what_is_wrong():
    """Three blocks of samples and features: one factor has two of them, and two factors share the third."""
    blocks = np.repeat(np.arange(3), 30)
    y = np.random.default_rng(0).poisson(np.where(blocks[:, None] == blocks, 6.0, 0.02))
    engine = engine_for(math.inf, y)
    shares = np.random.default_rng(1).uniform(0.3, 0.7, size=90)
    wrong = np.stack([blocks < 2, (blocks == 2) * shares, (blocks == 2) * (1.0 - shares)], axis=1) + 1e-3
    matrix, third = engine.problem.counts.to_scipy().astype(float), (blocks == 2) + 1e-3
    at = wrong, np.c_[wrong[:, 0], third, third]
    move = ranked_moves(matrix, *at, as_random(0))[0]
    assert (move.merged, move.split) == ((1, 2), 0)
    loadings, _ = regrouped(matrix, *at, move)
    dominant = loadings.argmax(axis=1)
    assert [len(set(dominant[blocks == block])) for block in range(3)] == [1, 1, 1]
    assert len(set(dominant)) == 3


def test_moves_never_lose():
    for seed in range(3):
        engine = engine_for(math.inf, simulated(seed=seed))
        racer = _Racer(lambda problem: NativeEngine(problem, 1), engine)
        start = racer.advance(initialize(engine, 5, "random", as_random(seed)), ALONE)
        better = moved(racer, start, seed)
        assert engine.loss(better.loadings, better.factors) <= start[1] * (1.0 + 1e-12)


@pytest.mark.parametrize(("c", "k"), [(1e-6, 5), (1.0, 22), (math.inf, 1), (math.inf, 5)])
def test_the_start_is_usable(c, k):
    engine = engine_for(c, Y[:25, :20])
    pair, name = raced(engine, k)
    loadings, factors = pair.loadings, pair.factors
    assert (loadings.shape, factors.shape) == ((25, k), (20, k))
    assert not loadings[4].any()
    assert not factors[7].any()
    assert min(loadings.min(), factors.min()) >= 0.0
    assert math.isfinite(engine.loss(loadings, factors))
    assert name in {"random", "nndsvd", "rank1"}


def test_it_is_never_behind_the_svd():
    """At c = inf the race is exact, so that what it takes can be compared."""
    for seed in range(4):
        engine = engine_for(math.inf, simulated(seed=seed))
        rng = as_random(seed)
        pair, _ = race(engine, 4, rng, make=lambda one: NativeEngine(one, 1))
        svd = initialize(engine, 4, "nndsvd", as_random(seed))
        *_, last = alternate(engine, *svd, extrapolation=Extrapolation(), max_iter=ALONE)
        slack = 1e-5 * last.objective  # the filling of the SVD's zeros has other random numbers
        assert engine.loss(pair.loadings, pair.factors) <= last.objective + slack


def test_seeds_decide():
    engine = engine_for(math.inf)
    one, same, other = (raced(engine, seed=seed)[0].loadings for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_larger_data_race_on_a_part(monkeypatch):
    """Samples beside the part get loadings for its factors; features without a count in it can still come."""
    monkeypatch.setattr(race_module, "MOST_RACED", 30)
    y = simulated(300, 50)
    engine = engine_for(math.inf, np.c_[y, np.arange(300) == 3])  # a feature with one count
    pair, _ = raced(engine)
    loss = engine.loss(pair.loadings, pair.factors)
    assert math.isfinite(loss)
    monkeypatch.setattr(race_module, "MOST_RACED", 1000)
    whole, _ = raced(engine)
    assert loss == pytest.approx(engine.loss(whole.loadings, whole.factors), rel=0.1)
    monkeypatch.setattr(race_module, "MOST_RACED", 30)
    monkeypatch.setattr(race_module, "FEWEST", 2.0)  # no feature has counts in enough samples: all take part
    rare, _ = raced(engine)
    assert math.isfinite(engine.loss(rare.loadings, rare.factors))


@pytest.mark.parametrize(
    ("engine", "c"),
    [("streaming", 1.0), ("streaming", math.inf), pytest.param("torch", 1.0, marks=pytest.mark.gpu)],
)
def test_every_engine_has_it(engine, c):
    few = Y[:25, :20]
    options = {"c": c, "tol": 1e-4, "likelihood": "chebyshev"}
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
    seen = 0

    def stop(iteration):
        nonlocal seen
        seen += 1
        return seen == whole.n_iter + 5 or (n_init == 1 and seen == 3)

    fit_log1p_nmf(Y, 4, callbacks=[stop], **options)
    if n_init == 1:
        monkeypatch.setattr(race_module, "race", None)  # would fail
    again = fit_log1p_nmf(Y, 4, resume=tmp_path / "fit.npz", **options)
    np.testing.assert_array_equal(again.loadings, whole.loadings)
    assert again.messages == whole.messages


@pytest.mark.parametrize("c", [0.1, math.inf])
def test_several_starts_are_not_the_same_one(monkeypatch, c):
    taken = []

    def noted(*arguments, **options):
        taken.append(race(*arguments, **options))
        return taken[-1]

    monkeypatch.setattr(race_module, "race", noted)
    fit_log1p_nmf(Y, 4, c=c, n_init=3)
    assert len(taken) == 3
    assert {name for _, name in taken[1:]} == {"random"}
    assert not np.array_equal(taken[1][0].loadings, taken[2][0].loadings)


def test_ctrl_c_in_a_later_race_gives_the_best_so_far(monkeypatch):
    n_races = 0

    def interrupted(*arguments, **options):
        nonlocal n_races
        n_races += 1
        if n_races == 2:
            raise KeyboardInterrupt
        return race(*arguments, **options)

    monkeypatch.setattr(race_module, "race", interrupted)
    with pytest.warns(RuntimeWarning, match="interrupted"):
        fit = fit_log1p_nmf(Y, 4, c=math.inf, n_init=3)
    assert fit.stopped == "interrupted"
    assert fit.objective == fit_log1p_nmf(Y, 4, c=math.inf).objective


def test_starts_that_agree_end_the_race(monkeypatch):
    """Two well separated blocks have one optimum: two starts find it, and no move is tried."""
    n_raced = []
    advance = race_module._Racer.advance
    monkeypatch.setattr(race_module._Racer, "advance", lambda *a: n_raced.append(a[2]) or advance(*a))
    raced(engine_for(math.inf, TWO_BLOCKS), 2)
    assert n_raced == [race_module.ALONE[0]] * 2
    n_raced.clear()
    monkeypatch.setattr(race_module, "AGREED", -1.0)
    raced(engine_for(math.inf, TWO_BLOCKS), 2)
    assert n_raced[:2] == [race_module.ALONE[0]] * 2
    assert set(n_raced[2:]) == {race_module.AGAIN}  # two factors cannot be regrouped


def test_a_start_ends_where_it_has_settled(monkeypatch):
    engine, ends = engine_for(math.inf, TWO_BLOCKS), []
    for settled in (race_module.SETTLED, -1.0):
        monkeypatch.setattr(race_module, "SETTLED", settled)
        seen = []
        start = initialize(engine, 2, "nndsvd", as_random(0))
        racer = _Racer(lambda problem: NativeEngine(problem, 1), engine, SimpleNamespace(show=seen.append))
        _, reached = racer.advance(start, ALONE)
        ends.append((len(seen), reached))
    assert ends[0][0] < ends[1][0]
    assert ends[0][1] == pytest.approx(ends[1][1], rel=3e-5)
