"""Optional packages: imported when they are used, named in the error when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["require"]


def require(module: str, *, purpose: str, package: str = "") -> ModuleType:
    """Import an optional package.

    Parameters
    ----------
    module : str
        What to import.
    purpose : str
        What it is needed for, the beginning of the error.
    package : str
        What to install; by default the first part of `module`.

    Raises
    ------
    ImportError
        Where it is not installed, with the command that does it.

    Examples
    --------
    >>> require("json", purpose="reading").loads("[1]")
    [1]
    >>> require("absent", purpose="plotting")
    Traceback (most recent call last):
    ImportError: plotting needs absent: pip install absent (No module named 'absent')
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = package or module.partition(".")[0]
        raise ImportError(f"{purpose} needs {package}: pip install {package} ({error})") from error
