"""From a `Fit` and counts to findings."""
