"""A reader finds the answers: few clicks from the landing page, and every plot in the gallery."""

import inspect
import re
import runpy
from pathlib import Path

import pytest
from tools.public_names import public_names

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\]\(([^()#\s]+\.md)(?:#[\w-]+)?\)|^:link: ([\w/-]+)$", re.MULTILINE)

ANSWERS = {
    "what is it": ("explanation/model.md", "loading"),
    "why not scikit-learn's NMF": ("how-to/from-sklearn-nmf.md", "GridSearchCV"),
    "which c": ("choosing.md", "start with"),
    "my data have donors": ("usage.md", "replicate="),
    "my data have batches": ("explanation/batches.md", "batch="),
    "it did not converge": ("how-to/faq.md", "### Not converged"),
    "what can I plot": ("gallery.md", "lp.pl.structure"),
    "perplexity and coherence of topics": ("how-to/texts.md", "Coherence"),
    "a UMAP of the loadings": ("anndata.md", "sc.pp.neighbors"),
}
"""The question, the page with the answer, and a word of the answer."""


def linked(page: Path) -> set[Path]:
    """Pages that a reader of this page can click on in its text."""
    found = (one or f"{other}.md" for one, other in LINK.findall(page.read_text(encoding="utf-8")))
    return {(page.parent / target).resolve() for target in found if "://" not in target}


def within(clicks: int) -> set[Path]:
    reached = {DOCS / "index.md"}
    for _ in range(clicks):
        reached |= {target for page in reached for target in linked(page) if DOCS in target.parents}
    return reached


@pytest.mark.parametrize("question", ANSWERS)
def test_answers_are_two_clicks_away(question):
    path, word = ANSWERS[question]
    assert DOCS / path in within(2)
    assert word in (DOCS / path).read_text(encoding="utf-8")
    clicks = (DOCS / "developers" / "index.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {question} \| .*\(\.\./{path}", clicks, re.MULTILINE)


def test_the_reference_shows_every_default():
    """The site adds them to the docstrings, which need not repeat the signature."""
    add_defaults = runpy.run_path(str(DOCS / "_ext" / "parameter_defaults.py"))["add_defaults"]
    for name, thing in public_names().items():
        if not inspect.isfunction(thing) and name != "log1pnmf.Log1pNMF":
            continue
        lines = (inspect.getdoc(thing) or "").split("\n")
        add_defaults(None, "function", name, thing, None, lines)
        heads = {line.split(" : ")[0]: line for line in lines if re.match(r"\w+ : ", line)}
        for parameter in inspect.signature(thing).parameters.values():
            if parameter.name in heads and parameter.default not in (None, inspect.Parameter.empty):
                assert "default" in heads[parameter.name], f"{name}: {parameter.name}"


def test_the_gallery_has_every_plot_with_its_picture():
    """The code above a picture draws it (`docs/gallery.py`)."""
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"^```python\n((?:(?!^```).)*)^```\n\n!\[[^\]]+\]\(([^)]+)\)", page, re.DOTALL | re.MULTILINE
    )
    drawn = {name for code, _ in blocks for name in re.findall(r"lp\.(pl\.\w+)\(", code)}
    assert drawn == {
        name.removeprefix("log1pnmf.") for name in public_names() if name.startswith("log1pnmf.pl.")
    }
    pictures = {DOCS / path for _, path in blocks}
    assert pictures == set((DOCS / "img" / "gallery").glob("*.png"))
    assert sum(picture.stat().st_size for picture in pictures) < 1_000_000
