"""The kernels of the PyTorch engine without a card: in Triton's interpreter, on two small problems."""

from dataclasses import replace
from unittest.mock import Mock, patch

import anndata
import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting import starts
from log1pnmf.model.batch_effects import dispersed_sums, mean_sums
from log1pnmf.model.batches import Batches
from log1pnmf.model.dispersion import update_dispersions
from log1pnmf.model.noise import NegativeBinomial, ShiftedLog
from log1pnmf.model.objective import gradients, negative_log_likelihood
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import AdaptiveZeros

N, M, K = 4, 12, 3
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where a card divides by zero


def example(kind):
    """Adaptive zeros with Poisson noise, or all zeros exact with dispersions and batches; and a point."""
    rng, link = np.random.default_rng(1), ShiftedLog(0.5)
    loadings, factors = rng.uniform(0.2, 1.0, (N, K)), rng.uniform(0.2, 1.0, (M, K))
    sizes = rng.uniform(0.5, 2.0, N)
    y = rng.poisson(sizes[:, None] * link.mean(loadings @ factors.T))
    y[1], y[:, 5] = 0, 0
    problem = Problem(Counts.from_any(y), sizes, link)
    if kind == "dispersed":
        effects = np.exp(rng.normal(0.0, 0.3, (2, M)))
        noise = NegativeBinomial(rng.gamma(0.5, 1.0, M) * (rng.random(M) > 0.2))
        problem = replace(problem, noise=noise, batches=Batches(np.arange(N) % 2, effects))
    else:
        caps = np.full(M, 0.9 * np.median(loadings @ factors.T))
        survey = NativeEngine(problem).survey_zeros(loadings, factors, caps[:1])
        stored, exposure = NativeEngine(problem).collect_zeros(loadings, factors, caps)
        assert 0 < stored.nnz < np.count_nonzero(y == 0)
        problem = replace(problem, zeros=AdaptiveZeros(survey.quadratics[:, 0], stored, exposure, caps, 0.0))
    return problem, loadings, factors


@pytest.mark.parametrize(("precision", "close"), [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize("kind", ["adaptive", "dispersed"])
def test_loss_gradient_and_step(interpreter, kind, precision, close, monkeypatch):
    from log1pnmf.engines.torch import rows
    from log1pnmf.engines.torch.engine import TorchEngine

    if precision == "float64":  # long rows in pieces
        for module in (rows, interpreter):
            monkeypatch.setattr(module, "PIECE", 4)
    problem, loadings, factors = example(kind)
    truth = negative_log_likelihood(problem, loadings, factors)
    by_loadings, by_factors = gradients(problem, loadings, factors)
    engine, native = TorchEngine(problem, "cpu", precision), NativeEngine(problem, 1)
    for side, start, design, expected in (
        (problem.loadings_side, loadings, factors, by_loadings),
        (problem.factors_side, factors, loadings, by_factors),
    ):
        step, theirs = engine.half_step(side, start, design), native.half_step(side, start, design)
        assert step.loss == pytest.approx(truth, rel=close)
        np.testing.assert_allclose(step.gradient, expected, atol=3 * close * np.abs(expected).max())
        assert step.predicted_decrease == pytest.approx(theirs.predicted_decrease, rel=0.1)
        after = [native.evaluate(side, one.values, design)[0] for one in (step, theirs)]
        assert after[0] < truth
        if kind == "dispersed":  # the rules for steps are the same there
            near = max(1e-9, 3 * close)
            np.testing.assert_allclose(step.values, theirs.values, atol=near * theirs.values.max())
    assert engine.loss(loadings, factors) == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("kind", ["adaptive", "dispersed"])
def test_condensed_means_are_those_of_the_compiled_engine(interpreter, kind, monkeypatch):
    from log1pnmf.engines.torch import engine as torch_engine

    monkeypatch.setattr(interpreter, "STRETCH", 4)
    monkeypatch.setattr(interpreter, "POINTS", 2)
    problem, loadings, factors = example(kind)
    loadings[:, 0] = 0.0
    factors[3] = factors[3] * np.array([1.0, 0.0, 0.0])  # means of zero
    found = torch_engine.TorchEngine(problem, "cpu").mean_spectrum(loadings, factors)
    expected = NativeEngine(problem, 1).mean_spectrum(loadings, factors)
    for name in ("low", "entries", "counted", "n_free"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    some = np.array([3, 0, 7]), np.array([1.0, 0.1, 10.0])
    np.testing.assert_allclose(found.sums(*some[::-1]), expected.sums(*some[::-1]), rtol=1e-9)
    noises = [update_dispersions(problem.counts, factors, one)[0] for one in (found, expected)]
    np.testing.assert_allclose(noises[0].dispersion, noises[1].dispersion, rtol=1e-6)
    np.testing.assert_allclose(noises[0].prior.centre, noises[1].prior.centre, rtol=1e-6)


@pytest.mark.parametrize("kind", ["adaptive", "exact", "dispersed"])
def test_sums_over_batches_are_those_of_the_reference(interpreter, kind):
    from log1pnmf.engines.torch.engine import TorchEngine

    problem, loadings, factors = example(kind.replace("exact", "adaptive"))
    if kind == "dispersed":
        effects = np.exp(np.random.default_rng(2).normal(0.0, 0.5, (2, M)))
        found = TorchEngine(problem, "cpu").dispersed_sums(effects, loadings, factors)
        np.testing.assert_allclose(found, dispersed_sums(problem, effects, loadings, factors), rtol=1e-12)
    else:
        batches, zeros = Batches(np.arange(N) % 3, np.ones((3, M))), problem.zeros
        problem = replace(problem, batches=batches, zeros=zeros if kind == "adaptive" else None)
        found = TorchEngine(problem, "cpu").batch_sums(loadings, factors)
        np.testing.assert_allclose(found, mean_sums(problem, loadings, factors), rtol=1e-12)


def test_the_default_call_converts_what_comes_from_a_card(interpreter, monkeypatch):
    """With batches, and more samples than starts are compared on; tensors of a card are no NumPy arrays."""
    import torch

    refusal = TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")
    monkeypatch.setattr(torch.Tensor, "__array__", Mock(side_effect=refusal))
    counts = np.random.default_rng(0).poisson(2.0, (6, 5)) + 1
    adata = anndata.AnnData(counts.astype(np.float32), obs={"lane": list("ababab")})
    with patch.multiple(starts, MOST_SEARCHED=4, AGREED=-1.0, ALONE=1, SETTLED=1, ONE_LESS=1, REGROUPED=1):
        lp.tl.log1p_nmf(adata, 3, tol=0.1, batch_key="lane", engine="torch")
    assert np.isfinite(adata.obsm["X_log1p_nmf"]).all()
