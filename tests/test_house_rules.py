"""What CONTRIBUTING.md asks for, as far as a program can tell; imports have tests/test_imports.py."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from tools.index_readme import absolute, with_urls
from tools.public_names import public_modules, public_names

from log1pnmf import _core
from log1pnmf.cli import describe_environment, main

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "src").rglob("*.py"))
PROJECT = (ROOT / "pyproject.toml").read_text()

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


def project(text=PROJECT):
    """Return the project's table of pyproject.toml; Python 3.10 cannot read it."""
    return pytest.importorskip("tomllib").loads(text)["project"]


def test_pages_name_extras_that_exist_and_nothing_that_is_not_published():
    extras = project()["optional-dependencies"]
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *PACKAGE):
        text = path.read_text(encoding="utf-8")
        assert "install 'log1pnmf[" not in text, f"{relative(path)}: pip install '.[...]' in a clone"
        for named in re.findall(r"pip install '\.\[([\w,]+)\]'", text):
            assert set(named.split(",")) <= set(extras), relative(path)


def test_the_licence_is_the_same_everywhere():
    assert f"  license: {project()['license']}\n" in (ROOT / "recipe/recipe.yaml").read_text()


def test_bug_report_is_complete(capsys):
    assert main(["--version"]) == 0
    told = capsys.readouterr().out
    assert told.strip() == describe_environment()
    for word in ("python", "numpy", "scipy", "scikit-learn", "threads", "gpu", _core.runnable_kernels()[0]):
        assert word in told
    assert len(told.splitlines()) == 9


def test_stubs_name_what_the_extension_has():
    stubs = (ROOT / "src" / "log1pnmf" / "_core.pyi").read_text()
    for name in dir(_core):
        if isinstance(getattr(_core, name), type):
            assert f"class {name}:" in stubs
        elif not name.startswith("_"):
            assert f"def {name}(" in stubs
            # arguments of nanobind's signature are counted against those of the stub
            given = getattr(_core, name).__doc__.partition("\n")[0].count(": ")
            body = stubs.partition(f"def {name}(")[2].partition("->")[0]
            assert body.count(": ") == given, name


def test_release_files_can_be_read():
    yaml = pytest.importorskip("yaml")
    files = [*ROOT.glob(".github/**/*.yml"), ROOT / "CITATION.cff"]
    assert len(files) > 5
    for path in files:
        assert isinstance(yaml.safe_load(path.read_text()), dict), path


def test_the_readme_of_an_index_has_only_absolute_addresses():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = absolute(text, "https://example.org/us/log1pnmf/", "v1.2.3")
    targets = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert all(target.startswith("https://") for target in targets)
    ours = [target for target in targets if target.startswith("https://example.org/")]
    for target in ours:
        kind, path = re.fullmatch(
            r"https://example.org/us/log1pnmf/(\w+)/v1.2.3/([^#]+)(?:#.*)?", target
        ).groups()
        assert (ROOT / path).is_dir() if kind == "tree" else (ROOT / path).is_file()
        assert (kind == "raw") == path.endswith(".png")
    assert len(ours) > 10


def test_the_index_shows_the_addresses_of_the_project():
    text = with_urls(PROJECT, "https://github.com/us/log1pnmf", "v1.2.3")
    urls = project(text)["urls"]
    assert urls["Documentation"] == "https://us.github.io/log1pnmf/"
    assert {*urls} == {"Documentation", "Source", "Changelog", "Issues", "Paper"}
