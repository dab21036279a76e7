"""Put the page of results together from what the studies left; nothing on it is typed by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

from paper.study import ROOT, Options, parse

STUDIES = (
    "link_figure",
    "complexity",
    "approximation",
    "mcf7",
    "mcf7_design",
    "cytokine",
    "bbc",
    "across_c",
    "theory",
)
PAGE = ROOT / "paper" / "RESULTS.md"
WIDEST = 200  # characters of a cell
ABOUT = """# Results

The claims of Weine, Carbonetto, Irizarry and Stephens (2026), *A New Family of Poisson Non-negative Matrix
Factorization Methods Using the Shifted Log Link*, tested again with this library. `make paper` runs the
studies and writes this page; no number on it is typed by hand.

What is missing: the mouse pancreas data are not at hand, so their figures and tables were not made again.
Blood cells with and without interferon stand in for them. Structure plots at every c are not drawn. Our
MCF-7 file has 16,773 genes; the paper names 16,733.

Real data are fitted in three ways. **Faithful**: the paper's solver (coordinate ascent), start and number
of iterations; it has to reproduce what was published. **Converged**: Newton steps to convergence, the best
of several seeds; what the likelihood prefers. **Sparse**: converged with a penalty `l1` on all factors but
the first. The penalty is judged on held-out counts (a tenth of every count, by binomial splitting): the
largest one within one standard error of the best; where that is none at all, the largest one that predicts
held-out counts no worse than the faithful fit. Held-out log-likelihoods are of fits to the other nine
tenths, so that all of them can be compared. "Agrees" says whether the claim holds in the fit that the line
names.
"""


def write_page(results: Path, page: Path) -> None:
    """Write the page from the files in a folder of results."""
    found = {name: _load(results / f"{name}.json") for name in STUDIES if (results / f"{name}.json").exists()}
    lines = [ABOUT, *_overview(found)]
    for name, content in found.items():
        lines += _study(name, content, results, page.parent)
    page.write_text("\n".join(lines).rstrip() + "\n")


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _overview(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "## Overview",
        "",
        "| study | claims that agree | claims that do not | nothing to compare | CPU minutes | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for content in found.values():
        agrees = [claim["agrees"] for claim in content["claims"]]
        title = content["title"]
        numbers = " | ".join(str(agrees.count(value)) for value in (True, False, None))
        lines.append(f"| [{title}](#{_anchor(title)}) | {numbers} | {_minutes(content)} |")
    lines += [
        f"| all | | | | {_minutes(*found.values())} |",
        "",
        "CPU minutes are those of both threads together, minutes those on the clock. Fits that were kept",
        "from an earlier run count with what they took then; those that two studies share count once in all.",
        "",
        "Claims that do not agree:",
        "",
    ]
    for content in found.values():
        for claim in content["claims"]:
            if claim["agrees"] is False:
                lines.append(
                    f"- {content['title']}: {claim['claim']}: {claim['ours']} (paper: {claim['paper']})"
                )
    return [*lines, ""]


def _minutes(*contents: dict[str, Any]) -> str:
    fits: dict[str, dict[str, float]] = {}
    for content in contents:
        fits |= content["fits"]
    spent = [*fits.values(), *(content["other"] for content in contents)]
    return " | ".join(
        f"{sum(one[key] for one in spent) / 60.0:.1f}" for key in ("cpu_seconds", "wall_seconds")
    )


def _anchor(title: str) -> str:
    kept = "".join(char for char in title.lower() if char.isalnum() or char in " -")
    return kept.replace(" ", "-")


def _study(name: str, content: dict[str, Any], results: Path, base: Path) -> list[str]:
    lines = [f"## {content['title']}", "", f"`python -m paper.{name}`", ""]
    lines += ["| claim | paper | ours | agrees | seed spread |", "|---|---|---|---|---|"]
    words = {True: "yes", False: "**no**", None: "–"}
    for claim in content["claims"]:
        cells = [claim["claim"], claim["paper"], claim["ours"], words[claim["agrees"]], claim["spread"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("")
    for part in content["parts"]:
        if part["kind"] == "note":
            lines += [part["text"], ""]
        elif part["kind"] == "figure":
            path = f"{_relative(results, base)}/{part['file']}"
            lines += [f"![{part['caption']}]({path})", "", f"*{part['caption']}*", ""]
        elif part["show"]:
            lines += [*_table(results / part["file"]), "", f"*{part['caption']}*", ""]
        else:
            lines += [
                f"{part['caption']} See [{part['file']}]({_relative(results, base)}/{part['file']}).",
                "",
            ]
    return lines


def _relative(results: Path, base: Path) -> str:
    return results.relative_to(base).as_posix() if results.is_relative_to(base) else results.as_posix()


def _table(path: Path) -> list[str]:
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    head, body = rows[0], rows[1:]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in body]


def _cell(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return (text if len(text) <= WIDEST else text[: WIDEST - 1] + "…").replace("|", "\\|")
    if not math.isfinite(value):
        return {"nan": "", "inf": "inf"}.get(text, text)
    if value == int(value) and "e" not in text and "." not in text:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main(options: Options) -> None:
    """Write the page."""
    write_page(options.results, PAGE if not options.quick else options.results / "RESULTS.md")


if __name__ == "__main__":
    main(parse(__doc__))
