"""Selection on held-out counts: it finds what was simulated, and does not depend on how it is run."""

import math
import threading
import time
from dataclasses import asdict
from importlib import import_module

import numpy as np
import pytest
from scipy.optimize import brentq
from sklearn.exceptions import ConvergenceWarning

import log1pnmf
from log1pnmf import Log1pNMF
from log1pnmf.analysis import Selection, Setting, select
from log1pnmf.analysis.grid import Grid, ScoredFit, make_folds
from log1pnmf.analysis.heldout import heldout_log_likelihood, training_by_sample
from log1pnmf.analysis.selection import judge, next_numbers
from log1pnmf.counts import folds
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.simulate import simulate

running = import_module("log1pnmf.analysis.select")  # `analysis.select` is the function

QUICK = {"n_folds": 2, "n_seeds": 0, "n_starts": 1, "tol": 1e-4, "random_state": 0, "n_jobs": 1}
QUICK |= {"size_factors": "none", "noise": "poisson"}


def simulated_rates(c, n_components, *, shape=(90, 120), mean=4.0, seed=0):
    """Rates of samples that belong to several parts, with a given mean."""
    rng = np.random.default_rng(seed)
    loadings = rng.dirichlet(np.full(n_components, 0.4), size=shape[0])
    b, link = loadings @ rng.gamma(0.5, size=(shape[1], n_components)).T, ShiftedLog(c)
    power = brentq(lambda p: math.log(link.inverse(math.exp(p) * b).mean() / mean), -15.0, 3.0)
    return link.inverse(math.exp(power) * b)


def simulated(c, n_components, *, seed=0, **options):
    return np.random.default_rng([seed, 1]).poisson(simulated_rates(c, n_components, seed=seed, **options))


@pytest.fixture(scope="module")
def counts():
    return simulated(1.0, 3)


@pytest.fixture(scope="module")
def found(counts):
    return select(counts, [2, 3, 4], [0.01, 1.0, math.inf], **QUICK)


@pytest.mark.parametrize(
    ("true_c", "K", "holdout"), [(0.01, 3, "samples"), (1.0, 2, "counts"), (math.inf, 3, "samples")]
)
def test_finds_link_and_number_of_factors(true_c, K, holdout):
    y = simulated(true_c, K, shape=(150, 120), mean=6.0)
    found = select(y, [K - 1, K, K + 2], [0.01, 1.0, math.inf], holdout=holdout, **QUICK)
    assert found.best == found.one_se == Setting(true_c, K)
    assert Log1pNMF(**found.best.parameters).get_params()["c"] == true_c


def test_held_out_samples_are_not_misled_by_overdispersion():
    """Both parts of a split count share what exceeds Poisson noise; features of other samples do not."""
    rng = np.random.default_rng(0)
    rates = simulated_rates(1.0, 3, shape=(200, 150), mean=4.0, seed=0)
    y = rng.poisson(rates * rng.gamma(1 / 0.3, 0.3, size=rates.shape))
    numbers = {
        holdout: select(y, [2, 3, 5, 8], 1.0, holdout=holdout, **QUICK).one_se.n_components
        for holdout in ("counts", "samples")
    }
    assert numbers == {"counts": 8, "samples": 3}


def folds_of(counts, n):
    how = {"holdout": "counts", "test_fraction": 0.2, "size_factors": "none", "seed": 0}
    return make_folds(running.Counts.from_any(counts), n, **how)


@pytest.mark.parametrize("depth", [0.0, 1.0])
def test_totals_that_factors_change_are_named(depth):
    """Samples of one depth whose totals differ, and samples whose depth differs much more."""
    rng = np.random.default_rng(0)
    loadings, factors = rng.dirichlet([0.4] * 3, 120), rng.gamma(0.5, 4.0, (80, 3))
    counts = rng.poisson(np.expm1(loadings @ factors.T) * rng.lognormal(0.0, depth, 120)[:, None])
    found = select(counts, [2, 3], n_folds=2, n_seeds=0, n_jobs=1, noise="poisson")
    named = [reason.startswith("Totals are poor size factors") for reason in found.judgement.reasons]
    assert any(named) == (depth == 0.0)


