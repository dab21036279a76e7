"""Which order of features shows what a factor is? Compared on data with labels.

    python -m studies.rankings         # the table of docs/results/tests.md; about two CPU minutes

A label belongs to the factor whose mean loading in it most exceeds that in the other labels. Counted are,
among the first 20 features of that factor: features that the *other* samples of the data, which were not
fitted, show to be the label's own (the 100 with the largest lower end of the log fold change against the
mean of the other labels), and genes that are known to mark it (`known_markers.py`; there are none for
words).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from benchmarks.data import DATA
from scipy import sparse

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.fitting.ranking import ranking_of, stand_ins
from log1pnmf.model.noise import ShiftedLog

from .known_markers import KNOWN

LINKS = (0.1, 1.0, 100.0, math.inf)
N_TOP, N_OWN, LEAST_SAMPLES = 20, 100, 20
NO_LABEL = ("unlabelled", "undetermined")

Scores = Callable[[Fit], np.ndarray]


@dataclass(frozen=True)
class DataSet:
    """A file, the column of labels, and what is fitted to how many samples."""

    file: str
    column: str
    n_components: int
    n_samples: int


DATA_SETS = {
    "pancreas": DataSet("baron_human_pancreas", "label", 9, 800),
    "PBMC": DataSet("pbmc_facs", "subpop", 7, 800),
    "her2st": DataSet("her2st_spatial", "label", 8, 700),
    "BBC": DataSet("bbc_news", "label", 8, 1000),
}


@dataclass(frozen=True)
class Subsample:
    """Samples to fit, and others to judge by, with the features of at least five of the first."""

    counts: sparse.csr_array
    labels: np.ndarray
    other_counts: sparse.csr_array
    other_labels: np.ndarray
    names: np.ndarray

    def own_features(self) -> dict[str, set[str]]:
        """Features that the other samples show to be a label's own."""
        kept = [
            label
            for label in np.unique(self.other_labels)
            if np.sum(self.other_labels == label) >= LEAST_SAMPLES
        ]
        counts = np.stack([self.other_counts[self.other_labels == label].sum(axis=0) for label in kept]) + 2.0
        rates = counts / counts.sum(axis=1, keepdims=True)
        own = {}
        for place, label in enumerate(kept):
            change = np.log(rates[place] / np.delete(rates, place, axis=0).mean(axis=0))
            error = np.sqrt(1.0 / counts[place] + 1.0 / np.delete(counts, place, axis=0).sum(axis=0))
            own[str(label)] = set(self.names[np.argsort(-(change - 1.96 * error))[:N_OWN]])
        return own


@cache
def subsample(name: str) -> Subsample:
    """Read a data set and take some of its samples at random."""
    import anndata

    about = DATA_SETS[name]
    data = anndata.read_h5ad(DATA / f"{about.file}.h5ad")
    labels = np.asarray(data.obs[about.column]).astype(str)
    names = np.asarray(data.var.get("symbol", data.var_names)).astype(str)
    order = np.random.default_rng(0).permutation(np.flatnonzero(~np.isin(labels, NO_LABEL)))
    here, there = order[: about.n_samples], order[about.n_samples :]
    counts = sparse.csr_array(data.X)
    kept = np.flatnonzero((counts[here] > 0).sum(axis=0) >= 5)
    return Subsample(counts[here][:, kept], labels[here], counts[there][:, kept], labels[there], names[kept])


# ---------------------------------------------------------------- candidates


def share_excess(fit: Fit) -> np.ndarray:
    """Share of the factor minus the mean share of the others: what `summary` listed before."""
    shares = fit.factors / fit.factors.sum(axis=0)
    return shares - (shares.sum(axis=1, keepdims=True) - shares) / (fit.n_components - 1)


def _lower(more: np.ndarray, less: np.ndarray, weight: np.ndarray) -> np.ndarray:
    a, b = weight * more + 1.0, weight * less + 1.0
    return np.log(a / b) - 1.96 * np.sqrt(1.0 / a + 1.0 / b)


