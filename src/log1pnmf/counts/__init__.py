"""Counts, wherever they lie: in memory, in files, in chunks."""

from .chunked.opening import CountSource, open_counts
from .counts import Counts
from .files import BadFileError, CountTable, filter_table, read_sets, read_table, write_chunks, write_table
from .splitting import folds, split_counts, training_size_factors

__all__ = [
    "BadFileError",
    "CountSource",
    "CountTable",
    "Counts",
    "filter_table",
    "folds",
    "open_counts",
    "read_sets",
    "read_table",
    "split_counts",
    "training_size_factors",
    "write_chunks",
    "write_table",
]
