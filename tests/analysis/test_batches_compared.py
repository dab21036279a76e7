"""Batches where fits are compared: selection, cross-validation, sweeps; and simulated batches."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.model_selection import cross_validate

from log1pnmf import Log1pNMF, select
from log1pnmf.analysis.stability import sweep
from log1pnmf.model.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DRAWN = simulate(160, 30, 3, c=1.0, density=0.3, batches=2, batch_spread=1.0, random_state=1)
QUICK = {"init": "nndsvd", "max_iter": 20, "tol": 1e-4}


@pytest.mark.parametrize("holdout", ["counts", "samples"])
def test_what_is_held_out_is_scored_with_the_effects_of_training(holdout):
    parameters = {"holdout": holdout, "n_folds": 2, "n_starts": 1, "n_seeds": 0, "n_jobs": 1, **QUICK}
    scores = [
        np.asarray(select(DRAWN.counts, [1, 2], 1.0, batch=batch, **parameters).summary["log_likelihood"])
        for batch in (DRAWN.batch, None)
    ]
    assert (scores[0] > scores[1]).all()


def test_cross_validation_routes_batches():
    with config_context(enable_metadata_routing=True):
        model = Log1pNMF(2, n_jobs=1, **QUICK)
        known = cross_validate(model, DRAWN.counts, cv=2, params={"batch": DRAWN.batch})
        unknown = cross_validate(model, DRAWN.counts, cv=2)
    assert (known["test_score"] > unknown["test_score"]).all()


def test_a_sweep_has_batches():
    found = sweep(DRAWN.counts, 2, [1.0, np.inf], batch=DRAWN.batch, n_jobs=1, **QUICK)
    assert [fit.batches.n_batches for fit in found.fits] == [2, 2]


def test_drawn_batches_have_log_normal_effects_and_one_batch_has_none():
    effects = simulate(2, 4000, 1, batches=3, batch_spread=0.5).batch_effects
    assert np.log(effects).sum(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert np.log(effects).std() == pytest.approx(0.5 * np.sqrt(2.0 / 3.0), rel=0.03)
    plain, one = simulate(300, 20, 2), simulate(300, 20, 2, batches=1, batch_spread=2.0)
    assert (plain.counts != one.counts).nnz == 0
    drawn = simulate(300, 20, 4, density=0.4, batches=2, batch_spread=1.0)
    found = np.log([drawn.counts[drawn.batch == b].mean(axis=0) for b in (0, 1)])
    truth = np.log(drawn.batch_effects)
    assert np.corrcoef(found[0] - found[1], truth[0] - truth[1])[0, 1] > 0.9
