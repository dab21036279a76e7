"""Structure that dispersions hide: ``python -m studies.nb_structure --jobs 16`` (one set: ``--sets baron``).

Parts of data sets with labels (300 samples, the 600 most frequent features; `--samples` and `--features` take
more). Two CPU minutes for each data set, in two rounds of four fits. A tenth of the counts is
held out. Fits to the others: with Poisson noise, with negative binomial noise, and with given dispersions
(the trend as an upper bound; less what is shared with other features; those around the means of the Poisson
fit; those of twice as many factors).
For each: agreement of the dominant factor with the labels (adjusted Rand index, adjusted mutual information);
log-likelihood of held-out counts with its own noise; the same with dispersions found for its means, as a
difference from `noise="nb"` with its standard error over samples; features whose dispersions hide structure.

``--seeds 8``: how much the first two depend on the random state. ``--simulated 16`` (no data): fitted over
known dispersions, in the median of all features and of the tenth with the largest, with and without the trend
as an upper bound.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import DATA, FILES
from benchmarks.table import as_markdown
from joblib import Parallel, delayed
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from log1pnmf import dominant_factor, fit_log1p_nmf
from log1pnmf.analysis import diagnose, heldout_log_likelihood, match_factors
from log1pnmf.counts import Counts, split_counts, training_size_factors
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.fit import Fit
from log1pnmf.model.dispersion import update_dispersions
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Problem
from studies.noise import LINK, model

SETS = {"baron": ("label", 10), "pbmc": ("celltype", 7), "kang": ("label", 8)}
FITTED: dict[str, dict[str, Any]] = {
    "nb": {"noise": "nb"},
    "Poisson": {},
    "nb, shared dispersion": {"noise": "nb", "dispersion": "shared"},
    "nb, twice the factors": {"noise": "nb", "more": 2},
}
SEEDED = ("nb", "Poisson")
TEST, NAMED = 0.1, 6


class Part:
    """Some samples and features of a data set: training and test counts, labels."""

    def __init__(self, folder: Path, name: str, samples: int, features: int) -> None:
        import anndata

        label, self.n_components = SETS[name]
        adata, self.name = anndata.read_h5ad(folder / f"{FILES[name]}.h5ad"), name
        rows = np.sort(np.random.default_rng(0).permutation(adata.X.shape[0])[:samples])
        matrix = adata.X.tocsr()[rows]
        totals = np.asarray(matrix.sum(axis=0)).ravel()
        columns = np.sort(np.argsort(-totals, kind="stable")[:features])
        self.names = np.asarray(adata.var_names).astype(str)[columns]
        counts = Counts.from_any(matrix[:, columns])
        self.train, self.test = split_counts(counts, TEST, random_state=1)
        self.labels = np.asarray(adata.obs[label]).astype(str)[rows]

    def fitted(self, more: int = 1, **options: Any) -> tuple[Fit, float]:
        """Return a fit, and its CPU seconds."""
        warnings.simplefilter("ignore")
        started = time.process_time()
        how: dict[str, Any] = {
            "size_factors": training_size_factors(self.train, TEST),
            "tol": 1e-7,
            "n_jobs": 1,
        }
        fit = fit_log1p_nmf(self.train, more * self.n_components, **how, **options)
        return fit, time.process_time() - started

    def dispersed(self, fit: Fit) -> NegativeBinomial:
        """Return dispersions found for the means of a fit."""
        at = fit.loadings, fit.factors / fit.link.alpha
        means = make_engine("native", Problem(self.train, fit.size_factors, fit.link), 1).mean_spectrum(*at)
        return update_dispersions(self.train, at[1], means)[0]

    def scored(self, fit: Fit, dispersion: Any = None) -> Any:
        """Score held-out counts by sample, perhaps with other dispersions."""
        if dispersion is not None:
            settings = replace(fit.settings.with_noise("nb"), likelihood="exact")
            fit = replace(fit, dispersion=dispersion, settings=settings, asked=settings)
        return heldout_log_likelihood(fit, self.train, self.test, test_fraction=TEST)


def given_dispersions(part: Part, fits: dict[str, Fit]) -> dict[str, Any]:
    """Return dispersions that are given to further fits."""
    own, found = fits["nb"].dispersion, diagnose(fits["nb"], part.train)
    trend, shared = found.trend, found.feature_shared
    return {
        "at most the trend": np.minimum(own, trend),
        "less what is shared": own * (1.0 - shared),
        "around Poisson means": part.dispersed(fits["Poisson"]).dispersion,
        "of twice the factors": fits["nb, twice the factors"].dispersion,
    }


def measured(part: Part, name: str, options: dict[str, Any]) -> tuple[Fit, dict[str, Any]]:
    """Return a fit and its row; "gain" is by sample, and not yet a difference."""
    fit, seconds = part.fitted(**options)
    found, dominant = diagnose(fit, part.train, feature_names=part.names), dominant_factor(fit).astype(str)
    hidden = found.hidden()
    return fit, {
        "data": part.name,
        "dispersions": name,
        "ARI": adjusted_rand_score(part.labels, dominant),
        "AMI": adjusted_mutual_info_score(part.labels, dominant),
        "held-out": float(part.scored(fit).sum()),
        "gain": part.scored(fit, part.dispersed(fit).dispersion),
        "hidden": len(hidden),
        "in": ", ".join(found.feature_names[hidden[:NAMED]]),
        "stopped": fit.stopped,
        "CPU s": seconds,
    }


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with differences from the first one of their data."""
    base: dict[str, Any] = {}
    for row in rows:
        gains = row["gain"] - base.setdefault(row["data"], row["gain"])
        row["gain"] = f"{gains.sum():+,.0f} ({gains.std() * math.sqrt(len(gains)):,.0f})"
    return rows


