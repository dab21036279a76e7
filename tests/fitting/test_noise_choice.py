"""``noise="auto"``: the noise that predicts held-out counts better, and the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf.fitting import fit_counts as noise_choice
from log1pnmf.fitting.fit_counts import asked_again

pytestmark = pytest.mark.filterwarnings("ignore:not converged")
OPTIONS: dict[str, Any] = {"c": float("inf"), "init": "nndsvd", "max_iter": 30, "tol": 1e-5}


def drawn(dispersion: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    means = 3.0 * rng.dirichlet(np.full(3, 0.3), 60) @ rng.gamma(1.0, 2.0, (3, 40))
    if dispersion:
        means = means * rng.gamma(1.0 / dispersion, dispersion, means.shape)
    return rng.poisson(means)


def fitted(counts: Any, noise: str, **options: Any) -> lp.Fit:
    return lp.fit_log1p_nmf(counts, 3, noise=noise, **OPTIONS, **options)


@pytest.mark.parametrize(("dispersion", "expected"), [(0.0, "poisson"), (0.5, "nb")])
def test_the_data_choose_and_the_fit_is_the_same_as_with_that_noise(dispersion: float, expected: str) -> None:
    counts = drawn(dispersion)
    fit, named = fitted(counts, "auto"), fitted(counts, expected)
    assert (fit.asked.noise, fit.settings.noise) == ("auto", expected)
    assert (fit.loadings == named.loadings).all()
    assert (fit.factors == named.factors).all()
    assert (fit.dispersion is None) == (expected == "poisson")
    name = {"poisson": "Poisson", "nb": "negative binomial"}[expected]
    assert f"noise='auto' took {name} noise" in lp.Log1pNMF.of(fit).summary()


def test_poisson_counts_are_hardly_ever_called_overdispersed() -> None:
    took = [fitted(drawn(0.0, seed), "auto").settings.noise for seed in range(1, 5)]
    assert took.count("poisson") >= 3


def test_it_is_kept_in_files_and_not_asked_again_where_a_fit_is_repeated(tmp_path: Any) -> None:
    fit = fitted(drawn(0.5), "auto", dispersion="shared")
    fit.save(tmp_path / "fit.npz")
    again = lp.Fit.load(tmp_path / "fit.npz")
    assert (again.asked.noise, again.settings.noise, again.messages) == ("auto", "nb", fit.messages)
    assert asked_again(again)[0].noise == "nb"
    assert len(np.unique(fit.dispersion)) == 1
    poisson = fitted(drawn(0.0), "auto", dispersion="shared")
    assert asked_again(poisson)[0].noise == "poisson"


def test_some_samples_of_many_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_choice, "FEWEST_SAMPLES", 30)
    monkeypatch.setattr(noise_choice, "MOST_ENTRIES", 1)
    batch, sizes = np.repeat(["a", "b"], 30), np.linspace(0.5, 1.5, 60)
    fit = fitted(drawn(0.5), "auto", batch=batch, size_factors=sizes, l1=1.0)
    assert "held-out counts of 30 samples" in fit.messages[0]
    assert fit.settings.noise == "nb"


def test_counts_in_chunks() -> None:
    fit = fitted(lp.open_counts(drawn(0.5)), "auto")
    assert (fit.settings.engine, fit.settings.noise) == ("streaming", "nb")


def test_what_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(ValueError, match="use noise='nb' to give one"):
        fitted(drawn(0.5), "auto", dispersion=0.3)
    with pytest.raises(ValueError, match="whole numbers"), pytest.warns(UserWarning, match="counts"):
        fitted(drawn(0.5) * 0.5, "auto")
    with pytest.raises(ValueError, match="supports Poisson noise only; with noise='auto'"):
        fitted(drawn(0.5), "auto", likelihood="chebyshev")
