"""Which features define a factor, how strongly, and how certain that is."""

from .find import markers
from .table import Markers

__all__ = ["Markers", "markers"]
