"""What can be asked of a fitted model; the base of the estimator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from log1pnmf._common.archive import StrPath
from log1pnmf._common.optional import require
from log1pnmf._common.rows import RowFile
from log1pnmf.analysis.topics import TopicModel, topic_model
from log1pnmf.counts.chunked.opening import CountSource, is_streamed, open_counts
from log1pnmf.counts.chunked.runners import each_chunk, survey
from log1pnmf.counts.chunked.survey import ChunkedCounts
from log1pnmf.counts.counts import Counts, frame_of
from log1pnmf.counts.features import align_features
from log1pnmf.fitting.certificate import Certificate, certify
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.new_samples import NewSamples, new_size_factors
from log1pnmf.fitting.readout import Readout
from log1pnmf.fitting.summary import TrainingData, summarize

__all__ = ["FittedModel"]

Array = NDArray[np.float64]


class FittedModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Everything of `log1pnmf.Log1pNMF` that comes after `fit`, none of which changes the fit."""

    fit_: Fit
    components_: Array
    loadings_: Array
    certificate_: Certificate | None
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    engine: str
    n_jobs: int | None
    _readout: Readout
    _data: TrainingData

    def transform(self, X: Any, *, size_factors: Any = None) -> Array:
        """Find the loadings of other samples; the factors stay as they are.

        Features that are zero in every factor say nothing about the loadings and are left out. Where both the
        training data and X have feature names, X may have its features in any order.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Or what `log1pnmf.counts.chunked.open_counts` gives: then chunk by chunk, in this process.
        size_factors : {"total", "none"} or array of shape (n,), optional
            By default what the model was fitted with; "total" divides by the mean total of the training
            samples. Needed where the model was fitted with an array.

        Returns
        -------
        ndarray of shape (n, n_components)

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(1, c=float("inf"), random_state=0).fit([[4, 2], [2, 1], [6, 3]])
        >>> model.transform([[40, 20]]).round(4)  # ten times the counts, ten times the size factor
        array([[1.]])
        """
        loadings = self._loadings_of(X, size_factors)
        return self._readout.loadings(loadings)

    def inverse_transform(self, loadings: Any, size_factors: Any = None) -> Array:
        """Mean counts that loadings stand for, ``s_i c expm1(L F' / alpha_c)``.

        Parameters
        ----------
        loadings : array of shape (n, n_components)
            As returned by `transform`.
        size_factors : array of shape (n,), optional
            By default 1, a sample of average size; ``fit_.size_factors`` are those of the training samples.

        Returns
        -------
        ndarray of shape (n, n_features)
            Dense.

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(1, c=float("inf"), random_state=0).fit([[4, 2], [2, 1], [6, 3]])
        >>> model.inverse_transform(model.loadings_, model.fit_.size_factors).round(4)
        array([[4., 2.],
               [2., 1.],
               [6., 3.]])
        """
        check_is_fitted(self)
        values = check_array(loadings, dtype=np.float64, input_name="loadings")
        if values.shape[1] != len(self.components_):
            raise ValueError(
                f"loadings must have {len(self.components_)} columns, one for each factor, "
                f"got shape {values.shape}; pass what transform returned"
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

    def score(self, X: Any, y: Any = None, *, size_factors: Any = None) -> float:
        """Mean Poisson log-likelihood per entry of other samples, exactly.

        Their loadings are found as in `transform`, so the samples help to fit themselves: values compare
        links and penalties with as many factors each, but more factors look better than they are. Features
        that had no count in training are left out, as every count there would be impossible.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Or counts in chunks, as in `transform`.
        y : ignored
        size_factors : {"total", "none"} or array of shape (n,), optional
            As in `transform`.

        Returns
        -------
        float
        """
        found = [
            (samples.log_likelihood(self._solved(samples)), samples.n_entries)
            for _, samples in self._batches(X, size_factors)
        ]
        n_entries = sum(n for _, n in found)
        if n_entries == 0:
            raise ValueError("every factor of the model is zero, so there is nothing to score; fit it again")
        return math.fsum(one for one, _ in found) / n_entries

    def certify(self, X: Any = None) -> Certificate:
        """Exact log-likelihood of the fit, and how far off the approximation was.

        Up to 2e8 entries the fit has computed it already. Above, it is estimated here without bias from some
        samples, and has a standard error.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features), optional
            The training data; needed where the fit did not compute the exact log-likelihood.

        Returns
        -------
        Certificate
            Also kept as `certificate_`, and shown by `summary`.

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(1, c=float("inf"), random_state=0).fit([[4, 2], [2, 1], [6, 3]])
        >>> model.certify().gap
        0.0
        """
        check_is_fitted(self)
        if self.certificate_ is not None:
            return self.certificate_
        if X is None:
            raise ValueError("the fit did not compute the exact log-likelihood: pass its data, certify(X)")
        counts = self._aligned(X, new=False)
        if counts.n_samples != len(self.fit_.loadings):
            raise ValueError(
                f"X must be the training data with {len(self.fit_.loadings)} samples, got {counts.n_samples}"
            )
        self.certificate_ = certify(self.fit_, counts, engine=self.engine, n_jobs=self.n_jobs)
        return self.certificate_

    def summary(self, *, n_top: int = 8, feature_names: Any = None) -> str:
        """Describe data, model, quality of the fit, and factors, in words.

        Parameters
        ----------
        n_top : int
            Features shown per factor: those whose share of the factor most exceeds that of the others.
        feature_names : sequence of str, optional
            By default those of the training data, or numbers where it had none.

        Returns
        -------
        str
            To be printed.
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if feature_names is not None:
            names = np.asarray(feature_names, dtype=object)
            if names.shape != (self.n_features_in_,):
                raise ValueError(
                    f"feature_names must have one name for each of the {self.n_features_in_} features, "
                    f"got shape {names.shape}"
                )
        return summarize(
            self.fit_,
            self._data,
            self.loadings_,
            self.components_,
            certificate=self.certificate_,
            names=names,
            n_top=n_top,
        )

    def report(self, path: StrPath, **about: Any) -> Path:
        """Write a report about the fit: one HTML file that opens offline.

        Parameters
        ----------
        path : str or PathLike
        **about : optional
            What is known about the data, `groups` and `feature_names` above all; see
            `log1pnmf.report.write_report`.

        Returns
        -------
        Path
            Of the file.
        """
        check_is_fitted(self)
        # The report reads models, so it lies above them and cannot be imported up there.
        return require("log1pnmf.report", extra="report", purpose="the report").write_report(
            path, self, **about
        )

    def markers(self, X: Any, **options: Any) -> Any:
        """Find the features that define each factor: effects with standard errors and tests.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            The training data.
        **options : optional
            `errors` above all; see `log1pnmf.analysis.markers.markers`.

        Returns
        -------
        log1pnmf.analysis.markers.Markers
        """
        check_is_fitted(self)
        return import_module("log1pnmf.analysis.markers").markers(
            self, X, **{"n_jobs": self.n_jobs, **options}
        )

    def diagnose(self, X: Any, **options: Any) -> Any:
        """Find the features, samples and entries that the fit does not explain.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            The training data.
        **options : optional
            See `log1pnmf.analysis.diagnostics.diagnose`.

        Returns
        -------
        log1pnmf.analysis.diagnostics.Diagnostics
        """
        check_is_fitted(self)
        return import_module("log1pnmf.analysis.diagnostics").diagnose(self, X, **options)

    def to_topic_model(self) -> TopicModel:
        """Give the equivalent multinomial topic model, at ``c = inf``.

        Returns
        -------
        TopicModel
            Topics are the factors in the order of `components_`.

        Examples
        --------
        >>> import numpy as np
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(2, c=np.inf, tol=1e-4, random_state=0).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]])
        >>> topics = model.to_topic_model()
        >>> topics.proportions.sum(axis=1), topics.words.sum(axis=1)
        (array([1., 1., 1.]), array([1., 1.]))
        """
        check_is_fitted(self)
        return topic_model(self.fit_, self._readout.order, getattr(self, "feature_names_in_", None))

    # ---------------------------------------------------------------- inside

    def _loadings_of(self, X: Any, size_factors: Any) -> Array:
        """Find loadings on the fit's own scale."""
        check_is_fitted(self)
        if not _is_chunked(X):
            return self._solved(self._new_samples(X, size_factors))
        source = _source_of(X)
        loadings = RowFile((source.shape[0], self.fit_.n_components), folder=source.folder)
        for first, samples in self._batches(source, size_factors):
            loadings.write(first, self._solved(samples))
        return loadings.rows().to_array()

    def _batches(self, X: Any, size_factors: Any) -> Iterator[tuple[int, NewSamples]]:
        """Give samples and the number of the first one: all, or chunk by chunk if they are not in memory."""
        check_is_fitted(self)
        if not _is_chunked(X):
            yield 0, self._new_samples(X, size_factors)
            return
        source = _source_of(X)
        given = None if size_factors is None or isinstance(size_factors, str) else np.asarray(size_factors)
        if given is not None and given.shape != source.shape[:1]:
            raise ValueError(
                f"size_factors must have one number for each of the {source.shape[0]} samples, "
                f"got an array of shape {given.shape}"
            )
        first = 0
        for chunk in each_chunk(source):
            last = first + chunk.n_samples
            if last > first:
                yield first, self._new_samples(chunk, size_factors if given is None else given[first:last])
            first = last

    def _new_samples(self, X: Any, size_factors: Any) -> NewSamples:
        check_is_fitted(self)
        counts = self._aligned(X)
        sizes = new_size_factors(
            counts,
            size_factors,
            fitted_with=self.fit_.settings["size_factors"],
            mean_total=self._data.mean_total,
        )
        engine = "native" if self.engine == "streaming" else self.engine
        return NewSamples(self.fit_, counts, sizes, engine, self.n_jobs)

    def _solved(self, samples: NewSamples) -> Array:
        loadings, converged = samples.solve()
        if not converged:
            warnings.warn(
                "some loadings have not converged; a feature may have a count far beyond the training data",
                ConvergenceWarning,
                stacklevel=3,
            )
        return loadings

    def _aligned(self, X: Any, *, new: bool = True) -> Counts:
        """Check counts and bring their features into the order of the training data.

        Where only the training data had names, scikit-learn wants a warning for new samples.
        """
        X = frame_of(X)
        counts = survey(_source_of(X)) if is_streamed(X) else Counts.from_any(X)
        fitted = getattr(self, "feature_names_in_", None)
        if isinstance(counts, ChunkedCounts):
            if counts.n_features != self.n_features_in_ or _differ(fitted, counts.feature_names):
                raise ValueError(
                    f"counts in chunks must have the {self.n_features_in_} features of the fit, in the same "
                    f"order; these have {counts.n_features}, or others"
                )
            return counts
        if fitted is not None and counts.feature_names is not None:
            return align_features(counts, counts.feature_names, fitted)
        if new or counts.n_features != self.n_features_in_:
            validate_data(self, X, reset=False, skip_check_array=True)
        return counts

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


def _is_chunked(X: Any) -> bool:
    return isinstance(X, ChunkedCounts) or is_streamed(X)


def _source_of(X: Any) -> CountSource:
    return X.source if isinstance(X, ChunkedCounts) else open_counts(X)


def _differ(names: NDArray[np.object_] | None, others: NDArray[Any] | None) -> bool:
    return names is not None and others is not None and not np.array_equal(names, others)
