"""Exact fits that begin with adaptive zeros, and those that visit all zeros from the beginning; in turns.

    python -m studies.exact_fits [--data pbmc bbc ap] [--c 0.1] [--noise nb]

CPU seconds on one thread, from the same random start. It prints the table of the documentation.
"""

from __future__ import annotations

import argparse
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
from benchmarks.data import Folder
from benchmarks.measuring import Clock, all_zeros_visited

from log1pnmf import fit_log1p_nmf

from .zeros_tables import N_COMPONENTS


def row(folder: Folder, name: str, **model: Any) -> str:
    counts, k, cells = folder.counts(name), N_COMPONENTS[name], []
    for adaptive in (True, False):
        with nullcontext() if adaptive else all_zeros_visited(), warnings.catch_warnings():
            clock = Clock()
            warnings.simplefilter("ignore")
            fit = fit_log1p_nmf(counts, k, likelihood="exact", init="random", n_jobs=1, **model)
        n_exact = np.count_nonzero(np.asarray(fit.history["likelihood"]) == "exact")
        cells += [f"{clock.read()[0]:.1f}", f"{fit.n_iter} ({n_exact})", f"{fit.log_likelihood:,.0f}"]
    return f"| {name}, K = {k} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.exact_fits", description=__doc__)
    parser.add_argument("--data", nargs="*", default=["pbmc", "bbc", "ap"])
    parser.add_argument("--noise", choices=("poisson", "nb"), default="poisson")
    parser.add_argument("--c", type=float, default=1.0)
    options = parser.parse_args()
    folder = Folder()
    columns = ("CPU s", "iterations (exact)", "log-likelihood")
    print("| data | " + " | ".join([*columns, *(f"all zeros: {one}" for one in columns)]) + " |")
    print("|---" * 7 + "|")
    for name in options.data:
        print(row(folder, name, c=options.c, noise=options.noise), flush=True)


if __name__ == "__main__":
    main()
