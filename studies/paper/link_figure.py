"""The link function g(lambda; c) for several c."""

from __future__ import annotations

import math

import numpy as np

from log1pnmf.model.noise import ShiftedLog
from studies.paper.drawing import panels
from studies.paper.study import Options, Report, run

SHIFTS = (0.01, 0.1, 1.0, 10.0, math.inf)


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "link_figure", "The link function")
    figure, axes = panels(1, 1, (5.0, 3.6))
    ax, shown = axes[0, 0], np.linspace(0.0, 10.0, 401)
    for c in SHIFTS:
        ax.plot(shown, ShiftedLog(c).link(shown), label=f"c = {c:g}")
    ax.set(xlabel="rate", ylabel="link", xlim=(0.0, 10.0))
    ax.legend(frameon=False)
    report.figure("link", figure, "g(lambda; c) = max(1, c) log(1 + lambda / c).")
    rates = np.linspace(0.1, 10.0, 100)
    off = float(np.abs(ShiftedLog(1e6).link(rates) / rates - 1.0).max())
    small = np.diff(ShiftedLog(1e-6).link(rates)) / np.diff(np.log(rates))
    report.claim(
        "g is the identity for large c, and log(lambda) plus a constant for small c",
        paper="in the limit",
        ours=f"c = 1e6: relative difference {off:.1e}; c = 1e-6: slope in log(lambda) {small.min():.6f} to "
        f"{small.max():.6f}",
        agrees=off < 1e-4 and bool(np.allclose(small, 1.0, atol=1e-4)),
    )
    report.save()


if __name__ == "__main__":
    run(study, __doc__)
