"""Batches on the command line: a column of the file."""

import csv
import json

import numpy as np
import pytest

from log1pnmf import Fit, Log1pNMF, select
from log1pnmf.cli.exchange import write_r_list
from log1pnmf.counts import Counts
from log1pnmf.counts.read import read_table
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import write_table


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


def test_a_sweep_has_effects_at_every_c(call, counts_file, tmp_path):
    out = tmp_path / "out"
    quick = ["--set", "init=nndsvd", "--set", "max_iter=5", "--jobs", "1", "--no-report"]
    done = call("sweep", counts_file, "-k", "2", "-c", "1,inf", "-o", out, "--batch", "type", *quick)
    assert done.code == 0, done.err
    fits = [Fit.load(path) for path in sorted((out / "models").iterdir())]
    assert [fit.batches.names for fit in fits] == [("a", "b", "c")] * 2
    assert all((fit.batches.effects != 1.0).any() for fit in fits)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_selection_with_batches_is_that_of_select(call, counts_file, tmp_path):
    table = read_table(counts_file)
    values = table.counts.to_scipy().toarray()
    values[::3, :8] *= 5  # batch "a" captures these better
    strong, labels = tmp_path / "strong.h5ad", table.labels("type")
    write_table(CountTable(Counts.from_any(values), {"type": labels}), strong)
    quick = ["--folds", "2", "--seeds", "0", "--jobs", "1", "--set", "max_iter=3"]
    quick += ["--set", "size_factors=none"]
    asked = ["-k", "1", "-c", "1,inf", "--batch", "type", "--set", "batch_strength=3"]
    done = call("select", strong, "-o", tmp_path / "out", *asked, *quick)
    assert done.code == 0, done.err
    with open(tmp_path / "out" / "settings.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    given = {"n_folds": 2, "n_seeds": 0, "max_iter": 3, "n_jobs": 1, "size_factors": "none"}
    with_them = {"batch": labels, "batch_strength": 3.0}
    found, without = (select(values, 1, [1.0, np.inf], **batch, **given) for batch in (with_them, {}))
    assert [float(row["log_likelihood"]) for row in rows] == found.summary["log_likelihood"].tolist()
    assert (found.summary["log_likelihood"] > without.summary["log_likelihood"]).all()
