"""Fits by programs that one interpreter has: ``PYTHON others_worker.py JOBS``, see `studies.others`.

Imports nothing of this repository but the installed package, and that only for its own methods. Every method
returns loadings (samples x K), weights of the features (K x features), and a function that gives the means of
the training counts. Every job is done in a forked process, whose memory is its own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

Result = tuple[np.ndarray, np.ndarray, Callable[[], np.ndarray]]
Method = Callable[[sparse.csr_matrix, int, int], Result]

SEEDS = (0, 1, 2)
ENOUGH = 5.0
"""CPU seconds after which no further seed is tried."""
CPU_LIMIT = 120
"""CPU seconds that a job may take."""
LATE = ("cnmf",)
"""Programs that end at once in a fork if they have run before it (OpenMP): they are tried after it."""
RESULT = "result: "
"""Begins the lines that are meant for `studies.others`; programs may print others."""


def log1pnmf(c: float, **options: Any) -> Method:
    """Fit this package's model, with defaults for all that is not named."""

    def fit(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
        from log1pnmf import Log1pNMF

        model = Log1pNMF(n_components, c=c, random_state=seed, n_jobs=1, **options).fit(counts)
        sizes = model.fit_.size_factors
        return model.loadings_, model.components_, lambda: model.inverse_transform(model.loadings_, sizes)

    return fit


def sklearn_nmf(**options: Any) -> Method:
    """Fit scikit-learn's NMF to the counts."""

    def fit(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
        from sklearn.decomposition import NMF

        model = NMF(n_components, random_state=seed, max_iter=500, **options)
        loadings = model.fit_transform(counts)
        return loadings, model.components_, lambda: loadings @ model.components_

    return fit


def sklearn_log(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit scikit-learn's NMF to ``log(1 + count / size factor)``, as is usual for single cells."""
    from sklearn.decomposition import NMF

    sizes = _sizes(counts)
    logs = sparse.csr_matrix(sparse.diags(1.0 / sizes) @ counts)
    logs.data = np.log1p(logs.data)
    model = NMF(n_components, random_state=seed, max_iter=500)
    loadings = model.fit_transform(logs)
    return loadings, model.components_, lambda: sizes[:, None] * np.expm1(loadings @ model.components_)


def sklearn_tfidf(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit scikit-learn's NMF to tf-idf, as is usual for texts; it predicts no counts."""
    from sklearn.decomposition import NMF
    from sklearn.feature_extraction.text import TfidfTransformer

    model = NMF(n_components, random_state=seed, max_iter=500)
    loadings = model.fit_transform(TfidfTransformer().fit_transform(counts))
    return loadings, model.components_, lambda: np.full(counts.shape, np.nan)


def sklearn_lda(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit scikit-learn's LDA by variational Bayes."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(n_components, random_state=seed, max_iter=30)
    return _topics(counts, model.fit_transform(counts), model.components_)


def gensim_lda(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit gensim's LDA by online variational Bayes."""
    from gensim.matutils import corpus2dense
    from gensim.models import LdaModel

    corpus, words = _bags(counts)
    model = LdaModel(corpus, n_components, words, passes=10, minimum_probability=0.0, random_state=seed)
    return _topics(counts, corpus2dense(model[corpus], n_components).T, model.get_topics())


def gensim_nmf(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit gensim's online NMF (least squares)."""
    from gensim.matutils import corpus2dense
    from gensim.models.nmf import Nmf

    corpus, words = _bags(counts)
    model = Nmf(corpus, n_components, words, passes=10, normalize=False, random_state=seed)
    model.minimum_probability = 0.0
    loadings, weights = corpus2dense(model[corpus], n_components).T, model.get_topics()
    return loadings, weights, lambda: loadings @ weights


def tomotopy_lda(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit tomotopy's LDA by 200 rounds of Gibbs sampling."""
    import tomotopy

    model = tomotopy.LDAModel(k=n_components, seed=seed)
    for start, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        model.add_doc(np.repeat(counts.indices[start:end], counts.data[start:end].astype(int)).astype(str))
    model.train(200, workers=1)
    order = np.array([int(word) for word in model.used_vocabs])
    weights = np.zeros((n_components, counts.shape[1]))
    weights[:, order] = [model.get_topic_word_dist(k) for k in range(n_components)]
    return _topics(counts, np.array([doc.get_topic_dist() for doc in model.docs]), weights)


def glmpca(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit GLM-PCA with an intercept and one dimension less; loadings have signs."""
    from glmpca.glmpca import glmpca as fit

    np.random.seed(seed)  # noqa: NPY002  (the package draws from this generator)
    dense = counts.toarray().T
    found = fit(dense, n_components - 1, fam="poi")
    loadings, weights = found["factors"], found["loadings"]
    levels = found["coefX"] + np.log(dense.mean(axis=0))
    return loadings, weights.T, lambda: np.exp(levels + weights @ loadings.T).T


def fastglmpca(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit the Python version of fastglmpca, with an intercept and one dimension less."""
    import fastglmpca as package
    import torch

    torch.set_num_threads(1)
    model = package.poisson(
        counts, n_pcs=n_components - 1, seed=seed, device="cpu", progress_bar=False, return_model=True
    )
    return model.U * model.d, model.V.T, lambda: np.asarray(model.reconstruct_counts())


def nimfa(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit nimfa's NMF with the divergence (Poisson) and 200 iterations."""
    import nimfa as package

    np.random.seed(seed)  # noqa: NPY002  (the package draws from this generator)
    dense = counts.toarray()
    found = package.Nmf(dense, rank=n_components, max_iter=200, update="divergence", objective="div")()
    loadings, weights = np.asarray(found.basis()), np.asarray(found.coef())
    return loadings, weights, lambda: loadings @ weights


def cnmf(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit cNMF: the consensus of 20 fits."""
    import anndata
    from cnmf import cNMF

    data = anndata.AnnData(sparse.csr_matrix(counts, dtype=np.float64))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.h5ad"
        data.write_h5ad(path)
        run = cNMF(output_dir=folder, name="run")
        run.prepare(str(path), components=[n_components], n_iter=20, seed=seed)
        run.factorize()
        run.combine()
        run.consensus(n_components, density_threshold=0.5, show_clustering=False)
        usage, _, spectra, _ = run.load_results(n_components, 0.5)
    names = [str(j) for j in range(counts.shape[1])]
    return _topics(counts, usage.to_numpy(), spectra.T.reindex(columns=names, fill_value=0.0).to_numpy())


def hpfrec(counts: sparse.csr_matrix, n_components: int, seed: int) -> Result:
    """Fit hierarchical Poisson factorisation, the model of scHPF, by hpfrec."""
    import pandas as pd
    from hpfrec import HPF

    entries = counts.tocoo()
    table = pd.DataFrame({"UserId": entries.row, "ItemId": entries.col, "Count": entries.data})
    model = HPF(
        n_components, random_seed=seed, reindex=False, ncores=1, verbose=False, produce_dicts=False
    ).fit(table)
    loadings, weights = np.asarray(model.Theta), np.asarray(model.Beta).T
    return loadings, weights, lambda: loadings @ weights


def _sizes(counts: sparse.csr_matrix) -> np.ndarray:
    totals = np.asarray(counts.sum(axis=1)).ravel()
    return np.asarray(totals / totals.mean())


def _topics(counts: sparse.csr_matrix, topics: np.ndarray, words: np.ndarray) -> Result:
    """Make means from shares of topics in samples and of words in topics."""
    shares = topics / topics.sum(axis=1, keepdims=True)
    words = words / words.sum(axis=1, keepdims=True)
    totals = np.asarray(counts.sum(axis=1)).reshape(-1, 1)
    return shares, words, lambda: totals * (shares @ words)


def _bags(counts: sparse.csr_matrix) -> tuple[list[list[tuple[int, int]]], dict[int, str]]:
    rows = zip(counts.indptr[:-1], counts.indptr[1:], strict=True)
    bags = [
        list(zip(counts.indices[a:b].tolist(), counts.data[a:b].astype(int), strict=True)) for a, b in rows
    ]
    return bags, {j: str(j) for j in range(counts.shape[1])}


METHODS: dict[str, tuple[str, str, Method]] = {
    "log1pnmf c=0.001": ("log1pnmf, c = 0.001", "log1pnmf", log1pnmf(1e-3)),
    "log1pnmf c=1": ("log1pnmf, c = 1", "log1pnmf", log1pnmf(1.0)),
    "log1pnmf c=1 single": ("log1pnmf, c = 1, one start", "log1pnmf", log1pnmf(1.0, init="nndsvd")),
    "log1pnmf c=1 nb": ("log1pnmf, c = 1, NB noise", "log1pnmf", log1pnmf(1.0, noise="nb", init="nndsvd")),
    "log1pnmf c=inf": ("log1pnmf, c = inf", "log1pnmf", log1pnmf(np.inf)),
    "sklearn kl": (
        "scikit-learn NMF, Poisson",
        "scikit-learn",
        sklearn_nmf(solver="mu", beta_loss="kullback-leibler"),
    ),
    "sklearn log": ("scikit-learn NMF of log(1 + x)", "scikit-learn", sklearn_log),
    "sklearn tfidf": ("scikit-learn NMF of tf-idf", "scikit-learn", sklearn_tfidf),
    "sklearn lda": ("scikit-learn LDA", "scikit-learn", sklearn_lda),
    "cnmf": ("cNMF", "cnmf", cnmf),
    "hpfrec": ("HPF (hpfrec)", "hpfrec", hpfrec),
    "glmpca": ("GLM-PCA (glmpca)", "glmpca", glmpca),
    "fastglmpca": ("GLM-PCA (fastglmpca for Python)", "fastglmpca", fastglmpca),
    "tomotopy": ("tomotopy LDA", "tomotopy", tomotopy_lda),
    "gensim lda": ("gensim LDA", "gensim", gensim_lda),
    "gensim nmf": ("gensim NMF", "gensim", gensim_nmf),
    "nimfa": ("nimfa NMF, Poisson", "nimfa", nimfa),
}
"""What is shown, the distribution that has to be installed, and the fit."""


def resident(field: str) -> float:
    """MB that this process has resident ("VmRSS") or had at most ("VmHWM"; a fork starts it again)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024.0
    return float("nan")


def cpu() -> float:
    """CPU seconds of this process and of those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def warm_up(method: str) -> None:
    """Use a program once, so that its imports and compilation are neither timed nor counted."""
    counts = np.random.default_rng(0).poisson(1.0, (40, 50)) + 1.0
    with contextlib.suppress(Exception):
        METHODS[method][2](sparse.csr_matrix(counts), 2, 0)


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fit from every seed, as long as the time for it lasts."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu()) + CPU_LIMIT, -1))
    if METHODS[job["method"]][1] in LATE:
        warm_up(job["method"])
    counts = sparse.csr_matrix(sparse.load_npz(job["source"]), dtype=np.float64)
    spent, at_first = 0.0, resident("VmRSS")
    for seed in SEEDS:
        before = cpu()
        loadings, weights, means = METHODS[job["method"]][2](counts, job["n_components"], seed)
        seconds, added = cpu() - before, resident("VmHWM") - at_first
        np.savez(f"{job['target']}-{seed}.npz", loadings=loadings, weights=weights, means=means())
        yield {"seed": seed, "cpu": seconds, "memory": added}
        spent += seconds
        if spent > ENOUGH:
            return


def forked(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Do a job in a process of its own; what it says, or why it failed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write, "w") as out:
            try:
                for line in run(job):
                    print(json.dumps(line), file=out, flush=True)
            except Exception as problem:  # whatever another program raises is its result
                print(json.dumps({"failed": f"{type(problem).__name__}: {problem}"}), file=out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        said = [json.loads(line) for line in lines]
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        return said
    why = f"stopped after {CPU_LIMIT} CPU s" if ended == -signal.SIGXCPU else f"ended with status {ended}"
    return [{"failed": why}]


def main(jobs: str) -> None:
    """Do all jobs, and say after each what came out."""
    warnings.simplefilter("ignore")
    for job in json.loads(Path(jobs).read_text()):
        distribution = METHODS[job["method"]][1]
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            said: list[dict[str, Any]] = [{"failed": f"{distribution} is not installed"}]
        else:
            if distribution not in LATE:
                warm_up(job["method"])
            said = [line | {"version": version} for line in forked(job)]
        print(RESULT + json.dumps({"job": job["number"], "said": said}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
