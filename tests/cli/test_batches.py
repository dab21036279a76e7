"""Batches on the command line: a column of the file."""

import json

import numpy as np

from log1pnmf import Fit, Log1pNMF
from log1pnmf.cli.exchange import write_r_list
from log1pnmf.counts.read import read_table


def test_batches_are_a_column_of_the_file_also_for_new_samples(call, counts_file, tmp_path):
    out = tmp_path / "out"
    asked = ["--batch", "type", "--groupby", "type", "--set", "max_iter=5", "--jobs", "1", "--no-report"]
    done = call("fit", counts_file, "-k", "2", "-o", out, *asked)
    assert done.code == 0, done.err
    assert "group 'a' is all of batch 'a'" in " ".join(done.out.split())
    assert json.loads((out / "run.json").read_text())["batch"] == "type"
    fit = Fit.load(next((out / "models").iterdir()))
    assert fit.batches.names == ("a", "b", "c")
    write_r_list(fit, tmp_path / "r")
    table = np.genfromtxt(tmp_path / "r" / "batch_effects.csv", delimiter=",", skip_header=1)
    assert (table[:, 1:] == fit.batches.effects.T).all()
    missing = call("fit", counts_file, "-k", "2", "-o", tmp_path / "other", "--batch", "donor")
    assert missing.code != 0
    assert "'donor'" in missing.err
    for name, given in (("with", ["--batch", "type"]), ("without", [])):
        assert call("transform", out, counts_file, "-o", tmp_path / f"{name}.csv", *given).code == 0
    counts = read_table(counts_file).counts
    for name, labels in (("with", fit.batches.sample_names), ("without", None)):
        written = np.genfromtxt(tmp_path / f"{name}.csv", delimiter=",", skip_header=1)[:, 1:]
        expected = Log1pNMF.of(fit).transform(counts, batch=labels)
        np.testing.assert_allclose(written, expected, rtol=1e-5, atol=1e-9)
