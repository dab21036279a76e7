"""No way out of a file: what is read is inside of it, and it is a file."""

import json
import os
import shutil
import warnings

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

from log1pnmf import Log1pNMF
from log1pnmf._common.archive import to_tree
from log1pnmf._common.safe_files import BadFileError, MemoryLimit, parse_json
from log1pnmf.cli.exchange import read_r_list
from log1pnmf.cli.run_folder import RunFolder, RunRecord, Source
from log1pnmf.counts.chunks import open_counts
from log1pnmf.counts.read import read_table, read_whole

SECRET = "the secret"
TEXT = h5py.string_dtype()


def whole(path):
    """What --write-h5ad copies."""
    return read_whole(path, MemoryLimit(path))


def annotated():
    obs = pd.DataFrame({"kind": pd.Categorical(["a", "b", "a"])}, index=["x", "y", "z"])
    return anndata.AnnData(X=np.eye(3, dtype=np.float32), obs=obs, uns={"kept": np.arange(3)})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with one table as t.h5ad and as t.zarr."""
    place = tmp_path_factory.mktemp("written")
    annotated().write_h5ad(place / "t.h5ad")
    group = zarr.open_group(str(place / "t.zarr"), mode="w", zarr_format=2)
    anndata.io.write_elem(group, "/", annotated())
    return place


@pytest.fixture
def elsewhere(tmp_path):
    """A file that nobody asked for."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file.create_dataset("names", data=[SECRET] * 3, dtype=TEXT)
        file["fixed"] = np.array([SECRET.encode()] * 3)
        file.create_group("group")["names"] = file["names"]
    (tmp_path / "secret.bin").write_bytes(SECRET.encode() * 3)
    return tmp_path


def link(file, name, folder):
    file[name] = h5py.ExternalLink(str(folder / "secret.h5"), "/names")


def storage(file, name, folder):
    place = [(str(folder / "secret.bin"), 0, 30)]
    file.create_dataset(name, shape=(3,), dtype="S10", external=place)


def virtual(file, name, folder):
    layout = h5py.VirtualLayout(shape=(3,), dtype="S10")
    layout[:] = h5py.VirtualSource(str(folder / "secret.h5"), "fixed", shape=(3,))
    file.create_virtual_dataset(name, layout)


def soft(file, name, folder):
    link(file, "/way", folder)
    file[name] = h5py.SoftLink("/way")


def inside(group, where):
    """The thing itself in a group, in place of a part of it or beside."""

    def forge(file, way, folder):
        if where in file[group]:
            del file[group][where]
        else:
            file[group].attrs["column-order"] = [where]
        way(file, f"{group}/{where}", folder)

    return forge


def named(group, attribute):
    """A name that leads to it, at the root of the file."""

    def forge(file, way, folder):
        way(file, "/leak", folder)
        file[group].attrs[attribute] = "/leak" if attribute == "_index" else ["/leak"]

    return forge


def legacy(kind):
    """Categories as old files have them: a reference or a path in an attribute."""

    def forge(file, way, folder):
        del file["obs/kind"]
        way(file, "/leak", folder)
        codes = file.create_dataset("obs/kind", data=np.zeros(3, dtype=np.int8))
        if kind == "reference" and not isinstance(file.get("/leak", getlink=True), h5py.HardLink):
            pytest.skip("only objects of the file itself can be referred to")
        codes.attrs["categories"] = file["/leak"].ref if kind == "reference" else "/leak"

    return forge


FORGERIES = {
    "a column": (inside("obs", "extra"), (read_table, whole)),
    "an index": (inside("obs", "_index"), (read_table, whole)),
    "features": (inside("var", "_index"), (read_table, whole, open_counts)),
    "categories": (inside("obs/kind", "categories"), (read_table, whole)),
    "name of a column": (named("obs", "column-order"), (read_table, whole)),
    "name of an index": (named("obs", "_index"), (read_table, whole)),
    "name of features": (named("var", "_index"), (read_table, whole, open_counts)),
    "old categories by reference": (legacy("reference"), (read_table, whole)),
    "old categories by name": (legacy("name"), (read_table, whole)),
    "something else": (inside("uns", "kept"), (whole,)),
    "counts": (inside("/", "X"), (read_table, whole, open_counts)),
}


@pytest.mark.parametrize("way", [link, storage, virtual, soft])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_part_of_an_h5ad_file_leads_elsewhere(elsewhere, written, forgery, way):
    path = shutil.copy(written / "t.h5ad", elsewhere)
    forge, readers = FORGERIES[forgery]
    with h5py.File(path, "r+") as file:
        forge(file, way, elsewhere)
    for read in readers:
        with pytest.raises(BadFileError) as caught:
            read(path)
        assert SECRET not in str(caught.value)
        assert "not read" in str(caught.value)


