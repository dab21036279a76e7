"""The installed program, in processes of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from log1pnmf import Log1pNMF
from log1pnmf.run_folder import RunFolder

PROGRAM = Path(sys.executable).with_name("log1pnmf")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def program():
    if not PROGRAM.exists():
        pytest.skip("the package is not installed")

    def run(*arguments, cwd):
        return subprocess.run(
            [PROGRAM, *map(str, arguments)],
            cwd=cwd,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            check=False,
        )

    return run


def test_from_counts_to_report(program, tmp_path):
    assert program("simulate", "a.csv.gz", "-n", 40, "-m", 15, "--density", 0.3, cwd=tmp_path).returncode == 0
    fitted = program("fit", "a.csv.gz", "-k", 2, "-o", "out", "--tol", "1e-4", cwd=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    assert "out/report.html" in fitted.stdout
    assert "Traceback" not in fitted.stderr
    assert RunFolder.open(tmp_path / "out").record["command"].startswith("log1pnmf fit a.csv.gz -k 2")
    bad = program("fit", "b.csv", "-k", 2, "-o", "out2", cwd=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv.gz", "out"]


def test_module_is_the_same_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "log1pnmf", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.startswith("log1pnmf ")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_fit_is_kept(program, tmp_path, how):
    drawn = program("simulate", "a.npz", "-n", 1500, "-m", 400, "-k", 8, "--density", 0.3, cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    endless = ["--tol", "0", "--max-iter", "1000000", "--likelihood", "exact", "--no-report", "--jobs", "1"]
    state = tmp_path / "state.npz"
    process = subprocess.Popen(
        [PROGRAM, "fit", "a.npz", "-k", "12", "-o", "out", "--checkpoint", state, *endless],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert "1,500 samples" in process.stdout.readline()
        time.sleep(4.0)
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    if (tmp_path / "out").exists():
        assert "the fit so far is kept" in out
        assert not Log1pNMF.load(tmp_path / "out" / "models" / "c=1.npz").converged_
        assert RunFolder.open(tmp_path / "out").record["interrupted"]
    else:  # a very slow machine: not one iteration was done
        assert "nothing was written" in err
    assert all(not path.name.startswith(".") for path in tmp_path.iterdir())
