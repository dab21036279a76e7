"""One file for arrays and their metadata: npz and JSON, no pickle, written atomically.

A file is an ordinary uncompressed npz (`numpy.load` opens it). Its member ``metadata`` is a JSON text as
bytes: format name and version, version of the package, kind of content, names of the arrays, and whatever the
writer adds. Numbers come back with the same bits, inf and NaN included.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .atomic import StrPath, real_path, replacing
from .untrusted import npy_header
from .version import __version__

__all__ = [
    "FORMAT_VERSION",
    "archive_kind",
    "check_numbers",
    "check_value",
    "making_whole",
    "read_archive",
    "write_archive",
]

FORMAT = "log1pnmf"
FORMAT_VERSION = 1
METADATA = "metadata"
READERS = {
    "fit": "read it with log1pnmf.Fit.load(path)",
    "checkpoint": "go on with it in fit(X, resume=path)",
    "selection": "go on with it in log1pnmf.analysis.selection.select(..., resume=path)",
}
"""Kinds of content, and what they are for."""


# ---------------------------------------------------------------- writing


def write_archive(path: StrPath, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write arrays and metadata to one file, whole or not at all.

    They go to a temporary file beside `path`, which is then flushed to the disk and renamed. Whatever happens
    before that leaves what was at `path` as it was. Only a killed process leaves its temporary file behind
    (``.<random>.tmp.npz``), which is never read.

    Parameters
    ----------
    path : str or PathLike
        Used as it is, no ending is added.
    arrays : dict of str to ndarray
        Any type but object; names of letters, digits, ``_``, ``.`` and ``-``, and not "metadata".
    metadata : dict
        Strings, numbers, booleans, None, lists and dicts of them; ``metadata["kind"]`` says what the file
        holds. Tuples become lists. "format", "format_version", "package_version" and "arrays" are filled in.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "example.npz")
    >>> write_archive(path, {"x": np.arange(3.0)}, {"kind": "example", "c": float("inf")})
    >>> arrays, metadata = read_archive(path, kind="example")
    >>> arrays["x"], metadata["c"]
    (array([0., 1., 2.]), inf)
    """
    members = {name: _checked_array(name, array) for name, array in arrays.items()}
    if not isinstance(metadata.get("kind"), str):
        raise ValueError(f"metadata['kind'] must be a string, got {metadata.get('kind')!r}")
    own = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "arrays": list(members),
    }
    text = json.dumps({**_plain(metadata, "metadata"), **own})
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in {METADATA: np.frombuffer(text.encode(), dtype=np.uint8), **members}.items():
            # a fresh ZipInfo holds no time of day, so that the same content gives the same file
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _checked_array(name: str, value: Any) -> np.ndarray:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or name == METADATA:
        raise ValueError(
            f"names of arrays are letters, digits, '_', '.' and '-', not 'metadata'; got {name!r}"
        )
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(
            f"array {name!r} holds Python objects, which are not saved; give it a type of its own"
        )
    if array.dtype.names is not None:
        raise TypeError(f"array {name!r} has fields, which are not saved; pass each as an array of its own")
    return array


def _plain(value: Any, where: str) -> Any:
    """Convert a value to one that JSON can hold, or say which part of it cannot be converted."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(one, f"{where}[{i}]") for i, one in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(one, f"{where}[{key!r}]") for key, one in value.items()}
    raise TypeError(f"{where} cannot be saved: {type(value).__name__} is not a number, string, list or dict")


# ---------------------------------------------------------------- reading


def read_archive(path: StrPath, kind: str | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_archive` wrote.

    Nothing in a file is trusted: no pickle, no compressed members (so that nothing is larger than the file
    says it is), checksums before contents, and every array has to fill its member exactly before memory is
    set aside for it.

    Parameters
    ----------
    kind : str, optional
        Refuse other kinds of content.

    Raises
    ------
    FileNotFoundError
        And other errors of the operating system, as they are.
    ValueError
        For a file that is not ours, not whole, of a newer format or of another kind.
    """
    target = real_path(path)
    if target.exists() and not target.is_file():
        raise ValueError(f"{os.fspath(path)} is not a file; pass the file that was saved")
    content = target.read_bytes()
    _refuse_others(path, content)
    try:
        arrays, metadata = _members(content)
    except Exception as error:  # a damaged file may raise anything; nothing outside of `content` is touched
        raise ValueError(
            f"{os.fspath(path)} is damaged or was not written by {FORMAT} ({error or type(error).__name__}); "
            "use another copy of it or write it again"
        ) from error
    _check_version(path, metadata)
    if sorted(arrays) != sorted(metadata["arrays"]):
        raise ValueError(f"{os.fspath(path)} is damaged: arrays are missing; use another copy of it")
    if kind is not None and metadata["kind"] != kind:
        do = READERS.get(metadata["kind"], "pass the right file")
        raise ValueError(f"{os.fspath(path)} holds a {metadata['kind']}, not a {kind}; {do}")
    return arrays, metadata


