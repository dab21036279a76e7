"""From fits to one HTML file: everything is inside it, nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import datetime
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.archive import StrPath, check_writable, replacing, to_tree
from log1pnmf._common.checks import joined, plural, require, versions
from log1pnmf.analysis.evidence import Evidence, evidence_in
from log1pnmf.analysis.groups import ALIKE, colors_of_fits, fold_groups, groups_of
from log1pnmf.analysis.markers import Markers, markers_in
from log1pnmf.analysis.stability import Sweep
from log1pnmf.fitting.anndata import as_fit, symbols_of
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import default_of
from log1pnmf.fitting.new_samples import counts_of
from log1pnmf.fitting.settings import GIVEN
from log1pnmf.fitting.summary import NOISES, link_in_words

from . import sections
from .comparison import Comparison, compare, same_factors
from .figures import MOST_SAMPLES, arrange_samples, histogram, map_data, maps_of, structure_data
from .inputs import N_TABLE, ReportInput, decimal, keep_together, percent, significant

WORDS = {"python": "Python", "numpy": "NumPy", "scipy": "SciPy"}  # packages as the page names them
MOST_LISTED = 3  # fits that the head names one by one
GIVEN_HERE = "..."  # in place of arrays and labels, in the call that repeats a fit
PARTS = {"fixed_factors": "factors", "mask": "mask"}  # parameters by the kind of factors that they make known
ABOUT_BATCHES = re.compile(r"\d+ batches: without their effects")  # the section on batches has this message
MOST_GROUPS = 40  # that are shown; the smallest beyond these are merged
ENDED_EARLY = re.compile(r"not converged|interrupted after|stopped by a callback")  # messages that warn
HEAT_STEPS = 10  # shades of a heat map; the style sheet has a class for each


def write_report(
    path: StrPath,
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
) -> Path:
    """Write a report about fits as one HTML file.

    The file needs no network and loads nothing. The same arguments give the same bytes, and the file is
    written whole or not at all.

    Parameters
    ----------
    path : str or PathLike
        HTML file to write; its folder must exist.
    fits : Fit, Log1pNMF, AnnData or a file that `save` wrote, or a sequence of them, or a Sweep
        Fits to the same data. The report compares the first with finite c and the first with ``c = inf``. If
        the first is AnnData with a UMAP or positions in space (``obsm["X_umap"]``, ``obsm["spatial"]``), the
        report draws its factors there.
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
    fits = fits.fits if isinstance(fits, Sweep) else fits
    sources = list(fits) if isinstance(fits, list | tuple) else [fits]
    if not sources:
        raise ValueError("there are no fits: pass at least one")
    found = [as_fit(one).normalized("max") for one in sources]
    shapes = {(len(fit.loadings), len(fit.factors)) for fit in found}
    if len(shapes) > 1:
        raise ValueError(f"fits must be of the same data, got shapes {sorted(shapes)}")
    n = len(found[0].loadings)
    if gene_symbols is not None:
        symbols_of(sources[0], gene_symbols, feature_names)  # refuses both
        feature_names = as_fit(sources[0], gene_symbols=gene_symbols).feature_names
    checked = None if counts is None else counts_of(found[0], counts)
    if checked is not None:
        feature_names = checked.feature_names if feature_names is None else feature_names
        sample_names = checked.sample_names if sample_names is None else sample_names
        checked = replace(checked, feature_names=None)  # in the order of the fit; other names are shown
    if sample_names is None and found[0].sample_names is None:
        sample_names = [f"sample {i}" for i in range(n)]
    named = [fit.named(sample_names=sample_names, feature_names=feature_names) for fit in found]
    remarks, groups = check_texts("notes", notes), None
    group_name = group_name or (groupby if isinstance(groupby, str) else "group")
    if groupby is not None:
        groups, cut = groups_of(sources[0], groupby, n)
        ranges = "its groups are four ranges with about equal numbers of samples"
        remarks += [f"{group_name} holds numbers: {ranges}."] if cut else []
    inputs = ReportInput(
        fits=named,
        counts=checked,
        groups=None if groups is None else fold_groups(groups, MOST_GROUPS),
        group_name=group_name,
        n_groups=0 if groups is None else len(groups.names),
        evidence=results_of("evidence", evidence, named, map(evidence_in, sources)),
        markers=results_of(
            "markers", markers, named, [markers_in(*of, N_TABLE) for of in zip(sources, found, strict=True)]
        ),
        maps=maps_of(sources[0]),
        title=title or "Factors of a count matrix",
        source=source,
        command=command,
        filters=check_texts("filters", filters),
        notes=remarks,
        date=date or datetime.date.today().isoformat(),
        n_jobs=n_jobs,
    )
    page = _render(inputs)
    with replacing(path) as file:
        # a name may hold half of a surrogate pair, which UTF-8 does not have
        file.write(page.encode("utf-8", errors="replace"))
    return Path(path)


