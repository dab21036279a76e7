"""What a fitted estimator says about its fit: features, markers, groups, names, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from log1pnmf._common.atomic import StrPath
from log1pnmf.analysis.coherence import coherence, exclusivity
from log1pnmf.analysis.diagnostics import Diagnostics, diagnose
from log1pnmf.analysis.evidence import Evidence, evidence, evidence_in
from log1pnmf.analysis.identity import top_features
from log1pnmf.analysis.markers.find import markers
from log1pnmf.analysis.markers.table import Markers
from log1pnmf.analysis.perplexity import perplexity
from log1pnmf.analysis.topics import TopicModel, topic_model
from log1pnmf.analysis.usage import Usage, usage
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.summary import summarize
from log1pnmf.report.document import write_report

__all__ = ["Findings"]


class Findings(BaseEstimator):
    """From a fit, and its counts where they are needed, to findings."""

    fit_: Fit
    n_jobs: int | None

    def summary(self, *, n_top: int = 8, feature_names: Any = None) -> str:
        """Describe data, model, quality of the fit, and factors, in words.

        Parameters
        ----------
        n_top : int
            Features shown per factor, in the order of `top_features`.
        feature_names : sequence of str, optional
            By default those of the training data, or numbers if they had none.

        Returns
        -------
        str
            Text to print. It includes the result of `evidence`, if you have called that.
        """
        check_is_fitted(self)
        text = summarize(self.fit_.named(feature_names=feature_names), n_top=n_top)
        found = self._known_evidence()
        return text if found is None else f"{text}\n\n{found.summary()}"

    def rename_factors(self, names: Any) -> Findings:
        """Name factors; every table, plot, report and file then has these names.

        Parameters
        ----------
        names : sequence of str, or mapping of name or number to str
            Names of all factors, or of some: ``{"k1": "interferon"}``. `log1pnmf.analysis.suggest_names`
            suggests some.

        Returns
        -------
        Log1pNMF
            The model itself.

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(2).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]])
        >>> model.rename_factors({"k1": "rare"}).fit_.factor_names
        ['k0', 'rare']
        """
        check_is_fitted(self)
        self.fit_ = self.fit_.renamed(names)
        return self

    def report(self, path: StrPath, **about: Any) -> Path:
        """Write a report about the fit: one HTML file that opens offline.

        Parameters
        ----------
        path : str or PathLike
            HTML file to write.
        **about : optional
            Such as `counts`, `groupby` and `feature_names`; see `log1pnmf.report.write_report`.

        Returns
        -------
        Path
            Path of the file.
        """
        check_is_fitted(self)
        known = {"n_jobs": self.n_jobs, "evidence": self._known_evidence()}
        return write_report(path, self.fit_, **{**known, **about})

    def top_features(self, n: int = 10, *, feature_names: Any = None) -> Any:
        """List the features that tell each factor from the others, as a data frame.

        Parameters
        ----------
        n : int
            Maximum number of features of each factor.
        feature_names : sequence of str, optional
            By default those of the training data, or numbers if they had none.

        Returns
        -------
        pandas.DataFrame
            See `log1pnmf.analysis.top_features`.
        """
        check_is_fitted(self)
        return top_features(self.fit_, n, feature_names=feature_names)

    def markers(self, X: Any, **options: Any) -> Markers:
        """Test which features rise with each factor, beyond the others.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            The training data.
        **options : optional
            Such as `split`; see `log1pnmf.analysis.markers`.

        Returns
        -------
        Markers
        """
        check_is_fitted(self)
        return markers(self.fit_, X, **{"n_jobs": self.n_jobs, **options})

    def evidence(self, X: Any, **options: Any) -> Evidence:
        """Measure for each factor what the fit loses without it, and how often it comes back.

        `summary` and `report` show it from then on.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            The training data.
        **options : optional
            Such as `n_seeds` and `n_bootstrap`; see `log1pnmf.analysis.evidence`.

        Returns
        -------
        Evidence
        """
        check_is_fitted(self)
        found = evidence(self.fit_, X, **{"n_jobs": self.n_jobs, **options})
        self._evidence = self.fit_.loadings, found
        return found

    def _recall(self, source: Any, key: str | None) -> Self:
        """Take over what is known about the factors where an AnnData is the source."""
        found = evidence_in(source, key)
        if found is not None and len(found.loss) == self.fit_.n_components:
            self._evidence = self.fit_.loadings, found
        return self

    def _known_evidence(self) -> Evidence | None:
        """Give what `evidence` found for this fit, with the names that factors have now."""
        kept: tuple[Any, Evidence] | None = getattr(self, "_evidence", None)
        if kept is None or kept[0] is not self.fit_.loadings:
            return None
        return kept[1].renamed(self.fit_.factor_names)

    def usage(self, groups: Any, replicate: Any = None, **options: Any) -> Usage:
        """Compare the mean loadings of groups of training samples, on the level of replicates.

        Parameters
        ----------
        groups : array-like of shape (n_samples,)
            Condition of every sample, or a number.
        replicate : array-like of shape (n_samples,) or True, optional
            Donor of every sample; True if every sample is a replicate.
        **options : optional
            See `log1pnmf.analysis.usage`.

        Returns
        -------
        Usage
        """
        check_is_fitted(self)
        return usage(self.fit_, groups, replicate=replicate, **options)

    def diagnose(self, X: Any, **options: Any) -> Diagnostics:
        """Find the features, samples and entries that the fit does not explain.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
            The training data.
        **options : optional
            See `log1pnmf.analysis.diagnose`.

        Returns
        -------
        Diagnostics
        """
        check_is_fitted(self)
        return diagnose(self.fit_, X, **options)

    def coherence(self, X: Any, n: int = 10, *, by: str = "ranking") -> Any:
        """NPMI coherence of every factor: how often its first features are in the same samples.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Samples in which features are counted: the training data or, better, others.
        n : int
            Number of top features of each factor.
        by : {"ranking", "weight"}
            See `log1pnmf.analysis.coherence`.

        Returns
        -------
        ndarray of shape (n_components,)
        """
        check_is_fitted(self)
        return coherence(self.fit_, X, n, by=by)

    def exclusivity(self, n: int = 10, *, by: str = "ranking") -> Any:
        """How much the first features of every factor are its own, from 1 / K to 1.

        Parameters
        ----------
        n : int
            Number of top features of each factor.
        by : {"ranking", "weight"}
            See `log1pnmf.analysis.exclusivity`.

        Returns
        -------
        ndarray of shape (n_components,)
        """
        check_is_fitted(self)
        return exclusivity(self.fit_, n, by=by)

    def perplexity(self, X: Any, **options: Any) -> float:
        """Perplexity of held-out words, given the other words of each document; smaller is better.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Documents that were not fitted.
        **options : optional
            `test_fraction` and others; see `log1pnmf.analysis.perplexity`.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        return perplexity(self.fit_, X, **{"n_jobs": self.n_jobs, **options})

    def to_topic_model(self) -> TopicModel:
        """Convert the fit to the equivalent multinomial topic model, at ``c = inf``.

        Returns
        -------
        TopicModel
            The topics are the factors, in the order of `components_`.

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(2, c=float("inf")).fit([[4, 0, 2], [3, 1, 2], [0, 5, 2]])
        >>> topics = model.to_topic_model()
        >>> topics.proportions.sum(axis=1), topics.words.sum(axis=1)
        (array([1., 1., 1.]), array([1., 1.]))
        """
        check_is_fitted(self)
        return topic_model(self.fit_)
