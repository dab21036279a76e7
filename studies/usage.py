"""Is a difference of loadings between groups of donors found as often by chance as it should be?

    python -m studies.usage --jobs 16                    # tables of docs/results/tests.md; 40 CPU minutes
    python -m studies.usage --tables counts --runs 50    # one of them, with fewer simulations
    python -m studies.usage --first 1000 --jobs 16       # on seeds on which nothing was chosen

Table "counts" begins with counts, drawn without the package. Donors differ in their mean loadings, cells
scatter around them, depth varies, and in the second group some factors are multiplied by a number (in the
first cell type, if there are several; under the first tenth of the guides; along the age). Loadings
are estimated with totals as size factors: for the true factors, or with them where the row says "fitted".
Counted is how often p <= 0.05 for factors that are not shifted (type I error rate) and for those that are
(power), with loadings as they are and relative to the factors that keep their proportions; in which share of
the comparisons rivals of these are named, for which it is told that they changed relative to each other
(p <= 0.05), and for which that is false.

Table "loadings" draws loadings, with more designs: few donors, unequal numbers of cells, pairs, ages, guides.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from log1pnmf import Fit, ShiftedLog, fit_log1p_nmf
from log1pnmf.analysis.usage import usage

UNEQUAL = (10, 50, 250)


@dataclass(frozen=True)
class Counts:
    """Counts of the cells of two groups of donors; the first factor is a baseline of all features."""

    name: str
    c: float = 1.0
    shifted: tuple[int, ...] = ()
    shift: float = 1.6
    n_factors: int = 5
    baseline: bool = True
    fitted: bool = False
    donors: tuple[int, int] = (6, 6)
    cells: tuple[Any, Any] = (50, 50)
    parts: int = 1  # cell types, of each of which every donor has so many cells
    interaction: bool = False
    ages: bool = False  # every donor has a number from 0 to 1, and no group
    guides: int = 0  # beside controls, in each of so many replicates as the first group has donors


INF = float("inf")
COUNTS = [
    Counts("no factor shifted"),
    Counts("one of 5 factors shifted", shifted=(1,)),
    Counts("one, strongly", shifted=(1,), shift=2.5),
    Counts("half of 5 factors", shifted=(1, 2)),
    Counts("half of 8 factors", shifted=(1, 2, 3, 4), n_factors=8),
    Counts("one of 5, fitted", shifted=(1,), fitted=True),
    Counts("one of 5, c = inf", INF, shifted=(1,)),
    Counts("half of 5, c = inf", INF, shifted=(1, 2)),
    Counts("one of 5, c = inf, fitted", INF, shifted=(1,), fitted=True),
    Counts("one of 6, c = inf, no baseline", INF, shifted=(1,), n_factors=6, baseline=False),
    Counts("half of 6, c = inf, no baseline", INF, shifted=(1, 2, 3), n_factors=6, baseline=False),
    Counts("the same, strongly", INF, shifted=(1, 2, 3), shift=2.5, n_factors=6, baseline=False),
    Counts("the same, c = 1", shifted=(1, 2, 3), n_factors=6, baseline=False),
    Counts("3 donors against 3, 10 to 250 cells", donors=(3, 3), cells=(UNEQUAL, UNEQUAL)),
    Counts("3 donors (10 cells) against 9 (250)", donors=(3, 9), cells=(10, 250)),
    Counts("slope on the age of 12 donors, one of 5 shifted", shifted=(1,), ages=True),
    Counts("within 3 cell types, one of 5 shifted in one", shifted=(1,), parts=3),
    Counts("the same, interaction", shifted=(1,), parts=3, interaction=True),
    Counts("the same, 3 donors against 3", shifted=(1,), parts=3, interaction=True, donors=(3, 3)),
    Counts("100 guides in 3 replicates, 10 shift one of 5", shifted=(1,), donors=(3, 0), guides=100),
]


def draw_units(design: Counts, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw group (or number), donor and cell type of every cell, and to which its unit belongs."""
    first, second = design.donors
    if design.guides:
        group, donor = np.divmod(np.arange((design.guides + 1) * first), first)
        cells = np.where(group == 0, 200, 20)
    else:
        group, donor = np.repeat([0.0, 1.0], design.donors), np.arange(first + second)
        own = zip(design.donors, design.cells, strict=True)
        cells = np.concatenate([np.resize(cells, donors) for donors, cells in own])
        if design.ages:
            group = rng.random(len(donor))
    unit = np.repeat(np.arange(design.parts * len(donor)), np.tile(cells, design.parts))
    part, place = np.divmod(unit, len(donor))
    return group[place], donor[place], part, unit


