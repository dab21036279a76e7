"""Poisson non-negative matrix factorisation with the shifted-log link."""

from . import datasets
from .estimator import Log1pNMF
from .fitting import ApproximationWarning, fit_log1p_nmf
from .version import __version__

__all__ = ["ApproximationWarning", "Log1pNMF", "__version__", "datasets", "fit_log1p_nmf"]
