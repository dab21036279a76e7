"""Add defaults of parameters and kinds of results to the reference; docstrings need not repeat signatures."""

from __future__ import annotations

import inspect
import re

HEAD = re.compile(r"(?P<names>\*{0,2}\w+(?:, \w+)*) : (?P<kind>.+)")


def add_defaults(app, what, name, thing, *rest):
    """Change ``c : float`` to ``c : float, default=1.0`` in the section of the parameters."""
    lines = rest[-1]
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return
    parameters, result = signature.parameters, signature.return_annotation
    told = "Returns" in lines or not isinstance(result, str) or result in ("None", "Any")
    if inspect.isroutine(thing) and not told:
        lines += ["", "Returns", "-------", result]
    inside = False
    for place, line in enumerate(lines):
        if place + 1 < len(lines) and set(lines[place + 1]) == {"-"}:
            inside = line in ("Parameters", "Other Parameters")
        found = HEAD.fullmatch(line) if inside else None
        if found is None or "default" in found["kind"]:
            continue
        given = [parameters[one].default for one in found["names"].split(", ") if one in parameters]
        shown = {f'"{one}"' if isinstance(one, str) else repr(one) for one in given}
        if len(shown) == 1 and given[0] is not None and given[0] is not inspect.Parameter.empty:
            lines[place] = f"{line}, default={shown.pop()}"


def name_advanced(app, what, name, thing, *rest):
    """Call the parameters of a second section advanced; numpydoc has a fixed name for it."""
    rest[-1][:] = [line.replace(":Other Parameters:", ":Advanced parameters:") for line in rest[-1]]


def setup(app):
    app.connect("autodoc-process-docstring", add_defaults, priority=100)  # before numpydoc
    app.connect("autodoc-process-docstring", name_advanced, priority=900)  # after it
    return {"parallel_read_safe": True}
