"""Tables of counts: what is written is read again, for every format; what is filtered is said."""

import gzip
import os

import anndata
import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import mmwrite
from tests.fuzz.damage import write_tenx
from tests.tables import table_of

from log1pnmf._common.safe_files import BadFileError
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.read import filter_table, format_of, read_table
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import write_table

NAMED = ["t.h5ad", "t.zarr", "t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz", "t.npz", "folder"]
NAMELESS = ["t.mtx", "t.mtx.gz", "t.npy"]


def dense(table):
    return table.counts.to_scipy().toarray()


@st.composite
def count_arrays(draw):
    n, m = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    cells = st.sampled_from([0, 0, 0, 1, 2, 255, 256, 2**24 + 1, 2**31, 2**40])
    values = draw(st.lists(cells, min_size=n * m, max_size=n * m))
    return np.array(values, dtype=np.int64).reshape(n, m)


@pytest.mark.parametrize("name", NAMED + NAMELESS)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=count_arrays())
def test_what_is_written_is_read_again(tmp_path, name, values):
    table = table_of(values)
    path = tmp_path / name
    lost = write_table(table, path, force=True)
    again = read_table(path)
    np.testing.assert_array_equal(dense(again), values)
    if name in NAMED:
        assert again.sample_names.tolist() == table.sample_names.tolist()
        assert again.feature_names.tolist() == table.feature_names.tolist()
        assert not lost
    else:
        assert again.feature_names is None
        assert any("names" in text for text in lost)


@pytest.mark.parametrize("name", ["t.h5ad", "t.zarr", "t.npz"])
def test_labels_are_kept(tmp_path, name):
    columns = {"type": np.array(["a", "b", "a"]), "dose": np.array([0.5, 1.0, 2.0])}
    write_table(table_of(np.eye(3), columns=columns), tmp_path / name)
    again = read_table(tmp_path / name)
    assert again.labels("type").tolist() == ["a", "b", "a"]
    assert again.labels("dose").tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("name", ["t.csv", "folder", "t.mtx"])
def test_formats_without_labels_say_so(tmp_path, name):
    lost = write_table(table_of(np.eye(2), columns={"type": np.array(["a", "b"])}), tmp_path / name)
    assert any("type" in text for text in lost)


