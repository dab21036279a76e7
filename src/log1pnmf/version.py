"""The version of the package; that in pyproject.toml is the same, and a test holds that."""

__version__ = "0.1.0"
