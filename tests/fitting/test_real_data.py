"""Laws that hold on real counts: the objective never rises, and one seed gives one result."""

import math
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from log1pnmf import fit_log1p_nmf, shares
from log1pnmf.analysis import effective_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.datasets import pancreas
from log1pnmf.fitting.settings import Settings
from log1pnmf.model.objective import negative_log_likelihood

SMALL = ("associated_press", "baron_human_pancreas", "bbc_news", "mcf7_bulk", "pbmc_facs", "pcawg_sbs96")
LARGE = ("her2st_spatial", "kang_pbmc_ifnb_14k", "newsgroups20")
SHIFTS = (1e-3, 1.0, math.inf)


def watched(counts, c, n_iter, **options):
    """Fit in one phase: the objective never rises; iterations are lost to extrapolations, not two in a row.

    What follows a lost one is a plain update, so this says that plain updates always lower the objective.
    (Otherwise the solver would end early, which is right only where nothing but rounding is left.)
    """
    options = {"likelihood": "exact" if c < 1 else "chebyshev", "tol": 0.0, "random_state": 0, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # not meant to converge
        fit = fit_log1p_nmf(counts, 4, c=c, max_iter=n_iter, **options)
    objective, indices = fit.history["objective"], fit.history["iteration"]
    assert (objective == fit.history["loss"]).all()  # nothing is penalised here
    assert (np.diff(objective) <= 1e-13 * abs(objective[0])).all()
    assert np.isfinite(objective).all()
    assert (np.diff(indices) <= 2).all()
    assert indices[-1] >= n_iter - 1 or fit.history["relative_change"][-1] < 1e-12
    return fit


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["exact", "chebyshev"])
@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("name", SMALL)
def test_objective_never_rises_on_the_whole(real_data, name, c, likelihood, monkeypatch):
    """All zeros are visited from the beginning: where adaptive zeros end, the objective changes."""
    monkeypatch.setattr(Settings, "begins_adaptive", lambda *_: False)
    watched(real_data(name).X, c, 25, likelihood=likelihood)


@pytest.mark.slow
@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("name", LARGE)
def test_objective_never_rises_on_the_whole_of_large_sets(real_data, name, c):
    watched(real_data(name).X, c, 3 if c < 1 else 20)


@pytest.mark.parametrize("c", SHIFTS)
def test_objective_never_rises_through_restarts(real_data, c):
    """Long enough for extrapolations to be dropped, with what is reported checked against plain NumPy."""
    counts = real_data("bbc_news").X
    counts = counts[np.linspace(0, counts.shape[0] - 1, 60).astype(int)]  # spread over all groups
    counts = counts[:, np.asarray(counts.sum(axis=0)).ravel() > 0]
    fit = watched(counts, c, 120, init="rank1")
    assert (np.diff(fit.history["iteration"]) == 2).sum() >= 2  # dropped extrapolations
    if fit.log_likelihood is not None:
        problem, factors = fit.problem(Counts.from_any(counts)), fit.factors / fit.link.alpha
        truth = negative_log_likelihood(problem, fit.loadings, factors)
        assert fit.log_likelihood == pytest.approx(-truth, rel=1e-10)


@pytest.mark.filterwarnings("ignore:not converged")
def test_a_known_design_with_dispersions(real_data):
    """Steps from a crude start went too far, and dispersions were not numbers."""
    data = real_data("mcf7_bulk")
    known = {"everyone": 1.0} | {name: np.asarray(data.obs[name], dtype=float) for name in ("RA", "TGFb")}
    options = {"likelihood": "exact", "noise": "nb", "init": "nndsvd", "max_iter": 9}
    fit = fit_log1p_nmf(data.X[:, ::5], 3, fixed_loadings=known, **options)
    assert np.isfinite(fit.dispersion).all()
    assert np.isfinite(fit.objective)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_cells_combine_more_factors_as_c_falls():
    """The first picture of README and site; in the best of ten starts (2.0, 2.7 and 5.4 factors)."""
    counts, how = pancreas().counts[::6], {"init": "random", "n_init": 10, "max_iter": 100}
    fits = [fit_log1p_nmf(counts, 9, c=c, random_state=0, **how) for c in (math.inf, 1.0, 0.001)]
    few, some, many = (effective_factors(shares(fit)).mean() for fit in fits)
    assert 1.2 * few < some < many / 1.5
