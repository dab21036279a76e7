"""Anything count-like becomes `Counts`: checked once at the door, trusted afterwards."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from log1pnmf._common.arrays import on_host
from log1pnmf._common.checks import check_choice, check_one_each, plural, warn

from .compress import (
    CHUNK,
    MAX_INT32,
    SparseRows,
    canonical_rows,
    checksum_of,
    compress_dense,
    compress_sparse,
    pieces,
    row_blocks,
)

# ---------- what users pass as counts: refused, or taken as a matrix of numbers with names


def to_host(X: Any) -> Any:
    """Return a pyarrow table as a data frame, one of PyTorch or CuPy on the host, all else as it is."""
    package = type(X).__module__.partition(".")[0]
    if package == "pyarrow" and hasattr(X, "to_pandas"):
        return X.to_pandas()
    if package in ("cupy", "cupyx"):
        return X.get()
    if package != "torch":
        return X
    X = X.detach().cpu()
    if str(X.layout) == "torch.strided":
        return X.numpy()
    X = X.to_sparse_coo().coalesce()
    return sparse.coo_array((X.values().numpy(), X.indices().numpy()), shape=tuple(X.shape))


def holds_counts(matrix: Any) -> bool:
    """Whether all values of an array or sparse matrix are whole numbers, not negative."""
    values = np.asarray(matrix.data if sparse.issparse(matrix) else matrix)
    if values.dtype.kind in "bu":
        return True
    whole = values.dtype.kind == "i" or bool(np.isfinite(values).all() and (values == np.rint(values)).all())
    return whole and bool((values >= 0).all())


def check_unmasked(values: Any, what: str) -> None:
    """Refuse a masked array, or a list of them, in which an entry is masked: NumPy would drop the mask."""
    parts = values if isinstance(values, list | tuple) else [values]
    masked = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if masked:
        raise ValueError(
            f"{what} has {plural(masked, 'masked entry', 'masked entries')}, and missing values cannot be "
            "fitted; drop or fill them first, for instance with values.filled(0)"
        )


def refuse_others(X: Any) -> None:
    """Refuse objects that are not matrices themselves, and name the place of their counts."""
    if X is None:
        raise TypeError("counts is None; pass a matrix of counts, samples x features")
    if isinstance(X, str | os.PathLike):
        raise TypeError(
            f"counts must be a matrix, got the path {os.fspath(X)!r}; pass "
            "log1pnmf.counts.read_table(path).counts, or log1pnmf.open_counts(path) "
            "if the counts are larger than memory, or run the command `log1pnmf fit`"
        )
    if all(hasattr(X, name) for name in ("obs_names", "var_names", "layers")):
        raise TypeError(
            f"counts must be a matrix, got an {type(X).__name__} object; use log1pnmf.tl, which reads and "
            "writes such objects (log1pnmf.tl.log1p_nmf fits one), or pass its counts, adata.X or "
            "adata.layers['counts']"
        )
    one_by_one = isinstance(X, list | tuple) or (hasattr(X, "tolist") and getattr(X, "ndim", 0) == 1)
    if one_by_one and len(X) and all(isinstance(text, str) for text in X):
        raise TypeError(
            "counts must be numbers, got texts; count their words first, with "
            "sklearn.feature_extraction.text.CountVectorizer().fit_transform(texts)"
        )


def checked_matrix(X: Any) -> Any:
    """Turn the input into a numeric 2-d array or a CSR or CSC matrix, with scikit-learn's own messages."""
    from sklearn.utils import check_array  # it takes a second to load

    if isinstance(X, np.matrix):
        X = np.asarray(X)
    if sparse.issparse(X) and X.ndim > 2:
        raise ValueError(f"Found array with dim {X.ndim}, while dim <= 2 is required")
    twice = [name for name, n in Counter(getattr(X, "columns", ())).items() if n > 1]
    if twice:
        raise ValueError(
            f"counts has {plural(len(twice), 'feature name that occurs', 'feature names that occur')} "
            f"more than once (first {twice[0]!r}); make them unique, or pass the values without names"
        )
    check_unmasked(X.data if sparse.issparse(X) and hasattr(X, "data") else X, "counts")
    try:
        matrix = check_array(X, accept_sparse=True, ensure_all_finite=False, input_name="counts")
    except (TypeError, ValueError) as error:
        if "NAType" in str(error):  # a column of objects holds pandas.NA; in other types it becomes NaN
            raise ValueError("counts contains pandas.NA; drop or fill missing entries first") from error
        if not str(error).startswith("could not convert"):
            raise
        raise ValueError(f"counts must be numbers: {error}; drop columns of text first") from error
    if matrix.dtype.kind not in "buif":
        raise TypeError(f"counts must be numbers, got dtype {matrix.dtype}; convert them to integers first")
    if max(matrix.shape) > MAX_INT32:
        raise ValueError(f"counts may have at most {MAX_INT32} rows and columns, got shape {matrix.shape}")
    if sparse.issparse(matrix) and matrix.format not in ("csr", "csc"):
        # SciPy sums duplicates while converting, in the type of the values, where small integers overflow.
        matrix = (matrix.astype(np.float64) if matrix.format == "coo" else matrix).tocsr()
    return matrix


