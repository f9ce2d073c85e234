"""Write docs/reference/cli.md and intake-cli.md from the command's own help; a test compares them.

.venv/bin/python scripts/cli_reference.py            writes them
.venv/bin/python scripts/cli_reference.py --print    prints them
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ferryman.cli.app import root_command
from ferryman.observe import JsonLog

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
COMMON = 8
"""Number of commands of a page from which on an option is described once, for all of them."""
HEADER = "| | |\n|---|---|"
"""First lines of a table of options."""
SHARED = """## Options of most commands

What these mean where a command takes them.
"""
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
    sections = [(path, section) for path, section in _command(root_command(), "ferryman", None)]
    intake = [section for path, section in sections if path.startswith(QUEUE)]
    others = [section for path, section in sections if not path.startswith(QUEUE)]
    more = f"{MORE}\n{_log_events()}\n"
    return {
        "cli.md": _page(HEAD.replace("TITLE", "The command line"), more, others),
        "intake-cli.md": _page(HEAD.replace("TITLE", "The intake queue: commands"), "", intake),
    }


def _page(head: str, more: str, sections: list[str]) -> str:
    """Return a page on which each line of many commands' tables is there once, before all of them."""
    lines = Counter(line for section in sections for line in section.splitlines() if line.startswith("| `-"))
    common = [line for line, commands in lines.most_common() if commands >= COMMON]
    everywhere = [line for line in common if lines[line] == len(sections)]
    shorter = [_without(section, common, everywhere) for section in sections]
    options = "\n".join([SHARED, HEADER, *common, ""])
    return "\n".join(part for part in (head, more, options, *shorter) if part)


def _without(section: str, common: list[str], everywhere: list[str]) -> str:
    """Return a command's section with the names of common options in place of their lines."""
    lines = section.split("\n")
    also = [line.split("`")[1].split(" ")[0] for line in lines if line in common and line not in everywhere]
    kept = "\n".join(line for line in lines if line not in common).rstrip("\n").removesuffix(HEADER).rstrip("\n")
    return kept + (f"\n\nAlso {', '.join(f'`{name}`' for name in also)}." if also else "") + "\n"


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
    yield HEADER
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
