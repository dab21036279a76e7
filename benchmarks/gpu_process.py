"""What a user's program does on a card: it loads counts and fits them. `benchmarks.gpu` starts it."""

from __future__ import annotations

import sys
import time

MARKS = [("Python", time.time())]

import numpy as np  # noqa: E402
from scipy import sparse  # noqa: E402

from log1pnmf import fit_log1p_nmf  # noqa: E402

NAMES = ("indptr", "indices", "values", "L", "F", "shape")


def main(folder: str, began: float) -> None:
    """Fit the counts of a folder from a start near the truth, and say when each part was done."""
    MARKS.append(("NumPy, SciPy and package", time.time()))
    loaded = {name: np.load(f"{folder}/{name}.npy") for name in NAMES}
    parts = (loaded["values"], loaded["indices"], loaded["indptr"])
    counts = sparse.csr_array(parts, shape=tuple(loaded["shape"]))
    MARKS.append(("data", time.time()))
    options = {"c": 1.0, "likelihood": "exact", "max_iter": 200, "engine": "torch"}
    fit = fit_log1p_nmf(counts, loaded["L"].shape[1], init=(loaded["L"], loaded["F"]), **options)
    iterations = f"{fit.n_iter} iterations in {fit.history['seconds'][-1]:.2f} s"
    MARKS.append((f"PyTorch and fit, {iterations}", time.time()))
    print("process: " + "; ".join(f"{name} {at - began:.2f} s" for name, at in MARKS), fit.stopped)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
