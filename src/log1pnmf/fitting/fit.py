"""What a fit returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.archive import (
    StrPath,
    check_numbers,
    check_value,
    making_whole,
    read_archive,
    write_archive,
)
from log1pnmf.fitting.solver.callbacks import History
from log1pnmf.model.link import ShiftedLog

from .settings import LIKELIHOODS, Settings, check_choice

__all__ = ["Fit", "Reason", "check_fit", "check_history"]

Reason: TypeAlias = Literal["converged", "max_iter", "stalled", "callback", "interrupted"]
"""Why a fit ended. "stalled": no step lowers the objective, but the point is not a stationary one."""

ARRAYS = ("loadings", "factors", "size_factors")
NUMBERS = (
    "c",
    "log_likelihood",
    "approximate_log_likelihood",
    "objective",
    "kkt_residual",
    "converged",
    "n_iter",
    "seconds",
    "stopped",
)
HISTORY = "history."


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the link scale: ``loadings @ factors.T = alpha_c * log(1 + lam / c)``.
    c : float
        Shift of the link, may be inf.
    size_factors : ndarray of shape (n,)
        Counts are ``Poisson(size_factors_i * lam_ij)``.
    log_likelihood : float or None
        Exact, full Poisson log-likelihood; None where it was not computed, and `messages` say why.
    approximate_log_likelihood : float or None
        What an approximate fit has maximised; None for exact fits.
    objective : float
        What was minimised: negative log-likelihood (approximate in an approximate fit) + penalty.
    kkt_residual : float
        Distance from a stationary point, see `log1pnmf.model.objective.kkt_residual`.
    converged : bool
        Whether the tolerance was met (in every phase).
    n_iter : int
        Updates of both factors, over all phases of the best restart.
    seconds : float
        Wall time, restarts included.
    history : dict of str to ndarray
        See `log1pnmf.fitting.solver.callbacks.History.table`.
    settings : dict
        What was asked for, resolved: "auto" replaced by what it stood for.
    messages : tuple of str
        What is worth knowing about the data and the fit.
    stopped : {"converged", "max_iter", "stalled", "callback", "interrupted"} or None
        Why the fit ended. "stalled": no step lowered the objective any more, yet the KKT residual is not that
        of an optimum. None: not known, the fit was saved by an earlier version.
    """

    loadings: NDArray[np.float64]
    factors: NDArray[np.float64]
    c: float
    size_factors: NDArray[np.float64]
    log_likelihood: float | None
    approximate_log_likelihood: float | None
    objective: float
    kkt_residual: float
    converged: bool
    n_iter: int
    seconds: float
    history: Mapping[str, np.ndarray] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)
    messages: tuple[str, ...] = ()
    stopped: Reason | None = None

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.factors.shape[1]

    @property
    def link(self) -> ShiftedLog:
        """The link function."""
        return ShiftedLog(self.c)

    def save(self, path: StrPath) -> None:
        """Write the fit to one file, without pickle and whole or not at all.

        Parameters
        ----------
        path : str or PathLike
            Used as it is; an npz file, see `log1pnmf._common.archive`.

        Examples
        --------
        >>> import os, tempfile
        >>> from log1pnmf import fit_log1p_nmf
        >>> fit = fit_log1p_nmf([[1, 0, 3], [2, 5, 0]], 1, random_state=0)
        >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
        >>> fit.save(path)
        >>> bool((Fit.load(path).loadings == fit.loadings).all())
        True
        """
        write_archive(path, *self.to_parts())

    @classmethod
    def load(cls, path: StrPath) -> Fit:
        """Read a fit that `save` wrote; every number has the same bits.

        Parameters
        ----------
        path : str or PathLike

        Returns
        -------
        Fit

        Raises
        ------
        ValueError
            For files that are damaged, of a newer format or not fits.
        """
        parts = read_archive(path, kind="fit")
        with making_whole(f"{path} holds a fit", "save it again"):
            return cls.from_parts(*parts)

    def to_parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Take the fit apart for `log1pnmf._common.archive.write_archive`.

        Returns
        -------
        arrays : dict of str to ndarray
        metadata : dict
        """
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays.update({HISTORY + name: column for name, column in self.history.items()})
        metadata = {"kind": "fit", **{name: getattr(self, name) for name in NUMBERS}}
        return arrays, {**metadata, "settings": dict(self.settings), "messages": list(self.messages)}

    @classmethod
    def from_parts(cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Fit:
        """Put together and check what `to_parts` took apart; entries that are not of a fit are left alone.

        Parameters
        ----------
        arrays : dict of str to ndarray
        metadata : dict

        Returns
        -------
        Fit
        """
        settings = dict(metadata["settings"])
        if settings["interval"] is not None:
            settings["interval"] = tuple(settings["interval"])
        values: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
        values.update({name: metadata[name] for name in NUMBERS if name != "stopped"})
        fit = cls(
            **values,
            history={
                name.removeprefix(HISTORY): column
                for name, column in arrays.items()
                if name.startswith(HISTORY)
            },
            settings=settings,
            messages=tuple(metadata["messages"]),
            stopped=metadata.get("stopped"),
        )
        check_fit(fit)
        return fit


def check_fit(fit: Fit) -> None:
    """Refuse a fit whose parts do not belong together, as only files and strangers give them.

    Parameters
    ----------
    fit : Fit

    Raises
    ------
    ValueError
        Or TypeError, where a setting is of the wrong type.
    """
    if fit.loadings.ndim != 2 or fit.factors.ndim != 2 or 0 in fit.loadings.shape + fit.factors.shape:
        raise ValueError(f"loadings and factors have shapes {fit.loadings.shape} and {fit.factors.shape}")
    n, k = fit.loadings.shape
    check_numbers("loadings", fit.loadings, (n, k))
    check_numbers("factors", fit.factors, (len(fit.factors), k))
    check_numbers("size_factors", fit.size_factors, (n,), positive=True)
    for name in ("c", "objective", "kkt_residual", "seconds"):
        check_value(name, getattr(fit, name), float)
    for name in ("log_likelihood", "approximate_log_likelihood"):
        if getattr(fit, name) is not None:
            check_value(name, getattr(fit, name), float)
    check_value("converged", fit.converged, bool)
    check_value("n_iter", fit.n_iter, int)
    if fit.stopped is not None:
        check_choice("stopped", fit.stopped, get_args(Reason))
    for message in fit.messages:
        check_value("message", message, str)
    check_history(fit.history)
    settings = dict(fit.settings)
    check_value("settings.n_jobs", settings.pop("n_jobs"), int)
    check_choice("settings.likelihood", settings["likelihood"], LIKELIHOODS[1:])
    for name, plain in (("size_factors", "none"), ("init", "rank1")):
        check_value(f"settings.{name}", settings[name], str)
        settings[name] = plain if settings[name] == "given" else settings[name]
    checked = Settings(**settings, n_jobs=None, callbacks=(), verbose=0)
    if checked.n_components != k or checked.link != fit.link:
        raise ValueError(f"settings are of another fit: c = {checked.c}, {checked.n_components} factors")


def check_history(table: Mapping[str, np.ndarray]) -> None:
    """Refuse what is not the history of a fit.

    Parameters
    ----------
    table : dict of str to ndarray
        As from `log1pnmf.fitting.solver.callbacks.History.table`.
    """
    kinds = {"iteration": "i", "likelihood": "U", **dict.fromkeys(History.COLUMNS, "f")}
    if set(table) != set(kinds):
        raise ValueError(f"history must have the columns {', '.join(kinds)}")
    length = table["iteration"].size
    for name, kind in kinds.items():
        if table[name].dtype.kind != kind or table[name].shape != (length,) or not length:
            raise ValueError(f"history.{name} has {table[name].dtype} of shape {table[name].shape}")
