"""Cost of exact and approximate log-likelihoods relative to standard Poisson NMF: predicted and measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import make_engine
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic
from studies.paper.drawing import panels
from studies.paper.study import Options, Report, run

COLORS = {"exact": "#2176c7", "approximate": "#c0392b"}


@dataclass(frozen=True)
class Size:
    """Shape of a problem."""

    n: int
    m: int
    K: int
    zeros: float

    @property
    def nonzeros(self) -> float:
        """Number of entries that are not zero."""
        return self.n * self.m * (1.0 - self.zeros)


def predicted(size: Size) -> dict[str, float]:
    """Operations relative to standard Poisson NMF (the paper's table)."""
    standard = (size.nonzeros + size.n + size.m) * size.K
    return {
        "exact": size.n * size.m * size.K / standard,
        "approximate": 1.0 + (size.n + size.m) * size.K**2 / standard,
    }


def measured(size: Size, repeats: int) -> dict[str, float]:
    """Seconds of our log-likelihood relative to standard Poisson NMF, one thread, best of some."""
    rng = np.random.default_rng(0)
    counts = sparse.random_array((size.n, size.m), density=1.0 - size.zeros, rng=rng, format="csr")
    counts.data[:] = 1.0 + np.floor(3.0 * rng.random(counts.nnz))
    data = Counts.from_any(counts)
    loadings, factors = (rng.uniform(0.01, 0.3, size=(n, size.K)) for n in (size.n, size.m))
    problems = {
        "standard": (ShiftedLog(math.inf), None),
        "exact": (ShiftedLog(1.0), None),
        "approximate": (ShiftedLog(1.0), quadratic(ShiftedLog(1.0))),
    }
    seconds = {}
    for name, (link, zeros) in problems.items():
        engine = make_engine("native", Problem(data, np.ones(size.n), link, zeros), 1)
        seconds[name] = _best_of(repeats, lambda engine=engine: engine.loss(loadings, factors))
    return {name: seconds[name] / seconds["standard"] for name in COLORS}


def _best_of(repeats: int, call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "complexity", "Computational complexity")
    base, small = (
        Size(10_000, 10_000, 25, 0.95),
        options.pick(Size(2000, 2000, 25, 0.95), Size(200, 200, 5, 0.9)),
    )
    ways: dict[str, tuple[Any, Any]] = {
        "n": (np.unique(np.geomspace(26, 1e6, 60).astype(int)), options.pick((250, 1000, 4000), (100, 400))),
        "K": (np.arange(1, 251, 3), options.pick((2, 5, 12, 25, 50), (2, 5))),
        "zeros": (np.linspace(0.01, 0.99, 60), options.pick((0.5, 0.8, 0.9, 0.95, 0.99), (0.5, 0.9))),
    }
    figure, axes = panels(1, 3, (11.0, 3.4))
    rows = []
    for ax, (name, (curve, points)) in zip(axes[0], ways.items(), strict=True):
        lines = [predicted(replace(base, **{name: value})) for value in curve]
        found = [measured(replace(small, **{name: value}), options.pick(5, 1)) for value in points]
        for kind, color in COLORS.items():
            ax.plot(curve, [line[kind] for line in lines], color=color, label=f"{kind}, predicted")
            ax.plot(points, [one[kind] for one in found], "o", color=color, label=f"{kind}, measured")
        rows += [
            {"varied": name, **vars(replace(small, **{name: value})), **_beside(one, small, name, value)}
            for value, one in zip(points, found, strict=True)
        ]
        ax.set(xlabel="part of zeros" if name == "zeros" else name, yscale="log")
        ax.set_xscale("log" if name == "n" else "linear")
        ax.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("cost relative to standard Poisson NMF")
    axes[0, 0].legend(frameon=False, fontsize="x-small")
    report.figure(
        "cost",
        figure,
        f"Lines: operations, {_text(base)}. Points: seconds of our log-likelihood on one thread, "
        f"{_text(small)}; one of them varied.",
    )
    report.table("measured", rows, "Measured cost relative to standard Poisson NMF.")
    _claims(report, base, rows)
    report.save()


def _beside(found: dict[str, float], small: Size, name: str, value: Any) -> dict[str, float]:
    expected = predicted(replace(small, **{name: value}))
    return {
        f"{kind}, {how}": one[kind]
        for kind in COLORS
        for how, one in (("predicted", expected), ("measured", found))
    }


def _text(size: Size) -> str:
    return f"n = {size.n:,}, m = {size.m:,}, K = {size.K}, {size.zeros:.0%} zeros"


def _claims(report: Report, base: Size, rows: list[dict[str, Any]]) -> None:
    large = predicted(replace(base, n=1_000_000))
    report.claim(
        "large sparse data: the approximation costs nearly what standard NMF does (predicted, n = 1e6)",
        paper="nearly as fast; exact about 20 times",
        ours=f"approximate {large['approximate']:.2f}, exact {large['exact']:.1f}",
        agrees=large["approximate"] < 1.2 and large["exact"] > 15,
    )
    sparsest = max(row["exact, measured"] for row in rows)
    nearest = min(row["approximate, measured"] for row in rows)
    report.claim(
        "measured with our engine: exact is much slower on sparse data, approximate is near standard",
        paper="orders of magnitude",
        ours=f"exact up to {sparsest:.0f} times; approximate from {nearest:.1f} times",
        agrees=sparsest > 10 and nearest < 3,
    )


if __name__ == "__main__":
    run(study, __doc__)
