"""Count tables from files and back: `read_table`, `write_table`, `filter_table`."""

from .filters import Filtered, filter_table
from .read import read_table
from .sets import read_sets
from .stream import write_chunks
from .table import BadFileError, CountTable
from .write import write_table

__all__ = [
    "BadFileError",
    "CountTable",
    "Filtered",
    "filter_table",
    "read_sets",
    "read_table",
    "write_chunks",
    "write_table",
]
