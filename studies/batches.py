"""Batches: what is recovered under their effects, what is left of them in real data, and what they cost.

python -m studies.batches                # all tables of docs/results/batches.md, about 20 CPU minutes
python -m studies.batches effects        # one; also recovery, starts, dispersed, convergence, her2st, pace
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from benchmarks.data import DATA, Folder
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.analysis import match_factors
from log1pnmf.counts import Counts
from log1pnmf.engines.base import Engine
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting import fit_counts as driver
from log1pnmf.fitting import runs
from log1pnmf.fitting.runs import AdaptiveUpdate
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.solver import Extrapolation, Point, alternate, finds_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import ShiftedLog
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
    sizes: Array


def simulated(
    n_batches: int, c: float, seed: int, *, n: int = 1000, m: int = 400, K: int = 5, even: bool = False
) -> Simulated:
    """Draw samples of K kinds in other shares (Dirichlet) in every batch, with log-normal effects, sd 0.5."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_batches, n)
    shares = rng.dirichlet(np.ones(K), n_batches)
    shares = np.full_like(shares, 1.0 / K) if even else shares
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
    plain, batched = rng.poisson(rates), rng.poisson(rates * effects[labels])
    return Simulated(plain, batched, labels, loadings, factors, effects, sizes)


def matched(truth: Array, found: Array) -> float:
    """Mean correlation of matched columns."""
    pairs = match_factors(truth, found).pairs
    return float(np.mean([np.corrcoef(truth[:, i], found[:, j])[0, 1] for i, j in pairs]))


def recovery() -> Iterator[str]:
    """Table of what is recovered."""
    yield "| batches, c | without any effects: L, F | ignored | batch= |"
    yield "|---|---|---|---|"
    for n_batches, c in ((2, 1.0), (5, 1.0), (2, math.inf), (5, math.inf)):
        means = np.mean([_one(n_batches, c, seed) for seed in range(3)], axis=0)
        cells = " | ".join(f"{means[i]:.3f}, {means[i + 1]:.3f}" for i in (0, 2, 4))
        yield f"| {n_batches}, {c:g} | {cells} |"


def effects() -> Iterator[str]:
    """Table of how well effects are found, where counts alone would give them with an error below 5%.

    Fitted size factors have a default start, the others `init="nndsvd"`.
    """
    short = {"init": "nndsvd"}
    kinds: dict[str, dict[str, Any]] = {
        "totals": short,
        '`size_factors="fit"`': {"size_factors": "fit", "max_iter": 3000},
        "true size factors": short,
        "totals, every batch with the same kinds": short,
    }
    yield "| batches, c | " + " | ".join(kinds) + " |"
    yield "|---" * (1 + len(kinds)) + "|"
    for n_batches, c in ((2, 1.0), (5, 1.0), (2, math.inf), (5, math.inf)):
        cells, worst = [], []
        for kind, how in kinds.items():
            found = []
            for seed in range(0 if math.isinf(c) and "fit" in kind else 3):
                data = simulated(n_batches, c, seed, even="same kinds" in kind)
                right = {"size_factors": data.sizes} if kind == "true size factors" else {}
                fit = _fitted(data.batched, c, batch=data.labels, **how, **right)
                found.append(_off(data, fit))
                worst.append(f"{kind}: {fit.stopped} after {fit.n_iter}")
            off = np.concatenate(found) if found else np.array([math.nan])
            cells.append(f"{(off < 0.1).mean():.0%}, {np.median(off):.3f}" if found else "")
        yield f"| {n_batches}, {c:g} | {' | '.join(cells)} |"
        print("; ".join(worst), file=sys.stderr)


