"""Small files made to fill the memory end with one refusal. What is allowed here is a 64th of the usual."""

import gzip
import io
import json
import zipfile

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

from log1pnmf._common import safe_files
from log1pnmf._common.safe_files import BadFileError
from log1pnmf.counts.chunks import open_counts
from log1pnmf.counts.passes import survey
from log1pnmf.counts.read import read_table

BLOCK = 1 << 22
MARKET = b"%%MatrixMarket matrix coordinate integer general\n"


def repeated(piece, size=1 << 26):
    """A gzip file of one piece again and again."""
    block = piece * (BLOCK // len(piece))
    return gzip.compress(block, 6) * (size // len(block))


def packed(piece):
    return lambda path: path.write_bytes(repeated(piece))


def annotated(path, n=3):
    obs = pd.DataFrame({"kind": pd.Categorical(["a"] * n)}, index=[f"s{i}" for i in range(n)])
    adata = anndata.AnnData(X=np.eye(n, 3, dtype=np.float32), obs=obs)
    if path.suffix == ".zarr":
        return anndata.io.write_elem(zarr.open_group(str(path), mode="w", zarr_format=2), "/", adata)
    adata.write_h5ad(path)
    return h5py.File(path, "r+")


def h5ad_tiny_chunks(path):
    with annotated(path) as file:
        del file["X"]
        file.create_dataset("X", shape=(9000, 9000), dtype="i1", chunks=(1, 1))


def h5ad_sparse(shape, n):
    """A sparse matrix of this shape, whose first row has n entries."""

    def write(path):
        with annotated(path) as file:
            del file["X"]
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape})
            group["indptr"] = np.array((0, n, n, n))
            for name in ("data", "indices"):
                group.create_dataset(name, shape=(n,), dtype="i1", chunks=(min(n, 1 << 20),))

    return write


def h5ad_labels(path):
    with annotated(path, 30_000) as file:
        del file["obs/kind/categories"]
        texts = {"data": ["x" * (1 << 13)], "dtype": h5py.string_dtype()}
        categories = file["obs/kind"].create_dataset("categories", **texts)
        categories.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def npz_sparse(path):
    n = 1_000_000
    parts = {"data": np.ones(n, np.int8), "indices": np.zeros(n, np.int8), "indptr": np.array([0, n])}
    np.savez_compressed(path, format=np.array(b"csr"), shape=np.array([1, 3]), **parts)


def npz_bz2(path):
    out = io.BytesIO()
    header = {"shape": (1 << 15, 1 << 14), "fortran_order": False, "descr": "|i1"}
    np.lib.format.write_array_header_1_0(out, header)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("counts.npy", out.getvalue() + bytes(1 << 23))


def market(path):
    entries = 1_500_000
    head = MARKET + f"3 3 {entries}\n".encode()
    path.write_bytes(gzip.compress(head) + repeated(b"1 1 1\n", 8 * entries))


def folder_names(path):
    path.mkdir()
    (path / "matrix.mtx").write_bytes(MARKET + b"1 1 1\n1 1 5\n")
    (path / "features.tsv").write_text("g\n")
    (path / "barcodes.tsv.gz").write_bytes(repeated(b"ab\n"))  # the other two are as they should be


def texts(path):
    path.mkdir()
    (path / "bomb.txt.gz").write_bytes(repeated(b"a "))


def zarr_array(name, **other):
    """An array that declares other things than it has."""

    def write(path):
        annotated(path)
        place = path / name / ".zarray"
        place.write_text(json.dumps(json.loads(place.read_text()) | other))

    return write


FORGED = {
    "tiny_chunks.h5ad": h5ad_tiny_chunks,
    "wide.h5ad": h5ad_sparse((3, 10**11), 1),
    "tall.h5ad": h5ad_sparse((10**11, 3), 1),
    "long_row.h5ad": h5ad_sparse((3, 3), 3_000_000),
    "labels.h5ad": h5ad_labels,
    "rows.csv.gz": packed(b"1,1,1,1,1,1,1,1\n"),
    "names.csv.gz": packed(b"ab,0\n"),
    "wide.csv.gz": packed(b"ab,"),
    "quoted.csv.gz": packed(b'"a\n",'),
    "label.csv": lambda path: path.write_text(f"cell,a,kind\nx,1,{'y' * 500_000}\n" + "x,1,y\n" * 100_000),
    "ones.npz": lambda path: np.savez_compressed(path, counts=np.ones((1400, 1400), dtype=np.int8)),
    "sparse.npz": npz_sparse,
    "bz2.npz": npz_bz2,
    "entries.mtx.gz": market,
    "wide.mtx.gz": lambda path: path.write_bytes(gzip.compress(MARKET + b"3 900000000 1\n1 1 1\n")),
    "folder": folder_names,
    "texts": texts,
    "bz2.zarr": zarr_array("X", compressor={"id": "bz2"}),
    "texts.zarr": zarr_array("obs/_index", shape=[3], chunks=[1 << 21]),
    "tiny_chunks.zarr": zarr_array("X", shape=[9000, 9000], chunks=[1, 1], dtype="|i1"),
}
STREAMED = ["tiny_chunks.h5ad", "wide.h5ad", "tall.h5ad", "long_row.h5ad", "bz2.zarr", "tiny_chunks.zarr"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORGED)
def test_small_files_made_to_fill_the_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr(safe_files, "ALWAYS_ALLOWED", 1 << 24)
    FORGED[name](tmp_path / name)
    for read in (read_table, lambda path: survey(open_counts(path)))[: 1 + (name in STREAMED)]:
        with pytest.raises(BadFileError, match=r"memory|not packed as NumPy does") as caught:
            read(tmp_path / name)
        assert not isinstance(caught.value.__cause__, MemoryError)
