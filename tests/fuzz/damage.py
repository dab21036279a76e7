"""Valid files of every format, and edits that damage them."""

import copy
import functools
import io
import itertools
import operator
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from scipy import sparse
from tests.tables import table_of

from log1pnmf import fit_log1p_nmf
from log1pnmf._common.archive import read_archive
from log1pnmf.cli.exchange import read_r_list, write_r_list
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.read import read_table
from log1pnmf.counts.write import write_table

KINDS = ("flip", "cut", "insert", "erase", "swell", "copy")
TELLING = (
    b"\0",
    b"\xff" * 4,
    b"\xff\xff\xff\x7f",
    b"-1",
    b"9" * 18,
    b"nan",
    b"\n",
    b"\x80\x02c",
    b"1e400",
    b"%",
)
"""What readers trip over: zeros, extremes of integers, numbers that overflow, the beginning of a pickle."""


@dataclass(frozen=True)
class Edit:
    """One change: what is done, where (as a fraction of the file), and with which bytes."""

    kind: str
    place: float
    payload: bytes

    def apply(self, content: bytes) -> bytes:
        i = int(self.place * len(content))
        after = i + len(self.payload)
        if self.kind == "flip" and content:
            i = min(i, len(content) - 1)
            return content[:i] + bytes([content[i] ^ (self.payload[0] or 1)]) + content[i + 1 :]
        if self.kind == "cut":
            return content[:i]
        if self.kind == "insert":
            return content[:i] + self.payload + content[i:]
        if self.kind == "erase":
            return content[:i] + content[after:]
        if self.kind == "swell":
            return content[:i] + self.payload + content[after:]
        return content[:i] + content[:after][-64:] + content[i:]


def damaged(content, edits):
    for edit in edits:
        content = edit.apply(content)
    return content


def random_edits(rng):
    return [
        Edit(
            KINDS[rng.integers(len(KINDS))],
            rng.random() ** (1 + 2 * (rng.random() < 0.5)),  # headers are at the beginning
            TELLING[rng.integers(len(TELLING))] if rng.random() < 0.5 else rng.bytes(1 + rng.integers(8)),
        )
        for _ in range(1 + rng.integers(3))
    ]


class Sample:
    """A valid file or folder of one format, its reader, and damaged copies of it."""

    def __init__(self, path, read=read_table, inside=False):
        self.path, self.read, self.inside = Path(path), read, inside
        self.parts = (
            sorted(p for p in self.path.rglob("*") if p.is_file()) if self.path.is_dir() else [self.path]
        )

    def write_damaged(self, folder, edits, which=0.0):
        """A damaged copy; in a folder one file is damaged, in an archive with `inside` one member."""
        target = Path(folder) / self.path.name
        part = self.parts[int(which * len(self.parts))]
        if self.path.is_dir():
            if target.exists():
                shutil.rmtree(target)
            shutil.copytree(self.path, target)
            place = target / part.relative_to(self.path)
        else:
            place = target
        content = part.read_bytes()
        place.write_bytes(self._rezipped(content, edits, which) if self.inside else damaged(content, edits))
        return target

    @staticmethod
    def _rezipped(content, edits, which):
        """Checksums are right again, so that the damage reaches the reader of the member."""
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
            members = old.infolist()
            chosen = members[int(which * len(members))]
            for member in members:
                data = old.read(member)
                new.writestr(member.filename, damaged(data, edits) if member is chosen else data)
        return out.getvalue()


