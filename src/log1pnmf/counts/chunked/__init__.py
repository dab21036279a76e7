"""Counts larger than memory or than one machine, in chunks of rows.

Every iteration is one pass over the chunks: a chunk's loadings are improved for the factors as they are, and
its part of the factors' Newton statistics is added up; the sums give the factors' step.
"""
