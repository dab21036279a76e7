"""What guards speed and memory; docs/results/benchmarks.md lists it."""
