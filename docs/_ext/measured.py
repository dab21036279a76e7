"""Sphinx: ``{measured} NAME`` shows docs/_tables/NAME.csv, and below it what made it (docs/tables.py)."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[1]))

from tables import FOLDER, Table


class Measured(SphinxDirective):
    """A table of measurements with its command, version and machine."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        path, table, found = FOLDER / f"{name}.csv", Table.read(name), nodes.container()
        self.env.note_dependency(str(path))
        lines = [*table.markdown().splitlines(), "", table.caption()]
        self.state.nested_parse(StringList(lines, str(path)), 0, found)
        found[-1]["classes"].append("made-by")
        return found.children


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True}
