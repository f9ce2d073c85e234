"""Progress of a run: a bar on a terminal, one line a message in a pipe. Always to stderr; results own stdout."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ferryman.observe.pace import Pace, duration
from ferryman.observe.stream import Writable

if TYPE_CHECKING:
    from rich.progress import Progress

CONTROL = {c: " " if chr(c).isspace() else f"\\x{c:02x}" for c in (*range(32), *range(127, 160))}
CONTROL |= {0x2028: " ", 0x2029: " "}
CONTROL |= {
    c: f"\\u{c:04x}" for c in (0x61C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
}
"""Line breaks become blanks; the rest would let a document's name write on the terminal as it likes.
Characters without width, and those that turn the direction of text, are shown as what they are."""


def one_line(text: object) -> str:
    """The whole text in one line, without control characters."""
    return str(text).strip("\r\n").rstrip().replace("\r\n", "\n").translate(CONTROL)


def counted(number: int) -> str:
    """``1 200``: for people; programs get their numbers from JSON."""
    return f"{number:,}".replace(",", " ")


def plural(number: int, one: str, many: str) -> str:
    """``1 delivery``, ``1 200 deliveries``."""
    return f"{counted(number)} {one if number == 1 else many}"


class Observer(Protocol):
    """What a run tells. Called by the driver, in this order for each wave::

        phase(3, "scan")
        outcome("…")                what the phase has come to, in words
        planned(5000)               what the waves of this listing read in all
        phase(3, "transform")
        expects(1500)               documents that this phase has before it
        taken_up(1200)              what this wave processes: adds to what the waves before it did
        phase(3, "commit")
        phase(3, "deliver")
        expects(1200)
        phase(3, "settle")
        settled(1000, 198, 2)       as often as there is something new: the first and the last number add up
        message("…")                at any time

    It must not raise, and it must return at once: the run waits for it. ``live`` and ``error`` come from another thread
    while a phase runs; the others from one thread.

    Attributes:
        follows: ``live`` and ``error`` are wanted.
    """

    follows: bool

    def phase(self, wave: int, name: str) -> None:
        """Wave number ``wave`` is in phase ``name`` now."""

    def planned(self, documents: int) -> None:
        """So many documents are read by the waves that follow."""

    def expects(self, documents: int) -> None:
        """So many documents are before this phase."""

    def outcome(self, text: str) -> None:
        """What the phase has come to."""

    def live(self, documents: int) -> None:
        """So many documents of the phase are done."""

    def error(self, document: str, text: str, trace: str) -> None:
        """A document failed, just now. ``trace``: the traceback; "" if there is none."""

    def taken_up(self, documents: int) -> None:
        """So many more documents are to be delivered."""

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        """So many more were delivered or deleted, so many are pending now, so many more failed or were rejected."""

    def message(self, text: str) -> None:
        """A line for people."""

    def finished(self, counts: Mapping[str, int]) -> None:
        """The run has ended: its exit code and counts, as ``run --json`` has them."""

    def about(self, plan: str) -> None:
        """In the run of a flow: what follows is about this plan; "": about all of them. Between two phases."""


class Silent:
    """Says nothing."""

    follows = False

    def phase(self, wave: int, name: str) -> None: ...
    def planned(self, documents: int) -> None: ...
    def expects(self, documents: int) -> None: ...
    def outcome(self, text: str) -> None: ...
    def live(self, documents: int) -> None: ...
    def error(self, document: str, text: str, trace: str) -> None: ...
    def taken_up(self, documents: int) -> None: ...
    def settled(self, delivered: int, pending: int, failed: int) -> None: ...
    def message(self, text: str) -> None: ...
    def finished(self, counts: Mapping[str, int]) -> None: ...
    def about(self, plan: str) -> None: ...


class Forwarding:
    """Tells other observers the same; a base for those that look at something on the way."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.follows = any(each.follows for each in observers)

    def phase(self, wave: int, name: str) -> None:
        for each in self._observers:
            each.phase(wave, name)

    def planned(self, documents: int) -> None:
        for each in self._observers:
            each.planned(documents)

    def expects(self, documents: int) -> None:
        for each in self._observers:
            each.expects(documents)

    def outcome(self, text: str) -> None:
        for each in self._observers:
            each.outcome(text)

    def live(self, documents: int) -> None:
        for each in self._observers:
            each.live(documents)

    def error(self, document: str, text: str, trace: str) -> None:
        for each in self._observers:
            each.error(document, text, trace)

    def taken_up(self, documents: int) -> None:
        for each in self._observers:
            each.taken_up(documents)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        for each in self._observers:
            each.settled(delivered, pending, failed)

    def message(self, text: str) -> None:
        for each in self._observers:
            each.message(text)

    def finished(self, counts: Mapping[str, int]) -> None:
        for each in self._observers:
            each.finished(counts)

    def about(self, plan: str) -> None:
        for each in self._observers:
            each.about(plan)


_LONG_S: Final = 10.0
"""A phase that came to nothing is worth a line if it took so long."""

_STILL_EVERY_S: Final = 30.0
"""How often a phase that takes long says how far it is."""


