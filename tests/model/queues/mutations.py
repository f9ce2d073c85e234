"""Faults put on purpose into how logs are read and queues are appended to; see ``tests.model.mutations``."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.model.queues.walking import PERMANENT, TRANSIENT
from tests.model.queues.world import SKIP, QueueConfig
from tests.model.state import Budget


class QueueMutation(NamedTuple):
    """One fault, the smallest world that shows it, and the invariant that it breaks first."""

    name: str
    breaks: str
    world: QueueConfig

    @property
    def config(self) -> QueueConfig:
        return self.world._replace(mutation=self.name, name=self.name)


def _kills(entries: int = 2, **more: object) -> QueueConfig:
    return QueueConfig("", entries, Budget(crashes=1), **more)  # type: ignore[arg-type]


def _faults(entries: int, number: int, *answers: str, **more: object) -> QueueConfig:
    return QueueConfig("", entries, Budget(faults=number), answers, **more)  # type: ignore[arg-type]


def _stops(number: int, crashes: int = 0) -> QueueConfig:
    budget = Budget(crashes=crashes, faults=number)
    return QueueConfig("", 2, budget, (PERMANENT,), on_error="stop", commands=(SKIP,))


_REFUSED = frozenset({0})

QUEUE_MUTATIONS: Final = (
    QueueMutation("the commit is sent before it is synced", "I1", _kills()),
    QueueMutation("a commit does not look at the epoch", "I2", QueueConfig("", 1, Budget(rivals=1), lock=False)),
    QueueMutation("the position is committed before the outputs", "I4", _kills()),
    QueueMutation("the position is committed after the outputs", "I4", _kills()),
    QueueMutation("the log is told of the position before the commit", "position", _kills()),
    QueueMutation("what lies behind an entry that waits counts", "I4", _faults(2, 1, TRANSIENT)),
    QueueMutation("an ordered log passes over what waits", "order", _faults(2, 1, TRANSIENT)),
    QueueMutation("the files of both walks count", "I4", _faults(2, 1, TRANSIENT)),
    QueueMutation(
        "a new run counts the attempts of the entry that waits from none",
        "attempts",
        QueueConfig("", 1, Budget(crashes=1, faults=2), (TRANSIENT,)),
    ),
    QueueMutation("an error message is appended when the step fails", "I1", _faults(1, 1, PERMANENT)),
    QueueMutation("an error message does not end its entry", "one end", _faults(1, 1, PERMANENT, ordered=False)),
    QueueMutation("an append does not look at what its writer has noted", "I7", _kills()),
    QueueMutation("a repeated row is looked for in the newest message only", "I7", _kills()),
    QueueMutation("the highest sequence is noted after the append", "I7", _kills()),
    QueueMutation("each driver appends under a name of its own", "I7", _kills()),
    QueueMutation(
        "an append that was beaten does not read the queue again", "I7", QueueConfig("", 1, Budget(crashes=1, late=1))
    ),
    QueueMutation("an append without an answer counts as done", "I7", _faults(1, 1, "down")),
    QueueMutation("a lane goes on behind a chunk that was not taken", "order", _faults(2, 1, "down", batch=1)),
    QueueMutation(
        "the newest rows are appended first", "order", QueueConfig("", 2, Budget(faults=1), ("down",), late=1)
    ),
    QueueMutation("messages about what was refused are committed by themselves", "I4", _kills(refused=_REFUSED)),
    QueueMutation("recovery forgets what was refused", "I4", _kills(refused=_REFUSED)),
    QueueMutation("a stop is not in the commit of its wave", "stop", _stops(1)),
    QueueMutation("a skip is applied twice", "skip", _stops(4)),
    QueueMutation("a skip names no entry", "skip", _stops(3, crashes=1)),
)