def test_penalty_is_chosen_where_factors_are_sparse():
    rng = np.random.default_rng(0)
    loadings = np.column_stack([np.ones(150), rng.uniform(size=(150, 2)) * (rng.random((150, 2)) < 0.5)])
    factors = np.column_stack([rng.gamma(1.0, 0.5, size=200), np.zeros((200, 2))])
    factors[:20, 1] = factors[20:40, 2] = 1.5
    y = rng.poisson(ShiftedLog(1.0).inverse(loadings @ factors.T))
    found = select(y, 3, 1.0, l1=[0.0, 3.0, 1e4], **QUICK)
    assert found.best.l1 == 3.0
    # the penalty is that of the whole data: the training part has 0.8 of its log-likelihood
    assert folds_of(y, 2)[0].penalty_scale == pytest.approx(0.8)


def test_scores_are_those_of_the_folds(counts):
    """With one setting, a score is that of a fit to the training part made by hand."""
    one = select(counts, 1, math.inf, **{**QUICK, "tol": 1e-9})
    rng = np.random.default_rng([one.about["seed"], 0])
    for k, (train, test) in enumerate(folds(counts, 2, test_fraction=0.2, random_state=rng)):
        sizes = np.full(len(counts), 0.8)
        model = Log1pNMF(1, c=math.inf, size_factors=sizes, tol=1e-9, random_state=0).fit(train)
        expected = heldout_log_likelihood(model, train, test, test_fraction=0.2)
        np.testing.assert_allclose(one.scores[0, k], expected, rtol=1e-5)


def test_a_value_given_twice_counts_once():
    twice = Grid.of([1.0, 1, math.inf, math.inf], [2, 3, 2], [0.0, 5.0, 5], ["nb", "nb"])
    assert twice == Grid.of([1.0, math.inf], [2, 3], [0.0, 5.0], "nb")


def test_the_table_has_the_mean_of_the_folds(found):
    summary = found.summary
    assert found.scores.shape[:2] == (9, 2)
    np.testing.assert_allclose(summary["log_likelihood"], found.scores.sum(axis=2).mean(axis=1))
    for row, setting in enumerate(found.settings):
        assert (summary["c"][row], summary["n_components"][row]) == (setting.c, setting.n_components)
    assert summary["difference"].max() == 0.0
    assert (summary["se_difference"] == 0.0).sum() == 1


@pytest.mark.filterwarnings("ignore:.* fits have not converged")
@pytest.mark.parametrize("holdout", ["counts", "samples"])
def test_what_is_held_out_is_scored_with_the_effects_of_batches_in_training(holdout):
    drawn = simulate(160, 30, 3, c=1.0, density=0.3, batches=2, batch_spread=1.0, random_state=1)
    options = {**QUICK, "size_factors": "total", "holdout": holdout, "init": "nndsvd", "max_iter": 20}
    known, unknown = (
        np.asarray(select(drawn.counts, [1, 2], 1.0, batch=batch, **options).summary["log_likelihood"])
        for batch in (drawn.batch, None)
    )
    assert (known > unknown).all()


def records(scores, settings):
    """Records of made-up scores, (settings, folds, samples)."""
    return [
        ScoredFit(fold, setting, np.asarray(by_sample, float), 1, True, 0.0, np.zeros(len(by_sample)), 0.1)
        for setting, folds in zip(settings, scores, strict=True)
        for fold, by_sample in enumerate(folds)
    ]


def test_standard_error_of_a_difference_is_that_of_paired_samples():
    rng = np.random.default_rng(0)
    shared, own = rng.normal(-100.0, 50.0, size=(2, 400)), rng.normal(-0.1, 1.0, size=(2, 400))
    settings = [Setting(1.0, 2), Setting(1.0, 3)]
    made = Selection.of(
        Grid.of(1.0, [2, 3]), records([shared + own, shared], settings), {"n_folds": 2, "holdout": "counts"}
    )
    summary = made.summary
    assert made.best == settings[1]
    assert summary["difference"][0] == pytest.approx(own.sum(axis=1).mean())
    # 400 samples whose mean over two folds has a spread of 1 / sqrt(2)
    assert summary["se_difference"][0] == pytest.approx(math.sqrt(400 / 2), rel=0.1)
    assert summary["se_folds"][0] == pytest.approx(abs(np.subtract(*own.sum(axis=1))) / 2)


