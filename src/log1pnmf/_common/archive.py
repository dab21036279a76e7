"""One file for arrays and their metadata: npz and JSON, no pickle, written atomically.

A file is an ordinary uncompressed npz (`numpy.load` opens it). Its member ``metadata`` is a JSON text as
bytes: format name and version, version of the package, kind of content, names of the arrays, and whatever the
writer adds. Numbers come back with the same bits, inf and NaN included.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from types import FrameType, NoneType, UnionType
from typing import Any, BinaryIO, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from .arrays import Rows, on_host
from .checks import __version__, check_choice
from .safe_files import npy_header

# ---------- atomic writing: a file or folder appears whole or not at all

StrPath: TypeAlias = str | os.PathLike[str]


def real_path(path: StrPath, argument: str = "path") -> Path:
    """Follow links: the file that a link points to is written, and the link stays."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TypeError(f"{argument} must be the path of a file, got {path!r}")
    return Path(os.path.realpath(path))


def check_writable(path: StrPath, argument: str = "path") -> Path:
    """Refuse a place where no file can be written, before any work is done; a file there may be replaced."""
    target = real_path(path, argument)
    if target.is_dir():
        raise IsADirectoryError(f"{argument} must be a file, but {target} is a folder")
    _check_folder(target, f"{argument} is {target}")
    return target


def check_place(path: StrPath, *, force: bool = False) -> Path:
    """Refuse a place where nothing can or should be written, before any work is done."""
    place = Path(os.path.abspath(path))
    if place.exists() and not force:
        raise FileExistsError(f"{os.fspath(path)} already exists; choose another or replace it (--force)")
    _check_folder(place, f"{os.fspath(path)} is to be written")
    return place


def _check_folder(place: Path, what: str) -> None:
    if not place.parent.is_dir():
        raise FileNotFoundError(f"{what}, but there is no folder {place.parent}: make it first")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError(f"{what}, but the folder {place.parent} cannot be written to")


