"""``make compare BASE=main~1``: the working tree against another commit, as ratios measured in one run.

Absolute times depend on the machine and on who else uses it. Here both versions take turns, each time in a
new process, and the figure is the median ratio of CPU seconds, with its range; below 1 the working tree is
faster.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "bench-out" / "history.jsonl"
# The finder of the editable installation goes before every path; without it PYTHONPATH counts.
SITE = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "ScikitBuildRedirectingFinder"]
"""


# ---------------------------------------------------------------- what is measured, in a process of its own


def _fit(**settings: Any) -> Callable[[], float]:
    import warnings

    from log1pnmf import datasets, fit_log1p_nmf

    warnings.simplefilter("ignore")
    counts = datasets.pancreas().counts

    def fit() -> float:
        done = fit_log1p_nmf(counts, 6, random_state=0, tol=1e-15, n_jobs=1, **settings)
        return float(done.log_likelihood)

    return fit


def _checking() -> Callable[[], float]:
    from log1pnmf import datasets
    from log1pnmf.counts.counts import Counts

    matrix = datasets.pancreas().counts

    def check() -> float:
        return sum(Counts.from_any(matrix.copy()).nnz for _ in range(20))

    return check


def _importing() -> Callable[[], float]:
    import numpy as np
    import sklearn.base
    import sklearn.utils.extmath  # noqa: F401

    def bring() -> float:
        import log1pnmf  # noqa: F401

        return float(np.pi)

    return bring


CASES: dict[str, Callable[[], Callable[[], float]]] = {
    "c = 1, approximate, 15 iterations": lambda: _fit(c=1.0, likelihood="approximate", max_iter=15),
    "c = inf, 15 iterations": lambda: _fit(c=float("inf"), max_iter=15),
    "c = 1, exact, 2 iterations": lambda: _fit(c=1.0, likelihood="exact", max_iter=2),
    "checking and compressing counts": _checking,
    "import": _importing,
}


def measure(case: str) -> None:
    """Print CPU seconds and the value that came out."""
    task = CASES[case]()
    began = time.process_time()
    value = task()
    print(json.dumps([time.process_time() - began, value]))


# ---------------------------------------------------------------- two versions


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Make a folder with the package of another commit, compiled unless its core is the same."""
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        tree, site = Path(folder) / "tree", Path(folder) / "site"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        shutil.copytree(tree / "src" / "log1pnmf", site / "log1pnmf")
        (site / "sitecustomize.py").write_text(SITE)
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


def run(case: str, site: Path | None) -> tuple[float, float]:
    """CPU seconds and value of one case with one version (None: the one that is installed)."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    paths = {"PYTHONPATH": str(site)} if site else {}
    command = [sys.executable, __file__, "--case", case]
    done = subprocess.run(
        command, env=known | paths, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir()
    )
    if done.returncode:
        sys.exit(f"{case} failed with {'the base' if site else 'the working tree'}:\n{done.stderr[-2000:]}")
    seconds, value = json.loads(done.stdout)
    return seconds, value


def compare(site: Path, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for case in CASES:
        pairs = [(run(case, site), run(case, None)) for _ in range(rounds)]
        ratios = sorted(head[0] / base[0] for base, head in pairs)
        row = {
            "case": case,
            "base_s": min(base[0] for base, _ in pairs),
            "head_s": min(head[0] for _, head in pairs),
            "ratio": statistics.median(ratios),
            "range": [ratios[0], ratios[-1]],
            "same_value": pairs[0][0][1] == pairs[0][1][1],
        }
        rows.append(row)
        said = "" if row["same_value"] else "   (the result differs)"
        low, high = row["range"]
        print(f"{case:<36} {row['ratio']:6.2f}  ({low:.2f} to {high:.2f}){said}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--base", default="main~1", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        measure(given.case)
        return
    names = [given.base, "HEAD"]
    base, head = (
        subprocess.run(
            ["git", "rev-parse", "--short", name], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in names
    )
    print(f"CPU seconds of the working tree ({head} and changes) over those of {base}; below 1 is faster")
    with checked_out(base) as site:
        rows = compare(site, given.rounds)
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
