"""Pictures of the report: numbers of the structure plots, and small charts as inline SVG.

The charts need no script, follow the page's colours and print sharply.
"""

from __future__ import annotations

import base64
import contextlib
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.groups import PALE, Arrangement, Section, arrange, sections_of, spacing
from log1pnmf.analysis.metrics import dominant_factor
from log1pnmf.fitting.anndata import is_annotated

from .inputs import ReportInput

Array = NDArray[np.float64]

# ---------- structure plots: which samples, in which order, with which colours

MOST_SAMPLES = 2000  # that are drawn and embedded; of more, a part of each group
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


# ---------- maps: the dominant factor in each section, and each factor where there is only one

MOST_SECTIONS = 12
MAP_WIDTH = 400.0  # and at most this height
IMAGE_PIXELS = 300  # of an image under a map, along its longer side
LEAST_DOT = 5.0
SHADES = 4  # beside that of loadings near 0; the style sheet has a class for each


def maps_of(source: Any) -> dict[str, list[Section]]:
    """Return the UMAP and the sections in space of an AnnData, where it has them; y points downwards."""
    maps: dict[str, list[Section]] = {}
    there: Any = source.obsm if is_annotated(source) else {}
    if "X_umap" in there and np.isfinite(there["X_umap"]).all():
        places = np.asarray(there["X_umap"], dtype=np.float64)[:, :2] * (1.0, -1.0)
        maps["UMAP"] = [Section("", np.arange(len(places)), places, spacing(places))]
    if "spatial" in there:
        with contextlib.suppress(ValueError):  # sections that cannot be told apart are not drawn
            maps["In space"] = sections_of(source)
    return maps


def map_data(inputs: ReportInput, colors: Sequence[str]) -> list[dict[str, Any]]:
    """Return the panels of every map, for the first fit."""
    fit, soft = inputs.fits[0], "var(--soft)"
    colors = [soft if color == PALE else color for color in colors]  # its own grey would not be seen
    largest, levels = dominant_factor(fit), np.rint(SHADES * fit.loadings)
    named = zip(fit.factor_names, colors, strict=True)
    parts = [(soft, 0, np.array([name is None for name in largest]))]
    parts += [(color, SHADES, largest == name) for name, color in named]
    maps = []
    for title, sections in inputs.maps.items():
        shown = sections[:MOST_SECTIONS]
        panels = [_map_panel(one, one.name or "dominant factor", None, parts) for one in shown]
        for k, (name, color) in enumerate(zip(fit.factor_labels, colors, strict=True)):
            if len(sections) == 1:
                shades = [(color, shade, levels[:, k] == shade) for shade in range(SHADES + 1)]
                panels.append(_map_panel(sections[0], name, color, shades))
        maps.append({"title": title, "panels": panels, "n_sections": len(sections)})
    return maps


def _map_panel(
    section: Section, name: str, color: str | None, parts: Sequence[tuple[str, int, NDArray[np.bool_]]]
) -> dict[str, Any]:
    """Return paths of dots, one for each colour, shade and choice of samples."""
    thin = _some(len(section.samples), MOST_SAMPLES)
    wide = section.diameter * math.sqrt(len(section.samples) / len(thin))
    size = np.ptp(section.places, axis=0) + wide
    scale = MAP_WIDTH / size.max()
    at = np.rint(scale * (section.places[thin] - section.places.min(axis=0) + wide / 2)).astype(int)
    paths = []
    for shown, shade, chosen in parts:
        dots = at[chosen[section.samples[thin]]].tolist()
        paths.append((shown, shade, "".join(f"M{x},{y}h0" for x, y in dots)))
    width, height = np.ceil(scale * size).astype(int).tolist()
    dot = _round(max(LEAST_DOT, scale * wide))
    drawn = {"width": width, "height": height, "dot": dot, "paths": paths}
    image, box = _image_under(section, wide / 2) if color is None else (None, ())
    return drawn | {"name": name, "color": color, "image": image, "box": box}