def test_one_standard_error_takes_fewest_factors_then_penalty_then_c():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(1, 100))
    best, close, far = np.full((1, 100), 0.01), 0.5 * (noise - noise.mean()), noise - 5.0
    grid = Grid.of([0.1, 1.0, math.inf], [2, 3], [0.0, 5.0])

    def choice(*near):
        scores = {Setting(1.0, 3): best, **dict.fromkeys(near, close)}
        made = records([scores.get(setting, far) for setting in grid], grid)
        return Selection.of(grid, made, {"n_folds": 1, "holdout": "counts"}).one_se

    assert choice() == Setting(1.0, 3)
    assert choice(Setting(0.1, 2)) == Setting(0.1, 2)
    assert choice(Setting(0.1, 3, 5.0), Setting(math.inf, 3)) == Setting(0.1, 3, 5.0)
    assert choice(Setting(math.inf, 3)) == Setting(math.inf, 3)


def test_neither_the_order_of_the_values_nor_the_number_of_jobs_changes_a_bit(counts, found):
    other = select(counts, (4, 2, 3), [math.inf, 0.01, 1.0], **{**QUICK, "n_jobs": 3})
    assert other.settings == found.settings
    np.testing.assert_array_equal(other.scores, found.scores)


def tried(values, likelihoods, *, error=1.0):
    """Numbers of factors in the order in which a search tries them, given what each would score."""
    grid, order = Grid.of(1.0, values), []
    while new := next_numbers(grid, summary_of(order, likelihoods, error) if order else None):
        order += new
    return order


def summary_of(numbers, likelihoods, error):
    score = np.array([likelihoods(number) for number in numbers], dtype=float)
    difference = score - score.max()
    return {
        "n_components": np.array(numbers),
        "difference": difference,
        "se_difference": np.where(difference < 0, error, 0.0),
    }


@pytest.mark.parametrize("best", [2, 3, 5, 6, 9, 14, 23, 30])
def test_a_search_finds_the_peak_and_the_simplest_beside_it_with_few_fits(best):
    order = tried(range(2, 31), lambda number: -10.0 * abs(number - best))
    assert {best - 1, best, best + 1} & set(range(2, 31)) <= set(order)
    assert len(order) <= 13
    assert max(order) <= max(4 * best, 8)
    flat = tried(range(2, 31), lambda number: 10.0 * min(number - best, 0))  # no gain beyond the simplest
    assert {best - 1, best} & set(range(2, 31)) <= set(flat)


def test_a_search_among_few_values_ends_after_two_that_are_clearly_worse():
    assert tried([1, 2, 3, 4, 5, 6], lambda number: -10.0 * abs(number - 2)) == [1, 2, 3, 4]
    assert tried([1, 2, 3, 4, 5, 6], lambda number: -0.1 * abs(number - 2)) == [1, 2, 3, 4, 5, 6]


def test_what_is_not_tried_is_named_and_what_is_left_out_of_the_samples():
    y = np.tile(simulated(1.0, 2, shape=(45, 60), mean=6.0), (2, 1))
    more = {"size_factors": np.linspace(0.5, 1.5, 90), "batch": np.arange(90) % 2, "max_samples": 60}
    found = select(y, [1, 2, 6, 9, 12], 1.0, **QUICK | more)
    assert found.not_tried == [12]
    assert found.is_whole
    assert "Not tried: K = 12." in found.judgement.reasons
    assert "60 random samples of 90" in str(found)
    assert found.scores.shape[2] == 60
    with pytest.raises(ValueError, match="max_samples must be at least 2"):
        select(y, 1, max_samples=1)


class Stop(Exception):  # noqa: N818
    """Raised as soon as a fit is done."""


