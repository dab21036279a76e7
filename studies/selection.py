"""Does held-out likelihood find c, K and the penalty, and how long does it take?

    python -m studies.selection recover     # simulated from known c and K: what is selected
    python -m studies.selection sparse      # simulated sparse factors: supports along the penalty
    python -m studies.selection data bbc    # real data: c x K; also kang, pancreas, pbmc
    python -m studies.selection overdispersed --jobs 16    # which c and K, by noise, size factors and holdout
    python -m studies.selection cost --jobs 8    # what select costs, in default fits
    python -m studies.selection draw        # tables and pictures of docs/results/selection.md

Each appends to files under `--out` and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import DATA, ROOT, Folder
from benchmarks.measuring import Clock
from scipy.optimize import brentq

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import Selection, Setting, select
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.datasets import pancreas
from log1pnmf.fitting.settings import Settings
from log1pnmf.model.noise import ShiftedLog

DECADES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, math.inf)
TRUTHS = [(c, K) for c in (0.01, 1.0, math.inf) for K in (3, 6)]
NUMBERS = (2, 3, 4, 5, 6, 7, 8)
SHAPE = (200, 300)
PENALTIES = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
REAL: dict[str, tuple[int, ...]] = {
    "pancreas": (2, 4, 6, 9, 12),
    "bbc": (3, 5, 8, 12, 16),
    "kang": (3, 6, 9, 12),
    "pbmc": (2, 4, 6, 8, 10),
}
SAMPLE = (800, 2500)  # random samples, most frequent features; everything with --full


def simulated(
    c: float,
    n_components: int,
    seed: int,
    *,
    mean: float = 3.0,
    phi: float = 0.0,
    shape: tuple[int, int] = SHAPE,
) -> np.ndarray:
    """Counts of samples that belong to several parts, with a given mean; size factors are all 1."""
    rng = np.random.default_rng([seed, n_components, 7])
    loadings = rng.dirichlet(np.full(n_components, 0.4), size=shape[0])
    b = loadings @ rng.gamma(0.5, size=(shape[1], n_components)).T
    rates = _with_mean(b, ShiftedLog(c), mean)
    return rng.poisson(rates * rng.gamma(1.0 / phi, phi, rates.shape) if phi else rates)


def _with_mean(b: np.ndarray, link: ShiftedLog, mean: float) -> np.ndarray:
    def excess(power: float) -> float:
        return math.log(link.inverse(math.exp(power) * b).mean() / mean)

    return link.inverse(math.exp(brentq(excess, -15.0, 3.0)) * b)


# ---------------------------------------------------------------- known c and K


def recover(out: Path, *, seeds: int, mean: float, n_jobs: int) -> None:
    done = {(r["c"], r["K"], r["seed"], r["mean"]) for r in _read(out)}
    for seed in range(seeds):
        for c, K in TRUTHS:
            if (c, K, seed, mean) in done:
                continue
            clock = Clock()
            found = select(
                simulated(c, K, seed, mean=mean),
                NUMBERS,
                DECADES,
                noise="poisson",
                size_factors="none",
                n_starts=1,
                n_seeds=0,
                random_state=seed,
                n_jobs=n_jobs,
            )
            record = {"c": c, "K": K, "seed": seed, "mean": mean, "cpu": round(clock.read()[0], 1)}
            for name, one in (("best", found.best), ("one_se", found.one_se)):
                record |= {f"{name}_c": one.c, f"{name}_K": one.n_components}
            _append(out, record)
    print(recovered(_read(out), mean))


def overdispersed(arguments: argparse.Namespace) -> None:
    """Print which c and K are selected, among five values of c and K from 2 to 10; the true K is 6."""
    ways = [arguments.phi, (math.inf, 1.0, 0.1), arguments.noise, arguments.sizes, arguments.held_out]
    print(
        "| phi | true c | noise | size factors | held out | simplest c, K | c within a decade "
        f"| K within 1 | CPU s |\n{'|---' * 9}|"
    )
    with ProcessPoolExecutor(arguments.jobs) as pool:
        rows = {
            way: [pool.submit(_select_overdispersed, way, seed) for seed in range(arguments.seeds)]
            for way in itertools.product(*ways)
        }
        for (phi, c, *way), runs in rows.items():
            found = [run.result() for run in runs]
            near = sum(abs(FIVE.index(one.c) - FIVE.index(c)) <= 1 for one, _ in found)
            right = sum(abs(one.n_components - 6) <= 1 for one, _ in found)
            chosen = "; ".join(f"{one.c:g}, {one.n_components}" for one, _ in found)
            cpu = np.mean([seconds for _, seconds in found])
            numbers = f"{near} of {len(found)} | {right} of {len(found)} | {cpu:.0f}"
            print(f"| {phi:g} | {c:g} | {' | '.join(way)} | {chosen} | {numbers} |", flush=True)


FIVE = [0.01, 0.1, 1.0, 10.0, math.inf]


def _select_overdispersed(way: tuple[Any, ...], seed: int) -> tuple[Setting, float]:
    phi, c, noise, sizes, held_out = way
    clock, counts = Clock(), simulated(c, 6, seed, phi=phi)
    warnings.simplefilter("ignore")
    how: dict[str, Any] = {"noise": noise, "size_factors": sizes, "holdout": held_out}
    found = select(counts, range(2, 11), FIVE, **how, n_jobs=1)
    return found.one_se, clock.read()[0]


def cost(jobs: int) -> None:
    """Print CPU seconds of a default fit and of a default selection among K = 2 to 12, one thread each."""
    print("| table | phi | noise | fit, K = 6 | select | ratio | suggested |\n|---|---|---|---|---|---|---|")
    cases = ((0.0, "auto"), (0.5, "poisson"), (0.5, "auto"))
    tables = [(shape, *case) for shape in ((150, 200), (600, 500)) for case in cases]
    with ProcessPoolExecutor(jobs) as pool:
        for row in pool.map(_cost, *zip(*tables, strict=True)):
            print(row, flush=True)


def _cost(shape: tuple[int, int], phi: float, noise: str) -> str:
    warnings.simplefilter("ignore")
    counts, clock = simulated(1.0, 6, 0, phi=phi, shape=shape), Clock()
    fit_log1p_nmf(counts, 6, noise=noise, n_jobs=1, verbose=0)
    one, clock = clock.read()[0], Clock()
    found = select(counts, range(2, 13), noise=noise, n_jobs=1, verbose=0)
    all_of_it = clock.read()[0]
    figures = f"{one:.1f} | {all_of_it:.1f} | {all_of_it / one:.0f}"
    return f"| {shape[0]} x {shape[1]} | {phi:g} | {noise} | {figures} | {found.one_se} |"


def recovered(records: Iterable[dict[str, Any]], mean: float) -> str:
    """One line per truth: what was selected, and how often it is right."""
    lines = [
        "| true c | true K | runs | best c, K (times) | best right | one-SE right |",
        "|---|---|---|---|---|---|",
    ]
    kept = [record for record in records if record["mean"] == mean]
    for c, K in TRUTHS:
        runs = [record for record in kept if (record["c"], record["K"]) == (c, K)]
        found: dict[str, int] = {}
        for run in runs:
            name = f"{run['best_c']:g}, {run['best_K']}"
            found[name] = found.get(name, 0) + 1
        listed = "; ".join(f"{name} ({n})" for name, n in sorted(found.items(), key=lambda item: -item[1]))
        right = [sum(_right(run, which) for run in runs) for which in ("best", "one_se")]
        lines.append(f"| {c:g} | {K} | {len(runs)} | {listed} | {right[0]} | {right[1]} |")
    totals = [sum(_right(run, which) for run in kept) for which in ("best", "one_se")]
    lines.append(f"| all | | {len(kept)} | | **{totals[0]}** | **{totals[1]}** |")
    return "\n".join(lines)


def _right(run: dict[str, Any], which: str) -> bool:
    """c is the true one or the next decade, K within 1."""
    steps = abs(DECADES.index(run[f"{which}_c"]) - DECADES.index(run["c"]))
    return steps <= 1 and abs(run[f"{which}_K"] - run["K"]) <= 1


# ---------------------------------------------------------------- sparse factors


def sparse_truth(seed: int, *, n_components: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Counts from a baseline and three factors that raise a tenth of the features each; the factors."""
    rng = np.random.default_rng([seed, 11])
    n, m = SHAPE
    loadings = np.column_stack([np.ones(n), rng.uniform(size=(n, n_components - 1))])
    loadings[:, 1:] *= rng.random((n, n_components - 1)) < 0.5
    factors = np.column_stack([rng.gamma(1.0, 0.5, size=m), np.zeros((m, n_components - 1))])
    for k in range(1, n_components):
        raised = rng.choice(m, size=m // 10, replace=False)
        factors[raised, k] = rng.uniform(0.7, 2.0, size=len(raised))
    return rng.poisson(ShiftedLog(1.0).inverse(loadings @ factors.T)), factors


def sparse(out: Path, *, seeds: int, n_jobs: int) -> None:
    done = {r["seed"] for r in _read(out)}
    for seed in range(seeds):
        if seed in done:
            continue
        counts, factors = sparse_truth(seed)
        options: dict[str, Any] = {
            "size_factors": "none",
            "noise": "poisson",
            "random_state": seed,
            "n_jobs": n_jobs,
        }
        found = select(counts, 4, 1.0, l1=PENALTIES, likelihood="exact", n_seeds=0, **options)
        chosen = {"best": found.best.l1, "one_se": found.one_se.l1}
        scores = {}
        for penalty in PENALTIES:
            model = Log1pNMF(4, l1=penalty, likelihood="exact", max_iter=500, **options).fit(counts)
            scores[f"{penalty:g}"] = support_f1(factors[:, 1:], model.components_.T[:, 1:])
        summary = found.summary
        _append(
            out,
            {"seed": seed, "chosen": chosen, "f1": scores, "l1": summary["l1"].tolist()}
            | {name: summary[name].tolist() for name in ("difference", "se_difference")},
        )
    print(supports(_read(out)))


def support_f1(true: np.ndarray, found: np.ndarray) -> float:
    """Mean F1 of matched supports: entries above a hundredth of the factor's largest."""
    pairs = match_factors(true, found).pairs
    scores = []
    for a, b in pairs:
        wanted, got = true[:, a] > 0, found[:, b] > 0.01 * max(found[:, b].max(), 1e-12)
        scores.append(2 * np.count_nonzero(wanted & got) / (wanted.sum() + got.sum()))
    return float(np.mean(scores))


def supports(records: list[dict[str, Any]]) -> str:
    lines = [
        "| l1 | F1 of supports | held-out difference to best | chosen (best / one-SE) |",
        "|---|---|---|---|",
    ]
    for penalty in PENALTIES:
        f1 = np.mean([record["f1"][f"{penalty:g}"] for record in records])
        gap = np.mean([record["difference"][record["l1"].index(penalty)] for record in records])
        times = [
            sum(record["chosen"][which] == penalty for record in records) for which in ("best", "one_se")
        ]
        lines.append(f"| {penalty:g} | {f1:.2f} | {gap:,.0f} | {times[0]} / {times[1]} |")
    for which in ("best", "one_se"):
        mean = np.mean([record["f1"][f"{record['chosen'][which]:g}"] for record in records])
        better = sum(record["f1"][f"{record['chosen'][which]:g}"] > record["f1"]["0"] for record in records)
        lines.append(f"| {which} | **{mean:.2f}** | | better than l1=0 in {better} of {len(records)} |")
    return "\n".join(lines)


# ---------------------------------------------------------------- real data


def real_counts(name: str, folder: Path, *, full: bool) -> Counts:
    counts = Counts.from_any(pancreas().counts) if name == "pancreas" else Folder(folder).counts(name)
    if full:
        return counts
    matrix = counts.to_scipy()
    rows = np.sort(np.random.default_rng(0).permutation(matrix.shape[0])[: SAMPLE[0]])
    frequent = np.argsort(-np.asarray(matrix.sum(axis=0)).ravel(), kind="stable")[: SAMPLE[1]]
    return Counts.from_any(matrix[rows][:, np.sort(frequent)])


def real(name: str, out: Path, arguments: argparse.Namespace) -> Selection:
    counts, clock = real_counts(name, arguments.data, full=arguments.full), Clock()
    size = "full" if arguments.full else "sample"
    path = out / f"selection-{name}-{size}-{arguments.holdout}.npz"
    found = select(
        counts,
        REAL[name],
        DECADES,
        noise="poisson",
        holdout=arguments.holdout,
        n_starts=arguments.n_starts,
        n_seeds=0,
        tol=arguments.tol,
        random_state=0,
        n_jobs=arguments.n_jobs,
        resume=path,
    )
    cpu, wall = clock.read()
    print(f"{name} {counts.shape}: {cpu:.0f} CPU s, {wall:.0f} s")
    print(found)
    print(as_table(found))
    return found


def as_table(found: Selection) -> str:
    """Difference to the best, K down and c across."""
    summary = found.summary
    shifts = sorted(set(summary["c"]))
    lines = ["| K | " + " | ".join(f"c={c:g}" for c in shifts) + " |", "|---|" + "---|" * len(shifts)]
    for K in sorted(set(summary["n_components"])):
        cells = []
        for c in shifts:
            rows = np.flatnonzero((summary["n_components"] == K) & (summary["c"] == c))
            if not len(rows):
                cells.append("not tried")
                continue
            i = rows[0]
            gap, se = summary["difference"][i], summary["se_difference"][i]
            cells.append("**0**" if gap == 0 else f"{gap:,.0f} ({se:,.0f})")
        lines.append(f"| {K} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ---------------------------------------------------------------- pictures


def draw(out: Path, pictures: Path) -> None:
    """Print the tables and draw the supports that are there; what was not computed is left out."""
    from matplotlib.figure import Figure

    for path in sorted(out.glob("selection-*-*.npz")):
        name = path.stem.removeprefix("selection-")
        try:
            found = Selection.load(path)
        except ValueError as error:
            print(f"skipped {name}: {error}")
            continue
        print(name, found, as_table(found), sep="\n")
    records = _read(out / "selection-sparse.jsonl")
    if records:
        figure = Figure(figsize=(8.0, 3.0), layout="constrained")
        _draw_supports(figure, records)
        figure.savefig(pictures / "choosing-l1.png", dpi=110)


def _draw_supports(figure: Any, records: list[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    place = range(len(PENALTIES))
    for record in records:
        order = [record["l1"].index(penalty) for penalty in PENALTIES]
        chosen = PENALTIES.index(record["chosen"]["one_se"])
        gaps = [record["difference"][i] for i in order]
        f1 = [record["f1"][f"{penalty:g}"] for penalty in PENALTIES]
        for ax, values in ((left, gaps), (right, f1)):
            ax.plot(place, values, color="#888888", linewidth=0.9)
            ax.plot([chosen], [values[chosen]], "o", color="#d62728", markersize=4)
    left.set_ylim(-250.0, 15.0)
    left.set_title("held-out log-likelihood, difference to the best", loc="left", fontsize="small")
    right.set_title("F1 of the supports (whole data)", loc="left", fontsize="small")
    for ax in (left, right):
        ax.set_xticks(place, [f"{penalty:g}" for penalty in PENALTIES])
        ax.set_xlabel("penalty l1 (red: one-SE choice)")
        ax.spines[["top", "right"]].set_visible(False)


# ---------------------------------------------------------------- the command


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as out:
        out.write(json.dumps(record) + "\n")
    print(time.strftime("%H:%M:%S"), record, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.selection", description=__doc__)
    parser.add_argument("what", choices=["recover", "sparse", "data", "overdispersed", "cost", "draw"])
    parser.add_argument("name", nargs="?", choices=REAL, default="pancreas")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mean", type=float, default=3.0, help="mean count of `recover`")
    parser.add_argument("--holdout", choices=["counts", "samples"], default="counts")
    parser.add_argument("--full", action="store_true", help="`data`: all samples and features")
    parser.add_argument("--n-starts", type=int, default=1)
    parser.add_argument("--tol", type=float, default=Settings.tol)
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--phi", type=float, nargs="+", default=[0.0, 0.5], help="`overdispersed`")
    parser.add_argument("--noise", nargs="+", default=["auto"], help="`overdispersed`")
    parser.add_argument("--sizes", nargs="+", default=["total"], help="`overdispersed`")
    parser.add_argument("--held-out", nargs="+", default=["counts"], help="`overdispersed`")
    parser.add_argument("--jobs", type=int, default=1, help="`overdispersed` and `cost`: processes")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    if arguments.what == "recover":
        out = arguments.out / "selection-recover.jsonl"
        recover(out, seeds=arguments.seeds, mean=arguments.mean, n_jobs=arguments.n_jobs)
    elif arguments.what == "sparse":
        sparse(arguments.out / "selection-sparse.jsonl", seeds=arguments.seeds, n_jobs=arguments.n_jobs)
    elif arguments.what == "overdispersed":
        overdispersed(arguments)
    elif arguments.what == "cost":
        cost(arguments.jobs)
    elif arguments.what == "draw":
        draw(arguments.out, ROOT / "docs" / "img")
    else:
        real(arguments.name, arguments.out, arguments)


if __name__ == "__main__":
    main()
