"""PyTorch, the card and Triton need seconds to be ready: threads see to it while counts are checked."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable

__all__ = ["begin_loading", "driver", "start_card"]


def driver() -> ctypes.CDLL | None:
    """Give the library of the driver that PyTorch would load; None where there is none."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def begin_loading() -> Callable[[], object]:
    """Begin to load PyTorch, to start the card, and to prepare Triton.

    Returns
    -------
    callable
        Waits until PyTorch is loaded. Until then other packages would find half of a module: only code of
        this package and of SciPy's sparse matrices may run in between.
    """
    loaded = threading.Event()
    if "torch" in sys.modules:
        loaded.set()
    else:
        threading.Thread(target=_load, args=(loaded,)).start()
        threading.Thread(target=start_card).start()
    return loaded.wait


def _load(loaded: threading.Event) -> None:
    """Import PyTorch, and let Triton find out which compiled kernels are its own; errors come up in use."""
    with contextlib.suppress(Exception):
        try:
            import torch
        finally:
            loaded.set()
        if torch.cuda.is_available():
            from triton.runtime.cache import triton_key

            triton_key()  # reads its own files for 0.4 s, and remembers the result


def start_card() -> None:
    """Make the context of the first card, which PyTorch will use; this needs no Python."""
    cuda, card, context = driver(), ctypes.c_int(), ctypes.c_void_p()
    if cuda is not None and cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(card), 0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), card)