def starts() -> Iterator[str]:
    """Table of fits that start from effects of 1, and from those that explain the totals of features."""
    yield "| batches, c | start | objective above the better, worst | iterations | L, F |"
    yield "|---|---|---|---|---|"
    for n_batches, c in ((2, 1.0), (5, 1.0), (2, math.inf), (5, math.inf)):
        rows: dict[str, list[Any]] = {"q = 1": [], "q from totals": []}
        for seed in range(3):
            data = simulated(n_batches, c, seed)
            for name, found in rows.items():
                own = mock.patch.object(driver, "first_effects", lambda batches, *_: batches)
                with own if name == "q = 1" else nullcontext():
                    fit = _fitted(data.batched, c, batch=data.labels, init="nndsvd")
                right = matched(data.loadings, fit.loadings), matched(data.factors, fit.factors)
                found.append((fit.objective, fit.n_iter, *right))
        table = {name: np.array(found) for name, found in rows.items()}
        best = np.minimum(*(found[:, 0] for found in table.values()))
        for name, found in table.items():
            above, means = ((found[:, 0] - best) / best).max(), found[:, 2:].mean(axis=0)
            n_iter = ", ".join(f"{n:.0f}" for n in found[:, 1])
            yield f"| {n_batches}, {c:g} | {name} | {above:.0e} | {n_iter} | {means[0]:.3f}, {means[1]:.3f} |"


def dispersed() -> Iterator[str]:
    """Table of negative binomial fits whose effects are found in every iteration, and only now and then."""
    yield "| batches, c | effects found | iterations | objective above the best | CPU s of an iteration |"
    yield "|---|---|---|---|---|"
    noise = {"noise": "nb", "dispersion": np.full(150, 0.25)}  # fitted ones have a prior that changes
    ways = {
        "in every iteration": {"likelihood": "exact"},
        "now and then": {"likelihood": "exact"},
        "now and then, adaptive": {"likelihood": "adaptive"},
    }
    for n_batches, c in ((2, 1.0), (5, 1.0)):
        data = simulated(n_batches, c, 0, n=400, m=150)
        counts = np.random.default_rng(0).poisson(
            data.batched * np.random.default_rng(1).gamma(4.0, 0.25, data.batched.shape)
        )
        rows = []
        for name, how in ways.items():
            began = time.process_time()
            with ExitStack() as stack:
                if name != "in every iteration":
                    stack.enter_context(mock.patch.object(runs, "finds_effects", return_value=False))
                fit = _fitted(counts, c, batch=data.labels, init="nndsvd", max_iter=3000, **noise, **how)
            rows.append((name, fit.n_iter, fit.objective, (time.process_time() - began) / fit.n_iter))
        best = min(row[2] for row in rows)
        for name, n_iter, objective, seconds in rows:
            above = (objective - best) / abs(best)
            yield f"| {n_batches}, {c:g} | {name} | {n_iter} | {above:.0e} | {seconds:.3f} |"


def convergence() -> Iterator[str]:
    """Table of what 1,000 further iterations change in fits that have converged."""
    yield "| batches, c | iterations | objective falls by | effects move by at most |"
    yield "|---|---|---|---|"
    for n_batches, c in ((2, 1.0), (5, 1.0), (2, math.inf), (5, math.inf)):
        data = simulated(n_batches, c, 0)
        fit = _fitted(data.batched, c, batch=data.labels, init="nndsvd")
        more = _fitted(data.batched, c, batch=data.labels, init=fit, max_iter=1000, tol=0.0)
        assert fit.batches is not None
        assert more.batches is not None
        fall = (fit.objective - more.objective) / abs(fit.objective)
        moved = float(np.abs(np.log(more.batches.effects / fit.batches.effects)).max())
        yield f"| {n_batches}, {c:g} | {fit.n_iter}, {fit.stopped} | {fall:.0e} | {moved:.1%} |"


def _fitted(counts: Any, c: float, **parameters: Any) -> Fit:
    return fit_log1p_nmf(counts, 5, c=c, n_jobs=1, **({"max_iter": 600} | parameters))


