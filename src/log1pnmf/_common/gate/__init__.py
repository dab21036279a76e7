"""`open_store`, the only way to open HDF5 and zarr files that are not trusted."""

from .store import Store, open_store

__all__ = ["Store", "open_store"]
