"""Does `evidence` tell factors from noise? Simulated: 200 x 150 counts of a baseline and two factors.

python -m benchmarks.evidence      # the figures of docs/choosing.md; about two CPU minutes
"""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.evidence import Evidence, evidence
from log1pnmf.datasets import pancreas

from .calibration import Case, simulate
from .measuring import Clock

KINDS = (("Poisson", 0.0, "poisson"), ("dispersion 0.5", 0.5, "nb"), ("dispersion 0.5", 0.5, "poisson"))


def shares(values: np.ndarray) -> str:
    return ", ".join(f"{value:.0%}" for value in values)


def described(found: Evidence) -> str:
    """The columns of the table: range of losses, relative to noise; how often factors came back."""
    low, high = found.loss.min() / found.from_noise, found.loss.max() / found.from_noise
    times = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
    return f"{times} | {shares(found.seeds)} | {shares(found.bootstrap)}"


def main() -> None:
    warnings.simplefilter("ignore")
    print("| counts | `noise` | c | K | `times_noise` | `seeds` | `bootstrap` |\n|" + "---|" * 7)
    for (name, phi, noise), k, c in itertools.product(KINDS, (3, 4), (1.0, math.inf)):
        counts = simulate(Case("", c, 200, 150, 4.0, phi), 0)[0]
        found = evidence(fit_log1p_nmf(counts, k, c=c, noise=noise, n_jobs=1), counts, n_jobs=1)
        print(f"| {name} | {noise} | {c:g} | {k} | {described(found)} |", flush=True)
    cells = pancreas().counts
    fit, clock = fit_log1p_nmf(cells, 9, n_jobs=1), Clock()
    found = evidence(fit, cells, n_seeds=3, n_bootstrap=5, n_jobs=1)
    print(f"| pancreas | poisson | 1 | 9 | {described(found)} | ({clock.read()[0]:.0f} CPU s)")


if __name__ == "__main__":
    main()
