"""Settings of a run: what its caller chooses, and its clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from ferryman import limits
from ferryman.plan import NotifyTarget

Allowed = bool | Collection[str]
"""Deletes beyond ``max_deleted`` that an operator allows: True for all, or those in these first-level folders."""


class SparkSettings(NamedTuple):
    """Choice of the Spark that a run works on."""

    session: Any = None
    """Session to use; None: the program's own, or else a new one with ``master`` and ``conf``."""
    master: str = "local[*]"
    conf: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, session: Any, master: str, conf: Mapping[str, str] | None) -> Self:
        """Return the settings that arguments of the public functions mean."""
        return cls(session, master, conf or {})


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Options of a run, and limits of its waves.

    Attributes:
        wait: seconds to wait for pending work to come due; None: as long as the next is due within ``limits.WAIT_S``.
        notify: targets to notify besides the plan's.
        max_pending: bytes of pending rows above which no more documents are read; None: ``limits.MAX_PENDING_BYTES``.
        reset: keyed nodes whose states are emptied first.
        verify_sample: documents of each target that an endless run verifies now and then.
        wave_bytes: size of a wave's documents.
        pace_s: seconds that a chunk should take a destination.
    """

    wait: float | None = None
    allow_deletes: Allowed = False
    notify: Sequence[NotifyTarget] = ()
    max_pending: int | None = None
    reset: Collection[str] = ()
    verify_sample: int = limits.VERIFY_SAMPLE
    wave_bytes: int = limits.WAVE_BYTES
    pace_s: float = limits.PACE_S


class Clock(NamedTuple):
    """Clock of a run: monotonic time in seconds, and how to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


DEFAULT_SETTINGS: Final = RunSettings()
DEFAULT_CLOCK: Final = Clock()
