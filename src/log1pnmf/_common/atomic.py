"""Atomic writing: a file or folder appears whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

__all__ = [
    "StrPath",
    "building",
    "check_place",
    "check_writable",
    "claimed",
    "real_path",
    "remove",
    "replacing",
]

StrPath: TypeAlias = str | os.PathLike[str]


def real_path(path: StrPath, argument: str = "path") -> Path:
    """Follow links: the file that a link points to is written, and the link stays."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TypeError(f"{argument} must be the path of a file, got {path!r}")
    return Path(os.path.realpath(path))


def check_writable(path: StrPath, argument: str = "path") -> Path:
    """Refuse a place where no file can be written, before any work is done; a file there may be replaced.

    Parameters
    ----------
    argument : str
        What the user calls it.

    Returns
    -------
    Path
        Without links.
    """
    target = real_path(path, argument)
    if target.is_dir():
        raise IsADirectoryError(f"{argument} must be a file, but {target} is a folder")
    _check_folder(target, f"{argument} is {target}")
    return target


def check_place(path: StrPath, *, force: bool = False) -> Path:
    """Refuse a place where nothing can or should be written, before any work is done.

    Parameters
    ----------
    path : str or PathLike
        Of a file or folder.
    force : bool
        Whether to replace an existing file.
    """
    place = Path(os.path.abspath(path))
    if place.exists() and not force:
        raise FileExistsError(
            f"{os.fspath(path)} already exists; choose another name or replace it (--force)"
        )
    _check_folder(place, f"{os.fspath(path)} is to be written")
    return place


def _check_folder(place: Path, what: str) -> None:
    if not place.parent.is_dir():
        raise FileNotFoundError(f"{what}, but there is no folder {place.parent}: make it first")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError(f"{what}, but the folder {place.parent} cannot be written to")


@contextmanager
def replacing(path: StrPath) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` if all goes well, and survives a power failure.

    Yields
    ------
    file
        For writing bytes.
    """
    target = check_writable(path)
    with building(target, force=True) as temporary, open(temporary, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    """Flush a rename to the disk; Windows cannot do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def building(path: StrPath, *, force: bool = False) -> Iterator[Path]:
    """Give a temporary name beside `path` for a file or folder, which is renamed if all goes well.

    Whatever goes wrong leaves `path` as it was. Where something is replaced, it is moved aside first and
    removed last.

    Parameters
    ----------
    force : bool
        Whether to replace an existing file.

    Yields
    ------
    Path
        Nothing is there yet: make a file or a folder. It has the ending of `path`.
    """
    place = check_place(path, force=force)
    # Its own ending comes last: writers choose their format by it. A long name would not leave room for more.
    temporary = place.with_name(f".{secrets.token_hex(8)}.tmp{''.join(place.suffixes)[-16:]}")
    try:
        yield temporary
        _move(temporary, place, force=force)
    except BaseException:
        remove(temporary)
        raise


def _move(temporary: Path, place: Path, *, force: bool) -> None:
    """Move something to its place; without `force` only if nothing has appeared there meanwhile."""
    if not force:
        _move_to_free(temporary, place)
    elif not place.exists() or (place.is_file() and temporary.is_file()):
        os.replace(temporary, place)
    else:
        aside = place.with_name(f".{secrets.token_hex(8)}.old")
        os.rename(place, aside)
        try:
            os.rename(temporary, place)
        except BaseException:
            os.rename(aside, place)
            raise
        remove(aside)


def _move_to_free(temporary: Path, place: Path) -> None:
    """Rename without replacing anything: the system refuses to replace a folder, and to link over a file."""
    try:
        if temporary.is_dir():
            os.rename(temporary, place)
            return
        try:
            os.link(temporary, place)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if place.exists():
                raise FileExistsError(place) from None
            os.rename(temporary, place)
            return
        os.unlink(temporary)
    except OSError as error:
        if not place.exists():
            raise
        raise FileExistsError(
            f"{place} was made by someone else in the meantime and is not replaced; choose another name"
        ) from error


@contextmanager
def claimed(path: StrPath) -> Iterator[Path]:
    """Lock a folder for this process until the end of the block; make the folder if there is none.

    One that was made here and is still empty in the end is removed.
    """
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
        with suppress(FileNotFoundError):  # threads of zarr may still be clearing up
            shutil.rmtree(path)
    path.unlink(missing_ok=True)
