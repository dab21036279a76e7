"""What renewals have changed in the problem of a fit, as arrays and back; what comes back is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.archive import check_numbers
from log1pnmf.counts.sparse_rows import Pattern
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.noise import POISSON, Noise
from log1pnmf.model.problem import Problem
from log1pnmf.model.trend import Prior
from log1pnmf.model.zeros import AdaptiveZeros, Zeros

__all__ = ["Changed"]

Array = NDArray[np.float64]

COEFFICIENTS = "zeros.coefficients"
"""Of the quadratics; earlier versions wrote others, under another name."""


@dataclass(frozen=True, eq=False)
class Changed:
    """What renewals change in the problem of a fit: a run ends with it, and a checkpoint keeps it.

    Parameters
    ----------
    zeros, noise : Zeros or None, Noise
        See `log1pnmf.model.problem.Problem`.
    effects : ndarray of shape (B, m), optional
        Of batches.
    size_factors : ndarray of shape (n,) or None
        Where they are fitted.
    """

    zeros: Zeros | None
    noise: Noise
    effects: np.ndarray | None = None
    size_factors: Array | None = None

    @classmethod
    def of(cls, problem: Problem) -> Changed:
        """Give what may have been changed in a problem."""
        effects = None if problem.batches is None else problem.batches.effects
        sizes = None if problem.size_prior is None else problem.size_factors
        return cls(problem.zeros, problem.noise, effects, sizes)

    def put_into(self, problem: Problem) -> Problem:
        """Give the problem of a fit as it is after the changes."""
        zeros = self.zeros if isinstance(self.zeros, AdaptiveZeros) else problem.zeros
        batches = problem.batches
        if batches is not None and self.effects is not None:
            batches = replace(batches, effects=self.effects)
        after = replace(problem, zeros=zeros, noise=self.noise, batches=batches)
        return after if self.size_factors is None else replace(after, size_factors=self.size_factors)

    def arrays(self) -> dict[str, np.ndarray]:
        """Take it apart; there is nothing to keep of what no renewal changes."""
        arrays: dict[str, Any] = {}
        zeros, noise = self.zeros, self.noise
        if self.effects is not None:
            arrays["effects"] = self.effects
        if isinstance(zeros, AdaptiveZeros):
            stored = {"indptr": zeros.stored.indptr, "indices": zeros.stored.indices}
            arrays |= {f"zeros.{name}": array for name, array in stored.items()}
            arrays |= {f"zeros.{name}": getattr(zeros, name) for name in ("exposure", "caps")}
            arrays[COEFFICIENTS] = zeros.quadratics
            arrays["zeros.error"] = np.array([zeros.error])
        if isinstance(noise, NegativeBinomial):
            arrays["noise.dispersion"] = noise.dispersion
            if noise.prior is not None:
                prior = {name: getattr(noise.prior, name) for name in ("centre", "freedom", "level")}
                arrays |= {f"noise.{name}": array for name, array in prior.items()}
                arrays["noise.spread"] = np.array([noise.prior.spread])
        if self.size_factors is not None:
            arrays["size_factors"] = self.size_factors
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], shape: tuple[int, int]) -> Changed:
        """Put together and check what `arrays` took apart; other arrays are left alone.

        Parameters
        ----------
        shape : (int, int)
            Features and samples.
        """
        effects, sizes = arrays.get("effects"), arrays.get("size_factors")
        if effects is not None:
            if effects.ndim != 2:
                raise ValueError(f"effects must be batches x features, got shape {effects.shape}")
            check_numbers("effects", effects, (len(effects), shape[0]), positive=True)
        if sizes is not None:
            check_numbers("size_factors", sizes, (shape[1],), positive=True)
        return cls(_zeros(arrays, shape), _noise(arrays, shape[0]), effects, sizes)


def _zeros(arrays: Mapping[str, Any], shape: tuple[int, int]) -> AdaptiveZeros | None:
    if "zeros.error" not in arrays:
        return None
    indptr, indices, (m, n) = arrays["zeros.indptr"], arrays["zeros.indices"], shape
    quadratics, error = arrays[COEFFICIENTS], arrays["zeros.error"]
    _check_finite(COEFFICIENTS, quadratics, (m, 5 if "noise.dispersion" in arrays else 3))
    if (quadratics[:, 2] < 0.0).any() or (quadratics[:, 4:] > 0.0).any():
        raise ValueError("the quadratics of zeros have coefficients of the wrong sign")
    check_numbers("zeros.exposure", arrays["zeros.exposure"], (m, 2))
    check_numbers("zeros.caps", arrays["zeros.caps"], (m,))
    check_numbers("zeros.error", error, (1,))
    # the compiled core would read beyond its arrays
    if indptr.dtype != np.int64 or indptr.shape != (m + 1,) or indices.dtype != np.int32 or indices.ndim != 1:
        raise ValueError("the zeros that are visited have the wrong type or shape")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError("the zeros that are visited do not fit together")
    if len(indices) and not (indices.min() >= 0 and indices.max() < n):
        raise ValueError(f"a zero that is visited is beyond the {n} samples")
    stored = Pattern(shape, indptr, indices)
    return AdaptiveZeros(quadratics, stored, arrays["zeros.exposure"], arrays["zeros.caps"], float(error[0]))


def _noise(arrays: Mapping[str, Any], m: int) -> Noise:
    if "noise.dispersion" not in arrays:
        return POISSON
    dispersion = arrays["noise.dispersion"]
    if "noise.centre" not in arrays:
        check_numbers("noise.dispersion", dispersion, (m,))
        return NegativeBinomial(dispersion)
    names = ("centre", "freedom", "level", "spread")
    centre, freedom, level, spread = (arrays[f"noise.{name}"] for name in names)
    check_numbers("noise.dispersion", dispersion, (m,), positive=True)
    _check_finite("noise.centre", centre, (m,))
    check_numbers("noise.freedom", freedom, (m,))
    check_numbers("noise.level", level, (m,))
    _check_finite("1 / noise.spread", 1.0 / spread, (1,))
    check_numbers("noise.spread", np.where(np.isinf(spread), 1.0, spread), (1,), positive=True)
    return NegativeBinomial(dispersion, Prior(centre, float(spread[0]), freedom, level))


def _check_finite(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Refuse what is not an array of that shape, of finite float64 of either sign."""
    if not isinstance(array, np.ndarray) or array.dtype != np.float64:
        raise ValueError(f"{name} must be float64, got {array!r:.100}")
    check_numbers(name, np.abs(array), shape)
