"""HDF5 files and zarr folders, opened and checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from log1pnmf._common.optional import require
from log1pnmf._common.untrusted import Budget, check_regular

from .hdf5 import Hdf5Store
from .zarr import ZarrStore, check_folder

__all__ = ["Store", "open_store"]


class Store(Protocol):
    """An open file of which only checked parts are given out."""

    root: Any
    budget: Budget

    def __contains__(self, name: str) -> bool:
        """Whether there is something of this name."""
        ...

    def members(self, name: str) -> list[str]:
        """Names in a group; none where it is not there."""
        ...

    def node(self, name: str, *, whole: bool = True) -> Any:
        """Give a group or array after a look at everything below it; `whole`: all of it goes into memory."""
        ...


def open_store(path: os.PathLike[str] | str, budget: Budget) -> Store:
    """Open an HDF5 file or a zarr folder for reading.

    Nothing is given out that is not in the file itself: links, external storage, virtual datasets, references
    to other places and codecs that are not known end with `BadFileError`.

    Parameters
    ----------
    budget : Budget
        Charged with what is given out.

    Returns
    -------
    Store
        ``store.root.close()`` closes an HDF5 file.
    """
    check_regular(path)
    if os.path.isdir(path):
        check_folder(Path(path), budget)
        return ZarrStore(open_zarr(path), budget)
    h5py = require("h5py", package="anndata", purpose="reading HDF5 files")
    return Hdf5Store(h5py.File(path, "r"), budget)


def open_zarr(path: os.PathLike[str] | str) -> Any:
    """Open a zarr folder by the descriptions of its arrays; consolidated metadata may contradict them."""
    zarr = require("zarr", purpose="reading .zarr folders")
    newer = int(zarr.__version__.split(".")[0]) > 2
    return zarr.open_group(os.fspath(path), mode="r", **({"use_consolidated": False} if newer else {}))