def draw_counts(design: Counts, rng: np.random.Generator, n_features: int = 200) -> tuple[Any, ...]:
    """Draw counts, groups, donors and types of cells, and the factors."""
    k = design.n_factors
    factors = np.where(rng.random((n_features, k)) < 0.2, rng.uniform(0.5, 1.5, (n_features, k)), 0.0)
    if design.baseline:
        factors[:, 0] = rng.uniform(0.3, 1.5, n_features)
    else:
        factors += 0.02
    is_base = (np.arange(k) == 0) & design.baseline
    low, high = 1e-3, 1e2  # scale at which a typical sample has 400 counts
    for _ in range(60):
        middle = np.sqrt(low * high)
        eta = middle * (factors @ np.where(is_base, 1.0, 0.5))
        enough = (eta if np.isinf(design.c) else design.c * np.expm1(eta)).sum() > 400.0
        low, high = (low, middle) if enough else (middle, high)
    factors *= low
    group, donor, part, unit = draw_units(design, rng)
    scatter = np.where(is_base, 0.1, 0.2)
    level = np.exp(scatter * rng.standard_normal((donor.max() + 1, k)))[donor]
    if unit.max() > donor.max():  # several units of a donor
        level *= np.exp(0.5 * scatter * rng.standard_normal((unit.max() + 1, k)))[unit]
    moved = (group <= 0.1 * design.guides) * (group > 0) if design.guides else group * (part == 0)
    level[:, list(design.shifted)] *= design.shift ** moved[:, None]
    shape, often = np.where(is_base, 50.0, 8.0), np.full((design.parts, k), 0.5)
    if design.parts > 1:
        often = np.where(np.arange(k) % design.parts == np.arange(design.parts)[:, None], 0.8, 0.3)
    active = is_base | (rng.random(level.shape) < often[part])
    active[~active.any(axis=1), 0] = True
    eta = (level * active * rng.gamma(shape, 1.0 / shape, level.shape)) @ factors.T
    depth = rng.lognormal(0.0, 0.4, len(donor)) * np.exp(0.2 * rng.standard_normal(donor.max() + 1))[donor]
    counts = rng.poisson((eta if np.isinf(design.c) else design.c * np.expm1(eta)) * depth[:, None])
    seen = counts.any(axis=1)
    return counts[seen], group[seen], donor[seen], part[seen], factors


