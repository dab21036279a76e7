"""What a bug report says, and that the files for releases are in order."""

import re
from pathlib import Path

import pytest
from tools.index_readme import absolute, with_urls

from log1pnmf import _core
from log1pnmf.cli import describe_environment, main

ROOT = Path(__file__).parents[1]


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
    tomllib = pytest.importorskip("tomllib")
    text = with_urls((ROOT / "pyproject.toml").read_text(), "https://github.com/us/log1pnmf", "v1.2.3")
    urls = tomllib.loads(text)["project"]["urls"]
    assert urls["Documentation"] == "https://us.github.io/log1pnmf/"
    assert {*urls} == {"Documentation", "Source", "Changelog", "Issues", "Paper"}
