"""A time of day that tests move ahead."""

from __future__ import annotations

import pytest

from ferryman.records import rows


class Clock:
    """The time of day as the driver sees it.

    Attributes:
        ahead_s: how far it is ahead of the real one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        real = rows.now_us
        for module in ("run", "pending_work", "logs", "scan.phase", "transform.phase"):
            monkeypatch.setattr(f"ferryman.engine.{module}.now_us", lambda: real() + int(self.ahead_s * 1e6))

    def sleep(self, seconds: float) -> None:
        """Move it ahead, in place of ``time.sleep``."""
        self.ahead_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
