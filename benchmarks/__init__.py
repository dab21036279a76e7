"""Measurements of speed, memory, accuracy and calibration; docs/benchmarks.md lists them."""
