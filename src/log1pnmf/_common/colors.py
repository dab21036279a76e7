"""Colours of factors that can be told apart, however many there are."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

BASELINE = "#d0d0d0"
"""Light neutral grey: of what all samples share."""

FIRST = (
    "#0072b2",  # blue
    "#e69f00",  # orange
    "#009e73",  # green
    "#cc79a7",  # pink
    "#56b4e9",  # sky
    "#d55e00",  # vermilion
    "#f0d94a",  # yellow
    "#6a3d9a",  # purple
    "#7a4a21",  # brown
)
"""Apart for all common kinds of colour vision; after Okabe and Ito, with purple and brown."""

LIGHTNESS = (0.38, 0.88)
CHROMA = (0.06, 0.19)
"""Neither grey nor glaring."""

STEPS = 18

# Björn Ottosson's OKLab: linear sRGB to cone responses, and their cube roots to lightness and two hues.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def distinct_colors(n: int, *, baseline_first: bool = False) -> list[str]:
    """Return n colours that can be told apart.

    The first nine are fixed and safe for common kinds of colour blindness. Each further one is the colour of
    a grid, neither pale, dark nor grey, that is farthest from all before it in OKLab; so the first colours do
    not change when there are more of them.

    >>> distinct_colors(3, baseline_first=True)
    ['#d0d0d0', '#0072b2', '#e69f00']
    """
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")
    if baseline_first and n:
        return [BASELINE, *_colors(n - 1)]
    return list(_colors(n))


def factor_colors(n: int) -> list[str]:
    """Return each factor of a fit its colour: the one rule of all plots and of the report.

    The first factor, which the read-out takes for the baseline, is grey; factor k after it has the same
    colour in every fit.

    >>> factor_colors(3)
    ['#d0d0d0', '#0072b2', '#e69f00']
    """
    return distinct_colors(n, baseline_first=True)


@lru_cache(maxsize=32)
def _colors(n: int) -> tuple[str, ...]:
    if n <= len(FIRST):
        return FIRST[:n]
    level = np.linspace(0.0, 1.0, STEPS)
    grid = np.stack(np.meshgrid(level, level, level, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = oklab(grid)
    chroma = np.hypot(lab[:, 1], lab[:, 2])
    good = _inside(lab[:, 0], LIGHTNESS) & _inside(chroma, CHROMA)
    grid, lab = grid[good], lab[good]
    taken = [BASELINE, *FIRST]
    nearest = np.min([np.linalg.norm(lab - oklab(_channels(color)), axis=1) for color in taken], axis=0)
    for _ in range(n - len(FIRST)):
        farthest = int(np.argmax(nearest))
        red, green, blue = np.rint(255 * grid[farthest]).astype(int)
        taken.append(f"#{red:02x}{green:02x}{blue:02x}")
        nearest = np.minimum(nearest, np.linalg.norm(lab - lab[farthest], axis=1))
    return tuple(taken[1:])


def oklab(rgb: ArrayLike) -> Array:
    """Bring sRGB colours to OKLab, where distances are about as large as they look.

    >>> oklab([1.0, 1.0, 1.0]).round(3) + 0.0
    array([1., 0., 0.])
    """
    values = np.asarray(rgb, dtype=np.float64)
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ TO_CONES.T) @ TO_LAB.T


def _inside(values: Array, bounds: tuple[float, float]) -> NDArray[np.bool_]:
    return (values > bounds[0]) & (values < bounds[1])


def _channels(color: str) -> Array:
    return np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255.0
