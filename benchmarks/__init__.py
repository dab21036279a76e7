"""Measures speed and memory: ``python -m benchmarks.run``; the starts: ``python -m benchmarks.starts``."""