@pytest.mark.filterwarnings("ignore:.* fits have not converged")
@pytest.mark.parametrize("more", [{"noise": "auto", "batch": np.arange(24) % 2}, {"l1": [0.0, 1.0]}])
def test_every_finished_fit_counts(tmp_path, monkeypatch, more):
    """Stopped after every single fit, a selection fits nothing twice, and its result is the same."""
    data, path, done = simulated(1.0, 2, shape=(24, 12)), tmp_path / "selection.npz", []
    options = {**QUICK, "n_seeds": 2, "size_factors": "fit", "init": "rank1", "max_iter": 4, **more}
    for name in ("scored", "from_seed"):
        work = getattr(running.Fitter, name)
        monkeypatch.setattr(running.Fitter, name, lambda *a, work=work: done.append(a[1:2]) or work(*a))

    def stop(done, of_all):
        raise Stop

    whole = select(data, [1, 2], [1.0, math.inf], **options)
    n_fits = len(done)
    assert n_fits == len(whole.settings) * 2 + sum(one.n_components > 1 for one in whole.to_compare) * 2
    for number in range(1, n_fits + 1):
        with pytest.raises(Stop):
            select(data, [1, 2], [1.0, math.inf], resume=path, on_fit=stop, **options)
        assert len(done) == n_fits + number
    again = select(data, [1, 2], [1.0, math.inf], resume=path, **options)
    assert len(done) == 2 * n_fits
    np.testing.assert_array_equal(again.scores, whole.scores)
    np.testing.assert_array_equal(again.agreement, whole.agreement)


def test_resume_refuses_another_selection(counts, tmp_path):
    path = tmp_path / "without a seed.npz"  # goes on with that of the first call
    first, again = (select(counts, 2, 1.0, resume=path, **{**QUICK, "random_state": None}) for _ in range(2))
    np.testing.assert_array_equal(first.scores, again.scores)
    path = tmp_path / "selection.npz"
    select(counts, 2, 1.0, resume=path, **QUICK)
    for other, what in (
        ({"tol": 1e-3}, "settings"),
        ({"n_folds": 3}, "n_folds"),
        ({"random_state": 1}, "seed"),
    ):
        with pytest.raises(ValueError, match=f"is of another selection: .*{what}"):
            select(counts, 2, 1.0, resume=path, **{**QUICK, **other})
    for data, k, what in ((counts, 3, "grid"), (counts + 1, 2, "data")):
        with pytest.raises(ValueError, match=what):
            select(data, k, 1.0, resume=path, **QUICK)


def test_interrupt_stops_fits_under_way(counts, monkeypatch):
    """With nothing done, Ctrl-C is passed on, and no thread goes on working."""

    before = threading.active_count()

    def press(pending, **options):
        while threading.active_count() <= before:  # until fits are under way
            time.sleep(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "wait", press)
    with pytest.raises(KeyboardInterrupt):
        select(counts, range(5, 40), [0.001, 0.01, 0.1], **{**QUICK, "tol": 0.0, "max_iter": 10**6})
    assert threading.active_count() <= before


def test_an_error_in_a_fit_is_raised(counts, monkeypatch):
    def broken(self, *given):
        raise RuntimeError("broken")

    monkeypatch.setattr(running.Fitter, "scored", broken)
    with pytest.raises(RuntimeError, match="broken"):
        select(counts, [1, 2], [1.0, 10.0], **QUICK)


def test_fresh_starts_never_make_the_training_objective_worse(counts):
    """The best of a warm and a fresh start is at least as good on the training part as the warm one alone."""
    made, grid, objectives = folds_of(counts, 1), Grid.of([0.1, math.inf], [3, 5]), []
    settings = running.Settings(n_components=3, likelihood="exact", max_iter=100, tol=1e-6, engine="native")
    for n_starts in (1, 3):
        fitter = running.Fitter(made[0], grid, settings, 0, n_starts, lambda: False)
        fit, record = fitter.scored(Setting(math.inf, 3), None)
        more, _ = fitter.scored(Setting(math.inf, 5), fit)
        objectives.append((fit.objective, more.objective))
        assert record.setting == Setting(math.inf, 3)
    assert np.all(np.subtract(*objectives) >= -1e-6 * np.abs(objectives[0]))
    assert objectives[0][1] < objectives[0][0]  # factors were added


