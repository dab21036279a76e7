"""Choosing c, the number of factors and the penalty on counts that were held out."""

from .grid import Setting
from .judgement import Judgement, judge
from .run import select
from .selection import Selection

__all__ = ["Judgement", "Selection", "Setting", "judge", "select"]
