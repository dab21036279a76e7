"""Optional packages: imported when they are used, named in the error when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["require"]


def require(module: str, *, extra: str | None = None, purpose: str) -> ModuleType:
    """Import an optional package.

    Parameters
    ----------
    module : str
        What to import.
    extra : str, optional
        The extra of this package that brings it; by default it is installed by its own name.
    purpose : str
        What it is needed for, the beginning of the error.

    Raises
    ------
    ImportError
        Where it is not installed, with the command that does it.

    Examples
    --------
    >>> require("json", extra="plot", purpose="plotting").loads("[1]")
    [1]
    >>> require("no_such_package", extra="plot", purpose="plotting")
    Traceback (most recent call last):
    ImportError: plotting needs: pip install 'log1pnmf[plot]' (No module named 'no_such_package')
    """
    try:
        return import_module(module)
    except ImportError as error:
        what = module if extra is None else f"'log1pnmf[{extra}]'"
        raise ImportError(f"{purpose} needs: pip install {what} ({error})") from error
