"""Independent fits at several c against a sweep, whose fits start from their neighbours: the bundled cells.

python -m studies.sweeps     # a table of docs/how-to/anndata.md; about ten CPU minutes

All settings but K and the seed are the defaults. The first half of a sweep, with rising c,
is a column as well.
"""

from __future__ import annotations

import argparse
import math
import warnings

from benchmarks.measuring import Clock

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.stability import fits_along
from log1pnmf.datasets import pancreas

SHIFTS = (0.01, 0.1, 1.0, 10.0, 100.0, math.inf)
K = 9

Found = tuple[dict[float, float], float]
"""Log-likelihoods by c, and CPU seconds."""


def measured(seed: int) -> dict[str, Found]:
    """Run both kinds of fits with one seed."""
    counts, found = pancreas().counts, {}
    for name, warm in (("its own start", False), ("up and down", True)):
        clock, best = Clock(), dict.fromkeys(SHIFTS, -math.inf)
        given = {"random_state": seed, "n_jobs": 1}
        own = (fit_log1p_nmf(counts, K, c=c, **given) for c in SHIFTS)
        along = fits_along(counts, K, SHIFTS, **given) if warm else own
        for i, fit in enumerate(along):
            best[fit.c] = max(best[fit.c], fit.log_likelihood)
            if warm and i == len(SHIFTS) - 1:
                found["only up"] = dict(best), clock.read()[0]
        found[name] = best, clock.read()[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    warnings.simplefilter("ignore")
    runs = [measured(seed) for seed in range(parser.parse_args().seeds)]
    names = ("its own start", "only up", "up and down")
    tops = {c: max(run[name][0][c] for run in runs for name in names) for c in SHIFTS}
    gaps = [max(tops[c] - run[name][0][c] for run in runs for c in SHIFTS) for name in names]
    seconds = [", ".join(f"{run[name][1]:.0f}" for run in runs) for name in names]
    print("| |", " | ".join(names), "|\n|" + "---|" * 4)
    print("| largest distance to the best log-likelihood |", " | ".join(f"{gap:,.0f}" for gap in gaps), "|")
    print("| CPU s, seed by seed |", " | ".join(seconds), "|")


if __name__ == "__main__":
    main()
