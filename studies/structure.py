"""What gene sets with mistakes are good for as a mask; for known loadings see `studies.paper.mcf7_design`.

python -m studies.structure           # the table of docs/how-to/known-structure.md
python -m studies.structure --quick   # one small simulation
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import log1pnmf as lp

Array = NDArray[np.float64]

N_PROGRAMMES, IN_SET, WRONG = 10, 30, 0.2
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, math.inf)


def programmes(
    n: int, m: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], dict[str, list[int]]]:
    """Simulate counts of a baseline and ten programmes, and sets of which a fifth of the genes is wrong.

    Returns
    -------
    counts : ndarray of shape (n, m)
    truth : ndarray of bool, shape (m, 10)
    sets : dict of str to list of int
        As large as the truth: each has lost a fifth of its genes, and has as many others in their place.
    """
    rng = np.random.default_rng(seed)
    truth = np.zeros((m, N_PROGRAMMES), dtype=bool)
    for k in range(N_PROGRAMMES):
        truth[rng.choice(m, IN_SET, replace=False), k] = True
    factors = np.c_[np.log1p(rng.gamma(0.5, 0.6, m)), truth * rng.uniform(0.5, 1.5, truth.shape)]
    usage = rng.uniform(0.0, 1.0, (n, N_PROGRAMMES)) * (rng.random((n, N_PROGRAMMES)) < 0.2)
    loadings = np.c_[rng.uniform(0.8, 1.2, n), usage]
    counts = rng.poisson(np.expm1(loadings @ factors.T))
    sets = {}
    for k in range(N_PROGRAMMES):
        right, others = np.flatnonzero(truth[:, k]), np.flatnonzero(~truth[:, k])
        n_wrong = int(WRONG * IN_SET)
        chosen = [
            *rng.choice(right, IN_SET - n_wrong, replace=False),
            *rng.choice(others, n_wrong, replace=False),
        ]
        sets[f"set {k}"] = sorted(int(j) for j in chosen)
    return counts, truth, sets


def judged(factors: Array, truth: NDArray[np.bool_]) -> dict[str, float]:
    """Say how many of the 30 leading genes of a factor are right, and how well all genes are ordered."""
    hits = np.array(
        [[truth[np.argsort(-one)[:IN_SET], k].mean() for k in range(truth.shape[1])] for one in factors.T]
    )
    mine, theirs = linear_sum_assignment(-hits)
    above = [(factors[:, i] > 0.25 * np.sort(factors[:, i])[-IN_SET // 3]) for i in mine]
    return {
        "leading": float(hits[mine, theirs].mean()),
        "precision": float(np.mean([truth[one, k].mean() for one, k in zip(above, theirs, strict=True)])),
        "recall": float(np.mean([one[truth[:, k]].mean() for one, k in zip(above, theirs, strict=True)])),
    }


def gene_sets(n: int, m: int, seeds: range) -> None:
    """Compare fits without a mask, and with masks that cost more and more."""
    print(f"{n} samples, {m} features, {len(seeds)} simulations; sets have {WRONG:.0%} wrong genes")
    print(
        "| mask | right among the top 30 | precision | recall | missing genes recovered "
        "| wrong genes removed | CPU s |"
    )
    print("|---|---|---|---|---|---|---|")
    for penalty in (None, *PENALTIES):
        rows = []
        for seed in seeds:
            counts, truth, sets = programmes(n, m, seed)
            given: dict[str, Any] = {} if penalty is None else {"mask": sets, "mask_penalty": penalty}
            begun = time.process_time()
            fit = lp.fit_log1p_nmf(counts, N_PROGRAMMES + 1, n_jobs=1, tol=1e-7, random_state=seed, **given)
            seconds = time.process_time() - begun
            factors = fit.factors if penalty is None else fit.factors[:, :N_PROGRAMMES]
            row = judged(factors[:, 1:] if penalty is None else factors, truth)
            row |= dict.fromkeys(("back", "out"), math.nan)
            if penalty is not None:
                listed = np.zeros_like(truth)
                for k, members in enumerate(sets.values()):
                    listed[members, k] = True
                leading = np.zeros_like(truth)
                for k in range(N_PROGRAMMES):
                    leading[np.argsort(-factors[:, k])[:IN_SET], k] = True
                row["back"] = float(leading[truth & ~listed].mean())
                row["out"] = float(1.0 - leading[listed & ~truth].mean())
            rows.append({**row, "seconds": seconds})
        name = "none" if penalty is None else f"`mask_penalty={penalty:g}`"
        means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        shares = " | ".join(
            f"{means[key]:.0%}" if means[key] == means[key] else "–" for key in list(means)[:-1]
        )
        print(f"| {name} | {shares} | {means['seconds']:.1f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    gene_sets(*((300, 300) if quick else (500, 600)), range(1 if quick else 3))


if __name__ == "__main__":
    main()