def test_old_categories_inside_of_the_table_are_read(tmp_path):
    path = tmp_path / "t.h5ad"
    annotated().write_h5ad(path)
    with h5py.File(path, "r+") as file:
        del file["obs/kind"]
        file["obs"].attrs["encoding-version"] = "0.1.0"
        file["obs/kind"] = np.array([0, 1, 0], dtype=np.int8)
        file.create_dataset("obs/__categories/kind", data=["a", "b"], dtype=TEXT)
        file["obs/__categories/kind"].attrs["ordered"] = False
        file["obs/kind"].attrs["categories"] = file["obs/__categories/kind"].ref
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_table(path).labels("kind").tolist() == ["a", "b", "a"]


def test_everything_that_anndata_holds_is_read(tmp_path):
    adata = annotated()
    adata.uns |= {
        "word": "one",
        "words": np.array([["a", "b"], ["c", "d"]], dtype=object),
        "ranked": np.array([("x", 1.0), ("y", 2.0)], dtype=[("names", "O"), ("scores", "f8")]),
        "nested": {"number": 3, "flag": True},
    }
    adata.obs["number"], adata.obs["maybe"] = [1.5, 2.5, 3.5], pd.array([1, None, 3], dtype="Int64")
    adata.obsm["X_pca"], adata.layers["counts"] = np.ones((3, 2)), adata.X.copy()
    adata.raw = adata
    adata.write_h5ad(tmp_path / "t.h5ad", compression="gzip")
    again = whole(tmp_path / "t.h5ad")
    assert again.uns["word"] == "one"
    assert again.uns["words"].tolist() == [["a", "b"], ["c", "d"]]
    assert again.uns["ranked"]["names"].tolist() == ["x", "y"]
    assert again.obs["maybe"].isna().tolist() == [False, True, False]
    for layer in (None, "counts", "raw"):
        assert read_table(tmp_path / "t.h5ad", layer=layer).shape == (3, 3)


@pytest.fixture
def store(tmp_path, written):
    return shutil.copytree(written / "t.zarr", tmp_path / "t.zarr")


ENTRIES = (read_table, whole, open_counts)


@pytest.mark.parametrize("what", ["X", "X/0.0", "uns/kept/.zarray", "var"])
def test_links_in_zarr_folders(store, what):
    (store / what).rename(store.parent / "moved")
    (store / what).symlink_to(store.parent / "moved")
    for read in ENTRIES:
        with pytest.raises(BadFileError, match="is a link"):
            read(store)


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "vlen-bytes", "vlen-array", "bz2", "lzma"])
def test_codecs_that_are_not_known_to_be_safe(store, codec):
    place = store / "var/_index/.zarray"
    text = json.dumps(json.loads(place.read_text()) | {"filters": [{"id": codec}]})
    place.write_text(text.replace("pickle", "\\u0070ickle"))  # as JSON may have it
    for read in ENTRIES:
        with pytest.raises(BadFileError, match=f"{codec}.*never loaded"):
            read(store)


def test_a_summary_that_says_other_things_is_not_believed(store):
    summary = {"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}}}
    about = json.loads((store / "X" / ".zarray").read_text()) | {"filters": [{"id": "pickle"}], "dtype": "|O"}
    (store / ".zmetadata").write_text(json.dumps(summary | {"metadata": {"X/.zarray": about}}))
    assert read_table(store).shape == (3, 3)


def test_names_that_leave_a_zarr_group(store):
    place = store / "obs" / ".zattrs"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"column-order": ["../var/_index"]}))
    for read in ENTRIES:
        with pytest.raises(BadFileError, match="leads out of it"):
            read(store)


def test_both_layouts_of_zarr_are_read(tmp_path):
    for version in (2, 3):
        path = tmp_path / f"{version}.zarr"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            anndata.io.write_elem(zarr.open_group(str(path), mode="w", zarr_format=version), "/", annotated())
            assert read_table(path).sample_names.tolist() == ["x", "y", "z"]
            assert open_counts(path).shape == (3, 3)
            assert whole(path).uns["kept"].tolist() == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.h5ad", "t.h5", "t.mtx", "t.npz", "t.npy", "t.zarr"])
