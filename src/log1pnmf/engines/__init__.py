"""Engines: each improves a block of independent rows, given the other side of the factorisation."""
