"""The scikit-learn estimator: parameters in, a fit out; the work is done elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.atomic import StrPath
from log1pnmf.counts.given import frame_of
from log1pnmf.engines.base import RowSolver
from log1pnmf.engines.registry import as_counts
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.driver import run_request
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.request import Request
from log1pnmf.fitting.settings import GIVEN
from log1pnmf.fitting.solver.callbacks import Callback

from .fitted import FittedModel, seen_features

__all__ = ["Log1pNMF"]

Array = NDArray[np.float64]


class Log1pNMF(FittedModel):
    """Poisson NMF with the shifted-log link, ``alpha_c log(1 + lam / c) = L F'``.

    The counts of sample i are ``Poisson(s_i lam_ij)``, ``alpha_c = max(1, c)``; ``c = inf`` is the identity
    link, ``lam = L F'``. Loadings L and factors F are not negative.

    Parameters
    ----------
    n_components : int
        Number of factors, K. More than samples or features is allowed, with a warning.
    c : float
        Shift of the link. Parts multiply at small c and add up at inf, which is standard Poisson NMF. On most
        data small c predicts held-out counts best; at inf a fit can be read as probabilities.
    likelihood : {"auto", "adaptive", "exact", "approximate"}
        How to treat zero counts. "adaptive" visits those that matter, replaces the others by a quadratic per
        feature, and is exact up to `zeros_tol`. "exact" visits all of them, without any error; on large
        sparse data it begins as "adaptive" and visits all zeros when that has converged. "approximate"
        is the paper's form, one quadratic for all zeros. "auto" is exact for up to 2e6 entries (1e9 on a GPU)
        and for dense data (a quarter of the entries is not zero), and otherwise adaptive.
    zeros_tol : float
        With "adaptive": largest sum of absolute errors at zero counts, as a share of the log-likelihood.
    approximation : {"chebyshev", "taylor"}
        With "approximate": the best quadratic over an interval, or the expansion around zero.
    interval : (low, high), optional
        Interval of "chebyshev", on the link scale.
    size_factors : {"total", "fit", "none"} or array of shape (n_samples,)
        Depth of the samples. "total" is the total count divided by its mean. "fit" starts there and
        estimates them with the model, for programmes that change totals (docs/explanation/sizes.md).
    noise : {"poisson", "nb", "auto"}
        How counts scatter around their means: "nb" is negative binomial, with the variance
        ``mean + dispersion * mean**2``. "auto" takes the one that predicts held-out counts better, and
        `summary` says why.
    dispersion : {"feature", "shared"}, float or array of shape (n_features,)
        With "nb": one dispersion for each feature, or the same for all, by maximum likelihood. Those of the
        features are pulled towards their trend over the mean counts. Numbers are used unchanged.
    batch_strength : float
        With `batch` in `fit`: strength of the prior that pulls the effect of a batch on a feature towards 1,
        in counts. It acts as if the batch had that many more counts of the feature, exactly as expected.
    init : {"auto", "rank1", "random", "nndsvd"}, (loadings, factors), Fit or callable
        The start. "auto" tries several for a few iterations and improves the best. Arrays are on the link
        scale; factors may have the shape of `components_`. A `Fit` is continued. A function is called with
        the problem, K and a random state, and returns loadings and factors.
    n_init : int
        Number of starts; the fit with the lowest objective is kept.
    l1 : float
        Penalty on the sum of all factors but the first (the baseline), in units of log-likelihood on the link
        scale. If it is positive, loadings are at most 1.
    mask_penalty : float
        With `mask`: penalty on entries outside it, in the units of `l1`; inf forbids them. If it is finite,
        the loadings of these factors are at most 1.
    row_solver : {"newton", "coordinate"}
        "coordinate" is the paper's own algorithm.
    extrapolate : bool or "auto"
        Whether to extend each update along the last ones; "auto": with "newton" only.
    max_iter : int
        Maximum number of iterations.
    tol : float
        Stop when the objective falls by less than this, relative to its size, twice in a row. A larger value
        may stop on a plateau.
    engine : {"auto", "native", "reference", "torch", "torch-float64", "streaming"} or EngineFactory
        What does the computation. "auto" uses a CUDA GPU if there is one and the data are large, "streaming"
        for counts that are not in memory, and otherwise the compiled core; ``fit_.settings`` says which.
    normalize : {"max", "factor_max", "factor_sum", "none"}
        Scale of `loadings_` and `components_`, which does not change the fit. "max": the largest loading of
        every factor is 1; "factor_max": its largest entry is 1; "factor_sum": its entries sum to 1; "none":
        as the solver left them. The order is always the same: the baseline first (the factor with the most
        even loadings, or with `l1` the one without penalty), then by share of the signal.
    random_state : int, RandomState, Generator or None
        Seed or generator of the random numbers.
    fixed_factors : mapping of str to array, data frame or array of shape (K_0, n_features), optional
        Known factors, on the link scale, such as `log1pnmf.background`; arrays may be transposed.
        `n_components` counts all factors. Known factors come first and keep their order, names and scale:
        those of `fixed_loadings` (see `fit`), then these, then those of `mask`.
    mask : mapping of str to features, or array of bool of shape (K_1, n_features), optional
        Features that factors may have, such as gene sets: names, or numbers if features have no names.
        Names that are not in the data are ignored.
    n_jobs : int, optional
        Number of threads; None and -1 use all cores, -2 all but one. The result does not depend on it.
    callbacks : sequence of callables
        Called with every `log1pnmf.callbacks.Iteration`; a true result stops the fit.
    verbose : int
        1 shows a progress bar.
    checkpoint : str or PathLike, optional
        File that keeps the state of the fit; pass it to `fit` as `resume` to continue.
    checkpoint_every : float
        Seconds between two writes; 0 writes after every iteration.
    warm_start : bool
        Whether `fit` continues from the last fit of this object (`n_init` is then 1). The features must be
        the same. `n_components` may change: new factors start tiny and random, and if there are too many, the
        largest stay. `c` may change: loadings stay, and each factor keeps the rates of a sample that has it
        alone. If the samples change, their loadings are first estimated for the old factors.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Factors, on the link scale.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings of the training samples.
    dispersion_ : ndarray of shape (n_features,) or None
        Dispersion of each feature, with ``noise="nb"``.
    batch_effects_ : DataFrame or ndarray of shape (n_batches, n_features), or None
        Factor by which a batch multiplies the rates of a feature, if `batch` was passed to `fit`.
    log_likelihood_ : float or None
        Exact log-likelihood; None if it was not computed, see `certify`.
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
        Exact log-likelihood, and the error of the fitted one, if known; see `certify`.
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
    sklearn.decomposition.NMF : Parts add up; other losses than Poisson.

    References
    ----------
    .. [1] E. Weine, P. Carbonetto, R. A. Irizarry and M. Stephens (2026). A New Family of Poisson
       Non-negative Matrix Factorization Methods Using the Shifted Log Link. arXiv:2601.05845.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:200]
    >>> model = Log1pNMF(n_components=3, c=1.0).fit(counts)
    >>> model.components_.shape, model.transform(counts[:5]).shape
    ((3, 2425), (5, 3))
    >>> model.loadings_.max(axis=0)
    array([1., 1., 1.])
    """

    # Pipelines pass size factors on unless they are told not to; `fit` and `transform` have to agree on it.
    __metadata_request__fit: ClassVar = {"size_factors": True, "batch": True, "fixed_loadings": True}
    __metadata_request__transform: ClassVar = {"size_factors": True, "batch": True, "fixed_loadings": True}
    __metadata_request__score: ClassVar = {"size_factors": True, "batch": True}

    def __init__(
        self,
        n_components: int = 2,
        *,
        c: float = 1.0,
        likelihood: str = "auto",
        zeros_tol: float = 1e-4,
        approximation: str = "chebyshev",
        interval: tuple[float, float] | None = None,
        size_factors: Any = "total",
        noise: str = "poisson",
        dispersion: Any = "feature",
        batch_strength: float = 10.0,
        init: Any = "auto",
        n_init: int = 1,
        l1: float = 0.0,
        mask_penalty: float = math.inf,
        row_solver: RowSolver = "newton",
        extrapolate: bool | Literal["auto"] = "auto",
        max_iter: int = 1000,
        tol: float = 1e-9,
        engine: Any = "auto",
        normalize: str = "max",
        random_state: Any = 0,
        fixed_factors: Any = None,
        mask: Any = None,
        n_jobs: int | None = None,
        callbacks: Sequence[Callback] = (),
        verbose: int = 0,
        checkpoint: StrPath | None = None,
        checkpoint_every: float = 30.0,
        warm_start: bool = False,
    ) -> None:
        self.n_components = n_components
        self.c = c
        self.likelihood = likelihood
        self.zeros_tol = zeros_tol
        self.approximation = approximation
        self.interval = interval
        self.size_factors = size_factors
        self.noise = noise
        self.dispersion = dispersion
        self.batch_strength = batch_strength
        self.init = init
        self.n_init = n_init
        self.l1 = l1
        self.mask_penalty = mask_penalty
        self.row_solver = row_solver
        self.extrapolate = extrapolate
        self.max_iter = max_iter
        self.tol = tol
        self.engine = engine
        self.normalize = normalize
        self.random_state = random_state
        self.fixed_factors = fixed_factors
        self.mask = mask
        self.n_jobs = n_jobs
        self.callbacks = callbacks
        self.verbose = verbose
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.warm_start = warm_start

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        size_factors: Any = None,
        batch: Any = None,
        loadings: Any = None,
        factors: Any = None,
        fixed_loadings: Any = None,
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
            Replaces the parameter `size_factors` in this fit. scikit-learn's metadata routing passes it
            without a request, here and in `transform` and `score`.
        batch : array of shape (n_samples,), optional
            Batch of every sample (donor, chip, section). Every batch then multiplies the rates of each
            feature by an effect; see `batch_strength` and `batch_effects_`. Metadata routing passes it as
            well.
        loadings, factors : array of shape (n_samples, K) and (n_features, K), optional
            Start, on the link scale; replaces `init` and `warm_start`. Factors may also have the shape of
            `components_`, (K, n_features).
        fixed_loadings : mapping of str to array, data frame or array of shape (n_samples, K_0), optional
            Known loadings, such as a design: ``{"everyone": 1, "treated": treated}``. A column may also
            contain 0 for samples without the factor and NaN for loadings to estimate. Metadata routing passes
            them as well. Loadings of new samples are free, see `transform`.
        resume : str or PathLike, optional
            Checkpoint of a fit with the same counts and parameters, to continue from. The result has the same
            bits as if that fit had never stopped.

        Returns
        -------
        Log1pNMF
            Itself.
        """
        if not isinstance(self.warm_start, bool | np.bool_):
            raise TypeError(f"warm_start must be True or False, got {self.warm_start!r}")
        known = {"batch": batch, "fixed_loadings": fixed_loadings}
        request, X = self._request(size_factors, loadings, factors, known), frame_of(X)
        counts = as_counts(X, self.engine)
        features = seen_features(X, counts)
        fit = run_request(request, counts, resume=resume)
        return self._take(fit.named(feature_names=features.get("feature_names_in_")), features)

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Array:
        """Fit the model and return the loadings of the samples it was fitted to.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            Counts, samples x features.
        y : ignored
            Ignored; scikit-learn passes it.
        **options : optional
            `size_factors`, `batch`, `loadings`, `factors`, `fixed_loadings` and `resume`, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
        """
        return self.fit(X, y, **options).loadings_

    def _request(self, size_factors: Any, loadings: Any, factors: Any, of_samples: dict[str, Any]) -> Request:
        """Check all parameters, before any work."""
        parameters = self.get_params(deep=False)
        del parameters["warm_start"]
        if size_factors is not None:
            parameters["size_factors"] = size_factors
        if (loadings is None) != (factors is None):
            missing = "loadings" if loadings is None else "factors"
            raise ValueError(f"loadings and factors go together, but {missing} is missing: pass both or none")
        if loadings is not None:
            parameters["init"] = (loadings, factors)
        request = Request.of(**of_samples, **parameters)
        if loadings is None and self.warm_start and hasattr(self, "fit_"):
            return request.at(init=self.fit_)
        return request

    def _take(self, fit: Fit, features: dict[str, Any] | None = None) -> Log1pNMF:
        """Show a fit: all that was known of an earlier one goes, in one step."""
        if features is None:
            features = {"n_features_in_": fit.data.n_features}
            if fit.feature_names is not None:
                features["feature_names_in_"] = fit.feature_names
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        components = np.ascontiguousarray(fit.factors.T)
        self.__dict__ = {**kept, "fit_": fit, "components_": components, **features}
        return self

    # ---------------------------------------------------------------- keeping

    @classmethod
    def load(cls, path: StrPath) -> Log1pNMF:
        """Read a model, or any fit, that `save` wrote.

        Parameters
        ----------
        path : str or PathLike
            File that `save` wrote.

        Returns
        -------
        Log1pNMF

        Raises
        ------
        ValueError
            If the file is damaged, has a newer format or is not a fit.
        """
        return cls.of(Fit.load(path))

    @classmethod
    def of(cls, source: Any, *, key: str | None = None) -> Log1pNMF:
        """Make a fitted model from a `Fit`, AnnData or a file.

        Parameters
        ----------
        source : Fit, AnnData, str or PathLike
            See `log1pnmf.as_fit`.
        key : str, optional
            Name of the fit in an AnnData.

        Returns
        -------
        Log1pNMF
            A model with the parameters that the fit was requested with, except for `engine`, which is the
            default: the original one may not exist on this machine.
        """
        fit = as_fit(source, key=key)
        parameters = {**vars(fit.asked)}
        del parameters["engine"]
        if fit.asked.init == GIVEN:
            del parameters["init"]
        if fit.asked.size_factors == GIVEN:
            parameters["size_factors"] = fit.size_factors
        if fit.asked.dispersion == GIVEN:
            parameters["dispersion"] = fit.dispersion
        _, parameters["fixed_factors"], parameters["mask"] = fit.known_parts
        return cls(**parameters)._take(fit)._recall(source, key)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []  # loadings are always float64
        return tags
