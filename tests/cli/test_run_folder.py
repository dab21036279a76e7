"""The folder of a run: what is written stays, nothing half done does, and everything comes back."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.tables import table_of

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf._common.archive import to_tree
from log1pnmf._common.safe_files import BadFileError
from log1pnmf.cli.run_folder import RunFolder, RunRecord, RunWriter, Source, claimed_for_run, json_text
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.read import read_table
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import write_table

RECORD = RunRecord(
    command="log1pnmf fit",
    created="2026-01-01",
    versions={},
    source=Source("x.csv"),
    source_format="csv",
    reading={},
    shape=(12, 6),
    sample_columns=("type", "dose"),
    groupby="type",
    parameters={"c": math.inf},
)


def write_run(path, fits, table, *, record=RECORD, force=False):
    with claimed_for_run(path, force=force) as folder:
        RunWriter(folder, table, record, fits, [{"c": fit.c, "n": fit.n_iter} for fit in fits]).write()


@pytest.fixture(scope="module")
def table():
    columns = {"type": np.array(["a", "b"] * 6), "dose": np.arange(12)}
    return table_of(np.random.default_rng(0).poisson(1.0, (12, 6)), columns, ("s, ", "g, "))


@pytest.fixture(scope="module")
def fits(table):
    return [fit_log1p_nmf(table.counts, 2, c=c, tol=1e-3) for c in (1.0, math.inf)]


@pytest.fixture(scope="module")
def written(tmp_path_factory, table, fits):
    write_run(path := tmp_path_factory.mktemp("run") / "out", fits, table)
    return path


def test_everything_comes_back(written, table, fits):
    run = RunFolder.open(written)
    assert [fit.c for fit in run.fits] == [1.0, math.inf]
    np.testing.assert_array_equal(run.fit(1.0).factors, fits[0].factors)
    assert run.labels("type").tolist() == ["a", "b"] * 6
    assert run.samples["sample"].tolist() == table.sample_names.tolist()
    np.testing.assert_array_equal(run.samples["size_factor"], fits[0].size_factors)
    measures = ({"c": 1.0, "n": fits[0].n_iter}, {"c": "inf", "n": fits[1].n_iter})
    models = ("models/c=1.npz", "models/c=inf.npz")
    assert run.record == replace(RECORD, models=models, parameters={"c": "inf"}, fits=measures)


def test_tables_hold_every_digit(written, table, fits):
    for name, values, rows in (
        ("loadings_c=inf.csv", fits[1].loadings, table.sample_names),
        ("factors_c=inf.csv", fits[1].factors, table.feature_names),
    ):
        with open(written / name, newline="") as file:
            header, *lines = csv.reader(file)
        assert header[1:] == ["k0", "k1"]
        assert [line[0] for line in lines] == rows.tolist()
        np.testing.assert_array_equal(np.array([line[1:] for line in lines], dtype=float), values)
    measures = f"c,n\n1,{fits[0].n_iter}\ninf,{fits[1].n_iter}\n"
    assert (written / "sweep.csv").read_text() == measures


def fail(*arguments, **options):
    raise OSError(28, "No space left on device")


def everything(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("broken", ["fits[0].save", "replacing"])
def test_where_no_fit_is_written_nothing_is(tmp_path, table, fits, monkeypatch, broken):
    if broken == "replacing":
        monkeypatch.setattr("log1pnmf.cli.run_folder.replacing", fail)
    else:
        monkeypatch.setattr(Fit, "save", fail)
    with pytest.raises(OSError, match="No space"):
        write_run(tmp_path / "out", fits, table)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    write_run(tmp_path / "out", fits[:1], table)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = everything(tmp_path)
    monkeypatch.setattr(Fit, "save", fail)
    with pytest.raises(OSError, match="No space"):
        write_run(tmp_path / "out", fits, table, force=True)
    assert everything(tmp_path) == before


def test_a_folder_belongs_to_one_run(tmp_path, table, fits):
    with claimed_for_run(tmp_path / "out") as folder:
        for force in (False, True):
            with pytest.raises(FileExistsError, match="in use"):
                write_run(tmp_path / "out", fits, table, force=force)
        RunWriter(folder, table, RECORD, fits[:1], [{}]).write()
        with pytest.raises(FileExistsError, match="in use"):
            write_run(tmp_path / "out", fits, table, force=True)
    assert len(RunFolder.open(tmp_path / "out").fits) == 1
    write_run(tmp_path / "out", fits, table, force=True)


def test_labels_named_like_our_columns_come_back(tmp_path, table, fits):
    own = {"sample": ["p", "q"] * 6, "size_factor": ["low", "high"] * 6, "sample_label": ["u", "v"] * 6}
    columns = {name: np.array(values) for name, values in own.items()}
    record = replace(RECORD, sample_columns=tuple(own))
    write_run(tmp_path / "out", fits[:1], CountTable(table.counts, columns), record=record)
    run = RunFolder.open(tmp_path / "out")
    assert run.samples["sample"].tolist() == table.sample_names.tolist()
    np.testing.assert_array_equal(run.samples["size_factor"], fits[0].size_factors)
    for name, values in own.items():
        assert run.labels(name).tolist() == values
    with open(tmp_path / "out" / "samples.csv", newline="") as file:
        header = next(csv.reader(file))
    assert len(set(header)) == len(header) == 5


FORMULAS = ["=cmd()", "+x", "-x", "@x", "'=x", "'x", "-5", "+1e3", "=" * 3, "\tx", "a=b", "x" * 200_000]


def test_names_are_no_formulas_and_come_back(tmp_path, fits):
    names = np.array(FORMULAS, dtype=object)
    counts = Counts.from_any(np.random.default_rng(0).poisson(1.0, (12, 6)))
    named = CountTable(Counts(counts.by_row, None, names, names[:6]), {"=type": names})
    write_run(tmp_path / "out", fits[:1], named, record=replace(RECORD, sample_columns=("=type",)))
    run = RunFolder.open(tmp_path / "out")
    assert run.samples["sample"].tolist() == FORMULAS
    assert run.labels("=type").tolist() == FORMULAS
    write_table(named, tmp_path / "t.csv")
    again = read_table(tmp_path / "t.csv")
    assert again.sample_names.tolist() == FORMULAS
    assert again.feature_names.tolist() == FORMULAS[:6]
    for path in [tmp_path / "t.csv", *(tmp_path / "out").glob("*.csv")]:
        before = csv.field_size_limit(1 << 20)
        with open(path, newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        csv.field_size_limit(before)
        assert not [cell for cell in cells if cell[:1] in set("=+-@\t") and cell not in ("-5", "+1e3")]


def test_only_runs_are_replaced(tmp_path, table, fits):
    (tmp_path / "out").mkdir()  # an empty folder is taken
    write_run(tmp_path / "out", fits, table)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="--force"):
        write_run(tmp_path / "out", fits[:1], table)
    write_run(tmp_path / "out", fits[:1], table, force=True)
    assert len(RunFolder.open(tmp_path / "out").fits) == 1
    assert not list((tmp_path / "out").rglob("*c=inf*"))
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match="not the folder of a run"):
        write_run(tmp_path / "precious", fits, table, force=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years"


def test_what_cannot_be_opened(tmp_path, table, fits):
    with pytest.raises(FileNotFoundError):
        RunFolder.open(tmp_path / "no")
    with pytest.raises(BadFileError, match=r"no run\.json"):
        RunFolder.open(tmp_path)
    write_run(tmp_path / "out", fits, table)
    run = RunFolder.open(tmp_path / "out")
    with pytest.raises(BadFileError, match="choose one"):
        run.fit()
    with pytest.raises(BadFileError, match="choose one of 1, inf"):
        run.fit(7.0)
    with pytest.raises(BadFileError, match="choose one of: type, dose"):
        run.labels("size_factor")
    (tmp_path / "out" / "run.json").write_text("{")
    with pytest.raises(BadFileError, match="damaged"):
        RunFolder.open(tmp_path / "out")
    for changed in ({"shape": "large"}, {"source": {"path": 3}}, {"label": "x"}, {"models": [5]}):
        forged = {**to_tree(run.record), **changed}
        (tmp_path / "out" / "run.json").write_text(json_text(forged))
        with pytest.raises(BadFileError, match=rf"run\.json is damaged .*{next(iter(changed))}"):
            RunFolder.open(tmp_path / "out")
    (tmp_path / "out" / "run.json").write_text(
        '{"format": "log1pnmf run", "format_version": 9, "models": []}'
    )
    with pytest.raises(BadFileError, match="pip install -U"):
        RunFolder.open(tmp_path / "out")


def test_json_is_json():
    text = json_text({"c": math.inf, "x": np.float64("nan"), "n": np.int64(3), "k": (1, 2)})
    assert json.loads(text, parse_constant=pytest.fail) == {"c": "inf", "x": "nan", "n": 3, "k": [1, 2]}


def test_source_is_known_by_its_content(tmp_path):
    (tmp_path / "a").write_text("counts")
    first = Source.of(tmp_path / "a")
    (tmp_path / "a").write_text("Counts")
    assert Source.of(tmp_path / "a") != first
    assert Source.of(tmp_path) == Source(str(tmp_path))
