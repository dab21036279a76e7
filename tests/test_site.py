"""A reader finds the answers: few clicks from the landing page, and every plot in the gallery."""

import inspect
import re
import runpy
from pathlib import Path

from tools.house import words
from tools.public_names import public_names

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\]\(([^()#\s]+\.md)(?:#[\w-]+)?\)|^:link: ([\w/-]+)$", re.MULTILINE)


def linked(page: Path) -> set[Path]:
    """Pages that a reader of this page can click on in its text."""
    found = (one or f"{other}.md" for one, other in LINK.findall(page.read_text(encoding="utf-8")))
    return {(page.parent / target).resolve() for target in found if "://" not in target}


def within(clicks: int) -> set[Path]:
    reached = {DOCS / "index.md"}
    for _ in range(clicks):
        reached |= {target for page in reached for target in linked(page) if DOCS in target.parents}
    return reached


def test_answers_are_two_clicks_away():
    """What docs/developers/index.md says that a reader must find."""
    table = (DOCS / "developers" / "index.md").read_text(encoding="utf-8")
    answers = {
        DOCS / path for path in re.findall(r"^\| .* \| landing page.*?\(\.\./([^)#]+)", table, re.MULTILINE)
    }
    assert len(answers) > 10
    assert answers <= within(2)


def test_pages_are_short():
    length = words()
    assert sum(length.values()) <= 35_000
    assert length["docs/developers/kernel.md"] <= 1_500
    assert {page: n for page, n in length.items() if "/how-to/" in page and n > 800} == {}


def test_former_addresses_lead_on():
    moved = runpy.run_path(str(DOCS / "conf.py"))["MOVED"]
    for former, place in moved.items():
        assert (DOCS / (f"{place}.md" if "/" in place else f"{place}/{former}.md")).exists()
        assert not (DOCS / f"{former}.md").exists()


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
    page = (DOCS / "gallery" / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"^```python\n((?:(?!^```).)*)^```\n\n!\[[^\]]+\]\(([^)]+)\)", page, re.DOTALL | re.MULTILINE
    )
    drawn = {name for code, _ in blocks for name in re.findall(r"lp\.(pl\.\w+)\(", code)}
    assert drawn == {
        name.removeprefix("log1pnmf.") for name in public_names() if name.startswith("log1pnmf.pl.")
    }
    pictures = {(DOCS / "gallery" / path).resolve() for _, path in blocks}
    assert pictures == set((DOCS / "img" / "gallery").glob("*.png"))
    assert sum(picture.stat().st_size for picture in pictures) < 1_000_000


# ---------------------------------------------------------------- tables of measurements

MADE = runpy.run_path(str(DOCS / "tables.py"))
TEXTS = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md") if "_build" not in page.parts}


def measured(text: str) -> list[list[list[str]]]:
    """Tables of which at least a third of the cells, but for head and first column, begin with a number."""
    found = []
    for table in MADE["tables"](re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
        cells = [cell for line in table[1:] for cell in line[1:] if cell]
        if cells and 3 * sum(bool(re.match(r"[*+~<> -]*\d", cell)) for cell in cells) >= len(cells):
            found.append(table)
    return found


def test_a_table_of_measurements_is_recognised():
    head = "| data | time | ARI |\n|---|---|---|\n"
    assert measured(head + "| PBMC | 12.5 s, -8,685.6 | **0.93** |\n")
    assert MADE["tables"]("| | a |\n|---|---|\n| b | |\n") == [[["", "a"], ["b", ""]]]
    assert not measured(head + "| `c` | the compromise | to predict: 0.1 or less |\n")


def test_every_table_of_measurements_is_made_by_a_command():
    """Figures come from docs/_tables, whose files name what made them; README's are filled in from there."""
    typed = {page.name: found for page, text in TEXTS.items() if (found := measured(text))}
    assert typed == {}, "let a command make it, and show it by {measured} (docs/tables.py)"
    readme = MADE["README"].read_text(encoding="utf-8")
    assert readme == MADE["fill_readme"](), "python docs/tables.py --readme"
    assert not measured(MADE["IN_README"].sub("", readme))


def test_the_page_of_the_paper_names_command_and_version_of_every_study():
    page = (DOCS.parent / "studies" / "paper" / "RESULTS.md").read_text(encoding="utf-8")
    studies = page.split("\n## ")[3:]  # after the overview and the contents of the paper
    assert len(studies) > 10
    for study in studies:
        assert re.match(r".+\n\n`python -m studies\.paper\.\w+`, commit [0-9a-f]{7,8} of [\d-]+; .+\.", study)


def test_every_table_names_its_command_version_and_machine():
    shown = {name for text in TEXTS.values() for name in re.findall(r"(?m)^```\{measured\} ([\w-]+)$", text)}
    shown |= {found[1] for found in MADE["IN_README"].findall(MADE["README"].read_text(encoding="utf-8"))}
    assert shown == {path.stem for path in MADE["FOLDER"].glob("*.csv")}
    for name in shown:
        table = MADE["Table"].read(name)
        assert re.fullmatch(r"`.+`, commit [0-9a-f]{7,8} of 20\d\d-\d\d-\d\d; .+\.", table.caption()), name
        assert "commit" not in table.about["machine"], f"{name}: one version for all rows"
        assert len(table.cells) > 1, name
        assert len({len(line) for line in table.cells}) == 1, name
        module, script = re.match(r"python (?:-m ([\w.]+)|(\S+\.py))", table.about["command"]).groups()
        assert (DOCS.parent / (script or f"{module.replace('.', '/')}.py")).exists(), name
