"""What CONTRIBUTING.md asks for, as far as a program can tell; imports have tests/test_imports.py."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from tools.public_names import public_modules, public_names

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = None

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "src").rglob("*.py"))

EXECUTING = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def relative(path):
    return path.relative_to(ROOT).as_posix()


def test_nothing_is_unpickled():
    for path in PACKAGE:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            unsafe = {name.split(".")[0] for name in names} & EXECUTING
            assert not unsafe, f"{relative(path)} imports {unsafe}, which can run what is in a file"
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called) in ("np.load", "numpy.load"):
                safe = [ast.unparse(one.value) for one in node.keywords if one.arg == "allow_pickle"]
                assert safe == ["False"], f"{relative(path)}:{node.lineno} loads without allow_pickle=False"
            assert getattr(called, "id", "") not in ("eval", "exec"), f"{relative(path)}:{node.lineno}"


def public_objects():
    for module_name, module in public_modules().items():
        assert module.__doc__, f"{module_name} has no docstring"
    for name, thing in public_names().items():
        if not (inspect.isfunction(thing) or inspect.isclass(thing)):
            continue
        yield name, thing
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            for method, function in vars(thing).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function


def undocumented(thing):
    """Parameters that a docstring leaves out: of its section, or of its text where it has no section."""
    text = inspect.getdoc(thing) or ""
    if not text:
        return ["a docstring"]
    if "parameters as in" in text.lower() or (inspect.isclass(thing) and issubclass(thing, BaseException)):
        return []
    parameters = [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]
    sections = re.findall(r"Parameters\n-+\n(.*?)(?=^[\w ]+\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if not sections:
        return [name for name in parameters if not re.search(rf"\b{name}\b", text)]
    heads = [line.split(" : ")[0] for line in "".join(sections).splitlines() if not line.startswith(" ")]
    named = {name.strip("* ") for head in heads for name in head.split(",")}
    return [name for name in parameters if name not in named]


def test_public_names_are_documented():
    lacking = {name: undocumented(thing) for name, thing in public_objects()}
    assert {name: missing for name, missing in lacking.items() if missing} == {}


def test_what_users_call_and_get_back_has_examples():
    import log1pnmf as lp

    methods = [getattr(lp.Log1pNMF, name) for name in vars(lp.Log1pNMF) if not name.startswith(("_", "set_"))]
    results = [lp.Fit, lp.analysis.Markers, lp.analysis.Selection, lp.analysis.Usage, lp.analysis.Evidence]
    for thing in [*results, *filter(callable, methods)]:
        assert ">>> " in thing.__doc__ or "example there" in thing.__doc__, thing


@pytest.mark.skipif(tomllib is None, reason="Python 3.11 reads TOML")
def test_pages_name_extras_that_exist_and_nothing_that_is_not_published():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *PACKAGE):
        text = path.read_text(encoding="utf-8")
        assert "install 'log1pnmf[" not in text, f"{relative(path)}: pip install '.[...]' in a clone"
        for named in re.findall(r"pip install '\.\[([\w,]+)\]'", text):
            assert set(named.split(",")) <= set(extras), relative(path)


@pytest.mark.skipif(tomllib is None, reason="Python 3.11 reads TOML")
def test_the_licence_is_the_same_everywhere():
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert f"  license: {licence}\n" in (ROOT / "recipe/recipe.yaml").read_text()
