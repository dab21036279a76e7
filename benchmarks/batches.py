"""Batches: what is recovered under their effects, what is left of them in real data, and what they cost.

python -m benchmarks.batches                # all three tables of docs/explanation/batches.md, some minutes
python -m benchmarks.batches recovery       # one of them: recovery, her2st (../shared/data), pace
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import DATA, Folder
from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.analysis import match_factors
from log1pnmf.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.model.batches import Batches
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

Array = NDArray[np.float64]


class Simulated(NamedTuple):
    """Counts without and with effects of batches, and the truth."""

    plain: Any
    batched: Any
    labels: Any
    loadings: Array
    factors: Array
    effects: Array


def simulated(n_batches: int, c: float, seed: int, *, n: int = 1000, m: int = 400, K: int = 5) -> Simulated:
    """Draw samples of K kinds in other shares (Dirichlet) in every batch, with log-normal effects, sd 0.5."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_batches, n)
    shares = rng.dirichlet(np.ones(K), n_batches)
    kinds = np.array([rng.choice(K, p=shares[b]) for b in labels])
    loadings = 0.05 * rng.random((n, K))
    loadings[np.arange(n), kinds] = rng.uniform(0.5, 1.0, n)
    baseline = rng.gamma(0.7, 0.6, m)
    own = (rng.random((m, K)) < 0.25) * rng.gamma(1.0, 1.2, (m, K))
    factors = baseline[:, None] * rng.uniform(0.7, 1.3, (m, K)) + own
    effects = np.exp(rng.normal(0.0, 0.5, (n_batches, m)))
    effects /= np.exp(np.log(effects).mean(axis=0))
    sizes = np.exp(rng.normal(0.0, 0.3, n))
    rates = sizes[:, None] * ShiftedLog(c).inverse(loadings @ factors.T)
    return Simulated(
        rng.poisson(rates), rng.poisson(rates * effects[labels]), labels, loadings, factors, effects
    )


def matched(truth: Array, found: Array) -> float:
    """Mean correlation of matched columns."""
    pairs = match_factors(truth, found).pairs
    return float(np.mean([np.corrcoef(truth[:, i], found[:, j])[0, 1] for i, j in pairs]))


def recovery() -> Iterator[str]:
    """Table of what is recovered; effects where a batch has at least 100 counts of a feature."""
    yield "| batches, c | without any effects: L, F | ignored | batch= | effects within 10%, median error |"
    yield "|---|---|---|---|---|"
    for n_batches, c in ((2, 1.0), (5, 1.0), (2, math.inf), (5, math.inf)):
        rows = [_one(n_batches, c, seed) for seed in range(3)]
        means = np.mean(rows, axis=0)
        cells = " | ".join(f"{means[i]:.3f}, {means[i + 1]:.3f}" for i in (0, 2, 4))
        yield f"| {n_batches}, {c:g} | {cells} | {means[6]:.0%}, {means[7]:.3f} |"


def _one(n_batches: int, c: float, seed: int) -> list[float]:
    data, found = simulated(n_batches, c, seed), []
    fit: Fit | None = None
    for counts, batch in ((data.plain, None), (data.batched, None), (data.batched, data.labels)):
        fit = fit_log1p_nmf(counts, 5, c=c, batch=batch, max_iter=300, tol=1e-7, n_jobs=1)
        found += [matched(data.loadings, fit.loadings), matched(data.factors, fit.factors)]
    assert fit is not None
    assert fit.batches is not None
    order = [fit.batches.names.index(str(b)) for b in range(n_batches)]
    off = np.log(fit.batches.effects[order] / data.effects)
    off -= (off @ data.batched.sum(axis=0) / data.batched.sum())[:, None]  # the level of a batch is free
    totals = np.stack([data.batched[data.labels == b].sum(axis=0) for b in range(n_batches)])
    off = np.abs(off[totals >= 100])
    return [*found, float((off < 0.1).mean()), float(np.median(off))]


def _explained(values: Array, *labels: Any) -> Array:
    """Part of the variance of every column that groups explain."""
    columns = [np.ones(len(values))]
    columns += [(one == name).astype(float) for one in labels for name in sorted(set(one))[1:]]
    design = np.stack(columns, axis=1)
    rest = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return 1.0 - rest.var(axis=0) / values.var(axis=0)


def her2st() -> Iterator[str]:
    """Table of associations of loadings with patients and with tissue labels: 2,000 spots, 2,000 genes."""
    import anndata

    adata = anndata.read_h5ad(DATA / "her2st_spatial.h5ad")
    known = adata.obs["label"].notna() & ~adata.obs["label"].astype(str).isin(["undetermined", "nan", ""])
    adata = adata[known.to_numpy()]
    rows = np.sort(np.random.default_rng(0).permutation(adata.n_obs)[:2000])
    adata = adata[rows]
    totals = np.asarray(adata.X.sum(axis=0)).ravel()
    counts = Counts.from_any(adata.X[:, np.sort(np.argsort(-totals)[:2000])])
    patient, label = (adata.obs[name].astype(str).to_numpy() for name in ("patient", "label"))
    yield f"{len(rows):,} spots of {len(set(patient))} patients, {len(set(label))} labels"
    yield "| fit (K = 8, c = 1) | label | patient, given label | largest factor: patient, given label |"
    yield "|---|---|---|---|"
    for name, batch in (("no batches", None), ("batch=patient", patient)):
        fit = fit_log1p_nmf(counts, 8, batch=batch, max_iter=200, tol=1e-7, n_jobs=1)
        by_label = _explained(fit.loadings, label)
        beyond = _explained(fit.loadings, label, patient) - by_label
        yield f"| {name} | {by_label.mean():.3f} | {beyond.mean():.3f} | {beyond.max():.3f} |"


def pace() -> Iterator[str]:
    """What an iteration costs, and finding effects, PBMC with made-up batches, one thread."""
    counts, rng = Folder().counts("pbmc"), np.random.default_rng(0)
    n, m = counts.shape
    sizes, K = counts.size_factors("total"), 6
    loadings, factors = rng.uniform(0.0, 1.0, (n, K)), rng.gamma(0.3, 0.3, (m, K))
    yield "| PBMC, K = 6 | CPU s of an iteration | with 8 batches | finding effects |"
    yield "|---|---|---|---|"
    for c, zeros in ((1.0, "approximate"), (1.0, "exact"), (math.inf, "exact")):
        link, seconds = ShiftedLog(c), []
        form = quadratic(link) if zeros == "approximate" else None
        labels = np.arange(n) % 8
        effects = np.exp(rng.normal(0.0, 0.3, (8, m)))
        for batches in (None, Batches(labels, effects)):
            engine = NativeEngine(Problem(counts, sizes, link, form, batches=batches), 1)
            seconds.append(_quickest(lambda e=engine: _iteration(e, loadings, factors)))
        sums = _quickest(lambda e=engine: e.batch_sums(loadings, factors))
        ratio = seconds[1] / seconds[0]
        yield f"| c = {c:g}, {zeros} | {seconds[0]:.3f} | {seconds[1]:.3f} ({ratio:.2f} x) | {sums:.3f} |"


def _iteration(engine: NativeEngine, loadings: Array, factors: Array) -> None:
    step = engine.half_step(engine.problem.loadings_side, loadings, factors)
    engine.half_step(engine.problem.factors_side, factors, step.values)


def _quickest(work: Any, repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def main() -> None:
    """Print the tables that are asked for."""
    warnings.simplefilter("ignore")
    tables = {"recovery": recovery, "her2st": her2st, "pace": pace}
    for name in sys.argv[1:] or tables:
        for line in tables[name]():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
