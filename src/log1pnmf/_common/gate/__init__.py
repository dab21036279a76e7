"""The one way into HDF5 and zarr files from strangers: `open_store`."""

from .store import Store, open_store

__all__ = ["Store", "open_store"]
