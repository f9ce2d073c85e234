"""Where reports are written to. A run does not end because nobody can read what it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


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
