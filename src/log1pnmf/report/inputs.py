"""Input of a report: fits and what the user wrote about their data, checked once."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_one_each
from log1pnmf.analysis.evidence import Evidence, evidence_in
from log1pnmf.analysis.groups import Groups, as_numbers, fold_groups, labels_of, quarters
from log1pnmf.analysis.markers import Markers, markers_in
from log1pnmf.analysis.sweep import Sweep
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import find_features
from log1pnmf.fitting.anndata import as_fit, symbols_of
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.new_samples import counts_of

# ---------- numbers and findings in plain words


def keep_together(text: str) -> str:
    r"""Keep equations such as "c = 1" on one line.

    >>> keep_together("at c = 1")
    'at c\xa0=\xa01'
    """
    return text.replace(" = ", "\u00a0=\u00a0")


def enumerate_words(words: Sequence[str], most: int = 6) -> str:
    """Join words with commas and "and"; beyond `most` they are counted.

    >>> enumerate_words(["a", "b", "c"]), enumerate_words(["a", "b", "c", "d"], most=2)
    ('a, b and c', 'a, b and 2 more')
    """
    shown = list(words[:most])
    if len(words) > most:
        shown.append(f"{len(words) - most} more")
    if len(shown) <= 1:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def percent(share: float) -> str:
    """Show a share, with as many digits as tell it from 0 and 1.

    >>> percent(0.1808), percent(0.00042), percent(0.0), percent(0.9999)
    ('18.1%', '0.042%', '0%', '99.99%')
    """
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share > 0.999:
        return f"{100 * share:.4g}%"
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def decimal(number: float) -> str:
    """Show a number with two decimals, as in tables; NaN as a dash.

    >>> decimal(0.4567), decimal(float("nan"))
    ('0.46', '–')
    """
    return "–" if math.isnan(number) else f"{number:.2f}"


def alike(numbers: Sequence[float]) -> list[str]:
    """Show numbers with the same number of decimals, three digits for the largest.

    >>> alike([5.25, 0.5]), alike([1930.0, 32.2])
    (['5.25', '0.50'], ['1,930', '32'])
    """
    largest = max((abs(number) for number in numbers), default=0.0)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0
    return [f"{number:,.{decimals}f}" for number in numbers]


def significant(number: float) -> str:
    """Show a number with three significant digits and separators.

    >>> significant(12345.6), significant(0.012345), significant(1.2e-7)
    ('12,346', '0.0123', '1.2e-07')
    """
    if number == 0.0 or not math.isfinite(number):
        return f"{number:g}"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}"


# ---------- input of a report, checked once

N_TABLE = 25
"""Features that are listed for each factor."""

MOST_GROUPS = 40
"""Most groups that are shown; the smallest beyond these are merged."""


@dataclass(frozen=True, eq=False)
class ReportInput:
    """Fits of one data set, with names and labels; make one with `ReportInput.of`."""

    # to the same samples and features, with their names; the largest loading of every factor is 1
    fits: tuple[Fit, ...]
    counts: Counts | None  # what was fitted, where it was given
    title: str
    sample_names: NDArray[np.object_]
    groups: Groups | None  # groups of samples
    group_name: str  # what the groups are
    n_groups: int  # how many there were before small ones were merged
    # where the data come from; what was typed
    source: str | None
    command: str | None
    # what was removed from the data, and other remarks
    filters: tuple[str, ...]
    notes: tuple[str, ...]
    date: str  # when it was made
    n_jobs: int | None = None  # number of threads
    # evidence of whether the factors of every fit are real, or nothing
    evidence: tuple[Evidence | None, ...] = ()
    markers: tuple[Markers | None, ...] = ()  # tests of the features of every fit, or nothing

    @classmethod
    def of(
        cls,
        fits: Any,
        *,
        counts: Any = None,
        title: str | None = None,
        sample_names: Any = None,
        feature_names: Any = None,
        gene_symbols: str | None = None,
        groupby: Any = None,
        group_name: str | None = None,
        source: str | None = None,
        command: str | None = None,
        filters: Sequence[str] = (),
        notes: Sequence[str] = (),
        date: str | None = None,
        n_jobs: int | None = None,
        evidence: Any = None,
        markers: Any = None,
    ) -> ReportInput:
        """Check what `log1pnmf.report.write_report` was given; its parameters are explained there."""
        fits = fits.fits if isinstance(fits, Sweep) else fits
        sources = list(fits) if isinstance(fits, list | tuple) else [fits]
        found = _same_data(sources)
        if gene_symbols is not None:
            shown = symbols_of(sources[0], gene_symbols, feature_names)
            where = find_features(sources[0].var_names, found[0].feature_labels.tolist())
            feature_names = [shown[j] for j in where]
        checked = None if counts is None else counts_of(found[0], counts)
        if checked is not None:
            feature_names = checked.feature_names if feature_names is None else feature_names
            sample_names = checked.sample_names if sample_names is None else sample_names
            checked = replace(checked, feature_names=None)  # in the order of the fit; other names are shown
        if sample_names is None and found[0].sample_names is None:
            sample_names = [f"sample {i}" for i in range(len(found[0].loadings))]
        named = [fit.named(sample_names=sample_names, feature_names=feature_names) for fit in found]
        if isinstance(groupby, str) and group_name is None:
            group_name = groupby
        said, groups = _texts("notes", notes), None
        if groupby is not None:
            labels = labels_of(sources[0], groupby)
            numbers = as_numbers(labels)
            groups = Groups.of(labels) if numbers is None else quarters(numbers)
            check_one_each("groupby", groups.codes, len(named[0].loadings))
            if numbers is not None:
                cut = "its groups are four ranges with about equal numbers of samples"
                said = (*said, f"{group_name or 'group'} holds numbers: {cut}.")
        names = named[0].sample_names
        assert names is not None  # they were just given
        return cls(
            fits=tuple(named),
            counts=checked,
            title=str(title or "Factors of a count matrix"),
            sample_names=names,
            groups=None if groups is None else fold_groups(groups, MOST_GROUPS),
            group_name=str(group_name or "group"),
            n_groups=0 if groups is None else len(groups.names),
            source=source,
            command=command,
            filters=_texts("filters", filters),
            notes=said,
            date=str(date or datetime.date.today().isoformat()),
            n_jobs=n_jobs,
            evidence=_evidence(evidence, named) or _kept_evidence(sources, named),
            markers=_markers(markers, named) or _kept_markers(sources, found),
        )

    @property
    def compared(self) -> tuple[int, int] | None:
        """Positions of the first fits with finite c and with c = inf, where there are both."""
        finite = [i for i, fit in enumerate(self.fits) if math.isfinite(fit.c)]
        additive = [i for i, fit in enumerate(self.fits) if math.isinf(fit.c)]
        return (finite[0], additive[0]) if finite and additive else None

    @property
    def labels(self) -> list[str]:
        """Name of every fit: its c, and whatever else it takes to tell fits apart."""
        labels = [fit.name for fit in self.fits]
        for more in (
            [f"K = {fit.n_components}" for fit in self.fits],
            ["negative binomial" if fit.settings.noise == "nb" else "Poisson" for fit in self.fits],
            [f"l1 = {fit.settings.l1:g}" for fit in self.fits],
            [f"seed {fit.settings.random_state}" for fit in self.fits],
            [f"fit {i}" for i in range(1, len(labels) + 1)],
        ):
            if len(set(labels)) < len(labels) and len(set(more)) > 1:
                labels = [f"{label}, {text}" for label, text in zip(labels, more, strict=True)]
        return [keep_together(label) for label in labels]


def _same_data(sources: Sequence[Any]) -> list[Fit]:
    """Fits to the same data, on the scale of memberships."""
    if not sources:
        raise ValueError("there are no fits: pass at least one")
    fits = [as_fit(one).normalized("max") for one in sources]
    shapes = {(len(fit.loadings), len(fit.factors)) for fit in fits}
    if len(shapes) > 1:
        raise ValueError(f"fits must be of the same data, got shapes {sorted(shapes)}")
    return fits


def _evidence(given: Any, fits: Sequence[Fit]) -> tuple[Evidence | None, ...]:
    """Check what was given for each fit."""
    if given is None:
        return ()
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    fine = all(one is None or isinstance(one, Evidence) for one in found) and len(found) == len(fits)
    if not fine or any(
        one is not None and len(one.loss) != fit.n_components for one, fit in zip(found, fits, strict=True)
    ):
        raise ValueError(
            f"evidence must be what log1pnmf.analysis.evidence found for each of the {len(fits)} fits; pass "
            "None for a fit without it"
        )
    return found


def _kept_evidence(sources: Sequence[Any], fits: Sequence[Fit]) -> tuple[Evidence | None, ...]:
    """Return what `log1pnmf.tl.evidence` wrote for each fit; nothing if it wrote nothing for any."""
    found = [evidence_in(source) for source in sources]
    if all(one is None for one in found):
        return ()
    fine = (
        None if one is None or len(one.loss) != fit.n_components else one
        for one, fit in zip(found, fits, strict=True)
    )
    return tuple(fine)


def _markers(given: Any, fits: Sequence[Fit]) -> tuple[Markers | None, ...]:
    """Check what was given for each fit."""
    if given is None:
        return ()
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    shapes = [
        fit.factors.shape if one is None else getattr(one, "weight", np.zeros(0)).shape
        for one, fit in zip(found, fits, strict=False)
    ]
    if len(found) != len(fits) or shapes != [fit.factors.shape for fit in fits]:
        raise ValueError(
            f"markers must be what log1pnmf.analysis.markers found for each of the {len(fits)} fits; pass "
            "None for a fit without them"
        )
    return found


def _kept_markers(sources: Sequence[Any], fits: Sequence[Fit]) -> tuple[Markers | None, ...]:
    """Return what `log1pnmf.tl.markers` wrote for each fit; nothing if it is missing for any."""
    found = tuple(markers_in(source, fit, N_TABLE) for source, fit in zip(sources, fits, strict=True))
    return () if None in found else found


def _texts(what: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"{what} must be a sequence of strings, got one string; pass [{values!r}]")
    return tuple(str(value) for value in values)
