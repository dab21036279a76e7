"""Whatever the counts: no NaN, nothing negative, and never worse than a single factor."""

import math
import warnings

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from log1pnmf import fit_log1p_nmf


@st.composite
def count_matrices(draw):
    """Small matrices of every density, with empty rows and columns and counts up to a million."""
    n, m = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    largest = draw(st.sampled_from([1, 3, 100, 10**6]))
    density = draw(st.floats(0.0, 1.0))
    y = rng.integers(1, largest, size=(n, m), endpoint=True) * (rng.random((n, m)) < density)
    y[rng.random(n) < draw(st.sampled_from([0.0, 0.3]))] = 0
    y[:, rng.random(m) < draw(st.sampled_from([0.0, 0.3]))] = 0
    return y


@given(
    y=count_matrices(),
    n_components=st.integers(1, 15),
    c=st.one_of(st.floats(-6, 8).map(lambda power: 10.0**power), st.just(math.inf)),
    likelihood=st.sampled_from(["exact", "chebyshev", "adaptive"]),
    init=st.sampled_from(["rank1", "random", "nndsvd"]),
    l1=st.sampled_from([0.0, 1.0]),
    row_solver=st.sampled_from(["newton", "newton", "coordinate"]),
    size_factors=st.sampled_from(["total", "none"]),
)
def test_any_fit(*, y, n_components, likelihood, l1, row_solver, **how):
    assume(y.any())
    assume(row_solver == "newton" or likelihood != "adaptive")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "n_components=.* is larger", UserWarning)
        how |= {"likelihood": likelihood, "l1": l1, "row_solver": row_solver}
        fit = fit_log1p_nmf(y, n_components, max_iter=25, n_jobs=1, random_state=0, **how)
    for values in (fit.loadings, fit.factors):
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    np.testing.assert_array_equal(fit.loadings[y.sum(axis=1) == 0], 0.0)
    np.testing.assert_array_equal(fit.factors[y.sum(axis=0) == 0], 0.0)
    assert math.isfinite(fit.log_likelihood)
    assert math.isfinite(fit.objective)
    assert math.isfinite(fit.kkt_residual)
    renewed = np.isnan(fit.history["relative_change"])
    assert (np.diff(fit.history["objective"])[~renewed[1:]] <= 0).all()
    eta = fit.loadings @ fit.factors.T
    assert (eta[y > 0] > 0).all()
    if l1 > 0:
        assert (fit.loadings <= 1.0).all()
