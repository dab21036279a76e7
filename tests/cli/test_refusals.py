"""Bad usage and bad files: exit code 2, one line on standard error, no traceback, nothing written."""

import pytest

GOOD = "cell,a,b\nx,1,2\ny,3,0\nz,1,1\n"

CONTENTS = {
    "good.csv": GOOD,
    "fractions.csv": "cell,a,b\nx,0.5,2\ny,3,0\n",
    "zeros.csv": "cell,a,b\nx,0,0\ny,0,0\n",
    "damaged.h5ad": "no HDF5",
}

FIT = ["fit", "FILE", "-k", "2", "-o", "OUT", "--no-report"]
USES = {
    "no command that is known": (["frobnicate"], "frobnicate"),
    "no file": (["fit", "-k", "2", "-o", "OUT"], "Missing argument"),
    "no output": (["fit", "good.csv", "-k", "2"], "Missing option"),
    "k not a number": (["fit", "good.csv", "-k", "two", "-o", "OUT"], "'-k'"),
    "c negative": ([*FIT, "-c", "-1"], "c must be positive"),
    "parameter unknown": (
        [*FIT, "--set", "n_components=3"],
        "--set takes NAME=VALUE with one of likelihood,",
    ),
    "parameter without a value": ([*FIT, "--set", "init"], "--set takes NAME=VALUE"),
    "parameter not a number": ([*FIT, "--set", "n_init=x"], "n_init must be a whole number, got 'x'"),
    "no such label": ([*FIT, "--groupby", "type"], "no sample column 'type'"),
    "layer of a csv": ([*FIT, "--layer", "counts"], "no layers"),
    "filters leave nothing": ([*FIT, "--min-counts", "1000"], "left nothing"),
    "checkpoints of several fits": ([*FIT, "-c", "1,2", "--checkpoint", "x.npz"], "one fit"),
    "checkpoint in no folder": ([*FIT, "--checkpoint", "no/x.npz"], "no folder"),
    "nothing to resume": ([*FIT, "--resume", "x.npz"], "--resume x.npz does not exist"),
    "output in no folder": (["fit", "FILE", "-k", "2", "-o", "no/out"], "make it first"),
    "h5ad with another ending": ([*FIT, "--write-h5ad", "x.csv"], "must end with .h5ad"),
    "time limit of zero": ([*FIT, "--time-limit", "0"], "seconds must be positive"),
    "sweep of one": (["sweep", "FILE", "-k", "2", "-c", "1", "-o", "OUT"], "at least two"),
    "transform without a run": (["transform", "no", "FILE", "-o", "l.csv"], "no does not exist"),
    "transform of a table": (["transform", "FILE", "FILE", "-o", "l.csv"], "damaged or was not written"),
    "transform to h5ad": (["transform", "no", "FILE", "-o", "l.h5ad"], "must end with .csv"),
    "report of no run": (["report", "."], "no run.json"),
    "info of nothing": (["info", "no.csv"], "no.csv does not exist"),
    "convert to unknown": (["convert", "FILE", "x.xlsx"], "no ending that is known"),
    "convert to 10x h5": (["convert", "FILE", "x.h5"], "only read"),
}
FILES = {
    "missing.csv": "does not exist",
    "fractions.csv": "--allow-fractions",
    "zeros.csv": "all zero",
    "damaged.h5ad": "damaged.h5ad",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, text in CONTENTS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(outcome, words, place):
    assert outcome.code == 2, outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert {path.name for path in place.iterdir()} == set(CONTENTS)


@pytest.mark.parametrize("case", USES)
def test_bad_usage(call, place, case):
    arguments, words = USES[case]
    check(call(*[{"FILE": "good.csv", "OUT": "out"}.get(one, one) for one in arguments]), words, place)


@pytest.mark.parametrize("name", FILES)
def test_bad_files(call, place, name):
    check(call("fit", name, "-k", 2, "-o", "out", "--no-report"), FILES[name], place)


def test_fractions_are_taken_if_told(call, place):
    done = call("fit", "fractions.csv", "-k", 1, "-o", "out", "--no-report", "--allow-fractions")
    assert done.code == 0
    assert "non-integer" in done.out


def test_a_failed_report_keeps_the_fit(call, place, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no ink")

    monkeypatch.setattr("log1pnmf.cli.fit.report_fits", fail)
    done = call("fit", "good.csv", "-k", 1, "-o", "out")
    assert done.code == 1
    assert "no ink" in done.err
    assert "log1pnmf report out" in done.err
    assert done.err.count("\n") == 1
    assert (place / "out" / "models" / "c=1.npz").exists()


def test_an_error_inside_is_code_1_and_shown_on_demand(call, place, monkeypatch):
    def fail(*arguments, **options):
        raise ArithmeticError("too odd")

    monkeypatch.setattr("log1pnmf.cli.fit.fits_along", fail)
    arguments = ["sweep", "good.csv", "-k", 1, "-c", "1,2", "-o", "out"]
    done = call(*arguments)
    assert done.code == 1
    assert done.err == "error: ArithmeticError: too odd (--debug shows where)\n"
    assert "Traceback" in call("--debug", *arguments).err
    assert not (place / "out").exists()
