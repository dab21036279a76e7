"""Chunks that are kept in a temporary file between passes."""

import errno
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from log1pnmf import fit_log1p_nmf, open_counts
from log1pnmf._common.arrays import RowFile
from log1pnmf.counts import chunks as packed_chunks
from log1pnmf.counts.chunks import PackedChunks
from log1pnmf.counts.counts import Counts

RNG = np.random.default_rng(0)
CHUNKS = [sparse.csr_array(RNG.poisson(0.7, (n, 30)).astype(float)) for n in (25, 1, 40, 14)]


class Counted:
    """Chunks that know how often each was asked for."""

    def __init__(self, chunks):
        self.chunks, self.read = chunks, Counter()
        self.shape = (sum(one.shape[0] for one in chunks), chunks[0].shape[1])

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, index):
        if not 0 <= index < len(self.chunks):
            raise IndexError(index)
        self.read[index] += 1
        return self.chunks[index]


def kept(chunks):
    counts = [Counts.from_any(one) for one in chunks]
    shape = (sum(one.n_samples for one in counts), counts[0].n_features)
    packed = PackedChunks(shape, sum(one.nnz for one in counts), len(counts), None)
    for index, one in enumerate(counts):
        assert not packed.complete
        packed.add(index, one)
    assert packed.complete
    return packed, counts


def assert_same(found, expected):
    assert found.shape == expected.shape
    for side in ("by_row", "by_column"):
        for part in ("indptr", "indices", "values"):
            one, other = (getattr(getattr(counts, side), part) for counts in (found, expected))
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def fit(chunks, **more):
    options = {"c": 1.0, "init": "rank1", "max_iter": 6, "tol": 0.0, "likelihood": "chebyshev", **more}
    with pytest.warns(UserWarning, match="not converged"):
        return fit_log1p_nmf(open_counts(chunks), 3, **options)


def bits(fit):
    return fit.loadings.tobytes(), fit.factors.tobytes(), fit.objective


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.0, 1.0)), min_size=1, max_size=4),
    st.sampled_from([1.0, 255.0, 256.0, 65535.0, 65536.0, 2.0**24, 2.0**40, 0.5]),
    st.integers(0, 2**32 - 1),
)
@pytest.mark.filterwarnings("ignore:.*non-integer value")
def test_a_chunk_comes_back_as_it_was(sizes, largest, seed):
    rng = np.random.default_rng(seed)
    chunks = [sparse.csr_array(largest * (rng.random((n, 7)) < share)) for n, share in sizes]
    for one in chunks:
        one.data[:] = np.where(rng.random(one.nnz) < 0.5, one.data, 1.0)
    packed, counts = kept(chunks)
    for index in (*range(len(counts)), 0):
        assert_same(packed.read(index), counts[index])


@pytest.mark.parametrize("likelihood", ["chebyshev", "adaptive", "exact"])
def test_packing_saves_reading_and_changes_no_bit(monkeypatch, likelihood):
    source, again = Counted(CHUNKS), Counted(CHUNKS)
    packed = fit(source, likelihood=likelihood)
    assert set(source.read.values()) == {3}  # the first look, and two passes
    monkeypatch.setattr(PackedChunks, "where_it_fits", lambda *_: None)
    assert bits(fit(again, likelihood=likelihood)) == bits(packed)
    assert min(again.read.values()) > 5


def test_a_full_disk_costs_time_and_nothing_else(monkeypatch):
    expected, source, write = bits(fit(Counted(CHUNKS))), Counted(CHUNKS), RowFile.write
    n_written = iter(range(1000))

    def full(self, start, rows):
        if rows.dtype == np.uint8 and next(n_written) == 9:  # in the second chunk
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, start, rows)

    monkeypatch.setattr(RowFile, "write", full)
    assert bits(fit(source)) == expected
    assert next(n_written) > 9
    assert min(source.read.values()) > 5


def test_a_file_is_only_made_where_there_is_room(monkeypatch, tmp_path):
    def place(nnz, folder=None):
        return PackedChunks.where_it_fits((10, 10), nnz, 1, folder)

    assert place(1000) is not None
    monkeypatch.setattr(packed_chunks.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10_000))
    assert place(1000) is None
    assert place(400) is not None
    assert place(400, str(tmp_path / "nothing")) is None
