"""Small charts as inline SVG: they need no script, follow the page's colours and print sharply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.groups import Arrangement, arrange

from .inputs import ReportInput

# ---------- the structure plot's numbers: which samples, in which order, with which colours

MOST_SAMPLES = 2000
"""Samples that are drawn and embedded; of more, a part of each group."""

THOUSANDTHS = 1000


def arrange_samples(inputs: ReportInput) -> Arrangement:
    """Order the samples once for all fits, so that a sample has the same place in every plot."""
    together = np.hstack([fit.loadings for fit in inputs.fits])
    return arrange(together, inputs.groups, max_samples=MOST_SAMPLES)


def structure_data(inputs: ReportInput, arrangement: Arrangement, colors: list[list[str]]) -> dict[str, Any]:
    """Return what the script of the page draws, as plain lists; loadings are in thousandths."""
    order = arrangement.order
    return {
        "names": inputs.sample_names[order].tolist(),
        "spans": [list(span) for span in arrangement.spans],
        "models": [
            {
                "label": label,
                "factors": fit.factor_labels,
                "colors": palette,
                "loadings": np.rint(fit.loadings[order] * THOUSANDTHS).astype(int).ravel().tolist(),
                "weights": fit.factors.sum(axis=0).tolist(),
            }
            for fit, label, palette in zip(inputs.fits, inputs.labels, colors, strict=True)
        ],
    }


# ---------- small charts as inline SVG

Array = NDArray[np.float64]

WIDTH, HEIGHT = 420.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 12.0, 12.0, 40.0
MOST_POINTS = 400
MOST_DOTS = 1500
MOST_TICKS = 5


@dataclass(frozen=True)
class Tick:
    """A place on an axis, and what is written there."""

    at: float
    text: str


@dataclass(frozen=True)
class Curve:
    """A line of a chart."""

    name: str
    x: Array
    y: Array
    style: str = "line-1"  # class of the line in the style sheet


@dataclass(frozen=True)
class Chart:
    """What the template draws: everything in the coordinates of the picture."""

    label: str  # what the chart shows, for those who do not see it
    x_title: str
    y_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    bars: list[tuple[float, float, float, float]]
    lines: list[tuple[str, str, str]]
    level: tuple[float, str] | None = None  # a horizontal line
    points: str = ""  # path of dots
    band: str = ""  # path of an area
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def histogram(
    values: Array, *, label: str, x_title: str, y_title: str = "samples", n_bins: int = 32
) -> Chart | None:
    """Draw how positive values are spread, on a log scale; None without two different values."""
    positive = values[values > 0.0]
    if len(positive) == 0 or positive.min() == positive.max():
        return None
    logs = np.log10(positive)
    heights, edges = np.histogram(logs, bins=n_bins)
    x = _Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    y = _Scale(0.0, float(heights.max()), HEIGHT - BOTTOM, TOP)
    bars = [
        (_round(x(low)), _round(y(height)), _round(x(high) - x(low) - 0.8), _round(y(0.0) - y(height)))
        for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True)
        if height
    ]
    return Chart(
        label=label,
        x_title=x_title,
        y_title=y_title,
        x_ticks=[Tick(_round(x(math.log10(v))), f"{v:g}") for v in _round_numbers(edges[0], edges[-1])],
        y_ticks=[Tick(_round(y(v)), f"{v:,.0f}") for v in _even_ticks(float(heights.max()))],
        bars=bars,
        lines=[],
    )


def log_curves(
    curves: Sequence[Curve], *, label: str, x_title: str, y_title: str, level: tuple[float, str] | None = None
) -> Chart | None:
    """Draw curves on a log scale, and a level to compare with; None with less than two positive points."""
    kept = [_positive(curve) for curve in curves]
    kept = [curve for curve in kept if len(curve.x)]
    if sum(len(curve.x) for curve in kept) < 2:
        return None
    logs = np.concatenate([np.log10(curve.y) for curve in kept])
    if level is not None:
        logs = np.append(logs, math.log10(level[0]))
    low, high = math.floor(logs.min()), math.ceil(logs.max() + 1e-9)
    high = high if high > low else low + 1
    last = max(float(curve.x.max()) for curve in kept)
    x, y = _Scale(0.0, max(last, 1.0), LEFT, WIDTH - RIGHT), _Scale(low, high, HEIGHT - BOTTOM, TOP)
    lines = [(curve.name, curve.style, _path(x, y, curve)) for curve in kept]
    return Chart(
        label=label,
        x_title=x_title,
        y_title=y_title,
        x_ticks=[Tick(_round(x(v)), f"{v:,.0f}") for v in _even_ticks(max(last, 1.0))],
        y_ticks=[Tick(_round(y(v)), _power(v)) for v in _spread(low, high)],
        bars=[],
        lines=lines,
        level=None if level is None else (_round(y(math.log10(level[0]))), level[1]),
    )


def log_points(
    x: Array, y: Array, *, trend: Array | None, spread: float, label: str, x_title: str, y_title: str
) -> Chart | None:
    """Draw points on two log scales (some of many), with a trend and the area of `spread` times around it.

    None without two different points.
    """
    good = np.flatnonzero((x > 0.0) & (y > 0.0))
    if len(good) < 2 or x[good].min() == x[good].max():
        return None
    good = good[np.argsort(x[good], kind="stable")]
    logs = np.log10(y[good])
    if trend is not None:
        middle = np.log10(trend[good])
        logs = np.concatenate((logs, middle - math.log10(spread), middle + math.log10(spread)))
    low, high = math.floor(logs.min()), math.ceil(logs.max() + 1e-9)
    left, right = math.log10(x[good[0]]), math.log10(x[good[-1]])
    across, up = _Scale(left, right, LEFT, WIDTH - RIGHT), _Scale(low, high, HEIGHT - BOTTOM, TOP)
    some = good[np.unique(np.linspace(0, len(good) - 1, MOST_DOTS).astype(int))]
    dots = [f"M{_round(across(math.log10(x[j])))},{_round(up(math.log10(y[j])))}h0" for j in some]
    lines, band = [], ""
    if trend is not None:
        thin = good[np.unique(np.linspace(0, len(good) - 1, MOST_POINTS).astype(int))]
        edges = [_log_path(across, up, x[thin], by * trend[thin]) for by in (1.0, spread, 1.0 / spread)]
        lines = [("trend", "line-2", "M" + "L".join(edges[0]))]
        band = "M" + "L".join(edges[1] + edges[2][::-1]) + "Z"
    return Chart(
        label=label,
        x_title=x_title,
        y_title=y_title,
        x_ticks=[Tick(_round(across(math.log10(v))), f"{v:g}") for v in _round_numbers(left, right)],
        y_ticks=[Tick(_round(up(v)), _power(v)) for v in _spread(low, high)],
        bars=[],
        lines=lines,
        points="".join(dots),
        band=band,
    )


def _log_path(across: _Scale, up: _Scale, x: Array, y: Array) -> list[str]:
    return [
        f"{_round(across(math.log10(a)))},{_round(up(math.log10(b)))}"
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class _Scale:
    """A straight line from data (low, high) to the picture (start, stop)."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        part = (float(value) - self.low) / (self.high - self.low)
        return self.start + part * (self.stop - self.start)


