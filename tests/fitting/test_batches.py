"""Fits with batches: effects are found and told apart from factors, kept in files, and resumed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from log1pnmf import Log1pNMF, fit_log1p_nmf, open_counts
from log1pnmf.analysis import batch_findings, confounded_groups
from log1pnmf.counts import Counts
from log1pnmf.model.batch_effects import update_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.model.problem import Problem
from log1pnmf.report import write_report

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N, M, K, B = 240, 50, 3, 3


def simulated(seed=0):
    """Counts of three kinds of samples in unequal parts of three batches, with and without effects."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, B, N)
    kinds = np.array([rng.choice(K, p=np.roll([0.6, 0.3, 0.1], b)) for b in labels])
    loadings = 0.02 * rng.random((N, K))
    loadings[np.arange(N), kinds] = rng.uniform(0.6, 1.0, N)
    factors = np.full((M, K), 1.0) + 2.0 * (rng.random((M, K)) < 0.3)
    effects = np.exp(rng.normal(0.0, 0.5, (B, M)))
    effects /= np.exp(np.log(effects).mean(axis=0))
    rates = ShiftedLog(1.0).inverse(loadings @ factors.T)
    names = np.array(["north", "east", "west"])[labels]
    return rng.poisson(rates), rng.poisson(rates * effects[labels]), names, loadings, effects


PLAIN, COUNTS, NAMES, LOADINGS, EFFECTS = simulated()


def recovery(fit):
    both = np.corrcoef(LOADINGS.T, fit.loadings.T)[:K, K:]
    rows, columns = linear_sum_assignment(-both)
    return both[rows, columns].mean()


def fitted(**parameters):
    given = {"batch": NAMES, "init": "nndsvd", "max_iter": 60, "tol": 1e-6, "n_jobs": 1} | parameters
    return fit_log1p_nmf(COUNTS, K, **given)


@pytest.fixture(scope="module")
def fit():
    return fitted()


def test_effects_are_found_and_loadings_are_those_without_batches(fit):
    order = [fit.batches.names.index(name) for name in ("north", "east", "west")]
    off = np.log(fit.batches.effects[order] / EFFECTS)
    off -= (off @ COUNTS.sum(axis=0) / COUNTS.sum())[:, None]  # size factors have the level of a batch
    assert np.median(np.abs(off)) < 0.1
    without = fit_log1p_nmf(PLAIN, K, init="nndsvd", max_iter=60, tol=1e-6, n_jobs=1)
    assert recovery(fit) > recovery(without) - 0.02
    assert recovery(fit) > recovery(fitted(batch=None))
    assert np.log(fit.batches.effects).sum(axis=0) == pytest.approx(0.0, abs=1e-9)
    objective = fit.history["objective"]
    assert (np.diff(objective) <= 1e-9 * np.abs(objective[1:])).all()
    assert fit.objective == pytest.approx(fit.batches.cost - fit.log_likelihood, rel=1e-9)


@pytest.mark.parametrize("sizes", [np.ones(N), "fit"], ids=["true", "fit"])
def test_sizes_that_are_not_totals_leave_the_level_of_a_batch_to_its_features(sizes):
    """All samples are as deep. A total would have the effects of the features with the largest counts."""
    found = fitted(size_factors=sizes, max_iter=100)
    order = [found.batches.names.index(name) for name in ("north", "east", "west")]
    off = np.log(found.batches.effects[order] / EFFECTS)
    assert np.median(np.abs(off)) < 0.1
    objective = found.history["objective"]
    assert (np.diff(objective) <= 1e-9 * np.abs(objective[1:])).all()


@pytest.mark.parametrize(("c", "likelihood"), [(1.0, "adaptive"), (math.inf, "exact")])
def test_a_converged_fit_has_converged_in_its_effects_too(c, likelihood):
    first = fitted(c=c, likelihood=likelihood, max_iter=500, tol=1e-8)
    assert first.stopped == "converged"
    more = fitted(c=c, likelihood=likelihood, init=first, max_iter=1000, tol=0.0)
    assert first.objective - more.objective < 1e-5 * abs(first.objective)
    assert np.abs(np.log(more.batches.effects / first.batches.effects)).max() < 0.01


