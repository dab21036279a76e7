"""Imports point one way, without circles and without private names; importing the package stays light."""

import importlib.metadata
import re
import subprocess
import sys

import pytest
from tools.import_graph import (
    BESIDE,
    ORDER,
    PACKAGE,
    ROOMS,
    all_imports,
    circle,
    imports_of,
    level,
    private_uses,
    room,
    sources,
)

import log1pnmf

FILES = sources()
KNOWN = {*FILES, "_core"}


@pytest.fixture(scope="module")
def imports():
    return all_imports()


def test_every_room_has_its_place():
    assert {room(module) for module in KNOWN} == {*ROOMS, *BESIDE}


def test_rooms_import_one_way(imports):
    """The order is one line, `ORDER` in tools/import_graph.py."""
    between = [one for one in imports if room(one.target) != room(one.importer)]
    assert len(between) > 100, "nothing was found: has the reader of imports gone blind?"
    assert [str(one) for one in between if level(one.target) >= level(one.importer)] == []


def test_the_architecture_says_the_order():
    page = (PACKAGE.parents[1] / "docs" / "developers" / "architecture.md").read_text(encoding="utf-8")
    assert f"\n    {ORDER}\n" in page
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*ROOMS, "datasets"]


def test_no_circle_between_modules(imports):
    edges = {(one.importer, one.target) for one in imports}
    assert circle(edges) == []
    assert set(circle(edges | {("_common.checks", "estimator")})) >= {"_common.checks", "estimator"}


def test_no_private_name_of_another_room():
    uses = [use for module, path in FILES.items() for use in private_uses(module, path, KNOWN)]
    assert [str(use) for use in uses] == []


def test_names_of_the_package_lead_to_what_is_there(imports):
    for place in log1pnmf.LAZY.values():
        module, _, attribute = place.partition(":")
        assert module.partition(".")[2] in KNOWN
        assert not attribute.startswith("_")
    assert not [one for one in imports if (one.target, one.name) == ("", "LAZY")]
    assert all(hasattr(log1pnmf, name) for name in {*log1pnmf.__all__, *log1pnmf.LAZY})
    assert log1pnmf.__version__ == importlib.metadata.version("log1pnmf")


@pytest.mark.parametrize(
    ("line", "target", "name"),
    [
        ("from log1pnmf.pl import canvas", "pl.canvas", ""),
        ("def f():\n    from ..pl.canvas import draw", "pl.canvas", "draw"),
        ("from log1pnmf.pl.canvas import _draw", "pl.canvas", "_draw"),
        ("from log1pnmf.pl import canvas\ncanvas._draw()", "pl.canvas", ""),
        ("import log1pnmf.pl.canvas as c\nc._draw()", "pl.canvas", ""),
        ("from log1pnmf.pl.canvas import Canvas\nCanvas._draw()", "pl.canvas", "Canvas"),
        ("from . import fit", "tl.fit", ""),
        ("if TYPE_CHECKING:\n    import log1pnmf.pl.canvas", "pl.canvas", ""),
        ("c = require('log1pnmf.pl.canvas', purpose='plots')", "pl.canvas", ""),
        ("c = importlib.import_module('log1pnmf.pl.canvas')", "pl.canvas", ""),
        ("c = importlib.import_module(name='log1pnmf.pl.canvas')", "pl.canvas", ""),
    ],
)
def test_every_kind_of_import_is_seen(tmp_path, line, target, name):
    """And private names, of an imported module or object, are only those of the own room."""
    file, modules = tmp_path / "some.py", {"tl", "tl.fit", "pl", "pl.canvas"}
    file.write_text(line)
    found = list(imports_of("tl.some", file, modules))
    assert [(one.target, one.name) for one in found] == [(target, name)]
    assert [one.name for one in private_uses("tl.some", file, modules)] == ["_draw"] * ("_draw" in line)
    assert private_uses("pl.some", file, modules) == []


def test_without_matplotlib_the_package_can_be_looked_at():
    code = """
import sys, inspect, pydoc
sys.modules["matplotlib"] = None  # importing it fails
import log1pnmf as lp
assert not hasattr(lp, "pl")
assert "Log1pNMF" in dict(inspect.getmembers(lp)) and "pl" not in dict(inspect.getmembers(lp))
assert "fit_log1p_nmf" in pydoc.render_doc(lp)
for use in ("lp.pl.structure", "from log1pnmf import pl", "import log1pnmf.pl"):
    try:
        exec(use)
    except (AttributeError, ImportError) as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    attribute, *imports = done.stdout.splitlines()
    assert attribute.startswith("AttributeError log1pnmf.pl cannot be loaded: ")
    assert [one.partition(" ")[0] for one in imports] == ["ImportError", "ImportError"]
    assert all("needs matplotlib: pip install matplotlib" in one for one in (attribute, *imports))


GIVEN = """
import numpy as np
from scipy import sparse
import log1pnmf as lp
Y = sparse.csr_array(np.random.default_rng(0).poisson(2.0, (30, 20)))
start = np.ones((30, 2)), np.linspace(0.5, 1.5, 40).reshape(20, 2)
assert lp.fit_log1p_nmf(Y, 2, init=start, max_iter=500, engine="native").converged
"""


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("import log1pnmf", "tqdm joblib scipy.io scipy.special scipy.spatial scipy.signal"),
        ("import log1pnmf.cli.app", "scipy.io"),
        (GIVEN, "log1pnmf.report"),
    ],
)
def test_no_more_is_loaded_than_is_needed(code, more):
    """By an import, by the command at every press of the tab key, and by a fit from a given start."""
    heavy = f"sklearn pandas scipy.stats scipy.optimize matplotlib anndata torch {more}".split()
    code += f"\nimport sys; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
