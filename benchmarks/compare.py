"""``make compare BASE=main~1``: the working tree against another commit, as ratios measured in one run.

Absolute times depend on the machine and on who else uses it. Here both versions take turns, each time in a
new process with its own `benchmarks.cases` (names of parameters change), and the figure is the median ratio
of CPU seconds, with its range; below 1 the working tree is faster. ``--only short`` leaves out the cases that
need minutes or the data of ../shared; `benchmarks.cases` has them all. All run on one thread.
``--instructions`` counts instructions instead of seconds (valgrind, about 50 times slower). Counts do not
depend on other work on the machine, so that one round is enough. Valgrind has no AVX-512: the AVX2 kernel
runs. The three paces of PBMC are then those of every eighth sample and of 16 iterations.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, LONG, SHORT

ROOT = Path(__file__).resolve().parent.parent
# The finder of the editable installation goes before every path; without it PYTHONPATH counts.
SITE = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "ScikitBuildRedirectingFinder"]
"""
CASE = """import json, sys
from benchmarks.cases import CASES
print(json.dumps(CASES[sys.argv[1]]()))
"""
COUNTER = """#include <valgrind/callgrind.h>
void dump(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_DUMP_STATS; }
"""
# Counting begins when the clock is first read; every reading ends a part of callgrind's output.
CLOCK = """import ctypes, time
dump, totals = ctypes.CDLL({folder!r} + "/counter.so").dump, [0]
def read():
    dump()
    with open(f"{folder}/out.{{len(totals)}}", "rb") as part:
        part.seek(-100, 2)
        totals.append(totals[-1] + int(part.read().split(b"totals:")[1]))
    return totals[-1] / 1e9
time.process_time = read
import sys
if sys.argv[1] in ("pbmc approximate", "pbmc adaptive", "pbmc exact"):
    from benchmarks import data, pace
    pace.LATE = pace.SETTLED = slice(12, 16)  # the second is its name in older commits
    whole = data.Folder.matrix
    data.Folder.matrix = lambda folder, name: whole(folder, name)[::8]
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
        (site / "bench-out").symlink_to(ROOT / "bench-out")
        shutil.copytree(tree / "benchmarks", site / "benchmarks")
        shutil.copy(_core(commit, tree, Path(folder) / "build"), site / "log1pnmf")
        subprocess.run([sys.executable, "-m", "compileall", "-q", site], check=True)  # as what is installed
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


def run(case: str, site: Path | None, count: bool = False) -> tuple[dict[str, float], float]:
    """Return cost and value of one case with one version (None: the one that is installed).

    The cost is CPU seconds, or 1e9 instructions.
    """
    known = os.environ | {"PYTHONPATH": str(site or ROOT)}
    known |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        command, code = [sys.executable], CASE
        if count:
            gcc = ["cc", "-xc", "-", "-shared", "-fPIC", "-o", f"{folder}/counter.so"]
            subprocess.run(gcc, input=COUNTER, text=True, check=True)
            command = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", *command]
            command.insert(3, f"--callgrind-out-file={folder}/out")
            code = CLOCK.format(folder=folder) + CASE
        done = subprocess.run(
            [*command, "-c", code, case], env=known, capture_output=True, text=True, check=False, cwd=folder
        )
    if done.returncode:
        version = "the base" if site else "the working tree"
        raise RuntimeError(f"{case} failed with {version}:\n{done.stderr[-2000:]}")
    cost, value = json.loads(done.stdout)
    return cost, value


def compare(site: Path, cases: list[str], rounds: int, count: bool) -> None:
    """Print a line for each figure of each case."""
    for case in cases:
        try:
            pairs = [(run(case, site, count), run(case, None, count)) for _ in range(rounds)]
        except RuntimeError as failed:
            print(failed, flush=True)
            continue
        before, after = pairs[0][0][1], pairs[0][1][1]
        for figure in pairs[0][0][0]:
            taken = [(base[0][figure], head[0][figure]) for base, head in pairs]
            ratios = sorted(head / base for base, head in taken)
            row = {
                "case": f"{case}: {figure}" if figure else case,
                "base": min(base for base, _ in taken),
                "head": min(head for _, head in taken),
                "ratio": statistics.median(ratios),
                "range": [ratios[0], ratios[-1]],
                "difference": abs(after - before) / abs(before),
            }
            print(_line(row), flush=True)


def _line(row: dict[str, Any]) -> str:
    low, high = row["range"]
    said = f"   (the result differs by {row['difference']:.0e})" if row["difference"] else ""
    costs = f"{row['base']:8.3f} {row['head']:8.3f}"
    return f"{row['case']:<44} {costs} {row['ratio']:6.3f}  ({low:.3f} to {high:.3f}){said}"


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
    parser.add_argument("--instructions", action="store_true", help="count instead of time; needs valgrind")
    given = parser.parse_args()
    unit = "1e9 instructions" if given.instructions else "CPU seconds"
    groups = {"short": list(SHORT), "long": list(LONG)} | {case: [case] for case in CASES}
    cases = [case for name in given.only for case in groups[name]]
    names = [given.base, "HEAD"]
    base, head = (
        subprocess.run(
            ["git", "rev-parse", "--short", name], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in names
    )
    print(f"{unit} of the working tree ({head} and changes) over those of {base}; below 1 is faster")
    print("smallest of the base and of the working tree, median ratio and its range", flush=True)
    with checked_out(base) as site:
        compare(site, cases, 1 if given.instructions else given.rounds, given.instructions)


if __name__ == "__main__":
    main()