def test_effects_converge_with_dispersions_too():
    """Found only now and then, they took hundreds of iterations, and stopped short."""
    given = {"noise": "nb", "dispersion": np.linspace(0.05, 0.5, M)}
    first = fitted(**given, max_iter=120, tol=1e-9)
    assert first.stopped == "converged"
    objective = first.history["objective"]
    assert (np.diff(objective) <= 1e-9 * np.abs(objective[1:])).all()
    more = fitted(**given, init=first, max_iter=400, tol=0.0)
    assert first.objective - more.objective < 1e-7 * abs(first.objective)


def test_one_batch_is_no_batch_to_the_last_bit():
    one, none = fitted(batch=np.repeat("a", N), max_iter=8), fitted(batch=None, max_iter=8)
    assert (one.loadings == none.loadings).all()
    assert (one.factors == none.factors).all()
    assert (one.batches.effects == 1.0).all()


def test_batches_with_other_names_give_the_same_fit_and_other_forms_of_the_zeros_about_the_same(fit):
    other = fitted(batch=[{"north": 2, "east": 1, "west": 0}[name] for name in NAMES])
    assert (other.loadings == fit.loadings).all()
    assert (other.batches.effects == fit.batches.effects).all()
    for likelihood in ("adaptive", "chebyshev"):
        found = fitted(likelihood=likelihood)
        assert np.median(np.abs(np.log(found.batches.effects / fit.batches.effects))) < 0.02


def test_new_samples_of_a_known_batch_have_the_loadings_of_training(fit):
    model = Log1pNMF.of(fit)
    same = model.transform(COUNTS, batch=NAMES, prior=0)
    assert same == pytest.approx(fit.loadings, abs=0.02)
    assert (model.transform(COUNTS, batch=np.repeat("south", N)) == model.transform(COUNTS)).all()
    assert (model.transform(COUNTS, batch="south") == model.transform(COUNTS)).all()
    assert model.score(COUNTS, batch=NAMES) > model.score(COUNTS)


DISPERSED = {"noise": "nb", "dispersion": np.linspace(0.01, 0.5, M)}


@pytest.mark.parametrize("parameters", [{"c": math.inf}, {"likelihood": "adaptive"}, DISPERSED])
def test_a_streamed_fit_is_the_fit_of_the_whole(chunks_of, parameters):
    chunks = open_counts(chunks_of(sparse.csr_array(COUNTS), [0, 70, 160, N]))
    first = fitted(**parameters)
    tight = {"init": first, "max_iter": 400, "tol": 1e-10} | parameters
    whole, streamed = fitted(**tight), fit_log1p_nmf(chunks, K, batch=NAMES, n_jobs=1, **tight)
    assert streamed.objective == pytest.approx(whole.objective, rel=1e-7)
    assert streamed.batches.effects == pytest.approx(whole.batches.effects, rel=5e-3)
    assert any("3 batches: without their effects" in one for one in streamed.messages)


def test_the_estimator_shows_effects_with_names(fit):
    model = Log1pNMF.of(fit)
    assert list(model.batch_effects_.index) == list(fit.batches.names)
    assert np.asarray(model.batch_effects_) == pytest.approx(fit.batches.effects)
    assert Log1pNMF.of(fitted(batch=None, max_iter=2)).batch_effects_ is None
    assert "batches         3, 90% of their effects in" in model.summary()
    told = model.summary().split("Batches (samples, largest effects on rates of features)")[1].splitlines()
    assert [line.split()[0] for line in told[1:4]] == list(fit.batches.names)
    most = np.abs(np.log(fit.batches.effects[0])).argmax()
    assert f"  {most} ({fit.batches.effects[0, most]:.2g} times)" in told[1]


