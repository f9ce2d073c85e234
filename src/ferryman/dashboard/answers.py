"""Answers that are kept until the state has changed.

A question about ten million deliveries takes longer than a page may. So a page gets the last answer at once, marked as
of then, while the question is asked again in the background. Only the first one is waited for.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")

_AT_ONCE: Final = 2
"""Questions that are worked on at once: each needs ``limits.QUERY_MEMORY``."""
KEPT: Final = 2_000
"""Answers that are kept; the one that was least recently used goes first."""
_QUICK: Final = 1
"""Quick questions that are worked on at once: none of them waits for one that takes long."""
_FIRST_S: Final = 2.0
"""Seconds that a page waits for the first answer."""
_AGAIN_S: Final = 0.25
"""Seconds that a page waits for a newer answer than the one it can show."""


class StillCounting(Exception):
    """A first answer takes longer than a page waits: the page says so, and asks again."""


class KnownAnswer(NamedTuple, Generic[T]):
    """An answer.

    Attributes:
        as_of: seconds since 1970 of an answer that is older than the state; None: it is current.
    """

    value: T
    as_of: float | None


class _Stored(NamedTuple):
    version: Hashable
    value: Any
    at: float


class Answers:
    """Keeps answers by their questions, and works on new ones in the background.

    Attributes:
        first_s, again_s: seconds that are waited for a first answer; and for a newer one than the one there is.
    """

    def __init__(self, first_s: float = _FIRST_S, again_s: float = _AGAIN_S) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="answers")
        self._quick_pool = ThreadPoolExecutor(_QUICK, thread_name_prefix="quick-answers")
        self._lock = threading.Lock()
        self._stored: OrderedDict[Hashable, _Stored] = OrderedDict()
        self._running: dict[Hashable, Future[_Stored]] = {}
        self.first_s, self.again_s = first_s, again_s

    def ask(
        self,
        question: Hashable,
        version: Hashable,
        find: Callable[[], T],
        waited_s: float = 0.0,
        *,
        is_quick: bool = False,
    ) -> KnownAnswer[T]:
        """Return the answer to a question.

        Args:
            version: of what it is about; an answer of the same version is current.
            find: finds the answer.
            waited_s: seconds that the page has waited for other answers.
            is_quick: whether it takes moments; it is not to wait for questions that take long.

        Raises:
            StillCounting: there is no answer yet.
        """
        stored, future = self._begin(question, version, find, self._quick_pool if is_quick else self._pool)
        if future is None:
            assert stored is not None, "an answer is there, or on its way"
            return KnownAnswer(cast(T, stored.value), None)
        try:
            longest_s = self.first_s if stored is None else self.again_s
            found = future.result(max(0.0, longest_s - waited_s))
        except TimeoutError:
            if not future.done():
                if stored is None:
                    raise StillCounting from None
                return KnownAnswer(cast(T, stored.value), stored.at)
            raise
        return KnownAnswer(cast(T, found.value), None if found.version == version else found.at)

    def begin(self, question: Hashable, version: Hashable, find: Callable[[], Any]) -> None:
        """Begin to work on a question that is about to be asked, beside others."""
        self._begin(question, version, find, self._pool)

    def _begin(
        self, question: Hashable, version: Hashable, find: Callable[[], Any], pool: ThreadPoolExecutor
    ) -> tuple[_Stored | None, Future[_Stored] | None]:
        """Return the last answer, and the one that is on its way; None: there is none."""
        with self._lock:
            stored = self._stored.get(question)
            if stored is not None:
                self._stored.move_to_end(question)
                if stored.version == version:
                    return stored, None
            if (future := self._running.get(question)) is None:
                future = self._running[question] = pool.submit(self._find, question, version, find)
            return stored, future

    def _find(self, question: Hashable, version: Hashable, find: Callable[[], Any]) -> _Stored:
        try:
            found = _Stored(version, find(), time.time())
            with self._lock:
                self._stored[question] = found
                while len(self._stored) > KEPT:
                    self._stored.popitem(last=False)
            return found
        finally:
            with self._lock:
                self._running.pop(question, None)

    def close(self) -> None:
        """Wait for no question any more."""
        for pool in (self._pool, self._quick_pool):
            pool.shutdown(wait=False, cancel_futures=True)
