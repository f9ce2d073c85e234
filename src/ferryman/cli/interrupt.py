"""Ctrl-C, SIGTERM and the end of a terminal (SIGHUP), also while Spark is being waited for."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

from ferryman.cli import terminal
from ferryman.observe import Forwarding, Observer

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
            terminal.note(text)

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
