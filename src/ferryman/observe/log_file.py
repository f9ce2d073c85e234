"""What a run tells, for log files and for the programs that collect them: JSON lines, lines with times, two at once."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from ferryman.errors import UsageError
from ferryman.observe.pace import Pace
from ferryman.observe.progress import LineProgress, Observer

FORMATS: Final = ("text", "json")

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_STILL_EVERY_S: Final = 30.0


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


class JsonLog:
    """An object a line: ``time``, ``event``, and by event

    - ``phase``: ``wave``, ``phase``, ``outcome`` (words), ``documents`` (those that are through, where it counts them),
      ``seconds``; when it has ended
    - ``progress``: the same, now and then while a phase takes long; ``expected`` documents, ``left_s`` if it is known
    - ``settled``: ``wave``, ``delivered``, ``pending``, ``failed``
    - ``error``: ``document``, ``reason``, ``traceback``; of the first documents of a run
    - ``message``: ``level``, ``text``
    - ``finished``: the counts of ``run --json``
    """

    follows = True

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._pace = Pace(clock)
        self._wave = 0
        self._phase = self._outcome = ""
        self._began = self._said = clock()

    def phase(self, wave: int, name: str) -> None:
        self._end_phase()
        self._wave, self._phase = wave, name
        self._began = self._said = self._clock()
        self._pace.phase(name)

    def planned(self, documents: int) -> None:
        self._pace.planned(documents)

    def expects(self, documents: int) -> None:
        self._pace.expects(documents)

    def outcome(self, text: str) -> None:
        self._outcome = text

    def live(self, documents: int) -> None:
        self._pace.live(documents)
        if self._clock() - self._said >= _STILL_EVERY_S:
            self._said = self._clock()
            self._write("progress", **self._how_far(), expected=self._pace.expected, left_s=self._pace.left_s())

    def error(self, document: str, text: str, trace: str) -> None:
        self._write("error", document=document, reason=text, traceback=trace)

    def taken_up(self, documents: int) -> None: ...

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self._end_phase()
        self._write("settled", wave=self._wave, delivered=delivered, pending=pending, failed=failed)

    def message(self, text: str) -> None:
        level, colon, rest = text.partition(": ")
        known = bool(colon) and level in _LEVELS
        self._write("message", level=level if known else "info", text=rest if known else text)

    def finished(self, counts: Mapping[str, int]) -> None:
        self._end_phase()
        self._write("finished", **counts)

    def _end_phase(self) -> None:
        if self._phase:
            self._write("phase", **self._how_far(), outcome=self._outcome)
        self._phase = self._outcome = ""

    def _how_far(self) -> dict[str, Any]:
        seconds = round(self._clock() - self._began, 3)
        return {"wave": self._wave, "phase": self._phase, "documents": self._pace.done, "seconds": seconds}

    def _write(self, event: str, **values: Any) -> None:
        self._stream.write(json.dumps({"time": _now(), "event": event, **values}) + "\n")
        self._stream.flush()


class LogLines(LineProgress):
    """Lines as in a pipe, each with its time."""

    def message(self, text: str) -> None:
        super().message(f"{_now()} {text}")

    def finished(self, counts: Mapping[str, int]) -> None:
        super().finished(counts)
        self.message("finished: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


class Both:
    """Tells two observers the same."""

    def __init__(self, one: Observer, other: Observer) -> None:
        self._observers = (one, other)
        self.follows = one.follows or other.follows

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


def open_log(path: Path) -> TextIO:
    """The file, to be appended to.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        return open(path, "a", encoding="utf-8", errors="backslashreplace")
    except OSError as e:
        raise UsageError(f"--log-file {path}: {e.strerror}. Give a file that can be written.") from None
