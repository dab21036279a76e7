"""What guards speed and memory; docs/benchmarks.md lists it."""
