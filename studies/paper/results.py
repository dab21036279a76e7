"""Put the page of results together from what the studies left."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

from studies.paper.contents import CONTENTS
from studies.paper.study import ROOT, Options, parse

STUDIES = (
    "data_sets",
    "link_figure",
    "complexity",
    "approximation",
    "mcf7",
    "mcf7_design",
    "cytokine",
    "bbc",
    "across_c",
    "structures",
    "theory",
)
PAGE = ROOT / "studies" / "paper" / "RESULTS.md"
WIDEST = 200  # characters of a cell
ABOUT = """# The paper's results, tested again

This page tests the results of Weine, Carbonetto, Irizarry and Stephens (2026), *A New Family of Poisson
Non-negative Matrix Factorization Methods Using the Shifted Log Link*, with this library. `make paper` runs
the studies and writes the page. Every number in its tables of claims comes from these runs.

**{verdict}**

We fit real data in three ways:

- **Faithful**: the paper's solver (coordinate ascent), its start and its number of iterations. These fits
  should show what the paper shows.
- **Converged**: Newton steps until the fit converges, the best of several seeds. These fits show the
  maximum of the likelihood.
- **Sparse**: converged, with a penalty `l1` on all factors but the first. We choose the largest penalty
  that predicts held-out counts within one standard error of the best. If no penalty does, we take the
  largest one that predicts them no worse than the faithful fit. A tenth of every count is held out, by
  binomial splitting, and the other nine tenths are fitted.

The column "agrees" states whether the claim holds in the fit that the line names.
"""
INCOMPLETE = """
Three parts of the paper need the mouse pancreas counts, which we do not have: Figures 5 to 7 with their
tables of genes. Blood cells with and without interferon-beta replace them where a claim is not about the
pancreas itself.
"""


def write_page(results: Path, page: Path) -> None:
    """Write the page from the files in a folder of results."""
    found = {name: _load(results / f"{name}.json") for name in STUDIES if (results / f"{name}.json").exists()}
    lines = [ABOUT.format(verdict=_verdict(found)), *_overview(found), *_contents(found), INCOMPLETE]
    for name, content in found.items():
        lines += _study(name, content, results, page.parent)
    page.write_text("\n".join(lines).rstrip() + "\n")


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _verdict(found: dict[str, dict[str, Any]]) -> str:
    agrees = [claim["agrees"] for content in found.values() for claim in content["claims"]]
    yes, no, none = (agrees.count(value) for value in (True, False, None))
    held = f"Of {yes + no} claims, {yes} agree with our fits and {no} do not"
    return f"{held}; {none} more have nothing to compare."


def _contents(found: dict[str, dict[str, Any]]) -> list[str]:
    """List for every part of the paper where it is, or why not."""
    lines = [
        "## What of the paper is here",
        "",
        "| in the paper | what it shows | here | remark |",
        "|---|---|---|---|",
    ]
    for place, what, study, remark in CONTENTS:
        title = found[study]["title"] if study in found else ""
        link = f"[{title}](#{_anchor(title)})" if title else "–"
        lines.append(f"| {place} | {what} | {link} | {remark} |")
    return lines


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
        "CPU minutes add up both threads; minutes are those on the clock. A fit that was kept from an",
        "earlier run counts with the time it took then. A fit that two studies share counts once in the last",
        "line.",
        "",
        "Claims that do not agree:",
        "",
    ]
    for content in found.values():
        for claim in content["claims"]:
            if claim["agrees"] is False:
                title = content["title"]
                lines.append(f"- [{title}](#{_anchor(title)}): {claim['claim']}")
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
    made = "commit {commit} of {date}; {machine}.".format(**content["made"])
    lines = [f"## {content['title']}", "", f"`python -m studies.paper.{name}`, {made}", ""]
    lines += ["| claim | paper | this library | agrees | seed spread |", "|---|---|---|---|---|"]
    words = {True: "yes", False: "**no**", None: "–"}
    for claim in content["claims"]:
        cells = [claim["claim"], claim["paper"], claim["ours"], words[claim["agrees"]], claim["spread"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "<details><summary>Figures, tables and notes</summary>", ""]
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
    return [*lines, "</details>", ""]


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
