"""A fit in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice, check_number, plural
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import as_counts
from log1pnmf.model.noise import ShiftedLog

from .fit import Fit, c_name, evenness, factor_shares, sample_shares
from .ranking import ranking_of

# ---------- a background profile, to be held as a known factor

Which: TypeAlias = Literal["empty", "mean"]

FEW = 100.0  # total count up to which a droplet is taken to be empty


def background(
    counts: Any, *, c: float = 1.0, which: Which = "mean", most_counts: float = FEW
) -> NDArray[np.float64]:
    """Estimate a background profile, such as ambient RNA, for ``fixed_factors=``.

    The profile is the rate of every feature in a sample of average size that is pure background, on the link
    scale of `c`. A loading of 1 stands for such a sample.

    Parameters
    ----------
    counts : array, sparse matrix, data frame or Counts
        Samples x features. For "empty" all droplets, also those without cells.
    c : float
        Shift of the link of the fit that will use the profile.
    which : {"mean", "empty"}
        "mean" uses all samples, "empty" those with few counts.
    most_counts : float
        With "empty": largest total count of an empty sample.

    Examples
    --------
    >>> droplets = np.array([[2, 1, 0], [1, 1, 1], [900, 100, 500], [100, 800, 600]])
    >>> background(droplets, c=float("inf"), which="empty", most_counts=10).round(2)
    array([750., 500., 250.])
    """
    check_choice("which", which, get_args(Which))
    check_number("most_counts", most_counts)
    data: Counts = as_counts(counts)
    totals = np.asarray(data.row_sums, dtype=np.float64)
    used = (totals > 0.0) & ((totals <= most_counts) if which == "empty" else True)
    if not used.any():
        raise ValueError(
            f"no sample has between 1 and {most_counts:g} counts (the smallest total is {totals.min():g}): "
            "pass all droplets, also those without cells, or raise most_counts"
        )
    sums = np.asarray(data.to_scipy().tocsr()[np.flatnonzero(used)].sum(axis=0), dtype=np.float64).ravel()
    average = totals[totals > (most_counts if which == "empty" else 0.0)]
    rates = sums / sums.sum() * (average.mean() if len(average) else totals.mean())
    link = ShiftedLog(c)
    return np.asarray(link.link(rates), dtype=np.float64)


# ---------- whether size factors matter: totals are poor ones where factors change them

# part of the variance of log(total / size) that factors have to explain, and how far apart they must be
EXPLAINED, TIMES = 0.5, 1.5


def note_on_sizes(fit: Fit, counts: Counts) -> str | None:
    """Describe how totals differ from fitted size factors, where factors explain most of it."""
    counted = counts.row_sums > 0
    ratio = np.log(counts.size_factors("total")[counted] / fit.size_factors[counted])
    shares = sample_shares(fit.loadings, fit.factors)[counted]
    used = np.flatnonzero(shares.sum(axis=0) >= 1.0)
    if len(used) < 2 or ratio.std() == 0.0:
        return None
    rest = ratio - shares @ np.linalg.lstsq(shares, ratio, rcond=None)[0]
    level = (shares.T @ ratio)[used] / shares.sum(axis=0)[used]
    times, explained = np.exp(np.ptp(level)), 1.0 - rest.var() / ratio.var()
    if explained < EXPLAINED or times < TIMES:
        return None
    high, low = (fit.factor_names[used[pick(level)]] for pick in (np.argmax, np.argmin))
    return (
        f"totals are poor size factors here: at the same depth, samples of factor {high} have {times:.1f} "
        f"times the total of samples of factor {low}. Compare values of c with size_factors='fit', or give "
        "the depth of the samples if it is known"
    )


# ---------- a fit in words

NOISES = {"poisson": "Poisson", "nb": "negative binomial"}  # values of `noise` in words
# largest c at which factors are described as multiplying: most rates that differ between features are larger
MULTIPLY_UP_TO = 10.0
ROUNDING = 1e-12  # differences of objectives that are smaller than this part of them are none


def summarize(fit: Fit, *, n_top: int = 8) -> str:
    """Describe a fit in words: data, model, quality, factors and what is worth knowing."""
    data = fit.data
    counted = {
        "non-zeros": f"{data.nnz:,} ({data.nnz / data.n_entries:.1%} of all entries)",
        "total count": f"{data.total:,.0f}, {data.mean_total:,.1f} per sample",
    }
    lines = [
        f"Log1pNMF: {len(fit.loadings):,} samples x {len(fit.factors):,} features, "
        f"{fit.n_components} factors, c = {c_name(fit.c)}",
        *_section("Data", counted.items()),
        *_section("Model", model_facts(fit)),
        *_section("Fit", quality_facts(fit)),
        "",
        *factors_in_words(fit, n_top),
    ]
    if fit.batches is not None and fit.batches.n_batches > 1:
        lines += ["", "Batches (samples, largest effects on rates of features)", *_batches(fit)]
    if fit.messages:
        lines += ["", "Notes", *(f"  - {message}" for message in fit.messages)]
    return "\n".join(lines)


def factors_in_words(fit: Fit, n_top: int) -> list[str]:
    """Return a heading and a line for each factor."""
    lines, labels = ["Factors (share of the signal, evenness over samples, top features)"], fit.feature_labels
    share, even, ranking = factor_shares(fit.loadings, fit.factors), evenness(fit.loadings), ranking_of(fit)
    widest = max(3, *map(len, fit.factor_labels))
    for k, name in enumerate(fit.factor_labels):
        top = ", ".join(str(labels[j]) for j in ranking.top(k, n_top))
        lines.append(f"  {name:>{widest}}  {share[k]:>6.1%}  {even[k]:>5.2f}  {top or '(none)'}")
    return lines


def levelled(history: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return which iterations are no updates of the problem, and the objective there without their steps."""
    # an update evaluates the point before it once more, so its step is known, and all earlier values move by
    # it; gains in log-likelihood from updated parameters stay, changes of their prior and of zeros do not
    objective, loss = (np.asarray(history[name], dtype=np.float64) for name in ("objective", "loss"))
    updated = np.isnan(np.asarray(history["relative_change"], dtype=np.float64))
    updated[:1] = False  # the start
    step, gain = (np.diff(one, prepend=one[:1]) for one in (objective, loss))
    exact = np.asarray(history["likelihood"]) == "exact"
    of_zeros = np.abs(step - gain) <= ROUNDING * np.abs(objective)  # of parameters, it changes their cost
    of_zeros &= ~(exact & np.roll(exact, 1))
    step -= np.where(of_zeros, 0.0, np.minimum(gain, 0.0))
    steps = np.where(updated, step, 0.0).cumsum()
    return ~updated, (objective + (steps[-1] - steps))[~updated]


