"""Counts, wherever they lie: in memory, in files, in chunks."""

from log1pnmf._common.safe_files import BadFileError as BadFileError

from .chunks import CountSource as CountSource
from .chunks import open_counts as open_counts
from .counts import Counts as Counts
from .read import read_sets as read_sets
from .read import read_table as read_table
from .splitting import folds as folds
from .splitting import split_counts as split_counts
from .splitting import training_size_factors as training_size_factors
from .text import CountTable as CountTable
