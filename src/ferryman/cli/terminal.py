"""Output of the command line: results to stdout, messages to stderr, one message a line, nothing shortened."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TextIO

from ferryman.errors import single_stops
from ferryman.limits import format_count
from ferryman.observe import Forwarding, Observer, one_line

PAD_MAX = 64
"""Width up to which columns are padded, so that one very long id does not push the others out of sight."""


def print_line(text: object = "") -> None:
    """Print a line of the result."""
    print(one_line(text))


def print_block(text: str) -> None:
    """Print a result of several lines, such as a picture."""
    print(text)


def print_note(text: object) -> None:
    """Print a message about the result to stderr."""
    print(single_stops(one_line(text)), file=sys.stderr)


def print_error(text: object) -> None:
    """Print an error to stderr."""
    print_note(f"error: {text}")


def print_json(value: Any) -> None:
    """Print the result for a script, as one line. Only ASCII, so that no terminal's encoding can spoil it."""
    print(json.dumps(value, default=str))


def print_json_array(values: Iterable[Any]) -> None:
    """Print an array on one line, each value as it comes: it may be long."""
    separator = "["
    for value in values:
        sys.stdout.write(f"{separator}{json.dumps(value, default=str)}")
        separator = ", "
    print("[]" if separator == "[" else "]")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: ruled on a terminal, aligned with blanks in a pipe. Columns of numbers are right-aligned."""
    values = [list(row) for row in rows]
    cells = [[_format_cell(value) for value in row] for row in values]
    numeric = [
        bool(values) and all(isinstance(row[i], int) or str(row[i] or "0").isdigit() for row in values)
        for i in range(len(headings))
    ]
    if sys.stdout.isatty():
        _print_ruled(headings, cells, numeric)
    else:
        _print_aligned(headings, cells, numeric)


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return format_count(value)
    return one_line(value)


def _print_ruled(headings: Sequence[str], cells: list[list[str]], numeric: list[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ruled = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading, right in zip(headings, numeric, strict=True):
        ruled.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in cells:
        ruled.add_row(*map(Text, row))
    Console().print(ruled)


def _print_aligned(headings: Sequence[str], cells: list[list[str]], numeric: list[bool]) -> None:
    lines = [list(headings), *cells]
    widths = [min(PAD_MAX, max(len(line[i]) for line in lines)) for i in range(len(headings))]
    for line in lines:
        padded = (
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(padded).rstrip())


def format_time(value: object) -> str:
    """Format an ISO 8601 time of the ledger for reading, in UTC: ``2025-01-31 12:00:00``; "" if it is not a time."""
    try:
        return dt.datetime.fromisoformat(str(value)).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return ""


def next_command(verb: str, plan: str, *rest: str, state: str | None = None) -> str:
    """Return a command the user can type next, quoted for a shell: ``ferryman deliveries plan.py --status failed``."""
    state_option = ["--state", str(state)] if state is not None else []
    return f"{program_name()} {shlex.join([*verb.split(), plan, *state_option, *rest])}"


_COMMAND: Final = re.compile(r"(?<!`)`ferryman ([^`]+)`(?!`)")


_PLAN: Final = re.compile(r"\bPLAN\b")


def complete_commands(text: str, plan: str | None, state: str | None) -> str:
    """Put what the user typed into the commands of a message: ``PLAN`` becomes the plan, with its ``--state``.

    Args:
        plan: the PLAN argument; None: there is none.
    """
    if plan is None:
        return text
    typed = shlex.join([plan, *(["--state", state] if state is not None else [])])
    return _COMMAND.sub(lambda found: f"`{program_name()} {_PLAN.sub(lambda _: typed, found[1])}`", text)


def program_name() -> str:
    """Return how this command can be typed: its name, or its path where the shell does not find the name."""
    invoked = sys.argv[0]
    if Path(invoked).name != "ferryman" or shutil.which("ferryman"):
        return "ferryman"
    return shlex.quote(os.path.relpath(invoked))


def tolerate_any_text(*streams: TextIO) -> None:
    """Make streams escape characters that their encoding lacks, as ids may hold some, instead of failing."""
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


# --- Ctrl-C, SIGTERM and the end of a terminal (SIGHUP), also while the driver waits for Spark ---

CODE: Final = 130
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Handles signals while it is entered: the first interrupts the run, the second ends this process at once.

    A KeyboardInterrupt alone is not enough: the bridge to the JVM may turn it into an error of its own, which looks
    like a failed Spark job, and the run continues. So ``requested`` records it; the observer of ``interruptible`` and
    whoever catches what the run raised check it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}
        self._cancel: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the run continues without its terminal
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        logging.disable(logging.NOTSET)

    def print_note(self, text: str) -> None:
        """Print to stderr, if it still exists: after SIGHUP its terminal may be closed."""
        with contextlib.suppress(OSError):
            print_note(text)

    def interruptible(self, observer: Observer) -> Observer:
        """Wrap the observer so that its next call raises KeyboardInterrupt once an interrupt was requested."""
        return _InterruptibleObserver(observer, self)

    def check(self) -> None:
        """Raise KeyboardInterrupt if requested. Take back the SIGINT handler, which Spark replaces at its start."""
        if self.requested:
            raise KeyboardInterrupt
        current = signal.getsignal(signal.SIGINT)
        if callable(current) and current != self._on_signal:
            self._cancel = current  # Spark's handler cancels its jobs, then raises KeyboardInterrupt
            signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(CODE)  # a run may be killed at any moment
        self.requested = True
        logging.disable(logging.CRITICAL)  # errors from here on are caused by the interrupt
        warnings.simplefilter("ignore")
        if self._cancel is not None:
            self._cancel(number, frame)
        raise KeyboardInterrupt


class _InterruptibleObserver(Forwarding):
    """Raises KeyboardInterrupt at a call once an interrupt was requested."""

    def __init__(self, observer: Observer, interrupt: Interrupt) -> None:
        super().__init__(observer)
        self._interrupt = interrupt

    def phase(self, wave: int, name: str) -> None:
        self._interrupt.check()
        super().phase(wave, name)

    def staged(self, documents: int) -> None:
        self._interrupt.check()
        super().staged(documents)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self._interrupt.check()
        super().settled(delivered, pending, failed)

    def message(self, text: str) -> None:
        self._interrupt.check()
        super().message(text)
