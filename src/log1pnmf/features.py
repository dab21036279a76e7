"""Features by name: new data brought into the order of the training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .counts import Counts, SparseRows

__all__ = ["align_features", "select_features"]

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
