"""What the model's world looks like: values without identity, so that two equal worlds are one.

Durable things have the names that they have in ``docs/reference/protocol.md``. A row's place in ``State.rows`` is its
sequence. What is marked *observed* is not part of the protocol: it is the outside world, or what the invariants must
remember of the past.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

OUTBOX, DOCUMENTS, LEDGER = range(3)
"""Tables, in the order in which a starting driver announces its epoch on them."""

ONCE, LEAST, EXACT = "at-most-once", "at-least-once", "exactly-once"

GONE = ""
"""Version of a document that is not in its source."""

UNTOUCHED = "UNTOUCHED"

PENDING, PARKED, CLAIMED = "pending", "parked", "claimed by another worker"
"""What an upsert may be that was not delivered."""


class Delivery(NamedTuple):
    """What the delivery hash is made of. Equal ones have equal hashes."""

    document: int
    destination: int
    version: str
    """``GONE``: it takes out what is there."""
    revision: int
    member: str = ""
    """Of the document's family; empty: itself."""

    def __str__(self) -> str:
        member = f"#{self.member}" if self.member else ""
        return f"revision {self.revision} of document {self.document}{member} for destination {self.destination}"


class Row(NamedTuple):
    """A committed row of the outbox."""

    delivery: Delivery
    wave: int
    made: tuple[int, int]
    """Epoch and number of the transform attempt whose bytes it has."""


class Waiting(NamedTuple):
    """A row that is in the outbox now."""

    sequence: int
    attempt: int
    parked: bool


class Known(NamedTuple):
    """A row of ``documents``."""

    version: str
    revision: int
    given: tuple[str, ...] = ("",)
    """Members that the destinations were given."""
    owed: bool = False
    """The document itself failed when its children were through, or something was away."""
    stale: tuple[str, ...] = ()
    """Members of an older version, which go when the owed part is made and does not make them again."""
    away: bool = False
    """A step or the source was away before anything was made of this version: its whole way is owed."""


class Said(NamedTuple):
    """What became of one row: an event of the ledger, if it is not UNTOUCHED."""

    sequence: int
    status: str
    attempt: int


Tables = tuple[int, int, int]
"""A number for each table."""

Chunk = tuple[Waiting, ...]


class Claim(NamedTuple):
    """``journal/<pass>/….claim``."""

    pass_: int
    rows: tuple[int, ...]


class Result(NamedTuple):
    """``journal/<pass>/….sent`` or ``….result``."""

    pass_: int
    said: tuple[Said, ...]
    part: bool
    """Names a ledger file; else it is the bare note of a chunk."""


class Fold(NamedTuple):
    """What a journal comes to."""

    said: tuple[Said, ...] = ()
    unknown: frozenset[Claim] = frozenset()


class Staging(NamedTuple):
    """What one attempt of the transform task has staged."""

    documents: tuple[tuple[int, Known], ...]
    made: tuple[int, int]
    rows: tuple[tuple[int, str, int, str], ...] = ()
    """(document, version, revision, member) of each delivery, for every destination."""
    fault: str = ""
    """failed: a document failed, its children did not; away: a step or the source was away."""


class Lane(NamedTuple):
    """Due chunks of one outbox file: what one task delivers."""

    destination: int
    chunks: tuple[Chunk, ...]
    waits: frozenset[tuple[int, str]] = frozenset()
    """Its deletes that wait for an upsert of their family which this lane does not send, by sequence, and whether that
    upsert is PENDING or PARKED."""


class Driver(NamedTuple):
    """A driver's memory. All of it is lost in a crash."""

    at: str
    """Name of the step it does next."""
    epoch: int = 0
    wave: int = 0
    overtaken: Tables = (0, 0, 0)
    """Tables that somebody else has committed to since this driver has read them."""
    taken_up: tuple[int, ...] = ()
    """Documents of the compared listing that no wave has taken yet."""
    staged: tuple[Staging, ...] = ()
    ahead: tuple[Staging, ...] = ()
    """What the tasks of the next wave have staged while this one is delivered and settled."""
    work: tuple[Lane, ...] = ()
    fold: Fold = Fold()
    then: str = ""
    """Where recovery will take it, by what it has loaded."""


class Worker(NamedTuple):
    """A task that delivers a lane; it outlives its driver."""

    pass_: int
    destination: int
    at: str
    chunks: tuple[Chunk, ...]
    """The first one is what it is at."""
    said: tuple[Said, ...] = ()
    """What the destination has answered about this chunk, not yet noted."""
    pending: tuple[tuple[Said, ...], ...] = ()
    """Exactly-once: what is to be noted of earlier ones (sending them again has no effect, so a note may wait)."""
    waits: frozenset[tuple[int, str]] = frozenset()
    """As its lane has it."""
    undelivered: frozenset[tuple[int, str]] = frozenset()
    """Upserts that it has not delivered, by sequence, and whether each is PENDING, PARKED or CLAIMED."""
    orphan: bool = False
    """Its driver does not wait for it: dead, or the worker hangs or has lost to another one."""