def test_fits_that_do_not_converge_are_counted(counts):
    with pytest.warns(ConvergenceWarning, match="2 of 2 fits have not converged"):
        found = select(counts, 3, 1.0, **{**QUICK, "max_iter": 2, "init": "rank1"})
    assert not found.numbers["converged"].any()
    assert "2 of 2 fits have not converged" in str(found)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"c": []}, ValueError, "c must hold at least one number"),
        ({"c": "1"}, TypeError, "c must be a number or a sequence"),
        ({"noise": np.array(["poisson", "gamma"])}, ValueError, "'auto' or several of them, got 'gamma'"),
        ({"noise": []}, ValueError, r"several of them, got \[\]"),
        ({"n_components": [2.5]}, TypeError, "n_components must be a whole number"),
        ({"l1": -1.0}, ValueError, "l1 must be finite and not negative"),
        ({"holdout": "features"}, ValueError, "holdout must be one of 'counts', 'samples'"),
        ({"n_folds": 6}, ValueError, "at most 1 / n_folds"),
        ({"n_folds": 1, "holdout": "samples"}, ValueError, "n_folds must be at least 2"),
        ({"init": "zeros"}, ValueError, "init must be one of"),
        ({"noise": "nb", "dispersion": 0.3}, ValueError, "dispersion must be 'feature' or 'shared' here"),
        ({"init": (np.ones((90, 2)), np.ones((120, 2)))}, ValueError, "init must be one of"),
        ({"engine": lambda *given: None}, ValueError, "engine must be one of"),
        ({"checkpoint": "file"}, TypeError, "checkpoint is not an option of the fits of a selection"),
        ({"mask": {"a": [0]}}, TypeError, "mask is not an option of the fits of a selection"),
        ({"resume": "/no/such/folder/file"}, FileNotFoundError, "resume is"),
    ],
)
def test_refused(counts, options, error, message):
    given = {"c": 1.0, "n_components": 2, **QUICK, **options}
    with pytest.raises(error, match=message):
        select(counts, given.pop("n_components"), given.pop("c"), **given)


# ---------- kinds of noise, compared with each other on the same held-out counts

NOISE = {**QUICK, "init": "nndsvd", "noise": np.array(["nb", "poisson"])}


def drawn(dispersion):
    rng = np.random.default_rng(0)
    means = 3.0 * rng.dirichlet(np.full(2, 0.3), 60) @ rng.gamma(1.0, 2.0, (2, 40))
    return rng.poisson(means * rng.gamma(1.0 / dispersion, dispersion, means.shape) if dispersion else means)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise") / "state.npz"
    return select(drawn(0.5), [1, 2, 3], np.inf, resume=path, **NOISE), path


def test_both_kinds_are_in_one_table_and_the_data_choose(both):
    selection, path = both
    assert list(selection.summary["noise"]) == ["poisson"] * 3 + ["nb"] * 3
    assert selection.best == selection.judgement.setting == Setting(np.inf, 2, 0.0, "nb")
    assert "noise = nb predicts held-out counts best; noise = poisson is" in str(selection)
    assert Log1pNMF(**selection.one_se.parameters).noise == "nb"
    for phi, noise, auto in ((0.0, "poisson", np.array("auto")), (0.5, "nb", ("auto",))):
        default = select(drawn(phi), [1, 2, 3], np.inf, **NOISE | {"noise": auto})
        assert default.judgement.setting == Setting(np.inf, 2, 0.0, noise)
        assert default.judgement.reasons[-1].startswith("noise='auto' chose")
    again = Selection.load(path)
    assert (again.settings, again.is_whole) == (selection.settings, True)
    np.testing.assert_array_equal(again.scores, selection.scores)
    labels = [text.get_text() for text in log1pnmf.pl.select(selection).axes[0].get_legend().get_texts()]
    assert all(any(noise in label for label in labels) for noise in ("poisson", "nb"))


def made_up(rows, sizes="total"):
    """A selection with one fold: held-out and training log-likelihood of every setting, over ten samples."""
    shares = np.linspace(0.5, 1.5, 10) / 10.0
    records = [
        ScoredFit(0, setting, held * shares, 1, True, 0.0, fitted * shares, 0.1)
        for setting, (held, fitted) in rows.items()
    ]
    grid = Grid.of({one.c for one in rows}, {one.n_components for one in rows}, noise="nb")
    about = {"n_folds": 1, "holdout": "counts", "settings": {"size_factors": sizes}, "n_samples": 10}
    return Selection.of(grid, records, about | {"grid": asdict(grid)})


