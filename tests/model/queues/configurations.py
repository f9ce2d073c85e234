"""What is explored of a plan between a log and two queues."""

from __future__ import annotations

from typing import Any, Final

from tests.model.queues.walking import PERMANENT, TRANSIENT
from tests.model.queues.world import RETRY, SKIP, QueueConfig
from tests.model.state import Budget

_STEP = (TRANSIENT, PERMANENT)
_ONE = frozenset({1})


def _stops(name: str, budget: Budget, *answers: str, entries: int = 2, **more: Any) -> QueueConfig:
    return QueueConfig(name, entries, budget, answers, on_error="stop", **more)


QUEUE_CONFIGURATIONS: Final = (
    QueueConfig("kills", 2, Budget(crashes=2, late=1), refused=_ONE),
    QueueConfig("two drivers", 1, Budget(crashes=1, rivals=1, late=1), lock=False),
    QueueConfig("two drivers, a refusal", 1, Budget(rivals=1, late=1), refused=frozenset({0}), lock=False),
    QueueConfig("two drivers, a failure", 2, Budget(rivals=1, faults=1), (*_STEP, "lost"), lock=False),
    QueueConfig("failures of the step", 3, Budget(crashes=1, faults=2), _STEP),
    QueueConfig("failures of the step, out of order", 3, Budget(crashes=1, faults=2), _STEP, ordered=False),
    QueueConfig("attempts", 1, Budget(crashes=2, faults=3), (TRANSIENT,), attempts=3),
    QueueConfig("lost answers", 2, Budget(crashes=1, late=1, faults=2), ("lost", "down"), refused=_ONE, batch=1),
    QueueConfig("a wave an entry", 3, Budget(crashes=1, faults=1), ("lost", "down"), late=1, slice=1),
    _stops("the plan stops", Budget(faults=4), *_STEP, entries=3, commands=(SKIP, RETRY)),
    _stops("the plan stops, a kill", Budget(crashes=1, faults=3), PERMANENT, commands=(SKIP, RETRY)),
    _stops("the plan stops, two kills", Budget(crashes=2, faults=2), PERMANENT, commands=(SKIP,)),
    _stops("the plan stops, two drivers", Budget(rivals=1, faults=2), PERMANENT, commands=(SKIP,), lock=False),
    QueueConfig("everything", 2, Budget(crashes=1, faults=2), (*_STEP, "lost", "down"), frozenset({0}), late=1),
)
