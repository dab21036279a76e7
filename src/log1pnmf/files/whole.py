"""Files and folders that come into being whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from log1pnmf.persist import StrPath

__all__ = ["building", "check_place"]


def check_place(path: StrPath, *, force: bool = False) -> Path:
    """Refuse a place where nothing can or should be written, before any work is done.

    Parameters
    ----------
    path : str or PathLike
        Of a file or folder.
    force : bool
        Whether something that is there may be replaced.

    Returns
    -------
    Path
    """
    place = Path(os.path.abspath(path))
    if place.exists() and not force:
        raise FileExistsError(
            f"{os.fspath(path)} already exists; choose another name or replace it (--force)"
        )
    if not place.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {place.parent} for {place.name}: make it first")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError(f"{os.fspath(path)} cannot be written: folder {place.parent} is not writable")
    return place


@contextmanager
def building(path: StrPath, *, force: bool = False) -> Iterator[Path]:
    """Give a temporary name beside `path` for a file or folder, which is renamed if all goes well.

    Whatever goes wrong leaves `path` as it was. Where something is replaced, it is moved aside first and
    removed last.

    Parameters
    ----------
    path : str or PathLike
    force : bool
        Whether something that is there may be replaced.

    Yields
    ------
    Path
        Nothing is there yet: make a file or a folder. It has the ending of `path`.
    """
    place = check_place(path, force=force)
    # Its own ending comes last: writers choose their format by it.
    temporary = place.with_name(f".{secrets.token_hex(8)}.tmp.{place.name}")
    try:
        yield temporary
        _move(temporary, place)
    except BaseException:
        remove(temporary)
        raise


def _move(temporary: Path, place: Path) -> None:
    if not place.exists() or (place.is_file() and temporary.is_file()):
        os.replace(temporary, place)
        return
    aside = place.with_name(f".{secrets.token_hex(8)}.old.{place.name}")
    os.rename(place, aside)
    try:
        os.rename(temporary, place)
    except BaseException:
        os.rename(aside, place)
        raise
    remove(aside)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