def _render(inputs: ReportInput) -> str:
    pair = inputs.compared
    colors = colors_of_fits(inputs.fits, pair[0] if pair else 0)
    arrangement = arrange_samples(inputs)
    tests, found = sections.find_markers(inputs), sections.find_evidence(inputs)
    factors = [
        sections.describe_factors(fit, inputs.groups, tests[i], found[i], label=label, colors=colors[i])
        for i, (fit, label) in enumerate(zip(inputs.fits, inputs.labels, strict=True))
    ]
    comparison = None if pair is None else compare(inputs.fits, pair, groups=inputs.groups)
    script, fits = _text("report.js"), sections.describe_fits(inputs)
    label, x_title = "Histogram of the size factors of the samples", "size factor (log scale)"
    sizes = inputs.fits[0].size_factors
    positive, chart = sizes[sizes > 0.0], histogram(sizes, label=label, x_title=x_title)
    spread = () if chart is None else (*np.quantile(positive, [0.05, 0.95]), positive.max() / positive.min())
    return _template().render(
        inputs=inputs,
        lead=_lead(inputs, factors[0], comparison),
        quality=_quality(inputs, fits["explained"]),
        data=inputs.fits[0].data,
        sizes=chart,
        spread=spread,
        n_empty=len(sizes) - len(positive),
        fits=fits,
        misfit=sections.describe_misfit(inputs),
        batches=sections.describe_batches(inputs),
        sections=factors,
        comparison=comparison,
        structure=structure_data(inputs, arrangement, colors),
        maps=map_data(inputs, colors[0]),
        corresponding=ALIKE,
        messages=_messages(inputs),
        costly_fits=sections.costly_fits(inputs),
        most_samples=MOST_SAMPLES,
        most_groups=MOST_GROUPS,
        versions=joined([f"{WORDS.get(name, name)} {text}" for name, text in versions().items()]),
        parameters=[_call(fit) for fit in inputs.fits],
        style=_text("report.css"),
        script=script,
        # the page's security policy allows this script, and no other
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


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
    for function in (decimal, percent, significant, keep_together):
        environment.filters[function.__name__] = function
    environment.filters["heat"] = _heat
    environment.globals |= {"link_in_words": link_in_words, "plural": plural}
    return environment.get_template("report.html")


def _text(name: str) -> str:
    """Return the content of a file that lies beside this module."""
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _heat(value: float) -> str:
    """Return the class of a cell of a heat map: h0 to h10, and n1 to n10 below zero."""
    step = round(HEAT_STEPS * min(1.0, abs(value)))
    return f"{'n' if value < 0 and step else 'h'}{step}"


def _lead(inputs: ReportInput, first: dict[str, Any], comparison: Comparison | None) -> str:
    """Describe what was fitted and the result; which fits have nearly the same factors comes first."""
    fit = inputs.fits[0]
    batches = "" if fit.batches is None else f" in {plural(len(fit.batches.names), 'batch', 'batches')}"
    size = f"{plural(len(fit.loadings), 'sample')}{batches} and {plural(len(fit.factors), 'feature')}"
    noise = f", {NOISES['nb']} noise" if all(one.dispersion is not None for one in inputs.fits) else ""
    if len(inputs.fits) > 1:
        same, headline = same_factors(inputs.fits, inputs.labels), comparison.headline if comparison else ""
        return " ".join(filter(None, (f"{size}, {_several(inputs)}{noise}.", same, headline)))
    n = fit.n_components
    text = f"{size}, {plural(n, 'factor')} at {fit.name}{noise}: {link_in_words(fit.c)}."
    if inputs.groups is None:
        return text
    alone = sum(len(factor["served"]) == 1 for factor in first["factors"])
    if not alone:
        return f"{text} Several groups of samples share every factor."
    return (
        f"{text} {plural(alone, 'factor belongs', 'factors belong')} to a single group of samples; "
        f"several groups share {plural(n - alone, 'factor')}."
    )


def _several(inputs: ReportInput) -> str:
    """Describe how many fits there are, and with how many factors."""
    sizes = sorted({fit.n_components for fit in inputs.fits})
    each = plural(sizes[0], "factor") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} factors"
    if len(sizes) == 1 and len(inputs.fits) <= MOST_LISTED:
        return f"{each} at {joined(inputs.labels)}"
    return f"{len(inputs.fits)} fits with {each}"