def _path(x: _Scale, y: _Scale, curve: Curve) -> str:
    thin = np.unique(np.linspace(0, len(curve.x) - 1, min(len(curve.x), MOST_POINTS)).astype(int))
    points = [f"{_round(x(curve.x[i]))},{_round(y(math.log10(curve.y[i])))}" for i in thin]
    if len(points) == 1:  # a line of one point is not drawn
        points *= 2
    return "M" + "L".join(points)


def _positive(curve: Curve) -> Curve:
    good = np.isfinite(curve.y) & (curve.y > 0.0)
    return Curve(curve.name, curve.x[good], curve.y[good], curve.style)


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between two powers of ten; only the tens where they are many."""
    tens = range(math.floor(low), math.ceil(high) + 1)
    steps = (1, 2, 5) if high - low < 3 else (1,)
    numbers = [step * 10.0**ten for ten in tens for step in steps]
    return [v for v in numbers if low <= math.log10(v) <= high]


def _even_ticks(top: float) -> list[float]:
    rough = top / MOST_TICKS
    ten = 10.0 ** math.floor(math.log10(rough))
    step = next(ten * factor for factor in (1, 2, 5, 10) if ten * factor >= rough)
    step = max(step, 1.0)
    return [float(v) for v in np.arange(0.0, top + 1e-9 * step, step)]


def _spread(low: int, high: int) -> range:
    return range(low, high + 1, max(1, math.ceil((high - low) / MOST_TICKS)))


def _power(exponent: int) -> str:
    return f"{10.0**exponent:,g}" if -3 <= exponent <= 4 else f"1e{exponent}"


def _round(value: float) -> float:
    return round(float(value), 2)
