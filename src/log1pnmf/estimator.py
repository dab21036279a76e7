"""The scikit-learn estimator: parameters in, fitted attributes out; no maths."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from log1pnmf._common.archive import (
    StrPath,
    making_whole,
    read_archive,
    write_archive,
)
from log1pnmf.counts.counts import Counts, frame_of
from log1pnmf.counts.features import check_same_features, seen_features
from log1pnmf.engines.base import RowSolver
from log1pnmf.engines.registry import as_counts
from log1pnmf.fitted import FittedModel
from log1pnmf.fitting.certificate import Certificate, certify
from log1pnmf.fitting.checkpoint import check_checkpoint
from log1pnmf.fitting.continuation import continued_start
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fitting import fit_log1p_nmf
from log1pnmf.fitting.readout import Readout, check_normalize, read_out
from log1pnmf.fitting.settings import Settings, check_number
from log1pnmf.fitting.solver.callbacks import Callback
from log1pnmf.fitting.starts import as_random
from log1pnmf.fitting.summary import TrainingData
from log1pnmf.model.chunked import problem_of
from log1pnmf.saving import ModelParts

__all__ = ["Log1pNMF"]

Array = NDArray[np.float64]

KIND = "Log1pNMF model"
READ_OUT = ("normalize", "warm_start")
"""Parameters that are the estimator's own: `fit_log1p_nmf` does not see them."""