def samples(folder):
    """One valid file of every format that is read, by name."""
    folder = Path(folder)
    values = np.random.default_rng(0).poisson(1.0, (12, 7))
    table, counts, made = table_of(values, {"type": np.array(["a", "b"] * 6)}), Counts.from_any(values), {}
    endings = ("csv", "tsv", "csv.gz", "mtx", "mtx.gz", "npy", "npz", "h5ad", "zarr")
    for name in (*(f"t.{ending}" for ending in endings), "tenx"):
        write_table(table, folder / name)
        made[name] = Sample(folder / name)
    made["t.npz inside"] = Sample(folder / "t.npz", inside=True)
    write_tenx(folder / "t.h5", counts.to_scipy().toarray())
    made["t.h5"] = Sample(folder / "t.h5")
    fit = fit_log1p_nmf(counts, 2, max_iter=2, random_state=0)
    fit.save(folder / "fit.npz")
    made["fit.npz"] = Sample(folder / "fit.npz", read_archive)
    made["fit.npz inside"] = Sample(folder / "fit.npz", read_archive, inside=True)
    write_r_list(fit, folder / "for_r", counts=counts)
    made["for_r"] = Sample(folder / "for_r", read_r_list)
    return made


def write_tenx(path, counts, *, version=3, kinds=None, symbols=None):
    """An HDF5 file of Cell Ranger: of version 3, or 2."""
    n, m = counts.shape
    turned = sparse.csr_array(counts.astype(np.int32))
    names = [name.encode() for name in symbols or [f"GENE{j}" for j in range(m)]]
    ids = [f"ENSG{j}".encode() for j in range(m)]
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix" if version == 3 else "GRCh38")
        for name in ("data", "indices", "indptr"):
            group.create_dataset(name, data=getattr(turned, name), compression="gzip")
        group["shape"], group["barcodes"] = [m, n], [f"CELL{i}-1".encode() for i in range(n)]
        if version == 3:
            types = [kind.encode() for kind in kinds or ["Gene Expression"] * m]
            for name, values in {"id": ids, "name": names, "feature_type": types}.items():
                group[f"features/{name}"] = values
        else:
            group["genes"], group["gene_names"] = ids, names


# ---------- metadata and arrays of another hand

VALUES = (None, -1, 0, 1, 2**62, 10**400, -0.5, 1e308, float("nan"), float("inf"), "x", "", True, [], [1], {})


def places(tree, path=()):
    """Every entry of nested metadata, groups included; of lists the first two."""
    for key in tree if isinstance(tree, dict) else range(min(2, len(tree))):
        yield (*path, key)
        if isinstance(tree[key], dict | list):
            yield from places(tree[key], (*path, key))


def changed(metadata, place, value):
    """Metadata with one entry changed; `...` removes it."""
    metadata = copy.deepcopy(metadata)
    tree = metadata
    for key in place[:-1]:
        tree = tree[key]
    if value is ...:
        del tree[place[-1]]
    else:
        tree[place[-1]] = value
    return metadata


def forged(array):
    """Give arrays in the place of another one."""
    yield array[..., None]
    yield array.ravel()[:-1]
    yield np.zeros((0, *array.shape[1:]), dtype=array.dtype)
    yield np.concatenate([array, array])
    yield np.asfortranarray(array)
    yield np.array(array.tolist(), dtype=np.str_)
    yield array.astype(">f8" if array.dtype.kind in "fi" else "S8")
    if array.dtype.kind in "fi":
        yield array.astype(np.complex128)
        yield array.astype(np.float32)
        yield -array - 1
        yield array * 0
        for value in (np.nan, np.inf, 1e308, 1e-320, -1.0):
            one = array.astype(np.float64)
            one.flat[-1] = value
            yield one
        yield np.full(array.shape, 2**62)


def strange(tree, every=1, spared=()):
    """Give every so many-th of the trees that differ in one entry, or lack it, with what was done to them."""
    cases = (
        (place, value)
        for place in places(tree)
        if place[0] not in spared
        for own in [functools.reduce(operator.getitem, place, tree)]
        for value in (..., *(forged(own) if isinstance(own, np.ndarray) else VALUES))
    )
    for place, value in itertools.islice(cases, every - 1, None, every):
        yield f"{place} = {value!r:.30}", changed(tree, place, value)
