"""Progress of a run: a bar on a terminal, one line a message in a pipe. Always to stderr; results own stdout."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from ferryman.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Forwarding", "Observer", "Silent", "one_line", "watching"]


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


# Log lines of a run: to stderr, one line each, past the progress bar and not through it.

NOISY = ("py4j", "pyspark")
"""Loggers whose messages tell users nothing about their documents."""


class ToObserver(logging.Handler):
    """Log records as messages of the observer."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.observer.message(self.format(record))
        except Exception:
            self.handleError(record)


class OneLine(logging.Formatter):
    """``warning: text``; of a traceback only what was raised."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {type(error).__name__}: {error}"
        return text


@contextlib.contextmanager
def logging_to(observer: Observer, verbose: bool = False) -> Iterator[None]:
    """Warnings (with ``verbose`` information too) of the ``ferryman`` loggers to this observer, meanwhile."""
    logger = logging.getLogger("ferryman")
    handler = ToObserver(observer)
    handler.setFormatter(OneLine())
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


# What a run tells, for log files and for the programs that collect them: JSON lines, lines with times.

FORMATS: Final = ("text", "json")

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


class JsonLog(Following):
    """An object a line: ``time``, ``event``, and by event

    - ``phase``: ``wave``, ``phase``, ``outcome`` (words), ``documents`` (those that are through, where it counts them),
      ``seconds``; when it has ended
    - ``progress``: the same, now and then while a phase takes long; ``expected`` documents, ``left_s`` if it is known
    - ``settled``: ``wave``, ``delivered``, ``pending``, ``failed``
    - ``error``: ``document``, ``reason``, ``traceback``; of the first documents of a run
    - ``message``: ``level``, ``text``
    - ``finished``: the counts of ``run --json``

    In the run of a flow also ``plan``, where it is about one.
    """

    def __init__(self, stream: Writable, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream

    def phase_ended(self, name: str, outcome: str, took_s: float) -> None:
        self._write("phase", **self._how_far(), outcome=outcome)

    def goes_on(self) -> None:
        self._write("progress", **self._how_far(), expected=self.pace.expected, left_s=self.pace.left_s())

    def error(self, document: str, text: str, trace: str) -> None:
        self._write("error", document=document, reason=text, traceback=trace)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        super().settled(delivered, pending, failed)
        self._write("settled", wave=self.wave, delivered=delivered, pending=pending, failed=failed)

    def message(self, text: str) -> None:
        level, colon, rest = text.partition(": ")
        known = bool(colon) and level in _LEVELS
        self._write("message", level=level if known else "info", text=rest if known else text)

    def finished(self, counts: Mapping[str, int]) -> None:
        super().finished(counts)
        self._write("finished", **counts)

    def _how_far(self) -> dict[str, Any]:
        seconds = round(self.took_s, 3)
        return {"wave": self.wave, "phase": self.name, "documents": self.pace.done, "seconds": seconds}

    def _write(self, event: str, **values: Any) -> None:
        about = {"plan": self.plan} if self.plan else {}
        self._stream.write(json.dumps({"time": _now(), "event": event, **about, **values}) + "\n")
        self._stream.flush()


class LogLines(LineProgress):
    """Lines as in a pipe, each with its time."""

    def write(self, text: str) -> None:
        super().write(f"{_now()} {text}")

    def finished(self, counts: Mapping[str, int]) -> None:
        super().finished(counts)
        self.message("finished: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


@contextlib.contextmanager
def open_log(path: Path) -> Iterator[TextIO]:
    """The file, to be appended to. What cannot be written any more when it is closed is dropped.

    Raises:
        UsageError: it cannot be written.
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


# How far a phase is, how fast, and how long the rest takes.

_SOON_S: Final = 5.0
"""Before a run has worked so long, nobody knows how fast it is."""


