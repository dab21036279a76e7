"""Wherever counts are, the fit is the same; what cannot be streamed is refused by name."""

import errno
import warnings
from collections import Counter
from types import SimpleNamespace

import anndata
import dask.array
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf._common.arrays import RowFile
from log1pnmf._common.safe_files import parse_memory
from log1pnmf.counts import chunks as packed_chunks
from log1pnmf.counts import open_counts
from log1pnmf.counts.chunks import PackedChunks, is_streamed
from log1pnmf.counts.compress import canonical_rows, compress_sparse
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import survey

OPTIONS = {"random_state": 0, "n_jobs": 1, "max_iter": 8, "tol": 1e-12, "likelihood": "chebyshev"}


class OnlyIterable:
    def __init__(self, chunks):
        self.shape, self.parts = chunks.shape, chunks.parts

    def __len__(self):
        return len(self.parts)

    def __iter__(self):
        return iter(self.parts)


def fit(source, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_log1p_nmf(source, 3, **OPTIONS | more)


@pytest.fixture(scope="module")
def files(matrix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    names = [f"g{j}" for j in range(matrix.shape[1])]
    adata = anndata.AnnData(
        sparse.csr_matrix(matrix), var=pd.DataFrame(index=names), obs=pd.DataFrame(index=map(str, range(203)))
    )
    adata.layers["counts"] = adata.X.copy()
    adata.layers["dense"] = adata.X.toarray()
    adata.layers["columns"] = sparse.csc_matrix(matrix)
    adata.write_h5ad(folder / "counts.h5ad")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about zarr's format
        adata.write_zarr(folder / "counts.zarr")
    return folder


@pytest.fixture(scope="module")
def expected(matrix):
    return fit(matrix, engine="streaming", max_iter=3)


def test_every_source_gives_the_same_fit(files, matrix, cut, expected):
    pytest.importorskip("xarray")
    from anndata.experimental import read_lazy

    backed = anndata.read_h5ad(files / "counts.h5ad", backed="r")
    dense = dask.array.from_array(matrix.toarray(), chunks=(50, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is experimental
        lazy = read_lazy(files / "counts.h5ad")
    sources = {
        "h5ad": open_counts(files / "counts.h5ad"),
        "layer": open_counts(files / "counts.h5ad", layer="counts"),
        "dense layer": open_counts(str(files / "counts.h5ad"), layer="dense"),
        "zarr": open_counts(files / "counts.zarr"),
        "backed": backed,
        "lazy": lazy,
        "AnnData": open_counts(backed.to_memory(), layer="counts"),
        "dask": dense.map_blocks(sparse.csr_array),
        "dask, dense": dense.rechunk((70, 20)),
        "array": open_counts(matrix.toarray()),
        "chunks": open_counts(cut(4)),
        "iterable": open_counts(OnlyIterable(cut(4))),
    }
    for name, source in sources.items():
        found = fit(source, max_iter=3)
        assert found.settings.engine == "streaming", name
        np.testing.assert_allclose(
            found.history["objective"], expected.history["objective"], rtol=1e-11, err_msg=name
        )
    backed.file.close()


def test_the_first_look_is_right(matrix, cut):
    counts, seen = Counts.from_any(matrix), survey(open_counts(cut((3, 100))))
    assert (seen.shape, seen.nnz, seen.total) == (counts.shape, counts.nnz, counts.total)
    assert seen.n_empty == counts.n_empty
    assert seen.log_factorial == pytest.approx(counts.log_factorial, rel=1e-13)
    np.testing.assert_array_equal(seen.row_sums, counts.row_sums)
    np.testing.assert_array_equal(seen.size_factors("total"), counts.size_factors("total"))
    np.testing.assert_array_equal(seen.by_column.row_sums(), matrix.sum(axis=0))
    np.testing.assert_array_equal(seen.sample.to_scipy().toarray(), matrix.toarray()[seen.sample_index])
    with pytest.raises(TypeError, match="in chunks"):
        seen.to_scipy()


def test_memory_decides_how_large_chunks_are():
    rows = sparse.random_array((5000, 400), density=0.5, format="csr", rng=np.random.default_rng(0))
    small, large = (open_counts(rows, memory=memory).chunks for memory in ("301MB", "4GB"))
    assert len(large) == 1
    assert len(small) == 16
    assert max(small.read(i).nnz for i in range(len(small))) <= 1 << 16


def test_memory_is_read():
    sizes = {"4GB": 4e9, "1.5 gib": 1.5 * 2**30, "250m": 2.5e8, 1e9: 1e9, "12": 12.0}
    assert [parse_memory(given) for given in sizes] == list(sizes.values())
    for bad in ("much", "", ".GB", "1.2.3GB", -1, "4PB"):
        with pytest.raises(ValueError, match="memory must be a size"):
            parse_memory(bad)


def test_refusals_say_what_to_do(files, matrix, cut):
    with pytest.raises(ValueError, match="by columns"):
        open_counts(files / "counts.h5ad", layer="columns")
    with pytest.raises(KeyError, match="has no layers/raw; it has X, columns, counts, dense"):
        open_counts(files / "counts.h5ad", layer="raw")
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_counts(files / "nothing.h5ad")
    with pytest.raises(ValueError, match="is for AnnData"):
        open_counts(matrix, layer="counts")
    with pytest.raises(TypeError, match="must be a path"):
        open_counts(7)
    with pytest.raises(ValueError, match="needs counts in memory"):
        fit(open_counts(matrix), engine="native")
    with pytest.raises(ValueError, match="newton"):
        fit(open_counts(matrix), engine="streaming", row_solver="coordinate")
    short = cut(3)
    short.parts = short.parts[:2]
    with pytest.raises(ValueError, match="chunks have 135 rows together, but shape has 203"):
        fit(open_counts(short))
    bad = cut(3)
    bad.parts[1] = -1.0 * bad.parts[1]
    with pytest.raises(ValueError, match="negative"):
        fit(open_counts(bad))


def test_what_is_in_memory_is_not_streamed_unless_asked(matrix):
    assert not is_streamed(matrix)
    assert not is_streamed(anndata.AnnData(matrix.toarray()))
    assert is_streamed(open_counts(matrix))
    assert fit(matrix).settings.engine == "native"


def test_the_estimator_streams(files, matrix):
    source = open_counts(files / "counts.h5ad")
    model = Log1pNMF(3, **OPTIONS | {"max_iter": 60, "tol": 1e-6}).fit(source)
    assert model.feature_names_in_[3] == "g3"
    found, frame = model.transform(source), pd.DataFrame(matrix.toarray(), columns=model.feature_names_in_)
    np.testing.assert_allclose(found, model.transform(frame), rtol=1e-6, atol=1e-9)
    names = model.feature_names_in_[::-1]
    turned = anndata.AnnData(sparse.csr_matrix(matrix[:, ::-1]), var=pd.DataFrame(index=names))
    np.testing.assert_allclose(model.transform(open_counts(turned)), found, rtol=1e-6, atol=1e-9)
    sizes = matrix.sum(axis=1) / matrix.sum(axis=1).mean() + 0.1
    expected = model.transform(frame, size_factors=sizes)
    np.testing.assert_allclose(model.transform(source, size_factors=sizes), expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="one number for each of the 203 samples"):
        model.transform(source, size_factors=sizes[:5])


def test_the_checksum_is_that_of_the_counts_and_a_fit_goes_on_however_they_are_stored(matrix, cut, tmp_path):
    chunks = type(cut(1))
    here, there = matrix.toarray().astype(float), matrix.toarray().astype(float)
    here[:2, :2], there[:2, :2] = [[3, 0], [0, 3]], [[0, 3], [3, 0]]  # the same margins
    here[3, 3] = there[3, 3] = 2.0**27 + 1  # the chunk with it is in double precision, the others are not
    cuts = ([0, 203], [0, 2, 10, 203], [0, 1, 50, 203])
    sources = [here, sparse.csr_array(here), *(chunks(here, bounds) for bounds in cuts)]
    assert len({survey(open_counts(source)).checksum() for source in sources}) == 1
    for other in (there, here[::-1]):
        assert survey(open_counts(other)).checksum() != survey(open_counts(here)).checksum()
    path = tmp_path / "checkpoint"
    fit(open_counts(here), checkpoint=path, callbacks=[lambda iteration: iteration.index == 4])
    whole, resumed = fit(open_counts(sparse.csr_array(here))), fit(open_counts(here), resume=path)
    np.testing.assert_array_equal(resumed.loadings, whole.loadings)
    with pytest.raises(ValueError, match=r"another fit: checksum"):
        fit(there, engine="streaming", resume=path)


def rows_of(values, indices=(0, 2, 1), indptr=(0, 2, 2, 3), kind=None):
    """Make a 3 x 4 matrix of these parts, unchecked."""
    made = sparse.csr_array((3, 4))
    made.data, made.indices, made.indptr = np.array(values, dtype=kind), np.array(indices), np.array(indptr)
    return made


@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("kind", ["f4", "f8", "i4", "i8", "u1", "u2", "u4"])
def test_the_quick_look_at_a_chunk_gives_what_the_careful_one_gives(kind, index):
    for values in ([3, 1, 200], [2**24 - 1, 2**23 + 1, 2**24], [0.5, 1.0, 2.0]):
        if kind[0] != "f" and (values[0] == 0.5 or values[0] > np.iinfo(kind).max):
            continue
        matrix = rows_of(values, kind=kind)
        matrix.indices = matrix.indices.astype(index)
        quick, careful = canonical_rows(matrix, whole=values[0] >= 1), compress_sparse(matrix)[0]
        assert quick.shape == careful.shape
        for name in ("indptr", "indices", "values"):
            one, other = getattr(quick, name), getattr(careful, name)
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)


FRACTIONS = [(value, kind) for value in (0.5, 3.0 + 2**-20, 8388607.5, 1e-30) for kind in ("f4", "f8")]
BAD = [(np.nan, "f4"), (-np.inf, "f4"), (np.inf, "f8"), (-1, "f4"), (-1, "i4"), (-5, "i8"), (0, "f4")]
BAD += [(0, "u1"), (0.1, "f8"), (1e60, "f8"), (1e-60, "f8"), (1, "i2"), (1, ">f4")]
BAD += [(2**24 + 1, kind) for kind in ("i4", "u4", "i8")]


@pytest.mark.parametrize(("bad", "kind"), [*FRACTIONS, *BAD])
def test_values_to_look_at_again(bad, kind):
    for at in range(3):
        values = np.ones(3, dtype=kind)
        values[at] = bad
        for whole in (True,) if (bad, kind) in FRACTIONS else (False, True):
            assert canonical_rows(rows_of(values, kind=kind), whole=whole) is None


@pytest.mark.parametrize("indices", [(2, 0, 1), (1, 1, 1), (0, 4, 1), (-1, 2, 1), (0, 2, 2**33)])
@pytest.mark.parametrize("indptr", [(0, 2, 1, 3), (1, 2, 2, 3), (0, 2, 2, 4), (0, 2, 3), (0, 9, 2, 3)])
def test_places_to_look_at_again(indices, indptr):
    assert canonical_rows(rows_of([1.0, 1.0, 1.0], indices), whole=True) is None
    assert canonical_rows(rows_of([1.0, 1.0, 1.0], indptr=indptr), whole=True) is None


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


def few_passes(chunks, **more):
    options = {"c": 1.0, "init": "rank1", "max_iter": 6, "tol": 0.0, "likelihood": "chebyshev", **more}
    with pytest.warns(UserWarning, match="not converged"):
        return fit_log1p_nmf(open_counts(chunks), 3, **options)


def bits(few_passes):
    return few_passes.loadings.tobytes(), few_passes.factors.tobytes(), few_passes.objective


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
    held = packed.read(0).by_row.values[1:]  # keeps its memory from other chunks
    for index in (*range(len(counts)), 0):
        assert_same(packed.read(index), counts[index])
    np.testing.assert_array_equal(held, counts[0].by_row.values[1:])


@pytest.mark.parametrize("likelihood", ["chebyshev", "adaptive", "exact"])
def test_packing_saves_reading_and_changes_no_bit(monkeypatch, likelihood):
    source, again = Counted(CHUNKS), Counted(CHUNKS)
    packed = few_passes(source, likelihood=likelihood)
    assert set(source.read.values()) == {3}  # the first look, and two passes
    monkeypatch.setattr(PackedChunks, "where_it_fits", lambda *_: None)
    assert bits(few_passes(again, likelihood=likelihood)) == bits(packed)
    assert min(again.read.values()) > 5


def test_a_full_disk_costs_time_and_nothing_else(monkeypatch):
    expected, source, write = bits(few_passes(Counted(CHUNKS))), Counted(CHUNKS), RowFile.write
    n_written = iter(range(1000))

    def full(self, start, rows):
        if rows.dtype == np.uint8 and next(n_written) == 9:  # in the second chunk
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, start, rows)

    monkeypatch.setattr(RowFile, "write", full)
    assert bits(few_passes(source)) == expected
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