def _one(n_batches: int, c: float, seed: int) -> list[float]:
    data, found = simulated(n_batches, c, seed), []
    for counts, batch in ((data.plain, None), (data.batched, None), (data.batched, data.labels)):
        fit = _fitted(counts, c, batch=batch, init="nndsvd")
        found += [matched(data.loadings, fit.loadings), matched(data.factors, fit.factors)]
    return found


def _off(data: Simulated, fit: Fit) -> Array:
    """Give the errors of the logarithms of effects that counts alone would give to within 5%."""
    assert fit.batches is not None
    n_batches = len(data.effects)
    order = [fit.batches.names.index(str(b)) for b in range(n_batches)]
    off = np.log(fit.batches.effects[order] / data.effects)
    off -= (off @ data.batched.sum(axis=0) / data.batched.sum())[:, None]  # size factors have the level
    totals = np.stack([data.batched[data.labels == b].sum(axis=0) for b in range(n_batches)])
    by_count = 1.0 / np.maximum(totals, 1.0)
    error = np.sqrt(by_count.sum(axis=0) / n_batches**2 + (1.0 - 2.0 / n_batches) * by_count)
    return np.abs(off[error < 0.05])


def _explained(values: Array, *labels: Any) -> Array:
    """Part of the variance of every column that groups explain."""
    columns = [np.ones(len(values))]
    columns += [(one == name).astype(float) for one in labels for name in sorted(set(one))[1:]]
    design = np.stack(columns, axis=1)
    rest = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return 1.0 - rest.var(axis=0) / values.var(axis=0)


def her2st() -> Iterator[str]:
    """Table of associations of loadings with patients and with tissue labels: labelled spots, 2,000 genes."""
    import anndata

    adata = anndata.read_h5ad(DATA / "her2st_spatial.h5ad")
    adata = adata[~adata.obs["label"].astype(str).isin(["unlabelled", "undetermined", "nan", ""]).to_numpy()]
    totals = np.asarray(adata.X.sum(axis=0)).ravel()
    kept = np.sort(np.argsort(-totals)[:2000])
    counts, genes = Counts.from_any(adata.X[:, kept]), adata.var_names.to_numpy()[kept]
    patient, label = (adata.obs[name].astype(str).to_numpy() for name in ("patient", "label"))
    yield f"{adata.n_obs:,} spots of {len(set(patient))} patients, {len(set(label))} labels"
    yield "| fit (K = 8, c = 1) | label | patient, given label | largest factor: patient, given label |"
    yield "|---|---|---|---|"
    ended = ""
    for name, batch in (("no batches", None), ("batch=patient", patient)):
        fit = fit_log1p_nmf(counts, 8, batch=batch, init="nndsvd", max_iter=3000, n_jobs=1)
        by_label = _explained(fit.loadings, label)
        beyond = _explained(fit.loadings, label, patient) - by_label
        yield f"| {name} | {by_label.mean():.3f} | {beyond.mean():.3f} | {beyond.max():.3f} |"
        ended += f"{name}: {fit.stopped} after {fit.n_iter} iterations; mean loadings of patients\n"
        for k, loading in enumerate((fit.loadings / fit.loadings.max(axis=0)).T):
            means = (f"{one} {loading[patient == one].mean():.2f}" for one in sorted(set(patient)))
            ended += f"factor {k}, {beyond[k]:.2f}: {', '.join(means)}\n"
    yield ended
    for k in np.argsort(-beyond)[:2]:
        yield from _largest_factor(fit, int(k), patient, label, genes)


def _largest_factor(fit: Fit, k: int, patient: Any, label: Any, genes: Any) -> Iterator[str]:
    """Say where a factor is that goes with patients: in all their spots, or in some tissue only."""
    loading, by_patient = fit.loadings[:, k] / fit.loadings[:, k].max(), {}
    for one in sorted(set(patient)):
        own = patient == one
        inside = _explained(loading[own, None], label[own])[0] if len(set(label[own])) > 1 else float("nan")
        parts = {name: float(loading[own & (label == name)].mean()) for name in sorted(set(label[own]))}
        by_patient[one] = f"{loading[own].mean():.2f}, by label within: {inside:.2f}; " + ", ".join(
            f"{name} {value:.2f} ({np.sum(own & (label == name))})" for name, value in parts.items()
        )
    lead = np.argsort(-(fit.factors[:, k] - np.delete(fit.factors, k, axis=1).max(axis=1)))[:15]
    yield f"factor {k}, leading genes: " + ", ".join(map(str, genes[lead]))
    for one, text in by_patient.items():
        yield f"patient {one}: mean loading {text}"


