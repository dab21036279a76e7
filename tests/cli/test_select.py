"""``log1pnmf select``: table, picture and suggestion; what is done is not lost."""

import csv
import json
import math
from importlib import import_module

import numpy as np
import pytest

import log1pnmf as lp

running = import_module("log1pnmf.analysis.select")  # `analysis.select` is the function

QUICK = ["--jobs", "1", "--folds", "2", "--seeds", "2", "-c", "inf"]
QUICK += ["--set", "tol=1e-4", "--set", "size_factors=none", "--set", "init=nndsvd"]


@pytest.fixture(scope="module")
def file(three_groups, tmp_path_factory):
    path = tmp_path_factory.mktemp("select") / "counts.npz"
    np.savez(path, counts=three_groups)
    return path


def test_a_folder_with_table_picture_and_what_to_take(call, file, three_groups, tmp_path):
    done = call("select", file, "-k", "1-4", "--min-samples", "1", "-o", tmp_path / "out", *QUICK)
    assert done.code == 0
    assert "Suggested: c=inf, K=3." in done.out
    assert "then: log1pnmf fit" in done.out
    assert "-k 3 -c inf --min-samples 1 -o" in done.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"select.json", "settings.csv", "select.png", "selection.npz"}
    assert (tmp_path / "out" / "select.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "out" / "settings.csv", newline="") as table:
        rows = list(csv.DictReader(table))
    given = {"n_folds": 2, "n_seeds": 2, "tol": 1e-4, "n_jobs": 1, "size_factors": "none", "init": "nndsvd"}
    found = lp.select(three_groups, [1, 2, 3, 4], math.inf, **given)
    assert [float(row["difference"]) for row in rows] == found.summary["difference"].tolist()
    np.testing.assert_array_equal([float(row["stability"]) for row in rows], found.summary["stability"])
    record = json.loads((tmp_path / "out" / "select.json").read_text())
    assert record["suggested"] == {"c": "inf", "n_components": 3, "l1": 0.0, "noise": "poisson"}
    assert record["reasons"] == list(found.judgement.reasons)
    assert record["source"]["sha256"]


def test_interrupted_goes_on_and_gives_the_same(call, file, tmp_path, monkeypatch):
    whole = call("select", file, "-k", "1-2", "-o", tmp_path / "whole", "--json", *QUICK).json
    assert whole["suggested"] is None
    assert "do not decide" in whole["headline"]
    wait, calls = running.wait, iter(range(100))

    def one_by_one_and_pressed(pending, **options):
        if next(calls) == 3:
            raise KeyboardInterrupt
        finished, others = wait(pending, **options)
        return {finished.pop()}, others | finished

    monkeypatch.setattr(running, "wait", one_by_one_and_pressed)
    stopped = call("select", file, "-k", "1-2", "-o", tmp_path / "out", "--json", *QUICK)
    assert stopped.code == 130
    assert "--resume goes on" in stopped.err
    monkeypatch.setattr(running, "wait", wait)
    refused = call("select", file, "-k", "1-2", "-o", tmp_path / "out", *QUICK)
    assert refused.code == 2
    assert "continue it (--resume)" in refused.err
    again = call("select", file, "-k", "1-2", "-o", tmp_path / "out", "--resume", "--json", *QUICK)
    assert again.code == 0
    assert again.json["settings"] == whole["settings"]
    other = call("select", file, "-k", "1-3", "-o", tmp_path / "out", "--resume", *QUICK)
    assert other.code == 2
    assert "is of another selection: grid" in other.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-k", "two"], "given as in 2-6,8,10, got 'two'"),
        (["-k", "4-2"], "must be at least 1 and rise, got '4-2'"),
        (["-k", "3"], "only one setting"),
        (["-k", "1-3", "--holdout", "genes"], "--holdout must be one of 'counts', 'samples', got 'genes'"),
        (["-k", "1-3", "--resume"], "no comparison to continue"),
        (["-k", "1-3", "-c", "-1"], "c must be positive or inf"),
    ],
)
def test_refused_and_nothing_is_left(call, file, tmp_path, options, message):
    done = call("select", file, "-o", tmp_path / "out", *options)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "out").exists()


def test_kinds_of_noise_are_compared(call, file, tmp_path):
    done = call(
        "select", file, "-k", "1", "--noise", "poisson,nb", "-o", tmp_path / "out", *QUICK, "--seeds", "0"
    )
    assert done.code == 0
    with open(tmp_path / "out" / "settings.csv", newline="") as table:
        assert [row["noise"] for row in csv.DictReader(table)] == ["poisson", "nb"]
    assert "noise" in done.out
    wrong = call("select", file, "-k", "3", "--noise", "gamma", "-o", tmp_path / "other", *QUICK)
    assert wrong.code != 0
    assert "--noise must be one of" in wrong.err