class Following:
    """Follows a run from phase to phase; a base for those that report on it.

    Attributes:
        wave: the number of the present one.
        name: of the present phase; "" between two.
        plan: which plan of a flow this is about; "" where there is only one, or where all are meant.
    """

    follows = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.pace = Pace(clock)
        self.wave = 0
        self.name = self.plan = ""
        self._outcome = ""
        self._began = self._said = clock()

    def phase_ended(self, name: str, outcome: str, took_s: float) -> None:
        """Outcome: in words, "" if there are none."""

    def goes_on(self) -> None:
        """A phase takes long. Called now and then."""

    @property
    def took_s(self) -> float:
        """Of this phase, so far."""
        return self.clock() - self._began

    def phase(self, wave: int, name: str) -> None:
        self.end_phase()
        self.wave, self.name = wave, name
        self._began = self._said = self.clock()
        self.pace.phase(name)

    def planned(self, documents: int) -> None:
        self.pace.planned(documents)

    def expects(self, documents: int) -> None:
        self.pace.expects(documents)

    def outcome(self, text: str) -> None:
        self._outcome = text

    def live(self, documents: int) -> None:
        self.pace.live(documents)
        if self.clock() - self._said >= _STILL_EVERY_S:
            self._said = self.clock()
            self.goes_on()

    def taken_up(self, documents: int) -> None: ...

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self.end_phase()

    def finished(self, counts: Mapping[str, int]) -> None:
        self.end_phase()

    def about(self, plan: str) -> None:
        if plan != self.plan:
            self.end_phase()
        self.plan = plan

    def named(self, text: str) -> str:
        """A line, behind the name of the plan that it is about."""
        return f"{self.plan}: {text}" if self.plan else text

    def end_phase(self) -> None:
        """Report on the present phase, if there is one."""
        if self.name:
            self.phase_ended(self.name, self._outcome, self.took_s)
        self.name = self._outcome = ""


class LineProgress(Following):
    """A line for each phase, with what it came to and how long it took; one for each settled wave and each message;
    while a phase takes long, one now and then. For pipes and log files.

    Args:
        verbose: also when a phase begins, and the tracebacks of errors.
    """

    def __init__(self, stream: Writable, verbose: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.stream = stream
        self.verbose = verbose

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if self.verbose:
            self.message(f"wave {wave}: {name}")

    def phase_ended(self, name: str, outcome: str, took_s: float) -> None:
        """A scan that finds nothing, again and again, says nothing."""
        if not outcome and name == "deliver" and self.pace.done:
            outcome = f"{counted(self.pace.done)} sent"
        if outcome or name != "scan" or took_s >= _LONG_S:
            self.message(f"wave {self.wave}: {name}: {outcome}{', ' if outcome else ''}{duration(took_s)}")

    def goes_on(self) -> None:
        self.message(f"wave {self.wave}: {self.name}: {self.pace.told(counted)}")

    def error(self, document: str, text: str, trace: str) -> None:
        self.message(f"{document}: {text}")
        for line in trace.splitlines() if self.verbose else ():
            self.message(line)

    def taken_up(self, documents: int) -> None:
        if self.verbose:
            self.message(f"wave {self.wave}: {plural(documents, 'document', 'documents')} processed")

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        super().settled(delivered, pending, failed)
        self.message(f"wave {self.wave}: {_figures(delivered, pending, failed)}")

    def message(self, text: str) -> None:
        self.write(self.named(text))

    def write(self, text: str) -> None:
        """A line as it is."""
        self.stream.write(one_line(text) + "\n")
        self.stream.flush()


def _figures(delivered: int, pending: int, failed: int) -> str:
    return f"{counted(delivered)} delivered, {counted(pending)} pending, {counted(failed)} failed or rejected"


class Bar(Following):
    """A bar with wave and phase, how far it is and what is left; documents/s, pending, failed. Messages stand above it,
    whole.

    Args:
        verbose: also the tracebacks of errors.
    """

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic, verbose: bool = False) -> None:
        super().__init__(clock)
        self.progress = progress
        self.verbose = verbose
        self.task = progress.add_task("starting", total=None, figures="")
        self.began: float | None = None
        self.total = self.delivered = self.pending = self.failed = 0

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        self.progress.update(self.task, description=f"wave {wave}: {name}")

    def outcome(self, text: str) -> None:
        if self.verbose:
            self.message(f"wave {self.wave}: {self.name}: {text}")

    def live(self, documents: int) -> None:
        self.pace.live(documents)
        if documents:
            self.progress.update(
                self.task,
                description=self.named(f"wave {self.wave}: {self.name}: {self.pace.told(counted)}"),
                completed=documents,
                total=self.pace.expected or None,
            )

    def error(self, document: str, text: str, trace: str) -> None:
        self.message(f"{document}: {text}")
        for line in trace.splitlines() if self.verbose else ():
            self.message(line)

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
        self.progress.console.print(one_line(self.named(text)), markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        done = self.delivered + self.failed
        figures = _figures(self.delivered, self.pending, self.failed)
        seconds = self.clock() - self.began if self.began is not None else 0.0
        if seconds > 0:
            figures += f", {counted(round(self.delivered / seconds))}/s"
        self.progress.update(self.task, completed=done, total=max(self.total, done) or None, figures=figures)
