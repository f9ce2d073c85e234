#!/usr/bin/env python3
"""Writes docs/reference/cli.md from the command's own help; a test compares the two.

.venv/bin/python scripts/cli_reference.py            writes it
.venv/bin/python scripts/cli_reference.py --print    prints it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ferryman.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
HEAD = """# The command line

<!-- Made by scripts/cli_reference.py from the texts of `ferryman --help`: change those, then run it. -->

Results go to stdout, progress and errors to stderr. In a pipe, each message is one line, never wrapped or shortened.
"""


def page() -> str:
    """The whole page."""
    command = typer.main.get_command(app)
    return "\n".join([HEAD, *_command(command, "ferryman", None)])


def _command(command: Any, path: str, parent: Any) -> Iterator[str]:
    """A command's section, then those of its subcommands. ``Any``: typer's classes have no public names."""
    context = command.context_class(command, info_name=path, parent=parent)
    commands = getattr(command, "commands", {})
    parameters = [p for p in command.params if not getattr(p, "hidden", False)]
    if not commands:
        pieces = [p.metavar for p in parameters if p.param_type_name == "argument"]
        yield f"## `{' '.join([path, *pieces])}`\n"
        yield _prose(command.help or "") + "\n"
        yield from _rows(parameters, context)
    for name, below in commands.items():
        yield from _command(below, f"{path} {name}", context)


def _prose(text: str) -> str:
    """Paragraphs as they are; one that is marked to be kept line by line becomes a block."""
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraphs.append("```text\n" + paragraph.removeprefix("\b\n") + "\n```")
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _rows(parameters: list[Any], context: Any) -> Iterator[str]:
    yield "| | |\n|---|---|"
    for parameter in parameters:
        text = parameter.help or ""
        if parameter.show_default and not parameter.required and parameter.default not in (None, "", False):
            default = getattr(parameter.default, "value", parameter.default)
            text += f" Default: `{default}`."
        yield f"| `{_shape(parameter, context)}` | {text} |"
    yield ""


def _shape(parameter: Any, context: Any) -> str:
    """``PLAN``, ``--state DIR``, ``-v, --verbose``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    options = ", ".join(parameter.opts)
    if parameter.is_flag:
        return options
    return f"{options} {parameter.metavar or parameter.display_type(context).strip('<>').replace('|', ',')}"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        print(page())
    else:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), "utf-8")
