"""The call users make, with `engine="torch"`: below and above every threshold, through each face; ``-m gpu``.

What comes from a card must not reach NumPy unconverted: test_torch_interpreted.py checks it without one.
"""

import anndata
import numpy as np
import pytest
from scipy import sparse

import log1pnmf as lp
from log1pnmf.cli import main
from log1pnmf.fitting import starts

pytestmark = pytest.mark.gpu
MANY = 1000 + starts.MOST_RACED
"""More samples than starts are compared on."""


def table(n, m=24, seed=0):
    """Counts of three factors."""
    rng = np.random.default_rng(seed)
    means = rng.dirichlet(np.full(3, 0.3), n) @ rng.gamma(0.4, 4.0, (3, m))
    return sparse.csr_matrix(rng.poisson(means + 0.05).astype(np.float32))


def check(counts, **settings):
    """The default call ends where that of the compiled engine does."""
    ours = lp.Log1pNMF(2, engine="torch", random_state=0, **settings).fit(counts).fit_
    others = lp.Log1pNMF(2, engine="native", random_state=0, **settings).fit(counts).fit_
    assert ours.stopped == others.stopped == "converged"
    assert ours.log_likelihood == pytest.approx(others.log_likelihood, rel=1e-3)


@pytest.mark.parametrize("noise", ["poisson", "nb", "auto"])
@pytest.mark.parametrize("c", [0.1, 1.0, np.inf])
@pytest.mark.parametrize("n", [200, 3000, 1 + starts.MOST_RACED, 2 * starts.MOST_RACED])
def test_every_noise_below_and_above_each_threshold(n, c, noise):
    check(table(n), c=c, noise=noise)


def test_batches_and_annotated_data():
    adata = anndata.AnnData(table(MANY), obs={"lane": np.tile(["a", "b"], MANY // 2)})
    lp.tl.log1p_nmf(adata, 2, batch_key="lane", engine="torch")
    assert np.isfinite(adata.obsm["X_log1p_nmf"]).all()


def test_the_command_line(tmp_path):
    counts = tmp_path / "counts.h5ad"
    anndata.AnnData(table(MANY)).write_h5ad(counts)
    assert main(["fit", str(counts), "-k", "2", "--engine", "torch", "-o", str(tmp_path / "out")]) == 0
