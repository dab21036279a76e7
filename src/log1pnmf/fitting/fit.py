"""`Fit`, the central object of the package: a fitted model with all that analysis, plots and files need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common import archive
from log1pnmf._common.archive import StrPath, check_numbers
from log1pnmf._common.arrays import Rows
from log1pnmf._common.checks import check_choice, plural
from log1pnmf.counts.counts import Counts
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import POISSON, NegativeBinomial, Noise, ShiftedLog
from log1pnmf.model.predict import Rates
from log1pnmf.model.problem import FREE_KIND, KINDS, Array, Problem, Structure
from log1pnmf.model.zeros import Zeros

from .settings import Settings
from .solver import History

# ---------- where results lie in an AnnData object: tools write there, plots and the report read there

SWEEP = "log1p_nmf_sweep"  # in `uns`: the table of a sweep over c


class Keys:
    """Names under which one fit is kept; `key_added` takes the place of the usual ones.

    >>> Keys().obsm, Keys().varm, Keys().uns
    ('X_log1p_nmf', 'log1p_nmf', 'log1p_nmf')
    >>> Keys("programmes").obsm
    'programmes'
    """

    def __init__(self, key_added: str | None = None) -> None:
        if key_added is not None and not isinstance(key_added, str):
            raise TypeError(f"key_added must be a string, got {type(key_added).__name__}")
        if key_added is not None and (not key_added or "/" in key_added):
            raise ValueError(
                f"key_added must be a name without '/' (in h5ad files a folder), got {key_added!r}"
            )
        self.key_added, name = key_added, key_added or "log1p_nmf"
        self.obsm = key_added or "X_log1p_nmf"  # loadings, samples x factors
        self.std = f"{self.obsm}_std"  # in `obsm`: standard errors of the loadings given the factors
        self.shares = f"{self.obsm}_shares"  # in `obsm`: shares of each sample's signal
        self.varm = name  # factors, features x factors
        self.mask = f"{name}_mask"  # in `varm`: features that factors may have, where there was a mask
        self.dispersion = f"{name}_dispersion"  # in `var`: where the noise has dispersions
        self.uns = name  # everything else
        self.markers = f"{name}_markers"  # in `uns`, as all that follow: table of effects
        self.select = f"{name}_select"  # comparison of settings
        self.evidence = f"{name}_evidence"  # evidence for every factor
        self.usage = f"{name}_usage"  # comparison of groups
        self.consensus = f"{name}_consensus"  # how often and where each factor came back

    def obs_column(self, factor: str) -> str:
        """Return the column of `obs` with the loadings of a factor."""
        return factor if self.key_added is None else f"{self.key_added}_{factor}"


def c_name(c: float) -> str:
    """Write c so that it is short, and still the same number.

    >>> c_name(1.0), c_name(float("inf")), c_name(0.1 + 0.2)
    ('1', 'inf', '0.30000000000000004')
    """
    short = f"{c:g}"
    return short if float(short) == c else repr(float(c))


def c_label(c: float) -> str:
    """Name a fit by its c, for people.

    >>> c_label(0.1), c_label(float("inf"))
    ('c = 0.1', 'c = ∞')
    """
    return f"c = {'∞' if math.isinf(c) else c_name(c)}"


def sweep_key(c: float) -> str:
    """Name under which a sweep keeps the fit at `c`.

    >>> sweep_key(0.001), sweep_key(float("inf"))
    ('log1p_nmf_c=0.001', 'log1p_nmf_c=inf')
    """
    return f"log1p_nmf_c={c_name(c)}"


# ---------- what a fit remembers of its counts, and its exact log-likelihood


@dataclass(frozen=True)
class DataFacts:
    """Size of the data: samples, features, non-zeros, total.

    Parameters
    ----------
    n_samples, n_features, nnz : int
        Rows, columns and entries that are not zero.
    total, fitted_total : float
        Sum of all counts, and of those of features that were fitted.
    n_empty_samples, n_empty_features : int
        Rows and columns without any count.
    """

    n_samples: int
    n_features: int
    nnz: int
    total: float
    fitted_total: float
    n_empty_samples: int = 0
    n_empty_features: int = 0

    @classmethod
    def of(cls, counts: Counts) -> DataFacts:
        """Describe counts."""
        return cls(*counts.shape, counts.nnz, counts.total, counts.total, *counts.n_empty)

    @property
    def mean_total(self) -> float:
        """Mean total count of a sample."""
        return self.total / self.n_samples

    @property
    def n_entries(self) -> int:
        """Samples times features."""
        return self.n_samples * self.n_features


@dataclass(frozen=True)
class Certificate:
    """Exact log-likelihood of a fit, and what the approximation cost.

    Parameters
    ----------
    log_likelihood : float
        Full log-likelihood without approximation.
    approximate_log_likelihood : float or None
        Log-likelihood that the fit maximised; None for an exact fit.
    zeros_error : float
        Sum of the absolute errors at zero counts of an adaptive fit, which bounds `gap`; otherwise 0.
    """

    log_likelihood: float
    approximate_log_likelihood: float | None
    zeros_error: float = 0.0

    @property
    def gap(self) -> float:
        """Approximate minus exact log-likelihood; 0 for an exact fit."""
        approximate = self.approximate_log_likelihood
        return 0.0 if approximate is None else approximate - self.log_likelihood

    def __str__(self) -> str:
        text = f"exact log-likelihood {self.log_likelihood:,.1f}"
        if self.approximate_log_likelihood is None:
            return f"{text}; the fit was exact, there is no gap"
        share = abs(self.gap / self.log_likelihood) if self.log_likelihood else 0.0
        return f"{text}; the approximation is off by {self.gap:,.1f} ({share:.2g} of the log-likelihood)"


# ---------- names of factors that users give

LONGEST = 200

KNOWN = {
    "loadings": "known loadings",
    "pattern": "known samples",
    "factors": "known profile",
    "mask": "known features",
}
"""What was known of a factor of each kind but "free"."""


def usual_factor_names(n_components: int) -> list[str]:
    """Names of factors that have none: "k0" is the first, the baseline."""
    return [f"k{k}" for k in range(n_components)]


def new_factor_names(current: Sequence[str], given: Any) -> NDArray[np.object_]:
    """Rename factors.

    >>> new_factor_names(["k0", "k1", "k2"], {"k1": "interferon", 2: "cell cycle"}).tolist()
    ['k0', 'interferon', 'cell cycle']
    """
    names = list(current)
    if isinstance(given, Mapping):
        for which, name in given.items():
            names[factor_number(which, current)] = name
    elif isinstance(given, str) or len(given) != len(names):
        count = 1 if isinstance(given, str) else len(given)
        raise ValueError(
            f"there are {len(names)} factors, got {count} names; pass one for each, or a mapping such as "
            f"{{{names[-1]!r}: 'name'}} for some"
        )
    else:
        names = list(given)
    changed = np.array([str(name) for name in names], dtype=object)
    check_factor_names(changed, len(names))
    return changed


def factor_number(which: Any, names: Sequence[str]) -> int:
    """Return the number of a factor that is given by its name or its number, from 0."""
    if isinstance(which, str) and which in names:
        return list(names).index(which)
    if isinstance(which, int | np.integer) and not isinstance(which, bool) and 0 <= which < len(names):
        return int(which)
    listed = ", ".join(map(repr, names))
    raise ValueError(f"a factor must be one of {listed} or 0 to {len(names) - 1}, got {which!r}")


def check_factor_names(names: NDArray[Any], n_components: int) -> None:
    """Refuse names that are not one for each factor, that are empty, very long, or there twice."""
    if names.shape != (n_components,):
        raise ValueError(f"factor names must be {n_components}, got shape {names.shape}")
    for name in names.tolist():
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST or not name.isprintable():
            raise ValueError(f"a factor's name must have 1 to {LONGEST} printable letters, got {name!r}")
    if len(set(names.tolist())) != n_components:
        twice = next(name for name in names.tolist() if names.tolist().count(name) > 1)
        raise ValueError(f"every factor needs a name of its own, got {twice!r} twice")


def check_kinds(kinds: list[str], mask: NDArray[Any] | None, n_features: int) -> None:
    """Refuse kinds that are not known, not in order, or do not go with the mask."""
    order = (*KINDS, FREE_KIND)
    if not set(kinds) <= set(order) or kinds != sorted(kinds, key=lambda kind: max(1, order.index(kind))):
        raise ValueError(f"factor_kinds must be some of {', '.join(order)}, in this order; got {kinds}")
    n_masked = kinds.count("mask")
    if (mask is None) != (n_masked == 0):
        raise ValueError(f"mask does not go with {n_masked} masked factors")
    if mask is not None and (mask.dtype != bool or mask.shape != (n_features, n_masked)):
        raise ValueError(f"mask must be True or False for {n_masked} factors, got shape {mask.shape}")


# ---------- checks of a fit that comes from a file: its parts have to go together

MOST_COMPONENTS = 10_000  # factors that the settings in a file may ask for, beyond those it has


def check_fit(fit: Any) -> None:
    """Refuse a fit whose parts do not fit together; only damaged or forged files hold one."""
    if fit.loadings.ndim != 2 or fit.factors.ndim != 2 or 0 in fit.loadings.shape + fit.factors.shape:
        raise ValueError(f"loadings and factors have shapes {fit.loadings.shape} and {fit.factors.shape}")
    (n, k), m, data, batches = fit.loadings.shape, len(fit.factors), fit.data, fit.batches
    check_numbers("loadings", fit.loadings, (n, k))
    check_numbers("factors", fit.factors, (m, k))
    check_numbers("size_factors", fit.size_factors, (n,), positive=True)
    if fit.dispersion is not None:
        check_numbers("dispersion", fit.dispersion, (m,))
    lengths = {"sample_names": n, "feature_names": m, "given_factor_names": k, "factor_kinds": k}
    for what, length in {**lengths, "fitted_features": m}.items():
        names = getattr(fit, what)
        if names is not None and names.shape != (length,):
            raise ValueError(f"{what} must be {length}, got shape {names.shape}")
    if fit.given_factor_names is not None:
        check_factor_names(fit.given_factor_names, k)
    check_kinds(fit.kinds, fit.mask, m)
    check_choice("scale", fit.scale, NORMALIZATIONS)
    History.check(fit.history)
    own, asked = fit.settings, fit.asked
    noise = "poisson" if fit.dispersion is None else "nb"
    shape, fitted = (data.n_samples if fit.whole else n, data.n_features), fit.fitted_features
    for what, fits in (
        ("settings", own.noise == noise and asked.noise in ("auto", noise)),
        ("data", 0.0 < data.total < math.inf and shape == (n, m)),
        ("batches", batches is None or (len(batches.labels), batches.effects.shape[1]) == (n, m)),
        ("settings", own.n_components == k and own.link == asked.link and own.likelihood != "auto"),
        ("asked", asked.n_components <= max(MOST_COMPONENTS, k)),
        ("fitted_features", fitted is None or (fitted.dtype == bool and fitted.any())),
    ):
        if not fits:
            raise ValueError(f"{what} must go with the other parts, got {getattr(fit, what)!r:.300}")


# ---------- order and scale of the factors as users see them; neither changes the model

Normalization: TypeAlias = Literal["max", "factor_max", "factor_sum", "none"]
NORMALIZATIONS: tuple[str, ...] = get_args(Normalization)

LEAST_BASELINE = 0.5
"""Part of the average share of the signal that a factor has to carry to be taken for the baseline."""

SHARED = 0.8
"""Evenness from which all samples share a factor: its standard deviation is at most half of its mean."""


def arranged(
    loadings: Array,
    factors: Array,
    *,
    l1: float = 0.0,
    normalize: str = "none",
    known: Structure | None = None,
) -> tuple[Array, Array]:
    """Bring the columns of a solver into the order and scale that users see.

    The baseline comes first: column 0 of a penalised fit (it is the one without penalty), otherwise the
    factor with the most even loadings among those that carry at least half of the average share of the
    signal. The others follow by their share of the signal, largest first. Factors of which something is known
    come before all others, in their own order; known numbers stay as they are.
    """
    kinds = [] if known is None else known.kinds
    first, share = len(kinds), factor_shares(loadings, factors)
    order = np.arange(first)
    if first < len(share):
        free, baseline = share[first:], 0
        if l1 == 0:
            eligible = free >= LEAST_BASELINE * free.mean()
            baseline = int(np.argmax(np.where(eligible, evenness(loadings)[first:], -1.0)))
        by_share = np.argsort(-free, kind="stable")
        order = np.concatenate((order, [first + baseline], first + by_share[by_share != baseline]))
    scale = scale_of(loadings, factors, normalize, kinds)
    loadings, factors = scaled(loadings, factors, scale[order], order)
    if known is not None:
        factors[:, np.flatnonzero(np.array(kinds) == "factors")] = known.factors
    return loadings, factors


def factor_shares(loadings: Array, factors: Array) -> Array:
    """Return the share of the fitted signal ``sum_ij (L F')_ij`` that each factor carries; they sum to 1."""
    signal = loadings.sum(axis=0) * factors.sum(axis=0)
    return signal / or_one(signal.sum())


def sample_shares(loadings: Array, factors: Array) -> Array:
    """Return the share of each sample's signal ``sum_j (L F')_ij`` that each factor carries."""
    signal = loadings * factors.sum(axis=0)
    return signal / or_one(signal.sum(axis=1, keepdims=True))


def evenness(loadings: Array) -> Array:
    """How evenly each factor is spread over the samples: ``(sum l)^2 / (n sum l^2)``, 1 where all are alike.

    A factor shared equally by some samples and absent from all others has the share of those samples.
    """
    relative = loadings / or_one(loadings.max(axis=0))
    return relative.sum(axis=0) ** 2 / (len(loadings) * or_one((relative**2).sum(axis=0)))


def scale_of(loadings: Array, factors: Array, normalize: str, kinds: Sequence[str] = ()) -> Array:
    """Divide loadings and multiply factors by this, column by column."""
    scale = np.ones(factors.shape[1])
    if normalize == "max":
        scale = or_one(loadings.max(axis=0))
    elif normalize == "factor_max":
        scale = 1.0 / or_one(factors.max(axis=0))
    elif normalize == "factor_sum":
        scale = 1.0 / or_one(factors.sum(axis=0))
    scale[[k for k, kind in enumerate(kinds) if kind in ("loadings", "factors")]] = 1.0
    return scale


def or_one(values: Any) -> Any:
    """Return positive values as they are and 1 for all others, to divide by them."""
    return np.where(values > 0.0, values, 1.0)


def scaled(loadings: Array, factors: Array, scale: Array, order: Any = slice(None)) -> tuple[Array, Array]:
    """Divide loadings and multiply factors by a scale, after their columns are put in order."""
    if isinstance(loadings, np.memmap):  # of a streamed fit: not all of it at once
        rows = Rows(loadings.shape, lambda start, stop: loadings[start:stop][:, order] / scale)
        return rows.to_array(), factors[:, order] * scale
    return loadings[:, order] / scale, factors[:, order] * scale


# ---------- fit, the central object of the package

Names = NDArray[np.object_]

Stopped: TypeAlias = Literal["converged", "max_iter", "stalled", "interrupted", "callback"]
"""Why a fit ended. "stalled": no step lowers the objective, but the point is not a stationary one."""

KIND = "fit"


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A fitted model.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        Loadings and factors on the link scale: ``loadings @ factors.T = alpha_c * log(1 + lam / c)``. The
        baseline comes first, then the others by share of the signal. The largest loading
        of every factor is 1, unless `normalized` has chosen another scale.
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
        Exact log-likelihood, if known.
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
    scale : {"max", "factor_max", "factor_sum", "none"}
        Scale of loadings and factors, see `normalized`.
    fitted_features : ndarray of bool, shape (m,), optional
        Features that were fitted, where others were added given the loadings (`log1pnmf.extend_features`);
        None if all were. Loadings of new samples depend on the fitted ones only.

    Examples
    --------
    >>> from log1pnmf import datasets, fit_log1p_nmf
    >>> fit = fit_log1p_nmf(datasets.pancreas().counts[:100, :200], 3)
    >>> fit.stopped, fit.factors.shape, fit.renamed({"k1": "acinar"}).factor_names
    ('converged', (200, 3), ['k0', 'acinar', 'k2'])
    >>> fit.normalized("factor_sum").factors.sum(axis=0).round(6)
    array([1., 1., 1.])
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
    scale: str = "max"
    fitted_features: NDArray[np.bool_] | None = None

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
        """Return what the rates of samples (all, or these `rows`) are multiplied by; with batches n x m."""
        sizes = self.size_factors[rows, None]
        return sizes if self.batches is None else sizes * self.batches.rows(rows)

    @property
    def rates(self) -> Rates:
        """Means of the counts; ``fit.rates.of_rows(rows)`` computes those of some samples."""
        own = (self.size_factors, self.dispersion, self.batches)
        return Rates(self.loadings, self.factors, self.link, *own)

    def problem(self, counts: Counts, zeros: Zeros | None = None) -> Problem:
        """Return the problem of the counts of the fit, at its end, with some form of the `zeros`."""
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
        """Exact, full log-likelihood; None if it was not computed (`messages` have the reason)."""
        return None if self.certificate is None else self.certificate.log_likelihood

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
        both = zip(self.factor_names, self.kinds, strict=True)
        return [f"{name} (known)" if kind in KNOWN else name for name, kind in both]

    @property
    def kinds(self) -> list[str]:
        """What was known of each factor, see `factor_kinds`; "free" for nothing."""
        if self.factor_kinds is None:
            return ["free"] * self.n_components
        return [str(kind) for kind in self.factor_kinds]

    @property
    def known_parts(self) -> tuple[Any, Any, Any]:
        """Loadings, factors and mask that were known, as ``fixed_loadings=`` and so on take them, or None."""
        own, names = np.array(self.kinds), self.factor_names
        where = [np.flatnonzero(at) for at in (np.isin(own, KINDS[:2]), own == "factors", own == "mask")]
        allowed = np.zeros((len(self.factors), 0), dtype=bool) if self.mask is None else self.mask
        loadings = self.loadings[:, where[0]]
        some = (own[where[0]] == "pattern") & (loadings > 0.0)
        columns = (np.where(some, np.nan, loadings), self.factors[:, where[1]], allowed)
        one, two, three = (
            {names[int(k)]: column for k, column in zip(at, part.T, strict=True)} or None
            for at, part in zip(where, columns, strict=True)
        )
        return one, two, three

    @property
    def feature_labels(self) -> Names:
        """Names of the features, or their numbers where they have none."""
        if self.feature_names is not None:
            return self.feature_names
        return np.arange(len(self.factors)).astype(str).astype(object)

    def normalized(self, normalize: Normalization) -> Fit:
        """Return the same fit on another scale; the order stays.

        `normalize`: "max", as fits are: the largest loading of every factor is 1; "factor_max": its largest
        entry is 1; "factor_sum": its entries sum to 1; "none" changes nothing. Factors of which loadings or
        entries are known keep their scale.
        """
        check_choice("normalize", normalize, NORMALIZATIONS)
        if normalize == self.scale:  # some of its samples keep the scale of all
            return self
        by = scale_of(self.loadings, self.factors, normalize, self.kinds)
        loadings, factors = scaled(self.loadings, self.factors, by)
        return replace(self, loadings=loadings, factors=factors, scale=normalize)

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

    def of_rows(self, rows: NDArray[np.intp]) -> Fit:
        """Return the fit of some of its samples, those of these `rows`, for another fit to them."""
        batches = None if self.batches is None else self.batches.of_samples(rows)
        return replace(
            self, loadings=self.loadings[rows], size_factors=self.size_factors[rows], batches=batches
        )

    def check_whole(self, what: str) -> None:
        """Refuse `what` needs the loadings of all samples that were fitted."""
        if not self.whole:
            raise ValueError(
                f"{what} needs all {self.data.n_samples:,} samples of the fit, unchanged, and these are "
                "others or some of them; pass the original object, or fit these samples"
            )

    def named(self, *, sample_names: Any = None, feature_names: Any = None) -> Fit:
        """Return the same fit with other `sample_names` or `feature_names`; None changes nothing."""
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
                raise ValueError(f"{what} must have one name for each of {length} {each}s, got {len(names)}")
            changed[what] = names
        return replace(self, **changed) if changed else self

    def renamed(self, names: Mapping[Any, str] | Iterable[str]) -> Fit:
        """Return the same fit with other `names` of all factors, or of some: ``{"k1": "interferon"}``."""
        return replace(self, given_factor_names=new_factor_names(self.factor_names, names))

    # ---------------------------------------------------------------- keeping

    def save(self, path: StrPath) -> None:
        """Write the fit to `path`, an npz file, without pickle and atomically; no ending is added."""
        archive.write_archive(path, *self.to_parts())

    @classmethod
    def load(cls, path: StrPath) -> Fit:
        """Read a fit that `save` wrote to `path`, every bit of it; a ValueError if the file is damaged."""
        parts = archive.read_archive(path, kind=KIND)
        with archive.making_whole(f"{path} holds a fit", "save it again"):
            return cls.from_parts(*parts)

    def to_parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays of the fit by name, and all other values: the form in which files keep it."""
        return archive.split_arrays({"kind": KIND, **archive.to_tree(self)})

    @classmethod
    def from_parts(cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Fit:
        """Make a fit of the `arrays` and `metadata` that `to_parts` returned; every value is checked."""
        tree = archive.join_arrays(arrays, metadata)
        names = [field.name for field in fields(cls)]
        if not tree.keys() >= set(names):
            raise ValueError(f"a fit must have {', '.join(sorted(set(names) - tree.keys()))}")
        fit: Fit = archive.from_tree(cls, {name: tree[name] for name in names})
        check_fit(fit)
        return fit
