"""The command killed at random times: what it said is finished is there, nothing half done is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from scipy import sparse

from log1pnmf.cli.run_folder import RunFolder, is_run
from log1pnmf.model.simulate import simulate

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and fork")

KILLS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
SEVERAL = ["fit", "../a.npz", "-k", "2", "-c", "1,inf", "-o", "out", "--set", "tol=1e-3"]
SEVERAL += ["--set", "init=nndsvd", "--jobs", "1"]
ENDS = [[], ["--no-report", "--write-h5ad", "new.h5ad"]]
"""What comes after the fits."""
ONE = ["fit", "../a.npz", "-k", "3", "--set", "tol=0", "--set", "max_iter=100", "--set", "init=nndsvd"]
ONE += ["--no-report", "--jobs", "1"]
STATE = ["--checkpoint", "state.npz"]

# Loads and uses everything once; each command is a copy of it: kills fall into the work, not the imports.
STARTER = """
    import json, os, sys
    import anndata, jinja2, log1pnmf.cli.app, log1pnmf.report.document
    from log1pnmf.fitting import checkpoint
    from log1pnmf.cli import main
    from log1pnmf.report import sections
    checkpoint.SECONDS_BETWEEN = 0.0  # after every iteration
    sections.LARGEST = 0.0  # no evidence in reports: it takes more fits
    place, answers = sys.argv[1], os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where a slow fit reports its progress
    main(["fit", place + "/a.npz", "-k", "2", "-o", place + "/first", "--write-h5ad", place + "/first.h5ad"])
    for line in sys.stdin:
        folder, arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                os.chdir(folder)
                os.dup2(os.open("../told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
                os.dup2(os.open("../errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
                sys.argv = ["log1pnmf", *arguments]
                code = main()
                sys.stdout.flush()
            except KeyboardInterrupt:  # before or after the command itself
                code = 130
            finally:
                os._exit(code)
        answers.write(f"{pid}\\n")
        answers.write(f"{os.waitpid(pid, 0)[1]}\\n")
"""


class Starter:
    """Runs the command in a folder, and kills it after some seconds."""

    def __init__(self, place):
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(STARTER), place],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, folder, arguments, how=None, after=0.0):
        """Give the exit code, negative for a signal, and what the command printed."""
        folder.mkdir(exist_ok=True)
        self.process.stdin.write(json.dumps([str(folder), arguments]) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stderr.readline())
        if how is not None:
            time.sleep(after)  # a random time, not one to wait for something
            with contextlib.suppress(ProcessLookupError):  # it was quicker
                os.kill(pid, how)
        code = os.waitstatus_to_exitcode(int(self.process.stderr.readline()))
        return code, (self.place / "told").read_text() if (self.place / "told").exists() else ""

    def seconds(self, folder, arguments):
        """Run to the end and measure: kills are spread over that time."""
        began = time.perf_counter()
        code, _ = self.run(folder, arguments)
        assert code == 0, (self.place / "errors").read_text()
        return time.perf_counter() - began


@pytest.fixture
def starter(tmp_path):
    sparse.save_npz(tmp_path / "a.npz", simulate(40, 20, 5, density=0.3).counts)
    one = Starter(tmp_path)
    yield one
    one.process.stdin.close()
    one.process.stderr.close()
    one.process.wait()


def check_left(folder, how, code, told, whole):
    """What a killed command leaves."""
    finished = [line.split()[2] for line in told.splitlines() if line.startswith("c = ")]
    fits = RunFolder.open(folder / "out").fits if is_run(folder / "out") else ()
    kept = {f"{fit.c:g}": fit for fit in fits}
    assert set(finished) <= set(kept), (how, code, told)
    for name in finished:
        if kept[name].stopped == whole[name].stopped:
            np.testing.assert_array_equal(kept[name].factors, whole[name].factors)
    if how != signal.SIGKILL:
        assert code in (0, 1, 130, -how), (how, code, told)
        assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
        assert kept or not (folder / "out").exists()


def kill_often(starter, tmp_path, times, seed=0):
    rng = np.random.default_rng(seed)
    seconds = [starter.seconds(tmp_path / f"whole{i}", [*SEVERAL, *end]) for i, end in enumerate(ENDS)]
    whole = {f"{fit.c:g}": fit for fit in RunFolder.open(tmp_path / "whole0" / "out").fits}
    for number in range(times):
        folder, how = tmp_path / f"run{number}", KILLS[number % 3]
        end = number // 3 % 2
        command = [*SEVERAL, *ENDS[end]]
        code, told = starter.run(folder, command, how, rng.uniform(0.0, seconds[end]))
        check_left(folder, how, code, told, whole)
        if number % 10 == 0:  # the folder can be used again
            again, _ = starter.run(folder, [*command, "--force"])
            assert again == 0, (tmp_path / "errors").read_text()


def resume_often(starter, tmp_path, times, seed=0):
    rng, resumed = np.random.default_rng(seed), 0
    seconds = starter.seconds(tmp_path / "whole-one", [*ONE, "-o", "out", *STATE])
    whole = RunFolder.open(tmp_path / "whole-one" / "out").fit()
    for number in range(times):
        folder, how = tmp_path / f"one{number}", KILLS[number % 3]
        starter.run(folder, [*ONE, "-o", "out", *STATE], how, rng.uniform(0.0, seconds))
        if not (folder / "state.npz").exists():
            continue
        code, _ = starter.run(folder, [*ONE, "-o", "rest", "--resume", "state.npz"])
        assert code == 0, (tmp_path / "errors").read_text()
        fit = RunFolder.open(folder / "rest").fit()
        np.testing.assert_array_equal(fit.factors, whole.factors)
        np.testing.assert_array_equal(fit.loadings, whole.loadings)
        resumed += 1
    return resumed


@pytest.mark.parametrize(
    ("kills", "resumes"), [(3, 1), pytest.param(150, 50, marks=pytest.mark.torture, id="many")]
)
def test_kills_lose_nothing(starter, tmp_path, kills, resumes):
    kill_often(starter, tmp_path, kills)
    assert resume_often(starter, tmp_path, resumes) or resumes == 1
