"""Words counted in folders of texts and in columns of tables."""

import gzip

import pytest

from log1pnmf._common.safe_files import BadFileError
from log1pnmf.counts.read import format_of, read_table


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
