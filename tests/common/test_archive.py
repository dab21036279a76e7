"""Files: the same bits back, whole or not at all, and nothing but a ValueError for what is not ours."""

import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf import Log1pNMF, __version__
from log1pnmf._common import archive as persist
from log1pnmf._common.archive import (
    FORMAT_VERSION,
    check_writable,
    from_tree,
    join_arrays,
    read_archive,
    split_arrays,
    to_tree,
    write_archive,
)
from log1pnmf._common.checks import check_known, random_from_parts, random_parts
from log1pnmf.fitting.checkpoint import load_checkpoint
from log1pnmf.fitting.fit import Fit

ARRAYS = {
    "doubles": np.array([[0.1, -0.0, math.inf], [math.nan, 5e-324, 1e308]]),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "floats": np.array([0.1, 16777217.0], dtype=np.float32),
    "whole": np.array([2**62, -1], dtype=np.int64),
    "words": np.array(["exact", "näherung", ""]),
    "flags": np.array([True, False]),
    "nothing": np.zeros((0, 4)),
    "one": np.float64(0.3),
    "every.second-one": np.arange(10)[::2],
}
METADATA = {
    "kind": "example",
    "infinite": [math.inf, -math.inf],
    "nan": math.nan,
    "exact": 0.1 + 0.2,
    "large": 2**200,
    "nested": {"a": [1, None, True, "é"], "b": {}},
}


def test_everything_comes_back(tmp_path):
    path = tmp_path / "all"
    write_archive(path, ARRAYS, METADATA)
    arrays, metadata = read_archive(path, kind="example")
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()
        assert arrays[name].flags.writeable
    assert math.isnan(metadata.pop("nan"))
    assert metadata == {
        **{name: value for name, value in METADATA.items() if name != "nan"},
        "format": "log1pnmf",
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "arrays": list(ARRAYS),
    }