@contextmanager
def replacing(path: StrPath) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` if all goes well, and survives a power failure."""
    target = check_writable(path)
    with building(target, force=True) as temporary, open(temporary, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    if os.name == "posix":  # flush the rename; Windows cannot do that
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def building(path: StrPath, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary place for a file or folder, which is moved to `path` if all goes well.

    Whatever goes wrong leaves `path` as it was; only a killed process leaves its ``.<random>.tmp``.
    """
    place = check_place(path, force=force)
    aside = place.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        aside.mkdir()
        yield aside / place.name
        _move(aside / place.name, place, force=force)
    finally:
        remove(aside)


def _move(temporary: Path, place: Path, *, force: bool) -> None:
    """Move something to its place; without `force` only if nothing has appeared there meanwhile."""
    if place.exists() and not force:
        raise FileExistsError(
            f"{place} was made by someone else in the meantime and is not replaced; choose another name"
        )
    if not place.exists() or (place.is_file() and temporary.is_file()):
        os.replace(temporary, place)
    else:
        old = temporary.parent.with_suffix(".old")
        os.rename(place, old)
        try:
            os.rename(temporary, place)
        except BaseException:
            os.rename(old, place)
            raise
        remove(old)


@contextmanager
def claimed(path: StrPath) -> Iterator[Path]:
    """Lock a folder for this process; make it if there is none, and then remove it if it stays empty."""
    place = check_place(path, force=True)
    made = True
    try:
        os.mkdir(place)
    except FileExistsError:
        made = False
    lock = _locked(place)
    try:
        yield place
    finally:
        if made:
            with suppress(OSError):  # not empty: there is something to keep
                os.rmdir(place)
        if lock is not None:
            os.close(lock)


def _locked(place: Path) -> int | None:
    """Lock a folder. The lock goes with the process, however that ends; Windows has none for folders."""
    if not place.is_dir():
        raise FileExistsError(f"{place} exists and is not a folder; choose another name")
    if os.name != "posix":
        return None
    import fcntl

    in_use = f"{place} is in use: another run writes to it; wait for that one or choose another name"
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FileExistsError(in_use) from None
    except OSError:  # a file system without locks
        return descriptor
    if not place.is_dir() or not os.path.samestat(os.fstat(descriptor), os.stat(place)):
        os.close(descriptor)  # the other run has just removed its folder
        raise FileExistsError(in_use)
    return descriptor


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    while path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):  # threads of zarr may still be at work
                raise
    path.unlink(missing_ok=True)


# ---------- signals that end a program

# SIGTERM is how schedulers end a job, SIGHUP what a closed terminal sends; Windows has not all of them.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def handled(numbers: list[int], handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Borrow signals; those that are ignored (nohup) stay so."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}
    taken = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


# ---------- one file for arrays and their metadata: npz and JSON, no pickle, written atomically

FORMAT = "log1pnmf"
FORMAT_VERSION = 1
METADATA = "metadata"
READERS = {
    "fit": "read it with log1pnmf.Fit.load(path)",
    "checkpoint": "go on with it in fit(X, resume=path)",
    "selection": "go on with it in log1pnmf.analysis.select.select(..., resume=path)",
}  # kinds of content, and what they are for


def write_archive(path: StrPath, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write arrays and metadata (as JSON, with the "kind" of content) to one file, whole or not at all."""
    own = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "arrays": list(arrays),
    }
    text = json.dumps({**metadata, **own}, default=_plain)
    members = {METADATA: np.frombuffer(text.encode(), dtype=np.uint8), **arrays}
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in members.items():
            # a fresh ZipInfo holds no time of day, so that the same content gives the same file
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"metadata cannot hold {value!r:.100}: it is not a number, string, list or dict")


def read_archive(path: StrPath, kind: str | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_archive` wrote; nothing in the file is trusted."""
    target = real_path(path)
    if target.exists() and not target.is_file():
        raise ValueError(f"{os.fspath(path)} is not a file; pass the file that was saved")
    try:
        arrays, metadata = _members(target)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(
            f"{os.fspath(path)} is damaged or was not written by {FORMAT} ({error or type(error).__name__}); "
            "use another copy of it or write it again"
        ) from error
    version = metadata["format_version"]
    if version > FORMAT_VERSION:  # what it means is not known
        raise ValueError(
            f"{os.fspath(path)} has format version {version} (of {FORMAT} {metadata['package_version']}), "
            f"but this is {FORMAT} {__version__}, which reads versions up to {FORMAT_VERSION}: "
            f"pip install -U {FORMAT}"
        )
    if sorted(arrays) != sorted(metadata["arrays"]):
        raise ValueError(f"{os.fspath(path)} is damaged: arrays are missing; use another copy of it")
    if kind is not None and metadata["kind"] != kind:
        do = READERS.get(metadata["kind"], "pass the right file")
        raise ValueError(f"{os.fspath(path)} holds a {metadata['kind']}, not a {kind}; {do}")
    return arrays, metadata


def archive_kind(path: StrPath) -> str | None:
    """Return the kind of content of a file of log1pnmf; None for any other file."""
    target = real_path(path)
    try:
        return str(_members(target)[1]["kind"]) if target.is_file() else None
    except Exception:  # any other file may raise anything
        return None


@contextmanager
def making_whole(where: str, remedy: str) -> Iterator[None]:
    """Turn every error that the contents of a file may raise into one ValueError."""
    try:
        yield
    except Exception as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{where} that is incomplete ({reason}); {remedy}") from error


def check_numbers(name: str, array: Any, shape: tuple[int, ...], *, positive: bool = False) -> None:
    """Refuse what is not an array of that shape, of finite float64 that are not negative."""
    if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.shape != shape:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else repr(array)
        raise ValueError(f"{name} must be float64 of shape {shape}, got {got}")
    bad = ~(np.isfinite(array) & (array > 0.0 if positive else array >= 0.0))
    if bad.any():
        what = "positive" if positive else "not negative"
        raise ValueError(f"{name} must be finite and {what}, got {array[bad][0]}")


def check_value(name: str, value: Any, kind: type) -> None:
    """Refuse what is not of that kind: bool, str, int (not negative), or float (also inf and NaN)."""
    accepted: Any = (int, float) if kind is float else kind
    fits = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
    if not fits or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r:.100}")
    if kind is int and value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def _members(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        names = [info.filename for info in archive.infolist()]
        if f"{METADATA}.npy" not in names:
            there = ", ".join(sorted(name.removesuffix(".npy") for name in names)[:5])
            raise ValueError(f"it has {there}: read it with numpy.load or scipy.sparse.load_npz")
        if len(set(names)) < len(names):
            raise ValueError("its table of contents has a name twice")
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
        raise ValueError("its metadata are not those of log1pnmf")
    if metadata["format"] != FORMAT or metadata["format_version"] < 1:
        raise ValueError(f"its format is {metadata['format']!r}, version {metadata['format_version']}")
    return arrays, metadata


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        npy_header(member, info.file_size, info.filename)
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


# ---------- one codec for dataclasses: nested dicts of plain values and arrays, and back


def to_tree(value: Any) -> Any:
    """Return a dataclass as nested dicts of plain values and arrays; fields without repr are left out."""
    if is_dataclass(value):
        return {field.name: to_tree(getattr(value, field.name)) for field in _kept(value)}
    if isinstance(value, Mapping):
        return {name: to_tree(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_tree(one) for one in value]
    if isinstance(value, Rows) or (hasattr(value, "dtype") and not isinstance(value, np.generic)):
        array = on_host(value)
        return array.astype(np.str_) if array.dtype == object else array
    return value


def from_tree(kind: Any, tree: Any, place: str = "") -> Any:
    """Return the object that `to_tree` took apart; whatever is not of the annotated types is refused."""
    origin, inner, name = get_origin(kind) or kind, get_args(kind), place or "the content"
    if kind is Any or (tree is None and NoneType in inner):
        return tree
    if origin in (Union, UnionType):
        *others, last = (one for one in inner if one is not NoneType)
        for one in others:
            with suppress(ValueError):
                return from_tree(one, tree, place)
        return from_tree(last, tree, place)
    if not is_dataclass(origin):
        return _leaf(name, origin, inner, tree)
    names, types = [field.name for field in _kept(origin)], get_type_hints(origin)
    _check_type(name, tree, dict)
    if set(tree) != set(names):
        raise ValueError(f"{name} must have {', '.join(names)}, got {', '.join(tree)}")
    before = f"{place}." if place else ""
    made: Any = origin
    return made(**{one: from_tree(types[one], tree[one], before + one) for one in names})


def _leaf(name: str, origin: Any, inner: tuple[Any, ...], tree: Any) -> Any:
    """Return an array, a tuple, a dict or a plain value of an annotated type."""
    if origin in (np.ndarray, NDArray):  # from NumPy 2.5 on NDArray is an alias with the dtype alone
        _check_type(name, tree, np.ndarray)
        dtype = inner[-1] if inner else Any
        dtype = next(iter(get_args(dtype)), dtype)
        if dtype is np.object_ and tree.dtype.kind == "U":  # text
            return tree.astype(object)
        if dtype is not Any and tree.dtype != dtype:
            wanted = "text" if dtype is np.object_ else np.dtype(dtype)
            raise ValueError(f"{name} must be {wanted}, got {tree.dtype} of shape {tree.shape}")
        return tree
    if origin is tuple:
        tree = tree.tolist() if isinstance(tree, np.ndarray) else tree
        _check_type(name, tree, list)
        types = inner[:1] * len(tree) if inner[-1] is Ellipsis else inner
        tree = tuple(from_tree(one, part, name) for one, part in zip(types, tree, strict=True))
    elif origin is Literal:
        check_choice(name, tree, inner)
    elif issubclass(origin, Mapping):
        _check_type(name, tree, dict)
        tree = {key: from_tree(inner[1], one, f"{name}.{key}") for key, one in tree.items()}
    else:
        check_value(name, tree, origin)
    return float(tree) if origin is float else tree


def _kept(kind: Any) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.init and field.repr]


def _check_type(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {value!r:.100}")


def split_arrays(tree: Mapping[str, Any], before: str = "") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a tree, named by their places ("history.loss"), and the tree without them."""
    arrays: dict[str, np.ndarray] = {}
    rest: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, np.ndarray):
            arrays[before + name] = value
        elif isinstance(value, Mapping):
            inside, rest[name] = split_arrays(value, f"{before}{name}.")
            arrays |= inside
        else:
            rest[name] = value
    return arrays, rest


def join_arrays(arrays: Mapping[str, np.ndarray], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree that `split_arrays` took apart."""
    tree = {name: join_arrays({}, one) if isinstance(one, Mapping) else one for name, one in rest.items()}
    for name, array in arrays.items():
        *groups, last = name.split(".")
        node = tree
        for group in groups:
            node = node[group]
            _check_type(group, node, dict)
        node[last] = array
    return tree
