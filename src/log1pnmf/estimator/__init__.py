"""The scikit-learn face of the package."""

from .estimator import Log1pNMF

__all__ = ["Log1pNMF"]