def _quality(inputs: ReportInput, explained: Sequence[float]) -> str:
    """Return whether the fits are at an optimum, and how much they explain."""
    failed = [label for label, fit in zip(inputs.labels, inputs.fits, strict=True) if not fit.converged]
    n = len(inputs.fits)
    if failed:
        state = f"Not converged: {joined(failed, most=6)}. See the notes."
    else:
        state = {1: "The fit converged.", 2: "Both fits converged."}.get(n, f"All {n} fits converged.")
    if any(math.isnan(share) for share in explained):
        return state
    who = "It explains" if n == 1 else "They explain"
    shown = explained if n <= MOST_LISTED else (min(explained), max(explained))
    listed = (joined if n <= MOST_LISTED else " to ".join)([percent(share) for share in shown])
    return f"{state} {who} {listed} of the deviance of the counts that were fitted."


def _messages(inputs: ReportInput) -> list[tuple[str, bool]]:
    """Return the messages of the fits; True marks a warning."""
    return [
        (f"{label}: {text}.", ENDED_EARLY.match(text) is not None)
        for label, fit in zip(inputs.labels, inputs.fits, strict=True)
        for text in fit.messages
        if not ABOUT_BATCHES.match(text)
    ]


def _call(fit: Fit) -> str:
    """Write the call that makes the fit, with the settings that are not the default."""
    asked, kinds = to_tree(fit.asked), set(fit.kinds)
    asked |= {"l1": "auto"} if any(note.startswith("l1='auto'") for note in fit.messages) else {}
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


# ---------- what was given for a report


def results_of(what: str, given: Any, fits: Sequence[Fit], stored: Iterable[Any]) -> tuple[Any, ...]:
    """Return the evidence or markers of each fit that were given or stored; nothing where none were."""

    def belongs(one: Any, fit: Fit) -> bool:
        if isinstance(one, Evidence):
            return len(one.loss) == fit.n_components
        return isinstance(one, Markers) and one.weight.shape == fit.factors.shape

    if given is None:
        found = tuple(one if belongs(one, fit) else None for one, fit in zip(stored, fits, strict=True))
        complete = None not in found if what == "markers" else any(found)
        return found if complete else ()
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    both = zip(found, fits, strict=False)
    if len(found) != len(fits) or not all(one is None or belongs(one, fit) for one, fit in both):
        raise ValueError(
            f"{what} must be what log1pnmf.analysis.{what} found for each of the {len(fits)} fits; pass None "
            "for a fit that has none"
        )
    return found


def check_texts(what: str, values: Any) -> list[str]:
    """Return several texts; a single one is an error."""
    if isinstance(values, str):
        raise TypeError(f"{what} must be a sequence of strings, got one string; pass [{values!r}]")
    return [str(value) for value in values]