def p_of_counts(design: Counts, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return p-values with loadings as they are and relative to others, and what is told of rivals.

    Factors are in the true order. For each comparison: are rivals named, told apart, and is that false?
    """
    counts, group, donor, part, factors = draw_counts(design, np.random.default_rng([seed, 7]))
    alpha = 1.0 if np.isinf(design.c) else ShiftedLog(design.c).alpha
    known = {} if design.fitted else {"fixed_factors": factors * alpha}
    k = design.n_factors
    labels = group if design.ages else np.array([f"{one:03.0f}" for one in group])
    how = {"within": part, "interaction": design.interaction} if design.parts > 1 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(counts, k, c=design.c, n_jobs=1, random_state=0, **known)
        found = [usage(fit, labels, replicate=donor, relative_to=one, **how) for one in (None, "auto")]
    alike = np.corrcoef(fit.factors.T, factors.T)[:k, k:]
    order = linear_sum_assignment(-alike.T)[1]
    names = np.array(found[1].factor_names, dtype=object)[order]
    truth = shifted_tests(design, len(found[1].p)).astype(float)
    if design.interaction:
        truth[1:] *= -1.0
    told = np.zeros((len(truth), 3), dtype=bool)
    rows = zip(truth, found[1].relative_to, found[1].rivals, strict=True)
    for place, (moved, stable, others) in enumerate(rows):
        if others:
            change = moved[np.isin(names, others)].mean() - moved[np.isin(names, stable)].mean()
            sure = found[1].rivals_p[place] <= 0.05
            told[place] = True, sure, sure and change * found[1].rivals_change[place] <= 0.0
    return np.stack([one.p[:, order] for one in found]), told


def shifted_tests(design: Counts, n_rows: int) -> np.ndarray:
    """Return which tests are of a difference that is there, rows x factors."""
    rows = np.arange(n_rows)
    if design.guides:
        rows = rows < design.guides // 10
    elif design.parts > 1 and not design.interaction:
        rows = rows == 0
    else:
        rows = rows >= 0
    return rows[:, None] & np.isin(np.arange(design.n_factors), design.shifted)


def rows_of_counts(n_runs: int, first: int, pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield the rows of the table of counts."""
    yield (
        "| counts | type I error rate: as they are | type I error rate: relative | rivals named "
        "| told apart | falsely | power: as they are | power: relative |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for design in COUNTS:
        n = max(n_runs // 10, 2) if design.guides else n_runs
        runs = pool.map(p_of_counts, [design] * n, range(first, first + n), chunksize=1)
        p, told = map(np.array, zip(*runs, strict=True))  # run, kind, row, factor; run, row, 3
        called, shifted = p <= 0.05, shifted_tests(design, p.shape[2])
        rates = [*called[:, :, ~shifted].mean(axis=(0, 2)), *told.mean(axis=(0, 1))]
        rates += [*called[:, :, shifted].mean(axis=(0, 2))] if shifted.any() else []
        listed = [f"{rate:.3f}" for rate in rates] + [""] * (7 - len(rates))
        yield f"| {design.name} | {' | '.join(listed)} |"


@dataclass(frozen=True)
class Loadings:
    """Donors in each of two groups; paired donors are in both, and have a level of their own.

    With `ages` there are no groups: every donor has an age from 20 to 80, and `effect` is that of 60 years.
    With `guides` every donor is in so many groups.
    """

    name: str
    donors: tuple[int, int]
    cells: tuple[Any, Any] = (50, 50)
    paired: bool = False
    n_factors: int = 8
    effect: float = 0.0
    ages: bool = False
    scatter: float = 0.08  # between donors; 0.15 between cells
    guides: int = 2


LOADINGS = [
    *(Loadings(f"{n} donors against {n}", (n, n)) for n in (3, 6, 12)),
    Loadings("3 against 3; 10, 50 and 250 cells", (3, 3), (UNEQUAL, UNEQUAL)),
    Loadings("3 (10 cells) against 3 (250)", (3, 3), (10, 250)),
    Loadings("3 (10 cells) against 9 (250)", (3, 9), (10, 250)),
    Loadings("3 (10 cells) against 9 (250), donors alike", (3, 9), (10, 250), scatter=0.02),
    Loadings("3 (250 cells) against 9 (10)", (3, 9), (250, 10)),
    *(Loadings(f"{n} donors, each in both groups", (n, n), paired=True) for n in (3, 6)),
    Loadings("3 donors against 3, 3 factors", (3, 3), n_factors=3),
    Loadings("3 donors against 3, 20 factors", (3, 3), n_factors=20),
    Loadings(
        "200 guides in 3 replicates, 10 to 250 cells",
        (3, 3),
        (UNEQUAL, UNEQUAL),
        guides=200,
        paired=True,
    ),
    *(Loadings(f"slope on the age of {2 * n} donors", (n, n), ages=True) for n in (3, 6)),
    Loadings("3 donors against 3, difference of 0.2", (3, 3), effect=0.2),
    Loadings("6 donors against 6, difference of 0.2", (6, 6), effect=0.2),
    Loadings("slope on the age of 12 donors, 0.2 in 60 years", (6, 6), effect=0.2, ages=True),
]


@cache
def empty_fit(k: int) -> Fit:
    """Make a fit, to be given loadings."""
    return fit_log1p_nmf(np.ones((k, k)), k, random_state=0, tol=1e-2, max_iter=50, n_jobs=1)


def p_of_loadings(design: Loadings, seed: int) -> tuple[float, float]:
    """How often differences are called, and how often intervals hold the true one."""
    rng, k = np.random.default_rng([seed, *design.donors]), design.n_factors
    sizes = design.donors if design.guides == 2 else (design.donors[0],) * design.guides
    group = np.repeat(np.arange(len(sizes)), sizes).astype(float)
    donor = np.concatenate([np.arange(n) for n in sizes]) if design.paired else np.arange(len(group))
    cells = np.concatenate([np.resize(design.cells[i % 2], n) for i, n in enumerate(sizes)])
    if design.ages:
        group = rng.integers(0, 61, len(group)) / 60.0
    level = rng.uniform(0.2, 0.6, k) + design.effect * np.minimum(group, 1.0)[:, None]
    level = level + design.paired * 0.1 * rng.standard_normal((len(group), k))[donor]
    means = level + design.scatter * rng.gamma(4.0, 0.25, k) * rng.standard_normal((len(group), k))
    loadings = np.repeat(means, cells, axis=0)
    loadings = np.maximum(loadings + 0.15 * rng.standard_normal(loadings.shape), 0.0)
    labels = (20 + 60 * group).round() if design.ages else np.char.add("g", group.astype(int).astype(str))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = usage(
            replace(empty_fit(k), loadings=loadings),
            np.repeat(labels, cells),
            replicate=np.repeat(donor, cells),
            relative_to=None,
        )
    truth = design.effect / (60.0 if design.ages else 1.0)
    return float((found.p <= 0.05).mean()), float(((found.lower <= truth) & (truth <= found.upper)).mean())


def rows_of_loadings(n_runs: int, first: int, pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield the rows of the table of loadings."""
    yield "| donors | p <= 0.05 | coverage of 95% intervals |"
    yield "|---|---|---|"
    for design in LOADINGS:
        n = 5 * n_runs if design.guides == 2 else max(n_runs // 20, 4)
        runs = pool.map(p_of_loadings, [design] * n, range(first, first + n), chunksize=5)
        called, covered = np.array(list(runs)).mean(axis=0)
        yield f"| {design.name} | {called:.3f} | {covered:.1%} |"


TABLES = {"counts": rows_of_counts, "loadings": rows_of_loadings}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        for name in asked.tables:
            for row in TABLES[name](asked.runs, asked.first, pool):
                print(row, flush=True)
            print()  # or both would be one table


if __name__ == "__main__":
    main()
