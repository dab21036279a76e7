"""What tests of markers cost: CPU seconds of `markers` on some of the pancreas cells, one thread.

python -m studies.markers_pace
"""

from __future__ import annotations

import warnings

from benchmarks.measuring import Clock

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.marker_tests import shrink
from log1pnmf.analysis.markers import markers

from .rankings import DATA_SETS, subsample


def main() -> None:
    warnings.simplefilter("ignore")
    counts, k = subsample("pancreas").counts, DATA_SETS["pancreas"].n_components
    fit = fit_log1p_nmf(counts, k, init="nndsvd", tol=1e-5, max_iter=150, n_jobs=1)
    print(f"{counts.shape[0]:,} x {counts.shape[1]:,}, K = {k}, c = {fit.c:g}\n\n| part | CPU s |\n|---|---|")
    for split in (False, True):
        clock = Clock()
        found = markers(fit, counts, split=split, n_jobs=1)
        print(f"| markers, split={split} | {clock.read()[0]:.1f} |", flush=True)
    clock = Clock()
    for j in range(k):
        shrink(found.effect[:, j], found.error[:, j])
    print(f"| of it shrinkage | {clock.read()[0]:.1f} |")


if __name__ == "__main__":
    main()
