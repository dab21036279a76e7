"""Tables of counts with names, as files hold them."""

import numpy as np

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.text import CountTable


def table_of(values, columns=None, names=("s", "g")):
    """Return counts whose samples and features are named by a beginning and a number."""
    counts = Counts.from_any(values)
    named = [
        np.array([f"{begin}{i}" for i in range(size)], dtype=object)
        for begin, size in zip(names, counts.shape, strict=True)
    ]
    return CountTable(Counts(counts.by_row, None, *named), columns or {})
