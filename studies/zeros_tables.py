"""The tables and the figure of `studies.zeros`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.defaults import N_COMPONENTS

PACED = (0.1, 1.0)

LEAST_DRAWN = 1e-8
"""What is less is not told from zero by the tolerance of a fit."""

Record = dict[str, Any]


def table_of(part: str, records: list[Record], fits: list[Record]) -> str:
    """The table of a part; `fits` are all records of the part of that name."""
    if part == "defaults":
        return _defaults_table(records, fits)
    tables = {
        "fits": _fits_table,
        "ratio": _ratio_table,
        "pace": _pace_table,
        "tolerance": _tolerance_table,
        "large": _large_table,
        "seeds": _seeds_table,
    }
    return tables[part](records)


def _table(head: str, lines: list[list[str]]) -> str:
    names = head.split("; ")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [names, ["---"] * len(names), *lines])


def _about(record: Record) -> str:
    n, m = record["shape"]
    return f"{record['data']} {n:,} x {m:,}, K={N_COMPONENTS.get(record['data'], 16)}"


def _by(records: list[Record], *names: str) -> dict[tuple[Any, ...], dict[str, Record]]:
    groups: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), {})[record["fit"]] = record
    return groups


def _fits_table(records: list[Record]) -> str:
    lines = []
    for (_, c), group in sorted(_by(records, "data", "c").items(), key=_in_order):
        adaptive, exact, approximate = (group[name] for name in ("adaptive", "exact", "chebyshev"))
        further, best = group["from adaptive"], exact["log_likelihood"]
        gained = further["log_likelihood"] - adaptive["log_likelihood"]
        lines.append(
            [
                _about(adaptive),
                f"{c:g}",
                f"{best:,.0f}",
                f"{adaptive['log_likelihood'] - best:+,.0f}",
                f"{gained:,.0f} ({gained / abs(best):.0e})",
                f"{approximate['log_likelihood'] - best:+,.0f}",
                _visited_cell(adaptive),
                ", ".join(f"{one['cpu']:.1f}" for one in (adaptive, exact, approximate)),
                ", ".join(f"{one['iterations']}" for one in (adaptive, exact, approximate)),
                f"{_each(adaptive) / _each(approximate):.2f}",
            ]
        )
    head = (
        "data; c; exact fit; adaptive; exact iterations from there gain; approximate; "
        "visited zeros / non-zeros; CPU s: adaptive, exact, approximate; iterations; "
        "CPU s per iteration, adaptive / approximate"
    )
    return _table(head, lines)


def _each(record: Record) -> float:
    """CPU seconds per iteration of a whole fit, its start and its end included."""
    return record["cpu"] / record["iterations"]


def _ratio_table(records: list[Record]) -> str:
    """Sums over seeds: CPU seconds and iterations of whole fits."""
    lines = []
    for data in dict.fromkeys(record["data"] for record in records):
        own = [record for record in records if record["data"] == data]
        totals = [
            [sum(one[name] for one in own if one["fit"] == fit) for fit in ("adaptive", "chebyshev")]
            for name in ("log_likelihood", "cpu", "iterations")
        ]
        (high, low), (cpu, other), (iterations, others) = totals
        n = len({one["seed"] for one in own})
        lines.append(
            [
                _about(own[0]),
                f"{(high - low) / n:+,.0f}",
                f"{cpu / n:.1f}, {other / n:.1f}",
                f"{cpu / other:.2f}",
                f"{iterations / n:.0f}, {others / n:.0f}",
                f"{cpu / iterations * others / other:.2f}",
            ]
        )
    head = "data; adaptive above approximate (mean); CPU s: adaptive, approximate (mean); ratio; "
    return _table(head + "iterations (mean); ratio per iteration", lines)


def _pace_table(records: list[Record]) -> str:
    lines = []
    for (data,), _ in _by(records, "data").items():
        mine = _by([record for record in records if record["data"] == data], "c")
        ratios = {
            c: group["adaptive"]["cpu_iteration"] / group["chebyshev"]["cpu_iteration"]
            for (c,), group in mine.items()
        }
        seconds = mine[1.0,]["chebyshev"]["cpu_iteration"]
        about = _about(mine[1.0,]["adaptive"])
        steady = mine[1.0,]["adaptive"]["cpu_between"] / mine[1.0,]["chebyshev"]["cpu_between"]
        shown = [f"{ratios[c]:.2f}" if c in ratios else "" for c in PACED]
        lines.append([about, f"{seconds:.3f}", *shown, f"{steady:.2f}"])
    head = "data; approximate, c = 1: CPU s per iteration; adaptive / approximate: "
    return _table(head + "; ".join(f"c = {c:g}" for c in PACED) + "; c = 1, between renewals", lines)


def _in_order(item: tuple[tuple[str, float], Any]) -> tuple[int, float]:
    (data, c), _ = item
    return list(N_COMPONENTS).index(data), c


def _visited_cell(record: Record) -> str:
    n_zeros = math.prod(record["shape"]) - record["nnz"]
    share = f"{record['visited'] / record['nnz']:.2f}"
    return f"{share} (all)" if record["visited"] == n_zeros else share


def _tolerance_table(records: list[Record]) -> str:
    lines = []
    for group in _groups_of(records).values():
        exact, approximate = group[-1], group[0]
        for record in group:
            missing = exact["log_likelihood"] - record["log_likelihood"]
            name = record["fit"] + (f", zeros_tol={record['zeros_tol']:g}" if "zeros_tol" in record else "")
            cost = record["cpu_iteration"] / approximate["cpu_iteration"]
            said = record["zeros_error"] / abs(exact["log_likelihood"])
            lines.append([_about(record), name, f"{missing:,.1f}", f"{said:.1e}", f"{cost:.2f}",
                          _visited_cell(record)])  # fmt: skip
    return _table(
        "data; fit; short of the exact fit; certified error / log-likelihood; "
        "CPU per iteration / approximate; visited zeros / non-zeros",
        lines,
    )


def _groups_of(records: list[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["data"], []).append(record)
    return groups


def _large_table(records: list[Record]) -> str:
    lines = []
    for record in records:
        lines.append(
            [
                _about(record),
                f"{record['nnz']:,}",
                record["fit"],
                f"{record['iterations']}",
                f"{record['log_likelihood']:,.0f}",
                f"{record['cpu_iteration']:.2f}",
                f"{record['cpu_between']:.2f}" if "cpu_between" in record else "",
                "" if record["visited"] is None else f"{record['visited'] / record['nnz']:.3f}",
            ]
        )
    return _table(
        "data; non-zeros; fit; iterations; exact log-likelihood; CPU s per iteration; between renewals; "
        "visited zeros / non-zeros",
        lines,
    )


def _defaults_table(records: list[Record], others: list[Record]) -> str:
    lines = []
    for data, every in _groups_of(records).items():
        group = sorted(every, key=lambda one: one["fit"] != "default")
        same = [one for one in others if one["data"] == data and one["c"] == 1.0]
        best = max(one["log_likelihood"] for one in [*group, *same])
        default = group[0]
        gap = best - default["log_likelihood"]
        worst = best - min((one["log_likelihood"] for one in group[1:]), default=math.nan)
        lines.append(
            [
                _about(default),
                default["taken"],
                f"{best:,.0f}",
                f"{gap:,.0f} ({gap / abs(best):.3%})",
                f"{worst:,.0f}",
                f"{default['cpu']:.1f}",
                f"{np.mean([one['cpu'] for one in group[1:]] or [math.nan]):.1f}",
            ]
        )
    head = (
        "data; likelihood taken; best log-likelihood of any run; default below it; "
        "worst single start below it; CPU s; CPU s of a single start (mean)"
    )
    return _table(head, lines)


def _seeds_table(records: list[Record]) -> str:
    lines = []
    for group in _groups_of(records).values():
        best = max(one["log_likelihood"] for one in group)
        below = sorted((best - one["log_likelihood"]) / abs(best) for one in group)
        cpu = np.mean([one["cpu"] for one in group])
        shown = ", ".join(f"{one:.3%}" for one in below)
        lines.append([_about(group[0]), f"{best:,.0f}", shown, f"{np.mean(below):.3%}", f"{cpu:.1f}"])
    return _table("data; best; below it, seed by seed, in order; mean; CPU s (mean)", lines)


def draw(records: list[Record], path: Path) -> None:
    """Draw what is missing to the exact fit against the cost of an iteration."""
    from matplotlib.figure import Figure

    from log1pnmf.analysis.groups import distinct_colors

    names = {"baron": "pancreas", "pbmc": "PBMC"}
    figure = Figure(figsize=(7.4, 4.0), layout="constrained")
    ax = figure.subplots()
    for (data, all_fits), color, side in zip(
        _groups_of(records).items(), distinct_colors(2), (1, -1), strict=True
    ):
        exact, unit = all_fits[-1]["log_likelihood"], all_fits[0]["cpu_iteration"]
        n_zeros = all_fits[-1]["visited"]
        group = [one for one in all_fits if one["fit"] != "adaptive" or one["visited"] < n_zeros]
        cost = np.array([record["cpu_iteration"] / unit for record in group])
        missing = np.array([(exact - record["log_likelihood"]) / abs(exact) for record in group])
        missing = np.maximum(missing, LEAST_DRAWN)
        ax.plot(cost[1:-1], missing[1:-1], "o-", color=color, label=f"{names[data]}, adaptive")
        ax.plot(cost[:1], missing[:1], "s", color=color, markersize=8, label=f"{names[data]}, approximate")
        ax.plot(cost[-1:], missing[-1:], "D", color=color, markersize=7, fillstyle="none",
                label=f"{names[data]}, exact")  # fmt: skip
        for record, x, y in zip(group[1:-1], cost[1:], missing[1:], strict=False):
            name = f"{record['zeros_tol']:.0e}".replace("e-0", "e-")
            ax.annotate(
                name,
                (x, y),
                xytext=(6 * side, 4),
                ha="left" if side > 0 else "right",
                textcoords="offset points",
                fontsize=8,
                color=color,
            )
    ax.set(
        yscale="log",
        ylim=(0.4 * LEAST_DRAWN, None),
        xlabel="CPU seconds per iteration, relative to the approximate fit",
        ylabel="log-likelihood short of the exact fit,\nas a part of it",
    )
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
