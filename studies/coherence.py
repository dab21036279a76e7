"""Which order of words gives the most coherent lists? NPMI of the first ten words, in other documents.

    python -m studies.coherence         # about two CPU minutes

300 BBC articles, 300 manual pages of SciPy, and the first 40 words of 600 of them; K = 8; means over three
random parts. Words are in at least three documents of the part or, in every second column, in at least
2% of them (every program is fitted again). In brackets: in how many of the documents a listed word is.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from benchmarks.data import DATA
from scipy import sparse
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from log1pnmf import datasets, fit_log1p_nmf
from log1pnmf.analysis.topics import npmi
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.ranking import ORDERS, ranking_of

K, N_TOP, N_PARTS = 8, 10, 3
LINKS = (0.001, 1.0, math.inf)
CORPORA = {"BBC": 300, "manual": 300, "first 40 words": 600}
RELEVANCE = 0.6  # lambda of LDAvis


def documents(name: str) -> sparse.csr_array:
    """Return the counts of a corpus."""
    if name == "BBC":
        import anndata

        return sparse.csr_array(anndata.read_h5ad(DATA / "bbc_news.h5ad").X)
    texts = [
        " ".join(text.split()[: None if name == "manual" else 40]) for text in datasets.manual_pages().texts
    ]
    words = CountVectorizer(stop_words="english", max_df=0.3, token_pattern="[a-z]{3,}")
    return sparse.csr_array(words.fit_transform(texts))


def orders(counts: sparse.csr_array, seed: int) -> dict[str, np.ndarray]:
    """Return scores of words x topics, larger first, of every program and order."""
    lda = LatentDirichletAllocation(K, max_iter=15, random_state=seed).fit(counts).components_.T
    found = {
        "NMF of tf-idf, weight": NMF(K, init="nndsvd", max_iter=1000)
        .fit(TfidfTransformer().fit_transform(counts))
        .components_.T,
        "LDA, weight": lda,
    }
    frequency = np.asarray(counts.sum(axis=0)).ravel() / counts.sum()
    for c in LINKS:
        fit = fit_log1p_nmf(counts, K, c=c, tol=1e-6, random_state=seed, n_jobs=1)
        ranking = ranking_of(fit)
        for by in ORDERS:
            more = ranking.weight if by == "weight" else ranking.log2_fold_change
            found[f"c = {c:g}, {by}"] = np.where(more > 0.0, getattr(ranking, by), -np.inf)
    found["LDA, relevance"] = _relevance(lda, frequency)
    found["c = inf, relevance"] = _relevance(fit.factors, frequency)
    return found


def _relevance(weights: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    share = weights / weights.sum(axis=0) + 1e-12
    return np.log(share) - (1.0 - RELEVANCE) * np.log(frequency)[:, None]


def main() -> None:
    """Fit, judge, and print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    found: dict[str, dict[tuple[str, float], list[tuple[float, float]]]] = {}
    for name, n in CORPORA.items():
        counts = documents(name)
        for seed in range(N_PARTS):
            order = np.random.default_rng(seed).permutation(counts.shape[0])
            part, others = counts[order[:n]], counts[order[n:]]
            frequent = (part > 0).sum(axis=0)
            for least in (3.0, 0.02 * n):
                kept = np.flatnonzero(frequent >= least)
                fitted, held = part[:, kept], Counts.from_any(others[:, kept])
                fitted = fitted[fitted.sum(axis=1) > 0]
                for title, scores in orders(fitted, seed).items():
                    tops = np.argsort(-scores, axis=0, kind="stable")[:N_TOP].T
                    value = float(np.nanmean([npmi(held, top) for top in tops]))
                    cell = found.setdefault(title, {}).setdefault((name, float(least > 3.0)), [])
                    cell.append((value, float(frequent[kept][tops].mean())))
    print("| program, order |", " | ".join(f"{name} | {name}, min_df = 2%" for name in CORPORA), "|")
    print("|---" * (1 + 2 * len(CORPORA)), "|", sep="")
    for title, cells in found.items():
        means = (np.mean(values, axis=0) for values in cells.values())
        print(f"| {title} |", " | ".join(f"{value:.2f} ({n:.0f})" for value, n in means), "|")


if __name__ == "__main__":
    main()
