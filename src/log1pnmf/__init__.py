"""Poisson non-negative matrix factorisation with the shifted-log link."""