@pytest.mark.parametrize("noise", [POISSON, NegativeBinomial(np.linspace(0.1, 0.6, M))])
@pytest.mark.parametrize("c", [1.0, math.inf])
def test_renewed_effects_are_a_minimum(noise, c):
    rng = np.random.default_rng(4)
    loadings, factors = rng.uniform(0.2, 1.0, (N, K)), rng.uniform(0.2, 1.0, (M, K))
    batches = Batches.of(NAMES, COUNTS.shape, 3.0)
    problem = Problem(Counts.from_any(COUNTS), np.ones(N), ShiftedLog(c), noise=noise, batches=batches)

    def objective(batches):
        return negative_log_likelihood(replace(problem, batches=batches), loadings, factors) + batches.cost

    found, gain = update_effects(problem, loadings, factors)
    assert objective(batches) - objective(found) == pytest.approx(gain, rel=1e-6)
    weights = COUNTS.sum(axis=0) / COUNTS.sum()
    assert np.log(found.effects) @ weights == pytest.approx(0.0, abs=1e-9)
    for _ in range(3):
        aside = 0.05 * rng.normal(size=found.effects.shape)
        aside -= aside.mean(axis=0)
        aside -= (aside @ weights)[:, None]
        moved = Batches(found.labels, found.effects * np.exp(aside), 3.0)
        assert objective(moved) > objective(found)
    _, more = update_effects(replace(problem, batches=found), loadings, factors)
    assert more <= 1e-5 * gain


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (NAMES[:-1], "one label for each of the 240 samples"),
        ("donor", "one label for each of the 240 samples, got 'donor'"),
        ([None, *NAMES[1:]], "1 have none"),
    ],
)
def test_labels_that_make_no_sense_are_refused(batch, message):
    with pytest.raises(ValueError, match=message):
        fitted(batch=batch, max_iter=1)


def test_findings_say_what_batches_take_of_the_deviance(fit):
    found = batch_findings(fit, COUNTS, n_top=2)
    *excess, total = found["excess"]
    assert sum(found["n_samples"][:-1]) == found["n_samples"][-1] == N
    assert 0.0 < min(excess) <= total <= max(excess)
    assert [len(features) for features in found["features"]] == [2] * len(excess) + [0]
    said = next(one for one in fit.messages if "batches: without" in one)
    assert f"{total:.1%} larger" in said
    assert np.isnan(batch_findings(fit)["excess"]).all()
    with pytest.raises(ValueError, match="has no batches"):
        batch_findings(fitted(batch=None, max_iter=1))


@pytest.mark.parametrize(
    "column", [np.linspace(0.1, 0.7, 60), np.arange(60), list(np.linspace(0.0, 1.0, 60))]
)
def test_a_continuous_column_is_not_a_batch(column):
    counts = np.random.default_rng(0).poisson(3.0, (60, 5))
    with pytest.raises(ValueError, match=r"numbers with 60 values in 60 samples; cut them into ranges"):
        fit_log1p_nmf(counts, 1, batch=column)
    for batch, n in ((np.asarray(column).astype(str), 60), (np.arange(60) % 7, 7)):
        assert fit_log1p_nmf(counts, 1, batch=batch, max_iter=1, tol=1.0).batches.n_batches == n


@pytest.mark.parametrize("c", [0.1, math.inf])
def test_batches_of_a_fit_without_deviance_are_told_without_a_share_of_it(c):
    fit = fit_log1p_nmf(np.tile([1, 2, 3, 5], (20, 1)), 3, c=c, batch=np.arange(20) % 4)
    assert any("4 batches: this fit leaves no deviance; features" in message for message in fit.messages)


def test_groups_that_coincide_with_batches_are_a_warning_where_groups_are_compared(fit, tmp_path):
    groups = np.where(NAMES == "west", "treated", "control")
    donors = np.arange(N) % 6
    assert confounded_groups(fit, np.resize(["a", "b"], N)) == []
    age = np.unique(NAMES, return_inverse=True)[1] * 10.0 + 20.0
    with pytest.warns(UserWarning, match="the number is the same in all samples of each batch"):
        Log1pNMF.of(fit).usage(age, replicate=donors + 10 * age)
    with pytest.warns(UserWarning, match="'treated' is all of batch 'west'"):
        Log1pNMF.of(fit).usage(groups, replicate=np.char.add(groups, donors.astype(str)))
    page = write_report(tmp_path / "report.html", fit, groupby=groups, counts=COUNTS, evidence=[None])
    text = " ".join(page.read_text().replace("\xa0", " ").split())
    assert '<section id="batches">' in text
    assert "is all of batch &#39;west&#39;" in text
    assert "Histogram of the effects of batches on features" in text
    plain = write_report(tmp_path / "plain.html", fitted(batch=None, max_iter=1), date="2026-01-01")
    assert 'id="batches"' not in plain.read_text()
