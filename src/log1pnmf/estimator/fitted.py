"""What can be asked of a fitted estimator; the base of `Log1pNMF`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from log1pnmf._common.atomic import StrPath
from log1pnmf.analysis.batches import batch_effects
from log1pnmf.analysis.loading_errors import loading_errors
from log1pnmf.counts.chunked.opening import CountSource
from log1pnmf.counts.chunked.parts import source_of
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.given import check_unmasked, frame_of
from log1pnmf.engines.registry import as_counts
from log1pnmf.fitting.certificate import certify
from log1pnmf.fitting.facts import Certificate
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.new_samples import counts_of, project, score

from .findings import Findings

__all__ = ["FittedModel", "seen_features"]

Array = NDArray[np.float64]


class FittedModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Findings):
    """Everything of `log1pnmf.Log1pNMF` that comes after `fit`, none of which changes the fit."""

    fit_: Fit
    components_: Array
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    engine: Any
    n_jobs: int | None

    @property
    def loadings_(self) -> Array:
        """Loadings of the training samples."""
        return self.fit_.loadings

    @property
    def dispersion_(self) -> Array | None:
        """Dispersion of every feature; None with Poisson noise."""
        return self.fit_.dispersion

    @property
    def batch_effects_(self) -> Any:
        """Effects of batches on features, batches x features (a data frame with pandas); None without."""
        return None if self.fit_.batches is None else batch_effects(self.fit_)

    @property
    def log_likelihood_(self) -> float | None:
        """Exact log-likelihood; None where it was not computed."""
        return self.fit_.log_likelihood

    @property
    def approximate_objective_(self) -> float | None:
        """What an approximate or adaptive fit has minimised, penalty included; None for exact fits."""
        return None if self.fit_.approximate_log_likelihood is None else self.fit_.objective

    @property
    def n_iter_(self) -> int:
        """Iterations of the best start; the look at one that is an optimum already counts as one."""
        return max(1, self.fit_.n_iter)

    @property
    def converged_(self) -> bool:
        """Whether the fit ended at an optimum, as `tol` has it."""
        return self.fit_.converged

    @property
    def kkt_residual_(self) -> float:
        """Distance from a stationary point."""
        return self.fit_.kkt_residual

    @property
    def history_(self) -> Any:
        """One entry per iteration."""
        return self.fit_.history

    @property
    def certificate_(self) -> Certificate | None:
        """Exact log-likelihood, and how far off the fitted one is, where known."""
        return self.fit_.certificate

    @property
    def _n_features_out(self) -> int:
        return self.fit_.n_components

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Name the columns of `transform`: "log1pnmf0" and so on, or as `rename_factors` named the factors.

        Parameters
        ----------
        input_features : None
            Ignored; there for scikit-learn.

        Returns
        -------
        ndarray of str
        """
        names: np.ndarray = super().get_feature_names_out(input_features)
        renamed = self.fit_.given_factor_names
        return names if renamed is None else np.array(renamed, dtype=object)

    def transform(
        self,
        X: Any,
        *,
        size_factors: Any = None,
        batch: Any = None,
        fixed_loadings: Any = None,
        return_std: bool = False,
    ) -> Any:
        """Estimate the loadings of other samples for the factors of the fit.

        Features that are zero in every factor do not affect the loadings and are ignored. If both the
        training data and X have feature names, the features of X may have any order.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Counts of the samples. Those of `log1pnmf.open_counts` are read chunk by chunk.
        size_factors : {"total", "fit", "none"} or array of shape (n,), optional
            By default what the model was fitted with; "total" divides by the mean total of the training
            samples. Required if the model was fitted with an array.
        batch : array of shape (n,), optional
            Batch of every sample, if the model was fitted with batches. An unknown batch has no effects;
            without `batch`, no sample has any.
        fixed_loadings : optional
            Known loadings of the factors that had known loadings in `fit`; by default they are estimated like
            all others.
        return_std : bool
            Whether to return standard errors given the factors as well; see
            `log1pnmf.analysis.loading_errors`.

        Returns
        -------
        loadings : ndarray of shape (n, n_components)
        std : ndarray of shape (n, n_components)
            Only with `return_std`.

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(1, c=float("inf")).fit([[4, 2], [2, 1], [6, 3]])
        >>> model.transform([[40, 20]]).round(4)  # ten times the counts, ten times the size factor
        array([[1.]])
        """
        new = self._new_samples(X)
        own = {"batch": batch, "engine": self.engine, "n_jobs": self.n_jobs}
        loadings = project(self.fit_, new, size_factors, fixed_loadings=fixed_loadings, **own)
        if not return_std:
            return loadings
        return loadings, loading_errors(self.fit_, new, loadings, size_factors=size_factors, batch=batch)

    def inverse_transform(self, loadings: Any, size_factors: Any = None) -> Array:
        """Compute the mean counts for given loadings, ``s_i c expm1(L F' / alpha_c)``.

        Parameters
        ----------
        loadings : array of shape (n, n_components)
            As returned by `transform`.
        size_factors : array of shape (n,), optional
            By default 1, a sample of average size; ``fit_.size_factors`` are those of the training samples.

        Returns
        -------
        ndarray of shape (n, n_features)
            Dense array.

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
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
        if (values < 0).any():
            i, k = (int(x) for x in np.argwhere(values < 0)[0])
            raise ValueError(f"loadings must not be negative, got {values[i, k]} at row {i}, column {k}")
        rates = self.fit_.link.inverse(values @ self.components_)
        if size_factors is None:
            return rates
        try:
            sizes = np.asarray(size_factors, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"size_factors must be an array of numbers, got {type(size_factors).__name__}"
            ) from None
        if sizes.shape != (len(values),):
            raise ValueError(
                f"size_factors must have one number for each of the {len(values)} samples, "
                f"got an array of shape {sizes.shape}"
            )
        return sizes[:, None] * rates

    def score(self, X: Any, y: Any = None, *, size_factors: Any = None, batch: Any = None) -> float:
        """Exact mean log-likelihood per entry of other samples.

        Loadings are estimated from the same samples, as in `transform`. So scores compare links and penalties
        at the same number of factors, but they always favour more factors; use
        `log1pnmf.analysis.heldout_score` to choose their number. Features without a count in training are
        ignored, because any count there would be impossible.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Counts of the samples, as in `transform`.
        y : ignored
            Ignored; scikit-learn passes it.
        size_factors : {"total", "fit", "none"} or array of shape (n,), optional
            As in `transform`.
        batch : array of shape (n,), optional
            As in `transform`.

        Returns
        -------
        float
        """
        new = self._new_samples(X)
        return score(self.fit_, new, size_factors, batch=batch, engine=self.engine, n_jobs=self.n_jobs)

    def certify(self, X: Any = None) -> Certificate:
        """Exact log-likelihood of the fit, and how far off the fitted one was.

        The fit knows it already, unless it is approximate and has more than 2e8 entries. In that case it is
        estimated from some samples, without bias and with a standard error.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features), optional
            The training data; needed if the fit did not compute the exact log-likelihood.

        Returns
        -------
        Certificate
            Also kept as `certificate_`, and shown by `summary`.

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(1, c=float("inf")).fit([[4, 2], [2, 1], [6, 3]])
        >>> model.certify().gap
        0.0
        """
        check_is_fitted(self)
        found = self.fit_.certificate
        if found is None:
            if X is None:
                raise ValueError(
                    "the fit did not compute the exact log-likelihood: pass its data, certify(X)"
                )
            found = certify(self.fit_, counts_of(self.fit_, X), engine=self.engine, n_jobs=self.n_jobs)
            self.fit_ = replace(self.fit_, certificate=found)
        return found

    def _new_samples(self, X: Any) -> Counts | CountSource:
        """Check new samples; where names do not tell their features, as scikit-learn does."""
        check_is_fitted(self)
        X = frame_of(X)
        samples = source_of(X) or as_counts(X)
        if samples.feature_names is None or not hasattr(self, "feature_names_in_"):
            validate_data(self, X, reset=False, skip_check_array=True)
        return samples

    def save(self, path: StrPath) -> None:
        """Write the fitted model to one file, without pickle and atomically; the same as ``fit_.save``.

        `load` restores the same bits. It does not restore `n_jobs`, `engine`, `verbose`, `checkpoint`,
        `checkpoint_every`, `callbacks`, `warm_start` and starts given as arrays or functions: these have
        their defaults. A `random_state` that is not a number becomes None.

        Parameters
        ----------
        path : str or PathLike
            File to write, in npz format; no ending is added.

        Examples
        --------
        >>> import os, tempfile
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(1).fit([[1, 0, 3], [2, 5, 0]])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
        >>> model.save(path)
        >>> bool((Log1pNMF.load(path).components_ == model.components_).all())
        True
        """
        check_is_fitted(self)
        self.fit_.save(path)


def seen_features(X: Any, counts: Counts) -> dict[str, Any]:
    """Find number and names of the features as scikit-learn does, as attributes of an estimator.

    Parameters
    ----------
    X : object
        What the user passed.
    counts : Counts
        What it became.

    Returns
    -------
    dict
        `n_features_in_`, and `feature_names_in_` where there are names.
    """
    probe = BaseEstimator()
    validate_data(probe, X, skip_check_array=True)
    found = dict(vars(probe))
    if not hasattr(X, "columns") and counts.feature_names is not None:
        found["feature_names_in_"] = counts.feature_names
    return found
