"""The fits: how well, how exactly and how far each went."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from log1pnmf._common.words import plural
from log1pnmf.analysis.metrics import deviance_explained
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.certificate import LARGEST_CERTIFIED
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import c_name
from log1pnmf.fitting.summary import last_gain, levelled, noise_in_words

from .figures import Chart, Curve, log_curves
from .inputs import ReportInput
from .words import link_in_words, percent, significant

__all__ = ["FitSection", "describe_fits", "early_stopping_note"]

UNKNOWN = "not computed"


@dataclass(frozen=True)
class FitSection:
    """What the report says of how the fits went.

    Parameters
    ----------
    rows : list of (str, list of str)
        Name of a fact, and its value for every model.
    charts : list of (str, list of Chart)
        For every model: its label and what there is to be drawn of its iterations.
    explained : list of float
        Share of the deviance that every model explains; NaN where it was not computed.
    """

    rows: list[tuple[str, list[str]]]
    charts: list[tuple[str, list[Chart]]]
    explained: list[float]


def describe_fits(inputs: ReportInput) -> FitSection:
    """Describe all fits of a report, side by side."""
    facts: list[tuple[str, Callable[[Fit], str]]] = [
        ("Link", _link),
        ("Noise", noise_in_words),
        ("Factors (K)", lambda fit: str(fit.n_components)),
        ("Exact log-likelihood", _likelihood),
        ("Error at zero counts", _certificate),
        ("Converged", _converged),
        ("Gain of the last iteration", _gain),
        ("KKT residual (0 at an optimum)", lambda fit: f"{fit.kkt_residual:.1e}"),
        ("Iterations, seconds", lambda fit: f"{fit.n_iter:,}, {fit.seconds:.1f} s"),
        ("Likelihood, start", _how),
    ]
    rows = [(name, [fact(fit) for fit in inputs.fits]) for name, fact in facts]
    explained = [_explained(fit, inputs.counts, inputs.n_jobs) for fit in inputs.fits]
    if inputs.counts is not None:
        texts = [_deviance(fit, share) for fit, share in zip(inputs.fits, explained, strict=True)]
        rows.insert(4, ("Deviance explained", texts))
    charts = [(label, _charts(fit)) for label, fit in zip(inputs.labels, inputs.fits, strict=True)]
    return FitSection(rows, charts, explained)


def early_stopping_note(fit: Fit) -> str | None:
    """Say that a fit ended before its optimum; None where it did not."""
    if fit.converged:
        return None
    if fit.stopped == "stalled":
        return (
            f"stalled after {plural(fit.n_iter, 'iteration')}: no step lowers the objective any more, but "
            f"this is not an optimum (KKT residual {fit.kkt_residual:.1e}). Rescale or drop extreme counts "
            "or size factors, or try another init"
        )
    gain = last_gain(fit)
    still = "" if gain is None else f", still gaining {significant(gain)} in log-likelihood per iteration"
    return (
        f"stopped early: not converged after {plural(fit.n_iter, 'iteration')}{still} "
        f"(KKT residual {fit.kkt_residual:.1e}). The picture may change as the fit continues; raise max_iter"
    )


def _link(fit: Fit) -> str:
    formula = "rate" if fit.link.is_identity else f"{fit.link.alpha:g} × log(1 + rate / {c_name(fit.c)})"
    return f"{link_in_words(fit.c)}: {formula.removeprefix('1 × ')} = sum of the factors"


def _likelihood(fit: Fit) -> str:
    certificate = fit.certificate
    if certificate is None:
        return f"{UNKNOWN}; certify(X) computes it"
    entries = fit.data.n_entries
    error = "" if certificate.is_exact else f" ± {certificate.standard_error:,.1f}"
    value = certificate.log_likelihood
    return f"{value:,.1f}{error} ({value / entries:.4g} per entry)"


def _explained(fit: Fit, counts: Counts | None, n_jobs: int | None) -> float:
    if counts is None or (not fit.link.is_identity and math.prod(counts.shape) > LARGEST_CERTIFIED):
        return math.nan
    return deviance_explained(fit, counts, n_jobs=n_jobs)


def _deviance(fit: Fit, share: float) -> str:
    if math.isnan(share):
        return f"{UNKNOWN}: it would visit {fit.data.n_entries:.2g} entries"
    own = "" if fit.dispersion is None else ", under negative binomial noise"
    return f"{percent(share)} beyond the totals of samples and features{own}"


def _certificate(fit: Fit) -> str:
    certificate = fit.certificate
    if certificate is None:
        return UNKNOWN
    if certificate.approximate_log_likelihood is None:
        return "exact: nothing was approximated"
    size = abs(certificate.log_likelihood) or 1.0
    if certificate.zeros_error > 0.0:
        return (
            f"errors at zero counts sum to at most {significant(certificate.zeros_error)} "
            f"({certificate.zeros_error / size:.1e} of the log-likelihood)"
        )
    share = abs(certificate.gap / size)
    text = (
        f"the approximation is off by {significant(certificate.gap)} ({percent(share)} of the log-likelihood)"
    )
    if certificate.is_exact:
        return text
    return f"{text}, estimated from {certificate.n_sampled:,} of {certificate.n_samples:,} samples"


def _converged(fit: Fit) -> str:
    return "yes" if fit.converged else f"NO: {'stalled' if fit.stopped == 'stalled' else 'stopped early'}"


def _gain(fit: Fit) -> str:
    gain = last_gain(fit)
    if gain is None:
        return UNKNOWN
    relative = float(fit.history["relative_change"][levelled(fit.history)[0]][-1])
    return f"{significant(gain)} ({relative:.1e} of the objective; tolerance {fit.settings.tol:.0e})"


def _how(fit: Fit) -> str:
    settings = fit.settings
    text = f"{settings.likelihood}, start {settings.init}"
    if settings.n_init > 1:
        text += f" (best of {settings.n_init})"
    if settings.l1 > 0:
        text += f", l1 = {settings.l1:g}"
    return f"{text}, seed {settings.random_state}"


def _charts(fit: Fit) -> list[Chart]:
    rows, objective = levelled(fit.history)
    x = fit.history["iteration"][rows].astype(np.float64)
    kind = str(fit.history["likelihood"][-1])
    style = {"approximate": "line-2", "adaptive": "line-3"}.get(kind, "line-1")
    to_go = [Curve(kind, x[:-1], objective[:-1] - objective[-1], style)]
    change = [Curve(kind, x, fit.history["relative_change"][rows], style)]
    tol = float(fit.settings.tol)
    charts = [
        log_curves(
            to_go,
            label="Objective above its final value, by iteration",
            x_title="iteration",
            y_title="above final objective",
        ),
        log_curves(
            change,
            label="Relative change of the objective, by iteration, and the tolerance",
            x_title="iteration",
            y_title="relative change",
            level=(tol, f"tolerance {tol:.0e}") if tol > 0 else None,
        ),
    ]
    return [chart for chart in charts if chart is not None]
