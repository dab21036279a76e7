"""Match features by name: bring new data into the order of the training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from .compress import SparseRows, dense_blocks
from .counts import Counts

MOST_LISTED = 10
ENOUGH_COUNTS, LEAST_DISPERSION = 20.0, 1e-3


def align_features(counts: Counts, fitted: NDArray[np.object_] | None, n_features: int) -> Counts:
    """Bring features into the order of the training data, by name where both have names."""
    names = counts.feature_names
    if names is None or fitted is None:
        if counts.n_features != n_features:
            raise ValueError(
                f"the counts have {counts.n_features} features, but the fit has {n_features}; "
                "pass the same features in the same order"
            )
        return counts
    if np.array_equal(names, fitted):
        return counts
    if not counts.in_memory:
        raise ValueError(
            f"counts in chunks must have the {n_features} features of the fit, in the same order; these have "
            f"{counts.n_features}, or others"
        )
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
            + "X needs all the features of the fit, in any order; if some were not measured, refit on the "
            "features that both data have"
        )
    return select_features(counts, match_names(names.tolist(), fitted.tolist())[0])


def _listed(names: Sequence[str]) -> str:
    lines = [f"- {name}\n" for name in names[:MOST_LISTED]]
    if len(names) > MOST_LISTED:
        lines.append(f"- and {len(names) - MOST_LISTED} more\n")
    return "".join(lines)


def select_features(counts: Counts, chosen: NDArray[np.intp]) -> Counts:
    """Make counts of some features only, in the order given; -1 is a feature without any count."""
    matrix, chosen = counts.to_scipy(), np.where(chosen < 0, counts.n_features, chosen)
    if chosen.max() == counts.n_features:
        shape = (matrix.shape[0], matrix.shape[1] + 1)
        matrix = sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=shape)
    return Counts(SparseRows.from_scipy(matrix[:, chosen]), sample_names=counts.sample_names)


def find_features(
    here: Sequence[str], names: Sequence[str], *, fitted_here: bool = False
) -> NDArray[np.intp]:
    """Find the features of a fit by name in an AnnData object."""
    places, missing, twice = match_names(here, names)
    if missing:
        next_step = "if they were not measured, refit on the features that both data have"
        if fitted_here:
            next_step = "if they were dropped, take the model from the object as it was before, or fit again"
        raise ValueError(
            f"{len(missing):,} of the {len(names):,} features of the fit are not in adata "
            f"(first {missing[0]!r}), and all are needed; if they go by other names there, rename "
            f"adata.var_names; {next_step}"
        )
    if not np.array_equal(here, names):
        where, twice = ("adata", twice) if twice else ("the fit itself", repeated(names))
        if twice:
            raise ValueError(
                f"{len(twice)} of the {len(names)} features of the fit occur twice in {where} (first "
                f"{twice[0]!r}), so names do not identify them; keep one of each, or make names unique "
                "(adata.var_names_make_unique()) before fitting"
            )
    return places


def shared_features(here: Sequence[str], fitted: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where the features that both have are, here and in the fit; not those that occur twice."""
    places, _, twice = match_names(here, fitted)
    if not np.array_equal(here, fitted):
        unclear = {*twice, *repeated(fitted)}
        places = np.where([name in unclear for name in fitted], -1, places)
    own = np.flatnonzero(places >= 0)
    return places[own], own


def match_names(here: Sequence[str], names: Sequence[str]) -> tuple[NDArray[np.intp], list[str], list[str]]:
    """Return where each of `names` is `here` (-1: nowhere), those missing, and those twice here."""
    if np.array_equal(here, names):
        return np.arange(len(here)), [], []
    places, wanted = {name: j for j, name in enumerate(here)}, set(names)
    found = np.array([places.get(name, -1) for name in names], dtype=np.intp)
    missing = [name for name in names if name not in places]
    return found, missing, [name for name in repeated(here) if name in wanted]


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, n in Counter(names).items() if n > 1]


def own_symbols(symbols: NDArray[np.str_], names: Sequence[str]) -> NDArray[np.object_]:
    """Return the symbol of each feature; its name where it has none, or shares it with another feature."""
    symbols = np.char.strip(symbols)  # ends of lines that a reader left
    unclear = np.isin(symbols, ["", "NA", "nan", "None", "<NA>", *repeated(symbols.tolist())])
    return np.where(unclear, np.asarray(names, dtype=object), symbols)


def n_variable(chosen: str, option: str) -> int | None:
    """Return N of "variable:N"; None for the name of a column."""
    kind, colon, number = chosen.partition(":")
    if kind + colon != "variable:":
        return None
    if not number.isdecimal() or not int(number):
        raise ValueError(f"{option}: {chosen!r} must end with a whole number > 0, as in variable:2000")
    return int(number)


def variable_features(counts: Counts, n: int) -> NDArray[np.intp]:
    """Return the `n` features that vary most beyond what one factor and their noise explain, in order.

    A feature's deviance from its mean share of every sample's total grows with its mean; under negative
    binomial noise with the dispersion of a typical feature it does so only where there is structure. That
    dispersion is the median over features with enough counts.
    """
    columns, totals = counts.by_column, counts.by_column.row_sums()
    if n >= counts.n_features:
        return np.arange(counts.n_features)
    sizes = counts.row_sums / counts.row_sums.mean()
    means = totals / counts.n_samples
    feature = np.repeat(np.arange(counts.n_features), np.diff(columns.indptr))
    y, mu = columns.values.astype(np.float64), means[feature] * sizes[columns.indices]
    squares = np.bincount(feature, y**2 - y - 2.0 * y * mu, counts.n_features) + means**2 * (sizes**2).sum()
    moments = np.maximum(squares, 0.0) / np.maximum(means**2 * (sizes**2).sum(), 1e-300)
    enough = totals >= ENOUGH_COUNTS
    phi = max(float(np.median(moments[enough])) if enough.any() else 0.0, LEAST_DISPERSION)
    # of each entry: y log(y / mu) - (y + r) log((1 + phi y) / (1 + phi mu)); zeros have only the last term
    own = scipy.special.xlogy(y, y / mu) - (y + 1.0 / phi) * np.log((1.0 + phi * y) / (1.0 + phi * mu))
    deviance = np.bincount(feature, own - np.log1p(phi * mu) / phi, counts.n_features)
    for block in dense_blocks((counts.n_features, counts.n_samples), 1 << 22):
        deviance[block] += (np.log1p(phi * means[block, None] * sizes) / phi).sum(axis=1)
    return np.sort(np.argsort(-deviance, kind="stable")[:n])
