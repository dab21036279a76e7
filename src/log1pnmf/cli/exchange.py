"""A `Fit` to and from the R package log1pNMF: its list of LL, FF, s, cc and alpha as a folder of text files.

Both packages keep loadings and factors on the link scale, ``LL FF' = alpha log(1 + lam / cc)`` with
``alpha = max(1, cc)``, so no number is changed on the way. docs/how-to/r.md has the R side.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.archive import StrPath, building
from log1pnmf._common.checks import require
from log1pnmf._common.safe_files import MemoryLimit, check_regular, market_matrix, readable
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.write import whole_numbers, write_market
from log1pnmf.fitting.fit import Fit
from log1pnmf.model.noise import ShiftedLog

COUNTS, DISPERSION = "counts.mtx", "dispersion.csv"


def write_r_list(fit: Fit, folder: StrPath, *, counts: Any = None, force: bool = False) -> None:
    """Write a fit as LL.csv, FF.csv, s.csv and parameters.csv, which R and anything else can read.

    Negative binomial noise has dispersion.csv as well; the R package would take such a fit for a Poisson one.

    Parameters
    ----------
    fit : Fit
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
        "parameters.csv": pandas.DataFrame({"cc": str(fit.c).title(), "alpha": fit.link.alpha}, ["1"]),
    }
    if fit.dispersion is not None:
        tables[DISPERSION] = pandas.DataFrame({"dispersion": fit.dispersion}, columns)
    if fit.batches is not None:
        tables["batch_effects.csv"] = pandas.DataFrame(fit.batches.effects.T, columns, fit.batches.names)
        tables["batches.csv"] = pandas.DataFrame({"batch": 1.0 + fit.batches.labels}, rows)
    with building(folder, force=force) as place:
        place.mkdir()
        for name, table in tables.items():  # with all digits that give the same number again
            table.to_csv(place / name, lineterminator="\n")
        if data is not None:
            with open(place / COUNTS, "wb") as file:  # given a name, SciPy does not notice a full disk
                write_market(whole_numbers(data.to_scipy()), file)


def _names(names: Any, n: int) -> list[str]:
    return [str(name) for name in (range(1, n + 1) if names is None else names)]


def read_r_list(folder: StrPath) -> dict[str, Any]:
    """Read a fit of R's log1pNMF, or what `write_r_list` wrote, as parameters of `log1pnmf.fit_log1p_nmf`.

    Parameters
    ----------
    folder : str or PathLike
        With LL.csv, FF.csv, s.csv and parameters.csv, and perhaps dispersion.csv and counts.mtx.

    Returns
    -------
    dict
        `n_components`, `c`, `size_factors` and `init`: LL and FF, data frames with R's names of the rows.
        With dispersion.csv also `noise` and `dispersion`, and with counts.mtx `counts`, which have the names,
        unless these are only 1, 2, 3. ``fit_log1p_nmf(**read_r_list(folder))`` then continues the fit.

    Examples
    --------
    >>> import os, tempfile
    >>> from log1pnmf import fit_log1p_nmf
    >>> folder = os.path.join(tempfile.mkdtemp(), "for_r")
    >>> fit = fit_log1p_nmf([[1, 0, 3], [2, 5, 0]], 1).named(feature_names=["a", "b", "c"])
    >>> write_r_list(fit, folder)
    >>> loadings, factors = read_r_list(folder)["init"]
    >>> bool((factors == fit.factors).all(axis=None)), factors.index.tolist()
    (True, ['a', 'b', 'c'])
    """
    place = Path(folder)
    loadings, factors = (_read_table(place / name) for name in ("LL.csv", "FF.csv"))
    shape = len(loadings), len(factors)
    if loadings.shape[1] != factors.shape[1]:
        raise ValueError(
            f"{place}: LL.csv has {loadings.shape[1]} columns and FF.csv {factors.shape[1]}; "
            "both need one for each factor"
        )
    found = {
        "n_components": loadings.shape[1],
        "c": _read_c(place / "parameters.csv"),
        "size_factors": _read_column(place / "s.csv", shape[0], "LL.csv"),
        "init": (loadings, factors),
    }
    if not (found["size_factors"] > 0).all():
        raise ValueError(f"{place / 's.csv'} must be positive, got {found['size_factors'].min()}")
    if (place / DISPERSION).exists():
        found |= {"noise": "nb", "dispersion": _read_column(place / DISPERSION, shape[1], "FF.csv")}
    if (path := place / COUNTS).exists():
        with readable(path, "MatrixMarket"):
            counts = Counts.from_any(market_matrix(path, MemoryLimit(path)))
        if counts.shape != shape:
            raise ValueError(f"{path} must have shape {shape} like LL and FF, got {counts.shape}")
        samples, features = (_row_names(table) for table in (loadings, factors))
        found["counts"] = replace(counts, sample_names=samples, feature_names=features)
    return found


def _read_table(path: Path, *, infinite: bool = False) -> Any:
    """Return a data frame of numbers that are not negative; row names are the index, if R wrote any."""
    pandas = require("pandas", purpose="the exchange with R")
    check_regular(path)
    how = {"encoding": "utf-8-sig", "float_precision": "round_trip", "na_filter": False}
    try:
        table = pandas.read_csv(path, index_col=False, converters={0: str}, **how)
        if table.columns[0].startswith("Unnamed"):  # R's row names have no header
            table = table.set_index(table.columns[0])
        table = table.astype(np.float64)
    except (ValueError, IndexError) as error:  # the errors of the parser are ValueErrors
        raise ValueError(f"{path} is not a table of numbers with one line of names ({error})") from error
    values = table.to_numpy()
    bad = ~(values >= 0) | (np.isinf(values) & (not infinite))
    if bad.any():
        i, k = np.argwhere(bad)[0].tolist()
        raise ValueError(f"{path} must be finite and not negative, got {values[i, k]} in row {i + 1}")
    return table


def _row_names(table: Any) -> NDArray[np.object_] | None:
    """Return the row names of a table; None where there are none, or only 1, 2, 3."""
    names = [str(name) for name in table.index]
    plain = table.index.dtype.kind == "i" or names == _names(None, len(names))
    return None if plain else np.array(names, dtype=object)


def _read_column(path: Path, n: int, like: str) -> NDArray[np.float64]:
    table = _read_table(path)
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
