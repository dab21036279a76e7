"""The installed program, in processes of its own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import sparse

from log1pnmf.cli import commands, main
from log1pnmf.cli.run_folder import RunFolder
from log1pnmf.datasets import pancreas
from log1pnmf.model.simulate import simulate

PROGRAM = Path(sys.executable).with_name("log1pnmf")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def program():
    if not PROGRAM.exists():
        pytest.skip("the package is not installed")

    def run(*arguments, cwd):
        command, how = [PROGRAM, *map(str, arguments)], {"cwd": cwd, "env": ENVIRONMENT}
        return subprocess.run(command, capture_output=True, text=True, check=False, **how)

    return run


def test_from_counts_to_report(program, tmp_path):
    sparse.save_npz(tmp_path / "a.npz", simulate(20, 8, 2, density=0.3).counts)
    fitted = program(
        "fit", "a.npz", "-k", 2, "-o", "out", "--set", "init=nndsvd", "--set", "tol=1e-4", cwd=tmp_path
    )
    assert fitted.returncode == 0, fitted.stderr
    assert "out/report.html" in fitted.stdout
    assert "Traceback" not in fitted.stderr
    assert RunFolder.open(tmp_path / "out").record.command.startswith("log1pnmf fit a.npz -k 2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "out"]


def test_module_is_the_same_program(tmp_path):
    bad = subprocess.run(
        [sys.executable, "-m", "log1pnmf", "fit", "b.csv", "-k", "2", "-o", "out"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: b.csv does not exist")
    assert bad.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_report_and_the_markers_of_both_fits(tmp_path):
    command = [sys.executable, "-m", "log1pnmf", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = tmp_path / "demo-out" / "run" / "report.html"
    assert "demo-out/run/report.html" in done.stdout
    text = report.read_text(encoding="utf-8").replace("\xa0", " ")
    assert "Samples mix more factors at c = 1 than at c = ∞" in text
    assert report.stat().st_size < 3e6
    for gene in ("IAPP", "GCG", "SST", "PRSS2"):  # beta, alpha, delta, acinar
        assert done.stdout.count(gene) >= 2
    assert "converged" in done.stdout
    assert "not converged" not in done.stdout


def test_quickly_and_where_it_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("log1pnmf.report.sections.LARGEST", 0.0)  # no evidence, which takes more fits
    whole = pancreas()
    few = replace(
        whole,
        counts=whole.counts[::20, ::10],
        sample_labels=whole.sample_labels[::20],
        feature_names=whole.feature_names[::10],
    )
    folder = tmp_path / "deep" / "folder"
    for _ in range(2):  # the second takes the place of the first
        assert commands.run_demo(folder, few, "max_iter=2", "init=rank1") == 0
        assert "not converged" in capsys.readouterr().out
    assert "stopped early" in (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert main(["markers", str(folder / "run"), "-c", "1", "--jobs", "1"]) == 0  # as the demo suggests
