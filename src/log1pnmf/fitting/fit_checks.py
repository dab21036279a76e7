"""Checks of a fit that comes from a file: its parts have to go together."""

from __future__ import annotations

from typing import Any

from log1pnmf._common.archive import check_numbers, check_value
from log1pnmf._common.checks import check_choice
from log1pnmf.fitting.solver.callbacks import History

from .known_parts import check_kinds
from .naming import check_factor_names

__all__ = ["DISPERSION", "NAMES", "check_fit"]

DISPERSION = "dispersion"
"""An array that only fits with negative binomial noise have."""
NAMES = ("sample_names", "feature_names", "given_factor_names", "factor_kinds")
STOPPED = ("converged", "max_iter", "stalled", "interrupted", "callback")

MOST_COMPONENTS = 10_000
"""Factors that the settings in a file may ask for, beyond those it has."""


def _check_noise(fit: Any) -> None:
    asked, had = fit.asked.noise, fit.settings.noise
    if asked not in ("auto", had) or had == "auto" or (had == "nb") != (fit.dispersion is not None):
        raise ValueError(f"noise is {fit.settings.noise!r}, which does not go with the rest")
    if fit.dispersion is not None:
        check_numbers(DISPERSION, fit.dispersion, (len(fit.factors),))


def _check_names(fit: Any) -> None:
    lengths = (len(fit.loadings), len(fit.factors), fit.n_components, fit.n_components)
    for what, length in zip(NAMES, lengths, strict=True):
        names = getattr(fit, what)
        if names is not None and names.shape != (length,):
            raise ValueError(f"{what} must be {length}, got shape {names.shape}")
    if fit.given_factor_names is not None:
        check_factor_names(fit.given_factor_names, fit.n_components)
    check_kinds(fit.kinds, fit.mask, len(fit.factors))


def check_fit(fit: Any) -> None:
    """Refuse a fit whose parts do not fit together; only damaged or forged files hold one."""
    if fit.loadings.ndim != 2 or fit.factors.ndim != 2 or 0 in fit.loadings.shape + fit.factors.shape:
        raise ValueError(f"loadings and factors have shapes {fit.loadings.shape} and {fit.factors.shape}")
    (n, k), m = fit.loadings.shape, len(fit.factors)
    check_numbers("loadings", fit.loadings, (n, k))
    check_numbers("factors", fit.factors, (m, k))
    check_numbers("size_factors", fit.size_factors, (n,), positive=True)
    _check_noise(fit)
    _check_names(fit)
    check_choice("stopped", fit.stopped, STOPPED)
    for name in ("objective", "kkt_residual", "seconds"):
        check_value(name, getattr(fit, name), float)
    if fit.approximate_log_likelihood is not None:
        check_value("approximate_log_likelihood", fit.approximate_log_likelihood, float)
    check_value("n_iter", fit.n_iter, int)
    for message in fit.messages:
        check_value("message", message, str)
    fit.data.check()
    if fit.certificate is not None:
        fit.certificate.check()
    check_value("whole", fit.whole, bool)
    if (fit.data.n_samples if fit.whole else n, fit.data.n_features) != (n, m):
        raise ValueError(f"data must be of {n} samples and {m} features, got {fit.data}")
    if fit.settings.n_components != k or fit.settings.link != fit.asked.link:
        raise ValueError(f"settings are of another fit: {fit.settings}")
    if fit.asked.n_components > max(MOST_COMPONENTS, k):
        raise ValueError(f"n_components is {fit.asked.n_components:,}")
    if "auto" in (fit.settings.likelihood, fit.settings.extrapolate):
        raise ValueError("settings must be those of a finished fit")
    History.check(fit.history)
