"""Waiting for what is to come about, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LATE_S: Final = 600.0
"""A machine that is busy with other tests may take so long."""


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Until it is true; fails after ``LATE_S``."""
    give_up = time.monotonic() + LATE_S
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.02)
