"""The scikit-learn estimator: parameters in, a fit out; the work is done elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from log1pnmf._common.archive import StrPath
from log1pnmf._common.arrays import Numbers
from log1pnmf._common.checks import Seed, check_choice, check_not_negative, one_for_each
from log1pnmf.analysis.diagnostics import loading_errors
from log1pnmf.analysis.markers import Markers, markers, top_features
from log1pnmf.analysis.usage import SampleOptions, Usage, usage
from log1pnmf.counts.chunks import CountSource
from log1pnmf.counts.counts import Counts, SizesKind, check_unmasked, to_host
from log1pnmf.counts.passes import source_of
from log1pnmf.engines.base import RowSolver
from log1pnmf.engines.registry import EngineKind, as_counts
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.callbacks import Callback
from log1pnmf.fitting.fit import Certificate, Fit
from log1pnmf.fitting.fit_counts import SETTINGS, checked, completed, fit_counts
from log1pnmf.fitting.new_samples import of_features, project, score
from log1pnmf.fitting.ranking import Order
from log1pnmf.fitting.settings import GIVEN, InitKind, LikelihoodKind, NoiseKind
from log1pnmf.fitting.summary import summarize
from log1pnmf.model.dispersion import DispersionKind
from log1pnmf.model.problem import Array
from log1pnmf.report.document import write_report

if TYPE_CHECKING:
    from pandas import DataFrame
    from typing_extensions import Self, Unpack


P = ParamSpec("P")
R = TypeVar("R")


class NewSamples(TypedDict, total=False):
    """Options of `Log1pNMF.transform`, for type checkers."""

    size_factors: SizesKind | Numbers | None
    batch: Any
    fixed_loadings: Any
    prior: Literal["auto"] | float
    features: Literal["all", "shared"]


def _with_options_of(
    function: Callable[Concatenate[Any, Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, Any, P], R]]:
    """Return a decorator of a method that passes its options on to a function: it shows them as its own."""
    options = [one for one in signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]

    def complete(method: Callable[..., R]) -> Any:
        shown = signature(method)
        own = list(shown.parameters.values())[:-1]
        method.__signature__ = shown.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return method

    return complete


def _part(name: str) -> Any:
    """Return an attribute of the estimator that is a part of its fit."""
    return property(attrgetter(f"fit_.{name}"), doc="")  # the section Attributes describes it


@dataclass(eq=False, repr=False)
class _Parameters(BaseEstimator):
    """Parameters of `Log1pNMF`, which scikit-learn finds in the signature of ``__init__``."""

    n_components: int = 2
    _: KW_ONLY
    c: float = 1.0
    noise: NoiseKind = "poisson"
    size_factors: SizesKind | Numbers = "total"
    random_state: Seed = 0
    n_jobs: int | None = None
    likelihood: LikelihoodKind = "auto"
    zeros_tol: float = 1e-4
    dispersion: DispersionKind | float | Numbers = "feature"
    init: InitKind | tuple[Any, Any] | Fit = "auto"
    n_init: int = 1
    l1: float | Literal["auto"] = 0.0
    mask_penalty: float = math.inf
    row_solver: RowSolver = "newton"
    max_iter: int = 1000
    tol: float = 1e-9
    engine: EngineKind = "auto"
    fixed_factors: Any = None
    mask: Any = None
    verbose: int | None = None


class Log1pNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Parameters):
    """Poisson NMF with the shifted-log link, ``alpha_c log(1 + lam / c) = L F'``.

    The counts of sample i are ``Poisson(s_i lam_ij)``, ``alpha_c = max(1, c)``; ``c = inf`` is the identity
    link, ``lam = L F'``. Loadings L and factors F are not negative.

    Parameters
    ----------
    n_components : int
        Number of factors, K. More than samples or features is allowed, with a warning.
    c : float
        Shift of the link. Factors multiply at small c and add up at inf, which is standard Poisson NMF. On
        most data small c predicts held-out counts best; at inf a fit can be read as probabilities.
    noise : {"poisson", "nb", "auto"}
        How counts scatter around their means: "nb" is negative binomial, with the variance
        ``mean + dispersion * mean**2``. "auto" takes the one that predicts held-out counts better, and
        `summary` has the reason.
    size_factors : {"total", "fit", "none"} or array of shape (n_samples,)
        Depth of the samples. "total" is the total count divided by its mean. "fit" starts there and
        estimates them with the model, for factors that change totals.
    random_state : int, RandomState, Generator or None
        Seed or generator of the random numbers.
    n_jobs : int, optional
        Number of threads; None and -1 use all cores (within ``OMP_NUM_THREADS``, threadpoolctl and joblib),
        -2 all but one. The bits of the result do not depend on it.

    Other Parameters
    ----------------
    likelihood : {"auto", "adaptive", "exact", "chebyshev", "taylor"}
        How to treat zero counts. "exact" evaluates all. "adaptive" evaluates those that matter, replaces
        the others by a polynomial per feature, and is exact up to `zeros_tol`. "chebyshev" and "taylor" are
        the paper's forms, one quadratic for all zeros. "auto" is exact for up to 2e6 entries (1e9 on a GPU)
        and if a quarter of them is not zero, and otherwise adaptive.
    zeros_tol : float
        With "adaptive": largest sum of absolute errors at zero counts, as a share of the log-likelihood.
    dispersion : {"feature", "shared"}, float or array of shape (n_features,)
        With "nb": one dispersion for each feature, or the same for all, by maximum likelihood. Those of the
        features are pulled towards their trend over the mean counts. Numbers are used unchanged.
    init : {"auto", "rank1", "random", "nndsvd"}, (loadings, factors) or Fit
        The start. "auto" tries several for a few iterations and improves the best. Arrays are on the link
        scale; factors may have the shape of `components_`. A `Fit`, such as ``model.fit_``, is continued: its
        features must be the same; `n_components`, `c` and samples may change.
    n_init : int
        Number of starts; the fit with the lowest objective is kept.
    l1 : float or "auto"
        Penalty on the sum of all factors but the first (the baseline), in units of log-likelihood on the link
        scale. If it is positive, loadings are at most 1. "auto" takes the largest penalty that predicts
        held-out counts as well as the best one, within a standard error; the summary names it.
    mask_penalty : float
        With `mask`: penalty on entries outside it, in the units of `l1`; inf forbids them. If it is finite,
        the loadings of these factors are at most 1.
    row_solver : {"newton", "coordinate"}
        "newton" also extends each update along the last ones. "coordinate" is the paper's own algorithm.
    max_iter : int
        Maximum number of iterations.
    tol : float
        Stop when the objective falls by less than this, relative to its size, twice in a row. A larger value
        may stop on a plateau.
    engine : {"auto", "native", "torch", "streaming"}
        What computes. "auto" uses "torch" if there is a CUDA GPU and the data are large, "streaming" for
        counts that are not in memory, and otherwise "native"; ``fit_.settings`` has the choice.
    fixed_factors : mapping of str to array, data frame or array of shape (K_0, n_features), optional
        Known factors, on the link scale, such as `log1pnmf.background`; arrays may be transposed.
        `n_components` counts all factors. Known factors come first and keep their order, names and scale:
        those of `fixed_loadings` (see `fit`), then these, then those of `mask`.
    mask : mapping of str to features, or array of bool of shape (K_1, n_features), optional
        Features that factors may have, such as gene sets: names, or numbers if features have no names.
        Names that are not in the data are ignored.
    verbose : int, optional
        By default progress is shown in a terminal and in a notebook, from the third second on. 1 shows it at
        once and writes a line into log files; 0 shows nothing.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Factors, on the link scale. The baseline comes first (the factor with the most even loadings, or with
        `l1` the one without penalty), then the others by share of the signal.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings of the training samples; the largest of every factor is 1 (`Fit.normalized` has others).
    dispersion_ : ndarray of shape (n_features,) or None
        Dispersion of each feature, with ``noise="nb"``.
    batch_effects_ : DataFrame or ndarray of shape (n_batches, n_features), or None
        Factor by which a batch multiplies the rates of a feature, if `batch` was passed to `fit`.
    log_likelihood_ : float or None
        Exact log-likelihood; None if it was not computed (`log1pnmf.analysis.log_likelihood` does).
    approximate_objective_ : float or None
        Objective of an approximate or adaptive fit, with penalty; None for exact fits.
    n_iter_ : int
        Iterations of the best start.
    converged_ : bool
        Whether the fit reached an optimum, up to `tol`.
    kkt_residual_ : float
        Distance from a stationary point, 0 at an optimum.
    history_ : dict of str to ndarray
        One entry per iteration; ``pandas.DataFrame(history_)`` shows it.
    certificate_ : Certificate or None
        Exact log-likelihood, and the error of the fitted one, if known.
    fit_ : Fit
        Everything known about the fit.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Names of the features, if the counts had any.

    See Also
    --------
    log1pnmf.fit_log1p_nmf : The same as a function.
    log1pnmf.select : Choose c, the number of factors and the noise.
    sklearn.decomposition.NMF : Factors add up; other losses than Poisson.

    References
    ----------
    .. [1] E. Weine, P. Carbonetto, R. A. Irizarry and M. Stephens (2026). A New Family of Poisson
       Non-negative Matrix Factorization Methods Using the Shifted Log Link. arXiv:2601.05845.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:100, :300]
    >>> model = Log1pNMF(n_components=3, c=1.0).fit(counts)
    >>> model.components_.shape, model.transform(counts[:5]).shape
    ((3, 300), (5, 3))
    >>> model.loadings_.max(axis=0)
    array([1., 1., 1.])
    """

    fit_: Fit
    components_: Array
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    loadings_: Array = _part("loadings")
    dispersion_: Array | None = _part("dispersion")
    log_likelihood_: float | None = _part("log_likelihood")
    converged_: bool = _part("converged")
    kkt_residual_: float = _part("kkt_residual")
    history_: Mapping[str, np.ndarray] = _part("history")
    certificate_: Certificate | None = _part("certificate")

    @property
    def batch_effects_(self) -> Any:
        """Effects of batches on features, batches x features (a data frame with pandas); None without."""
        batches = self.fit_.batches
        if batches is None or find_spec("pandas") is None:
            return None if batches is None else batches.effects.copy()
        from pandas import DataFrame

        return DataFrame(batches.effects.copy(), list(batches.names), self.fit_.feature_labels)

    @property
    def approximate_objective_(self) -> float | None:
        """Objective of an approximate or adaptive fit, with penalty; None for exact fits."""
        return None if self.fit_.approximate_log_likelihood is None else self.fit_.objective

    @property
    def n_iter_(self) -> int:
        """Iterations of the best start; a start that is already an optimum has one."""
        return max(1, self.fit_.n_iter)

    # Pipelines pass size factors on unless they are told not to; `fit` and `transform` have to agree on it.
    __metadata_request__fit: ClassVar = {"size_factors": True, "batch": True, "fixed_loadings": True}
    __metadata_request__transform: ClassVar = {"size_factors": True, "batch": True, "fixed_loadings": True}
    __metadata_request__score: ClassVar = {"size_factors": True, "batch": True}

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        size_factors: SizesKind | Numbers | None = None,
        batch: Any = None,
        fixed_loadings: Any = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: StrPath | None = None,
        resume: StrPath | None = None,
    ) -> Log1pNMF:
        """Fit the model to counts. If that fails, an earlier fit stays unchanged.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            Raw counts. If they are larger than memory, use `log1pnmf.open_counts`.
        y : ignored
            Ignored; scikit-learn passes it.
        size_factors : {"total", "fit", "none"} or array of shape (n_samples,), optional
            Replaces the parameter `size_factors` in this fit. scikit-learn's metadata routing passes it,
            `batch` and `fixed_loadings` without a request, also to `transform`.
        batch : array of shape (n_samples,), optional
            Batch of every sample (donor, chip, section). Every batch then multiplies the rates of each
            feature by an effect, see `batch_effects_`.
        fixed_loadings : mapping of str to array, data frame or array of shape (n_samples, K_0), optional
            Known loadings, such as a design: ``{"everyone": 1, "treated": treated}``. A column may also
            contain 0 for samples without the factor and NaN for loadings to estimate. Loadings of new samples
            are free, see `transform`.
        callbacks : sequence of callables
            Called with every `log1pnmf.callbacks.Iteration`; a true result stops the fit.
        checkpoint : str or PathLike, optional
            File that keeps the state of the fit, written every 30 seconds and at the end.
        resume : str or PathLike, optional
            Checkpoint of a fit with the same counts and parameters, to continue from. The result has the same
            bits as if that fit had never stopped.

        >>> Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]], size_factors=[1.0, 1.0, 2.0]).fit_.size_factors
        array([1., 1., 2.])
        """
        of_samples = {"batch": batch, "fixed_loadings": fixed_loadings}
        run = {"callbacks": callbacks, "checkpoint": checkpoint}
        parameters = {**self.get_params(deep=False), **of_samples, **run}
        if size_factors is not None:
            parameters["size_factors"] = size_factors
        settings, given = checked(**parameters)
        return self._take(fit_counts(X, settings, **given, resume=resume))

    @_with_options_of(fit)
    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Array:
        """Fit the model to X (y is ignored) and return its loadings; other parameters as in `fit`.

        >>> Log1pNMF(2).fit_transform([[4, 0, 2], [3, 1, 2], [0, 5, 2]]).shape
        (3, 2)
        """
        return self.fit(X, y, **options).loadings_

    def _take(self, fit: Fit) -> Log1pNMF:
        """Show a fit: all that was known of an earlier one goes, in one step."""
        features: dict[str, Any] = {"n_features_in_": fit.data.n_features}
        if fit.feature_names is not None:
            features["feature_names_in_"] = fit.feature_names
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        components = np.ascontiguousarray(fit.factors.T)
        self.__dict__ = {**kept, "fit_": fit, "components_": components, **features}
        return self

    # ---------------------------------------------------------------- a fitted model

    @property
    def _n_features_out(self) -> int:
        return self.fit_.n_components

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Name the columns of `transform`, not by `input_features`: "log1pnmf0" and so on, or given names.

        >>> Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]]).get_feature_names_out().tolist()
        ['log1pnmf0', 'log1pnmf1']
        """
        names: np.ndarray = super().get_feature_names_out(input_features)
        renamed = self.fit_.given_factor_names
        return names if renamed is None else np.array(renamed, dtype=object)

    @overload
    def transform(self, X: Any, *, return_std: Literal[False] = ..., **of: Unpack[NewSamples]) -> Array: ...
    @overload
    def transform(
        self, X: Any, *, return_std: Literal[True], **of: Unpack[NewSamples]
    ) -> tuple[Array, Array]: ...
    def transform(
        self,
        X: Any,
        *,
        size_factors: SizesKind | Numbers | None = None,
        batch: Any = None,
        fixed_loadings: Any = None,
        prior: Literal["auto"] | float = "auto",
        features: Literal["all", "shared"] = "all",
        return_std: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Estimate the loadings of other samples for the factors of the fit.

        If both the training data and X have feature names, the features of X may have any order; with
        ``features="shared"`` X may lack some, which were then not observed, and have others, which are
        ignored. A warning names factors of which the shared ones carry less than 80% of the signal; below
        20% of all signal X is refused.

        `size_factors`: by default what the model was fitted with; "total" divides by the mean total of the
        training samples. Required if the model was fitted with an array.

        `batch`: batch of every sample, or one name for all. Effects of batches that the fit does not have are
        estimated, from at least 20 samples. Without `batch`, samples of a model with batches are a new one.

        `prior`: counts that the mean of the training samples is worth, which loadings are shrunk towards.
        "auto" takes them from the spread of the training loadings (typically 3 to 20), and more if held-out
        counts would otherwise be predicted worse than by one factor. 0 gives the most likely loadings, as
        "auto" does for fractions.

        `fixed_loadings`: known loadings of the factors that had known loadings in `fit`; by default they are
        estimated like all others. `return_std` also returns standard errors, given the factors.

        >>> model = Log1pNMF(1, c=float("inf")).fit([[4, 2], [2, 1], [6, 3]])
        >>> model.transform([[40, 20]]).round(4)  # ten times the counts, ten times the size factor
        array([[1.]])
        """
        check_choice("features", features, ("all", "shared"))
        new, shared = self._new_samples(X), features == "shared"
        own: Any = {"batch": batch, "prior": prior, "engine": self.engine, "n_jobs": self.n_jobs}
        found = project(self.fit_, new, size_factors, fixed_loadings=fixed_loadings, shared=shared, **own)
        if not return_std:
            return found.loadings
        fit = of_features(self.fit_, found.features)
        given: Any = {"size_factors": found.size_factors, "batch": found.batches}
        return found.loadings, loading_errors(fit, found.counts, found.loadings, **given)

    def inverse_transform(self, loadings: Any, size_factors: Any = None) -> Array:
        """Compute the mean counts for given loadings, ``s_i c expm1(L F' / alpha_c)``.

        >>> model = Log1pNMF(1, c=float("inf")).fit([[4, 2], [2, 1], [6, 3]])
        >>> model.inverse_transform(model.loadings_, model.fit_.size_factors).round(4)
        array([[4., 2.],
               [2., 1.],
               [6., 3.]])
        """
        check_is_fitted(self)
        check_unmasked(loadings, "loadings")
        values, K = check_array(loadings, dtype=np.float64, input_name="loadings"), self.fit_.n_components
        if values.shape[1] != K:
            raise ValueError(
                f"loadings must have {K} columns, one for each factor, got shape {values.shape}; "
                "pass what transform returned"
            )
        check_not_negative("loadings", values)
        rates = self.fit_.link.inverse(values @ self.components_)
        if size_factors is None:
            return rates
        sizes = one_for_each("size_factors", size_factors, len(values), of="samples")
        return sizes[:, None] * rates

    def score(self, X: Any, y: Any = None, *, size_factors: Any = None, batch: Any = None) -> float:
        """Exact mean log-likelihood per entry of other samples X; y is ignored.

        Loadings are estimated from the same samples, as in `transform`, with its `size_factors` and `batch`.
        So scores compare links and penalties at the same number of factors, but always favour more factors;
        choose their number with `log1pnmf.analysis.heldout_score`. Features without a count in training are
        ignored, because any count there would be impossible.

        >>> bool(Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]]).score([[4, 0, 2], [0, 5, 2]]) < 0.0)
        True
        """
        new = self._new_samples(X)
        return score(self.fit_, new, size_factors, batch=batch, engine=self.engine, n_jobs=self.n_jobs)

    def summary(self, *, n_top: int = 8, feature_names: Any = None) -> str:
        """Describe data, model, fit and factors (`n_top` of their features; `feature_names`) in words.

        >>> print(Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]]).summary().splitlines()[0])
        Log1pNMF: 3 samples x 3 features, 2 factors, c = 1
        """
        return summarize(as_fit(self).named(feature_names=feature_names), n_top=n_top)

    def rename_factors(self, names: Mapping[Any, str] | Iterable[str]) -> Self:
        """Name factors by a list or mapping `names`; every table, plot, report and file then has them.

        >>> model = Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]])
        >>> model.rename_factors({"k1": "rare"}).fit_.factor_names
        ['k0', 'rare']
        """
        self.fit_ = as_fit(self).renamed(names)
        return self

    @_with_options_of(write_report)
    def report(self, path: StrPath, **options: Any) -> Path:
        """Write a report to `path`, one HTML file; other parameters as in `log1pnmf.report.write_report`.

        >>> import tempfile
        >>> model = Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]])
        >>> model.report(f"{tempfile.mkdtemp()}/report.html", title="A small table").name
        'report.html'
        """
        options.setdefault("n_jobs", self.n_jobs)
        return write_report(path, self, **options)

    def top_features(self, n_top: int = 10, *, by: Order = "score", feature_names: Any = None) -> DataFrame:
        """List `n_top` features (`feature_names`) of each factor, ranked `by` a column, as a frame.

        >>> model = Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]])
        >>> model.top_features(1, feature_names=["a", "b", "c"])["feature"].tolist()
        ['a', 'b']
        """
        return top_features(self, n_top, by=by, feature_names=feature_names)

    @_with_options_of(markers)
    def markers(self, X: Any, **options: Any) -> Markers:
        """Test which features of X rise with each factor; other parameters as in `log1pnmf.analysis.markers`.

        >>> counts = np.random.default_rng(0).poisson(np.repeat([[9, 1, 4], [1, 9, 4]], 30, axis=0))
        >>> sorted(Log1pNMF(2).fit(counts).markers(counts).top(k, 1) for k in range(2))
        [['0'], ['1']]
        """
        options.setdefault("n_jobs", self.n_jobs)
        return markers(self, X, **options)

    @completed(SampleOptions, usage)
    def usage(self, groups: Any, replicate: Any = None, **options: Unpack[SampleOptions]) -> Usage:
        """Compare loadings of `groups`, `replicate` by replicate; parameters as in `log1pnmf.analysis.usage`.

        >>> model = Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]] * 4)
        >>> model.usage(["a", "a", "b"] * 4, replicate=True).comparisons
        ('b',)
        """
        return usage(self, groups, replicate=replicate, **options)

    def _new_samples(self, X: Any) -> Counts | CountSource:
        """Check new samples; where features are not matched by name, as scikit-learn does."""
        check_is_fitted(self)
        X = to_host(X)
        samples = source_of(X) or as_counts(X)
        if samples.feature_names is None or not hasattr(self, "feature_names_in_"):
            validate_data(self, X, reset=False, skip_check_array=True)
        return samples

    def save(self, path: StrPath) -> None:
        """Write the fitted model to `path`, without pickle and atomically; the same as ``fit_.save``.

        `load` restores the same bits. It does not restore `n_jobs`, `engine`, `verbose` and starts given as
        arrays: these have their defaults. A `random_state` that is not a number becomes None.

        >>> import os, tempfile
        >>> model = Log1pNMF(1).fit([[1, 0, 3], [2, 5, 0]])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
        >>> model.save(path)
        >>> bool((Log1pNMF.load(path).components_ == model.components_).all())
        True
        """
        as_fit(self).save(path)

    # ---------------------------------------------------------------- keeping

    @classmethod
    def load(cls, path: StrPath) -> Log1pNMF:
        """Read a model, or any fit, that `save` wrote to `path` (example there); a damaged one is refused."""
        return cls.of(Fit.load(path))

    @classmethod
    def of(cls, source: Any, *, key: str | None = None, gene_symbols: str | None = None) -> Log1pNMF:
        """Make a fitted model from a `source`: a `Fit`, AnnData (`key` names the fit in it) or a file.

        With `gene_symbols`, a column of ``adata.var`` names its features, in the summary and to match data.
        It has the parameters that the fit was requested with, except for `engine`, which is the default: the
        original one may not exist on this machine.

        >>> from log1pnmf import fit_log1p_nmf
        >>> Log1pNMF.of(fit_log1p_nmf([[4, 0, 2], [3, 1, 2], [0, 5, 2]], 2, c=0.1))
        Log1pNMF(c=0.1)
        """
        fit = as_fit(source, key=key, gene_symbols=gene_symbols)
        parameters = {name: getattr(fit.asked, name) for name in SETTINGS if name != "engine"}
        if fit.asked.init == GIVEN:
            del parameters["init"]
        if fit.asked.size_factors == GIVEN:
            parameters["size_factors"] = fit.size_factors
        if fit.asked.dispersion == GIVEN:
            parameters["dispersion"] = fit.dispersion
        _, parameters["fixed_factors"], parameters["mask"] = fit.known_parts
        return cls(**parameters)._take(fit)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []  # loadings are always float64
        return tags
