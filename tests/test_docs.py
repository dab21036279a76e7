"""The pages tell the truth: their code runs, their error messages are real, their links lead somewhere.

``make test`` compiles the code and follows the links; ``make docs`` also runs the code (tests marked `docs`).

A fence of a page is marked in its first line. ``python``: it is run, all of a page in one namespace and in an
empty folder; a ``text`` fence directly below it is what it prints. ``python raises``: it must end in the
error or warning that the ``text`` fence below it shows. In these texts numbers are compared to three digits,
and ``...`` stands for anything. ``python no-run``: it needs what a test does not have, and is only compiled.
Cells of the tutorials are run while the site is built: each in a process of its own and in an empty folder;
an error or a warning ends the build (``docs/conf.py``).
"""

import ast
import contextlib
import dataclasses
import io
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import SparseEfficiencyWarning
from sklearn.exceptions import ConvergenceWarning
from tools.public_names import public_names

import log1pnmf as lp
from log1pnmf.cli.exchange import write_r_list
from log1pnmf.engines.registry import has_card

ROOT = Path(__file__).parents[1]
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
README, HOME = ROOT / "README.md", ROOT / "docs/index.md"
PAGES = [README, *DOCS]
TUTORIALS = [page for page in DOCS if page.parent.name == "tutorials" and page.stem != "index"]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "studies" / "paper" / "RESULTS.md"]

SMALLER = {"docs/gallery/index.md": (16, 12), "docs/reference/report.md": (8, 3)}
"""Every so many-th cell and gene of the bundled data: enough where no output is shown."""

FEWER = {"n_folds": 2, "n_seeds": 2, "init": "random", "max_iter": 20}
"""What `select` does of what a page leaves open: a hundred fits to the end would show no more."""

HANDED_TO = ("decoupler", "gseapy")
"""Packages that a page hands results to: it runs where they are installed."""

HOSTS = {"arxiv.org", "github.com", "keepachangelog.com", "scikit-learn.org", "semver.org"}
"""Where pages link to outside. These links are not followed: look at them when one is added."""

FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=ticks)`*[ ]*$", re.DOTALL | re.MULTILINE
)
NUMBER = r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d*)?(?:e[-+]\d+)?"
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)")


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page; `line` is where its text begins."""

    info: str
    text: str
    line: int

    def is_output_of(self, code: "Fence") -> bool:
        """Whether this is a text with nothing but an empty line between the code and it."""
        return self.info == "text" and self.line == code.line + code.text.count("\n") + 3


def fences(page: Path) -> list[Fence]:
    text = page.read_text(encoding="utf-8")
    return [
        Fence(found["info"].strip(), found["text"], text.count("\n", 0, found.start("text")))
        for found in FENCE.finditer(text)
    ]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def is_python(fence: Fence) -> bool:
    return fence.info.split()[:1] == ["python"]


def is_cell(fence: Fence) -> bool:
    return fence.info == "{code-cell}"


def cell_code(fence: Fence) -> str:
    """What Python reads of a cell: no tags of MyST, no magic of IPython; as many lines."""
    return re.sub(r"^(?::tags:|%).*$", "", fence.text, flags=re.MULTILINE)


def compiled(fence: Fence, page: Path):
    return compile("\n" * fence.line + fence.text, name(page), "exec")


@pytest.fixture
def in_page(monkeypatch, tmp_path):
    """An empty folder to work in, pictures that nobody sees, and fewer cells where a page fits many."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)

    for room in (lp, lp.tl):
        monkeypatch.setattr(room, "select", partial(room.select, **FEWER))
    original = lp.datasets.pancreas

    def prepare(page: Path) -> dict:
        if name(page) in SMALLER:
            monkeypatch.setattr(lp.datasets, "pancreas", lambda: smaller(original(), *SMALLER[name(page)]))
        return prepared(name(page))

    yield prepare
    pyplot.close("all")


def smaller(data, cells: int, genes: int):
    return dataclasses.replace(
        data,
        counts=data.counts[::cells, ::genes],
        sample_labels=data.sample_labels[::cells],
        feature_names=data.feature_names[::genes],
    )


def prepared(page: str) -> dict:
    """What a page takes for granted: counts, files, a fitted model."""
    counts = lp.simulate.simulate(60, 40, 3, density=0.4).counts
    given = {"Y": counts, "counts": counts}
    if page == "docs/how-to/gpu.md":
        if not has_card():
            pytest.skip("needs a CUDA GPU")
        given["Y"] = np.eye(16) + 1.0
    if page in ("docs/how-to/r.md", "docs/how-to/diagnostics.md", "docs/how-to/markers.md"):
        options = {"n_components": 3, "likelihood": "adaptive", "tol": 1e-4, "random_state": 0}
        given["model"] = lp.Log1pNMF(**options).fit(counts)
    if page == "docs/how-to/r.md":
        cells, genes = [f"cell{i}" for i in range(60)], [f"gene{j}" for j in range(40)]
        named = given["model"].fit_.named(sample_names=cells, feature_names=genes)
        given |= {"fit": named, "cells": cells, "genes": genes}
        write_r_list(named, "fit", counts=counts)
    if page in ("docs/how-to/big-data.md", "docs/how-to/markers.md"):
        given["adata"] = adata = pytest.importorskip("anndata").AnnData(counts, layers={"counts": counts})
        if page == "docs/how-to/markers.md":
            lp.tl.log1p_nmf(adata, 3, likelihood="adaptive", tol=1e-3, random_state=0)
        else:
            adata.write_h5ad("big.h5ad")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # anndata's, about formats of zarr
                adata.write_zarr("new.zarr")
    return given


def with_python(page: Path) -> bool:
    return any(is_python(fence) for fence in fences(page))


MARKS = ("python", "python raises", "python no-run")


def test_code_compiles():
    for page in PAGES:
        for fence in fences(page):
            if is_python(fence):
                assert fence.info in MARKS, f"{name(page)}:{fence.line}: unknown mark {fence.info!r}"
                compiled(fence, page)
            elif is_cell(fence):
                compile(cell_code(fence), f"{name(page)}:{fence.line}", "exec")


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_tutorials_import_what_is_installed(page):
    """What `pip install '.[anndata,plot,report]'` brings, and scanpy; no module of this repository."""
    here = {"log1pnmf", "numpy", "scipy", "sklearn", "matplotlib", "anndata", "pandas", "scanpy"}
    here |= sys.stdlib_module_names
    for fence in filter(is_cell, fences(page)):
        for node in ast.walk(ast.parse(cell_code(fence))):
            if isinstance(node, ast.Import):
                assert {one.name.partition(".")[0] for one in node.names} <= here
            elif isinstance(node, ast.ImportFrom):
                assert node.module.partition(".")[0] in here, f"{name(page)}: {node.module}"
        assert "sys.path" not in fence.text


def run_when(page: Path):
    """With `make docs`; the page of error messages, which is quick, always: messages change with the code."""
    return pytest.param(page, id=name(page), marks=() if page.stem == "faq" else pytest.mark.docs)


def test_the_home_page_shows_what_the_readme_shows():
    """So that its code, a fit of all bundled cells, need not be run twice."""
    shown = [[one for one in fences(page) if one.info in ("python", "text")] for page in (README, HOME)]
    (code, text), (same_code, same_text) = (found[:2] for found in shown)
    assert ast.dump(ast.parse(code.text)) == ast.dump(ast.parse(same_code.text))
    assert text.text == same_text.text


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")  # pages are run on few counts
@pytest.mark.parametrize("page", [run_when(page) for page in PAGES if with_python(page) and page != HOME])
def test_code_runs(page, in_page):
    namespace = in_page(page)
    found = fences(page)
    with warnings.catch_warnings():
        # Pages fit quickly rather than to the end; the messages are shown where they are explained.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", lp.ApproximationWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # packages among themselves
        warnings.simplefilter("ignore", SparseEfficiencyWarning)  # scanpy's
        for fence, below in zip(found, [*found[1:], Fence("", "", 0)], strict=True):
            if not is_python(fence):
                continue
            if not all(find_spec(name) for name in HANDED_TO if f"import {name}" in fence.text):
                pytest.skip("the page needs packages of the extra docs")
            code = compiled(fence, page)
            if fence.info == "python raises":
                assert below.is_output_of(fence), "the message goes into a 'text' fence below the code"
                expect_message(code, namespace, below.text)
            elif fence.info == "python":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(code, namespace)
                if below.is_output_of(fence):
                    text = printed.getvalue()
                    assert matches(below.text, text), f"{name(page)}:{below.line} is stale; printed:\n{text}"


def matches(shown: str, text: str) -> bool:
    """Whether a text is the one shown: the same words, and numbers that are close; ``...`` is anything.

    A text with a line ``...`` is an excerpt, and may end before the output does.
    """
    excerpt = re.search(r"^ *\.\.\.$", shown, re.MULTILINE)
    parts = re.split(rf"(\.\.\.|{NUMBER})", " ".join(shown.split()))
    pattern = ""
    for words, special in zip(parts[::2], [*parts[1::2], ""], strict=True):
        pattern += re.escape(words) + {"...": ".*?", "": ""}.get(special, f"({NUMBER})")
    found = re.fullmatch(pattern + (".*" if excerpt else ""), " ".join(text.split()))
    numbers = [part for part in parts[1::2] if part != "..."]
    return found is not None and all(map(close, numbers, found.groups()))


def close(shown: str, got: str) -> bool:
    """Whether two numbers agree to three digits, or, behind a point, but for the last digit shown."""
    digits, _, power = shown.partition("e")
    decimals = len(digits.partition(".")[2])
    last = 10.0 ** (int(power or 0) - decimals) if decimals else 0.0
    want, have = (float(one.replace(",", "")) for one in (shown, got))
    return abs(want - have) <= 1.001 * max(last, 1e-3 * abs(want))


def expect_message(code, namespace: dict, shown: str) -> None:
    said = list(messages(code, namespace))
    assert any(matches(shown, text) for text in said), f"{shown!r} is not in {said}"


def messages(code, namespace: dict) -> Iterator[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            exec(code, namespace)
        except Exception as error:
            yield f"{type(error).__name__}: {error}"
    yield from (f"{one.category.__name__}: {one.message}" for one in seen)


def test_indented_code_and_outputs_are_fenced():
    """Code that is only indented would not be run, an output not be compared."""
    indented = re.compile(r"^ {4,}(?:>>>|from log1pnmf|import log1pnmf)|OUTPUT\n\n {4}", re.MULTILINE)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        outside = FENCE.sub(lambda one: "OUTPUT" if one["info"].startswith("python") else "", text)
        assert not indented.search(outside), f"{name(page)}: use ```python and ```text fences"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("-574,338 and  64.5%\n", "-574,391 and 64.6%", True),
        ("-574,338\n", "-575,338\n", False),
        ("0.71, 1e-03", "0.73, 1e-03", False),
        ("k0 5.1%\n...\nk8 2.0%", "k0 5.1%\nk1 4.3%\nk8 2.0%", True),
        ("k0 5.1%\n...\nk8 2.0%", "k0 5.1%\nk1 4.3%\nk7 2.0%", False),
        ("one line", "one line\nmore", False),
        ("...\nk0 5.1%", "Log1pNMF\nk0 5.1%\nNotes", True),
        ("in ... s", "in 3.14 s\nmore", False),
    ],
)
def test_a_stale_output_is_noticed(shown, printed, same):
    assert matches(shown, printed) is same


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]+`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    return [found["target"] for found in LINK.finditer(text)] + re.findall(r'<img src="([^"]+)"', text)


