"""Damaged and malicious files: one clear error, never a crash, a hang, a full memory, or code that runs."""

import contextlib
import io
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.damage import KINDS, TELLING, Edit, samples

from log1pnmf._common.safe_files import BadFileError
from log1pnmf.cli.exchange import read_r_list
from log1pnmf.counts.read import read_table

FRACTION = st.floats(0, 1, exclude_max=True)
EDITS = st.lists(
    st.builds(
        Edit, st.sampled_from(KINDS), FRACTION, st.sampled_from(TELLING) | st.binary(min_size=1, max_size=8)
    ),
    min_size=1,
    max_size=3,
)
MARKET = "%%MatrixMarket matrix coordinate integer general\n"


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return samples(tmp_path_factory.mktemp("valid"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


def test_samples_are_valid(valid):
    for sample in valid.values():
        sample.read(sample.path)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_are_refused_or_read(valid, folder, data):
    sample = valid[data.draw(st.sampled_from(sorted(valid)))]
    path = sample.write_damaged(folder, data.draw(EDITS), data.draw(FRACTION))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(ValueError, OSError):
            found = sample.read(path)
            if sample.path.name == "fit.npz" and not sample.inside:  # it has checksums
                np.testing.assert_equal(found, sample.read(sample.path))


def test_a_well_packed_table_is_no_bomb(tmp_path):
    values = np.zeros((2000, 500), dtype=np.int32)
    values[:, 0] = 1
    np.savez_compressed(tmp_path / "t.npz", counts=values)
    assert (tmp_path / "t.npz").stat().st_size * 200 < values.nbytes
    assert read_table(tmp_path / "t.npz").shape == values.shape


def npy(shape, dtype="<f8", data=b""):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"shape": shape, "fortran_order": False, "descr": dtype})
    return out.getvalue() + data


@pytest.mark.parametrize("shape", [(10**9, 10**6), (2**40, 2**40), (2**32, 2**32), (-1, 4)])
def test_numpy_headers(tmp_path, shape):
    content = npy(shape, data=bytes(64))
    (tmp_path / "t.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("counts.npy", content)
    for name in ("t.npy", "t.npz"):
        with pytest.raises(BadFileError, match="not as its header describes"):
            read_table(tmp_path / name)


def test_sparse_archives_with_a_huge_shape_or_indices_outside(tmp_path):
    parts = {"format": np.array(b"csr"), "data": np.ones(2), "indptr": np.array([0, 2])}
    np.savez(tmp_path / "wide.npz", **parts, indices=np.array([0, 1]), shape=np.array([1, 2**40]))
    with pytest.raises(BadFileError, match="malicious"):
        read_table(tmp_path / "wide.npz")
    np.savez(tmp_path / "outside.npz", **parts, indices=np.array([0, 2**30]), shape=np.array([1, 2]))
    with pytest.raises(BadFileError, match=r"outside\.npz"):
        read_table(tmp_path / "outside.npz")


class Malicious:
    def __reduce__(self):
        return (pytest.fail, ("a file ran code",))


def test_objects_in_numpy_files_are_not_unpickled(tmp_path):
    evil = np.array([[Malicious()]], dtype=object)
    np.save(tmp_path / "t.npy", evil, allow_pickle=True)
    np.savez(tmp_path / "t.npz", counts=evil)
    for name in ("t.npy", "t.npz"):
        with pytest.raises(BadFileError, match="Python objects"):
            read_table(tmp_path / name)


def test_members_of_archives_stay_inside(tmp_path):
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("../../escaped.npy", npy((2, 2), data=np.eye(2).tobytes()))
    assert read_table(tmp_path / "t.npz").shape == (2, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]
    assert not (tmp_path.parent.parent / "escaped.npy").exists()


@pytest.mark.parametrize("ending", ["1 1 1x", "1 1 1\r", "1 1 1 1", "1 1 1e", "1 1 1"])
def test_last_lines_of_markets_that_do_not_end(tmp_path, ending):
    (tmp_path / "t.mtx").write_text(f"{MARKET}3 3 1\n{ending}")
    with contextlib.suppress(BadFileError):  # SciPy takes what follows the number for a comment
        assert read_table(tmp_path / "t.mtx").counts.total == 1


def test_zero_bytes_in_the_counts_of_r(valid, tmp_path):
    sample = valid["for_r"]
    place = sample.write_damaged(tmp_path, [])
    market = place / "counts.mtx"
    market.write_bytes(market.read_bytes()[:-8] + bytes(8))
    with pytest.raises(ValueError, match="zero bytes"):
        read_r_list(place)