def names_of(X: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Row and column names of a data frame, where all of them are text; of columns not only some may be."""
    if not hasattr(X, "columns"):
        return None, None
    named = [isinstance(name, str) for name in X.columns]
    if any(named) and not all(named):
        first = X.columns[named.index(False)]
        raise TypeError(f"names of features must all be text, got {first!r}; pass X.rename(columns=str)")
    rows = getattr(X, "index", None)
    rows = rows if rows is not None and all(isinstance(name, str) for name in rows) else None
    names = (rows, X.columns if all(named) else None)
    samples, features = (None if one is None else np.array(list(one), dtype=object) for one in names)
    return samples, features


# ---------- how often every feature has every count

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tally:
    """How often every feature has every count above zero."""

    indptr: NDArray[np.int64]  # (m + 1,): feature j has the entries ``indptr[j]`` to ``indptr[j + 1]``
    # the counts that a feature has, ascending, and how often
    values: Array
    times: Array

    @classmethod
    def of(cls, rows: SparseRows) -> Tally:
        """Tally counts, features x samples."""
        parts = []
        for start, stop in row_blocks(rows.indptr, CHUNK):
            bounds = rows.indptr[start : stop + 1]
            values = rows.values[bounds[0] : bounds[-1]].astype(np.float64)
            feature = np.repeat(np.arange(start, stop), np.diff(bounds))
            parts.append(_merged(feature, values, np.ones(len(values))))
        return cls._from(rows.shape[0], *map(np.concatenate, zip(*parts, strict=True)))

    @classmethod
    def _from(cls, n_features: int, feature: NDArray[np.int64], values: Array, times: Array) -> Tally:
        lengths = np.bincount(feature, minlength=n_features)
        return cls(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), values, times)

    @property
    def feature(self) -> NDArray[np.int64]:
        """Feature of every entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def plus(self, other: Tally) -> Tally:
        """Tally the samples of both."""
        sides = [(one.feature, one.values, one.times) for one in (self, other)]
        merged = _merged(*(np.concatenate(pair) for pair in zip(*sides, strict=True)))
        return Tally._from(len(self.indptr) - 1, *merged)

    def sums(self, terms: Array) -> Array:
        """Sum a number of every entry over the samples that have it, for every feature."""
        weights = self.times * terms
        return np.bincount(self.feature, weights, len(self.indptr) - 1).astype(np.float64)


def _merged(
    feature: NDArray[np.int64], values: Array, times: Array
) -> tuple[NDArray[np.int64], Array, Array]:
    """Sort entries by feature and count, and add up those that are the same."""
    if not len(values):
        return feature, values, times
    order = np.lexsort((values, feature))
    feature, values, times = feature[order], values[order], times[order]
    new = (np.diff(feature, prepend=-1) != 0) | (np.diff(values, prepend=np.nan) != 0.0)
    first = np.flatnonzero(new)
    return feature[first], values[first], np.add.reduceat(times, first)


# ---------- logarithms of factorials of large counts

LARGE = 20.0  # from here on Stirling's series has all digits


def stirling(y: ArrayLike) -> NDArray[np.float64]:
    """``log(y!) - y log(y) + y``, without cancellation: about ``log(2 pi y) / 2`` for large y."""
    y = np.asarray(y, dtype=np.float64)
    small = np.minimum(y, LARGE)
    large = 0.5 * np.log(2.0 * math.pi * np.maximum(y, LARGE)) + series(1.0 / np.maximum(y, LARGE))
    exact = scipy.special.gammaln(small + 1.0) - scipy.special.xlogy(small, small) + small
    return np.where(y < LARGE, exact, large)


def series(inverse: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stirling's series: ``log(y!) - y log(y) + y - log(2 pi y) / 2`` as a function of ``1 / y``."""
    square = inverse**2
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


# ---------- anything count-like becomes Counts: checked once at the door, trusted afterwards

SizesKind: TypeAlias = Literal["total", "fit", "none"]
SIZE_FACTORS: tuple[str, ...] = get_args(SizesKind)


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
    in_memory: ClassVar[bool] = True  # whether the entries are at hand; otherwise they are in chunks
    on_device: ClassVar[bool] = False  # whether `by_column` is in the memory of a card
    shape: tuple[int, int] = field(init=False)  # samples and features
    n_samples: int = field(init=False)
    n_features: int = field(init=False)
    nnz: int = field(init=False)  # number of entries that are not zero

    def __post_init__(self) -> None:
        (n, m), nnz = self.by_row.shape, self.by_row.nnz
        self.__dict__.update(shape=(n, m), n_samples=n, n_features=m, nnz=nnz)

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
            pyarrow tables. Matrices of PyTorch and CuPy are copied to the memory of the host.

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
        matrix, sample_names, feature_names = X, None, None
        compressed = sparse.issparse(X) and X.format in ("csr", "csc") and X.ndim == 2
        plain = compressed and X.dtype.kind in "buif" and not isinstance(X.data, np.ma.MaskedArray)
        if not (plain and 0 < min(X.shape) <= max(X.shape) <= MAX_INT32):  # there is something to convert
            refuse_others(X)
            X = to_host(X)
            matrix, (sample_names, feature_names) = checked_matrix(X), names_of(X)
        columns = fractional = None
        if not sparse.issparse(matrix):
            rows, fractional = compress_dense(matrix)
        else:
            turned = matrix.format == "csc"
            side = canonical_rows(matrix.T if turned else matrix, whole=True)  # quick, where nothing is amiss
            if side is None:
                side, fractional = compress_sparse(matrix.T if turned else matrix, transposed=turned)
            rows, columns = (side.transpose(), side) if turned else (side, None)
        if fractional is not None:
            warn(fractional, UserWarning)
        return cls(rows, columns, sample_names, feature_names)

    def part_in_memory(self, most: int | None = None) -> tuple[Counts, NDArray[np.int64]]:
        """Return samples in memory, `most` random ones if there are more, always the same; and which ones."""
        rows = np.arange(self.n_samples)
        if most is None or most >= self.n_samples:
            return self, rows
        rows = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        names = None if self.sample_names is None else self.sample_names[rows]
        part = Counts.from_any(self.to_scipy()[rows])
        return Counts(part.by_row, None, names, self.feature_names), rows

    def checksum(self) -> str:
        """Return a text that differs between counts."""
        rows = self.by_row
        return checksum_of(map(on_host, (rows.indptr, rows.indices, rows.values)))

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

    @cached_property
    def n_empty(self) -> tuple[int, int]:
        """Numbers of samples and of features without any count."""
        n, m = (int(np.count_nonzero(np.diff(side.indptr) == 0)) for side in (self.by_row, self.by_column))
        return n, m

    @cached_property
    def sum_of_squares(self) -> float:
        """Sum over all entries of y**2."""
        return float(sum(np.square(piece, dtype=np.float64).sum() for piece in pieces(self.by_row.values)))

    @cached_property
    def log_factorial(self) -> float:
        """Sum over all entries of log(y!), the constant of the Poisson log-likelihood."""
        values, starts = self.by_row.values, range(0, len(self.by_row.values), CHUNK)
        often = (np.unique(values[at : at + CHUNK], return_counts=True) for at in starts)
        return math.fsum(
            float(np.sum(n * scipy.special.gammaln(np.add(y, 1.0, dtype=np.float64)))) for y, n in often
        )

    @cached_property
    def stirling(self) -> float:
        """Sum over the counts of log(y!) - y log(y) + y: what each costs at a mean of its own size."""
        often = (np.unique(piece, return_counts=True) for piece in pieces(self.by_row.values))
        return math.fsum(float(np.sum(times * stirling(y))) for y, times in often)

    @cached_property
    def tally(self) -> Tally:
        """How often every feature has every count."""
        return Tally.of(self.by_column)

    def on_host(self) -> Counts:
        """Return the same counts in the memory of the host, where these are."""
        return self

    def size_factors(self, kind: Any) -> np.ndarray:
        """Size factor of every sample.

        Parameters
        ----------
        kind : {"total", "fit", "none"} or array-like of shape (n_samples,)
            "total": the sample's total count divided by the mean total, 1 for samples without counts; "fit":
            the same, from which a fit begins;
            "none": ones; an array is checked and copied.
        """
        if kind is not None and not isinstance(kind, str):
            return _checked_size_factors(kind, self.n_samples)
        check_choice("size_factors", kind, SIZE_FACTORS, otherwise="an array")
        ones, sums = np.ones(self.n_samples), self.row_sums
        return ones if kind == "none" else np.divide(sums, sums.mean(), out=ones, where=sums > 0)

    def to_scipy(self) -> sparse.csr_array:
        """Return the counts as a SciPy CSR array that shares the (read-only) memory."""
        return self.by_row.to_scipy()


def _checked_size_factors(given: Any, n_samples: int) -> np.ndarray:
    check_unmasked(given, "size_factors")
    try:
        factors = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"size_factors must be 'total', 'fit', 'none' or an array of numbers, got {type(given).__name__}"
        ) from error
    check_one_each("size_factors", factors, n_samples, "number")
    bad = ~((factors >= 1e-30) & (factors <= 1e30))
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"size_factors must be positive and finite, from 1e-30 to 1e30, got {factors[first]} at position "
            f"{first} ({plural(int(bad.sum()), 'bad entry', 'bad entries')}); give every sample such a number"
        )
    return factors