def _typical_rates(fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    around = stand_ins(fit.loadings, fit.size_factors)
    rates = fit.link.inverse(fit.factors @ around.own.T)
    return rates / rates.sum(axis=0) * rates.sum(axis=0).mean(), around.weight


def _others(rates: np.ndarray, combine: Callable[..., np.ndarray]) -> np.ndarray:
    return np.stack([combine(np.delete(rates, k, axis=1), axis=1) for k in range(rates.shape[1])], axis=1)


def best_of_others(fit: Fit) -> np.ndarray:
    """Typical sample with the factor against that of the other factor which has most ("least extreme")."""
    rates, weight = _typical_rates(fit)
    return _lower(rates, _others(rates, np.max), weight)


def mean_of_others(fit: Fit) -> np.ndarray:
    """Typical sample with the factor against the mean of those with the others."""
    rates, weight = _typical_rates(fit)
    return _lower(rates, _others(rates, np.mean), weight)


def swapped(fit: Fit) -> np.ndarray:
    """Typical sample with the factor against the same with the best other one, or the rest, in its place."""
    around = stand_ins(fit.loadings, fit.size_factors)
    scores = np.empty_like(fit.factors)
    amounts = around.own.diagonal()
    for k in range(fit.n_components):
        places = [around.rest[k]]
        for other in np.delete(np.arange(fit.n_components), k):
            place = np.where(np.arange(fit.n_components) == k, 0.0, around.own[k])
            place[other] = max(place[other], amounts[other])
            places.append(place)
        rates = fit.link.inverse(fit.factors @ np.array([around.own[k], *places]).T)
        rates *= rates[:, 0].sum() / rates.sum(axis=0)
        scores[:, k] = _lower(rates[:, 0], rates[:, 1:].max(axis=1), around.weight[k])
    return scores


def kullback_leibler(fit: Fit) -> np.ndarray:
    """What a feature adds to the divergence of the factor's typical sample from the best of the others."""
    rates, _ = _typical_rates(fit)
    return rates * np.log((rates + 1e-9) / (_others(rates, np.max) + 1e-9))


RANKINGS: dict[str, Scores] = {
    "weight in the factor": lambda fit: fit.factors,
    "share minus mean share elsewhere": share_excess,
    "divergence from the best other factor": kullback_leibler,
    "fold change to the mean of the others, lower end": mean_of_others,
    "fold change to the best of the others, lower end": best_of_others,
    "fold change to the best in its place, lower end": swapped,
    "fold change to the other factors in its place": lambda fit: ranking_of(fit).log2_fold_change,
    "**fold change to the other factors in its place, lower end**": lambda fit: ranking_of(fit).lower,
}


# ---------------------------------------------------------------- judging


def factor_of_each(fit: Fit, labels: np.ndarray, wanted: list[str]) -> dict[str, int]:
    """Find the factor of each label, without looking at features."""
    loadings = fit.normalized("max").loadings
    means = np.stack([loadings[labels == label].mean(axis=0) for label in wanted])
    others = (means.sum(axis=0) - means) / (len(wanted) - 1)
    return {label: int(np.argmax(means[place] - others[place])) for place, label in enumerate(wanted)}


def hits(fit: Fit, name: str, scores: np.ndarray) -> tuple[float, float]:
    """Count features among the first 20 that the other samples and that books have; means over labels."""
    data = subsample(name)
    own, known = data.own_features(), KNOWN.get(name, {})
    found = []
    for label, k in factor_of_each(fit, data.labels, list(own)).items():
        top = set(data.names[np.argsort(-scores[:, k], kind="stable")[:N_TOP]])
        listed = len(top & set(known[label].split())) if label in known else np.nan
        found.append((len(top & own[label]), listed))
    by_data = float(np.mean([a for a, _ in found]))
    listed = [b for _, b in found if not np.isnan(b)]
    return by_data, float(np.mean(listed)) if listed else float("nan")


def correlated(c: float, seed: int) -> Fit:
    """Fit to simulated counts of two factors with correlated loadings (0.7) and 20 features each."""
    rng, link = np.random.default_rng(seed), ShiftedLog(c)
    latent = rng.multivariate_normal(np.zeros(3), [[1, 0.7, 0], [0.7, 1, 0], [0, 0, 1]], 400)
    loadings = np.column_stack([rng.uniform(0.7, 1.0, 400), np.maximum(latent, 0.0)])
    loadings /= loadings.max(axis=0)
    rates = np.exp(rng.standard_normal(600))
    factors = np.column_stack([link.link(rates), np.zeros((600, 3))])
    for k in (1, 2, 3):
        factors[20 * (k - 1) : 20 * k, k] = link.link(
            rates[20 * (k - 1) : 20 * k] * rng.uniform(2.0, 6.0, 20)
        )
    counts = rng.poisson(link.inverse(loadings @ factors.T))
    start = (loadings + 1e-3, factors + 1e-3)
    fit = fit_log1p_nmf(counts, 4, c=c, init=start, tol=1e-5, random_state=0, n_jobs=1)
    order = match_factors(loadings, fit.loadings).pairs[:, 1]
    return replace(fit, loadings=fit.loadings[:, order], factors=fit.factors[:, order])


def own_share(fit: Fit, scores: np.ndarray) -> float:
    """Part of the first 20 features of the two correlated factors that are their own."""
    top = [np.argsort(-scores[:, k], kind="stable")[:20] // 20 == k - 1 for k in (1, 2)]
    return float(np.mean(top))


def main() -> None:
    """Fit, judge, and print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    fits = {
        (name, c): fit_log1p_nmf(
            subsample(name).counts, about.n_components, c=c, tol=1e-5, max_iter=150, random_state=0, n_jobs=1
        )
        for name, about in DATA_SETS.items()
        for c in LINKS
    }
    simulated = [correlated(c, seed) for c in (0.1, 1.0, math.inf) for seed in range(3)]
    print(
        "| ranked by |", " | ".join(f"c = {c:g}" for c in LINKS), "|", " | ".join(DATA_SETS), "| correlated |"
    )
    print("|---" * (2 + len(LINKS) + len(DATA_SETS)), "|", sep="")
    for title, scores in RANKINGS.items():
        found = {at: hits(fit, at[0], scores(fit)) for at, fit in fits.items()}
        columns = [[pair for (_, c), pair in found.items() if c == link] for link in LINKS]
        columns += [[pair for (name, _), pair in found.items() if name == one] for one in DATA_SETS]
        own = np.mean([own_share(fit, scores(fit)) for fit in simulated])
        print(f"| {title} |", " | ".join(_cell(column) for column in columns), f"| {own:.0%} |", flush=True)


def _cell(pairs: list[tuple[float, float]]) -> str:
    by_data = np.mean([a for a, _ in pairs])
    listed = [b for _, b in pairs if not np.isnan(b)]
    return f"{by_data:.1f}" + (f", {np.mean(listed):.1f}" if listed else "")


if __name__ == "__main__":
    main()
