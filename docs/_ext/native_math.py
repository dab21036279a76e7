"""Sphinx: formulas as MathML, which browsers draw by themselves: pages load nothing from elsewhere."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def draw(writer: Any, node: nodes.Element) -> None:
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    formula = convert(node.astext(), display=display)
    writer.body.append(f'<div class="formula">{formula}</div>' if display == "block" else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("native", inline_renderers=(draw, None), block_renderers=(draw, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