class Log1pNMF(FittedModel):
    """Poisson NMF with the shifted-log link, ``alpha_c log(1 + lam / c) = L F'``.

    The counts of sample i are ``Poisson(s_i lam_ij)``, ``alpha_c = max(1, c)``; ``c = inf`` is the identity
    link, ``lam = L F'``. Loadings L and factors F are not negative.

    Parameters
    ----------
    n_components : int
        Number of factors, K. More than samples or features is allowed, with a warning.
    c : float
        Shift of the link, positive; inf is standard Poisson NMF, where parts add up. The smaller, the more
        they multiply.
    likelihood : {"auto", "approximate", "exact", "refined"}
        "approximate" replaces the mean of zero counts by a quadratic and costs only the non-zeros; "refined"
        goes on with exact iterations from there; "auto" is approximate for ``c >= 1`` and exact below.
    approximation : {"chebyshev", "taylor"}
        Which quadratic.
    interval : (low, high), optional
        Where "chebyshev" is to hold, on the link scale.
    size_factors : {"total", "none"} or array of shape (n_samples,)
        Exposure of the samples; "total" is their total count divided by its mean.
    init : {"rank1", "random", "nndsvd"} or (loadings, factors)
        Start; a given one is on the link scale.
    n_init : int
        Number of starts; the fit with the lowest objective is kept.
    l1 : float
        Penalty on the sum of all factors but the first (the baseline), in units of log-likelihood on the link
        scale. Where it is positive, loadings are bounded by 1.
    row_solver : {"newton", "coordinate"}
        "coordinate" is the paper's own algorithm.
    extrapolate : bool or "auto"
        Whether to go beyond each update in the direction of the last ones; "auto": with "newton" only.
    max_iter : int
        Updates of both factors at most, in each phase.
    tol : float
        Relative fall of the objective per iteration at which to stop.
    n_jobs : int, optional
        Threads; None and -1 are all available cores. The result is the same for any number.
    engine : {"auto", "native", "reference", "torch", "torch-float64", "streaming"}
        What computes the half-steps; see `log1pnmf.fit_log1p_nmf`.
    random_state : int, RandomState, Generator or None
    normalize : {"max", "factor_max", "factor_sum", "none"}
        Scale of the factors as shown in `loadings_` and `components_`, which does not change the fit: the
        largest loading of every factor is 1; the largest entry of every factor is 1; the entries of every
        factor sum to 1; or as the solver left them. The order is the same for all: the baseline first (the
        factor with the most even loadings, or the one without penalty where `l1` is positive), then by share
        of the signal.
    warm_start : bool
        Whether `fit` starts where the last fit of this object ended (`n_init` then is 1). The features have
        to be the same. `n_components` may change: new factors start tiny and random; where there are to be
        fewer, those with the largest share stay. `c` may change: loadings stay, each factor keeps the rates
        of a sample that has it alone, and the total is matched. For another number of samples the loadings
        are first found for the old factors.
    callbacks : sequence of callables
        Called with every `log1pnmf.fitting.solver.iteration.Iteration`; a true result stops the fit.
    verbose : int
        1 shows a progress bar.
    checkpoint : str or PathLike, optional
        File to which the state of the fit is written every so often and at its end, whole or not at all;
        `fit` goes on from there with `resume`. A file that is not a checkpoint is never written over.
    checkpoint_every : float
        Seconds between two writes; 0 writes after every iteration.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Factors, on the link scale.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings of the training samples.
    log_likelihood_ : float or None
        Exact log-likelihood; None where it was not computed, see `certify`.
    approximate_objective_ : float or None
        What an approximate fit has minimised, penalty included; None for exact fits.
    n_iter_ : int
        Iterations, over all phases.
    converged_ : bool
        Whether `tol` was met (in every phase).
    kkt_residual_ : float
        Distance from a stationary point, 0 at an optimum; see `log1pnmf.model.objective.kkt_residual`.
    history_ : dict of str to ndarray
        One entry per iteration; see `log1pnmf.fitting.solver.callbacks.History.table`.
    certificate_ : Certificate or None
        Exact log-likelihood and what the approximation cost, where known; see `certify`.
    fit_ : Fit
        Everything known about the fit, in the solver's own scale and order.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, where the counts had any.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:200]
    >>> model = Log1pNMF(n_components=3, c=1.0, tol=1e-5, random_state=0).fit(counts)
    >>> model.components_.shape, model.transform(counts[:5]).shape
    ((3, 2425), (5, 3))
    >>> model.loadings_.max(axis=0)
    array([1., 1., 1.])
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        c: float = 1.0,
        likelihood: str = "auto",
        approximation: str = "chebyshev",
        interval: tuple[float, float] | None = None,
        size_factors: Any = "total",
        init: Any = "rank1",
        n_init: int = 1,
        l1: float = 0.0,
        row_solver: RowSolver = "newton",
        extrapolate: bool | Literal["auto"] = "auto",
        max_iter: int = 1000,
        tol: float = 1e-8,
        n_jobs: int | None = None,
        engine: str = "auto",
        random_state: Any = None,
        normalize: str = "max",
        warm_start: bool = False,
        callbacks: Sequence[Callback] = (),
        verbose: int = 0,
        checkpoint: StrPath | None = None,
        checkpoint_every: float = 30.0,
    ) -> None:
        self.n_components = n_components
        self.c = c
        self.likelihood = likelihood
        self.approximation = approximation
        self.interval = interval
        self.size_factors = size_factors
        self.init = init
        self.n_init = n_init
        self.l1 = l1
        self.row_solver = row_solver
        self.extrapolate = extrapolate
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.engine = engine
        self.random_state = random_state
        self.normalize = normalize
        self.warm_start = warm_start
        self.callbacks = callbacks
        self.verbose = verbose
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every

    # ---------------------------------------------------------------- fitting

    # Pipelines pass size factors on unless they are told not to; `fit` and `transform` have to agree on it.
    __metadata_request__fit: ClassVar = {"size_factors": True}
    __metadata_request__transform: ClassVar = {"size_factors": True}
    __metadata_request__score: ClassVar = {"size_factors": True}

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        size_factors: Any = None,
        loadings: Any = None,
        factors: Any = None,
        resume: StrPath | None = None,
    ) -> Log1pNMF:
        """Fit the model to counts. Where that fails, an earlier fit stays as it was.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            Raw counts. Those larger than memory: see `log1pnmf.counts.chunked.open_counts`.
        y : ignored
        size_factors : {"total", "none"} or array of shape (n_samples,), optional
            Takes the place of the parameter `size_factors` in this fit. Metadata routing of scikit-learn
            passes it on without being asked to, here and in `transform` and `score`.
        loadings, factors : array of shape (n_samples, K) and (n_features, K), optional
            Where to start, on the link scale; takes the place of `init` and `warm_start`. Factors may also
            have the shape of `components_`, (K, n_features).
        resume : str or PathLike, optional
            Checkpoint of a fit with the same counts and parameters, from which to go on: the result has the
            same bits as if that fit had never stopped.

        Returns
        -------
        Log1pNMF
            Itself.
        """
        settings, X = self._settings(size_factors), frame_of(X)
        counts = as_counts(X, self.engine)
        if counts.nnz == 0:
            raise ValueError(f"counts are all zero (shape {counts.shape}): pass data with at least one count")
        if settings.n_components > min(counts.shape):
            warnings.warn(
                f"n_components={settings.n_components} is more than the {min(counts.shape)} that samples and "
                f"features (shape {counts.shape}) can tell apart; choose fewer",
                UserWarning,
                stacklevel=2,
            )
        features = seen_features(X, counts)
        parameters = {**self._fit_parameters(), "size_factors": settings.size_factors}
        start = self._start(counts, loadings, factors, settings)
        if start is not None:
            parameters["init"] = start
            parameters["n_init"] = 1 if loadings is None else self.n_init
        fit = fit_log1p_nmf(counts, **parameters, resume=resume)
        certificate = None if fit.log_likelihood is None else certify(fit, counts)
        readout = read_out(fit, self.normalize)
        self._take(fit, readout, TrainingData.of(counts), certificate=certificate, features=features)
        return self

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Array:
        """Fit the model and return the loadings of the samples it was fitted to.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
        y : ignored
        **options : optional
            `size_factors`, `loadings`, `factors` and `resume`, as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
        """
        return self.fit(X, y, **options).loadings_

    def _fit_parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self.get_params(deep=False).items() if name not in READ_OUT}

    def _settings(self, size_factors: Any = None) -> Settings:
        """Check all parameters, before any work; size factors may take the place of the parameter."""
        check_normalize(self.normalize)
        if not isinstance(self.warm_start, bool | np.bool_):
            raise TypeError(f"warm_start must be True or False, got {self.warm_start!r}")
        as_random(self.random_state)
        check_number("checkpoint_every", self.checkpoint_every)
        if self.checkpoint is not None:
            check_checkpoint(self.checkpoint)
        values = {field.name: getattr(self, field.name) for field in fields(Settings)}
        return Settings(**(values if size_factors is None else {**values, "size_factors": size_factors}))

    def _start(
        self, counts: Counts, loadings: Any, factors: Any, settings: Settings
    ) -> tuple[Any, Any] | None:
        """Where to start, if that is known."""
        if (loadings is None) != (factors is None):
            missing = "loadings" if loadings is None else "factors"
            raise ValueError(f"loadings and factors go together, but {missing} is missing: pass both or none")
        if loadings is not None:
            return loadings, factors
        if not self.warm_start or not hasattr(self, "fit_"):
            return None
        check_same_features(counts, self.n_features_in_, getattr(self, "feature_names_in_", None))
        before = None
        if counts.n_samples != len(self.fit_.loadings):
            before = self._loadings_of(counts, settings.size_factors)
        problem = problem_of(counts, counts.size_factors(settings.size_factors), settings.link)
        rng = as_random(self.random_state)
        return continued_start(self.fit_, problem, self.n_components, rng, loadings=before)

    def _take(
        self,
        fit: Fit,
        readout: Readout,
        data: TrainingData,
        *,
        certificate: Certificate | None,
        features: Mapping[str, Any],
    ) -> None:
        """Show a fit: all that was known of an earlier one goes, in one step."""
        approximate = fit.approximate_log_likelihood is not None
        fitted = {
            "fit_": fit,
            "_data": data,
            "_readout": readout,
            "components_": np.ascontiguousarray(readout.factors(fit.factors).T),
            "loadings_": readout.loadings(fit.loadings),
            "log_likelihood_": fit.log_likelihood,
            "approximate_objective_": fit.objective if approximate else None,
            "n_iter_": fit.n_iter,
            "converged_": fit.converged,
            "kkt_residual_": fit.kkt_residual,
            "history_": fit.history,
            "certificate_": certificate,
        }
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        self.__dict__ = {**kept, **fitted, **features}

    # ---------------------------------------------------------------- keeping

    def save(self, path: StrPath) -> None:
        """Write the fitted model to one file, without pickle, whole or not at all.

        Everything comes back with the same bits, except what belongs to the machine and to you: `n_jobs`,
        `engine`, `verbose`, `checkpoint`, `checkpoint_every`, `callbacks`, and a `random_state` that is not a
        number. They are not saved, and are the default after `load`.

        Parameters
        ----------
        path : str or PathLike
            Used as it is; an npz file, see `log1pnmf._common.archive`.

        Examples
        --------
        >>> import os, tempfile
        >>> model = Log1pNMF(1, random_state=0).fit([[1, 0, 3], [2, 5, 0]])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
        >>> model.save(path)
        >>> bool((Log1pNMF.load(path).components_ == model.components_).all())
        True
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        parts = ModelParts(
            self.get_params(deep=False), self.fit_, self._readout, self._data, self.certificate_, names
        )
        arrays, metadata = parts.to_archive()
        write_archive(path, arrays, {**metadata, "kind": KIND})

    @classmethod
    def load(cls, path: StrPath) -> Log1pNMF:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : str or PathLike

        Returns
        -------
        Log1pNMF

        Raises
        ------
        ValueError
            For files that are damaged, of a newer format, or not such models.
        """
        parts = read_archive(path, kind=KIND)
        with making_whole(f"{path} holds a model", "save it again"):
            return cls._of(ModelParts.from_archive(*parts))

    @classmethod
    def _of(cls, parts: ModelParts) -> Log1pNMF:
        """Make a fitted model of checked parts."""
        model = cls(**parts.parameters)
        model._settings()
        model._take(
            parts.fit, parts.readout, parts.data, certificate=parts.certificate, features=parts.features
        )
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []  # loadings are always float64
        return tags
