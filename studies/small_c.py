"""What small c costs: CPU seconds, iterations and log-likelihood of one SVD start, from c = 1 down to 0.001.

    python -m studies.small_c --sets bbc ap
    python -m studies.small_c --sets newsgroups --samples 1500

`gap` is what the adaptive zeros are off, relative to the exact log-likelihood; `exact` the iterations that
visited all zeros. `--samples` draws samples and keeps the features that at least five of them have.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from benchmarks.data import DATA, Folder
from threadpoolctl import threadpool_limits

from log1pnmf import fit_log1p_nmf

from .zeros_tables import N_COMPONENTS


def main() -> None:
    """Print a row for every data set and c."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=list(N_COMPONENTS), default=["bbc", "ap"])
    parser.add_argument("--c", nargs="+", type=float, default=[1.0, 0.1, 0.01, 0.001])
    parser.add_argument("--samples", type=int)
    given = parser.parse_args()
    print("data, c, CPU s, iterations, exact, log-likelihood, gap, ended")
    for data in given.sets:
        matrix = Folder(DATA).matrix(data).tocsr()
        if given.samples is not None:
            drawn = np.random.default_rng(0).permutation(matrix.shape[0])[: given.samples]
            matrix = matrix[np.sort(drawn)]
            matrix = matrix[:, np.bincount(matrix.indices, minlength=matrix.shape[1]) >= 5]
        for c in given.c:
            kinds: list[str] = []
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                began = time.process_time()
                fit = fit_log1p_nmf(
                    matrix,
                    N_COMPONENTS[data],
                    c=c,
                    init="nndsvd",
                    n_jobs=1,
                    callbacks=[lambda now, kinds=kinds: kinds.append(now.likelihood)],
                )
            seconds, reached = time.process_time() - began, fit.log_likelihood
            gap = 0.0
            if fit.approximate_log_likelihood is not None:
                gap = (fit.approximate_log_likelihood - reached) / abs(reached)
            print(
                f"{data}, {c:g}, {seconds:.1f}, {fit.n_iter}, {kinds.count('exact')}, {reached:.1f}, "
                f"{gap:.1e}, {fit.stopped}",
                flush=True,
            )


if __name__ == "__main__":
    main()
