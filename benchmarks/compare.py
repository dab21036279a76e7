"""``make compare BASE=main~1``: the working tree against another commit, as ratios measured in one run.

Absolute times depend on the machine and on who else uses it. Here both versions take turns, each time in a
new process with its own `benchmarks.cases` (names of parameters change), and the figure is the median ratio
of CPU seconds, with its range; below 1 the working tree is faster. ``--only short`` leaves out the cases that
need minutes or the data of ../shared; `benchmarks.cases` has them all.
One line of JSON per run is added to bench-out/history.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, LONG, SHORT

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "bench-out" / "history.jsonl"
# The finder of the editable installation goes before every path; without it PYTHONPATH counts.
SITE = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "ScikitBuildRedirectingFinder"]
"""


# ---------------------------------------------------------------- two versions


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Make a folder with the package and benchmarks of another commit; its core is compiled if it differs."""
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        tree, site = Path(folder) / "tree", Path(folder) / "site"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        shutil.copytree(tree / "src" / "log1pnmf", site / "log1pnmf")
        (site / "sitecustomize.py").write_text(SITE)
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")  # where benchmarks find data
        shutil.copytree(tree / "benchmarks", site / "benchmarks")
        shutil.copy(_core(commit, tree, Path(folder) / "build"), site / "log1pnmf")
        yield site


def _core(commit: str, tree: Path, place: Path) -> Path:
    same = subprocess.run(
        ["git", "diff", "--quiet", commit, "--", "cpp", "CMakeLists.txt"], cwd=ROOT, check=False
    )
    if same.returncode == 0:
        from log1pnmf import _core as installed

        return Path(str(installed.__file__))
    print(f"compiling the core of {commit} ...", flush=True)
    where = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True
    )
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}", "-GNinja"]
    options += [
        f"-Dnanobind_DIR={where.stdout.strip()}",
        f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).with_name('ninja')}",
    ]
    cmake = [sys.executable, "-m", "cmake"]
    subprocess.run([*cmake, "-S", tree, "-B", place, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*cmake, "--build", place, "--target", "_core"], check=True, stdout=subprocess.DEVNULL)
    return next(place.glob("_core*.so"))


def run(case: str, site: Path | None) -> tuple[dict[str, float], float]:
    """CPU seconds and value of one case with one version (None: the one that is installed)."""
    known = os.environ | {"PYTHONPATH": str(site or ROOT)}
    command = [sys.executable, "-m", "benchmarks.compare", "--case", case]
    done = subprocess.run(
        command, env=known, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir()
    )
    if done.returncode:
        version = "the base" if site else "the working tree"
        raise RuntimeError(f"{case} failed with {version}:\n{done.stderr[-2000:]}")
    seconds, value = json.loads(done.stdout)
    return seconds, value


def compare(site: Path, cases: list[str], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for case in cases:
        try:
            pairs = [(run(case, site), run(case, None)) for _ in range(rounds)]
        except RuntimeError as failed:
            print(failed, flush=True)
            continue
        before, after = pairs[0][0][1], pairs[0][1][1]
        for figure in pairs[0][0][0]:
            taken = [(base[0][figure], head[0][figure]) for base, head in pairs]
            ratios = sorted(head / base for base, head in taken)
            row = {
                "case": f"{case}: {figure}" if figure else case,
                "base_s": min(base for base, _ in taken),
                "head_s": min(head for _, head in taken),
                "ratio": statistics.median(ratios),
                "range": [ratios[0], ratios[-1]],
                "difference": abs(after - before) / abs(before),
            }
            rows.append(row)
            print(_line(row), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    low, high = row["range"]
    said = f"   (the result differs by {row['difference']:.0e})" if row["difference"] else ""
    seconds = f"{row['base_s']:8.3f} {row['head_s']:8.3f}"
    return f"{row['case']:<44} {seconds} {row['ratio']:6.2f}  ({low:.2f} to {high:.2f}){said}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--base", default="main~1", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CASE",
        default=["short", "long"],
        help=f"short, long, {', '.join(CASES)}",
    )
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(CASES[given.case]()))
        return
    groups = {"short": list(SHORT), "long": list(LONG)} | {case: [case] for case in CASES}
    cases = [case for name in given.only for case in groups[name]]
    names = [given.base, "HEAD"]
    base, head = (
        subprocess.run(
            ["git", "rev-parse", "--short", name], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in names
    )
    print(f"CPU seconds of the working tree ({head} and changes) over those of {base}; below 1 is faster")
    print("smallest seconds of the base and of the working tree, median ratio and its range", flush=True)
    with checked_out(base) as site:
        rows = compare(site, cases, given.rounds)
    given.history.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": platform.machine(),
        "base": base,
        "head": head,
    }
    with open(given.history, "a", encoding="utf-8") as file:
        file.write(json.dumps(about | {"cases": rows}) + "\n")
    print(f"added to {given.history}")


if __name__ == "__main__":
    main()
