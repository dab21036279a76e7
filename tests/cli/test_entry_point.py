"""The installed program, in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import sparse

from log1pnmf.cli.run_folder import RunFolder
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
