"""Progress of a run: a bar on a terminal, one line a message in a pipe. Always to stderr; results own stdout."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

CONTROL = {c: " " if chr(c).isspace() else f"\\x{c:02x}" for c in (*range(32), *range(127, 160))}
CONTROL |= {0x2028: " ", 0x2029: " "}
"""Line breaks become blanks; the rest would let a document's name write on the terminal as it likes."""


def one_line(text: object) -> str:
    """The whole text in one line, without control characters."""
    return str(text).strip("\r\n").rstrip().replace("\r\n", "\n").translate(CONTROL)


def counted(number: int) -> str:
    """``1 200``: for people; programs get their numbers from JSON."""
    return f"{number:,}".replace(",", " ")


class Observer(Protocol):
    """What a run tells. Called by the driver, from one thread, in this order for each wave::

        phase(3, "scan")
        phase(3, "transform")
        taken_up(1200)              what this wave took up: adds to what the waves before it did
        phase(3, "deliver")
        settled(1000, 198, 2)       as often as there is something new: the first and the last number add up
        message("…")                at any time

    It must not raise, and it must return at once: the run waits for it.
    """

    def phase(self, wave: int, name: str) -> None:
        """Wave number ``wave`` is in phase ``name`` now."""

    def taken_up(self, documents: int) -> None:
        """So many more documents are to be delivered."""

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        """So many more were delivered or deleted, so many are pending now, so many more failed or were rejected."""

    def message(self, text: str) -> None:
        """A line for people."""


class Silent:
    """Says nothing."""

    def phase(self, wave: int, name: str) -> None: ...
    def taken_up(self, documents: int) -> None: ...
    def settled(self, delivered: int, pending: int, failed: int) -> None: ...
    def message(self, text: str) -> None: ...


class LineProgress:
    """One line a settled wave and a message; with ``verbose`` also one a phase. For pipes and log files."""

    def __init__(self, stream: TextIO, verbose: bool = False) -> None:
        self.stream = stream
        self.verbose = verbose
        self.wave = 0

    def phase(self, wave: int, name: str) -> None:
        self.wave = wave
        if self.verbose:
            self.message(f"wave {wave}: {name}")

    def taken_up(self, documents: int) -> None:
        if self.verbose:
            self.message(f"wave {self.wave}: {counted(documents)} documents taken up")

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self.message(
            f"wave {self.wave}: {counted(delivered)} delivered, {counted(pending)} pending, {counted(failed)} failed"
        )

    def message(self, text: str) -> None:
        self.stream.write(one_line(text) + "\n")
        self.stream.flush()


class Bar:
    """A bar with wave and phase, documents/s, pending, failed. Messages stand above it, whole."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = progress
        self.clock = clock
        self.task = progress.add_task("starting", total=None, figures="")
        self.began: float | None = None
        self.total = self.delivered = self.pending = self.failed = 0

    def phase(self, wave: int, name: str) -> None:
        self.progress.update(self.task, description=f"wave {wave}: {name}")

    def taken_up(self, documents: int) -> None:
        if self.began is None:
            self.began = self.clock()
        self.total += documents
        self._show()

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self.delivered += delivered
        self.pending = pending
        self.failed += failed
        self._show()

    def message(self, text: str) -> None:
        self.progress.console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        done = self.delivered + self.failed
        figures = f"{counted(self.delivered)} delivered, {counted(self.pending)} pending, {counted(self.failed)} failed"
        seconds = self.clock() - self.began if self.began is not None else 0.0
        if seconds > 0:
            figures += f", {counted(round(self.delivered / seconds))}/s"
        self.progress.update(self.task, completed=done, total=max(self.total, done) or None, figures=figures)


@contextlib.contextmanager
def watching(stream: TextIO, verbose: bool = False) -> Iterator[Observer]:
    """The observer that suits the stream, for as long as the run takes."""
    if not stream.isatty():
        yield LineProgress(stream, verbose)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=stream), transient=True, redirect_stdout=False) as progress:
        yield Bar(progress)