def anchors(page: Path) -> set[str]:
    """Fragments of the page's headings, as GitHub and MyST make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#{1,6}\s+(.+?)\s*#*$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert re.match(r"https://([^/]+)", link)[1] in HOSTS, (
                f"{link}: look at it and add its host to HOSTS"
            )
            continue
        path, _, fragment = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), f"{name(page)} links to {link}, which is not there"
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), (
                f"{name(page)} links to {link}; headings: {sorted(anchors(target))}"
            )


def test_the_reference_lists_the_public_names():
    """Docs, tests and what modules offer are one list."""
    page = (ROOT / "docs/reference/api.md").read_text()
    listed = re.findall(r"^   ([\w.]+)$", page, re.MULTILINE)
    assert sorted(f"log1pnmf.{one}" for one in listed) == sorted(public_names())


def resolves(reference: str) -> bool:
    """Whether a dotted name leads to a module or to something in one."""
    owner, _, last = reference.rpartition(".")
    try:
        thing = pkgutil.resolve_name(owner)
        if last not in getattr(thing, "__dataclass_fields__", {}):
            pkgutil.resolve_name(reference)
    except (ImportError, AttributeError):
        return False
    return True


WRITTEN = [*LINKED, ROOT / "SECURITY.md", *sorted((ROOT / "src").rglob("*.py"))]


def test_names_in_prose_exist():
    """What pages, docstrings and messages call ``log1pnmf.something`` is there under that name."""
    named: dict[str, str] = {}
    for path in WRITTEN:
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"(?<![\w/.\"'])log1pnmf(?:\.[A-Za-z_]\w*)+", text):
            named.setdefault(found[0], f"{name(path)}:{text.count(chr(10), 0, found.start()) + 1}")
    files = ("log1pnmf.git", "log1pnmf.egg")
    wrong = {one: place for one, place in named.items() if not resolves(one) and not one.startswith(files)}
    assert wrong == {}


def test_files_in_prose_exist():
    """Pages name files by their path in the repository, or below ``src``."""
    path_of = re.compile(r"`((?:benchmarks|cpp|docs|examples|log1pnmf|src|studies|tests|tools)/[\w./-]+)`")
    for page in (*LINKED, ROOT / "SECURITY.md"):
        for path in path_of.findall(page.read_text(encoding="utf-8")):
            there = [folder for folder in (ROOT, ROOT / "src") if (folder / path).exists()]
            assert there, f"{name(page)} names {path}, which is not there"
