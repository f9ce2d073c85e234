"""The nodes of a plan: frozen data, one class a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ferryman import settings
from ferryman.destinations.base import Destination, Effect, Guarantee
from ferryman.routers.base import Router
from ferryman.sources.base import Source

StepFunction = Callable[..., Any]
"""Document -> Document (goes on), None (DROPPED), or an iterable of the document and its children (each goes on)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a destination is delivered to.

    Attributes:
        guarantee: what a kill may do to a delivery in flight.
        attempts: tries a delivery gets before it is DEAD.
        backoff: seconds to wait at most after the n-th failed attempt (the wait is uniform below it); None: 1 s × 4ⁿ.
        batch: rows a chunk at most.
        batch_bytes: bytes a chunk at most (one larger row is a chunk of its own).
        deletes: False: vanished documents stay there.
        send_timeout: seconds that a call of it may take.
    """

    guarantee: Guarantee
    attempts: int = settings.ATTEMPTS
    backoff: tuple[float, ...] | None = None
    batch: int = settings.BATCH_ROWS
    batch_bytes: int = settings.BATCH_BYTES
    deletes: bool = True
    send_timeout: float = settings.SEND_TIMEOUT_S

    def longest_wait_s(self, attempt: int) -> float:
        """Upper end of the wait after attempt number ``attempt`` (from 1), seconds."""
        if self.backoff:
            return self.backoff[min(attempt, len(self.backoff)) - 1]
        wait = settings.BACKOFF_FIRST_S * settings.BACKOFF_FACTOR ** min(attempt - 1, 32)
        return min(settings.BACKOFF_MAX_S, wait)


@dataclass(frozen=True, slots=True)
class Node:
    """Common to all kinds: a name unique in the plan, and the names of the nodes it follows."""

    name: str
    after: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``source``, ``step``, ``router``, ``tap``, ``destination``: in the words of the glossary."""
        return type(self).__name__.removesuffix("Node").lower()


@dataclass(frozen=True, slots=True)
class SourceNode(Node):
    source: Source = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class StepNode(Node):
    fn: StepFunction = field(kw_only=True)
    effect: Effect = field(default=Effect.SAFE, kw_only=True)
    mutates: bool = field(default=True, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class RouterNode(Node):
    router: Router = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class DestinationNode(Node):
    destination: Destination = field(kw_only=True)
    policy: Policy = field(kw_only=True)
    tap: bool = field(default=False, kw_only=True)
    """The document goes on, whatever becomes of its delivery here."""

    @property
    def kind(self) -> str:
        return "tap" if self.tap else "destination"
