"""A place for HDF5 files that survives a full disk."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from log1pnmf._common.optional import require

__all__ = ["created_hdf5"]


class Sink:
    """A file whose writes never raise: it keeps the first error and ignores all later writes.

    HDF5 crashes the process if a write fails while it closes a file.

    Parameters
    ----------
    file : file
        For reading and writing bytes, without a buffer.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        """Write all bytes; a file without a buffer may take only some at once."""
        left = memoryview(data)
        while left.nbytes and self.error is None:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int) -> int:
        """Set the length."""
        try:
            self._file.truncate(size)
        except OSError as error:
            self.error = self.error or error
        return size

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def read(self, size: int = -1) -> bytes:
        """Read bytes."""
        return self._file.read(size)

    def readinto(self, buffer: Any) -> int:
        """Read bytes into memory; zeros where nothing is."""
        view = memoryview(buffer)
        n: int = self._file.readinto(view)  # type: ignore[attr-defined]
        view[n:] = bytes(len(view) - n)
        return len(view)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Give the present place."""
        return self._file.tell()


@contextmanager
def created_hdf5(path: Path) -> Iterator[Any]:
    """Open a new HDF5 file; where it cannot be written to the end, there is one OSError."""
    h5py = require("h5py", package="anndata", purpose="writing .h5ad files")
    with open(path, "w+b", buffering=0) as file:
        sink = Sink(file)
        try:
            with _not_inside(sink), h5py.File(sink, "w") as store:
                yield store
        except Exception:
            if sink.error is None:
                raise
        if isinstance(sink.error, OSError):  # the error of HDF5 is only a consequence of it
            raise OSError(sink.error.errno, sink.error.strerror, str(path)) from None
        if sink.error is not None:
            raise sink.error


@contextmanager
def _not_inside(sink: Sink) -> Iterator[None]:
    """Keep signals from interrupting a method that HDF5 has called; they are raised when HDF5 is done."""
    inside = {method.__code__ for method in vars(Sink).values() if hasattr(method, "__code__")}
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code in inside:
                sink.error = sink.error or KeyboardInterrupt()
                return
            frame = frame.f_back
        before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        held = {number: signal.getsignal(number) for number in signal.valid_signals()}
        before = {number: handler for number, handler in held.items() if callable(handler)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
