"""Counts, wherever they lie: in memory, in files, in chunks."""

from log1pnmf._common.safe_files import BadFileError

from .chunks import CountSource, open_counts
from .counts import Counts
from .read import filter_table, read_sets, read_table
from .splitting import folds, split_counts, training_size_factors
from .text import CountTable
from .write import write_chunks, write_table

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