def archive_kind(path: StrPath) -> str | None:
    """Say what kind of content a file of ours has, or None for any other file; only its metadata are read."""
    target = real_path(path)
    if not target.is_file():
        return None
    try:
        with zipfile.ZipFile(target) as archive:
            info = archive.getinfo(f"{METADATA}.npy")
            if info.compress_type != zipfile.ZIP_STORED:
                return None
            metadata = json.loads(_array(archive, info).tobytes())
        return str(metadata["kind"]) if metadata["format"] == FORMAT else None
    except Exception:  # a file that is not ours may raise anything
        return None


def _refuse_others(path: StrPath, content: bytes) -> None:
    """Refuse an npz that is not ours, and say what it is."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except Exception:  # not a zip file, or a damaged one; `_members` reports it
        return
    if METADATA in names or not names:
        return
    if {"format", "shape", "data"} <= set(names):
        what = (
            "a sparse matrix; read it with scipy.sparse.load_npz(path), or log1pnmf.counts.read_table(path)"
        )
    else:
        what = f"an npz file with {', '.join(map(repr, sorted(names)[:5]))}; read it with numpy.load(path)"
    raise ValueError(f"{os.fspath(path)} was not written by {FORMAT}: it is {what}")


@contextmanager
def making_whole(where: str, remedy: str) -> Iterator[None]:
    """Turn every error that the contents of a file may raise into one ValueError.

    Parameters
    ----------
    where : str
        What holds them, the beginning of the message.
    remedy : str
        What to do about it, its end.
    """
    try:
        yield
    except Exception as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{where} that is incomplete ({reason}); {remedy}") from error


def check_numbers(name: str, array: Any, shape: tuple[int, ...], *, positive: bool = False) -> None:
    """Refuse what is not an array of that shape, of finite float64 that are not negative.

    Parameters
    ----------
    name : str
        For the message.
    positive : bool
        Whether to refuse zeros as well.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.shape != shape:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else repr(array)
        raise ValueError(f"{name} must be float64 of shape {shape}, got {got}")
    bad = ~(np.isfinite(array) & (array > 0.0 if positive else array >= 0.0))
    if bad.any():
        what = "positive" if positive else "not negative"
        raise ValueError(f"{name} must be finite and {what}, got {array[bad][0]}")


def check_value(name: str, value: Any, kind: type) -> None:
    """Refuse what is not of that kind: bool, str, int (not negative), or float (also inf and NaN).

    Parameters
    ----------
    name : str
        For the message.
    """
    accepted: Any = (int, float) if kind is float else kind
    fits = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
    if not fits or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r:.100}")
    if kind is int and value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def _check_version(path: StrPath, metadata: Mapping[str, Any]) -> None:
    """Refuse a file that a later version of the package wrote: its meaning is not known."""
    version = metadata["format_version"]
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{os.fspath(path)} has format version {version} (of {FORMAT} {metadata['package_version']}), "
            f"but this is {FORMAT} {__version__}, which reads versions up to {FORMAT_VERSION}: "
            f"pip install -U {FORMAT}"
        )


def _members(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [info.filename for info in archive.infolist()]
        if len(set(names)) < len(names) or f"{METADATA}.npy" not in names:
            raise ValueError("its table of contents is not ours")
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"{info.filename} is compressed")
        broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"the checksum of {broken} does not match")
        arrays = {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
    metadata = json.loads(arrays.pop(METADATA).tobytes())
    types = {"format": str, "format_version": int, "package_version": str, "kind": str, "arrays": list}
    if any(not isinstance(metadata[name], kind) for name, kind in types.items()):
        raise ValueError("its metadata are not ours")
    if metadata["format"] != FORMAT or metadata["format_version"] < 1:
        raise ValueError(f"its format is {metadata['format']!r}, version {metadata['format_version']}")
    return arrays, metadata


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        npy_header(member, info.file_size, info.filename)
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)
