"""Small files that would take gigabytes, one maker for each way that is known.

Run as a program, it reads them all in a process with a cap on its memory and prints what came of each.
"""

import bz2
import gzip
import io
import json
import re
import resource
import struct
import sys
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import zarr
from numcodecs import Zstd

from log1pnmf._common import safe_files as untrusted
from log1pnmf._common.safe_files import BadFileError
from log1pnmf.counts.chunks import open_counts
from log1pnmf.counts.passes import survey
from log1pnmf.counts.read import read_table

CAP = 3 << 29
"""Bytes that a reader may take: the gigabyte that is allowed, and half of it for what counting cannot see."""
SHIFT = 6 if "--small" in sys.argv else 0
"""Small: everything, also what is allowed, is a 64th; only the cap is a third."""
BLOCK = 1 << 22
SIZE = 4 << 30 >> SHIFT
MARKET = b"%%MatrixMarket matrix coordinate integer general\n"


def repeated(piece, size=SIZE):
    """A gzip file of one piece again and again."""
    block = piece * (BLOCK // len(piece))
    return gzip.compress(block, 6) * (size // len(block))


def deflated(piece, size=SIZE, head=b""):
    """The same as a zlib stream; only its checksum, which comes last, is wrong."""
    block = piece * (BLOCK // len(piece))
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    body = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\x9c" + first + body * (size // len(block)) + packer.flush() + bytes(4)


def annotated(path, n=3):
    obs = pd.DataFrame({"kind": pd.Categorical(["a"] * n)}, index=[f"s{i}" for i in range(n)])
    adata = anndata.AnnData(X=np.eye(n, 3, dtype=np.float32), obs=obs)
    if path.suffix == ".zarr":
        anndata.io.write_elem(zarr.open_group(str(path), mode="w", zarr_format=2), "/", adata)
        return path
    adata.write_h5ad(path)
    return h5py.File(path, "r+")


def one_long_text(path, group, name, n=20_000, length=1 << 20 >> SHIFT):
    """A dataset of many references to one text."""
    with h5py.File(path, "r+") as file:
        if name in file[group]:
            del file[group][name]
        file[group].create_dataset(name, data=["x" * length, *["y"] * (n - 1)], dtype=h5py.string_dtype())
        place = file[group][name].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place : place + 16 * n] = content[place : place + 16] * n
    path.write_bytes(content)


def h5ad_names(path):
    with annotated(path):
        pass
    one_long_text(path, "obs", "_index")


def h5ad_uns(path):
    with annotated(path) as file:
        file["var"].attrs["column-order"] = ["extra"]
    one_long_text(path, "var", "extra")


def h5ad_attribute(path):
    names = [f"c{i:05d}" for i in range(3000)]
    with annotated(path) as file:
        file["obs"].attrs["column-order"] = names
        file.create_dataset("long", data=["x" * (1 << 22 >> SHIFT)], dtype=h5py.string_dtype())
        place = file["long"].id.get_offset()
    content = path.read_bytes()
    listed = re.search(rb"(?:\x06\0\0\0.{12}){2000,}", content, re.DOTALL)
    n = len(listed[0]) // 16
    path.write_bytes(content[: listed.start()] + content[place : place + 16] * n + content[listed.end() :])


def h5ad_chunk(path):
    with annotated(path) as file:
        del file["X"]
        file.create_dataset("X", shape=(3, 3), dtype="f4", chunks=(3, 3), compression="gzip")
        file["X"].id.write_direct_chunk((0, 0), deflated(b"\0"))


def h5ad_sparse_chunk(path):
    with annotated(path) as file:
        group = sparse_group(file)
        group["indices"] = np.zeros(1, np.int32)
        group.create_dataset("data", shape=(1,), dtype="f4", chunks=(1,), compression="gzip")
        group["data"].id.write_direct_chunk((0,), deflated(b"\0"))


def h5ad_tiny_chunks(path):
    with annotated(path) as file:
        del file["X"]
        file.create_dataset("X", shape=(9000, 9000), dtype="i1", chunks=(1, 1))


def sparse_group(file, indptr=(0, 1, 1, 1), shape=(3, 3)):
    """Put a sparse X without values into a file."""
    del file["X"]
    group = file.create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape})
    group["indptr"] = np.array(indptr)
    return group


def h5ad_shape(path, shape=(3, 10**11)):
    with annotated(path) as file:
        group = sparse_group(file, shape=shape)
        group["indices"], group["data"] = np.zeros(1, np.int32), np.ones(1, np.float32)


def h5ad_long_row(path):
    n = 200_000_000 >> SHIFT
    with annotated(path) as file:
        group = sparse_group(file, (0, n, n, n))
        for name in ("data", "indices"):
            group.create_dataset(name, shape=(n,), dtype="i1", chunks=(1 << 20,))


def h5ad_labels(path, n=30_000):
    with annotated(path, n) as file:
        del file["obs/kind/categories"]
        categories = file["obs/kind"].create_dataset(
            "categories", data=["x" * (1 << 17 >> min(SHIFT, 4))], dtype=h5py.string_dtype()
        )
        categories.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def tenx(path):
    with h5py.File(path, "w") as file:
        for name, values in {"data": [1], "indices": [0], "indptr": [0, 1], "shape": [1, 1]}.items():
            file[f"matrix/{name}"] = np.array(values)
        file["matrix/features/id"] = file["matrix/features/name"] = [b"g"]
    one_long_text(path, "matrix", "barcodes")


def csv_label(path):
    path.write_text("cell,a,kind\n" + f"x,1,{'y' * 500_000}\n" + "x,1,y\n" * 100_000)


