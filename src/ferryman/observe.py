"""Progress of a run: a bar on a terminal, one line a message in a pipe, lines or JSON in a log file.

Always to stderr; stdout is for results.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TextIO

from ferryman.errors import UsageError, single_stops
from ferryman.limits import GIB, KIB, MIB, format_count, plural

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Chunk", "Forwarding", "Observer", "Silent", "one_line", "progress_observer"]


CONTROL = {c: " " if chr(c).isspace() else f"\\x{c:02x}" for c in (*range(32), *range(127, 160))}
CONTROL |= {0x2028: " ", 0x2029: " "}
CONTROL |= {
    c: f"\\u{c:04x}" for c in (0x61C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
}
"""Character code -> what is printed for it. Line breaks become blanks. Other control characters, characters without
width and those that change the direction of text are escaped: else a document's name could control the terminal."""


def one_line(text: object) -> str:
    """Return the whole text as one line, without control characters."""
    return str(text).strip("\r\n").rstrip().replace("\r\n", "\n").translate(CONTROL)


def format_size(size: int) -> str:
    """Format a size for users: ``4.2 GiB``."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


_UNITS: Final = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


class Chunk(NamedTuple):
    """A call of a destination's ``write``.

    Attributes:
        began: seconds since 1970.
        rows: deliveries it was called with.
        accepted: how many of them it took.
        error: what the call raised; "": it returned.
    """

    destination: str
    began: float
    took_s: float
    rows: int
    accepted: int
    error: str = ""


class Observer(Protocol):
    """Receives the progress of a run. The driver calls it in this order for each wave::

        phase(3, "scan")
        outcome("…")                the result of the phase, as text
        planned(5000)               documents that all waves of this listing read
        phase(3, "transform")
        expects(1500)               documents that this phase will process
        staged(1200)                deliveries that this wave adds
        phase(3, "commit")
        phase(3, "deliver")
        expects(1200)
        phase(3, "settle")
        sent([Chunk(…)])            when the phase has ended, if it is wanted
        settled(1000, 198, 2)       whenever the numbers change: the first and the last are increments
        waits(60.0)                 before the run sleeps
        message("…")                at any time

    A method must not raise, and must return at once: the run waits for it. ``live`` and ``error`` are called from
    another thread while a phase runs; the others from one thread.

    Attributes:
        wants_live: whether ``live`` and ``error`` are called.
        wants_chunks: whether ``sent`` is called.
    """

    wants_live: bool
    wants_chunks: bool

    def phase(self, wave: int, name: str) -> None:
        """Report that wave number ``wave`` enters phase ``name``."""

    def planned(self, documents: int) -> None:
        """Report how many documents the next waves will read."""

    def expects(self, documents: int) -> None:
        """Report how many documents this phase will process."""

    def outcome(self, text: str) -> None:
        """Report the result of the phase, as text."""

    def live(self, documents: int) -> None:
        """Report how many documents of the phase are done."""

    def live_bytes(self, done: int, total: int) -> None:
        """Report how many bytes were read of the large files that are being listed; ``live`` follows."""

    def error(self, document: str, text: str, trace: str) -> None:
        """Report that a document failed. ``trace``: the traceback; "" if there is none."""

    def staged(self, documents: int) -> None:
        """Report how many deliveries the wave adds."""

    def sent(self, chunks: Sequence[Chunk]) -> None:
        """Report the calls of a destination in this phase; of a lane with very many, the first ones."""

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        """Report counts: newly delivered or deleted, pending now, newly failed or rejected."""

    def waits(self, seconds: float | None = None) -> None:
        """Report that the phase has ended and nothing is done for so many seconds. None: it is not known how long."""

    def message(self, text: str) -> None:
        """Report a line of text. One that begins with ``warning: `` or ``error: `` has that level in a log."""

    def finished(self, counts: Mapping[str, int]) -> None:
        """Report that the run has ended, with its exit code and counts as in ``run --json``."""

    def about(self, plan: str) -> None:
        """Set the plan of a flow that the next calls are about; "": all of them. Called between two phases."""

    def traced(self, trace: str, span: str) -> None:
        """Set the ids, hexadecimal, of the trace and the span that the next calls belong to; "": none."""


class Silent:
    """Ignores everything."""

    wants_live = False
    wants_chunks = False

    def phase(self, wave: int, name: str) -> None: ...
    def planned(self, documents: int) -> None: ...
    def expects(self, documents: int) -> None: ...
    def outcome(self, text: str) -> None: ...
    def live(self, documents: int) -> None: ...
    def live_bytes(self, done: int, total: int) -> None: ...
    def error(self, document: str, text: str, trace: str) -> None: ...
    def staged(self, documents: int) -> None: ...
    def sent(self, chunks: Sequence[Chunk]) -> None: ...
    def settled(self, delivered: int, pending: int, failed: int) -> None: ...
    def waits(self, seconds: float | None = None) -> None: ...
    def message(self, text: str) -> None: ...
    def finished(self, counts: Mapping[str, int]) -> None: ...
    def about(self, plan: str) -> None: ...
    def traced(self, trace: str, span: str) -> None: ...


class Forwarding:
    """Forwards every call to other observers; a base class for wrappers that act on some calls."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.wants_live = any(each.wants_live for each in observers)
        self.wants_chunks = any(each.wants_chunks for each in observers)

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

    def live_bytes(self, done: int, total: int) -> None:
        for each in self._observers:
            each.live_bytes(done, total)

    def error(self, document: str, text: str, trace: str) -> None:
        for each in self._observers:
            each.error(document, text, trace)

    def staged(self, documents: int) -> None:
        for each in self._observers:
            each.staged(documents)

    def sent(self, chunks: Sequence[Chunk]) -> None:
        for each in self._observers:
            each.sent(chunks)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        for each in self._observers:
            each.settled(delivered, pending, failed)

    def waits(self, seconds: float | None = None) -> None:
        for each in self._observers:
            each.waits(seconds)

    def message(self, text: str) -> None:
        for each in self._observers:
            each.message(text)

    def finished(self, counts: Mapping[str, int]) -> None:
        for each in self._observers:
            each.finished(counts)

    def about(self, plan: str) -> None:
        for each in self._observers:
            each.about(plan)

    def traced(self, trace: str, span: str) -> None:
        for each in self._observers:
            each.traced(trace, span)


