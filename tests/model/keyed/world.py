"""What the world of a plan with a keyed node looks like; see ``tests.model.state`` for how worlds are made.

Entries of the log are known by their number. The state of a key is a tuple of what was counted, so that a world shows
what was counted twice, or in another order.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model.state import Budget


class Count(NamedTuple):
    """An entry that went into a state."""

    entry: int
    attempt: int
    """Of the task: an ``update`` need not return the same twice."""


Value = tuple[Count, ...]
"""The state of a key."""


class Export(NamedTuple):
    """What a key tells of a change."""

    key: int
    old: Value
    new: Value


class Update(NamedTuple):
    """What a task publishes of its key: one file of the journal."""

    pass_: int
    key: int
    value: Value
    exports: tuple[Export, ...]
    counted: tuple[int, ...]
    refused: tuple[int, ...] = ()


class Sent(NamedTuple):
    """What a task publishes of the exports that it sent: their places."""

    pass_: int
    key: int
    places: tuple[int, ...]


class Fold(NamedTuple):
    """What a journal comes to."""

    updates: tuple[Update, ...] = ()
    sent: tuple[Sent, ...] = ()


class Tables(NamedTuple):
    """What is committed."""

    wave: int = 0
    position: int = 0
    """The entry that comes next."""
    reached: tuple[int, ...] = ()
    """Of each key: so many of its exports were taken up by a wave."""
    due: tuple[int, ...] = ()
    """The outbox: entries that are to be counted."""
    pending: tuple[tuple[int, int], ...] = ()
    """The outbox: (key, place) of exports that are to be sent."""
    states: tuple[Value, ...] = ()
    exports: tuple[tuple[Export, ...], ...] = ()
    """Of each key, in the order of their places."""
    ended: tuple[str, ...] = ()
    """The ledger: of each entry, "counted" or "refused"."""
    delivered: tuple[tuple[int, int], ...] = ()
    """The ledger: (key, place) of exports."""
    fold: Fold = Fold()
    """What the last commit of the ledger has named."""
    settled: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Wave up to which the ledger, the states, the exports and the outbox are settled."""


class Driver(NamedTuple):
    """A driver's memory."""

    at: str
    epoch: int
    overtaken: bool = False
    entries: tuple[int, ...] = ()
    known: tuple[Value, ...] = ()
    """The states, as they were when it committed its wave."""
    wave: int = 0
    fold: Fold = Fold()


class Task(NamedTuple):
    """A task of a pass; it outlives its driver."""

    kind: str
    """update or send."""
    pass_: int
    epoch: int
    key: int
    at: str
    attempt: int = 0
    value: Value = ()
    """The state that ``update`` gets."""
    work: tuple[int, ...] = ()
    """Entries, or places of exports."""
    done: tuple[int, ...] = ()
    update: tuple[Update, ...] = ()
    """What it is about to publish."""
    orphan: bool = False


class State(NamedTuple):
    """Everything."""

    arrived: int
    tables: Tables
    unsynced: Tables | None = None
    """What a power cut would put in their place."""
    epoch: int = 0
    updates: frozenset[Update] = frozenset()
    sent: frozenset[Sent] = frozenset()
    closed: int = 0
    trimmed: int = 0
    """Passes up to this one have no folder in the journal any more."""
    drivers: tuple[Driver, ...] = ()
    tasks: tuple[Task, ...] = ()
    received: tuple[int, ...] = ()
    """Observed: of each key, the highest place that the destination holds; -1: none."""
    values: tuple[Value, ...] = ()
    """Observed: of each key, the last ``new`` that the destination took."""
    remembered: tuple[str, ...] = ()
    """Observed: what was done that no rule allows."""
    budget: Budget = Budget()


class KeyedConfig(NamedTuple):
    """What is explored."""

    name: str
    keys: tuple[int, ...]
    """Of each entry."""
    budget: Budget = Budget()
    answers: tuple[str, ...] = ()
    """What a fault may be: raises, rejects (``update``); down, lost (the destination)."""
    late: int = 0
    """So many of the entries come while the plan runs."""
    slice: int = 9
    """Entries a wave."""
    lock: bool = True
    mutation: str = ""

    @property
    def entries(self) -> int:
        return len(self.keys)

    def first(self) -> State:
        """The world before the first start."""
        count = max(self.keys) + 1
        none: tuple[tuple[()], ...] = ((),) * count
        tables = Tables(reached=(0,) * count, states=none, exports=none, ended=("",) * self.entries)
        return State(self.entries - self.late, tables, received=(-1,) * count, values=none, budget=self.budget)