def _image_under(section: Section, margin: float) -> tuple[str | None, Sequence[float]]:
    """Return the part of a section's image under its samples, as a PNG, and its left, top, width, height."""
    if section.image is None or section.extent is None:
        return None, ()
    pixels = np.asarray(section.image)
    if pixels.dtype.kind == "f":  # parts of 1
        pixels = np.rint(255.0 * np.clip(pixels, 0.0, 1.0))
    first, last = section.places.min(axis=0) - margin, section.places.max(axis=0) + margin
    shape = pixels.shape[1::-1]
    per_unit = np.array(shape) / (section.extent[1], section.extent[2])
    left, top = (int(at) for at in np.clip(np.floor(first * per_unit), 0, shape))
    right, bottom = (int(at) for at in np.clip(np.ceil(last * per_unit), 0, shape))
    if right <= left or bottom <= top:  # no sample is on the image
        return None, ()
    step = max(1, round(max(right - left, bottom - top) / IMAGE_PIXELS))
    part = np.atleast_3d(pixels)[top:bottom:step, left:right:step]
    scale = MAP_WIDTH / (last - first).max()
    corner = scale * (np.array([left, top]) / per_unit - first)
    size = scale * step * np.array(part.shape[1::-1]) / per_unit
    colors = part[..., [0, 1, 2] if part.shape[2] >= 3 else [0, 0, 0]].astype(np.uint8)
    box = [_round(value) for value in (*corner.tolist(), *size.tolist())]
    return base64.b64encode(_png(colors)).decode(), box


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a picture as a PNG file."""
    height, width, _ = pixels.shape
    lines = np.insert(pixels.reshape(height, -1), 0, 0, axis=1)  # every line begins with its filter: none

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


# ---------- charts

WIDTH, HEIGHT = 420.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, WIDTH - 12.0, 12.0, HEIGHT - 40.0  # of the area inside the axes
MOST_POINTS = 400  # of a line
MOST_DOTS = 1500
MOST_TICKS = 5
LINES = {"exact": "line-1", "approximate": "line-2", "adaptive": "line-3"}  # classes in the style sheet

Scale = Callable[[Any], Any]
Tick = tuple[float, str]  # place on an axis, and what is written there


@dataclass(frozen=True)
class Chart:
    """What the template draws: everything in the coordinates of the picture."""

    label: str  # what the chart shows, for those who do not see it
    x_title: str
    y_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    bars: Sequence[tuple[float, float, float, float]] = ()  # left, top, width and height
    lines: Sequence[tuple[str, str, str]] = ()  # name, class in the style sheet and path
    level: Tick | None = None  # a horizontal line
    points: str = ""  # path of dots
    band: str = ""  # path of an area
    width, height, left, right, top, bottom = WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM  # of every chart


def histogram(
    values: Array, *, label: str, x_title: str, y_title: str = "samples", n_bins: int = 32
) -> Chart | None:
    """Draw how positive values are spread, on a log scale; None without two different values."""
    positive = values[values > 0.0]
    if len(positive) == 0 or positive.min() == positive.max():
        return None
    heights, edges = np.histogram(np.log10(positive), bins=n_bins)
    x, x_ticks = _axis("logs", edges, LEFT, RIGHT)
    y, y_ticks = _axis("even", heights, BOTTOM, TOP)
    bars = [
        (_round(x(low)), _round(y(height)), _round(x(high) - x(low) - 0.8), _round(y(0.0) - y(height)))
        for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True)
        if height
    ]
    return Chart(label, x_title, y_title, x_ticks, y_ticks, bars)


def log_curve(
    x: Array, y: Array, likelihood: str, *, label: str, y_title: str, level: tuple[float, str] | None = None
) -> Chart | None:
    """Draw a curve over iterations on a log scale, and a level to compare with; None without two points."""
    good = np.isfinite(y) & (y > 0.0)
    if good.sum() < 2:
        return None
    x, logs = x[good], np.log10(y[good])
    marked = [] if level is None else [math.log10(level[0])]
    across, x_ticks = _axis("even", np.append(x, 1.0), LEFT, RIGHT)
    up, y_ticks = _axis("powers", np.append(logs, marked), BOTTOM, TOP)
    thin = _some(len(x), MOST_POINTS)
    return Chart(
        label,
        "iteration",
        y_title,
        x_ticks,
        y_ticks,
        lines=[(likelihood, LINES[likelihood], "M" + "L".join(_points(across(x[thin]), up(logs[thin]))))],
        level=None if level is None else (_round(up(marked[0])), level[1]),
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
    logs, heights = np.log10(x[good]), np.log10(y[good])
    wide = math.log10(spread)
    middle = np.zeros(0) if trend is None else np.log10(trend[good])
    across, x_ticks = _axis("logs", logs, LEFT, RIGHT)
    up, y_ticks = _axis("powers", [*heights, *(middle - wide), *(middle + wide)], BOTTOM, TOP)
    some = _some(len(good), MOST_DOTS)
    lines, band = [], ""
    if trend is not None:
        thin = _some(len(good), MOST_POINTS)
        line, upper, lower = (_points(across(logs[thin]), up(middle[thin] + by)) for by in (0.0, wide, -wide))
        lines = [("trend", "line-2", "M" + "L".join(line))]
        band = "M" + "L".join(upper + lower[::-1]) + "Z"
    return Chart(
        label,
        x_title,
        y_title,
        x_ticks,
        y_ticks,
        lines=lines,
        points="".join(f"M{point}h0" for point in _points(across(logs[some]), up(heights[some]))),
        band=band,
    )


def _axis(kind: str, values: Any, start: float, stop: float) -> tuple[Scale, list[Tick]]:
    """Return where a number is between the ends of an axis for some values, and its ticks.

    An axis is "even" (whole numbers from 0) or of logarithms: "powers" of ten, or "logs" with ticks at 1, 2,
    5, 10, ..., and only at the tens where these are many.
    """

    def place(value: Any) -> Any:
        return start + (value - low) / (high - low) * (stop - start)

    low, high = float(np.min(values)), float(np.max(values))
    if kind == "even":
        low = 0.0
        ten = 10.0 ** math.floor(math.log10(high / MOST_TICKS))
        step = max(1.0, next(ten * factor for factor in (1, 2, 5, 10) if ten * factor >= high / MOST_TICKS))
        ticks = [(at, f"{at:,.0f}") for at in np.arange(0.0, high + 1e-9 * step, step).tolist()]
    elif kind == "powers":
        low, high = math.floor(low), max(math.ceil(high + 1e-9), math.floor(low) + 1)
        powers = range(low, high + 1, max(1, math.ceil((high - low) / MOST_TICKS)))
        ticks = [(at, f"{10.0**at:,g}" if -3 <= at <= 4 else f"1e{at}") for at in powers]
    else:
        tens, steps = range(math.floor(low), math.ceil(high) + 1), (1, 2, 5) if high - low < 3 else (1,)
        numbers = [step * 10.0**ten for ten in tens for step in steps]
        ticks = [(at, f"{n:g}") for n in numbers if low <= (at := math.log10(n)) <= high]
    return place, [(_round(place(at)), text) for at, text in ticks]


def _some(n: int, most: int) -> NDArray[np.intp]:
    """Return up to `most` of n positions, evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))


def _points(x: Iterable[float], y: Iterable[float]) -> list[str]:
    return [f"{_round(across)},{_round(up)}" for across, up in zip(x, y, strict=True)]


def _round(value: float) -> float:
    return round(float(value), 2)
