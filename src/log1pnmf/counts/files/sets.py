"""Sets of features, such as gene sets: files in the form GMT."""

from __future__ import annotations

import os
from pathlib import Path

from log1pnmf._common.untrusted import BadFileError, Budget

from .text import open_text, rows_of

__all__ = ["read_sets"]


def read_sets(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Read sets of features from a GMT file: name, description and features, with tabs between.

    Parameters
    ----------
    path : str or PathLike
        GMT file, may be compressed with gzip.

    Returns
    -------
    dict of str to list of str

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "sets.gmt")
    >>> with open(path, "w") as file:
    ...     _ = file.write("cycle\tfrom a book\tMKI67\tTOP2A\n")
    >>> read_sets(path)
    {'cycle': ['MKI67', 'TOP2A']}
    """
    budget, sets = Budget(path), dict[str, list[str]]()
    try:
        with open_text(Path(path), budget) as file:
            for row in rows_of(file, budget, delimiter="\t"):
                name, members = row[0].strip(), [one.strip() for one in row[2:] if one.strip()]
                if not name or not members or name in sets:
                    what = "is there twice" if name in sets else "has no name or no features"
                    raise BadFileError(
                        f"{path}: set {name!r} {what}; every line is a name, a description and features, "
                        "with tabs between"
                    )
                sets[name] = members
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path} is not text ({error})") from error
    if not sets:
        raise BadFileError(f"{path} has no sets; a line is a name, a description and features")
    return sets