def test_training_counts_choose_among_values_of_c_but_not_of_k():
    """With the same number of parameters; between numbers of factors only held-out counts do."""
    few, many = ({c: Setting(c, K, noise="nb") for c in (0.1, 1.0, 9.0)} for K in (2, 3))
    rows = {few[0.1]: (-97.0, -930.0), few[1.0]: (-100.0, -900.0), few[9.0]: (-99.0, -980.0)}
    rows |= {many[0.1]: (-110.0, -700.0), many[1.0]: (-120.0, -720.0)}
    found = made_up(rows)
    assert found.best == few[1.0]
    assert "c = 1 predicts training and held-out counts best" in str(found)
    scores = dict(zip(found.settings, found.scores.sum(axis=(1, 2)), strict=True))
    assert scores == {
        few[0.1]: pytest.approx(-127.0),
        few[1.0]: pytest.approx(-100.0),
        few[9.0]: pytest.approx(-179.0),
        many[0.1]: pytest.approx(-110.0),
        many[1.0]: pytest.approx(-140.0),
    }


@pytest.mark.parametrize(("sizes", "best"), [("total", 1.0), ("fit", np.inf)])
def test_fitted_sizes_are_parameters_that_c_inf_does_not_have(sizes, best):
    rows = {Setting(1.0, 2, noise="nb"): (-100.0, -900.0), Setting(np.inf, 2, noise="nb"): (-99.0, -950.0)}
    assert made_up(rows, sizes).best.c == best


def test_fitted_counts_have_the_likelihood_of_the_fit():
    counts = drawn(0.5)
    fit = log1pnmf.fit_log1p_nmf(counts, 2, noise="nb", init="nndsvd", tol=1e-3, n_jobs=1)
    by_sample = training_by_sample(fit, running.Counts.from_any(counts))
    assert by_sample.sum() == pytest.approx(fit.log_likelihood, rel=1e-9)


def table(rows, stability=None):
    """Columns of a summary; rows are (c, K, difference, standard error of it)."""
    c, numbers, difference, error = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    columns = {"c": c, "n_components": numbers, "l1": np.zeros(len(c)), "noise": ["poisson"] * len(c)}
    columns |= {"difference": difference, "se_difference": error}
    if stability is not None:
        columns |= {"stability": np.array(stability), "se_stability": np.full(len(c), 0.01)}
    return columns


CLEAR = [(1.0, 2, -90.0, 9.0), (1.0, 3, 0.0, 0.0), (1.0, 4, -40.0, 8.0)]


def test_a_clear_answer_is_given_with_its_reason():
    clear = judge(table(CLEAR, [0.7, 0.99, 0.8]))
    assert clear.setting == Setting(1.0, 3)
    assert clear.clear
    assert "K = 4 is 5.0 standard errors behind" in clear.reasons[0]
    assert "find the same factors (stability 0.99)" in clear.reasons[1]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1.0, 2, -90.0, 9.0), (1.0, 3, 0.0, 0.0)], "K = 3 predicts best, the largest tried."),
        ([(1.0, 2, 0.0, 0.0), (1.0, 3, -90.0, 9.0)], "K = 2 predicts best, the smallest tried: try smaller"),
        ([(0.1, 3, 0.0, 0.0), (1.0, 3, -90.0, 9.0)], "c = 0.1 predicts best, the smallest tried"),
        ([(0.1, 3, -90.0, 9.0), (1.0, 3, 0.0, 0.0)], "c = 1 predicts best, the largest tried"),
    ],
)
def test_the_best_at_the_end_of_the_grid_is_no_answer(rows, words):
    clear = judge(table(rows))
    assert (clear.setting, clear.clear) == (None, False)
    assert clear.headline.startswith("The data do not decide")
    assert words in clear.reasons[0]
    overdispersed = "compare noise='nb'"  # splits of such counts want ever more factors, and a small c
    assert (overdispersed in clear.reasons[0]) == ("K = 3" in words or "c = 0.1" in words)
    assert overdispersed not in judge(table(rows), holdout="samples").reasons[0]


