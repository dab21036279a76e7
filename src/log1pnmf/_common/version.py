"""The version of the package: that of its installation, which a build takes from the git tags."""

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__", "versions"]

COMPUTE = ("numpy", "scipy", "scikit-learn")

try:
    __version__ = version("log1pnmf")
except PackageNotFoundError:  # sources on a path, not installed
    __version__ = "0.0.0+unknown"


def versions() -> dict[str, str]:
    """Tell what the numbers of a fit were computed with."""
    return {
        "log1pnmf": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in COMPUTE},
    }
