"""The fits: how well, how exactly and how far each went."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from log1pnmf.analysis.metrics import deviance_explained
from log1pnmf.counts.counts import Counts
from log1pnmf.estimator import Log1pNMF
from log1pnmf.fitting.fitting import LARGEST_CERTIFIED
from log1pnmf.fitting.summary import last_gain

from .figures import Chart, Curve, log_curves
from .subject import Subject
from .words import (
    count,
    link_in_words,
    percent,
    significant,
)

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
    """

    rows: list[tuple[str, list[str]]]
    charts: list[tuple[str, list[Chart]]]


def describe_fits(subject: Subject) -> FitSection:
    """Describe all fits of a report, side by side.

    Parameters
    ----------
    subject : Subject

    Returns
    -------
    FitSection
    """
    facts: list[tuple[str, Callable[[Log1pNMF], str]]] = [
        ("Link", _link),
        ("Factors (K)", lambda model: str(model.fit_.n_components)),
        ("Exact log-likelihood", _likelihood),
        ("Certificate of the approximation", _certificate),
        ("Converged", _converged),
        ("Gain of the last iteration", _gain),
        ("KKT residual (0 at an optimum)", lambda model: f"{model.fit_.kkt_residual:.1e}"),
        ("Iterations, seconds", lambda model: f"{model.fit_.n_iter:,}, {model.fit_.seconds:.1f} s"),
        ("Likelihood, start", _how),
    ]
    rows = [(name, [fact(model) for model in subject.models]) for name, fact in facts]
    if subject.counts is not None:
        counts = subject.counts
        rows.insert(3, ("Deviance explained", [_deviance(model, counts) for model in subject.models]))
    charts = [(label, _charts(model)) for label, model in zip(subject.labels, subject.models, strict=True)]
    return FitSection(rows, charts)


def early_stopping_note(model: Log1pNMF) -> str | None:
    """Say that a fit was stopped before its optimum; None where it was not.

    Parameters
    ----------
    model : Log1pNMF

    Returns
    -------
    str or None
    """
    fit = model.fit_
    if fit.converged:
        return None
    gain = last_gain(fit)
    still = "" if gain is None else f", still gaining {significant(gain)} in log-likelihood per iteration"
    return (
        f"stopped early: not converged after {count(fit.n_iter, 'iteration')}{still} "
        f"(KKT residual {fit.kkt_residual:.1e}). The picture may change as the fit goes on; "
        "raise max_iter, or stop earlier only on purpose"
    )


def _link(model: Log1pNMF) -> str:
    fit = model.fit_
    formula = "rate" if fit.link.is_identity else f"{fit.link.alpha:g} × log(1 + rate / {fit.c:g})"
    return f"{link_in_words(fit.c)}: {formula.removeprefix('1 × ')} = sum of the factors"


def _likelihood(model: Log1pNMF) -> str:
    certificate = model.certificate_
    if certificate is None:
        return f"{UNKNOWN}; certify(X) does that"
    entries = model._data.n_samples * model._data.n_features
    error = "" if certificate.is_exact else f" ± {certificate.standard_error:,.1f}"
    value = certificate.log_likelihood
    return f"{value:,.1f}{error} ({value / entries:.4g} per entry)"


def _deviance(model: Log1pNMF, counts: Counts) -> str:
    if not model.fit_.link.is_identity and math.prod(counts.shape) > LARGEST_CERTIFIED:
        return f"{UNKNOWN}: {math.prod(counts.shape):.2g} entries would have to be visited"
    share = deviance_explained(model, counts, n_jobs=model.n_jobs)
    return f"{percent(share)} of what totals of samples and features leave"


def _certificate(model: Log1pNMF) -> str:
    certificate = model.certificate_
    if certificate is None:
        return UNKNOWN
    if certificate.approximate_log_likelihood is None:
        return "the final likelihood is exact: nothing was approximated in it"
    share = abs(certificate.gap / certificate.log_likelihood) if certificate.log_likelihood else 0.0
    text = (
        f"the approximation is off by {significant(certificate.gap)} ({percent(share)} of the log-likelihood)"
    )
    if certificate.is_exact:
        return text
    return f"{text}, estimated from {certificate.n_sampled:,} of {certificate.n_samples:,} samples"


def _converged(model: Log1pNMF) -> str:
    return "yes" if model.fit_.converged else "NO: stopped early"


def _gain(model: Log1pNMF) -> str:
    gain = last_gain(model.fit_)
    if gain is None:
        return UNKNOWN
    relative = float(model.fit_.history["relative_change"][-1])
    return (
        f"{significant(gain)} ({relative:.1e} of the objective; tolerance {model.fit_.settings['tol']:.0e})"
    )


def _how(model: Log1pNMF) -> str:
    settings = model.fit_.settings
    text = f"{settings['likelihood']}, start {settings['init']}"
    if settings["n_init"] > 1:
        text += f" (best of {settings['n_init']})"
    if settings["l1"] > 0:
        text += f", l1 = {settings['l1']:g}"
    return f"{text}, seed {model.random_state}"


def _charts(model: Log1pNMF) -> list[Chart]:
    history = model.fit_.history
    styles = {"approximate": "line-2", "exact": "line-1"}
    to_go, change = [], []
    x = np.arange(len(history["iteration"]), dtype=np.float64)
    for phase in ("approximate", "exact"):
        chosen = history["likelihood"] == phase
        if not chosen.any():
            continue
        objective = history["objective"][chosen]
        to_go.append(Curve(phase, x[chosen][:-1], objective[:-1] - objective[-1], styles[phase]))
        change.append(Curve(phase, x[chosen], history["relative_change"][chosen], styles[phase]))
    tol = float(model.fit_.settings["tol"])
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
