"""Draw the pictures of docs/how-to/markers.md: ``PYTHONPATH=. python docs/markers_pictures.py [NAME ...]``.

MCF-7 is from ../shared/data, the pancreas cells are part of the package.
"""

import sys
import warnings

from figures import IMAGES
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from studies.calibration import mcf7_fits, treatment_factor

import log1pnmf as lp

TREATMENTS = {"RA": "RA factor", "TGFb": "TGF-beta factor"}


def volcano() -> Figure:
    """Genes that rise with each treatment factor of MCF-7."""
    ((_, fit, data),) = mcf7_fits((10.0,))
    found = lp.analysis.markers(fit, data.X, feature_names=data.var_names)
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    for ax, (treatment, title) in zip(figure.subplots(1, 2), TREATMENTS.items(), strict=True):
        lp.pl.volcano(found, treatment_factor(fit, data, treatment), title=title, ax=ax)
    return figure


def diagnostics() -> Figure:
    """What a fit of the pancreas cells does not explain."""
    data = lp.datasets.pancreas()
    model = lp.Log1pNMF(9, c=1.0).fit(data.counts)
    figure = Figure(figsize=(8.9, 3.8), layout="constrained")
    found = lp.analysis.diagnose(model, data.counts, feature_names=data.feature_names)
    lp.pl.diagnostics(found, figure=figure)
    return figure


FIGURES = {"volcano": volcano, "diagnostics": diagnostics}

if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]().savefig(IMAGES / f"markers-{name}.png", dpi=110)
