"""Batches on the command line: a column of the file."""

import json

import numpy as np

from log1pnmf import Fit
from log1pnmf.cli.exchange import write_r_list


def test_batches_are_a_column_of_the_file(call, counts_file, tmp_path):
    out = tmp_path / "out"
    asked = ["--batch", "type", "--groupby", "type", "--max-iter", "5", "--jobs", "1", "--no-report"]
    done = call("fit", counts_file, "-k", "2", "-o", out, *asked)
    assert done.code == 0, done.err
    assert "group 'a' is all of batch 'a'" in " ".join(done.out.split())
    assert json.loads((out / "run.json").read_text())["batch"] == "type"
    fit = Fit.load(next((out / "models").iterdir()))
    assert fit.batches.names == ("a", "b", "c")
    transformed = call("transform", out, counts_file, "-o", tmp_path / "new.csv", "--batch", "type")
    assert transformed.code == 0, transformed.err
    write_r_list(fit, tmp_path / "r")
    table = np.genfromtxt(tmp_path / "r" / "batch_effects.csv", delimiter=",", skip_header=1)
    assert (table[:, 1:] == fit.batches.effects.T).all()
    missing = call("fit", counts_file, "-k", "2", "-o", tmp_path / "other", "--batch", "donor")
    assert missing.code != 0
    assert "'donor'" in missing.err