_LONG_S: Final = 10.0
"""Seconds from which a scan without a result is worth a line."""

_PROGRESS_EVERY_S: Final = 30.0
"""Seconds between two progress reports of a long phase."""

_QUIET_S: Final = 3600.0
"""Seconds after which an endless run that has had nothing to report says so."""

WARNING: Final = "warning: "
"""Prefix of messages that an operator should see although the run goes on."""


class EndedPhase(NamedTuple):
    """A phase that has ended: its result as text, or "", and how many documents it counted."""

    wave: int
    name: str
    outcome: str
    documents: int
    took_s: float


class PhaseTracker:
    """Tracks the phases of a run; a base class for observers that report at the end of each phase.

    After a wait nothing is reported of phases and waves until one has a result: an endless run lists its sources, and
    tries what is pending, again and again.

    Attributes:
        wave: number of the current wave.
        name: name of the current phase; "" between two phases.
        plan: the plan of a flow that calls are about; "" if there is only one, or all are meant.
        trace, span: ids of the trace and span that calls belong to; "": none.
        reported_at: time of the clock of the last report.
    """

    wants_live = True
    wants_chunks = False

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.pace = Pace(clock)
        self.wave = 0
        self.name = self.plan = ""
        self.trace = self.span = ""
        self._outcome = ""
        self._began = self._progress_at = self.reported_at = clock()
        self._is_quiet = False
        """Whether no document has had a result since the last wait."""
        self._unreported: list[EndedPhase] = []
        """Phases since then."""
        self._pending: dict[str, int] = {}
        """Plan -> pending deliveries, as of its last settled wave."""

    def phase_ended(self, phase: EndedPhase) -> None:
        """Report a phase that has ended."""

    def wave_settled(self, delivered: int, pending: int, failed: int) -> None:
        """Report the counts of a settled wave, see ``Observer.settled``."""

    def report_progress(self) -> None:
        """Report on a phase that takes long. Called every ``_PROGRESS_EVERY_S`` seconds."""

    def report_quiet(self, pending: int, quiet_s: float, next_look: str) -> None:
        """Report that nothing has happened. Called every ``_QUIET_S`` seconds, before a wait.

        Args:
            pending: pending deliveries, of all plans.
            quiet_s: seconds since the last report.
            next_look: time of the end of the wait, ISO 8601.
        """

    @property
    def took_s(self) -> float:
        """Seconds that the current phase has taken so far."""
        return self.clock() - self._began

    def phase(self, wave: int, name: str) -> None:
        self.end_phase()
        self.wave, self.name = wave, name
        self._began = self._progress_at = self.clock()
        self.pace.phase(name)

    def planned(self, documents: int) -> None:
        self.pace.planned(documents)

    def expects(self, documents: int) -> None:
        self.pace.expects(documents)

    def outcome(self, text: str) -> None:
        self._outcome = text

    def live_bytes(self, done: int, total: int) -> None:
        self.pace.bytes_read = (done, total)

    def live(self, documents: int) -> None:
        self.pace.live(documents)
        if self.clock() - self._progress_at >= _PROGRESS_EVERY_S:
            self._progress_at = self.clock()
            self.report_progress()

    def staged(self, documents: int) -> None: ...

    def sent(self, chunks: Sequence[Chunk]) -> None: ...

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self.end_phase()
        if delivered or failed or pending != self._pending.get(self.plan):
            self._report_unreported()
        self._pending[self.plan] = pending
        if not self._is_quiet:
            self.wave_settled(delivered, pending, failed)

    def waits(self, seconds: float | None = None) -> None:
        self.end_phase()
        if seconds is None:
            return
        self._is_quiet = True
        self._unreported.clear()
        quiet_s = self.clock() - self.reported_at
        if quiet_s >= _QUIET_S:
            self.reported_at = self.clock()
            until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
            self.report_quiet(sum(self._pending.values()), quiet_s, until.isoformat(timespec="seconds"))

    def finished(self, counts: Mapping[str, int]) -> None:
        self.end_phase()

    def about(self, plan: str) -> None:
        if plan != self.plan:
            self.end_phase()
        self.plan = plan

    def traced(self, trace: str, span: str) -> None:
        self.trace, self.span = trace, span

    def with_plan(self, text: str) -> str:
        """Put the name of the current plan before a line."""
        return f"{self.plan}: {text}" if self.plan else text

    def end_phase(self) -> None:
        """Report on the current phase, if there is one."""
        if self.name:
            ended = EndedPhase(self.wave, self.name, self._outcome, self.pace.done, self.took_s)
            self._unreported.append(ended)
            if ended.outcome or not self._is_quiet:
                self._report_unreported()
        self.name = self._outcome = ""

    def _report_unreported(self) -> None:
        self._is_quiet = False
        for ended in self._unreported:
            self.phase_ended(ended)
        self._unreported.clear()


