"""MCF-7 (K = 3, c = 1, exact) with what is known; the paper's results are in studies/paper."""

import numpy as np
import pytest

from log1pnmf import fit_log1p_nmf


@pytest.fixture(scope="module")
def mcf7(real_data):
    return real_data("mcf7_bulk")


def fit_mcf7(data, **options):
    known = {"everyone": 1.0} | {name: np.asarray(data.obs[name], dtype=float) for name in ("RA", "TGFb")}
    return fit_log1p_nmf(data.X, 3, c=1.0, likelihood="exact", fixed_loadings=known, **options)


@pytest.mark.filterwarnings("ignore:not converged")
def test_the_design_with_dispersions(mcf7):
    """Steps from a crude start went too far, and dispersions were not numbers."""
    fit = fit_mcf7(mcf7, noise="nb", init="nndsvd", max_iter=9)
    assert np.isfinite(fit.dispersion).all()
    assert np.isfinite(fit.objective)
