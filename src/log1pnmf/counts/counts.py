"""Anything count-like becomes `Counts`: checked once at the door, trusted afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.arrays import on_host
from log1pnmf._common.checks import check_choice
from log1pnmf._common.warn import warn
from log1pnmf._common.words import plural

from .compress import checked_rows, compress_dense
from .factorial import stirling
from .given import check_unmasked, checked_matrix, frame_of, names_of, refuse_others
from .sparse_rows import SparseRows, checksum_of, pieces
from .tally import Tally

__all__ = ["Counts", "SparseRows", "check_size_factors"]

SIZE_FACTORS = ("total", "fit", "none")
"""Size factors by name."""


@dataclass(frozen=True, eq=False)
class Counts:
    """A checked count matrix, samples by features. Make one with `Counts.from_any`.

    Parameters
    ----------
    by_row : SparseRows
        The matrix, n_samples x n_features.
    _columns : SparseRows, optional
        Its transpose, where it is already there; otherwise `by_column` makes it when first asked for.
    sample_names, feature_names : ndarray of str, optional
        Names of rows and columns, where the input had them.

    Examples
    --------
    >>> counts = Counts.from_any([[0, 2, 1], [3, 0, 0]])
    >>> counts.shape, counts.nnz, counts.total
    ((2, 3), 3, 6.0)
    >>> counts.size_factors("total")
    array([1., 1.])
    """

    by_row: SparseRows
    _columns: SparseRows | None = None
    sample_names: np.ndarray | None = None
    feature_names: np.ndarray | None = None

    @classmethod
    def from_any(cls, X: Any) -> Counts:
        """Check a count matrix and compress it.

        Stored zeros are dropped and duplicates summed. The input is never modified; where its arrays
        already have the right form (canonical CSR or CSC, int32 indices, float32 values) they are
        shared, not copied, so do not change them while the result is in use.
        Counts above 2**53 are rounded to the nearest double.

        Parameters
        ----------
        X : array, scipy.sparse matrix or array of any format, data frame, nested list, or Counts
            Non-negative finite numbers, samples x features. Data frames are those of pandas and polars, and
            pyarrow tables.

        Returns
        -------
        Counts

        Raises
        ------
        ValueError
            For negative, NaN, infinite or complex values and those above 1e100, for feature names that occur
            twice, for masked and missing entries, and where X is not two-dimensional or is empty.
        TypeError
            For things that are not numbers: paths, texts, AnnData objects; with what to do instead.

        Warns
        -----
        UserWarning
            For values that are not whole numbers.
        """
        if isinstance(X, Counts):
            return X
        refuse_others(X)
        X = frame_of(X)
        matrix = checked_matrix(X)
        columns = None
        if not sparse.issparse(matrix):
            rows, fractional = compress_dense(matrix)
        elif matrix.format == "csc":
            columns, fractional = checked_rows(matrix.T, transposed=True)
            rows = columns.transpose()
        else:
            rows, fractional = checked_rows(matrix)
        if fractional is not None:
            warn(fractional, UserWarning)
        sample_names, feature_names = names_of(X)
        return cls(rows, columns, sample_names, feature_names)

    def part_in_memory(self, most: int | None = None) -> tuple[Counts, NDArray[np.int64]]:
        """Give samples whose entries are in memory (here, all are), and which ones they are.

        Parameters
        ----------
        most : int, optional
            If there are more, so many random ones, always the same.

        Returns
        -------
        counts : Counts
        rows : ndarray of int
        """
        rows = np.arange(self.n_samples)
        if most is None or most >= self.n_samples:
            return self, rows
        rows = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        names = None if self.sample_names is None else self.sample_names[rows]
        part = Counts.from_any(self.to_scipy()[rows])
        return Counts(part.by_row, None, names, self.feature_names), rows

    def checksum(self) -> str:
        """Tell these counts from others."""
        rows = self.by_row
        return checksum_of(map(on_host, (rows.indptr, rows.indices, rows.values)))

    @property
    def in_memory(self) -> bool:
        """Whether the entries are at hand; otherwise they are in chunks."""
        return True

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return self.by_row.shape

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.shape[1]

    @property
    def nnz(self) -> int:
        """Number of entries that are not zero."""
        return self.by_row.nnz

    @cached_property
    def by_column(self) -> SparseRows:
        """The transpose, n_features x n_samples; made when first asked for."""
        return self.by_row.transpose() if self._columns is None else self._columns

    @cached_property
    def row_sums(self) -> np.ndarray:
        """Total count of every sample (read-only)."""
        sums = self.by_row.row_sums()
        sums.flags.writeable = False
        return sums

    @property
    def total(self) -> float:
        """Sum of all counts."""
        return float(self.row_sums.sum())

    @property
    def n_empty_rows(self) -> int:
        """Number of samples without any count."""
        return int(np.count_nonzero(np.diff(self.by_row.indptr) == 0))

    @cached_property
    def n_empty_columns(self) -> int:
        """Number of features without any count."""
        seen = np.zeros(self.n_features, dtype=bool)
        for piece in pieces(self.by_row.indices):
            seen[piece] = True
        return int(np.count_nonzero(~seen))

    @cached_property
    def sum_of_squares(self) -> float:
        """Sum over all entries of y**2."""
        squares = (np.square(piece, dtype=np.float64).sum() for piece in pieces(self.by_row.values))
        return float(sum(squares))

    @cached_property
    def log_factorial(self) -> float:
        """Sum over all entries of log(y!), the constant of the Poisson log-likelihood."""
        often, sums = np.zeros(256, dtype=np.int64), []
        for piece in pieces(self.by_row.values):
            small = np.minimum(piece, 255.0).astype(np.uint8)
            other = small != piece
            often += np.bincount(small, minlength=256)
            often -= np.bincount(small[other], minlength=256)
            sums.append(float(scipy.special.gammaln(piece[other].astype(np.float64) + 1.0).sum()))
        return math.fsum([*sums, *(often * scipy.special.gammaln(np.arange(1.0, 257.0)))])

    @cached_property
    def stirling(self) -> float:
        """Sum over the counts of log(y!) - y log(y) + y: what each costs at a mean of its own size."""
        return math.fsum(float(stirling(piece).sum()) for piece in pieces(self.by_row.values))

    @cached_property
    def tally(self) -> Tally:
        """How often every feature has every count."""
        return Tally.of(self.by_column)

    def on_host(self) -> Counts:
        """Give the same counts in the memory of the host, where these are."""
        return self

    def size_factors(self, kind: Any) -> np.ndarray:
        """Size factor of every sample.

        Parameters
        ----------
        kind : {"total", "fit", "none"} or array-like of shape (n_samples,)
            "total": the sample's total count divided by the mean total, 1 for samples without counts; "fit":
            the same, from which a fit begins;
            "none": ones; an array is checked and copied.

        Returns
        -------
        ndarray of float64, shape (n_samples,)
        """
        check_size_factors(kind)
        if isinstance(kind, str):
            if kind == "none":
                return np.ones(self.n_samples)
            sums = self.row_sums
            return np.divide(sums, sums.mean(), out=np.ones(self.n_samples), where=sums > 0)
        return _checked_size_factors(kind, self.n_samples)

    def to_scipy(self) -> sparse.csr_array:
        """Return the counts as a SciPy CSR array that shares the (read-only) memory."""
        return self.by_row.to_scipy()


def check_size_factors(kind: object) -> None:
    """Refuse what is neither one of `SIZE_FACTORS` nor may be an array."""
    if kind is None:
        raise ValueError(
            "size_factors must not be None; pass 'none' if all samples have the same size, "
            "or 'total' to divide by their total counts"
        )
    if isinstance(kind, str):
        check_choice("size_factors", kind, SIZE_FACTORS, otherwise="an array")


def _checked_size_factors(given: Any, n_samples: int) -> np.ndarray:
    check_unmasked(given, "size_factors")
    try:
        factors = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"size_factors must be 'total', 'fit', 'none' or an array of numbers, got {type(given).__name__}"
        ) from error
    if factors.shape != (n_samples,):
        raise ValueError(
            f"size_factors must have one number for each of the {n_samples} samples, "
            f"got an array of shape {factors.shape}; pass an array of length {n_samples}"
        )
    extreme = (factors > 0) & np.isfinite(factors) & ((factors < 1e-30) | (factors > 1e30))
    if extreme.any():
        raise ValueError(
            f"size_factors must be between 1e-30 and 1e30, got {factors[np.argmax(extreme)]} at position "
            f"{int(np.argmax(extreme))}; divide them by their mean, and drop samples of another scale"
        )
    bad = ~(np.isfinite(factors) & (factors > 0))
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"size_factors must be positive and finite, got {factors[first]} at position {first} "
            f"({plural(int(bad.sum()), 'bad entry', 'bad entries')}); give every sample a positive number"
        )
    return factors
