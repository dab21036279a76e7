"""From fits to one HTML file: everything is inside it, nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import inspect
import math
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.archive import StrPath, check_writable, replacing
from log1pnmf._common.checks import __version__, plural, require
from log1pnmf.analysis.groups import ALIKE, colors_of_fits
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import default_of
from log1pnmf.fitting.settings import GIVEN
from log1pnmf.fitting.summary import link_in_words

from .factors import FactorSection, describe_factors, find_markers, find_presence, presence_note
from .figures import MOST_SAMPLES, Chart, arrange_samples, histogram, structure_data
from .fits import Comparison, Sameness, compare, describe_fits, early_stopping_note
from .inputs import (
    MOST_GROUPS,
    ReportInput,
    decimal,
    enumerate_words,
    keep_together,
    percent,
    significant,
)
from .verdict import describe_batches, describe_misfit

# ---------- the data: what was counted, how much of it, and how samples differ in size


@dataclass(frozen=True)
class DataSection:
    """Section of the report about the data."""

    rows: list[tuple[str, str]]  # name and value
    sizes: Chart | None  # histogram of the size factors
    sizes_note: str  # the same in words


def describe_data(inputs: ReportInput) -> DataSection:
    """Look at the data of a report."""
    data = inputs.fits[0].data
    nonzero = data.nnz / data.n_entries
    rows = [
        ("Samples", f"{data.n_samples:,}"),
        ("Features", f"{data.n_features:,}"),
        (
            "Entries that are not zero",
            f"{data.nnz:,} ({percent(nonzero)} of all; {percent(1 - nonzero)} zeros)",
        ),
        ("Total count", f"{data.total:,.0f} ({significant(data.mean_total)} per sample)"),
        ("Samples without any count", f"{data.n_empty_samples:,}"),
        ("Features without any count", f"{data.n_empty_features:,}"),
    ]
    if inputs.groups is not None:
        rows.append((f"Groups ({inputs.group_name})", f"{inputs.n_groups:,}"))
    if inputs.source:
        rows.append(("Source", inputs.source))
    rows += [("Removed before the fit", text) for text in inputs.filters]
    return DataSection(rows, *_sizes(inputs))


def _sizes(inputs: ReportInput) -> tuple[Chart | None, str]:
    fit = inputs.fits[0]
    sizes = fit.size_factors
    positive = sizes[sizes > 0.0]
    how = {
        "total": "Size factors are the total count of a sample divided by the mean total",
        "fit": "Size factors were estimated with the model, starting from the total counts",
        "none": "No size factors: all samples have the same size",
    }.get(str(fit.settings.size_factors), "Size factors were given")
    chart = histogram(
        sizes, label="Histogram of the size factors of the samples", x_title="size factor (log scale)"
    )
    if chart is None:
        return None, f"{how}."
    middle = np.quantile(positive, [0.05, 0.95])
    return chart, (
        f"{how}. Nine in ten samples lie between {significant(middle[0])} and {significant(middle[1])}; "
        f"the largest is {significant(positive.max() / positive.min())} times the smallest"
        + (
            f"; {plural(len(sizes) - len(positive), 'sample')} of size 0"
            if len(positive) < len(sizes)
            else ""
        )
        + "."
    )


# ---------- from fits to one HTML file: everything is inside it, nothing is loaded from elsewhere

NOT_THE_ONLY_ONE = (
    "Factors are one good explanation of the counts, not the only one: another start (random_state, init) "
    "can lead to other factors of almost the same likelihood. Trust what comes back from several starts."
)

MOST_LISTED = 3
"""Fits that the head names one by one."""

GIVEN_HERE = "..."
"""Text in place of arrays and labels, in the call that repeats a fit."""

PARTS = {"fixed_factors": "factors", "mask": "mask"}
"""Parameters of the model, by the kind of factors that they make known."""

HEAT_STEPS = 10
"""Shades of a heat map; the style sheet has a class for each."""


def write_report(path: StrPath, fits: Any, **about: Any) -> Path:
    """Write a report about fits as one HTML file.

    The file needs no network and loads nothing. The same arguments give the same bytes, and the file is
    written whole or not at all.

    Parameters
    ----------
    path : str or PathLike
        HTML file to write; its folder must exist.
    fits : Fit, Log1pNMF, AnnData or a file that `save` wrote, or a sequence of them, or a Sweep
        Fits to the same data. The report compares the first with finite c and the first with ``c = inf``.
    title : str, optional
        Title of the report.
    sample_names, feature_names : sequence of str, optional
        Names of samples and features; by default those of the counts or the fit, otherwise numbers.
    gene_symbols : str, optional
        Column of ``adata.var`` with the names to show, for AnnData whose features have identifiers.
    groupby : str or array-like of shape (n_samples,), optional
        Groups of samples, such as cell types: a column of ``adata.obs`` (of the first fit), or one label for
        each sample. Numbers on a scale (more than 60 different values, or mostly fractions) are cut into four
        ranges.
    group_name : str, optional
        What the groups are, such as "cell type"; by default the name of the column.
    source : str, optional
        Where the data come from.
    command : str, optional
        Command that made the fits, for readers who want to repeat it.
    filters, notes : sequence of str
        What was removed from the data, and other remarks.
    counts : array, sparse matrix or data frame, optional
        Counts that were fitted. With them the report also has the deviance explained, tests of the features
        of each factor, and what the fit does not explain.
    date : str, optional
        Date of the report; by default today.
    n_jobs : int, optional
        Number of threads.
    evidence : Evidence or sequence of Evidence, optional
        Result of `log1pnmf.analysis.evidence` for the fits. By default it is what `log1pnmf.tl.evidence`
        wrote into an AnnData; otherwise, if the counts are small, the report computes it with 2 seeds and 5
        bootstrap samples.
    markers : Markers or sequence of Markers, optional
        Result of `log1pnmf.analysis.markers` for the fits. By default it is what `log1pnmf.tl.markers` wrote
        into an AnnData, if that has the first 25 significant features of every factor; otherwise, with
        `counts`, features are tested on all samples or, of large data, on a random part that the page names.

    Returns
    -------
    Path
        Path of the file.

    See Also
    --------
    log1pnmf.Log1pNMF.report : A report about one model.
    log1pnmf.pl.structure : A structure plot alone.

    Examples
    --------
    >>> import os, tempfile
    >>> from log1pnmf import Log1pNMF
    >>> counts = [[4, 0, 2], [3, 1, 2], [0, 5, 2], [1, 4, 3]]
    >>> model = Log1pNMF(2, random_state=0).fit(counts)
    >>> path = os.path.join(tempfile.mkdtemp(), "report.html")
    >>> write_report(path, model, title="Four samples", counts=counts).name
    'report.html'
    """
    check_writable(path)
    page = _render(ReportInput.of(fits, **about))
    with replacing(path) as file:
        # a name may hold half of a surrogate pair, which UTF-8 does not have
        file.write(page.encode("utf-8", errors="replace"))
    return Path(path)


# The parameters are written down once, where they are checked.
_OF = inspect.signature(ReportInput.of)
_PATH = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="StrPath")
write_report.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_PATH, *_OF.parameters.values()], return_annotation="Path"
)


def _render(inputs: ReportInput) -> str:
    pair = inputs.compared
    colors = colors_of_fits([fit.loadings for fit in inputs.fits], pair[0] if pair else 0)
    arrangement = arrange_samples(inputs)
    sections = [
        describe_factors(
            fit, label=label, colors=palette, groups=inputs.groups, tests=tests, presence=presence
        )
        for fit, label, palette, tests, presence in zip(
            inputs.fits, inputs.labels, colors, find_markers(inputs), find_presence(inputs), strict=True
        )
    ]
    alike = Sameness(inputs.fits, inputs.labels)
    first = alike.sentence(skip=pair) if pair is None or len(inputs.fits) > 2 else ""
    comparison = None
    if pair is not None:
        said = bool(first) and alike.all_same
        comparison = compare(inputs.fits, pair, groups=inputs.groups, said_same=said)
    script, fits = _text("report.js"), describe_fits(inputs)
    return _template().render(
        inputs=inputs,
        lead=_lead(inputs, sections, comparison, first),
        quality=_quality(inputs, fits.explained),
        data=describe_data(inputs),
        fits=fits,
        misfit=describe_misfit(inputs),
        batches=describe_batches(inputs),
        sections=sections,
        comparison=comparison,
        structure=structure_data(inputs, arrangement, colors),
        drawn=_drawn(inputs, len(arrangement.order)),
        corresponding=ALIKE,
        notes=_notes(inputs),
        versions=_versions(),
        parameters=[_call(fit) for fit in inputs.fits],
        style=_text("report.css"),
        script=script,
        script_hash=_hash(script),
    )


def _drawn(inputs: ReportInput, n_drawn: int) -> str:
    """Describe which samples the structure plots show."""
    n = len(inputs.sample_names)
    if n_drawn == n:
        return f"all {n:,} samples"
    which = "chosen at random" if inputs.groups is None else "a part of every group"
    return f"{n_drawn:,} of {n:,} samples, {which}"


def _template() -> Any:
    jinja2 = require("jinja2", purpose="the report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters.update(decimal=decimal, percent=percent, significant=significant, heat=_heat)
    environment.filters["keep_together"] = keep_together
    environment.globals.update(link_in_words=link_in_words)
    return environment.get_template("report.html")


def _text(name: str) -> str:
    """Content of a file that lies beside this module."""
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Name under which the page's security policy allows one script, and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _heat(value: float, highest: float = 1.0) -> str:
    """Class of a cell of a heat map: h0 to h10, and n1 to n10 below zero."""
    part = 0.0 if highest <= 0.0 else max(-1.0, min(1.0, value / highest))
    step = round(HEAT_STEPS * abs(part))
    return f"{'n' if value < 0 and step else 'h'}{step}"


def _lead(
    inputs: ReportInput, sections: list[FactorSection], comparison: Comparison | None, alike: str
) -> str:
    """Describe what was fitted and the result; which fits have nearly the same factors comes first."""
    fit = inputs.fits[0]
    if len(sections) > 1:
        said = [
            f"{_size(fit)}, {_several(inputs)}{_noise(inputs)}.",
            alike,
            comparison.headline if comparison else "",
        ]
        return " ".join(text for text in said if text)
    first = sections[0]
    factors = plural(len(first.factors), "factor")
    text = f"{_size(fit)}, {factors} at {fit.name}{_noise(inputs)}: {link_in_words(fit.c)}."
    if not first.groups:
        return text
    alone = sum(len(factor.served) == 1 for factor in first.factors)
    if not alone:
        return f"{text} Several groups of samples share every factor."
    return (
        f"{text} {plural(alone, 'factor belongs', 'factors belong')} to a single group of samples; "
        f"several groups share {plural(len(first.factors) - alone, 'factor')}."
    )


def _size(fit: Fit) -> str:
    """Describe how large the data are."""
    batches = "" if fit.batches is None else f" in {plural(len(fit.batches.names), 'batch', 'batches')}"
    return f"{plural(len(fit.loadings), 'sample')}{batches} and {plural(len(fit.factors), 'feature')}"


def _noise(inputs: ReportInput) -> str:
    """Name the noise, unless it is the usual one."""
    return ", negative binomial noise" if all(fit.dispersion is not None for fit in inputs.fits) else ""


def _several(inputs: ReportInput) -> str:
    """Describe how many fits there are, and with how many factors."""
    sizes = sorted({fit.n_components for fit in inputs.fits})
    each = plural(sizes[0], "factor") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} factors"
    if len(sizes) == 1 and len(inputs.fits) <= MOST_LISTED:
        return f"{each} at {enumerate_words(inputs.labels)}"
    return f"{len(inputs.fits)} fits with {each}"


def _quality(inputs: ReportInput, explained: Sequence[float]) -> str:
    """Return whether the fits are at an optimum, and how much they explain."""
    failed = [label for label, fit in zip(inputs.labels, inputs.fits, strict=True) if not fit.converged]
    n = len(inputs.fits)
    if failed:
        state = f"Not converged: {enumerate_words(failed)}. See the notes."
    else:
        state = {1: "The fit converged.", 2: "Both fits converged."}.get(n, f"All {n} fits converged.")
    if any(math.isnan(share) for share in explained):
        return state
    who = "It explains" if n == 1 else "They explain"
    shown = explained if n <= MOST_LISTED else (min(explained), max(explained))
    listed = (enumerate_words if n <= MOST_LISTED else " to ".join)([percent(share) for share in shown])
    return f"{state} {who} {listed} of the deviance."


def _notes(inputs: ReportInput) -> list[tuple[str, bool]]:
    """Remarks that a reader should know before the pictures; True marks a warning."""
    notes: list[tuple[str, bool]] = []
    for label, fit in zip(inputs.labels, inputs.fits, strict=True):
        early = early_stopping_note(fit)
        if early is not None:
            notes.append((f"{label}: {early}.", True))
        notes += [(f"{label}: {message}.", False) for message in fit.messages if not _about_batches(message)]
    if len(inputs.sample_names) > MOST_SAMPLES:
        notes.append(
            (f"Structure plots show at most {MOST_SAMPLES:,} samples; all figures are of all samples.", False)
        )
    if inputs.n_groups > MOST_GROUPS:
        notes.append(
            (f"The {MOST_GROUPS - 1} largest of {inputs.n_groups:,} groups are shown one by one.", False)
        )
    notes += [(text, False) for text in (presence_note(inputs), *inputs.notes) if text]
    return notes if inputs.compared else [*notes, (NOT_THE_ONLY_ONE, False)]


def _about_batches(message: str) -> bool:
    """Whether the section on batches already has this message."""
    return re.match(r"\d+ batches: without their effects", message) is not None


def _versions() -> str:
    packages = [
        f"log1pnmf {__version__}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name.lower())}" for name in ("NumPy", "SciPy", "scikit-learn")),
    ]
    return enumerate_words(packages)


def _call(fit: Fit) -> str:
    """Write the call that makes the fit, with the settings that are not the default."""
    asked, kinds = asdict(fit.asked), set(fit.kinds)
    given = [f"n_components={asked.pop('n_components')}"]
    given += [f"{name}={_typed(value)}" for name, value in asked.items() if value != default_of(name)]
    given += [f"{name}={GIVEN_HERE}" for name, kind in PARTS.items() if kind in kinds]
    data = ["counts", *([f"batch={GIVEN_HERE}"] if fit.batches is not None else [])]
    data += [f"fixed_loadings={GIVEN_HERE}"] if kinds & {"loadings", "pattern"} else []
    return f"Log1pNMF({', '.join(given)}).fit({', '.join(data)})"


def _typed(value: Any) -> str:
    if isinstance(value, float):
        return "float('inf')" if value == float("inf") else f"{value:g}"
    return GIVEN_HERE if value == GIVEN else repr(value)
