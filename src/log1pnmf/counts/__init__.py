"""Counts, wherever they lie: in memory, in files, in chunks."""
