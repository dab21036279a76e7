"""A small file of counts, one run of it, and the command line called as the entry point calls it."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from tests.tables import table_of

from log1pnmf.cli import main
from log1pnmf.counts.write import write_table
from log1pnmf.model.simulate import simulate


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out, parse_constant=pytest.fail)


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command in this process."""
    monkeypatch.delenv("LOG1PNMF_DEBUG", raising=False)

    def run(*arguments):
        words = [str(one) for one in arguments]
        monkeypatch.setattr("sys.argv", ["log1pnmf", *words])
        capsys.readouterr()
        code = main()
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def fit(call, counts_file, tmp_path):
    """Fit two factors quickly; the folder is tmp_path / "out"."""

    def run(*options, command="fit", code=0):
        quick = ["--set", "tol=1e-4", "--set", "init=nndsvd", "--jobs", "1"]
        done = call(command, counts_file, "-k", 2, "-o", tmp_path / "out", *quick, *options)
        assert done.code == code, done.err
        return done

    return run


@pytest.fixture(scope="session")
def counts_file(tmp_path_factory):
    """Counts with names and labels; the last feature is in one sample only."""
    drawn = simulate(60, 25, 3, density=0.3, random_state=1)
    values = drawn.counts.toarray()
    values[:, -1] = 0
    values[3, -1] = 1
    table = table_of(values, {"type": np.array(["a", "b", "c"] * 20)}, ("cell", "gene"))
    path = tmp_path_factory.mktemp("data") / "counts.h5ad"
    write_table(table, path)
    return path


@pytest.fixture(scope="session")
def run_folder(counts_file, tmp_path_factory):
    """A run at c = 1 and c = inf."""
    place = tmp_path_factory.mktemp("run") / "out"
    options = ["--groupby", "type", "--set", "tol=1e-4", "--jobs", "1"]
    code = main(["fit", str(counts_file), "-k", "3", "-c", "1", "-c", "inf", "-o", str(place), *options])
    assert code == 0
    return place
