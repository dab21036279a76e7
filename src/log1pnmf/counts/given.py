"""What users pass as counts: refused, or taken as a matrix of numbers with names."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
from scipy import sparse

from log1pnmf._common.words import plural

from .sparse_rows import MAX_INT32

__all__ = ["check_unmasked", "checked_matrix", "frame_of", "holds_counts", "names_of", "refuse_others"]


def frame_of(X: Any) -> Any:
    """Give a pyarrow table as the pandas data frame it stands for, and all else as it is."""
    from_pyarrow = type(X).__module__.partition(".")[0] == "pyarrow" and hasattr(X, "to_pandas")
    return X.to_pandas() if from_pyarrow else X


def holds_counts(matrix: Any) -> bool:
    """Whether all values of an array or sparse matrix are whole numbers, not negative.

    Examples
    --------
    >>> holds_counts(np.array([[0.0, 2.0]])), holds_counts(np.array([[0.5]])), holds_counts(np.array([[-1]]))
    (True, False, False)
    """
    values = np.asarray(matrix.data if sparse.issparse(matrix) else matrix)
    if values.dtype.kind in "bu":
        return True
    whole = values.dtype.kind == "i" or bool(np.isfinite(values).all() and (values == np.rint(values)).all())
    return whole and bool((values >= 0).all())


def check_unmasked(values: Any, what: str) -> None:
    """Refuse a masked array, or a list of them, in which an entry is masked: NumPy would drop the mask.

    Parameters
    ----------
    what : str
        What the user calls it.
    """
    parts = values if isinstance(values, list | tuple) else [values]
    masked = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if masked:
        raise ValueError(
            f"{what} has {plural(masked, 'masked entry', 'masked entries')}, and missing values cannot be "
            "fitted; drop or fill them first, for instance with values.filled(0)"
        )


def refuse_others(X: Any) -> None:
    """Refuse objects that are not matrices themselves, and say where their counts are."""
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
    texts = X if one_by_one else ()
    if len(texts) and all(isinstance(text, str) for text in texts):
        raise TypeError(
            "counts must be numbers, got texts; count their words first, with "
            "sklearn.feature_extraction.text.CountVectorizer().fit_transform(texts)"
        )


def checked_matrix(X: Any) -> Any:
    """Turn the input into a numeric 2-d array or a CSR or CSC matrix, with scikit-learn's own messages."""
    if _is_compressed(X):
        return X
    from sklearn.utils import check_array  # it takes a second to load

    if isinstance(X, np.matrix):
        X = np.asarray(X)
    if sparse.issparse(X) and X.ndim > 2:
        raise ValueError(f"Found array with dim {X.ndim}, while dim <= 2 is required")
    _check_unique_columns(X)
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
    if not sparse.issparse(matrix) or matrix.format in ("csr", "csc"):
        return matrix
    if matrix.format == "coo":
        # SciPy sums duplicates while converting, in the type of the values, where small integers overflow.
        matrix = matrix.astype(np.float64)
    return matrix.tocsr()


def _is_compressed(X: Any) -> bool:
    """Whether X is a CSR or CSC matrix of numbers, in which there is nothing to convert."""
    if not sparse.issparse(X) or X.format not in ("csr", "csc") or isinstance(X.data, np.ma.MaskedArray):
        return False
    return X.ndim == 2 and X.dtype.kind in "buif" and 0 < min(X.shape) <= max(X.shape) <= MAX_INT32


def _check_unique_columns(X: Any) -> None:
    """Refuse a data frame in which a name stands for two columns."""
    if not hasattr(X, "columns"):
        return
    twice = [name for name, n in Counter(X.columns).items() if n > 1]
    if twice:
        raise ValueError(
            f"counts has {plural(len(twice), 'feature name that occurs', 'feature names that occur')} "
            f"more than once (first {twice[0]!r}); make them unique, or pass the values without names"
        )


def names_of(X: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Row and column names of a data frame, where all of them are strings."""

    def strings(labels: Any) -> np.ndarray | None:
        if labels is None or not all(isinstance(label, str) for label in labels):
            return None
        return np.array(list(labels), dtype=object)

    if not hasattr(X, "columns"):
        return None, None
    return strings(getattr(X, "index", None)), strings(X.columns)
