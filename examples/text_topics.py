"""Topics of a collection of texts, with a scikit-learn pipeline: words -> counts -> Log1pNMF.

    python examples/text_topics.py                                  # SciPy's manual pages
    python examples/text_topics.py --path my_texts/ --topics 10     # one text per .txt file
    python examples/text_topics.py --path lines.txt --stem          # one text per line

c = inf is the usual topic model, where topics add up; with c = 1 a word of two topics is more frequent than
either alone would make it.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import Pipeline

from log1pnmf import Log1pNMF
from log1pnmf.datasets import manual_pages


def read_texts(path: Path) -> tuple[list[str], list[str]]:
    """Texts of a folder (.txt files, at any depth) or of a file (one per line), and what to call them."""
    if path.is_dir():
        files = sorted(path.rglob("*.txt"))
        if not files:
            raise SystemExit(f"{path} has no .txt files; pass a folder with one text per file")
        return [file.read_text(errors="replace") for file in files], [str(file) for file in files]
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines, [f"line {i}" for i in range(1, len(lines) + 1)]


def word_counter(stem: bool) -> CountVectorizer:
    """Counts words; with `stem` without their endings, so that "bake" and "baking" are one."""
    rare_and_common = {"min_df": 2, "max_df": 0.5}  # neither distinguishes topics
    if not stem:
        return CountVectorizer(stop_words="english", **rare_and_common)
    from snowballstemmer import stemmer  # pip install snowballstemmer

    stem_words = stemmer("english").stemWords
    words = CountVectorizer(stop_words="english").build_analyzer()
    return CountVectorizer(analyzer=lambda text: stem_words(words(text)), **rare_and_common)


def main(
    path: Path | None = None, *, n_topics: int = 8, c: float = 1.0, stem: bool = False
) -> list[list[str]]:
    """Fit, and print the top words of every topic; they are also returned."""
    if path is None:
        pages = manual_pages()
        texts, labels = pages.texts, pages.names
    else:
        texts, labels = read_texts(path)
    vectorizer = word_counter(stem)
    model = Log1pNMF(n_topics, c=c)
    pipeline = Pipeline([("words", vectorizer), ("topics", model)])
    loadings = pipeline.fit_transform(texts)

    words = vectorizer.get_feature_names_out()
    print(f"{len(texts):,} texts, {len(words):,} words, {n_topics} topics, c = {c:g}\n")
    table = model.top_features(8, feature_names=words)
    topics = [table["feature"][table["factor"] == f"k{k}"].tolist() for k in range(n_topics)]
    for k, top in enumerate(topics):
        best = int(np.argmax(loadings[:, k]))
        print(f"topic {k}: {', '.join(top)}\n         most in: {labels[best]}")
    if path is None:
        new = "Reject the null hypothesis if the p-value of the test is small, then minimize the objective."
        shares = pipeline.transform([new])[0]
        print(f"\nA text that was not in the fit: {new}")
        for k in np.argsort(-shares)[:2]:
            print(f"  loading {shares[k]:.2f} of topic {k} ({', '.join(topics[k][:3])})")
    return topics


if __name__ == "__main__":
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--path", type=Path, help="folder of .txt files, or file with one text per line")
    parser.add_argument("--topics", type=int, default=8, dest="n_topics")
    parser.add_argument("--c", type=float, default=1.0, help="shift of the link; inf: usual topic model")
    parser.add_argument("--stem", action="store_true", help="cut the endings of words (English)")
    main(**vars(parser.parse_args()))
