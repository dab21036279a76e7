"""Poisson non-negative matrix factorisation with the shifted-log link."""

from importlib import import_module
from typing import Any

from log1pnmf import datasets
from log1pnmf._common.version import __version__
from log1pnmf.estimator import Log1pNMF
from log1pnmf.fitting.fitting import ApproximationWarning, fit_log1p_nmf

# Also named in __all__; loaded when first used: they need optional packages, or are not needed by everyone.
SUBMODULES: tuple[str, ...] = (
    "diagnostics",
    "markers",
    "metrics",
    "pl",
    "report",
    "select",
    "stability",
    "tl",
)

__all__ = [
    "ApproximationWarning",
    "Log1pNMF",
    "__version__",
    "datasets",
    "diagnostics",
    "fit_log1p_nmf",
    "markers",
    "metrics",
    "pl",
    "report",
    "select",
    "stability",
    "tl",
]


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        try:
            return import_module(f".{name}", __name__)
        except ImportError as error:  # hasattr, help and inspect expect an AttributeError
            raise AttributeError(f"{__name__}.{name} cannot be loaded: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
