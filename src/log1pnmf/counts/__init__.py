"""Counts, wherever they lie: in memory, in files, in chunks."""

from log1pnmf._common.safe_files import BadFileError

from .chunks import CountSource, open_counts
from .counts import Counts
from .read import read_sets, read_table
from .splitting import folds, split_counts, training_size_factors
from .text import CountTable

__all__ = [
    "BadFileError",
    "CountSource",
    "CountTable",
    "Counts",
    "folds",
    "open_counts",
    "read_sets",
    "read_table",
    "split_counts",
    "training_size_factors",
]
