"""Build the source archive and from it the wheel, look inside, install it in fresh environments and use it.

python tools/check_wheel.py                  # what .ci/run does
python tools/check_wheel.py --wheel W.whl    # a wheel that was built elsewhere
python tools/check_wheel.py --each-extra     # also every extra alone, each in an environment of its own
python tools/check_wheel.py --tutorials      # also every tutorial, with scanpy; takes minutes
python tools/check_wheel.py --tests FOLDER   # also tests of an unpacked source archive
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGAN = time.perf_counter()
IN_WHEEL = [
    r"log1pnmf/_core\..*(so|pyd)",
    r"log1pnmf/_core\.pyi",
    r"log1pnmf/py\.typed",
    r"log1pnmf/datasets/pancreas\.npz",
    r"log1pnmf/datasets/NOTICE",
    r"log1pnmf/report/templates/report\.(html|css|js)",
    r".*\.dist-info/licenses/LICENSE",
    r".*\.dist-info/licenses/.*LICENSE-Apache-2\.0",
    r".*\.dist-info/entry_points\.txt",
]
IN_SDIST = [
    r"CMakeLists\.txt",
    r"cpp/kernel\.cpp",
    r"src/log1pnmf/estimator\.py",
    r"LICENSE",
    r"PKG-INFO",
    r"tests/.*",
]
NOT_IN_WHEEL = r"(?!log1pnmf(\.libs)?/|log1pnmf-[^/]+\.dist-info/)|.*(__pycache__|\.pyc|\.cpp|\.hpp|/tests?/)"
NOT_IN_SDIST = r"(docs|benchmarks|studies|\.github|\.ci|build|dist|bench-out)/|.*\.(so|pyd|h5ad|pyc)"
LARGEST_WHEEL = 8_000_000
TESTS = (
    "tests/engines/test_native_engine.py",
    "tests/counts/test_counts.py",
    "tests/estimator/test_estimator.py",
)
FOR_TESTS = ("hypothesis", "mpmath", "pytest")

EXTRAS = {
    "anndata": "import anndata, numpy as np; import log1pnmf; a = anndata.AnnData(np.eye(4)); "
    "log1pnmf.tl.log1p_nmf(a, 1, random_state=0); assert 'X_log1p_nmf' in a.obsm",
    "plot": "import matplotlib; matplotlib.use('agg'); import log1pnmf; "
    "log1pnmf.pl.sweep({'c': [1.0], 'a': [0.5]}, measures=['a'])",
    "cli": "import sys; from log1pnmf.cli import main; sys.exit(main(['--help']))",
    "report": "import log1pnmf, numpy as np; y = np.random.default_rng(0).poisson(1.0, (30, 8)); "
    "log1pnmf.Log1pNMF(2, random_state=0, max_iter=500, tol=1e-4).fit(y).report('r.html')",
    "dask": "import dask.array as da, numpy as np; from log1pnmf import open_counts; "
    "assert len(open_counts(da.from_array(np.eye(6), chunks=(2, 6))).chunks) == 3",
    "text": "import snowballstemmer; import log1pnmf",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--each-extra", action="store_true")
    parser.add_argument("--tutorials", action="store_true")
    parser.add_argument("--tests", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="check-wheel-") as folder:
        place = Path(folder)
        wheel = given.wheel.resolve() if given.wheel else build(place / "dist")
        check_names(zipfile.ZipFile(wheel).namelist(), IN_WHEEL, NOT_IN_WHEEL, wheel.name)
        size = wheel.stat().st_size
        assert size < LARGEST_WHEEL, f"{wheel.name} has grown to {size:,} bytes"
        say(f"{wheel.name}: {size:,} bytes, contents as expected")
        use(wheel, place / "plain")
        if given.each_extra:
            for extra, code in EXTRAS.items():
                python = environment(place / extra, f"{wheel}[{extra}]")
                run(python, "-c", code, cwd=place / extra)
                say(f"works with the extra {extra} alone")
        if given.tests:
            python = environment(place / "tests", f"{wheel}[anndata,cli,report]", *FOR_TESTS)
            told = run(
                python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, cwd=given.tests.resolve()
            )
            say(f"{told.splitlines()[-1]} (Python {sys.version.split()[0]}: {', '.join(TESTS)})")
        if given.tutorials:
            run_tutorials(wheel, place / "tutorials")


def build(target: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--outdir", target, ROOT, cwd=ROOT)
    (archive,) = target.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [name.partition("/")[2] for name in opened.getnames() if "/" in name]
        opened.extractall(target, filter="data")
    source = target / archive.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", target, cwd=source)
    (wheel,) = target.glob("*.whl")
    check_names(names, IN_SDIST, NOT_IN_SDIST, archive.name)
    say(f"{archive.name}: {archive.stat().st_size:,} bytes; the wheel was built from it")
    return wheel


def check_names(names: list[str], wanted: list[str], unwanted: str, archive: str) -> None:
    missing = [pattern for pattern in wanted if not any(re.fullmatch(pattern, name) for name in names)]
    surplus = [name for name in names if re.match(unwanted, name)]
    assert not missing, f"{archive} lacks {missing}"
    assert not surplus, f"{archive} should not hold {surplus[:10]}"


def use(wheel: Path, place: Path) -> None:
    """Without extras the lines of the README; with those of the command line, from counts to a report."""
    python = environment(place, str(wheel))
    program = python.with_name("log1pnmf" + python.suffix)
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block, "README.md has no Python block"
    run(python, "-W", "error", "-c", block[1], cwd=place)
    say("the README's lines ran without extras")
    refused = subprocess.run(
        [program, "fit", "x.csv"], cwd=place, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2, refused
    assert "pip install rich typer" in refused.stderr, refused.stderr
    told = run(program, "--version", cwd=place)
    assert "kernel" in told, told
    say(f"without the extra, the program says what it needs\n{told.strip()}")

    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cli,report]", cwd=place)
    rows = [",".join(str((i * j + i + j) % 5) for j in range(20)) for i in range(60)]
    (place / "counts.csv").write_text("\n".join([",".join(f"g{j}" for j in range(20)), *rows]))
    run(program, "fit", "counts.csv", "-k", "2", "-o", "out", "--set", "tol=1e-4", cwd=place)
    report = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert report.lstrip().lower().startswith("<!doctype html>"), report[:100]
    assert "<style" in report, "the report has no style"
    run(program, "info", "out", cwd=place)
    say("with the extras cli and report: fitted, reported")


def run_tutorials(wheel: Path, place: Path) -> None:
    """Run the cells of every tutorial as written, with nothing of the repository at hand."""
    python = environment(place, f"{wheel}[anndata,plot,report]")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "scanpy", cwd=place)
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        cells = re.findall(
            r"^```\{code-cell\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
        if cells:
            code = re.sub(r"^(?::tags:|%).*$", "", "\n".join(cells), flags=re.MULTILINE)
            run(python, "-I", "-c", code, cwd=place)
            say(f"the tutorial {page.stem} ran as written")


def environment(place: Path, *requirements: str) -> Path:
    venv.create(place, with_pip=True, clear=True)
    python = next(
        path for path in (place / "bin" / "python", place / "Scripts" / "python.exe") if path.exists()
    )
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements, cwd=place)
    return python


def run(*command: object, cwd: Path) -> str:
    cwd.mkdir(exist_ok=True)
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=alone | {"MPLBACKEND": "Agg", "CCACHE_BASEDIR": str(cwd)},  # as .ci/run has it for the checkout
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:5.0f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
