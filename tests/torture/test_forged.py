"""Small files made to fill the memory end with one refusal, in a process that has little."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource")

ROOT = Path(__file__).parents[2]


def read_all(*arguments):
    if not Path("/proc/self/statm").exists():
        pytest.skip("the memory that a process has is read from /proc")
    command = [sys.executable, "-m", "tests.torture.forged", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) > 30
    return [one for one in lines if not one["outcome"].startswith("refused")]


def test_small_files_made_to_fill_a_small_memory():
    assert not read_all("--small")


@pytest.mark.torture
def test_small_files_made_to_fill_the_memory():
    assert not read_all()