def test_what_is_read_can_be_written_again_and_is_the_same_file(tmp_path):
    write_archive(tmp_path / "a", ARRAYS, METADATA)
    write_archive(tmp_path / "b", *read_archive(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with np.load(tmp_path / "a", allow_pickle=False) as plain:
        assert json.loads(plain["metadata"].tobytes())["kind"] == "example"


def test_numpy_numbers_and_tuples_are_made_plain(tmp_path):
    given = {"kind": "k", "a": np.int64(3), "b": np.float64(0.1), "c": np.bool_(True), "d": (1, 2)}
    write_archive(tmp_path / "a", {}, given)
    _, metadata = read_archive(tmp_path / "a")
    assert {name: metadata[name] for name in "abcd"} == {"a": 3, "b": 0.1, "c": True, "d": [1, 2]}


class DiskError(Exception):
    pass


@pytest.mark.parametrize("interrupt", [DiskError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["write_array", "fsync", "replace"])
def test_a_failed_write_changes_nothing(tmp_path, monkeypatch, where, interrupt):
    path = tmp_path / "file"
    write_archive(path, {"x": np.zeros(3)}, {"kind": "old"})
    before = path.read_bytes()

    def fail(*args, **options):
        raise interrupt

    module = {"write_array": np.lib.format, "fsync": os, "replace": os}[where]
    monkeypatch.setattr(module, where, fail)
    with pytest.raises(interrupt):
        write_archive(path, {"x": np.ones(3)}, {"kind": "new"})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_permissions_are_those_of_any_new_file_and_links_stay(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    write_archive(tmp_path / "link", {}, {"kind": "k"})
    assert (tmp_path / "link").is_symlink()
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "ours")}
    assert len(modes) == 1


def test_places_and_values_that_cannot_be(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*: make it first"):
        write_archive(tmp_path / "no" / "file", {}, {"kind": "k"})
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_archive(tmp_path, {}, {"kind": "k"})
    with pytest.raises(TypeError, match="checkpoint must be the path of a file, got 3"):
        check_writable(3, "checkpoint")
    path = tmp_path / "file"
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_archive(path, {"x": np.array([{}, None])}, {"kind": "k"})
    with pytest.raises(TypeError, match=r"metadata cannot hold \{1\}"):
        write_archive(path, {}, {"kind": "k", "a": [0, {1}]})
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_archive(tmp_path / "none")
    write_archive(tmp_path / "a", {}, {"kind": "model"})
    with pytest.raises(ValueError, match="holds a model, not a fit"):
        Fit.load(tmp_path / "a")
    write_archive(tmp_path / "a", {}, {"kind": "fit"})
    with pytest.raises(ValueError, match="holds a fit that is incomplete"):
        Fit.load(tmp_path / "a")
    with pytest.raises(ValueError, match=r"holds a fit, not a checkpoint; read it with log1pnmf.Fit.load"):
        load_checkpoint(tmp_path / "a")


def test_newer_formats_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(persist, "FORMAT_VERSION", FORMAT_VERSION + 1)
    monkeypatch.setattr(persist, "__version__", "7.0")
    write_archive(tmp_path / "a", {}, {"kind": "fit"})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"format version 2 \(of log1pnmf 7.0\).*pip install -U log1pnmf"):
        read_archive(tmp_path / "a")


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def member(name, data, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def npy(header, data=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def as_bytes(metadata):
    return np.frombuffer(json.dumps(metadata).encode(), dtype=np.uint8)


OURS = {"format": "log1pnmf", "format_version": 1, "package_version": "0", "kind": "k", "arrays": []}
HUGE = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,), }"


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"not a zip file",
        npz(metadata=np.zeros(3)),
        npz(metadata=as_bytes([1, 2])),
        npz(metadata=as_bytes({**OURS, "format": "other"})),
        npz(metadata=as_bytes({**OURS, "format_version": 0})),
        npz(metadata=as_bytes({**OURS, "format_version": "1"})),
        npz(metadata=as_bytes({**OURS, "arrays": ["x"]})),
        npz(metadata=np.array([{}], dtype=object)),
        npz(metadata=np.frombuffer(b"[" * 100_000, dtype=np.uint8)),
        member("metadata.npy", npy(HUGE)),
        member("metadata.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x" * 8)),
        member("metadata.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-1,), }")),
        member("metadata.npy", bytes(10**6), zipfile.ZIP_DEFLATED),
        member("metadata.npy", b"\x93NUMPY\x03\x00"),
    ],
)
def test_foreign_files_are_refused(tmp_path, foreign):
    path = tmp_path / "foreign"
    path.write_bytes(foreign)
    with pytest.raises(ValueError, match=r"foreign is damaged.*(write it again|another copy)"):
        read_archive(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_another_npz_is_called_what_it_is(tmp_path, save):
    save(path := tmp_path / "other.npz", x=np.zeros(3))
    for load in (Log1pNMF.load, Fit.load, load_checkpoint):
        with pytest.raises(ValueError, match=r"not written by log1pnmf \(it has x: read it with numpy.load"):
            load(path)
    sparse.save_npz(path, sparse.csr_array(np.eye(3)))
    with pytest.raises(ValueError, match=r"indptr: read it with .* scipy.sparse.load_npz"):
        Log1pNMF.load(path)


@dataclass(frozen=True, eq=False)
class Inner:
    values: NDArray[np.float64]
    ends: tuple[int, float]


@dataclass(frozen=True, eq=False)
class Outer:
    names: NDArray[np.object_] | None
    choice: Literal["one", "other"]
    table: Mapping[str, np.ndarray]
    inner: Inner | None = None
    flag: bool | Literal["auto"] = "auto"
    notes: tuple[str, ...] = ()
    cache: dict[str, Any] = field(default_factory=dict, repr=False)


TABLE = {"a": np.arange(2), "b": np.array(["x", "y"])}
INNER = Inner(np.array([np.nan, -0.0, 1e-320]), (3, math.inf))
OUTER = Outer(np.array(["ä", "b"], dtype=object), "one", TABLE, INNER, True, ("z",), {"big": object()})


@pytest.mark.parametrize("one", [OUTER, Outer(None, "other", {})])
def test_a_dataclass_comes_back_to_the_bit(tmp_path, one):
    write_archive(tmp_path / "a", *split_arrays({"kind": "x", **to_tree(one)}))
    tree = join_arrays(*read_archive(tmp_path / "a"))
    again = from_tree(Outer, {name: tree[name] for name in to_tree(one)})
    assert (again.choice, again.flag, again.notes, again.cache) == (one.choice, one.flag, one.notes, {})
    assert again.names is None or again.names.dtype == object
    np.testing.assert_equal(to_tree(again), to_tree(one))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"choice": "third"}, "choice must be one of 'one', 'other', got 'third'"),
        ({"flag": 1}, "flag must be one of 'auto', got 1"),
        ({"notes": [1]}, "notes must be of type str, got 1"),
        ({"names": np.arange(2)}, "names must be text, got int64"),
        ({"table": {"a": [1]}}, "table.a must be a ndarray"),
        ({"inner": {"values": np.zeros(2)}}, "inner must have values, ends, got"),
        ({"inner": {"values": np.zeros(2, np.float32), "ends": [1, 1]}}, "inner.values must be float64"),
        ({"inner": {"values": np.zeros(2), "ends": [0.5, 1]}}, "inner.ends must be of type int, got 0.5"),
    ],
)
def test_what_is_not_of_the_annotated_types_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        from_tree(Outer, {**to_tree(OUTER), **changed})


def test_arrays_are_read_whatever_numpy_makes_of_their_annotation(monkeypatch):
    """NumPy 2.5 made NDArray an alias of its own, whose only argument is the type of the entries."""
    Scalar = TypeVar("Scalar")

    class Alias(Generic[Scalar]):
        pass

    monkeypatch.setattr(persist, "NDArray", Alias)
    found = from_tree(Alias[np.float64], np.arange(3.0))
    assert found.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="float64"):
        from_tree(Alias[np.float64], np.arange(3))


# ---------- generators of random numbers go on elsewhere


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
@pytest.mark.parametrize("kind", [np.random.Generator, np.random.RandomState])
def test_random_numbers_go_on(tmp_path, name, kind):
    rng = kind(getattr(np.random, name)(5))
    rng.standard_normal(3)
    write_archive(tmp_path / "file", {}, {"kind": "random", "state": random_parts(rng)})
    again = random_from_parts(read_archive(tmp_path / "file")[1]["state"])
    assert type(again) is kind
    np.testing.assert_array_equal(again.standard_normal(7), rng.standard_normal(7))
    np.testing.assert_array_equal(again.permutation(9), rng.permutation(9))


def test_unknown_generators_are_refused():
    class Strange:
        def get_state(self, *, legacy):
            return {"bit_generator": "Strange"}

    with pytest.raises(ValueError, match=r"random_state must use one of MT19937, .* got Strange"):
        check_known(Strange())
