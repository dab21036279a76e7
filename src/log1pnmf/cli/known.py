"""What is known of factors, from the files that a user names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.optional import require
from log1pnmf.counts.files import BadFileError, read_sets, read_table

__all__ = ["NOTHING_KNOWN", "KnownFiles"]


@dataclass(frozen=True)
class KnownFiles:
    """Files with what is known.

    Parameters
    ----------
    loadings, factors : Path, optional
        Tables: a row for every sample, or for every feature, and a column for every factor.
    mask : Path, optional
        Sets of features, as GMT.
    """

    loadings: Path | None = None
    factors: Path | None = None
    mask: Path | None = None

    def parameters(self) -> dict[str, Any]:
        """Read the files; the parameters of a fit that they stand for."""
        given = {"fixed_loadings": self.loadings, "fixed_factors": self.factors}
        found = {name: _frame(path) for name, path in given.items() if path is not None}
        if self.mask is not None:
            found["mask"] = read_sets(self.mask)
        return found

    def as_dict(self) -> dict[str, str | None]:
        """Give the names of the files, for the record of a run."""
        return {name: None if path is None else str(path) for name, path in vars(self).items()}


NOTHING_KNOWN = KnownFiles()


def _frame(path: Path) -> Any:
    """Read a table of numbers that are not negative, with its names."""
    table = read_table(path, fractions="allow")
    columns = table.feature_names
    if columns is None:
        raise BadFileError(f"{path} has no header: the first line has to name the factors")
    pandas = require("pandas", purpose="tables of what is known")
    names = np.arange(table.shape[0]) if table.sample_names is None else table.sample_names
    return pandas.DataFrame(table.counts.to_scipy().toarray().astype(float), index=names, columns=columns)
