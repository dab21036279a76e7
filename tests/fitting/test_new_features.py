"""Factors of features that were not fitted: those they would have had with the same loadings."""

import math
from dataclasses import replace

import numpy as np
import pytest

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts import Counts
from log1pnmf.fitting.new_features import extend_features
from log1pnmf.fitting.new_samples import of_features

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
N, M, K = 200, 40, 3
NAMES = np.array([f"g{j}" for j in range(M)], dtype=object)


def counted(noise="poisson"):
    rng = np.random.default_rng(0)
    means = rng.dirichlet(np.full(K, 0.3), N) @ rng.gamma(0.5, 10.0, (K, M))
    if noise == "nb":
        means *= rng.gamma(1.0 / 0.3, 0.3, means.shape)
    return replace(Counts.from_any(rng.poisson(means)), feature_names=NAMES)


@pytest.mark.parametrize("c", [1.0, math.inf])
@pytest.mark.parametrize("options", [{}, {"noise": "nb"}, {"batch": np.arange(N) % 2}, {"l1": 2.0}])
def test_the_same_as_in_a_fit_of_all(c, options):
    counts = counted(options.get("noise"))
    fit = fit_log1p_nmf(counts, K, c=c, tol=1e-10, max_iter=200, **options)
    some = of_features(fit, np.arange(M)[::-2].copy())
    found = extend_features(some, counts, n_jobs=1)
    assert found.feature_names.tolist() == NAMES.tolist()
    assert (found.factors[1::2] == fit.factors[1::2]).all()
    tight = 0.02 if options.keys() & {"noise", "batch"} else 1e-3
    np.testing.assert_allclose(found.factors, fit.factors, atol=tight * fit.factors.max())
    if fit.dispersion is not None:
        assert np.median(np.abs(np.log(found.dispersion / fit.dispersion))[::2]) < 0.2
    if fit.batches is not None:
        np.testing.assert_allclose(found.batches.effects, fit.batches.effects, rtol=0.1)
    assert "20 features were fitted, and 20 were added given the loadings" in found.messages[0]
    assert found.log_likelihood is None


def test_what_cannot_be_added():
    counts = counted()
    fit = fit_log1p_nmf(counts, K, mask=np.arange(M)[None] % 2 == 0, tol=1e-3)
    with pytest.raises(ValueError, match="cannot be added to a fit with fixed_factors or a mask"):
        extend_features(fit, counts)
    fit = fit_log1p_nmf(counts, K, tol=1e-3)
    with pytest.raises(ValueError, match="must be of the 200 samples of the fit, got 5"):
        extend_features(fit, Counts.from_any(counts.to_scipy()[:5]))
    with pytest.raises(ValueError, match="1 features of the fit are not in the counts"):
        extend_features(fit, replace(counts, feature_names=np.array(["x", *NAMES[1:]], dtype=object)))
    assert extend_features(fit, counts) is fit
