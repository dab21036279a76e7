"""How well are new samples predicted, and do they get the loadings they would have had?

python -m studies.new_samples predict --jobs 16   # held-out counts by prior, against one factor
python -m studies.new_samples donors --jobs 16    # a held-out donor: other features, other platform

`predict`: half of the samples are fitted; of the others, possibly thinned, loadings come from 80% of the
counts, or from 80% of the features, as `transform` finds them ("auto"), or with other priors. What was left
out is scored. Features are scored with dispersions of the fit, and with those around what the other features
of the fitted samples predict: the former are given loadings that the feature itself decides. A share of 1e-9
of the predicted means comes from totals, so that a mean of zero is nearly impossible; figures are
log-likelihoods above those of one factor. Data "pancreas" come with the package.

`donors`: a donor (or a random quarter of the samples) is left out of the fit and projected onto it, with a
fifth of the features missing and, for "platform", counts thinned by an efficiency of every feature. Figures
are correlations of its loadings with those of a fit to all samples as they were measured, by factor: the
least and the median, without and with a batch of its own.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from benchmarks.data import DATA as FOLDER
from benchmarks.data import FILES
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from log1pnmf import Fit, datasets, fit_log1p_nmf
from log1pnmf.counts import Counts, split_counts
from log1pnmf.counts.features import select_features
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.new_samples import NewSamples, new_size_factors, project
from log1pnmf.model.dispersion import update_dispersions
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.predict import Background, score_entries, score_parts
from log1pnmf.model.problem import Problem

Array = NDArray[np.float64]
SHARE, FLOOR = 0.2, 1e-9
PRIORS = (0.0, 3.0, 30.0)
DATA = {  # samples, features (those that most samples have), factors, depths
    "pancreas": (300, 300, 8, (1.0, 0.1)),
    "kang": (400, 1000, 8, (1.0, 0.1)),
    "bbc": (400, 1500, 8, (1.0, 0.1)),
    "pbmc": (400, 1000, 6, (1.0, 0.1)),
    "pcawg": (400, 96, 10, (1.0, 0.1)),
}


def load(name: str) -> Any:
    """Read a data set."""
    import anndata

    return anndata.read_h5ad(FOLDER / f"{FILES[name]}.h5ad")


def drawn(name: str, n: int, m: int, seed: int) -> sparse.csr_array:
    """Return the counts of random samples and of the features that most of them have."""
    counts = sparse.csr_array(datasets.pancreas().counts if name == "pancreas" else load(name).X)
    rows = np.random.default_rng(seed).permutation(counts.shape[0])[:n]
    counts = counts[rows]
    seen = np.asarray((counts > 0).sum(axis=0)).ravel()
    return counts[:, np.sort(np.argsort(-seen, kind="stable")[:m])]


def dispersion_without(fit: Fit, counts: Counts, given: Any, scored: Any) -> Array:
    """Return dispersions of some features around what the others of the fitted samples predict."""
    assert counts.feature_names is not None
    some, others = (
        replace(select_features(counts, which), feature_names=counts.feature_names[which])
        for which in (given, scored)
    )
    found = project(fit, some, prior=0.0, shared=True, n_jobs=1)
    factors = fit.factors[scored] / fit.link.alpha
    problem = Problem(others, found.size_factors, fit.link, noise=NegativeBinomial(fit.dispersion[scored]))
    means = make_engine("native", problem, 1).mean_spectrum(found.loadings, factors)
    return update_dispersions(others, factors, means)[0].dispersion


def predicted(name: str, noise: str, c: float, seed: int) -> list[str]:
    """Score the held-out counts, and the held-out features, of new samples for every prior."""
    warnings.simplefilter("ignore")
    n, m, K, depths = DATA[name]
    counts, names = drawn(name, 2 * n, m, seed), np.array([f"g{j}" for j in range(m)], dtype=object)
    old = replace(Counts.from_any(counts[:n]), feature_names=names[: counts.shape[1]])
    one, fit = (fit_log1p_nmf(old, k, c=c, noise=noise, n_jobs=1) for k in (1, K))
    scored = np.sort(np.random.default_rng(seed).permutation(counts.shape[1])[: counts.shape[1] // 5])
    given = np.setdiff1d(np.arange(counts.shape[1]), scored)
    totals = np.asarray(old.to_scipy().sum(axis=0)).ravel() + 0.5
    lines = []
    for depth in depths:
        new = replace(Counts.from_any(counts[n:]), feature_names=old.feature_names)
        if depth < 1.0:
            new = split_counts(new, depth, random_state=seed)[1]
        parts = split_counts(new, SHARE, random_state=seed)
        some, others = (
            replace(select_features(new, which), feature_names=names[which]) for which in (given, scored)
        )

        def by_counts(fit: Fit, prior: Any, parts: Any = parts) -> float:
            found = project(fit, parts[0], prior=prior, n_jobs=1)
            rates = replace(fit.rates, loadings=found.loadings, size_factors=found.size_factors)
            return float(score_parts(rates, *parts, test_fraction=SHARE, background=FLOOR).sum())

        def by_features(
            fit: Fit, prior: Any, some: Any = some, others: Any = others, again: bool = False
        ) -> float:
            found = project(fit, some, prior=prior, shared=True, n_jobs=1)
            rates = fit.rates.of_features(scored)
            rates = replace(rates, loadings=found.loadings, size_factors=found.size_factors)
            if again:
                rates = replace(rates, dispersion=dispersion_without(fit, old, given, scored))
            beside = Background(some.row_sums + 0.5, totals[scored] / totals[given].sum(), FLOOR)
            return float(score_entries(rates, others, beside).sum())

        ways: list[tuple[str, Any]] = [("counts", by_counts), ("features", by_features)]
        if noise == "nb":
            ways.append(("features, dispersions again", partial(by_features, again=True)))
        for held, score in ways:
            gains = [score(fit, prior) - score(one, 0.0) for prior in ("auto", *PRIORS)]
            numbers = " | ".join(f"{gain:,.0f}" for gain in gains)
            head = f"| {name} | {seed} | {new.row_sums.mean():,.0f} | {noise} | {c:g} | {held}"
            lines.append(f"{head} | {fit.stopped} | {numbers} |")
    return lines


def matched(fit: Any, other: Any) -> list[int]:
    """Return the factor of `other` that goes with each of `fit`."""
    K = fit.n_components
    return list(linear_sum_assignment(-np.corrcoef(fit.factors.T, other.factors.T)[:K, K:])[1])


def of_donor(name: str, kind: str, noise: str, c: float, seed: int) -> str:
    """Compare the loadings of a projected donor with those in a fit to all samples."""
    warnings.simplefilter("ignore")
    rng, K, donors = np.random.default_rng(seed), 6, None
    if kind == "donor":
        adata = load(name)
        names = adata.obs["patient"].astype(str).to_numpy()
        rows = np.sort(rng.permutation(adata.n_obs)[:2000])
        counts, donors = sparse.csr_array(adata.X)[rows], names[rows]
        frequent = np.asarray((counts > 0).sum(axis=0)).ravel()
        counts = counts[:, np.sort(np.argsort(-frequent, kind="stable")[:1000])]
        left_out = donors == np.unique(donors)[seed % len(np.unique(donors))]
    else:
        counts = drawn(name, 1600, 1000, seed)
        left_out = np.arange(1600) % 4 == 0
    own = {} if donors is None else {"batch": donors}
    every = fit_log1p_nmf(counts, K, c=c, noise=noise, n_jobs=1, **own)
    own = {} if donors is None else {"batch": donors[~left_out]}
    fit = fit_log1p_nmf(Counts.from_any(counts[~left_out]), K, c=c, noise=noise, n_jobs=1, **own)
    features = [f"g{j}" for j in range(counts.shape[1])]
    fit = fit.named(feature_names=features)
    new = counts[left_out]
    if kind == "platform":
        efficiency = np.minimum(np.exp(rng.normal(-0.7, 0.7, new.shape[1])), 1.0)
        new.data = rng.binomial(new.data.astype(int), efficiency[new.indices]).astype(float)
    kept = np.sort(rng.permutation(new.shape[1])[: int(0.8 * new.shape[1])])
    measured = replace(Counts.from_any(new[:, kept]), feature_names=np.array(features, dtype=object)[kept])
    same, found = every.loadings[left_out], []
    plain = NewSamples(fit, measured, new_size_factors(fit, measured, None, kept), features=kept, n_jobs=1)
    own_batch = project(fit, measured, batch="new", shared=True, n_jobs=1)
    for loadings in (plain.solve()[0], own_batch.loadings):
        pairs = zip(same.T, loadings[:, matched(every, fit)].T, strict=True)
        r = [np.corrcoef(a, b)[0, 1] for a, b in pairs]
        found.append(f"{min(r):.3f} | {np.median(r):.3f}")
    return f"| {name} | {kind} | {noise} | {c:g} | {seed} | {' | '.join(found)} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["predict", "donors"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    asked = parser.parse_args()
    run, seeds = Parallel(n_jobs=asked.jobs, return_as="generator"), range(asked.seeds)
    models = list(product(("poisson", "nb"), (math.inf, 1.0, 0.1)))
    if asked.what == "predict":
        print(
            "| data | seed | counts | noise | c | held out | fit | auto |",
            " | ".join(f"{p:g}" for p in PRIORS),
            "|\n|" + "---|" * (8 + len(PRIORS)),
        )
        cases = [(name, *model) for name in asked.data for model in models]
        for lines in run(delayed(predicted)(*case, seed) for case in cases for seed in seeds):
            print("\n".join(lines), flush=True)
    else:
        print(
            "| data | new samples | noise | c | seed | no batch: least | median | own batch: least | median |"
            "\n|" + "---|" * 9
        )
        kinds = [("kang", "same"), ("kang", "platform"), ("pbmc", "platform"), ("her2st", "donor")]
        cases = [(*kind, *model) for kind in kinds for model in models[:2] + models[4:5]]
        for line in run(delayed(of_donor)(*case, seed) for case in cases for seed in seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