def npz_ones(path):
    side = 11_000 >> SHIFT // 2
    np.savez_compressed(path, counts=np.ones((side, side), dtype=np.int8))


def npz_sparse(path):
    n = 60_000_000 >> SHIFT
    parts = {"data": np.ones(n, np.int8), "indices": np.zeros(n, np.int8), "indptr": np.array([0, n])}
    np.savez_compressed(path, format=np.array(b"csr"), shape=np.array([1, 3]), **parts)


def npz_bz2(path):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"shape": (1 << 15, 1 << 14), "fortran_order": False, "descr": "|i1"}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive, archive.open("counts.npy", "w") as member:
        member.write(out.getvalue())
        for _ in range(1 << 9 >> SHIFT):
            member.write(bytes(1 << 20))


def market(path):
    entries = 100_000_000 >> SHIFT
    head = MARKET + f"3 3 {entries}\n".encode()
    path.write_bytes(gzip.compress(head) + repeated(b"1 1 1\n", 8 * entries))


def folder_names(path):
    path.mkdir()
    (path / "matrix.mtx").write_bytes(MARKET + b"1 1 1\n1 1 5\n")
    (path / "features.tsv").write_text("g\n")
    (path / "barcodes.tsv.gz").write_bytes(repeated(b"ab\n"))  # the other two are as they should be


def zarr_chunk(path, codec, packed):
    array = annotated(path) / "X"
    place = array / ".zarray"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"compressor": {"id": codec}}))
    (array / "0.0").write_bytes(packed)


def packed(piece):
    """Make a maker of a text that is one piece again and again."""
    return lambda path: path.write_bytes(repeated(piece))


def zarr_texts(path):
    array = annotated(path) / "obs" / "_index"
    place = array / ".zarray"
    n = 1 << 27 >> SHIFT
    text = {"shape": [3], "chunks": [n], "compressor": {"id": "zlib", "level": 1}}
    place.write_text(json.dumps(json.loads(place.read_text()) | text))
    (array / "0").write_bytes(deflated(b"\x02\0\0\0ab", 6 * n, struct.pack("<I", n)))


def zarr_tiny_chunks(path):
    place = annotated(path) / "X" / ".zarray"
    place.write_text(
        json.dumps(json.loads(place.read_text()) | {"shape": [9000, 9000], "chunks": [1, 1], "dtype": "|i1"})
    )


def streamed(path):
    return survey(open_counts(path))


TABLES = {
    "names.h5ad": h5ad_names,
    "column.h5ad": h5ad_uns,
    "attribute.h5ad": h5ad_attribute,
    "chunk.h5ad": h5ad_chunk,
    "sparse_chunk.h5ad": h5ad_sparse_chunk,
    "tiny_chunks.h5ad": h5ad_tiny_chunks,
    "wide.h5ad": h5ad_shape,
    "tall.h5ad": lambda path: h5ad_shape(path, (10**11, 3)),
    "long_row.h5ad": h5ad_long_row,
    "labels.h5ad": h5ad_labels,
    "barcodes.h5": tenx,
    "rows.csv.gz": packed(b"1,1,1,1,1,1,1,1\n" if SHIFT else b"0\n"),  # a million rows take seconds
    "names.csv.gz": packed(b"ab,0\n"),
    "wide.csv.gz": packed(b"ab,"),
    "quoted.csv.gz": packed(b'"a\n",'),
    "label.csv": csv_label,
    "ones.npz": npz_ones,
    "sparse.npz": npz_sparse,
    "bz2.npz": npz_bz2,
    "entries.mtx.gz": market,
    "wide.mtx.gz": lambda path: path.write_bytes(gzip.compress(MARKET + b"3 900000000 1\n1 1 1\n")),
    "folder": folder_names,
    "zlib.zarr": lambda path: zarr_chunk(path, "zlib", deflated(b"\0")),
    "bz2.zarr": lambda path: zarr_chunk(path, "bz2", bz2.compress(bytes(BLOCK)) * (SIZE // BLOCK)),
    "zstd.zarr": lambda path: zarr_chunk(path, "zstd", Zstd(1).encode(np.zeros(1 << 30 >> SHIFT, np.uint8))),
    "texts.zarr": zarr_texts,
    "tiny_chunks.zarr": zarr_tiny_chunks,
}

STREAMED = [
    f"{name}.h5ad" for name in ["column", "chunk", "sparse_chunk", "tiny_chunks", "wide", "tall", "long_row"]
]
STREAMED += ["zlib.zarr", "bz2.zarr", "zstd.zarr"]
CASES = [*((name, read_table) for name in TABLES), *((name, streamed) for name in STREAMED)]


def outcome(read, path):
    """What a reader says: refused, or what else happened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except BadFileError as error:
            by_allocator = isinstance(error.__cause__, MemoryError) or "llocate" in str(error)
            return f"out of memory: {error}" if by_allocator else f"refused: {error}"
        except BaseException as error:
            return repr(error)
    return "read"


def main(names):
    """Make and read the files named, under the cap; prints JSON."""
    untrusted.ALWAYS_ALLOWED >>= SHIFT
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, name) for name in dict.fromkeys(names)}
        for name, path in paths.items():
            TABLES[name](path)
        plain = Path(folder, "plain.h5ad")
        with annotated(plain):
            pass
        read_table(plain)
        streamed(plain)
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (CAP // 3 if SHIFT else CAP),) * 2)
        for name, read in CASES:
            if name in paths:
                line = {"name": name, "reader": read.__name__, "bytes": _bytes(paths[name])}
                sys.stdout.write(json.dumps(line | {"outcome": outcome(read, paths[name])}) + "\n")
                sys.stdout.flush()


def _bytes(path):
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--small"] or list(TABLES))