def gained_lately(fit: Fit, most: int = 10) -> str | None:
    """Describe how much the last iterations gained; None if there is only the start."""
    rows, objective = levelled(fit.history)
    index = fit.history["iteration"][rows]
    if len(objective) < 2:
        return None
    since = int(np.searchsorted(index, index[-1] - most))  # lost iterations have no row, but count
    gain, n = float(objective[since] - objective[-1]), int(index[-1] - index[since])
    iterations = "the last iteration" if n == 1 else f"the last {n} iterations"
    unit = "log-likelihood units" if fit.settings.l1 == 0 else "units of the penalised log-likelihood"
    share = gain / abs(objective[-1]) if objective[-1] != 0.0 else 0.0
    return f"{iterations} gained {gain:,.3g} {unit} ({share:.1e} of the objective)"


def _section(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return ["", title, *(f"  {name:<16}{text}" for name, text in rows)]


def _batches(fit: Fit, most: int = 12, n_features: int = 4) -> Iterator[str]:
    """Describe on which features every batch has the largest effects."""
    batches = fit.batches
    assert batches is not None
    sizes, labels = np.bincount(batches.labels, minlength=batches.n_batches), fit.feature_labels
    widest = max(map(len, batches.names[:most]))
    for b, name in enumerate(batches.names[:most]):
        own = batches.differing(b, n_features)
        listed = ", ".join(f"{labels[j]} ({batches.effects[b, j]:.2g} times)" for j in own)
        yield f"  {name:>{widest}}  {sizes[b]:>7,}  {listed}"
    if batches.n_batches > most:
        yield f"  and {batches.n_batches - most} more"


def link_in_words(c: float) -> str:
    """Describe what the link means for how factors combine.

    >>> link_in_words(float("inf")), link_in_words(1.0), link_in_words(1000.0)
    ('factors add up', 'factors multiply', 'factors add up below a rate of 1,000 and multiply above')
    """
    if np.isinf(c):
        return "factors add up"
    if c <= MULTIPLY_UP_TO:
        return "factors multiply"
    return f"factors add up below a rate of {c:,g} and multiply above"


def model_facts(fit: Fit) -> Iterator[tuple[str, str]]:
    """Name and describe what was fitted, for the summary and the report."""
    settings = fit.settings
    formula = "rate" if fit.link.is_identity else f"{fit.link.alpha:g} * log(1 + rate / {c_name(fit.c)})"
    formula = formula.removeprefix("1 * ").replace(" / 1)", ")")
    yield "link", f"{link_in_words(fit.c)}: {formula} = sum of the factors"
    yield "noise", _noise(fit)
    about = f" (zeros_tol {settings.zeros_tol:g})" if settings.likelihood == "adaptive" else ""
    yield "likelihood", settings.likelihood + about
    yield "size factors", str(settings.size_factors)
    if fit.batches is not None:
        low, high = np.quantile(fit.batches.effects, (0.05, 0.95))
        yield "batches", f"{fit.batches.n_batches}, 90% of their effects in {low:.2g} to {high:.2g}"
    if settings.l1 > 0:
        yield "penalty", f"l1 = {settings.l1:g} on all factors but the baseline (factor 0), loadings <= 1"
    if fit.factor_kinds is not None:
        yield "known", _known(fit)
    solver = f"{settings.row_solver}{', extrapolated' if settings.row_solver == 'newton' else ''}"
    starts = f"{plural(fit.asked.n_init, 'start')} ({fit.asked.init}), seed {settings.random_state}"
    yield "solver", f"{solver}, {starts}"


def _noise(fit: Fit) -> str:
    """Describe how counts scatter around their means, and how much."""
    if fit.dispersion is None:
        return NOISES["poisson"]
    kind = {"feature": "one for each feature", "shared": "the same for all features"}
    low, middle, high = np.quantile(fit.dispersion, (0.05, 0.5, 0.95))
    spread = "" if low == high else f" (median; 90% in {low:.3g} to {high:.3g})"
    return f"{NOISES['nb']}, dispersion {kind.get(fit.settings.dispersion, 'given')}: {middle:.3g}{spread}"


def _known(fit: Fit) -> str:
    """Describe what was known of which factors."""
    about = {"loadings": "loadings of", "pattern": "samples of", "factors": "factors", "mask": "features of"}
    parts = []
    for kind, text in about.items():
        names = [name for name, own in zip(fit.factor_names, fit.kinds, strict=True) if own == kind]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        if names:
            parts.append(f"{text} {shown}")
    if "mask" in fit.kinds and np.isfinite(fit.settings.mask_penalty):
        parts[-1] += f" (penalty on others {fit.settings.mask_penalty:g})"
    return "; ".join(parts)


def quality_facts(fit: Fit) -> Iterator[tuple[str, str]]:
    """Name and describe how far and how exactly a fit went, for the summary and the report."""
    certificate = fit.certificate
    state = "yes" if fit.converged else "NO: stalled" if fit.stopped == "stalled" else "NO: stopped early"
    took, iterating = f"{fit.seconds:.1f} s", fit.history.get("seconds", np.zeros(0))
    if fit.asked.init == "auto" and fit.asked.n_init == 1 and len(iterating):
        before = fit.seconds - float(iterating[-1])
        if before >= 0.1:
            took += f" ({before:.1f} s to check the counts and find a start)"
    yield "converged", f"{state}, {plural(fit.n_iter, 'iteration')}, {took}"
    lately = gained_lately(fit)
    if lately is not None:
        still = "" if fit.converged else "still gaining: "
        yield "last gain", f"{still}{lately}; tol {fit.settings.tol:.1e} per iteration"
    yield "KKT residual", f"{fit.kkt_residual:.1e} (0 at an optimum)"
    yield "objective", f"{fit.objective:,.1f}"
    if certificate is None:
        text = "the exact log-likelihood was not computed; log1pnmf.analysis.log_likelihood does that"
        yield "certificate", f"none: {text}"
        return
    yield "certificate", f"{certificate}; {certificate.log_likelihood / fit.data.n_entries:.6g} per entry"
    if certificate.zeros_error > 0.0:
        share = certificate.zeros_error / (abs(certificate.log_likelihood) or 1.0)
        error = f"{certificate.zeros_error:.3g} ({share:.1e} of the log-likelihood)"
        yield "zeros", f"errors at zero counts sum to at most {error}"
