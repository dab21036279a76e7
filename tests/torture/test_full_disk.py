"""A disk that is full: every writer gives one OSError and leaves nothing, or what was there before."""

import contextlib
import errno
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from tests.tables import table_of

from log1pnmf import fit_log1p_nmf
from log1pnmf.cli.exchange import write_r_list
from log1pnmf.cli.fit import write_annotated_fits
from log1pnmf.cli.options import Reading
from log1pnmf.cli.run_folder import RunFolder, RunRecord, RunWriter, Source, claimed_for_run
from log1pnmf.counts.read import Filtered
from log1pnmf.counts.write import WRITABLE, Sink, write_table
from log1pnmf.fitting.checkpoint import load_checkpoint
from log1pnmf.report.document import write_report

resource = pytest.importorskip("resource")

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
N, M = 120, 80


@pytest.fixture(scope="module")
def table():
    columns = {"type": np.array(["a", "b"] * (N // 2))}
    return table_of(np.random.default_rng(0).poisson(0.5, (N, M)), columns)


@pytest.fixture(scope="module")
def fit(table):
    return fit_log1p_nmf(table.counts, 2, c=np.inf, tol=1e-2)


def write_run(path, fit, table):
    asked = {"command": "log1pnmf fit", "created": "2026-01-01", "versions": {}, "source": Source("x.csv")}
    given = {"source_format": "csv", "reading": {}, "shape": (N, M), "parameters": {}}
    with claimed_for_run(path) as folder:
        RunWriter(folder, table, RunRecord(**asked, **given), [fit], [{}]).write()


WRITERS = {
    **{
        f"table{ending}": lambda place, fit, table, ending=ending: write_table(table, place / f"t{ending}")
        for ending in (*WRITABLE, "")
    },
    **{
        f"annotated{ending}": lambda place, fit, table, ending=ending: write_annotated_fits(
            [fit],
            Filtered(table, np.arange(N), np.arange(M), ()),
            SimpleNamespace(write_h5ad=place / f"t{ending}", force=False, reading=Reading()),
        )
        for ending in (".h5ad", ".zarr")
    },
    "fit": lambda place, fit, table: fit.save(place / "f.npz"),
    "report": lambda place, fit, table: write_report(place / "r.html", fit, title="t"),
    "list for R": lambda place, fit, table: write_r_list(fit, place / "r", counts=table.counts),
    "run": lambda place, fit, table: write_run(place / "out", fit, table),
}


def sizes(folder):
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def check(write, place, *given):
    """Write where there is no room."""
    with pytest.raises(OSError, match=r".") as caught:
        write(place, *given)
    assert caught.value.errno in FULL, repr(caught.value)
    left = [path for path in place.rglob("*") if path.is_file()]
    if left:  # only a run may leave something: a fit that was written before there was no more room
        assert not [path for path in left if path.name.startswith(".")]
        assert len(RunFolder.open(place / "out").fits) == 1
    else:
        assert not list(place.iterdir())


@contextlib.contextmanager
def no_larger_than(size):
    """Files of this process end there; the system refuses the rest as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
def test_files_that_cannot_grow(fit, table, tmp_path, name):
    (tmp_path / "room").mkdir()
    WRITERS[name](tmp_path / "room", fit, table)
    largest = max(sizes(tmp_path / "room"))
    for part in (0.0, 0.6):
        place = tmp_path / f"{part}"
        place.mkdir()
        with no_larger_than(int(part * largest)):
            check(WRITERS[name], place, fit, table)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(table, tmp_path):
    path = tmp_path / "state.npz"
    options = {"c": np.inf, "random_state": 0, "tol": 1e-3, "checkpoint": path}
    fit = fit_log1p_nmf(table.counts, 2, **options)
    before = path.read_bytes()
    with no_larger_than(len(before) // 2), pytest.warns(RuntimeWarning, match="could not be written"):
        fit_log1p_nmf(table.counts, 2, **options)
    assert path.read_bytes() == before
    assert load_checkpoint(path).progress.last.index == fit.n_iter
    assert [one.name for one in tmp_path.iterdir()] == ["state.npz"]


def test_ctrl_c_while_hdf5_writes(table, tmp_path, monkeypatch):
    """It comes inside the method that HDF5 calls, which must not be broken off; nothing is left."""
    original, seen = Sink.write, []

    def press(self, data):
        seen.append(1)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)
        return original(self, data)

    monkeypatch.setattr(Sink, "write", press)
    with pytest.raises(KeyboardInterrupt):
        write_table(table, tmp_path / "t.h5ad")
    assert len(seen) > 3
    assert not list(tmp_path.iterdir())