class Told(NamedTuple):
    """Observed: what a destination has seen of a delivery."""

    seen: bool = False
    sends: int = 0
    """At-most-once, at-least-once: how often it was sent, less how often the destination has said that nothing took
    effect. At-least-once: no more than two are counted, and none where there is one chunk only."""
    effects: int = 0
    """No more than two are counted, and no more than one where two are allowed."""
    bad: int = 0
    """How often this very row, alone, was answered with anything but ok."""
    done: bool = False
    """It took effect, or was refused as stale."""
    names: frozenset[tuple[int, tuple[int, int]]] = frozenset()
    """Every (hash, bytes) that it came under; the hash is 0 unless it changes."""


class Budget(NamedTuple):
    """How much may still go wrong. A run of the model is finite because this is."""

    crashes: int = 0
    """Of drivers (alone, or all power gone) and of workers."""
    rivals: int = 0
    """Drivers that start while another one lives."""
    doubles: int = 0
    """Second attempts of a task while the first one runs."""
    late: int = 0
    """Workers that the driver does not wait for."""
    faults: int = 0
    """Answers that are not ok."""


def put(numbers: Tables, table: int, number: int) -> Tables:
    """The same with another number for this table."""
    outbox, documents, ledger = (number if t == table else n for t, n in enumerate(numbers))
    return outbox, documents, ledger


class State(NamedTuple):
    """Everything."""

    source: tuple[int, ...]
    """Observed: how far each document is in its history, ``Config.histories``."""
    known: tuple[Known | None, ...]
    outbox: tuple[Waiting, ...]
    told: tuple[Told, ...]
    """Observed, a row each: rows of one delivery share what is told of it."""
    there: tuple[int, ...]
    """Observed: the last sequence that took effect, for each ``Config.place``; -1 before the first."""
    rows: tuple[Row, ...] = ()
    wave: int = 0
    staged: tuple[tuple[int, Known], ...] = ()
    """``documents`` rows that the last wave's commit has named."""
    unsynced: bool = False
    """That commit is in the log, and a power cut would undo it."""
    epochs: Tables = (0, 0, 0)
    settled: Tables = (0, 0, 0)
    ledger: tuple[str, ...] = ()
    """The latest status of each row; empty: none."""
    fold: Fold = Fold()
    """What the last commit of the ledger says that the journal came to."""
    claims: frozenset[Claim] = frozenset()
    results: frozenset[Result] = frozenset()
    closed: int = 0
    drivers: tuple[Driver, ...] = ()
    workers: tuple[Worker, ...] = ()
    budget: Budget = Budget()
    kept: tuple[int, ...] = ()
    """Only under a mutation: a listing that outlived its driver."""
    left: tuple[Staging, ...] = ()
    """Only under a mutation: what was staged ahead and outlived its driver."""
    remembered: tuple[str, ...] = ()
    """Observed: what was done that no rule allows, in words that the invariants know."""


class Destination(NamedTuple):
    """How a destination is, and what it was promised."""

    guarantee: str
    compares: bool = False
    """It refuses what has a lower sequence than what it has."""


class Config(NamedTuple):
    """What is explored."""

    name: str
    histories: tuple[tuple[str, ...], ...]
    """The versions that each document goes through; ``GONE``: not there."""
    destinations: tuple[Destination, ...]
    budget: Budget = Budget()
    answers: tuple[str, ...] = ()
    """What a fault may be: transient, refused, raised, half, down, hung; step: a document fails and its children do
    not; away: a step or the source is away."""
    lock: bool = True
    """A second driver cannot start while the first one lives."""
    batch: int = 1
    slice: int = 9
    """Documents a wave."""
    attempts: int = 2
    families: tuple[tuple[str, ...], ...] = ((),)
    """The children that a step may make of a document: any of these, at each try."""
    mutation: str = ""

    def first(self) -> State:
        """The world before the first start."""
        documents, destinations = len(self.histories), len(self.destinations)
        return State(
            source=(0,) * documents,
            known=(None,) * documents,
            outbox=(),
            told=(),
            there=(-1,) * documents * destinations * len(self.members),
            budget=self.budget,
        )

    @property
    def members(self) -> tuple[str, ...]:
        """All that a family may have."""
        return _members(self.families)

    def place(self, delivery: Delivery) -> int:
        """Where a delivery ends, as a place in ``State.there``."""
        members = _members(self.families)
        document = delivery.destination * len(self.histories) + delivery.document
        return document * len(members) + members.index(delivery.member)


@functools.cache
def _members(families: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return ("", *sorted({member for family in families for member in family}))
