"""How the command line talks: results to stdout, words to stderr, one message a line, nothing shortened."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TextIO

from ferryman.observe import Forwarding, Observer, one_line

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


# Ctrl-C, SIGTERM and the end of a terminal (SIGHUP), also while Spark is being waited for.

CODE: Final = 130
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """While it is entered, the first signal interrupts the run and the second ends this process at once.

    A KeyboardInterrupt alone does not do: the bridge to the JVM may turn it into an error of its own, which looks like
    a failed Spark job, and the run goes on. So ``asked`` remembers it, ``heeding`` looks at that, and so does whoever
    catches what the run raised.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}
        self._cancel: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: it goes on without its terminal
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        logging.disable(logging.NOTSET)

    def say(self, text: str) -> None:
        """To stderr, if somebody is there: after SIGHUP it may be a terminal that has gone."""
        with contextlib.suppress(OSError):
            note(text)

    def heeding(self, observer: Observer) -> Observer:
        """The same observer, which raises KeyboardInterrupt at its next word once that was asked for."""
        return _Heeding(observer, self)

    def look(self) -> None:
        """Raise if it was asked for; and be the one who is told, although Spark's start made itself that."""
        if self.asked:
            raise KeyboardInterrupt
        current = signal.getsignal(signal.SIGINT)
        if callable(current) and current != self._heard:
            self._cancel = current  # Spark's own: cancels its jobs, then raises KeyboardInterrupt
            signal.signal(signal.SIGINT, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(CODE)  # killing is safe at any moment, this run's promise
        self.asked = True
        logging.disable(logging.CRITICAL)  # what breaks from here on, breaks because we asked for it
        warnings.simplefilter("ignore")
        if self._cancel is not None:
            self._cancel(number, frame)
        raise KeyboardInterrupt


class _Heeding(Forwarding):
    """See ``Interrupt.heeding``."""

    def __init__(self, observer: Observer, interrupt: Interrupt) -> None:
        super().__init__(observer)
        self._interrupt = interrupt

    def phase(self, wave: int, name: str) -> None:
        self._interrupt.look()
        super().phase(wave, name)

    def taken_up(self, documents: int) -> None:
        self._interrupt.look()
        super().taken_up(documents)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self._interrupt.look()
        super().settled(delivered, pending, failed)

    def message(self, text: str) -> None:
        self._interrupt.look()
        super().message(text)
