"""The data: what was counted, how much of it, and how samples differ in size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from log1pnmf._common.words import plural

from .figures import Chart, histogram
from .inputs import ReportInput
from .words import percent, significant

__all__ = ["DataSection", "describe_data"]


@dataclass(frozen=True)
class DataSection:
    """What the report says of the data.

    Parameters
    ----------
    rows : list of (str, str)
        Name and value.
    sizes : Chart or None
        Histogram of the size factors.
    sizes_note : str
        What it says in words.
    """

    rows: list[tuple[str, str]]
    sizes: Chart | None
    sizes_note: str


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
