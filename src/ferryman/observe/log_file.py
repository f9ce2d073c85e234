"""What a run tells, for log files and for the programs that collect them: JSON lines, lines with times."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from ferryman.errors import UsageError
from ferryman.observe.progress import Following, LineProgress
from ferryman.observe.stream import Writable

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