class LineProgress(PhaseTracker):
    """Prints a line for each phase with its result and duration, for each settled wave and for each message; while a
    phase takes long, one every ``_PROGRESS_EVERY_S`` seconds; while nothing happens, one every ``_QUIET_S`` seconds.
    For pipes and log files.

    Args:
        verbose: also print when a phase begins, and the tracebacks of errors.
    """

    def __init__(self, stream: Writable, verbose: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.stream = stream
        self.verbose = verbose

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if self.verbose:
            self.message(f"wave {wave}: {name}")

    def phase_ended(self, phase: EndedPhase) -> None:
        """Print the phase, unless it is a short scan that found nothing."""
        outcome = phase.outcome
        if not outcome and phase.name == "deliver" and phase.documents:
            outcome = f"{plural(phase.documents, 'delivery', 'deliveries')} sent"
        if outcome or phase.name != "scan" or phase.took_s >= _LONG_S:
            took = duration(phase.took_s)
            self.message(f"wave {phase.wave}: {phase.name}: {outcome}{', ' if outcome else ''}{took}")

    def report_progress(self) -> None:
        self.message(f"wave {self.wave}: {self.name}: {self.pace.describe()}")

    def report_quiet(self, pending: int, quiet_s: float, next_look: str) -> None:
        self.message(describe_quiet(pending, quiet_s, next_look))

    def error(self, document: str, text: str, trace: str) -> None:
        self.message(f"{document}: {text}")
        for line in trace.splitlines() if self.verbose else ():
            self.message(line)

    def staged(self, documents: int) -> None:
        if self.verbose:
            self.message(f"wave {self.wave}: {plural(documents, 'delivery', 'deliveries')} to send")

    def wave_settled(self, delivered: int, pending: int, failed: int) -> None:
        self.message(f"wave {self.wave}: {_figures(delivered, pending, failed)}")

    def message(self, text: str) -> None:
        self.write(self.with_plan(single_stops(text)))

    def write(self, text: str) -> None:
        """Write a line without the plan's name."""
        self.reported_at = self.clock()
        self.stream.write(one_line(text) + "\n")
        self.stream.flush()


def describe_quiet(pending: int, quiet_s: float, next_look: str) -> str:
    """Format ``nothing has happened for 1 h 0 min, 3 deliveries are pending; the next look is at … UTC``."""
    rest = f", {plural(pending, 'delivery is', 'deliveries are')} pending" if pending else ""
    at = next_look.replace("T", " ").removesuffix("+00:00")
    return f"nothing has happened for {duration(quiet_s)}{rest}; the next look is at {at} UTC"


def _figures(delivered: int, pending: int, failed: int) -> str:
    numbers = [format_count(number) for number in (delivered, pending, failed)]
    return "deliveries: {} delivered, {} pending, {} failed or rejected".format(*numbers)


class Bar(PhaseTracker):
    """Draws a progress bar with wave, phase, progress, time left, documents/s, pending and failed. Messages are printed
    above it in full.

    Args:
        verbose: also print the tracebacks of errors.
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
                description=self.with_plan(f"wave {self.wave}: {self.name}: {self.pace.describe()}"),
                completed=documents,
                total=self.pace.expected or None,
            )

    def error(self, document: str, text: str, trace: str) -> None:
        self.message(f"{document}: {text}")
        for line in trace.splitlines() if self.verbose else ():
            self.message(line)

    def staged(self, documents: int) -> None:
        if self.began is None:
            self.began = self.clock()
        self.total += documents
        self._update()

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self.delivered += delivered
        self.pending = pending
        self.failed += failed
        self._update()

    def waits(self, seconds: float | None = None) -> None:
        super().waits(seconds)
        if seconds is not None:
            until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
            self.progress.update(self.task, description=f"waiting until {until:%H:%M:%S} UTC")

    def message(self, text: str) -> None:
        text = single_stops(one_line(self.with_plan(text)))
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _update(self) -> None:
        done = self.delivered + self.failed
        figures = _figures(self.delivered, self.pending, self.failed)
        seconds = self.clock() - self.began if self.began is not None else 0.0
        if seconds > 0:
            figures += f", {format_count(round(self.delivered / seconds))}/s"
        self.progress.update(self.task, completed=done, total=max(self.total, done) or None, figures=figures)


# --- log records of a run, printed above the progress bar ---

NOISY = ("py4j", "pyspark")
"""Loggers whose messages do not concern the user's documents."""


class ObserverHandler(logging.Handler):
    """Passes log records to an observer as messages."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.observer.message(self.format(record))
        except Exception:
            self.handleError(record)


class OneLineFormatter(logging.Formatter):
    """Formats a record as ``warning: text``, with the exception but without its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {type(error).__name__}: {error}"
        return text


@contextlib.contextmanager
def logging_to(observer: Observer, verbose: bool = False) -> Iterator[None]:
    """Send warnings (if ``verbose``, all records) of the ``ferryman`` loggers to this observer inside the block."""
    logger = logging.getLogger("ferryman")
    handler = ObserverHandler(observer)
    handler.setFormatter(OneLineFormatter())
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    logger.propagate = False
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextlib.contextmanager
def _jvm_output_to(observer: Observer) -> Iterator[None]:
    """Send what Spark's JVM writes to this observer inside the block, and to no other."""
    logger = logging.getLogger("ferryman.spark")
    handler = ObserverHandler(observer)
    handler.setFormatter(OneLineFormatter())
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


# --- log files: JSON lines, or lines with times ---

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


class JsonLog(PhaseTracker):
    """JSON objects, one a line: ``time``, ``event``, and by event

    - ``phase``: ``wave``, ``phase``, ``outcome`` (words), ``documents`` (those that are through, where it counts them),
      ``seconds``; when it has ended
    - ``progress``: the same, now and then while a phase takes long; ``expected`` documents, ``left_s`` if it is known
    - ``quiet``: ``pending``, ``seconds`` since the last line, ``next``: when it looks next; once an hour while nothing
      happens
    - ``settled``: ``wave``, ``delivered``, ``pending``, ``failed``
    - ``error``: ``document``, ``reason``, ``traceback``; of the first documents of a run
    - ``message``: ``level``, ``text``
    - ``finished``: ``level`` ("error" if something is still pending), and the counts of ``run --json``

    In the run of a flow also ``plan``, where it is about one. In a run with spans also ``trace_id`` and ``span_id``.
    """

    def __init__(self, stream: Writable, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream

    def phase_ended(self, phase: EndedPhase) -> None:
        self._write("phase", **_progress(phase), outcome=phase.outcome)

    def report_progress(self) -> None:
        now = EndedPhase(self.wave, self.name, "", self.pace.done, self.took_s)
        self._write("progress", **_progress(now), expected=self.pace.expected, left_s=self.pace.left_s())

    def report_quiet(self, pending: int, quiet_s: float, next_look: str) -> None:
        self._write("quiet", pending=pending, seconds=round(quiet_s), next=next_look)

    def error(self, document: str, text: str, trace: str) -> None:
        self._write("error", document=document, reason=text, traceback=trace)

    def wave_settled(self, delivered: int, pending: int, failed: int) -> None:
        self._write("settled", wave=self.wave, delivered=delivered, pending=pending, failed=failed)

    def message(self, text: str) -> None:
        level, colon, rest = text.partition(": ")
        known = bool(colon) and level in _LEVELS
        self._write("message", level=level if known else "info", text=single_stops(rest if known else text))

    def finished(self, counts: Mapping[str, int]) -> None:
        super().finished(counts)
        level = "error" if counts["exit"] in (1, 4) else "info"
        self._write("finished", level=level, **counts)

    def _write(self, event: str, **values: Any) -> None:
        self.reported_at = self.clock()
        plan = {"plan": self.plan} if self.plan else {}
        trace = {"trace_id": self.trace, "span_id": self.span} if self.trace else {}
        self._stream.write(json.dumps({"time": _now(), "event": event, **plan, **trace, **values}) + "\n")
        self._stream.flush()


def _progress(phase: EndedPhase) -> dict[str, Any]:
    seconds = round(phase.took_s, 3)
    return {"wave": phase.wave, "phase": phase.name, "documents": phase.documents, "seconds": seconds}


class LogLines(LineProgress):
    """Writes the lines of ``LineProgress``, each with its time, and in a run with spans with the trace's id."""

    def write(self, text: str) -> None:
        trace = f"trace_id={self.trace} " if self.trace else ""
        super().write(f"{_now()} {trace}{text}")

    def finished(self, counts: Mapping[str, int]) -> None:
        super().finished(counts)
        self.message("finished: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


@contextlib.contextmanager
def open_log(path: Path) -> Iterator[TextIO]:
    """Open the file for appending. What cannot be flushed when it is closed is dropped.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        file = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed below
    except OSError as e:
        raise UsageError(f"--log-file {path}: {e.strerror}. Give a file that can be written.") from None
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.close()


# --- progress, speed, and time left ---

_ESTIMATE_AFTER_S: Final = 5.0
"""Seconds of work before the time left is estimated from the speed."""


class Pace:
    """Counts documents of the phase, and of all waves that a listing was split into.

    The time left is estimated from the time that earlier waves took for all their phases.

    Attributes:
        done: documents of the phase that are done.
        expected: documents that the phase has; 0: unknown.
        bytes_read: bytes that were read of the large files that are being listed, and their size.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.done = self.expected = 0
        self.bytes_read = (0, 0)
        self._name = ""
        self._began = clock()
        self._planned = 0
        self._read_before = 0
        """Documents that earlier waves of the listing have read."""
        self._first_began: float | None = None
        """Time at which the first wave of the listing began to read."""

    def planned(self, documents: int) -> None:
        """Note that a listing was split into waves that read so many documents."""
        self._planned, self._read_before, self._first_began = documents, 0, None

    def phase(self, name: str) -> None:
        """Note that another phase begins."""
        if self._name == "transform":
            self._read_before += self.expected
        self._name, self._began = name, self._clock()
        self.done, self.expected, self.bytes_read = 0, 0, (0, 0)
        if name == "transform" and self._first_began is None:
            self._first_began = self._began

    def expects(self, documents: int) -> None:
        """Note how many documents this phase has."""
        self.expected = documents

    def live(self, done: int) -> None:
        """Note how many documents of the phase are done."""
        self.done = done

    def left_s(self) -> float | None:
        """Estimate the seconds left; None if there is too little to estimate from."""
        now = self._clock()
        read = self._read_before + (self.done if self._name == "transform" else 0)
        if self._first_began is not None and now - self._first_began >= _ESTIMATE_AFTER_S and 0 < read < self._planned:
            return (now - self._first_began) / read * (self._planned - read)
        for done, total in ((self.done, self.expected), self.bytes_read):
            if now - self._began >= _ESTIMATE_AFTER_S and 0 < done < total:
                return (now - self._began) / done * (total - done)
        return None

    def describe(self) -> str:
        """Format the progress: ``1 200 of 5 312, 40/s, about 2 min left``."""
        took_s = self._clock() - self._began
        if not self.done:
            return f"for {duration(took_s)} now"
        total = f" of {format_count(self.expected)}" if self.expected >= self.done else ""
        rate = f", {format_count(round(self.done / took_s))}/s" if took_s > 0 else ""
        left_s = self.left_s()
        read, size = self.bytes_read
        share = f", {100 * read // size} % of {format_size(size)} read" if size else ""
        return f"{format_count(self.done)}{total}{rate}{share}" + (
            f", about {duration(left_s)} left" if left_s is not None else ""
        )


def duration(seconds: float) -> str:
    """Format a duration: ``0.4 s``, ``12 s``, ``3 min``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# --- streams that may fail: a run does not end because its progress cannot be written ---


class Writable(Protocol):
    """The methods of a text file that observers use."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class BestEffortStream:
    """A stream that is given up at its first error, such as a full disk or a closed pipe.

    Args:
        on_error: called once with that error.
    """

    def __init__(self, stream: Writable, on_error: Callable[[OSError], None] = lambda error: None) -> None:
        self._stream: Writable | None = stream
        self._on_error = on_error

    def write(self, text: str, /) -> None:
        if self._stream is not None:
            self._try(lambda stream: stream.write(text))

    def flush(self) -> None:
        if self._stream is not None:
            self._try(lambda stream: stream.flush())

    def _try(self, action: Callable[[Writable], object]) -> None:
        assert self._stream is not None
        try:
            action(self._stream)
        except OSError as e:
            self._stream = None
            self._on_error(e)


# --- choosing the observer ---


def default_observer() -> Observer:
    """Return what ``ferryman.run`` shows its progress with unless it is given an observer: lines on stderr in a
    notebook, which shows them below the cell; nothing elsewhere."""
    return LineProgress(BestEffortStream(sys.stderr)) if _in_notebook() else Silent()


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextlib.contextmanager
def progress_observer(
    stream: TextIO, verbose: bool = False, log_file: Path | None = None, log_format: str = "text"
) -> Iterator[Observer]:
    """Open the observer that suits the stream, for the duration of a run.

    Args:
        log_file: file that progress is appended to as well, in ``log_format``; without it that is the stream's format.

    Raises:
        UsageError: the log file cannot be written.
    """
    if log_file is None:
        with _stream_observer(stream, verbose, log_format) as observer:
            yield observer
        return
    with open_log(log_file) as opened, _stream_observer(stream, verbose, "text") as observer:
        file = BestEffortStream(opened, lambda e: observer.message(f"warning: {_given_up(log_file, e)}"))
        log: Observer = JsonLog(file) if log_format == "json" else LogLines(file, verbose)
        try:
            with contextlib.nullcontext() if verbose else _jvm_output_to(log):  # -v shows it anyway
                yield Forwarding(observer, log)
        except BaseException as e:
            log.message(f"error: {type(e).__name__}: {e}")
            raise


def _given_up(log_file: Path, error: OSError) -> str:
    return f"--log-file {log_file}: {error.strerror}: nothing more is written to it. The run goes on."


@contextlib.contextmanager
def _stream_observer(stream: TextIO, verbose: bool, log_format: str) -> Iterator[Observer]:
    if log_format == "json":
        yield JsonLog(BestEffortStream(stream))
        return
    if not stream.isatty():
        yield LineProgress(BestEffortStream(stream), verbose)
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
        yield Bar(progress, verbose=verbose)