def test_same_content_is_the_same_file(tmp_path):
    for name in ("a.csv.gz", "b.csv.gz"):
        write_table(table_of(np.eye(3)), tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    write_table(table_of([[1, 0], [2, 3]]), tmp_path / "t.npz")
    assert sparse.load_npz(tmp_path / "t.npz").toarray().tolist() == [[1, 0], [2, 3]]


def test_expected_counts_keep_their_fractions(tmp_path):
    values = np.array([[0.25, 0.0], [1.5, 3.0]])
    with pytest.warns(UserWarning, match="non-integer"):
        table = table_of(values)
    for name in ("t.csv", "t.mtx", "t.npz", "t.h5ad"):
        write_table(table, tmp_path / name)
        again = read_table(tmp_path / name, fractions="allow")
        np.testing.assert_array_equal(dense(again), values)
        assert any("non-integer" in note for note in again.notes)


def test_transpose_exchanges_counts_and_names(tmp_path):
    write_table(table_of([[1, 0, 4], [2, 3, 0]]), tmp_path / "t.csv")
    turned = read_table(tmp_path / "t.csv", transpose=True)
    assert dense(turned).tolist() == [[1, 2], [0, 3], [4, 0]]
    assert turned.sample_names.tolist() == ["g0", "g1", "g2"]


LAYOUTS = {
    "names everywhere": ("cell,a,b\nx,1,0\ny,2,3\n", ["x", "y"], ["a", "b"]),
    "R's write.csv": ('"","a","b"\n"x",1,0\n"y",2,3\n', ["x", "y"], ["a", "b"]),
    "R's write.table": ("a,b\nx,1,0\ny,2,3\n", ["x", "y"], ["a", "b"]),
    "pandas' numbers as index": (",a,b\n0,1,0\n1,2,3\n", ["0", "1"], ["a", "b"]),
    "numbers as names": ("id,a,b\n17,1,0\n18,2,3\n", ["17", "18"], ["a", "b"]),
    "header only": ("a,b\n1,0\n2,3\n", None, ["a", "b"]),
    "index only": ("x,1,0\ny,2,3\n", ["x", "y"], None),
    "numbers only": ("1,0\n2,3\n", None, None),
    "semicolons": ("cell;a;b\nx;1;0\ny;2;3\n", ["x", "y"], ["a", "b"]),
    "tabs": ("cell\ta\tb\nx\t1\t0\ny\t2\t3\n", ["x", "y"], ["a", "b"]),
    "windows": ("\ufeffcell,a,b\r\nx,1,0\r\ny,2,3\r\n", ["x", "y"], ["a", "b"]),
    "empty lines": ("\ncell,a,b\n\nx,1,0\ny,2.0,3e0\n\n", ["x", "y"], ["a", "b"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_text_is_told(tmp_path, layout):
    text, samples, features = LAYOUTS[layout]
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    table = read_table(tmp_path / "t.csv")
    assert dense(table).tolist() == [[1, 0], [2, 3]]
    assert (None if table.sample_names is None else table.sample_names.tolist()) == samples
    assert (None if table.feature_names is None else table.feature_names.tolist()) == features
    assert len(table.notes) == 2


def test_columns_of_text_are_labels(tmp_path):
    (tmp_path / "t.csv").write_text("cell,a,type,b\nx,1,alpha,0\ny,2,beta,3\n")
    table = read_table(tmp_path / "t.csv")
    assert dense(table).tolist() == [[1, 0], [2, 3]]
    assert table.labels("type").tolist() == ["alpha", "beta"]
    assert any("type" in note for note in table.notes)


@pytest.mark.parametrize("version", [2, 3])
def test_tenx_h5(tmp_path, version):
    values = np.array([[1, 0, 2], [0, 3, 0]])
    write_tenx(tmp_path / "t.h5", values, version=version)
    table = read_table(tmp_path / "t.h5")
    assert dense(table).tolist() == values.tolist()
    assert table.feature_names.tolist() == ["GENE0", "GENE1", "GENE2"]
    assert table.sample_names.tolist() == ["CELL0-1", "CELL1-1"]


def test_tenx_other_features_are_left_out_and_said(tmp_path):
    kinds = ["Gene Expression", "Antibody Capture", "Gene Expression"]
    write_tenx(tmp_path / "t.h5", np.array([[1, 7, 2], [0, 8, 3]]), version=3, kinds=kinds)
    table = read_table(tmp_path / "t.h5")
    assert dense(table).tolist() == [[1, 2], [0, 3]]
    assert any("1 x Antibody Capture" in note for note in table.notes)
    write_tenx(tmp_path / "t.h5", np.eye(3, dtype=int), version=3, symbols=["A", "B", "A"])
    assert read_table(tmp_path / "t.h5").feature_names.tolist() == ["A (ENSG0)", "B", "A (ENSG2)"]


@pytest.mark.parametrize(("features", "packed"), [("features.tsv", True), ("genes.tsv", False)])
@pytest.mark.parametrize("prefix", ["", "GSM1_"])
def test_tenx_folder(tmp_path, features, packed, prefix):
    def write(name, text):
        if packed:
            (tmp_path / f"{prefix}{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (tmp_path / f"{prefix}{name}").write_text(text)

    mmwrite(tmp_path / "raw.mtx", sparse.coo_matrix(np.array([[1, 0], [0, 3], [2, 0]])), field="integer")
    write("matrix.mtx", (tmp_path / "raw.mtx").read_text())
    os.remove(tmp_path / "raw.mtx")
    kinds = "\tGene Expression" if features == "features.tsv" else ""
    write(features, "".join(f"ENSG{j}\tGENE{j}{kinds}\n" for j in range(3)))
    write("barcodes.tsv", "AAA-1\nCCC-1\n")
    for path in (tmp_path, next(tmp_path.glob("*matrix.mtx*"))):
        table = read_table(path)
        assert dense(table).tolist() == [[1, 0, 2], [0, 3, 0]]
        assert table.sample_names.tolist() == ["AAA-1", "CCC-1"]
        assert table.feature_names.tolist() == ["GENE0", "GENE1", "GENE2"]


def test_layer_with_counts_stands_in_for_x(tmp_path):
    counts = sparse.csr_matrix(np.array([[1.0, 0.0], [2.0, 3.0]], dtype=np.float32))
    adata = anndata.AnnData(X=counts.log1p(), layers={"counts": counts, "twice": 2 * counts})
    adata.write_h5ad(tmp_path / "t.h5ad")
    table = read_table(tmp_path / "t.h5ad")
    assert dense(table).tolist() == [[1, 0], [2, 3]]
    assert any("counts" in note for note in table.notes)
    assert dense(read_table(tmp_path / "t.h5ad", layer="twice")).tolist() == [[2, 0], [4, 6]]
    with pytest.raises(ValueError, match="non-integer"):
        read_table(tmp_path / "t.h5ad", layer="X")


def test_raw_and_missing_labels(tmp_path):
    adata = anndata.AnnData(X=np.array([[1, 0, 5], [2, 3, 0]], dtype=np.float32))
    adata.obs["type"] = ["a", None]
    adata.obs["type"] = adata.obs["type"].astype("category")
    adata.raw = adata
    adata = adata[:, :2].copy()
    adata.write_h5ad(tmp_path / "t.h5ad")
    assert read_table(tmp_path / "t.h5ad", layer="raw").shape == (2, 3)
    assert read_table(tmp_path / "t.h5ad").labels("type").tolist() == ["a", "NA"]


@given(
    seed=st.integers(0, 1000),
    min_samples=st.integers(0, 4),
    min_counts=st.integers(0, 6),
    min_features=st.integers(0, 4),
)
def test_filters_keep_their_word(seed, min_samples, min_counts, min_features):
    values = np.random.default_rng(seed).poisson(0.6, (9, 7))
    keep = (values.sum(axis=1) >= min_counts) & ((values > 0).sum(axis=1) >= min_features)
    features = (values[keep] > 0).sum(axis=0) >= min_samples
    table = table_of(values, columns={"n": np.arange(9)})
    options = {"min_samples": min_samples, "min_counts": min_counts, "min_features": min_features}
    if not keep.any() or not features.any():
        with pytest.raises(ValueError, match="left nothing"):
            filter_table(table, **options)
        return
    filtered = filter_table(table, **options)
    assert dense(filtered.table).tolist() == values[keep][:, features].tolist()
    assert filtered.table.sample_columns["n"].tolist() == np.flatnonzero(keep).tolist()
    assert filtered.table.sample_names.tolist() == [f"s{i}" for i in np.flatnonzero(keep)]
    assert filtered.table.feature_names.tolist() == [f"g{j}" for j in np.flatnonzero(features)]
    words = {"min_samples": "features in fewer than {} samples: {} of 7 removed"}
    words["min_counts"] = "samples with fewer than {} counts: "
    assert len(filtered.report) == sum(value > 0 for value in options.values())
    if min_samples:
        assert words["min_samples"].format(min_samples, np.sum(~features)) in filtered.report
    assert not min_counts or any(
        one.startswith(words["min_counts"].format(min_counts)) for one in filtered.report
    )


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


@pytest.fixture
def texts(tmp_path):
    """Three texts in two folders, one packed."""
    for name, text in (("fruit/one", "Apple apple, a pear."), ("fruit/two", "pear plum the Pear")):
        path = tmp_path / "texts" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "texts" / "metal").mkdir()
    with gzip.open(tmp_path / "texts" / "metal" / "three.txt.gz", "wt", encoding="utf-8") as file:
        file.write("The iron; iron und Käse 42")
    (tmp_path / "texts" / ".hidden.txt").write_text("secret")
    (tmp_path / "texts" / "notes.md").write_text("not a text")
    return tmp_path / "texts"


def counted(table):
    """Words of every document, by name."""
    values = table.counts.to_scipy().toarray()
    return {
        str(name): {str(word): int(n) for word, n in zip(table.feature_names, row, strict=True) if n}
        for name, row in zip(table.sample_names, values, strict=True)
    }


def test_a_folder_of_texts(texts):
    assert format_of(texts) == "texts"
    table = read_table(texts)
    assert counted(table) == {
        "fruit/one": {"apple": 2, "pear": 1},
        "fruit/two": {"pear": 2, "plum": 1, "the": 1},
        "metal/three": {"the": 1, "iron": 2, "und": 1, "käse": 1, "42": 1},
    }
    assert table.labels("folder").tolist() == ["fruit", "fruit", "metal"]
    assert "CountVectorizer" in table.notes[0]


def test_stop_words_are_left_out(texts, tmp_path):
    assert "the" not in read_table(texts, stop_words="english").feature_names
    (tmp_path / "mine.lst").write_text("und\nKäse\n\n", encoding="utf-8")
    words = set(read_table(texts, stop_words=str(tmp_path / "mine.lst")).feature_names)
    assert words == {"apple", "pear", "plum", "the", "iron", "42"}


def test_a_column_of_a_table(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text('id,stars,review\na,5,"good, very\ngood"\nb,1,bad\n', encoding="utf-8")
    table = read_table(path, text="review")
    assert counted(table) == {"a": {"good": 2, "very": 1}, "b": {"bad": 1}}
    assert table.labels("stars").tolist() == ["5", "1"]
    tabs = tmp_path / "reviews.tsv"
    tabs.write_text("review\tstars\ngood, very good\t5\nbad\t1\n", encoding="utf-8")
    other = read_table(tabs, text="review")
    assert other.sample_names is None
    assert other.shape == (2, 3)


def test_a_folder_of_10x_stays_one(tmp_path):
    (tmp_path / "matrix.mtx").write_text("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 3\n")
    (tmp_path / "notes.txt").write_text("about the sample")
    assert format_of(tmp_path) == "10x folder"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("id,review\na,good\n", {"text": "reviw"}, "has no column 'reviw'; choose .*: id, review"),
        ("id,review\n", {"text": "review"}, "has no rows below its first line"),
        ("id,review\na,good, bad\n", {"text": "review"}, "3 cells in row 2, but 2 in the first; texts with"),
        ("id,review\na,!\n", {"text": "review"}, "has no words that are counted"),
        (b"id,review\na,\xff\xfe\n", {"text": "review"}, "is not text in UTF-8"),
        ("id,a\nx,1\n", {"stop_words": "english"}, "stop words are for texts"),
        ("id,review\na,good\n", {"text": "review", "stop_words": "klingon"}, "or a file with one word"),
    ],
)
def test_refused_tables(tmp_path, content, options, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadFileError, match=message):
        read_table(path, **options)


def test_refused_folders(texts, tmp_path):
    with pytest.raises(BadFileError, match=r"has no columns; leave --text review out"):
        read_table(texts, text="review")
    (texts / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFileError, match=r"bad\.txt is not text in UTF-8"):
        read_table(texts)
    (tmp_path / "counts.npy").write_bytes(b"1")
    with pytest.raises(BadFileError, match=r"a column of texts .* is one of a \.csv or \.tsv"):
        read_table(tmp_path / "counts.npy", text="review")
