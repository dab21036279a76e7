"""Counts larger than memory or than one machine: `open_counts` says where they are, the rest is as always.

Every iteration is one pass over chunks of rows: a chunk's loadings are improved for the factors as they are,
and its part of the factors' Newton statistics is added up; the sums give the factors' step.
"""

from .opening import CountSource, open_counts

__all__ = ["CountSource", "open_counts"]
