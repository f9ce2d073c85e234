"""How the command line talks: results to stdout, words to stderr, one message a line, nothing shortened."""

from __future__ import annotations

import datetime as dt
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from ferryman.observe.progress import one_line

PAD_MAX = 48
"""Columns are padded up to this width: one very long id shall not push all others out of sight."""


def say(text: object = "") -> None:
    """A line of the result."""
    print(one_line(text))


def block(text: str) -> None:
    """A result of several lines: a picture."""
    print(text)


def note(text: object) -> None:
    """A word about the result, to stderr."""
    print(one_line(text), file=sys.stderr)


def error(text: object) -> None:
    """What went wrong, to stderr."""
    note(f"error: {text}")


def json_line(value: Any) -> None:
    """The result for a script, as one line. Only ASCII, so that no terminal's encoding can spoil it."""
    print(json.dumps(value, default=str))


def json_lines(values: Iterable[Any]) -> None:
    """The same of a list that may be long: written as it comes."""
    between = "["
    for value in values:
        sys.stdout.write(f"{between}{json.dumps(value, default=str)}")
        between = ", "
    print("[]" if between == "[" else "]")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table: drawn on a terminal, aligned with blanks in a pipe. Numbers to the right."""
    cells = [[one_line("" if value is None else value) for value in row] for row in rows]
    numeric = [bool(cells) and all(row[i].isdigit() or not row[i] for row in cells) for i in range(len(headings))]
    if sys.stdout.isatty():
        _drawn(headings, cells, numeric)
    else:
        _aligned(headings, cells, numeric)


def _drawn(headings: Sequence[str], cells: list[list[str]], numeric: list[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading, right in zip(headings, numeric, strict=True):
        drawn.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


def _aligned(headings: Sequence[str], cells: list[list[str]], numeric: list[bool]) -> None:
    lines = [list(headings), *cells]
    widths = [min(PAD_MAX, max(len(line[i]) for line in lines)) for i in range(len(headings))]
    for line in lines:
        padded = (
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(padded).rstrip())


def when(value: object) -> str:
    """An ISO 8601 time of the ledger as people read it, in UTC like the ledger's: ``2025-01-31 12:00:00``."""
    try:
        return dt.datetime.fromisoformat(str(value)).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return ""


def command(verb: str, plan: str, *rest: str, state: str | None = None) -> str:
    """What the user can type next, quoted for a shell: ``ferryman deliveries plan.py --status failed``."""
    where = ["--state", str(state)] if state is not None else []
    return f"{program()} {shlex.join([*verb.split(), plan, *where, *rest])}"


def program() -> str:
    """How this command can be typed: by its name, or by its path where that is not on the shell's."""
    called = sys.argv[0]
    if Path(called).name != "ferryman" or shutil.which("ferryman"):
        return "ferryman"
    return shlex.quote(os.path.relpath(called))


def tolerate_any_text(*streams: TextIO) -> None:
    """Ids may hold what a stream's encoding does not: write it escaped, do not fail over it."""
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
