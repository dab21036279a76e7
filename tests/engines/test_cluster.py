"""A cluster gives the fit that one process gives, whoever of its workers dies on the way."""

import os
import signal
import threading
import time
import warnings

import dask
import dask.array
import numpy as np
import pytest
from scipy import sparse

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts import open_counts

distributed = pytest.importorskip("distributed")

OPTIONS = {"random_state": 0, "n_jobs": 1, "max_iter": 3, "tol": 1e-12, "likelihood": "chebyshev"}
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def client():
    quickly = {"distributed.worker.multiprocessing-method": "forkserver"}  # one process imports for all
    with warnings.catch_warnings(), dask.config.set(quickly):
        warnings.simplefilter("ignore")
        distributed.utils.get_mp_context().set_forkserver_preload(
            ["distributed", "log1pnmf.engines.streaming"]
        )
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit="1GB", silence_logs=50
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


def fit(source, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_log1p_nmf(source, 3, **OPTIONS | more)


class SlowChunks:
    """Takes its time, so that there is a moment to kill someone in."""

    def __init__(self, matrix, seconds):
        self.shape, self.seconds = matrix.shape, seconds
        self.parts = [matrix[start : start + 30] for start in range(0, matrix.shape[0], 30)]

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.parts[index]


def test_a_cluster_gives_the_same_fit(client, matrix, cut):
    alone = fit(open_counts(cut(3)))
    shared = fit(open_counts(cut(3), client=client))
    np.testing.assert_allclose(shared.history["objective"], alone.history["objective"], rtol=1e-11)
    np.testing.assert_allclose(shared.loadings, alone.loadings, rtol=1e-6, atol=1e-8)
    array = dask.array.from_array(matrix.toarray(), chunks=(50, -1)).map_blocks(sparse.csr_array)
    source = open_counts(array)  # the current client is found
    assert source.client is not None
    np.testing.assert_allclose(fit(source).history["objective"], alone.history["objective"], rtol=1e-11)


def test_chunks_are_read_anew_where_they_do_not_fit(client, cut, monkeypatch):
    from log1pnmf.counts import passes as cluster

    expected = fit(open_counts(cut(3), client=client))
    monkeypatch.setattr(cluster, "HELD_SHARE", 0.0)
    found = fit(open_counts(cut(3), client=client))
    np.testing.assert_array_equal(found.history["objective"], expected.history["objective"])


def test_a_worker_that_is_killed_loses_nothing(client, matrix):
    chunks = SlowChunks(matrix, 0.0)
    expected = fit(open_counts(chunks, client=client))
    chunks.seconds = 0.05
    killed = []

    def kill(iteration):
        if iteration.index == 1:  # in the middle of the next pass
            pid = next(iter(client.run(os.getpid).values()))
            threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()
            killed.append(pid)

    found = fit(open_counts(chunks, client=client), callbacks=[kill])
    assert len(killed) == 1
    np.testing.assert_array_equal(found.history["objective"], expected.history["objective"])
    np.testing.assert_array_equal(found.loadings, expected.loadings)
