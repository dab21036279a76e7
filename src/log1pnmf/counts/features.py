"""Features by name: new data brought into the order of the training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from .counts import Counts, SparseRows

__all__ = ["align_features", "check_same_features", "seen_features", "select_features"]

MOST_LISTED = 10


def align_features(counts: Counts, names: NDArray[np.object_], fitted: NDArray[np.object_]) -> Counts:
    """Bring features into the order of the training data.

    Parameters
    ----------
    counts : Counts
    names : ndarray of str
        Of its features.
    fitted : ndarray of str
        Of the training features.

    Returns
    -------
    Counts
        Itself, where nothing is to be done.

    Raises
    ------
    ValueError
        Where features are missing or unknown, which are listed, or names occur twice in another order.

    Examples
    --------
    >>> counts = Counts.from_any([[1, 2, 3]])
    >>> align_features(counts, np.array(["c", "a", "b"]), np.array(["a", "b", "c"])).to_scipy().toarray()
    array([[2., 3., 1.]], dtype=float32)
    """
    if np.array_equal(names, fitted):
        return counts
    unknown, missing = sorted(set(names) - set(fitted)), sorted(set(fitted) - set(names))
    problems = []
    if unknown:
        problems.append(f"Feature names unseen at fit time:\n{_listed(unknown)}")
    if missing:
        problems.append(f"Feature names seen at fit time, yet now missing:\n{_listed(missing)}")
    twice = [name for name, n in (Counter(names) + Counter(fitted)).items() if n > 2]
    if twice and not problems:
        problems.append(
            "Feature names that occur twice can only be used in the same order as in fit:\n"
            f"{_listed(sorted(twice))}"
        )
    if problems:
        raise ValueError(
            "The feature names should match those that were passed during fit.\n"
            + "".join(problems)
            + "Give X the features of the training data (in any order), with zeros where nothing was counted"
        )
    position = {name: j for j, name in enumerate(names)}
    return select_features(counts, np.array([position[name] for name in fitted], dtype=np.intp))


def _listed(names: Sequence[str]) -> str:
    lines = [f"- {name}\n" for name in names[:MOST_LISTED]]
    if len(names) > MOST_LISTED:
        lines.append(f"- and {len(names) - MOST_LISTED} more\n")
    return "".join(lines)


def select_features(counts: Counts, chosen: NDArray[np.intp]) -> Counts:
    """Make counts of some features only, in the order in which they are given."""
    part = counts.to_scipy()[:, chosen]
    part.sort_indices()
    rows = SparseRows(part.shape, part.indptr.astype(np.int64), part.indices.astype(np.int32), part.data)
    return Counts(rows, sample_names=counts.sample_names)


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


def check_same_features(counts: Counts, n_features: int, known: NDArray[np.object_] | None) -> None:
    """Refuse to go on from a fit with other features.

    Parameters
    ----------
    counts : Counts
        What is to be fitted now.
    n_features : int
        Of the fit before.
    known : ndarray of str, or None
        Their names.
    """
    given = counts.feature_names
    if counts.n_features != n_features:
        what = f"{n_features} features, but X has {counts.n_features}"
    elif known is not None and given is not None and not np.array_equal(known, given):
        j = int(np.argmax(known != given))
        what = f"other features (column {j} was {known[j]!r}, now is {given[j]!r})"
    else:
        return
    raise ValueError(
        f"warm_start=True goes on from a fit with {what}; pass the same features in the same order "
        "or set warm_start=False"
    )