class Pace:
    """Counts documents of the phase, and of all waves that a listing was split into.

    What is left is estimated from the whole way that documents took so far: all phases of the waves before.

    Attributes:
        done: documents of the phase that are through.
        expected: documents that the phase has; 0: nobody knows.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.done = self.expected = 0
        self._name = ""
        self._began = clock()
        self._planned = 0
        self._before = 0
        """Documents that the waves before have read."""
        self._first: float | None = None
        """When the first of them was begun."""

    def planned(self, documents: int) -> None:
        """A listing was split into waves that read so many documents."""
        self._planned, self._before, self._first = documents, 0, None

    def phase(self, name: str) -> None:
        """Another phase begins."""
        if self._name == "transform":
            self._before += self.expected
        self._name, self._began = name, self._clock()
        self.done = self.expected = 0
        if name == "transform" and self._first is None:
            self._first = self._began

    def expects(self, documents: int) -> None:
        """So many are before this phase."""
        self.expected = documents

    def live(self, done: int) -> None:
        """So many of them are through."""
        self.done = done

    def left_s(self) -> float | None:
        """Seconds that the rest takes, as far as that can be known."""
        now = self._clock()
        read = self._before + (self.done if self._name == "transform" else 0)
        if self._first is not None and now - self._first >= _SOON_S and 0 < read < self._planned:
            return (now - self._first) / read * (self._planned - read)
        if now - self._began >= _SOON_S and 0 < self.done < self.expected:
            return (now - self._began) / self.done * (self.expected - self.done)
        return None

    def told(self, counted: Callable[[int], str]) -> str:
        """``1 200 of 5 312, 40/s, about 2 min left``."""
        took_s = self._clock() - self._began
        if not self.done:
            return f"for {duration(took_s)} now"
        of = f" of {counted(self.expected)}" if self.expected >= self.done else ""
        rate = f", {counted(round(self.done / took_s))}/s" if took_s > 0 else ""
        left_s = self.left_s()
        return f"{counted(self.done)}{of}{rate}" + (f", about {duration(left_s)} left" if left_s is not None else "")


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# Where reports are written to. A run does not end because nobody can read what it reports.


class Writable(Protocol):
    """What of a text file a report needs."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class Expendable:
    """A stream that is given up at its first error: its disk is full, or whoever read it has gone.

    Args:
        lost: told of the error.
    """

    def __init__(self, stream: Writable, lost: Callable[[OSError], None] = lambda error: None) -> None:
        self._stream: Writable | None = stream
        self._lost = lost

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
            self._lost(e)


# Which observer suits whom a run tells: a terminal, a pipe, a log file, a program.


@contextlib.contextmanager
def watching(
    stream: TextIO, verbose: bool = False, log_file: Path | None = None, log_format: str = "text"
) -> Iterator[Observer]:
    """The observer that suits the stream, for as long as the run takes.

    Args:
        log_file: what is reported is appended to this file, too, in ``log_format``; else that is the stream's.

    Raises:
        UsageError: the log file cannot be written.
    """
    if log_file is None:
        with _on(stream, verbose, log_format) as observer:
            yield observer
        return
    with open_log(log_file) as opened, _on(stream, verbose, "text") as observer:
        file = Expendable(opened, lambda e: observer.message(f"warning: {_given_up(log_file, e)}"))
        log: Observer = JsonLog(file) if log_format == "json" else LogLines(file, verbose)
        try:
            yield Forwarding(observer, log)
        except BaseException as e:
            log.message(f"error: {type(e).__name__}: {e}")
            raise


def _given_up(log_file: Path, error: OSError) -> str:
    return f"--log-file {log_file}: {error.strerror}: nothing more is written to it. The run goes on."


@contextlib.contextmanager
def _on(stream: TextIO, verbose: bool, log_format: str) -> Iterator[Observer]:
    if log_format == "json":
        yield JsonLog(Expendable(stream))
        return
    if not stream.isatty():
        yield LineProgress(Expendable(stream), verbose)
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
