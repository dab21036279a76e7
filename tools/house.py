"""How large the house is, and how far one walks in it: ``python tools/house.py`` prints the figures.

``python tools/house.py --words`` prints the words of every page instead.
tests/budget.json holds the figures that may only fall; tests/test_budget.py compares. When something has got
smaller, ``python tools/house.py --write`` lowers the budget.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "log1pnmf"
BUDGET = ROOT / "tests" / "budget.json"


def lines(folder: str, *patterns: str) -> tuple[int, int]:
    """Lines and files below a folder."""
    paths = [path for pattern in patterns for path in (ROOT / folder).rglob(pattern)]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths), len(paths)


def internal_docstring_lines() -> int:
    """Lines of docstrings of functions, classes and methods that the API page does not list."""
    from tools.public_names import public_names

    public = {
        (inspect.getsourcefile(thing), thing.__qualname__)
        for thing in map(inspect.unwrap, public_names().values())  # plots are decorated
        if inspect.isclass(thing) or inspect.isfunction(thing)
    }
    total = 0
    for path in PACKAGE.rglob("*.py"):
        listed = {name for file, name in public if file == str(path)}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in listed:
                total += sum(map(_docstring_lines, ast.walk(node)))
    return total


def _docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(node) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def words() -> dict[str, int]:
    """Words of every page."""
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts]
    return {
        str(path.relative_to(ROOT)): len(re.findall(r"\S+", path.read_text(encoding="utf-8")))
        for path in pages
    }


def sizes() -> dict[str, int]:
    """How large everything is."""
    import log1pnmf as lp
    from log1pnmf.cli.fit import fit

    source, files = lines("src", "*.py")
    return {
        "lines of Python": source,
        "files of Python": files,
        "lines of docstrings of internals": internal_docstring_lines(),
        "lines of C++": lines("cpp", "*.cpp", "*.hpp")[0],
        "lines of tests": lines("tests", "*.py")[0],
        "lines of benchmarks and tools": lines("benchmarks", "*.py")[0] + lines("tools", "*.py", "*.sh")[0],
        "words in docs": sum(words().values()),
        "parameters of Log1pNMF": len(inspect.signature(lp.Log1pNMF).parameters),
        "options of log1pnmf fit": len(inspect.signature(fit).parameters) - 1,  # without FILE
    }


def walk(call: Callable[[], Any]) -> tuple[int, int, int]:
    """Functions and files of the package that a call passes through, and how deep.

    Comprehensions, generator expressions and lambdas are no functions: before Python 3.12 they had frames.
    What runs when a module is imported does not count: it may have been imported before.
    """
    seen: set[tuple[str, str]] = set()
    depth = deepest = importing = 0

    def follow(frame: Any, event: str, _: Any) -> None:
        nonlocal depth, deepest, importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        inside = code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<")
        if event not in ("call", "return") or not inside or importing:
            return
        if event == "return":
            depth -= 1
            return
        depth += 1
        deepest = max(deepest, depth)
        seen.add((code.co_filename, code.co_qualname if sys.version_info >= (3, 11) else code.co_name))

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(seen), len({file for file, _ in seen}), deepest


def walks() -> dict[str, int]:
    """The default fit, the command and the markers of AnnData, on the first of the bundled cells."""
    import anndata

    import log1pnmf as lp
    from log1pnmf.cli import main

    data = lp.datasets.pancreas()
    adata = anndata.AnnData(data.counts[:150, :200].copy())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = f"{folder}/cells.h5ad"
        adata.write_h5ad(file)
        lp.tl.log1p_nmf(adata, 3, engine="native")
        command = ["fit", file, "-k", "3", "--engine", "native", "-o", f"{folder}/out", "--no-report"]
        found = {
            "default fit": walk(lambda: lp.Log1pNMF(3, c=1.0, engine="native", n_jobs=1).fit(adata.X)),
            "log1pnmf fit": walk(lambda: main(command)),
            "tl.markers": walk(lambda: lp.tl.markers(adata)),
        }
    kinds = ("functions", "files", "depth")
    return {f"{name}: {kind}": n for name, ns in found.items() for kind, n in zip(kinds, ns, strict=True)}


def main_() -> None:
    if "--words" in sys.argv:
        for page, number in (words() | {"all pages": sum(words().values())}).items():
            print(f"{page:<36} {number:>7,}")
        return
    figures = sizes() | walks()
    budget = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    for name, figure in figures.items():
        print(f"{name:<36} {figure:>7,}   budget {budget.get(name, figure):>7,}")
    if "--write" in sys.argv:
        lower = {name: min(figure, budget.get(name, figure)) for name, figure in figures.items()}
        BUDGET.write_text(json.dumps(lower, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main_()
