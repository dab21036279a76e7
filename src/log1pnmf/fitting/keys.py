"""Where results lie in an AnnData object: tools write there, plots and the report read there."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["SWEEP", "Keys", "c_label", "c_name", "sweep_key"]

SWEEP = "log1p_nmf_sweep"
"""In `uns`: the table of a sweep over c."""


@dataclass(frozen=True)
class Keys:
    """Names under which one fit is kept.

    Parameters
    ----------
    key_added : str, optional
        One name for all three places, in place of the usual ones.

    Examples
    --------
    >>> Keys().obsm, Keys().varm, Keys().uns
    ('X_log1p_nmf', 'log1p_nmf', 'log1p_nmf')
    >>> Keys("programmes").obsm
    'programmes'
    """

    key_added: str | None = None

    def __post_init__(self) -> None:
        if self.key_added is None:
            return
        if not isinstance(self.key_added, str):
            raise TypeError(f"key_added must be a string, got {type(self.key_added).__name__}")
        if not self.key_added or "/" in self.key_added:
            raise ValueError(
                f"key_added must be a name without '/' (in h5ad files a folder), got {self.key_added!r}"
            )

    @property
    def obsm(self) -> str:
        """Of the loadings, samples x factors."""
        return "X_log1p_nmf" if self.key_added is None else self.key_added

    @property
    def varm(self) -> str:
        """Of the factors, features x factors."""
        return "log1p_nmf" if self.key_added is None else self.key_added

    @property
    def dispersion(self) -> str:
        """In `var`: of the features' dispersions, where the noise has them."""
        return f"{self.varm}_dispersion"

    @property
    def mask(self) -> str:
        """In `varm`: of the features that factors were to have, where there was a mask."""
        return f"{self.varm}_mask"

    @property
    def uns(self) -> str:
        """Of everything else."""
        return "log1p_nmf" if self.key_added is None else self.key_added

    @property
    def markers(self) -> str:
        """In `uns`: of the table of effects."""
        return f"{self.uns}_markers"

    @property
    def std(self) -> str:
        """In `obsm`: of the standard errors of the loadings given the factors."""
        return f"{self.obsm}_std"

    def obs_column(self, factor: str) -> str:
        """Column of `obs` with the loadings of a factor."""
        return factor if self.key_added is None else f"{self.key_added}_{factor}"

    @property
    def select(self) -> str:
        """In `uns`: of a comparison of settings."""
        return f"{self.uns}_select"

    @property
    def evidence(self) -> str:
        """In `uns`: of what speaks for every factor."""
        return f"{self.uns}_evidence"

    @property
    def usage(self) -> str:
        """In `uns`: of the comparison of groups."""
        return f"{self.uns}_usage"


def c_name(c: float) -> str:
    """Write c so that it is short, and still the same number.

    Examples
    --------
    >>> c_name(1.0), c_name(float("inf")), c_name(0.1 + 0.2)
    ('1', 'inf', '0.30000000000000004')
    """
    short = f"{c:g}"
    return short if float(short) == c else repr(float(c))


def c_label(c: float) -> str:
    """Name a fit by its c, for people.

    Examples
    --------
    >>> c_label(0.1), c_label(float("inf"))
    ('c = 0.1', 'c = ∞')
    """
    return f"c = {'∞' if math.isinf(c) else c_name(c)}"


def sweep_key(c: float) -> str:
    """Name under which a sweep keeps the fit at `c`.

    Examples
    --------
    >>> sweep_key(0.001), sweep_key(float("inf"))
    ('log1p_nmf_c=0.001', 'log1p_nmf_c=inf')
    """
    return f"log1p_nmf_c={c_name(c)}"
