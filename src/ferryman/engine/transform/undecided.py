"""Failures of which it is not known yet whose they are: the document's own, or those of the step, router or source.

That shows when a task is through; see ``Stager.decide``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ferryman.document import Document
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.ends import Met
from ferryman.engine.transform.node_errors import TRANSIENT, ErrorKind, NodeError
from ferryman.engine.transform.reconcile import WalkOutcome
from ferryman.engine.transform.walk import Walk
from ferryman.plan import DestinationNode, Limits
from ferryman.records.family import FailedMember, Owed, Published, PublishedLines
from ferryman.records.reasons import with_traceback
from ferryman.records.statuses import Status


class Undecided(NamedTuple):
    """A family of which a step, a router or the source failed.

    Attributes:
        failures: where it had failed before, and has ended.
        given: what the walk published.
    """

    i: int
    met: list[Met]
    failures: list[FailedMember]
    reached: list[FailedMember]
    kept: list[str]
    given: list[Published] | PublishedLines
    retry: bool


class Unread(NamedTuple):
    """A document that could not be read."""

    i: int
    fault: NodeError


class Trail(WalkOutcome, Protocol):
    """What a walk came to, before it is known whose fault its failures are; see ``Walk``."""

    @property
    def met(self) -> list[Met]: ...


class Unreader(Protocol):
    """Goes on with a document that could not be read; see ``DocumentReader``."""

    walk: Walk

    def unread(self, block: Block, i: int, fault: NodeError) -> tuple[Any, Callable[[], None] | None]: ...


class Left(NamedTuple):
    """What a walk has left; see ``WalkOutcome``."""

    failures: list[FailedMember]
    reached: list[FailedMember]
    kept: list[str]


class Failed(NamedTuple):
    """A delivery that failed and is tried again."""

    doc: Document
    end: tuple[str, str]
    branches: str
    why: str
    attempt: int
    patient: bool
    """Its attempts are limited by time, not by number."""


class Spent(NamedTuple):
    """What an attempt that failed has made of a delivery.

    Attributes:
        status: of its event; None: it is tried again, the event comes with its due time.
    """

    owed: Owed
    status: Status | None
    why: str
    patient: bool


def spend(fault: NodeError, owed: Owed, limits: Limits, now_us: int) -> Spent:
    """An attempt of a delivery is spent on a fault of its own; is it tried again?"""
    attempt, transient, since = owed.attempt + 1, owed.transient, owed.since
    if fault.kind is ErrorKind.PERMANENT:
        return Spent(Owed(*owed.end, attempt, False, since, transient), Status.ERROR_DOC, fault.text, False)
    waited_s = None
    if fault.kind in TRANSIENT:
        since, transient = since or now_us, transient + 1
        waited_s = (now_us - since) / 1e6
    last = limits.passed(attempt, transient, waited_s)
    why = f"{fault.text} (attempt {attempt}, the last)" if last else fault.text
    return Spent(
        Owed(*owed.end, attempt, not last, since, transient),
        Status.DEAD if last else None,
        with_traceback(why, fault.trace),
        waited_s is not None and limits.patience_s is not None,
    )


def undecided(i: int, walk: Trail, given: list[Published] | PublishedLines, block: Block) -> Undecided:
    """Of a document that could not be read, once that is known to be its own fault."""
    return Undecided(i, walk.met, walk.failures, walk.reached, walk.kept, given, block.to_retry(i) is not None)


def places_of(failures: list[FailedMember]) -> set[tuple[str, tuple[str, str]]]:
    """(member, end) of deliveries of which the ledger has events."""
    return {(f.member, o.end) for f in failures for o in f.owed}


def retry_at(failed: Sequence[Failed], nodes: Mapping[str, DestinationNode], now_us: int) -> int:
    """When a family's failures are tried again, µs since 1970: together, so that the origin is read once."""
    longest = max(nodes[f.end[0]].policy.longest_wait_s(f.attempt, patient=f.patient) for f in failed)
    return now_us + int(random.uniform(0, longest) * 1e6)
