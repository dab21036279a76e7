"""Filters that leave out samples and features with few counts, and report what they removed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import check_number, check_whole
from log1pnmf.counts.counts import Counts, SparseRows

from .table import BadFileError, CountTable

__all__ = ["Filtered", "filter_table"]


@dataclass(frozen=True, eq=False)
class Filtered:
    """What filters left, and what they took.

    Parameters
    ----------
    table : CountTable
        What is left.
    kept_samples, kept_features : ndarray of int
        Where it was in the table before.
    report : tuple of str
        One line for each filter that was asked for, also where it removed nothing.
    """

    table: CountTable
    kept_samples: NDArray[np.intp]
    kept_features: NDArray[np.intp]
    report: tuple[str, ...]


def filter_table(
    table: CountTable, *, min_samples: int = 0, min_counts: float = 0, min_features: int = 0
) -> Filtered:
    """Remove samples with few counts, then features that occur in few of the remaining samples.

    Parameters
    ----------
    table : CountTable
        Counts with the names of samples and features.
    min_samples : int
        Smallest number of samples in which a feature must occur.
    min_counts : float
        Smallest total count of a sample.
    min_features : int
        Smallest number of features that must occur in a sample.

    Returns
    -------
    Filtered

    Raises
    ------
    BadFileError
        Where nothing is left.

    Examples
    --------
    >>> table = CountTable(Counts.from_any([[1, 0, 9], [2, 5, 0], [0, 0, 1]]))
    >>> filtered = filter_table(table, min_counts=2, min_samples=2)
    >>> filtered.table.shape
    (2, 1)
    >>> filtered.report[0]
    'samples with fewer than 2 counts: 1 of 3 removed'
    """
    check_whole("min_samples", min_samples, least=0)
    check_whole("min_features", min_features, least=0)
    check_number("min_counts", min_counts)
    matrix, (n, m) = table.counts.to_scipy(), table.shape
    report, keep = [], np.ones(n, dtype=bool)
    totals, seen = table.counts.row_sums, np.diff(matrix.indptr)
    for least, values, what in ((min_counts, totals, "counts"), (min_features, seen, "features")):
        if least:
            gone = keep & (values < least)
            keep &= ~gone
            report.append(f"samples with fewer than {least:g} {what}: {gone.sum():,} of {n:,} removed")
    samples = np.flatnonzero(keep)
    left = matrix if len(samples) == n else matrix[samples]
    features = np.arange(m)
    if min_samples:
        features = np.flatnonzero(np.bincount(left.indices, minlength=m) >= min_samples)
        gone_features = m - len(features)
        report.append(f"features in fewer than {min_samples} samples: {gone_features:,} of {m:,} removed")
    if not len(samples) or not len(features):
        raise BadFileError(
            f"{table.source or 'the table'}: filters left nothing ({'; '.join(report)}); lower them"
        )
    kept = left if len(features) == m else left[:, features]
    return Filtered(_part(table, kept, samples, features), samples, features, tuple(report))


def _part(
    table: CountTable, matrix: sparse.csr_array, samples: NDArray[np.intp], features: NDArray[np.intp]
) -> CountTable:
    if matrix.shape == table.shape:
        return table
    names, feature_names = table.sample_names, table.feature_names
    counts = Counts(
        SparseRows.from_scipy(matrix),
        sample_names=None if names is None else names[samples],
        feature_names=None if feature_names is None else feature_names[features],
    )
    columns = {name: values[samples] for name, values in table.sample_columns.items()}
    return replace(table, counts=counts, sample_columns=columns)
