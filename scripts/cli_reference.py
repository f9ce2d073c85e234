"""Write docs/reference/cli.md and intake-cli.md from the command's own help; a test compares them.

.venv/bin/python scripts/cli_reference.py            writes them
.venv/bin/python scripts/cli_reference.py --print    prints them
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ferryman.cli.app import app
from ferryman.observe import JsonLog

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
QUEUE = "ferryman intake"
"""Command whose subcommands have a page of their own: the intake queue has other users."""
HEAD = """# TITLE

<!-- Made by scripts/cli_reference.py from the texts of `ferryman --help`: change those, then run it. -->

Results go to stdout, progress and errors to stderr. In a pipe, each message is one line, never wrapped or shortened.
"""

MORE = """The commands of the [intake queue](../intake.md) are [on a page of their own](intake-cli.md).

`ferryman --install-completion` makes your shell (bash, zsh, fish, PowerShell) complete verbs, options and their values;
`ferryman --show-completion` prints what it would install.

`ferryman run` and `ferryman intake serve` append what they print on stderr to `--log-file`, each line with its time.
With `--log-format json` each line is an object. (Without a log file it is stderr that has this format.)
"""


def _log_events() -> str:
    """Return the description of the lines of a JSON log, from the class that writes them."""
    return inspect.cleandoc(JsonLog.__doc__ or "").replace("``", "`")


def pages() -> dict[str, str]:
    """Return name of the file -> the whole page."""
    sections = [(path, section) for path, section in _command(typer.main.get_command(app), "ferryman", None)]
    intake = [section for path, section in sections if path.startswith(QUEUE)]
    others = [section for path, section in sections if not path.startswith(QUEUE)]
    more = f"{MORE}\n{_log_events()}\n"
    return {
        "cli.md": "\n".join([HEAD.replace("TITLE", "The command line"), more, *others]),
        "intake-cli.md": "\n".join([HEAD.replace("TITLE", "The intake queue: commands"), *intake]),
    }


def _command(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
    """Yield a command's path and section, then those of its subcommands. (typer's classes have no public names.)"""
    context = command.context_class(command, info_name=path, parent=parent)
    commands = getattr(command, "commands", {})
    parameters = [p for p in command.params if not getattr(p, "hidden", False)]
    if not commands:
        pieces = [p.metavar for p in parameters if p.param_type_name == "argument"]
        lines = [f"## `{' '.join([path, *pieces])}`\n", _prose(command.help or "") + "\n", *_rows(parameters, context)]
        yield path, "\n".join(lines)
    for name, subcommand in commands.items():
        yield from _command(subcommand, f"{path} {name}", context)


def _prose(text: str) -> str:
    """Return the paragraphs; one that typer must not wrap becomes a block."""
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
    """Format a parameter: ``PLAN``, ``--state DIR``, ``-v, --verbose``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    options = ", ".join(parameter.opts)
    if parameter.is_flag:
        return options
    return f"{options} {parameter.metavar or parameter.display_type(context).strip('<>').replace('|', ',')}"


if __name__ == "__main__":
    for name, page in pages().items():
        if "--print" in sys.argv[1:]:
            print(page)
        else:
            (REFERENCE / name).write_text(page, "utf-8")