def test_where_prediction_keeps_growing_stability_and_size_are_named():
    rows = table([(1.0, 2, -90.0, 9.0), (1.0, 3, -40.0, 8.0), (1.0, 4, 0.0, 0.0)], [1.0, 0.95, 0.6])
    rows["smallest_share"] = np.array([0.4, 0.2, 0.012])
    reason = judge(rows).reasons[0]
    assert (
        "K = 3 has stability 0.95, and its smallest factor carries 20.0% of the signal; K = 4 has" in reason
    )
    assert "stability 0.60, and its smallest factor carries 1.2%" in reason
    assert "n_seeds=3 measures it" in judge(rows | {"stability": np.full(3, np.nan)}).reasons[0]


def test_an_end_of_what_is_possible_is_an_answer():
    """There are no fewer factors than one, and there is no larger c than inf."""
    assert judge(table([(1.0, 1, 0.0, 0.0), (1.0, 2, -90.0, 9.0)])).clear
    assert judge(table([(1.0, 3, -90.0, 9.0), (math.inf, 3, 0.0, 0.0)])).clear


def test_settings_within_error_of_each_other_are_not_told_apart():
    rows = [(1.0, 2, -90.0, 9.0), (1.0, 3, -4.0, 5.0), (1.0, 4, 0.0, 0.0), (1.0, 5, -30.0, 6.0)]
    clear = judge(table(rows))
    assert (clear.setting, clear.clear) == (Setting(1.0, 3), False)  # the simplest
    assert "do not decide which K is best" in clear.headline
    assert "K = 3 and 4 predict held-out counts equally well" in clear.reasons[0]
    at_the_end = judge(table(rows[1:3]), holdout="samples")
    assert "held-out samples equally well" in at_the_end.reasons[0]
    assert at_the_end.reasons[0].endswith("; 4 is the largest tried.")


def test_fewer_factors_that_are_clearly_more_stable_contradict():
    clear = judge(table(CLEAR, [0.97, 0.6, 0.5]))
    assert clear.setting is None
    assert "contradict" in clear.headline
    assert "stability 0.60 at K = 3, 0.97 at K = 2" in clear.reasons[-1]
    hardly = judge(table(CLEAR, [0.69, 0.6, 0.5]))  # within the error of stability
    assert hardly.setting == Setting(1.0, 3)
    assert "Some factors change with the seed" in hardly.reasons[-1]


SEEDED = {"n_folds": 2, "n_starts": 1, "n_seeds": 3, "tol": 1e-4, "size_factors": "none", "n_jobs": 1}


@pytest.fixture(scope="module")
def blocks():
    """Three groups of samples, each with features of its own."""
    rng = np.random.default_rng(0)
    rates = np.full((60, 45), 0.3)
    for k in range(3):
        rates[20 * k : 20 * k + 20, 15 * k : 15 * k + 15] = rng.gamma(4.0, 2.0, size=15)
    return rng.poisson(rates)


@pytest.fixture(scope="module")
def clear(blocks):
    return select(blocks, [1, 2, 3, 4], math.inf, **SEEDED)


def test_stability_and_likelihood_agree_on_what_is_there(clear):
    stability = clear.summary["stability"]
    assert clear.judgement.setting == Setting(math.inf, 3)
    assert stability[2] > 0.99 > stability[1]
    assert stability[0] == 1.0  # one factor alone
    assert np.isnan(stability[3])  # more factors than the choice
    assert str(clear.judgement) in str(clear)


def test_without_seeds_nothing_is_said_about_stability(blocks):
    plain = select(blocks, [2, 3], math.inf, **{**SEEDED, "n_seeds": 0})
    assert np.isnan(plain.summary["stability"]).all()
    assert "stability 0" not in str(plain.judgement)
    with pytest.raises(ValueError, match="n_seeds must be 0 or at least 2"):
        select(blocks, [2, 3], math.inf, **{**SEEDED, "n_seeds": 1})


def test_stability_does_not_depend_on_how_it_is_run_and_every_fit_is_told_of(blocks, clear):
    told = []
    again = select(
        blocks, [1, 2, 3, 4], math.inf, on_fit=lambda *n: told.append(n), **{**SEEDED, "n_jobs": 2}
    )
    np.testing.assert_array_equal(again.agreement, clear.agreement)
    n_fits = 4 * 2 + 2 * 3  # folds, and seeds of the choice and of one factor fewer
    assert [done for done, _ in told] == list(range(1, n_fits + 1))
    assert told[-1] == (n_fits, n_fits)
    assert again.is_whole
