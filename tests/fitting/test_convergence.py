"""When a fit may say that it has converged, and what it says otherwise."""

import math
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from log1pnmf import fit_log1p_nmf
from log1pnmf.engines import native, registry
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.solver import STATIONARY


def simulated(n=30, m=80, k=3, seed=0):
    """Counts with sparse factors."""
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.gamma(0.3, size=(n, k)) @ rng.gamma(0.3, size=(k, m))).astype(float)


Y = simulated()
FEW = simulated(20, 30)
IDENTITY = {"init": "random", "c": math.inf, "size_factors": "none", "random_state": 0, "n_jobs": 1}
ENGINES = ["native", "streaming", pytest.param("torch", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.filterwarnings("ignore:counts has:UserWarning")


@pytest.mark.parametrize(("power", "row_solver"), [(-150, "newton"), (10, "coordinate")])
def test_counts_of_another_scale_take_the_same_course(power, row_solver):
    options = {**IDENTITY, "init": "rank1", "row_solver": row_solver, "max_iter": 8, "tol": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        plain, scaled = (fit_log1p_nmf(Y * scale, 3, **options) for scale in (1.0, 2.0**power))
    rates = plain.loadings @ plain.factors.T
    np.testing.assert_allclose(scaled.loadings @ scaled.factors.T, rates * 2.0**power, rtol=1e-6)
    assert scaled.kkt_residual == pytest.approx(plain.kkt_residual, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_small_values_are_fitted_to_the_end_alone_and_beside_large_ones(engine):
    fit = fit_log1p_nmf(FEW * 1e-3, 3, engine=engine, **IDENTITY)
    assert fit.n_iter > 5
    assert fit.stopped == "converged"
    assert fit.kkt_residual < 1e-3
    mixed = np.c_[FEW, FEW[:, :10] * 1e-4]
    options = {"c": 1.0, "init": "rank1", "random_state": 0, "n_jobs": 1}
    fit = fit_log1p_nmf(mixed, 3, engine=engine, **options)
    alone = fit_log1p_nmf(FEW, 3, **options)
    assert fit.converged
    assert fit.kkt_residual < 1e-3
    # what the small ones cost is small: a fit that stopped on its way would be off by thousands
    assert fit.objective == pytest.approx(alone.objective, rel=5e-3)


@pytest.mark.filterwarnings("ignore:n_components=2 is larger:UserWarning")
@pytest.mark.parametrize("counts", [np.outer([1, 2, 3], [4, 5, 6]), np.eye(3) * 7, [[5]], np.full((4, 5), 2)])
@pytest.mark.parametrize("c", [0.1, math.inf])
def test_where_nothing_is_left_to_gain_at_an_optimum_it_has_converged(counts, c):
    fit = fit_log1p_nmf(np.asarray(counts), 2, c=c, tol=0.0, random_state=0, max_iter=5000)
    assert fit.converged
    assert fit.stopped == "converged"
    assert fit.kkt_residual <= STATIONARY


@pytest.mark.parametrize(("size", "l1"), [((12, 1), 0.0), ((1, 10), 5.0)], ids=["rows", "columns"])
def test_nothing_is_converged_while_an_update_of_the_size_factors_gains(size, l1):
    """Rows and columns of very different size: going on far below the tolerance gains next to nothing."""
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.5, 1.0, (12, 2)) @ rng.gamma(0.5, 2.0, (2, 10))
    options = {"size_factors": "fit", "init": "nndsvd", "n_jobs": 1, "likelihood": "chebyshev", "l1": l1}
    counts = rng.poisson(rates * 10.0 ** rng.uniform(-1.0, 2.0, size))
    fit = fit_log1p_nmf(counts, 2, **options)
    more = fit_log1p_nmf(counts, 2, **{**options, "init": fit, "tol": 1e-12})
    assert fit.converged
    assert (fit.settings.likelihood, fit.history["likelihood"][-1]) == ("chebyshev", "approximate")
    assert fit.objective - more.objective <= 1e-6 * abs(fit.objective)


@pytest.mark.gpu
def test_a_large_count_does_not_hide_what_the_others_gain():
    """In single precision the rounding errors of one count would be larger than all that is left to gain."""
    counts = Y.copy()
    counts[0, 0] = 5e5
    fits = [fit_log1p_nmf(counts, 3, init="nndsvd", engine=one) for one in ("torch", "native")]
    assert fits[0].converged
    assert fits[0].objective == pytest.approx(fits[1].objective, rel=1e-5)


class Stuck(native.NativeEngine):
    """An engine whose steps lead nowhere, or up."""

    def half_step(self, side, start, design, **how):
        step = super().half_step(side, start, design, **how)
        object.__setattr__(step, "values", start * 1.01)
        return step


@pytest.mark.parametrize("likelihood", ["chebyshev", "adaptive"])
def test_an_end_that_is_no_optimum_is_no_convergence(tmp_path, likelihood, monkeypatch):
    monkeypatch.setattr(registry, "NativeEngine", Stuck)
    with pytest.warns(ConvergenceWarning, match="no step lowers the objective any more, but"):
        fit = fit_log1p_nmf(Y, 3, likelihood=likelihood, init="random")
    assert not fit.converged
    assert fit.stopped == "stalled"
    assert fit.kkt_residual > STATIONARY
    assert any("rescale" in message for message in fit.messages)
    fit.save(tmp_path / "fit.npz")
    assert Fit.load(tmp_path / "fit.npz").stopped == "stalled"


@pytest.mark.parametrize("likelihood", ["chebyshev", "adaptive"])
def test_a_fit_that_was_cut_off_does_not_contradict_itself(likelihood):
    """Whatever max_iter cuts off, no message says that a fall below tol is too large."""
    tol = 1e-4
    options = {"random_state": 0, "tol": tol, "likelihood": likelihood, "n_jobs": 1}
    whole = fit_log1p_nmf(Y, 3, **options)
    n_cut = 0
    for max_iter in range(1, whole.n_iter, 5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit = fit_log1p_nmf(Y, 3, max_iter=max_iter, **options)
        if fit.converged:
            continue
        n_cut += 1
        message = next(text for text in fit.messages if "not converged" in text)
        last = fit.history["relative_change"][-1]
        assert f"after max_iter={max_iter} iterations" in message
        if "still lowered" in message:
            assert last > tol
            assert f"{last:.1e} of its size" in message
        else:
            assert "in a row" in message or "plateau" in message
    assert n_cut > 0


@pytest.mark.parametrize("likelihood", ["chebyshev", "exact"])
@pytest.mark.parametrize("scale", [1e-20, 1e4])
def test_converged_is_said_only_near_an_optimum(scale, likelihood):
    sizes = np.geomspace(1e-4, 1e4, len(Y))
    for size_factors in ("total", sizes):
        options = {"likelihood": likelihood, "size_factors": size_factors, "max_iter": 200, "init": "rank1"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = fit_log1p_nmf(Y * scale, 3, c=1.0, **options)
        assert fit.kkt_residual < 1e-2 or not fit.converged