def test_pipes_are_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for read in (read_table, open_counts):
        with pytest.raises(BadFileError, match="a pipe"):
            read(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_pipes_beside_other_files_and_devices(tmp_path, store):
    (tmp_path / "t.csv").symlink_to(os.devnull)
    with pytest.raises(BadFileError, match="a device"):
        read_table(tmp_path / "t.csv")
    (tmp_path / "matrix.mtx").write_text("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 5\n")
    (tmp_path / "barcodes.tsv").write_text("x\n")
    os.mkfifo(tmp_path / "features.tsv")
    with pytest.raises(BadFileError, match="a pipe"):
        read_table(tmp_path)
    os.mkfifo(tmp_path / "LL.csv")
    with pytest.raises(BadFileError, match="a pipe"):
        read_r_list(tmp_path)
    os.mkfifo(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="not a file"):
        Log1pNMF.load(tmp_path / "model.npz")
    os.mkfifo(store / "X" / "1.0")
    with pytest.raises(BadFileError, match="a pipe"):
        read_table(store)


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_json_that_is_nested_deeply(tmp_path, depth, store):
    content = "[" * depth + "]" * depth
    with pytest.raises(BadFileError, match="nested"):
        parse_json(content, "file")
    (tmp_path / "run.json").write_text(f'{{"format": {content}}}')
    with pytest.raises(BadFileError, match="nested"):
        RunFolder.open(tmp_path)
    (store / "uns" / ".zattrs").write_text(f'{{"encoding-type": {content}}}')
    with pytest.raises(BadFileError, match="nested"):
        read_table(store)


@pytest.mark.parametrize("name", ["../secret.npz", "/secret.npz", "models/../../secret.npz"])
def test_a_run_does_not_say_where_else_to_read(tmp_path, name):
    asked = {"command": "", "created": "", "versions": {}, "source": Source("x.csv"), "source_format": "csv"}
    record = RunRecord(**asked, reading={}, shape=(1, 1), parameters={}, models=(name,))
    (tmp_path / "run.json").write_text(json.dumps(to_tree(record)))
    with pytest.raises(BadFileError, match="leads out of it"):
        RunFolder.open(tmp_path)


def test_underscores_belong_to_names_and_not_to_numbers(tmp_path):
    for header, features in ((",a,b", ["a", "b"]), ("a,b,c", ["b", "c"])):
        (tmp_path / "t.csv").write_text(f"{header}\n1_1,1,0\n1_2,2,5\n")
        table = read_table(tmp_path / "t.csv")
        assert table.sample_names.tolist() == ["1_1", "1_2"]
        assert table.feature_names.tolist() == features
    (tmp_path / "t.csv").write_text("cell,a,b\nx,1,0\ny,1_000,5\n")
    with pytest.raises(BadFileError, match="'1_000' in row 3"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("limit", ["plausible", "free"])
def test_max_memory_raises_what_a_file_may_take(tmp_path, monkeypatch, limit):
    if limit == "plausible":
        monkeypatch.setattr("log1pnmf._common.safe_files.ALWAYS_ALLOWED", 1 << 20)
    else:
        monkeypatch.setattr("log1pnmf._common.safe_files.free_memory", lambda: 1 << 20)
    np.savez_compressed(tmp_path / "t.npz", counts=np.eye(2000, dtype=np.int8))
    with pytest.raises(BadFileError, match="--max-memory"):
        read_table(tmp_path / "t.npz")
    assert read_table(tmp_path / "t.npz", max_memory="1GB").shape == (2000, 2000)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["native", "streaming"])
def test_the_command_copies_nothing_from_elsewhere(elsewhere, engine, capsys):
    main = pytest.importorskip("log1pnmf.cli.app").run
    path, out = elsewhere / "t.h5ad", elsewhere / "out.h5ad"
    annotated().write_h5ad(path)
    with h5py.File(path, "r+") as file:
        if engine == "native":
            virtual(file, "uns/leak", elsewhere)
        else:
            link(file, "obs/leak", elsewhere)
            file["obs"].attrs["column-order"] = ["leak"]
    asked = ["fit", str(path), "-k", "1", "--set", "max_iter=2", "--no-report", "-o", str(elsewhere / "run")]
    copied = ["--write-h5ad", str(out)] if engine == "native" else []
    assert main([*asked, "--engine", engine, *copied]) != 0
    said = "".join(capsys.readouterr())
    assert "not read" in said
    assert SECRET not in said
    assert not out.exists()


@pytest.mark.parametrize(("group", "read"), [("obs", read_table), ("uns/more", whole)])
def test_groups_that_hold_themselves_are_refused(tmp_path, group, read):
    annotated().write_h5ad(tmp_path / "circle.h5ad")
    with h5py.File(tmp_path / "circle.h5ad", "a") as file:
        file["uns/more/within"] = 1
        file[f"{group}/again"] = file[group]  # what reads it to the end would never end
    with pytest.raises(BadFileError, match=f"{group}/again leads back into itself"):
        read(tmp_path / "circle.h5ad")
