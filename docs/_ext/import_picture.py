"""Sphinx: ``{import-graph}`` draws, from the code, how often each room imports from each other one."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[2]))  # tools/

from tools.import_graph import all_imports, draw


class ImportGraph(SphinxDirective):
    """The picture, made anew at every build: it cannot be out of date."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        return [nodes.raw("", f'<div class="import-graph">{draw(all_imports())}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("import-graph", ImportGraph)
    return {"parallel_read_safe": True}
