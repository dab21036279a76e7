"""The version of the package: that of its installation, which a build takes from the git tags."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("log1pnmf")
except PackageNotFoundError:  # sources on a path, not installed
    __version__ = "0.0.0+unknown"
