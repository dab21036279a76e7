"""What a fit remembers of its counts, and its exact log-likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

from log1pnmf._common.archive import check_value
from log1pnmf.counts.counts import Counts

__all__ = ["Certificate", "DataFacts"]


@dataclass(frozen=True)
class DataFacts:
    """Size of the data: samples, features, non-zeros, total.

    Parameters
    ----------
    n_samples, n_features, nnz : int
        Rows, columns and entries that are not zero.
    total : float
        Sum of all counts.
    n_empty_samples, n_empty_features : int
        Rows and columns without any count.
    """

    n_samples: int
    n_features: int
    nnz: int
    total: float
    n_empty_samples: int = 0
    n_empty_features: int = 0

    @classmethod
    def of(cls, counts: Counts) -> DataFacts:
        """Look at counts."""
        return cls(*counts.shape, counts.nnz, counts.total, counts.n_empty_rows, counts.n_empty_columns)

    def check(self) -> None:
        """Refuse values that only a damaged or forged file can hold."""
        for name in ("n_samples", "n_features", "nnz", "n_empty_samples", "n_empty_features"):
            check_value(f"data.{name}", getattr(self, name), int)
        check_value("data.total", self.total, float)
        if self.n_samples < 1 or not 0.0 < self.total < math.inf:
            raise ValueError(f"data must have samples and counts, got {self}")

    @property
    def mean_total(self) -> float:
        """Mean total count of a sample."""
        return self.total / self.n_samples

    @property
    def n_entries(self) -> int:
        """Samples times features."""
        return self.n_samples * self.n_features


@dataclass(frozen=True)
class Certificate:
    """Exact log-likelihood of a fit, and what the approximation cost.

    Parameters
    ----------
    log_likelihood : float
        Full Poisson log-likelihood without approximation: exact, or an unbiased estimate.
    standard_error : float
        Standard error of `log_likelihood`; 0 if it is exact.
    approximate_log_likelihood : float or None
        Log-likelihood that the fit maximised; None for an exact fit.
    n_sampled : int
        Number of rows that were visited.
    n_samples : int
        Number of rows of the data.
    zeros_error : float
        Sum of the absolute errors at zero counts of an adaptive fit, which bounds `gap`; otherwise 0.
    """

    log_likelihood: float
    standard_error: float
    approximate_log_likelihood: float | None
    n_sampled: int
    n_samples: int
    zeros_error: float = 0.0

    def check(self) -> None:
        """Refuse values that only a damaged or forged file can hold."""
        for name in ("log_likelihood", "standard_error", "zeros_error"):
            check_value(f"certificate.{name}", getattr(self, name), float)
        if self.approximate_log_likelihood is not None:
            check_value("certificate.approximate_log_likelihood", self.approximate_log_likelihood, float)
        for name in ("n_sampled", "n_samples"):
            check_value(f"certificate.{name}", getattr(self, name), int)

    @property
    def is_exact(self) -> bool:
        """Whether every row was visited."""
        return self.n_sampled == self.n_samples

    @property
    def gap(self) -> float:
        """Approximate minus exact log-likelihood; 0 for an exact fit."""
        approximate = self.approximate_log_likelihood
        return 0.0 if approximate is None else approximate - self.log_likelihood

    def __str__(self) -> str:
        value = f"{self.log_likelihood:,.1f}"
        if self.is_exact:
            text = f"exact log-likelihood {value}"
        else:
            text = (
                f"log-likelihood {value} +- {self.standard_error:,.1f} (estimated from "
                f"{self.n_sampled:,} of {self.n_samples:,} samples)"
            )
        if self.approximate_log_likelihood is None:
            return f"{text}; the fit was exact, there is no gap"
        share = abs(self.gap / self.log_likelihood) if self.log_likelihood else 0.0
        return f"{text}; the approximation is off by {self.gap:,.1f} ({share:.2g} of it)"
