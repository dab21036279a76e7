"""MatrixMarket files: .mtx, and the folders of 10x with names beside them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.untrusted import BadFileError, Budget, market_matrix

from .table import RawTable
from .text import cost, open_text, rows_of

__all__ = ["EXPRESSION", "read_market", "read_market_folder", "symbols", "tenx_table"]

EXPRESSION = "Gene Expression"
MATRIX = ("matrix.mtx", "matrix.mtx.gz")
BARCODES = ("barcodes.tsv", "barcodes.tsv.gz")
FEATURES = ("features.tsv", "features.tsv.gz", "genes.tsv", "genes.tsv.gz")


def read_market(path: Path, budget: Budget) -> RawTable:
    """Read a matrix; one of 10x, with its names beside it, as the folder it is in."""
    if path.name.endswith(MATRIX) and _beside(path, FEATURES) and _beside(path, BARCODES):
        return read_market_folder(path.parent, budget, path)
    return RawTable(_matrix(path, budget), notes=("a .mtx file has no names; rows were read as samples",))


def read_market_folder(folder: Path, budget: Budget, matrix: Path | None = None) -> RawTable:
    """Read matrix, barcodes and features (or genes) of 10x, and turn them: they are features x cells."""
    if matrix is None:
        found = sorted(path for path in folder.iterdir() if path.name.endswith(MATRIX))
        if len(found) != 1:
            there = "several: " + ", ".join(path.name for path in found) if found else "none"
            raise BadFileError(
                f"{folder} must hold one matrix.mtx or matrix.mtx.gz (with barcodes.tsv and features.tsv), "
                f"got {there}; name the file itself, or another folder"
            )
        matrix = found[0]
    features, barcodes = _beside(matrix, FEATURES), _beside(matrix, BARCODES)
    if features is None or barcodes is None:
        missing = "features.tsv or genes.tsv" if features is None else "barcodes.tsv"
        raise BadFileError(f"{folder} has {matrix.name}, but no {missing} beside it; put it there")
    counts, rows = _matrix(matrix, budget), _table(features, budget)
    names = [row[0] for row in _table(barcodes, budget)]
    if counts.shape != (len(rows), len(names)):
        raise BadFileError(
            f"{matrix} has shape {counts.shape}, but there are {len(rows)} features in {features.name} and "
            f"{len(names)} barcodes in {barcodes.name}; the files do not belong together"
        )
    identifiers = [row[0] for row in rows]
    named = [row[1] if len(row) > 1 else row[0] for row in rows]
    kinds = [row[2] for row in rows] if all(len(row) > 2 for row in rows) else None
    return tenx_table(counts.T, names, identifiers, named=named, kinds=kinds)


def tenx_table(
    counts: Any,
    barcodes: Sequence[str],
    identifiers: Sequence[str],
    *,
    named: Sequence[str],
    kinds: Sequence[str] | None,
) -> RawTable:
    """Put a table of 10x together: gene expression where there is more than that, symbols made unique.

    Parameters
    ----------
    counts : sparse matrix
        Cells x features.
    barcodes, identifiers : sequence of str
        Of the cells and features.
    named : sequence of str
        Symbols of the features.
    kinds : sequence of str, optional
        Feature types.
    """
    names, notes = symbols(identifiers, named)
    if kinds is not None and len(set(kinds)) > 1 and EXPRESSION in kinds:
        keep = np.flatnonzero(np.array(kinds, dtype=object) == EXPRESSION)
        others = Counter(kind for kind in kinds if kind != EXPRESSION)
        left_out = ", ".join(f"{n:,} x {kind}" for kind, n in others.items())
        notes += (f"only features of type {EXPRESSION!r} were read; left out: {left_out}",)
        counts, names = counts.tocsc()[:, keep], [names[j] for j in keep]
    return RawTable(counts, list(barcodes), names, notes=notes)


def symbols(identifiers: Sequence[str], named: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Symbols as names of features; those that stand for several genes carry their identifier as well.

    Examples
    --------
    >>> symbols(["ENSG1", "ENSG2", "ENSG3"], ["TBCE", "TBCE", "MX1"])[0]
    ['TBCE (ENSG1)', 'TBCE (ENSG2)', 'MX1']
    """
    often = Counter(named)
    twice = [name for name, n in often.items() if n > 1]
    if not twice:
        return list(named), ()
    unique = [
        f"{name} ({identifier})" if often[name] > 1 else name
        for identifier, name in zip(identifiers, named, strict=True)
    ]
    note = f"symbols of several genes carry the gene's identifier: {len(twice)} (first {twice[0]!r})"
    return unique, (note,)


def _beside(matrix: Path, names: Sequence[str]) -> Path | None:
    """File of a name, with the prefix that the matrix has."""
    ending = next(ending for ending in MATRIX if matrix.name.endswith(ending))
    prefix = matrix.name.removesuffix(ending)
    return next(
        (matrix.with_name(prefix + name) for name in names if matrix.with_name(prefix + name).exists()), None
    )


def _table(path: Path, budget: Budget) -> list[list[str]]:
    kept = []
    try:
        with open_text(path, budget) as file:
            for row in rows_of(file, budget, delimiter="\t", quoting=csv.QUOTE_NONE):
                budget.charge(cost(row))
                kept.append(row)
        return kept
    except (EOFError, OSError, csv.Error, UnicodeDecodeError) as error:
        raise BadFileError(f"{path} is damaged ({error}); get another copy of it") from error


def _matrix(path: Path, budget: Budget) -> Any:
    try:
        return market_matrix(path, budget)
    except BadFileError:
        raise
    except (ValueError, OverflowError, TypeError) as error:
        raise BadFileError(
            f"{path} is not a whole MatrixMarket file ({error}); get another copy of it"
        ) from error
