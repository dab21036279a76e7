"""Log-likelihoods of fits with negative binomial noise to real counts, for docs/explanation/noise.md.

python -m studies.noise_likelihood pbmc 7      # data of ../shared/data, number of factors; c = inf
python -m studies.noise_likelihood kang 13
"""

from __future__ import annotations

import sys
import time

import numpy as np
from benchmarks.data import Folder

from log1pnmf import fit_log1p_nmf
from log1pnmf.fitting.solver import Iteration

FEWEST_SAMPLES = 30
"""Features in fewer samples are left out."""


def main(name: str, n_components: str) -> None:
    matrix = Folder().matrix(name)
    matrix = matrix[:, np.diff(matrix.tocsc().indptr) >= FEWEST_SAMPLES]
    started = time.process_time()
    print(f"{name}: {matrix.shape[0]:,} x {matrix.shape[1]:,}, K={n_components}, c=inf", flush=True)

    def progress(iteration: Iteration) -> None:
        if iteration.index % 10 == 0:
            seconds = time.process_time() - started
            print(f"{iteration.index:5d}  {-iteration.loss:,.0f}  {seconds:,.0f} CPU s", flush=True)

    fit = fit_log1p_nmf(
        matrix, int(n_components), c=np.inf, noise="nb", n_jobs=1, max_iter=1000, callbacks=[progress]
    )
    seconds = time.process_time() - started
    print(
        f"log-likelihood {fit.log_likelihood:,.0f}, {fit.stopped} after {fit.n_iter} iterations, "
        f"{seconds:,.0f} CPU s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
