"""Poisson non-negative matrix factorisation with the shifted-log link."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from log1pnmf import counts, datasets
from log1pnmf._common.checks import __version__
from log1pnmf.counts.chunks import open_counts
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import Certificate, DataFacts, Fit
from log1pnmf.fitting.fit_counts import ApproximationWarning, fit_log1p_nmf
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.summary import background
from log1pnmf.model.noise import ShiftedLog

if TYPE_CHECKING:  # LAZY for editors and type checkers
    from log1pnmf import analysis, pl, report, tl
    from log1pnmf.analysis.metrics import dominant_factor, shares
    from log1pnmf.analysis.select import select
    from log1pnmf.analysis.stability import sweep
    from log1pnmf.estimator import Log1pNMF
    from log1pnmf.fitting import callbacks
    from log1pnmf.fitting.new_features import extend_features
    from log1pnmf.model import simulate

# Loaded when first used: they need optional packages or scikit-learn, or are not needed by everyone.
LAZY = {
    "Log1pNMF": "log1pnmf.estimator:Log1pNMF",
    "analysis": "log1pnmf.analysis",
    "callbacks": "log1pnmf.fitting.callbacks",
    "dominant_factor": "log1pnmf.analysis.metrics:dominant_factor",
    "extend_features": "log1pnmf.fitting.new_features:extend_features",
    "pl": "log1pnmf.pl",
    "report": "log1pnmf.report",
    "select": "log1pnmf.analysis.select:select",
    "shares": "log1pnmf.analysis.metrics:shares",
    "simulate": "log1pnmf.model.simulate",
    "sweep": "log1pnmf.analysis.stability:sweep",
    "tl": "log1pnmf.tl",
}

__all__ = [
    "ApproximationWarning",
    "Certificate",
    "DataFacts",
    "Fit",
    "Log1pNMF",
    "Settings",
    "ShiftedLog",
    "__version__",
    "analysis",
    "as_fit",
    "background",
    "callbacks",
    "counts",
    "datasets",
    "dominant_factor",
    "extend_features",
    "fit_log1p_nmf",
    "open_counts",
    "pl",
    "report",
    "select",
    "shares",
    "simulate",
    "sweep",
    "tl",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = LAZY[name].partition(":")
        try:
            found = import_module(module)
        except ImportError as error:  # hasattr, help and inspect expect an AttributeError
            raise AttributeError(f"{__name__}.{name} cannot be loaded: {error}") from error
        return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(__all__)