def pace() -> Iterator[str]:
    """What an iteration costs without and with batches, PBMC with made-up ones, one thread.

    Both start where 20 iterations led, and take turns. The figure is the lower quartile of single iterations:
    on a busy machine the others say what else was running.
    """
    counts, rng = Folder().counts("pbmc"), np.random.default_rng(0)
    n, m = counts.shape
    sizes, K = counts.size_factors("total"), 6
    point = rng.uniform(0.0, 1.0, (n, K)), rng.gamma(0.3, 0.3, (m, K))
    batches = Batches(np.arange(n) % 8, np.exp(rng.normal(0.0, 0.3, (8, m))), 10.0)
    yield "| PBMC, K = 6 | CPU s of an iteration | with 8 batches and their effects | ratio |"
    yield "|---|---|---|---|"
    for c, zeros in ((1.0, "adaptive"), (1.0, "chebyshev"), (math.inf, "exact"), (1.0, "exact")):
        link = ShiftedLog(c)
        quick = None if link.is_identity else quadratic(link)
        pairs, seconds = [], ([], [])
        for own in (None, batches):
            problem = Problem(counts, sizes, link, quick, batches=own)
            start = _last(_native(problem), point, 20)
            if own is not None:
                problem = replace(problem, batches=replace(own, effects=start.effects))
            engine = _native(problem if zeros == "chebyshev" else replace(problem, zeros=None))
            if zeros == "adaptive":
                renewing = AdaptiveUpdate(Settings.zeros_tol)
                engine = _native(renewing.chosen(engine, Point(start.loadings, start.factors), start.loss))
            pairs.append((engine, (start.loadings, start.factors)))
        for _ in range(3 if zeros == "exact" and c == 1.0 else 10):
            for times, (engine, where) in zip(seconds, pairs, strict=True):
                times.extend(_seconds(engine, where))
        form = zeros.replace("chebyshev", "approximate")
        plain, batched = (float(np.quantile(times, 0.25)) for times in seconds)
        yield f"| c = {c:g}, {form} | {plain:.3f} | {batched:.3f} | {batched / plain:.2f} |"
    yield f"load of the machine at the end: {os.getloadavg()[0]:.1f} processes on {os.cpu_count()} cores"


def _native(problem: Problem) -> Engine:
    return NativeEngine(problem, 1)


def _steps(engine: Engine, point: tuple[Array, Array], n: int) -> Iterator[Any]:
    how = {"extrapolation": Extrapolation(), "effects": finds_effects(engine)}
    return alternate(engine, *point, max_iter=n, **how)


def _last(engine: Engine, point: tuple[Array, Array], n: int) -> Any:
    *_, last = _steps(engine, point, n)
    return last


def _seconds(engine: Engine, point: tuple[Array, Array], n: int = 4) -> list[float]:
    """CPU seconds of each of n iterations, without the first and the last look."""
    at = [time.process_time() for step in _steps(engine, point, n + 1) if step.index <= n]
    return np.diff(at).tolist()


def main() -> None:
    """Print the tables that are asked for."""
    warnings.simplefilter("ignore")
    tables = {
        "recovery": recovery,
        "effects": effects,
        "starts": starts,
        "dispersed": dispersed,
        "convergence": convergence,
        "her2st": her2st,
        "pace": pace,
    }
    with threadpool_limits(1, user_api="blas"):  # as fits with batches have it
        for name in sys.argv[1:] or tables:
            for line in tables[name]():
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
