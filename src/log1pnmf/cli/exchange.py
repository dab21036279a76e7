"""A `Fit` to and from the R package log1pNMF: its list of LL, FF, s, cc and alpha as a folder of text files.

Both packages keep loadings and factors on the link scale, ``LL FF' = alpha log(1 + lam / cc)`` with
``alpha = max(1, cc)``, so no number is changed on the way. docs/how-to/r.md has the R side.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.archive import StrPath, building
from log1pnmf._common.checks import require
from log1pnmf._common.safe_files import MemoryLimit, check_regular, market_matrix, readable
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.write import whole_numbers, write_market
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import fit_log1p_nmf
from log1pnmf.model.noise import ShiftedLog

Array = NDArray[np.float64]

COUNTS, DISPERSION = "counts.mtx", "dispersion.csv"


@dataclass(frozen=True, eq=False)
class RList:
    """A fit of R's log1pNMF; `to_fit` converts it to a `Fit`.

    To go on from there: ``fit_log1p_nmf(counts, K, c=.c, size_factors=.size_factors, init=.init)``.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        LL and FF, on the link scale.
    size_factors : ndarray of shape (n,)
        s.
    c : float
        cc.
    sample_names, feature_names : tuple of str, optional
        Names of the rows of LL and FF; None where there were none but 1, 2, 3 and so on.
    counts : scipy.sparse.csr_array, optional
        Where the folder holds them.
    dispersion : ndarray of shape (m,), optional
        Of negative binomial noise, which the R package does not have.
    """

    loadings: Array = field(repr=False)
    factors: Array = field(repr=False)
    size_factors: Array = field(repr=False)
    c: float
    sample_names: tuple[str, ...] | None = field(default=None, repr=False)
    feature_names: tuple[str, ...] | None = field(default=None, repr=False)
    counts: sparse.csr_array | None = field(default=None, repr=False)
    dispersion: Array | None = field(default=None, repr=False)

    @property
    def init(self) -> tuple[Array, Array]:
        """Loadings and factors, as a start."""
        return self.loadings, self.factors

    def to_fit(self) -> Fit:
        """Return a `Fit` to the counts of the list, started there and stopped before the first update.

        Its factors have the order and scale of every fit.
        """
        if self.counts is None:
            raise ValueError("the list has no counts, and a fit needs them; write them in R as well")
        own: Any = {"c": self.c, "size_factors": self.size_factors, "init": self.init}
        if self.dispersion is not None:
            own |= {"noise": "nb", "dispersion": self.dispersion}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own |= {"likelihood": "exact", "callbacks": (lambda _: True,)}
            fit = fit_log1p_nmf(self.counts, self.loadings.shape[1], **own)
        return fit.named(sample_names=self.sample_names, feature_names=self.feature_names)


# ---------------------------------------------------------------- writing


def write_r_list(fit: Fit | RList, folder: StrPath, *, counts: Any = None, force: bool = False) -> None:
    """Write a fit as LL.csv, FF.csv, s.csv and parameters.csv, which R and anything else can read.

    Negative binomial noise has dispersion.csv as well; the R package would take such a fit for a Poisson one.

    Parameters
    ----------
    fit : Fit or RList
        Fit to write. Rows of LL and FF have its names of samples and features, or are 1, 2, 3 and so on.
    folder : str or PathLike
        New folder; it appears whole or not at all.
    counts : array, sparse matrix, data frame or Counts, optional
        Written as counts.mtx (MatrixMarket).
    force : bool
        Whether to replace an existing folder.

    Notes
    -----
    Of a fit with batches there are also batch_effects.csv (features x batches; means are multiplied by them)
    and batches.csv (which column every sample has). R's list has no place for them: they are not read back.

    Examples
    --------
    >>> import os, tempfile
    >>> from log1pnmf import fit_log1p_nmf
    >>> folder = os.path.join(tempfile.mkdtemp(), "for_r")
    >>> fit = fit_log1p_nmf([[1, 0, 3], [2, 5, 0]], 1).named(feature_names=["a", "b", "c"])
    >>> write_r_list(fit, folder)
    >>> again = read_r_list(folder)
    >>> bool((again.factors == fit.factors).all()), again.feature_names
    (True, ('a', 'b', 'c'))
    """
    pandas = require("pandas", purpose="the exchange with R")
    n, m = len(fit.loadings), len(fit.factors)
    rows, columns = _names(fit.sample_names, n), _names(fit.feature_names, m)
    data = None if counts is None else Counts.from_any(counts)
    if data is not None and data.shape != (n, m):
        raise ValueError(f"counts must have shape {(n, m)} like the fit, got {data.shape}")
    factors = [f"k_{k + 1}" for k in range(fit.factors.shape[1])]
    tables = {
        "LL.csv": pandas.DataFrame(fit.loadings, rows, factors),
        "FF.csv": pandas.DataFrame(fit.factors, columns, factors),
        "s.csv": pandas.DataFrame({"s": fit.size_factors}, rows),
        "parameters.csv": pandas.DataFrame(
            {"cc": str(fit.c).title(), "alpha": ShiftedLog(fit.c).alpha}, ["1"]
        ),
    }
    if fit.dispersion is not None:
        tables[DISPERSION] = pandas.DataFrame({"dispersion": fit.dispersion}, columns)
    batches = getattr(fit, "batches", None)
    if batches is not None:  # R's list has no place for them, so that they are not read back
        tables["batch_effects.csv"] = pandas.DataFrame(batches.effects.T, columns, batches.names)
        tables["batches.csv"] = pandas.DataFrame({"batch": 1.0 + batches.labels}, rows)
    with building(folder, force=force) as place:
        place.mkdir()
        for name, table in tables.items():  # with all digits that give the same number again
            table.to_csv(place / name, lineterminator="\n")
        if data is not None:
            with open(place / COUNTS, "wb") as file:  # given a name, SciPy does not notice a full disk
                write_market(whole_numbers(data.to_scipy()), file)


def _names(names: Any, n: int) -> list[str]:
    return [str(name) for name in (range(1, n + 1) if names is None else names)]


# ---------------------------------------------------------------- reading


def read_r_list(folder: StrPath) -> RList:
    """Read a fit of R's log1pNMF or what `write_r_list` wrote.

    Parameters
    ----------
    folder : str or PathLike
        With LL.csv, FF.csv, s.csv and parameters.csv, and perhaps dispersion.csv and counts.mtx.
    """
    place = Path(folder)
    loadings, factors, sizes = (_read_table(place / name) for name in ("LL.csv", "FF.csv", "s.csv"))
    n, m = len(loadings), len(factors)
    if loadings.shape[1] != factors.shape[1]:
        raise ValueError(
            f"{place}: LL.csv has {loadings.shape[1]} columns and FF.csv {factors.shape[1]}; "
            "both need one for each factor"
        )
    size_factors = _column(sizes, place / "s.csv", n, "LL.csv")
    if not (size_factors > 0).all():
        raise ValueError(f"{place / 's.csv'} must be positive, got {size_factors.min()}")
    there = (place / DISPERSION).exists()
    return RList(
        loadings.to_numpy(),
        factors.to_numpy(),
        size_factors,
        _read_c(place / "parameters.csv"),
        _row_names(loadings),
        _row_names(factors),
        _read_counts(place / COUNTS, (n, m)) if (place / COUNTS).exists() else None,
        _column(_read_table(place / DISPERSION), place / DISPERSION, m, "FF.csv") if there else None,
    )


def _read_table(path: Path, *, infinite: bool = False) -> Any:
    """Return a data frame of numbers that are not negative; row names are the index, if R wrote any."""
    pandas = require("pandas", purpose="the exchange with R")
    check_regular(path)
    how = {"encoding": "utf-8-sig", "float_precision": "round_trip", "na_filter": False}
    try:
        columns = pandas.read_csv(path, nrows=0, **how).columns
        named = columns[0].startswith("Unnamed")  # R's row names have no header
        kinds = dict.fromkeys(columns, np.float64) | ({columns[0]: str} if named else {})
        table = pandas.read_csv(path, index_col=False, dtype=kinds, **how)
        table = table.set_index(columns[0]) if named else table
    except (ValueError, IndexError) as error:  # the errors of the parser are ValueErrors
        raise ValueError(f"{path} is not a table of numbers with one line of names ({error})") from error
    values = table.to_numpy()
    bad = ~(values >= 0) | (np.isinf(values) & (not infinite))
    if bad.any():
        i, k = np.argwhere(bad)[0].tolist()
        raise ValueError(f"{path} must be finite and not negative, got {values[i, k]} in row {i + 1}")
    return table


def _row_names(table: Any) -> tuple[str, ...] | None:
    """Return the row names of a table; None where they are only 1, 2, 3."""
    names = tuple(table.index)
    return None if names in (tuple(range(len(names))), tuple(_names(None, len(names)))) else names


def _column(table: Any, path: Path, n: int, like: str) -> Array:
    if table.shape != (n, 1):
        raise ValueError(f"{path} must have one column and {n} rows like {like}, got {table.shape}")
    return np.asarray(table.iloc[:, 0])


def _read_c(path: Path) -> float:
    table = _read_table(path, infinite=True)
    if len(table) != 1 or "cc" not in table:
        columns = ", ".join(table)
        raise ValueError(f"{path} must have one row with a column cc, got {len(table)} rows of {columns}")
    c = float(table["cc"].iloc[0])
    alpha = ShiftedLog(c).alpha
    given = float(table["alpha"].iloc[0]) if "alpha" in table else alpha
    if not np.isclose(given, alpha, rtol=1e-12):
        raise ValueError(
            f"{path} has alpha {given}, but max(1, cc) is {alpha}: LL and FF are then on another "
            "scale; multiply both by the square root of the ratio and correct alpha"
        )
    return c


def _read_counts(path: Path, shape: tuple[int, int]) -> sparse.csr_array:
    with readable(path, "MatrixMarket"):
        matrix = sparse.csr_array(market_matrix(path, MemoryLimit(path)))
    if matrix.shape != shape:
        raise ValueError(f"{path} must have shape {shape} like LL and FF, got {matrix.shape}")
    return matrix
