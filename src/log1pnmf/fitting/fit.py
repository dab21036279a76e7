"""`Fit`, the central object of the package: a fitted model with all that analysis, plots and files need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.archive import making_whole, read_archive, write_archive
from log1pnmf._common.atomic import StrPath
from log1pnmf._common.words import plural
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.facts import Certificate, DataFacts
from log1pnmf.model.batches import Batches
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.noise import POISSON, Noise
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import Zeros

from .arrangement import scale_of, scaled
from .fit_checks import DISPERSION, NAMES, check_fit
from .kept_batches import batch_parts, batches_from
from .keys import c_label
from .known_parts import known_parts
from .naming import marked_names, new_factor_names, usual_factor_names
from .settings import Settings

__all__ = ["Fit", "Stopped"]

Array = NDArray[np.float64]
Names = NDArray[np.object_]

Stopped: TypeAlias = Literal["converged", "max_iter", "stalled", "interrupted", "callback"]
"""Why a fit ended. "stalled": no step lowers the objective, but the point is not a stationary one."""

KIND = "fit"
ARRAYS = ("loadings", "factors", "size_factors")
MASK = "mask"
NUMBERS = ("stopped", "objective", "approximate_log_likelihood", "kkt_residual", "n_iter", "seconds")
HISTORY = "history."


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A fitted model.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        Loadings and factors on the link scale: ``loadings @ factors.T = alpha_c * log(1 + lam / c)``. The
        baseline comes first, then the others by share of the signal; ``settings.normalize`` sets the scale.
    size_factors : ndarray of shape (n,)
        Size factors of the samples. The mean of a count is ``size_factors_i * lam_ij``, times the effect of
        the batch if there are batches.
    settings : Settings
        Settings used: "auto" is replaced by the choice that was made.
    asked : Settings
        Settings requested.
    data : DataFacts
        Size of the data.
    stopped : {"converged", "max_iter", "stalled", "interrupted", "callback"}
        Why the fit ended.
    objective : float
        Objective that was minimised: negative log-likelihood (in the form that was fitted) plus penalty.
    approximate_log_likelihood : float or None
        Log-likelihood that an approximate or adaptive fit maximised; None for exact fits.
    kkt_residual : float
        Distance from a stationary point, 0 at an optimum.
    n_iter : int
        Iterations of the best start.
    seconds : float
        Wall time, restarts included.
    history : dict of str to ndarray
        One entry per iteration, see `log1pnmf.callbacks.History.table`.
    certificate : Certificate or None
        Exact log-likelihood, if known; see `log1pnmf.Log1pNMF.certify`.
    sample_names, feature_names : ndarray of str, optional
        Names of samples and features.
    messages : tuple of str
        Notes about the data and the fit.
    dispersion : ndarray of shape (m,) or None
        With negative binomial noise the variance of a count is ``mean + dispersion_j * mean**2``; None with
        Poisson noise.
    batches : Batches or None
        Effects of the batches on the features, if the fit has batches.
    given_factor_names : ndarray of str, optional
        Names that `renamed` gave; the property `factor_names` always has names.
    factor_kinds : ndarray of str, shape (K,), optional
        What was known of each factor: "loadings", "pattern" (samples without it), "factors", "mask", or
        "free" for nothing; None if all factors are free.
    mask : ndarray of bool, shape (m, K_masked), optional
        Features that factors of kind "mask" may have.
    whole : bool
        Whether the loadings are those of all samples that were fitted. Otherwise they are of some of them, or
        of new samples, while `data`, `stopped`, `objective` and `history` are of the fit itself.
    """

    loadings: Array
    factors: Array
    size_factors: Array
    settings: Settings
    asked: Settings
    data: DataFacts
    stopped: Stopped
    objective: float
    approximate_log_likelihood: float | None
    kkt_residual: float
    n_iter: int
    seconds: float
    history: Mapping[str, np.ndarray]
    certificate: Certificate | None = None
    sample_names: Names | None = None
    feature_names: Names | None = None
    messages: tuple[str, ...] = ()
    dispersion: Array | None = None
    given_factor_names: Names | None = None
    batches: Batches | None = None
    factor_kinds: Names | None = None
    mask: NDArray[np.bool_] | None = None
    whole: bool = True

    def __repr__(self) -> str:
        n, m = len(self.loadings), len(self.factors)
        return (
            f"<Fit of {n:,} samples x {m:,} features: {plural(self.n_components, 'factor')}, {self.name}, "
            f"{plural(self.n_iter, 'iteration')} ({self.stopped}), objective {self.objective:,.6g}>"
        )

    @property
    def c(self) -> float:
        """Shift of the link, may be inf."""
        return self.settings.c

    @property
    def link(self) -> ShiftedLog:
        """The link function."""
        return self.settings.link

    @property
    def noise(self) -> Noise:
        """How counts scatter around their means."""
        return POISSON if self.dispersion is None else NegativeBinomial(self.dispersion)

    def exposure(self, rows: Any = slice(None)) -> Array:
        """Give what the rates of samples (all, or these `rows`) are multiplied by; with batches n x m."""
        sizes = self.size_factors[rows, None]
        return sizes if self.batches is None else sizes * self.batches.rows(rows)

    def problem(self, counts: Counts, zeros: Zeros | None = None) -> Problem:
        """Give the problem of the counts of the fit, at its end, with some form of the `zeros`."""
        return Problem(counts, self.size_factors, self.link, zeros, self.noise, self.batches)

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.factors.shape[1]

    @property
    def converged(self) -> bool:
        """Whether the fit reached an optimum, up to the tolerance."""
        return self.stopped == "converged"

    @property
    def log_likelihood(self) -> float | None:
        """Exact, full log-likelihood; None if it was not computed (`messages` say why)."""
        known = self.certificate
        return known.log_likelihood if known is not None and known.is_exact else None

    @property
    def name(self) -> str:
        """Short label: the shift of the link."""
        return c_label(self.c)

    @property
    def factor_names(self) -> list[str]:
        """Names of the factors, as `renamed` gave them; otherwise "k0" is the first, the baseline."""
        if self.given_factor_names is not None:
            return [str(name) for name in self.given_factor_names]
        return usual_factor_names(self.n_components)

    @property
    def factor_labels(self) -> list[str]:
        """Names of the factors as plots and lists show them: "(known)" marks what was not free."""
        return marked_names(self.factor_names, self.kinds)

    @property
    def kinds(self) -> list[str]:
        """What was known of each factor, see `factor_kinds`; "free" for nothing."""
        if self.factor_kinds is None:
            return ["free"] * self.n_components
        return [str(kind) for kind in self.factor_kinds]

    @property
    def known_parts(self) -> tuple[Any, Any, Any]:
        """Loadings, factors and mask that were known, as ``fixed_loadings=`` and so on take them, or None."""
        return known_parts(self.kinds, self.factor_names, self.loadings, self.factors, self.mask)

    @property
    def feature_labels(self) -> Names:
        """Names of the features, or their numbers where they have none."""
        if self.feature_names is not None:
            return self.feature_names
        return np.arange(len(self.factors)).astype(str).astype(object)

    def normalized(self, normalize: str) -> Fit:
        """Return the same fit on another scale; the order stays.

        Parameters
        ----------
        normalize : {"max", "factor_max", "factor_sum", "none"}
            See `log1pnmf.Log1pNMF`; "none" changes nothing.

        Returns
        -------
        Fit
        """
        if normalize == self.settings.normalize:  # some of its samples keep the scale of all
            return self
        scale = scale_of(self.loadings, self.factors, normalize, self.kinds)
        settings = replace(self.settings, normalize=normalize)
        loadings, factors = scaled(self.loadings, self.factors, scale)
        return replace(self, loadings=loadings, factors=factors, settings=settings)

    def of_samples(self, loadings: Array, size_factors: Array, batches: Batches | None, why: str) -> Fit:
        """Return the same factors with `loadings`, `size_factors` and `batches` of other samples.

        Log-likelihoods of the fit are not theirs and are left out; messages begin with `why`.
        """
        return replace(
            self,
            loadings=loadings,
            size_factors=size_factors,
            batches=batches,
            sample_names=None,
            certificate=None,
            approximate_log_likelihood=None,
            messages=(f"{why}; objective, convergence and history are those of the fit", *self.messages),
            whole=False,
        )

    def check_whole(self, what: str) -> None:
        """Refuse `what` needs the loadings of all samples that were fitted."""
        if not self.whole:
            raise ValueError(
                f"{what} needs all {self.data.n_samples:,} samples of the fit, unchanged, and these are "
                "others or some of them; pass the original object, or fit these samples"
            )

    def named(self, *, sample_names: Any = None, feature_names: Any = None) -> Fit:
        """Return the same fit with names of samples or features; None changes nothing.

        Parameters
        ----------
        sample_names, feature_names : sequence of str, optional
            Names of samples and features.

        Returns
        -------
        Fit
        """
        changed: dict[str, Any] = {}
        for what, given, length in (
            ("sample_names", sample_names, len(self.loadings)),
            ("feature_names", feature_names, len(self.factors)),
        ):
            if given is None:
                continue
            names = np.array([str(name) for name in given], dtype=object)
            if names.shape != (length,):
                each = what.partition("_")[0]
                raise ValueError(
                    f"{what} must have one name for each of the {length} {each}s, got {len(names)}"
                )
            changed[what] = names
        return replace(self, **changed) if changed else self

    def renamed(self, names: Any) -> Fit:
        """Return the same fit with new names of factors, used by every table, plot and file.

        Parameters
        ----------
        names : sequence of str, or mapping of name or number to str
            Names of all factors, or of some: ``{"k1": "interferon"}``.

        Returns
        -------
        Fit
        """
        return replace(self, given_factor_names=new_factor_names(self.factor_names, names))

    # ---------------------------------------------------------------- keeping

    def save(self, path: StrPath) -> None:
        """Write the fit to one file, without pickle and atomically.

        Parameters
        ----------
        path : str or PathLike
            File to write, in npz format; no ending is added.

        Examples
        --------
        >>> import os, tempfile
        >>> from log1pnmf import fit_log1p_nmf
        >>> fit = fit_log1p_nmf([[1, 0, 3], [2, 5, 0]], 1)
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
            File that `save` wrote.

        Returns
        -------
        Fit

        Raises
        ------
        ValueError
            If the file is damaged, has a newer format or is not a fit.
        """
        parts = read_archive(path, kind=KIND)
        with making_whole(f"{path} holds a fit", "save it again"):
            return cls.from_parts(*parts)

    def to_parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Convert the fit to arrays and plain values, the form in which files keep it.

        Returns
        -------
        arrays : dict of str to ndarray
        metadata : dict
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in ARRAYS}
        for name in (DISPERSION, MASK):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        if self.batches is not None:
            arrays |= batch_parts(self.batches)
        arrays |= {
            name: names.astype(np.str_) for name in NAMES if (names := getattr(self, name)) is not None
        }
        arrays |= {HISTORY + name: column for name, column in self.history.items()}
        certificate = self.certificate
        return arrays, {
            "kind": KIND,
            **{name: getattr(self, name) for name in NUMBERS},
            "settings": self.settings.as_dict(),
            "asked": self.asked.as_dict(),
            "data": asdict(self.data),
            "certificate": None if certificate is None else asdict(certificate),
            "messages": list(self.messages),
            "whole": self.whole,
        }

    @classmethod
    def from_parts(cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Fit:
        """Make a fit of what `to_parts` returned; every value is checked.

        Parameters
        ----------
        arrays : dict of str to ndarray
            Arrays that `to_parts` returned.
        metadata : dict
            Metadata that `to_parts` returned.

        Returns
        -------
        Fit
        """
        certificate, column = metadata["certificate"], len(HISTORY)
        parts: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
        parts |= {name: arrays[name].astype(object) for name in NAMES if name in arrays}
        parts |= {name: metadata[name] for name in NUMBERS}
        fit = cls(
            **parts,
            settings=Settings.from_dict(metadata["settings"]),
            asked=Settings.from_dict(metadata["asked"]),
            data=DataFacts(**metadata["data"]),
            certificate=None if certificate is None else Certificate(**certificate),
            history={name[column:]: array for name, array in arrays.items() if name.startswith(HISTORY)},
            messages=tuple(metadata["messages"]),
            dispersion=arrays.get(DISPERSION),
            mask=arrays.get(MASK),
            whole=metadata.get("whole", True),
        )
        fit = replace(fit, batches=batches_from(arrays, fit.loadings, fit.factors, fit.settings))
        check_fit(fit)
        return fit
