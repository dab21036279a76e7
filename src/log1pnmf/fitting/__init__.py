"""From counts to a `Fit`."""
