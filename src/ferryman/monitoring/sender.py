"""Sends items in a thread of its own, so that whoever has them never waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from ferryman.breaker import backoff_s
from ferryman.errors import plain_text

T = TypeVar("T")

_BATCH: Final = 512
"""Items that are sent together."""


class BackgroundSender(Generic[T]):
    """Sends items in order, from a queue of limited length. If it is full, the newest are dropped.

    After an error the same items are sent again, after 1 s, 4 s, 16 s … up to an hour, and once more at the end.

    Args:
        name: in messages, what the items are sent to: ``lineage http://…``.
        send: sends some items, in the sender's thread.
        report: takes a line of text, in any thread: an error is reported once, and again after a success.
        size: items that may wait.
        linger_s: seconds for which the first item waits for others.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[T]], None],
        report: Callable[[str], None],
        *,
        size: int,
        linger_s: float = 0.0,
    ) -> None:
        self._name = name
        self._send = send
        self._report = report
        self._size = size
        self._linger_s = linger_s
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_ending = False
        self._is_reported = self._is_full_reported = False
        self._thread: threading.Thread | None = None

    def put(self, item: T) -> None:
        """Queue an item; returns at once."""
        with self._changed:
            is_full = len(self._items) >= self._size
            if not is_full:
                self._items.append(item)
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ferryman-sender", daemon=True)
                self._thread.start()
        if is_full and not self._is_full_reported:
            self._is_full_reported = True
            self._report(f"{self._name}: {self._size} items wait to be sent; newer ones are dropped. The run goes on.")

    def end(self, deadline: float) -> None:
        """Send what waits, and end the thread; give up at this monotonic time."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if (left := len(self._items)) and not self._is_reported:
            self._report(f"{self._name}: no answer in time; {left} items were not sent.")

    def _work(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._items and not self._is_ending:
                    self._changed.wait()
                if not self._items:
                    return
                if self._linger_s and not self._is_ending:
                    self._changed.wait_for(lambda: self._is_ending or len(self._items) >= _BATCH, self._linger_s)
                is_last_try = self._is_ending
                batch = [self._items[at] for at in range(min(_BATCH, len(self._items)))]
            try:
                self._send(batch)
            except Exception as e:
                failures += 1
                self._report_once(plain_text(e) or type(e).__name__)
                if is_last_try:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._is_ending, backoff_s(failures))
                continue
            failures, self._is_reported = 0, False
            with self._changed:
                for _ in batch:
                    self._items.popleft()

    def _report_once(self, why: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._report(f"{self._name}: {why}. The run continues without it.")
