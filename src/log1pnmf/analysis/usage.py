"""Whether a factor is used more in one group of samples than in another.

**The unit is the replicate.** Cells of one donor are more alike than cells of different donors, so a test
that takes every cell as a replicate finds differences between any two donors. With `replicate`, the mean
loading of every replicate (in every group, where a replicate has samples in several) is one observation.

**The test** is that of a linear model of these means on groups (or a number) and covariates, one for each
factor. Where replicates have samples in several groups, every replicate has its own level: it is compared
with itself. With few replicates a variance is hardly known, and those of all factors are drawn towards their
common value as far as they look alike (Smyth's moderated t, 2004).

**A number** (age, dose) has a slope in place of differences. Where it is the same in all samples of a
replicate, replicates are the observations; where it varies within every replicate, their slopes are.

**Without replicates** the samples are the observations, errors allow for unequal variances (HC3), and a
warning says what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice, check_one_each, plural, warn
from log1pnmf.fitting.anndata import as_fit

from .batches import confounded_groups
from .groups import MISSING, Groups, numbers_of

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

INDEPENDENT = (
    1e-8  # of a column's length: what other columns must leave of it, or it cannot be told from them
)
LEAST_FACTORS = 5  # from so many factors on, their variances are drawn together

NOT_REPLICATES = (
    "this test treats samples as replicates. Cells of one donor are alike, so a small p-value does not mean "
    "that other donors would show the difference. Pass replicate=, the donor (or animal) of every sample, "
    "or replicate=True if every sample is a replicate, as in bulk data"
)


@dataclass(frozen=True, eq=False)
class Units:
    """Observations of a test."""

    # (n_units, K): mean loadings; slopes, where the number differs between samples of a replicate
    means: Array
    groups: NDArray[Any]  # (n_units,): name of the group, or the number
    order: tuple[str, ...] | None  # groups in their order; None for a number
    blocks: Indices | None  # replicate of every unit, where replicates have samples in several groups
    covariates: Array
    within: bool = False  # whether `means` are slopes within replicates


def gather(
    loadings: Array, groups: Groups | Array, replicate: Any, covariates: Array, kept: NDArray[np.bool_]
) -> Units:
    """Bring samples together to the units that are compared; those that are not kept are left out."""
    if not kept.any():
        raise ValueError("no sample has a group and all covariates; check the labels")
    donors = np.arange(len(loadings))
    if replicate is not None and replicate is not True:
        donors = Groups.of(replicate).codes
        check_one_each("replicate", donors, len(loadings))
    donors, loadings, covariates = donors[kept], loadings[kept], covariates[kept]
    if isinstance(groups, Groups):
        pairs, unit = np.unique(np.stack([groups.codes[kept], donors]), axis=1, return_inverse=True)
        unit, names = unit.ravel(), np.array(groups.names, dtype=object)
        several = len(np.unique(pairs[1])) < pairs.shape[1]
        order, blocks = tuple(map(str, names[np.unique(pairs[0])])), pairs[1] if several else None
        return Units(_means(loadings, unit), names[pairs[0]], order, blocks, _means(covariates, unit))
    values, unit = groups[kept], np.unique(donors, return_inverse=True)[1].ravel()
    centres, extra = _means(values[:, None], unit)[:, 0], _means(covariates, unit)
    spread = values - centres[unit]
    varies = np.bincount(unit, np.abs(spread) > 1e-9 * np.abs(values).max()) > 0
    if not varies.any():
        return Units(_means(loadings, unit), centres, None, None, extra)
    several = np.bincount(unit) > 1
    if not varies[several].all():
        first = np.unique(values[unit == np.argmax(varies)])[:2]
        raise ValueError(
            f"the number has several values in {varies.sum()} of {several.sum()} replicates (in one, "
            f"{first[0]:g} and {first[1]:g}), and one value in the others; use one value for each replicate, "
            "or only replicates in which it varies"
        )
    # the slope within every replicate is one observation, to be compared with zero
    squares = np.bincount(unit, spread**2)
    good = squares > 0.0
    products = np.stack([np.bincount(unit, spread * column) for column in loadings.T], axis=1)
    slopes = np.asarray(products[good] / squares[good, None], dtype=np.float64)
    return Units(slopes, np.zeros(len(slopes)), None, None, extra[good], within=True)


def _means(values: Array, unit: Indices) -> Array:
    sizes = np.bincount(unit)
    sums = [np.bincount(unit, column) for column in values.T]
    return np.stack(sums, axis=1) / sizes[:, None] if sums else np.zeros((len(sizes), 0))


def linear_model(units: Units, reference: str | None) -> tuple[Array, tuple[str, ...], str | None]:
    """Return the columns of a linear model, the tested ones first, the groups they are, and the reference.

    For a number there is one tested column and no group. What cannot be told apart is refused.
    """
    others: tuple[str, ...] = ()
    base = np.ones((len(units.means), 1))
    if units.order is None:
        if reference is not None:
            raise ValueError(f"reference={reference!r} is for groups, not for numbers; leave it out")
        tested = base if units.within else (units.groups - units.groups.mean())[:, None]
        base = base[:, :0] if units.within else base
    else:
        if len(units.order) < 2:
            raise ValueError(f"all samples are in the group {units.order[0]!r}: there is nothing to compare")
        reference = units.order[0] if reference is None else reference
        check_choice("reference", reference, units.order)
        others = tuple(name for name in units.order if name != reference)
        tested = np.stack([units.groups == name for name in others], axis=1).astype(np.float64)
        if units.blocks is not None:
            base = (units.blocks[:, None] == np.unique(units.blocks)).astype(np.float64)
    matrix = np.concatenate([tested, base, units.covariates - units.covariates.mean(axis=0)], axis=1)
    for k, column in enumerate(tested.T):
        rest = np.delete(matrix, k, axis=1)
        left = column - rest @ np.linalg.lstsq(rest, column, rcond=None)[0]
        if np.linalg.norm(left) <= INDEPENDENT * max(float(np.linalg.norm(column)), 1e-300):
            what = f"the group {others[k]!r}" if others else "the number"
            raise ValueError(
                f"{what} cannot be separated from the replicates and covariates, because they change "
                "together; leave covariates out, or check the labels"
            )
    return matrix, others, reference


def covariate_columns(covariates: Any, n: int) -> Array:
    """Make columns of numbers: labels become one column for each but the first."""
    if covariates is None:
        return np.zeros((n, 0))
    if not isinstance(covariates, Mapping) and not hasattr(covariates, "columns"):  # that is a data frame
        array = np.asarray(covariates)
        covariates = dict(enumerate(array[None] if array.ndim == 1 else array.T))
    columns = []
    for name, values in covariates.items():
        check_one_each(f"covariate {str(name)!r}", values, n, "value")
        numbers = numbers_of(values)
        if numbers is not None:
            columns.append(numbers)
            continue
        labels = Groups.of(values)
        columns += [(labels.codes == code).astype(np.float64) for code in range(1, len(labels.names))]
    return np.stack(columns, axis=1) if columns else np.zeros((n, 0))


@dataclass(frozen=True, eq=False, repr=False)
class Usage:
    """Differences of mean loadings; made by `usage`. Arrays are of shape (n_comparisons, n_components).

    Parameters
    ----------
    comparisons : tuple of str
        Groups that are compared with `reference`; for a number, its name.
    reference : str or None
        Group that they are compared with; None for a number, where `difference` is a slope.
    difference, error, lower, upper : ndarray
        Difference of mean loadings (the largest loading of every factor is 1), its standard error and 95%
        interval. It is the one of the linear model: between samples of the same replicate where replicates
        have samples in several groups, and at the same covariates. It may differ from that of the means.
    p, adjusted_p : ndarray
        Two-sided; after Benjamini and Hochberg over all comparisons and factors.
    degrees_of_freedom : float
        Degrees of freedom of the tests, including those from other factors.
    means : ndarray of shape (n_units, n_components)
        Mean loadings of the units, replicates or samples.
    unit_groups : ndarray of str, shape (n_units,)
        Group of every unit, or its number.
    replicated : bool
        Whether units are replicates.
    factor_names : tuple of str
        Names of the factors.
    """

    comparisons: tuple[str, ...]
    reference: str | None
    difference: Array
    error: Array
    lower: Array
    upper: Array
    p: Array
    adjusted_p: Array
    degrees_of_freedom: float
    means: Array
    unit_groups: NDArray[Any]
    replicated: bool
    factor_names: tuple[str, ...]

    def __repr__(self) -> str:
        against = "" if self.reference is None else f" against {self.reference}"
        units = plural(len(self.means), "replicate" if self.replicated else "sample")
        return (
            f"<Usage of {plural(len(self.factor_names), 'factor')} by {', '.join(self.comparisons)}"
            f"{against}, {units}; table() lists it>"
        )

    def table(self) -> dict[str, Any]:
        """One row per comparison and factor; ``pandas.DataFrame(table)`` shows it.

        Returns
        -------
        dict of str to ndarray
            Columns `factor`, `group`, `reference`, `mean`, `reference_mean`, `difference`, `error`, `lower`,
            `upper`, `p` and `adjusted_p`. `mean` and `reference_mean` are plain means over the units of a
            group; `difference` is not theirs where replicates that are in one group only, or covariates, have
            to be allowed for (see `Usage`). For a number there is `slope` in place of `difference`, the
            change of the mean loading per unit of the number, and no `reference` and means.
        """
        n, k = self.difference.shape
        columns: dict[str, Any] = {
            "factor": np.tile(np.array(self.factor_names, dtype=object), n),
            "group": np.repeat(np.array(self.comparisons, dtype=object), k),
        }
        if self.reference is not None:
            columns["reference"] = np.full(n * k, self.reference, dtype=object)
            means = [self.means[self.unit_groups == group].mean(axis=0) for group in self.comparisons]
            columns["mean"] = np.concatenate(means)
            reference_mean = self.means[self.unit_groups == self.reference].mean(axis=0)
            columns["reference_mean"] = np.tile(reference_mean, n)
        columns["slope" if self.reference is None else "difference"] = self.difference.ravel()
        names = ("error", "lower", "upper", "p", "adjusted_p")
        return columns | {name: getattr(self, name).ravel() for name in names}

    def kept(self) -> dict[str, Any]:
        """Return what plots need beside the table, as AnnData can hold it; means of replicates only."""
        about: dict[str, Any] = {"factor_names": np.array(self.factor_names, dtype=object)}
        return about | ({"means": self.means, "unit_groups": self.unit_groups} if self.replicated else {})


def usage(
    fit: Any,
    groups: Any,
    *,
    replicate: Any = None,
    reference: str | None = None,
    covariates: Any = None,
    numeric: bool | None = None,
    key: str | None = None,
) -> Usage:
    """Compare the mean loadings of groups of samples, or find their slope on a number.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        The fit.
    groups : array-like of shape (n_samples,)
        Condition of every sample, or a number such as an age or a dose; samples without one are ignored. Of
        numbers with more than two different values the result is a slope: over replicates, if each has one
        value, or within them, if the number varies within all. Text, booleans, categories and two numbers are
        groups.
    replicate : array-like of shape (n_samples,) or True, optional
        Donor, animal, patient or batch of every sample; these are compared, not samples. True if every sample
        is a replicate, as in bulk data.
    reference : str, optional
        Group that the others are compared with; by default the first.
    covariates : array, data frame or mapping of name to values, optional
        Covariates to adjust for: numbers or labels, one for each sample.
    numeric : bool, optional
        Whether numbers have a slope (True) or are groups (False); by default it depends, see `groups`.
    key : str, optional
        Name of the fit in an AnnData.

    Returns
    -------
    Usage

    See Also
    --------
    log1pnmf.pl.usage : Draw the result.
    log1pnmf.tl.usage : The same for AnnData.

    References
    ----------
    .. [1] G. K. Smyth (2004). Linear models and empirical Bayes methods for assessing differential expression
       in microarray experiments. Statistical Applications in Genetics and Molecular Biology 3(1).

    Examples
    --------
    >>> import numpy as np
    >>> from log1pnmf import Log1pNMF
    >>> rng = np.random.default_rng(0)
    >>> donors, treated = np.repeat(np.arange(8), 20), np.repeat([False, True], 80)
    >>> rates = np.where(treated[:, None] & (np.arange(30) < 5), 6.0, 2.0)
    >>> model = Log1pNMF(2, random_state=0).fit(rng.poisson(rates * rng.gamma(50, 0.02, (8, 30))[donors]))
    >>> found = usage(model, np.where(treated, "treated", "control"), replicate=donors)
    >>> found.comparisons, found.reference, bool(found.adjusted_p.min() < 0.01)
    (('treated',), 'control', True)
    """
    fit = as_fit(fit, key=key).normalized("max")
    n, which = len(fit.loadings), _groups_or_numbers(groups, numeric)
    extra = covariate_columns(covariates, n)
    check_one_each("groupby", which.codes if isinstance(which, Groups) else which, n)
    known = which.labels != MISSING if isinstance(which, Groups) else ~np.isnan(which)
    units = gather(fit.loadings, which, replicate, extra, known & ~np.isnan(extra).any(axis=1))
    if replicate is None:
        warn(NOT_REPLICATES, UserWarning)
    confounded = confounded_groups(fit, which.labels) if isinstance(which, Groups) else []
    if confounded:
        warn("; ".join(confounded), UserWarning)
    matrix, comparisons, reference = linear_model(units, reference)
    n_tested = max(len(comparisons), 1)
    difference, error, freedom = _tested(matrix, units.means, n_tested, moderated=replicate is not None)
    half = error * scipy.stats.t.ppf(0.975, freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2.0 * scipy.stats.t.sf(np.abs(difference / error), freedom)
    p = np.where(error > 0.0, p, 1.0)  # a factor that no unit has, or all alike
    return Usage(
        comparisons=comparisons or (str(getattr(groups, "name", None) or "slope"),),
        reference=reference,
        difference=difference,
        error=error,
        lower=difference - half,
        upper=difference + half,
        p=p,
        adjusted_p=scipy.stats.false_discovery_control(p.ravel()).reshape(p.shape),
        degrees_of_freedom=freedom,
        means=units.means,
        unit_groups=units.groups,
        replicated=replicate is not None,
        factor_names=tuple(fit.factor_names),
    )


def _groups_or_numbers(groups: Any, numeric: bool | None) -> Groups | Array:
    """Return groups, or numbers whose slope is asked for."""
    numbers = None if numeric is False else numbers_of(groups)
    if numbers is None:
        if numeric:
            raise ValueError(
                "numeric=True needs numbers, got text, booleans or categories; convert them first"
            )
        return Groups.of(groups)
    several = len(np.unique(numbers[~np.isnan(numbers)])) > 2
    return numbers if several or numeric else Groups.of(groups)


def _tested(X: Array, y: Array, n_tested: int, *, moderated: bool) -> tuple[Array, Array, float]:
    """Return the first coefficients, their standard errors (each x factors) and degrees of freedom."""
    solution, _, rank, _ = np.linalg.lstsq(X, y, rcond=None)
    residuals, coefficients = y - X @ solution, solution[:n_tested].astype(np.float64)
    freedom = float(len(X) - rank)
    if freedom < 1:
        what = "replicates" if moderated else "samples"
        raise ValueError(
            f"the variance cannot be estimated from {plural(len(X), what[:-1])} with "
            f"{plural(int(rank), 'coefficient')}; use more {what}, or fewer groups and covariates"
        )
    inverse = np.linalg.pinv(X.T @ X)
    if moderated:
        variances, more = moderate((residuals**2).sum(axis=0) / freedom, freedom)
        return coefficients, np.sqrt(np.outer(np.diag(inverse)[:n_tested], variances)), freedom + more
    spare = 1.0 - np.einsum("ip,pq,iq->i", X, inverse, X)
    weights = (inverse[:n_tested] @ X.T) ** 2 / np.maximum(spare, 1e-3) ** 2
    error = np.sqrt(weights @ residuals**2)
    alone = (weights[:, spare < 1e-9] > 1e-12).any(axis=1)  # a group of one sample: its scatter is not known
    error[alone] = np.inf
    return coefficients, error, freedom


def moderate(variances: Array, freedom: float) -> tuple[Array, float]:
    """Draw variances of several factors towards their common value; also the degrees of freedom that adds.

    They are at most as many as a variance has itself: with the few factors there are, what they have in
    common is not known well enough for more.

    >>> moderate(np.array([0.1, 0.9, 1.0, 1.1, 1.2]), 4.0)[0].round(2)
    array([0.38, 0.78, 0.83, 0.88, 0.93])
    """
    known = variances > 0.0
    if known.sum() < LEAST_FACTORS:
        return variances, 0.0
    logs = np.log(variances[known]) - scipy.special.digamma(freedom / 2.0) + np.log(freedom / 2.0)
    excess = float(logs.var(ddof=1) - scipy.special.polygamma(1, freedom / 2.0))
    prior = freedom
    if excess > scipy.special.polygamma(1, freedom / 2.0):  # trigamma falls, and is above 1 / x
        prior = 2.0 * scipy.optimize.brentq(
            lambda x: scipy.special.polygamma(1, x) - excess, 1.0 / excess, freedom / 2.0
        )
    common = np.exp(logs.mean() + scipy.special.digamma(prior / 2.0) - np.log(prior / 2.0))
    drawn = (prior * common + freedom * variances) / (prior + freedom)
    return np.where(known, drawn, 0.0), prior
