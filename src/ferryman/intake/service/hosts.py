"""Slow hosts: jobs that need one wait in a few separate threads, so that other jobs are not delayed.

Whether a host is slow is found out by the first job that connects to it, within a bounded time. This process then
remembers the host for a while, and hands over other jobs that need it without sending a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ferryman.breaker import BreakerEvent, Breakers
from ferryman.intake.service.errors import SlowHost
from ferryman.limits import KIB
from ferryman.net.urls import split

PROMPT_S: Final = 5.0
"""Seconds of silence, or until the headers are complete, after which a host counts as slow; from then on its rate is
checked."""

PROMPT_RATE: Final = 32.0 * KIB
"""Bytes per second below which content counts as slow: a job of a megabyte would take half a minute."""

SLOW_FOR_S: Final = 600.0
"""Seconds for which a host counts as slow; after that it is tried like any other."""

SLOW_HOST_THREADS: Final = 2
"""Threads for slow hosts per state, in addition to the others."""


class SlowHosts:
    """Hosts that this process has found to be slow."""

    def __init__(
        self, prompt_s: float = PROMPT_S, rate: float = PROMPT_RATE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.prompt_s, self.rate = prompt_s, rate
        self._slow = Breakers(clock)

    def raise_if_slow(self, url: str) -> None:
        """Raise ``SlowHost`` if the URL's host is slow."""
        if self._slow.blocking(host := _host_of(url)) is not None:
            raise SlowHost(host)

    def mark_slow(self, url: str) -> SlowHost:
        """Record that the URL's host is slow. Returns the error to raise."""
        host = _host_of(url)
        self._slow.fail(host, BreakerEvent.UNAVAILABLE, "slow", SLOW_FOR_S)
        return SlowHost(host)


def _host_of(url: str) -> str:
    """Return host and port of a URL."""
    return split(url)[1].netloc.rpartition("@")[2]