def simulated(seed: int) -> list[dict[str, Any]]:
    """Return how far fitted dispersions are from known ones that scatter around a constant."""
    rng = np.random.default_rng(seed)
    loadings, factors = model(4, rng)
    means, true = LINK.inverse(loadings @ factors.T), 0.3 * np.exp(rng.normal(0.0, 0.7, len(factors)))
    counts = rng.poisson(means * rng.gamma(1.0 / true, true, means.shape))
    how: dict[str, Any] = {"noise": "nb", "size_factors": "none", "n_jobs": 1}
    fit = fit_log1p_nmf(counts, 4, **how)
    found = diagnose(fit, counts)
    again = fit_log1p_nmf(counts, 4, dispersion=np.minimum(fit.dispersion, found.trend), **how)
    many, largest = found.feature_mean > 1.0, true > np.quantile(true, 0.9)
    return [
        {
            "dispersions": name,
            "seed": seed,
            "median ratio": float(np.median((one.dispersion / true)[many])),
            "of the largest": float(np.median((one.dispersion / true)[many & largest])),
            "loadings": float(match_factors(one.loadings, loadings).similarity.mean()),
            "hidden": len(found.hidden()),
        }
        for name, one in (("nb", fit), ("at most the trend", again))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m studies.nb_structure", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="NAME")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--features", type=int, default=600)
    parser.add_argument("--simulated", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--seeds", type=int, default=1, help="of the first two fits, and no others")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    run = Parallel(given.jobs, batch_size=1)
    if given.simulated:
        print(as_markdown(chain(*run(delayed(simulated)(seed) for seed in range(given.simulated)))))
        return
    parts = [Part(given.data, name, given.samples, given.features) for name in given.sets]
    if given.seeds > 1:
        seeds = range(given.seeds)
        pairs = [(name, {"random_state": seed, **FITTED[name]}) for name in SEEDED for seed in seeds]
        found = run(delayed(measured)(part, *pair) for part in parts for pair in pairs)
        print(as_markdown(compared([row for _, row in found])))
        return
    tasks = [(part, name, options) for part in parts for name, options in FITTED.items()]
    found = run(delayed(measured)(*task) for task in tasks)
    print(as_markdown(compared([dict(row) for _, row in found])), flush=True)
    more = []
    for number, part in enumerate(parts):
        own = found[number * len(FITTED) : (number + 1) * len(FITTED)]
        fits = {name: fit for name, (fit, _) in zip(FITTED, own, strict=True)}
        for name, dispersion in given_dispersions(part, fits).items():
            more.append((part, f"nb, {name}", {"noise": "nb", "dispersion": dispersion}))
    rows = [row for _, row in found] + [row for _, row in run(delayed(measured)(*task) for task in more)]
    print(as_markdown(sorted(compared(rows), key=lambda row: given.sets.index(row["data"]))))


if __name__ == "__main__":
    main()
