"""Sphinx: ``{command-reference}`` lists every command of the program with its options, as it has them now."""

import re
from typing import Any, ClassVar

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandReference(SphinxDirective):
    """A section for each command: what it does, how it is called, its arguments and options."""

    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        from log1pnmf.cli.app import app

        program = typer.main.get_command(app)
        lines = [line for name, command in program.commands.items() for line in _section(name, command)]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def _section(name: str, command: Any) -> list[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    pieces = [piece.strip("{}") for piece in command.collect_usage_pieces(context)]
    usage = " ".join([f"log1pnmf {name}", *pieces])
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    lines = [f"## {name}", "", _prose(command.help or ""), "", "```text", usage, "```", ""]
    lines += _table("argument", [(f"`{one.name.upper()}`", _prose(one.help or "")) for one in arguments])
    panels = [getattr(one, "rich_help_panel", None) or "Options" for one in options]
    for panel in dict.fromkeys(panels):
        rows = [_option(one, context) for one, of in zip(options, panels, strict=True) if of == panel]
        lines += _table(panel, rows)
    return lines


def _option(option: Any, context: Any) -> tuple[str, str]:
    names, words = option.get_help_record(context)
    return f"`{names}`", _prose(words)


def _table(kind: str, rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    body = [f"| {name.replace('|', chr(92) + '|')} | {words} |" for name, words in rows]
    return [f"| {kind} | |", "|---|---|", *body, ""]


def _prose(text: str) -> str:
    """Paragraphs on one line each; what Markdown would read as its own is told apart."""
    paragraphs = [" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")]
    return re.sub(r"([*_\[\]<>|])", r"\\\1", "\n\n".join(paragraphs)).strip()


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
