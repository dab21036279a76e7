"""Texts on the command line: from a folder or a column to topics, and new texts with the same vocabulary."""

import csv
import json

import numpy as np
import pytest

from log1pnmf import Log1pNMF
from log1pnmf.counts.read import read_table
from log1pnmf.fitting.new_samples import project

QUICK = ["--set", "tol=1e-3", "--jobs", "1", "--no-report"]
THEMES = {"sea": "sail mast wind wave harbour crew", "kitchen": "bread oven flour butter salt knife"}


def made_up(n):
    """Texts about one of two themes, with words of their own and words of all."""
    rng, texts, themes = np.random.default_rng(0), [], []
    for i in range(n):
        themes.append(list(THEMES)[i % 2])
        words = [*THEMES[themes[-1]].split(), "the", "and", f"rare{i // 2}"]
        texts.append(" ".join(rng.choice(words, size=20)))
    return texts, themes


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Made-up texts: a folder of them, the same as a table, and a folder of new ones."""
    place = tmp_path_factory.mktemp("corpus")
    texts, themes = made_up(60)
    for folder, chosen in (("old", range(50)), ("new", range(58, 60))):
        (place / folder).mkdir()
        for i in chosen:
            (place / folder / f"text{i:02d}.txt").write_text(texts[i], encoding="utf-8")
    with open(place / "old.csv", "w", newline="", encoding="utf-8") as file:
        rows = ([f"text{i:02d}", themes[i], texts[i]] for i in range(50))
        csv.writer(file).writerows([["name", "theme", "body"], *rows])
    return place


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_folder_and_a_column_give_the_same_topics(call, corpus, tmp_path):
    options = ["-k", 3, "-c", "inf", "--stop-words", "english", "--min-samples", 2, *QUICK]
    folder = call("fit", corpus / "old", "-o", tmp_path / "a", *options)
    column = call(
        "fit", corpus / "old.csv", "--text", "body", "-o", tmp_path / "b", "--groupby", "theme", *options
    )
    assert folder.code == column.code == 0
    assert "CountVectorizer" in folder.out
    assert rows(tmp_path / "a" / "factors_c=inf.csv") == rows(tmp_path / "b" / "factors_c=inf.csv")
    names = [row[0] for row in rows(tmp_path / "a" / "loadings_c=inf.csv")]
    assert names == ["sample", *(f"text{i:02d}" for i in range(50))]
    words = [row[0] for row in rows(tmp_path / "a" / "factors_c=inf.csv")]
    assert "the" not in words
    reading = json.loads((tmp_path / "b" / "run.json").read_text())["reading"]
    assert (reading["text"], reading["stop_words"]) == ("body", "english")


def test_new_texts_are_read_with_the_vocabulary_of_the_fit(call, corpus, tmp_path):
    call("fit", corpus / "old", "-k", 3, "-o", tmp_path / "run", "--stop-words", "english", *QUICK)
    done = call("transform", tmp_path / "run", corpus / "new", "-o", tmp_path / "new.csv")
    assert "are not in the model and were ignored" in done.out
    assert "are not in the file and were set to zero" in done.out
    _, *body = rows(tmp_path / "new.csv")
    assert [row[0] for row in body] == [f"text{i}" for i in range(58, 60)]
    table = read_table(corpus / "new")
    model = Log1pNMF.load(tmp_path / "run" / "models" / "c=1.npz")
    place = {word: j for j, word in enumerate(table.feature_names)}
    values = table.counts.to_scipy().toarray()
    same = np.stack(
        [values[:, place[word]] if word in place else np.zeros(2) for word in model.feature_names_in_], axis=1
    )
    expected = project(model.fit_, same).loadings
    np.testing.assert_allclose(np.array([row[1:] for row in body], dtype=float), expected)
