"""Bad files: one error each, with what, where and what to do; nothing is left behind."""

import gzip

import anndata
import h5py
import numpy as np
import pytest
from scipy import sparse

from log1pnmf._common.safe_files import BadFileError
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.read import read_table
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import write_table

MARKET = "%%MatrixMarket matrix coordinate integer general\n"

TEXTS = {
    "empty file": ("t.csv", "", "empty"),
    "only a header": ("t.csv", "cell,a,b\n", "empty"),
    "a row too short": ("t.csv", "cell,a,b\nx,1,2\ny,1\n", "2 cells in row 3, but 3"),
    "header of another width": ("t.csv", "cell,a,b,c,d\nx,1,2\n", "5 names"),
    "a word among numbers": ("t.csv", "cell,a,b\nx,1,2\ny,oops,3\n", "'oops' in row 3, column 2 (a)"),
    "missing value": ("t.csv", "cell,a,b\nx,1,2\ny,NA,3\n", "'NA'"),
    "not a number": ("t.csv", "cell,a,b\nx,1,nan\n", "NaN"),
    "infinite": ("t.csv", "cell,a,b\nx,1,inf\n", "infinity"),
    "negative": ("t.csv", "cell,a,b\nx,1,-2\n", "negative"),
    "fractions": ("t.csv", "cell,a,b\nx,1,0.5\n", "--allow-fractions"),
    "feature twice": ("t.csv", "cell,a,a\nx,1,2\n", "more than once (first 'a')"),
    "no text": ("t.csv", "\0\1\2", "binary"),
    "not MatrixMarket": ("t.mtx", "1 1 1\n", "%%MatrixMarket"),
    "market without size": ("t.mtx", MARKET, "incomplete"),
    "market truncated": ("t.mtx", MARKET + "3 3 900\n1 1 5\n", "truncated"),
    "market short": ("t.mtx", MARKET + "3 3 3\n1 1 5\n2 2 5\n", "not a whole"),
    "market index outside": ("t.mtx", MARKET + "3 3 1\n9 9 5\n", "not a whole"),
    "market with zero bytes": ("t.mtx", MARKET + "3 3 2\n1 1 5\n\0\0\0\0\0\0\0\0", "zero bytes"),
    "market empty": ("t.mtx", MARKET + "0 3 0\n", "empty: 0 samples"),
    "not a zip": ("t.npz", "hello", "npz"),
    "not HDF5": ("t.h5ad", "hello", "truncated or damaged"),
    "not HDF5 of 10x": ("t.h5", "hello", "truncated or damaged"),
    "unknown ending": ("t.xlsx", "hello", "no ending that is known"),
    "not gzip": ("t.csv.gz", "cell,a\nx,1\n", "damaged"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_bad_texts(tmp_path, case):
    name, text, words = TEXTS[case]
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadFileError) as caught:
        read_table(path)
    assert words in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.mtx.gz", "t.h5ad", "t.npz", "t.npy"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_truncated_files(tmp_path, name, part):
    values = np.random.default_rng(0).poisson(1.0, (200, 30))
    path = tmp_path / name
    write_table(CountTable(Counts.from_any(values)), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(BadFileError, match=name):
        read_table(path)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_table(tmp_path / "no.h5ad")
    with pytest.raises(BadFileError, match=r"one matrix.mtx.*none"):
        read_table(tmp_path)


def test_tenx_files_that_do_not_belong_together(tmp_path):
    (tmp_path / "matrix.mtx").write_text(MARKET + "2 2 1\n1 1 5\n")
    with pytest.raises(BadFileError, match=r"no features.tsv"):
        read_table(tmp_path)
    (tmp_path / "features.tsv").write_text("a\na2\n")
    (tmp_path / "barcodes.tsv").write_text("x\ny\nz\n")
    with pytest.raises(BadFileError, match="3 barcodes"):
        read_table(tmp_path)
    (tmp_path / "barcodes.tsv").unlink()
    (tmp_path / "barcodes.tsv.gz").write_bytes(gzip.compress(b"x\ny\n")[:-6])
    with pytest.raises(BadFileError, match=r"barcodes.tsv.gz is damaged"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("t.h5", {"matrix/data": np.arange(3)}, "barcodes missing"),
        ("t.h5", {"hg19/barcodes": [b"x"], "mm10/barcodes": [b"x"]}, "hg19, mm10"),
        ("t.h5ad", {"X": np.eye(2)}, "no AnnData"),
    ],
)
def test_hdf5_of_other_things(tmp_path, name, parts, message):
    with h5py.File(tmp_path / name, "w") as file:
        for place, values in parts.items():
            file[place] = values
    with pytest.raises(BadFileError, match=message):
        read_table(tmp_path / name)


def test_layers_that_are_not_there(tmp_path):
    path = tmp_path / "t.h5ad"
    anndata.AnnData(X=np.full((2, 2), 0.5, dtype=np.float32), layers={"umi": np.eye(2)}).write_h5ad(path)
    with pytest.raises(BadFileError, match="no layer 'counts'; choose one of umi, X"):
        read_table(path, layer="counts")
    with pytest.raises(BadFileError, match=r"--layer \(umi\)"):
        read_table(path)
    with pytest.raises(BadFileError, match=r"no sample column 'type'"):
        read_table(path, layer="umi").labels("type")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadFileError, match="no layers"):
        read_table(tmp_path / "t.csv", layer="counts")


def test_npz_of_other_things(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.eye(2), b=np.eye(3))
    with pytest.raises(BadFileError, match=r"got a \(2, 2\), b \(3, 3\)"):
        read_table(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", counts=np.array([{"no": "pickle"}], dtype=object))
    with pytest.raises(BadFileError, match=r"t\.npz"):
        read_table(tmp_path / "t.npz")
    np.save(tmp_path / "t.npy", np.arange(3))
    with pytest.raises(BadFileError, match="rows and columns"):
        read_table(tmp_path / "t.npy")


def test_what_is_there_is_not_overwritten(tmp_path):
    table = CountTable(Counts.from_any(np.eye(2)))
    for name in ("t.csv", "folder"):
        write_table(table, tmp_path / name)
        with pytest.raises(FileExistsError, match="--force"):
            write_table(table, tmp_path / name)
        write_table(CountTable(Counts.from_any(2 * np.eye(2))), tmp_path / name, force=True)
        assert read_table(tmp_path / name).counts.total == 4.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "t.csv"]


@pytest.mark.parametrize("name", ["t.h5ad", "t.zarr", "t.csv.gz", "t.npz", "folder", "t.mtx"])
def test_failure_leaves_nothing(tmp_path, name, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("disk full")

    monkeypatch.setattr("log1pnmf._common.archive._move", fail)
    with pytest.raises(OSError, match="disk full"):
        write_table(CountTable(Counts.from_any(np.eye(2))), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_formats_that_are_only_read(tmp_path):
    table = CountTable(Counts.from_any(sparse.eye_array(2)))
    with pytest.raises(BadFileError, match="only read"):
        write_table(table, tmp_path / "t.h5")
    with pytest.raises(FileNotFoundError, match="make it first"):
        write_table(table, tmp_path / "no" / "t.csv")
