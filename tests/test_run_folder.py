"""The folder of a run: all of it or nothing, and everything comes back."""

import csv
import json
import math

import numpy as np
import pytest

from log1pnmf import Log1pNMF
from log1pnmf.counts import Counts
from log1pnmf.files import BadFileError, CountTable
from log1pnmf.run_folder import RunFolder, c_name, json_text, source_record, write_run

RECORD = {"command": "log1pnmf fit", "source": {"path": "x.csv"}, "label": "type", "filters": [], "notes": []}


@pytest.fixture(scope="module")
def table():
    counts = Counts.from_any(np.random.default_rng(0).poisson(1.0, (12, 6)))
    names = [
        np.array([f"{kind}, {i}" for i in range(size)], dtype=object) for kind, size in (("s", 12), ("g", 6))
    ]
    columns = {"type": np.array(["a", "b"] * 6), "dose": np.arange(12)}
    return CountTable(Counts(counts.by_row, None, *names), columns)


@pytest.fixture(scope="module")
def models(table):
    return [Log1pNMF(2, c=c, tol=1e-3, random_state=0).fit(table.counts) for c in (1.0, math.inf)]


def test_everything_comes_back(tmp_path, table, models):
    write_run(tmp_path / "out", models, table, record=RECORD)
    run = RunFolder.open(tmp_path / "out")
    assert [model.fit_.c for model in run.models] == [1.0, math.inf]
    np.testing.assert_array_equal(run.model(1.0).components_, models[0].components_)
    assert run.labels("type").tolist() == ["a", "b"] * 6
    assert run.samples["sample"].tolist() == table.sample_names.tolist()
    np.testing.assert_array_equal(run.samples["size_factor"], models[0].fit_.size_factors)
    assert run.record["shape"] == [12, 6]
    assert run.record["versions"]["log1pnmf"]


def test_tables_hold_every_digit(tmp_path, table, models):
    write_run(tmp_path / "out", models, table, record=RECORD)
    for name, values, rows in (
        ("loadings_c=inf.csv", models[1].loadings_, table.sample_names),
        ("factors_c=inf.csv", models[1].components_.T, table.feature_names),
    ):
        with open(tmp_path / "out" / name, newline="") as file:
            header, *lines = csv.reader(file)
        assert header[1:] == ["factor_0", "factor_1"]
        assert [line[0] for line in lines] == rows.tolist()
        np.testing.assert_array_equal(np.array([line[1:] for line in lines], dtype=float), values)


def test_measures_are_a_table(tmp_path, table, models):
    measures = {"c": [1.0, math.inf], "log_likelihood": [-1.5, -2.0]}
    write_run(tmp_path / "out", models, table, record=RECORD, measures=measures)
    assert (tmp_path / "out" / "sweep.csv").read_text() == "c,log_likelihood\n1,-1.5\ninf,-2.0\n"


def test_failure_leaves_nothing(tmp_path, table, models):
    def fail(folder):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_run(tmp_path / "out", models, table, record=RECORD, add=fail)
    assert not list(tmp_path.iterdir())


def test_only_runs_are_replaced(tmp_path, table, models):
    write_run(tmp_path / "out", models, table, record=RECORD)
    with pytest.raises(FileExistsError, match="--force"):
        write_run(tmp_path / "out", models[:1], table, record=RECORD)
    write_run(tmp_path / "out", models[:1], table, record=RECORD, force=True)
    assert len(RunFolder.open(tmp_path / "out").models) == 1
    assert not (tmp_path / "out" / "models" / "c=inf.npz").exists()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match="not the folder of a run"):
        write_run(tmp_path / "precious", models, table, record=RECORD, force=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years"


def test_same_c_twice_is_refused(tmp_path, table, models):
    with pytest.raises(ValueError, match="different c"):
        write_run(tmp_path / "out", [models[0], models[0]], table, record=RECORD)


def test_what_cannot_be_opened(tmp_path, table, models):
    with pytest.raises(FileNotFoundError):
        RunFolder.open(tmp_path / "no")
    with pytest.raises(BadFileError, match=r"no run\.json"):
        RunFolder.open(tmp_path)
    write_run(tmp_path / "out", models, table, record=RECORD)
    run = RunFolder.open(tmp_path / "out")
    with pytest.raises(BadFileError, match="choose one"):
        run.model()
    with pytest.raises(BadFileError, match="choose one of 1, inf"):
        run.model(7.0)
    with pytest.raises(BadFileError, match="choose one of: type, dose"):
        run.labels("size_factor")
    (tmp_path / "out" / "run.json").write_text("{")
    with pytest.raises(BadFileError, match="damaged"):
        RunFolder.open(tmp_path / "out")
    (tmp_path / "out" / "run.json").write_text(
        '{"format": "log1pnmf run", "format_version": 9, "models": []}'
    )
    with pytest.raises(BadFileError, match="pip install -U"):
        RunFolder.open(tmp_path / "out")


@pytest.mark.parametrize("c", [1.0, 1e-3, math.inf, 0.1 + 0.2, 123456789.0, 1 / 3])
def test_name_of_c_is_that_number(c):
    assert float(c_name(c)) == c


def test_json_is_json():
    text = json_text({"c": math.inf, "x": np.float64("nan"), "n": np.int64(3), "k": (1, 2)})
    assert json.loads(text, parse_constant=pytest.fail) == {"c": "inf", "x": "nan", "n": 3, "k": [1, 2]}


def test_source_is_known_by_its_content(tmp_path):
    (tmp_path / "a").write_text("counts")
    first = source_record(tmp_path / "a")
    (tmp_path / "a").write_text("Counts")
    assert source_record(tmp_path / "a") != first
    assert set(source_record(tmp_path)) == {"path"}
