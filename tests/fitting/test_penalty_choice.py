"""l1="auto": the penalty that held-out counts allow."""

import re

import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf


@pytest.fixture(scope="module")
def simulated():
    """Counts of four sparse factors at c = 1, and these factors."""
    rng = np.random.default_rng(0)
    loadings = rng.beta(0.5, 1.0, size=(150, 4))
    factors = rng.uniform(0.5, 2.0, size=(200, 4)) * (rng.uniform(size=(200, 4)) < 0.15)
    loadings[:, 0], factors[:, 0] = 1.0, rng.gamma(2.0, 0.1, size=200)
    return rng.poisson(np.expm1(loadings @ factors.T)), factors


@pytest.fixture(scope="module")
def chosen(simulated):
    return fit_log1p_nmf(simulated[0], 4, l1="auto", size_factors="none")


def recovered(fit, factors):
    return np.corrcoef(fit.factors.T, factors.T)[:4, 4:].max(axis=0).mean()


def test_a_penalty_that_costs_nothing_finds_sparse_factors_better(simulated, chosen):
    counts, factors = simulated
    without = fit_log1p_nmf(counts, 4, size_factors="none")
    assert chosen.settings.l1 > 0.0
    assert (chosen.factors == 0.0).mean() > (without.factors == 0.0).mean()
    assert recovered(chosen, factors) > recovered(without, factors)
    assert any(f"l1='auto' chose {chosen.settings.l1:g}, of 0, " in note for note in chosen.messages)


def test_the_fit_is_an_optimum_of_the_penalty_which_was_chosen_and_repeats(simulated, chosen):
    """It starts from a fit without a penalty: another start may lead to where it predicts worse."""
    assert (chosen.converged, chosen.asked.init, chosen.settings.init) == (True, "auto", "given")
    by_number = fit_log1p_nmf(simulated[0], 4, l1=chosen.settings.l1, init=chosen, size_factors="none")
    assert by_number.objective == pytest.approx(chosen.objective, rel=1e-7)
    again = fit_log1p_nmf(simulated[0], 4, l1="auto", size_factors="none")
    assert np.array_equal(chosen.factors, again.factors)
    assert "1 start (auto)" in Log1pNMF.of(chosen).summary()
    model = Log1pNMF(4, l1="auto", init=chosen, size_factors="none").fit(simulated[0])
    assert (model.get_params()["l1"], model.fit_.settings.l1) == ("auto", chosen.settings.l1)


def test_counts_without_structure_keep_their_prediction():
    counts = np.random.default_rng(1).poisson(2.0, size=(80, 60))
    note = fit_log1p_nmf(counts, 2, l1="auto").messages[0].replace(",", "")
    found = re.search(r"samples\) by (\S+) \(standard error (\S+)\)", note)
    assert float(found[1]) >= -float(found[2])


def test_what_cannot_be_chosen_is_refused(simulated):
    counts, factors = simulated
    with pytest.raises(ValueError, match="l1 must be one of 'auto' or a number, got 'atuo'"):
        fit_log1p_nmf(counts, 4, l1="atuo")
    with pytest.raises(ValueError, match="l1='auto' chooses for factors of which nothing is known"):
        fit_log1p_nmf(counts, 4, l1="auto", fixed_factors=factors[:, :1])
