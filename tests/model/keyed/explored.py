"""What is explored of a plan that keeps state by key, and the faults that are put into it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model.explore import Rules
from tests.model.keyed.actions import KEYED_ACTIONS, KeyedStep
from tests.model.keyed.driver import driver_moves, starts, without
from tests.model.keyed.invariants import KEYED_INVARIANTS, at_rest
from tests.model.keyed.tasks import begin, leave, spent, task_moves, without_idle
from tests.model.keyed.world import KeyedConfig, State, Task
from tests.model.queues.mutations import QueueMutation
from tests.model.state import Budget

Moves = Iterator[tuple[KeyedStep, State]]


def keyed_moves(config: KeyedConfig, state: State, *, outside: bool = True) -> Moves:
    """Everything that may happen next. ``outside``: entries may arrive, too."""
    if outside and state.arrived < config.entries:
        yield KeyedStep("entry.arrives", f"entry {state.arrived}"), state._replace(arrived=state.arrived + 1)
    for step, after in _moves(config, state):
        yield step, without_idle(config, after) if after.tasks else after


def _moves(config: KeyedConfig, state: State) -> Moves:
    yield from starts(config, state)
    for i in range(len(state.drivers)):
        yield from driver_moves(config, state, i)
    if state.budget.crashes:
        yield from _crashes(config, spent(state, "crashes"))
    for task in dict.fromkeys(state.tasks):  # two that are alike do alike
        yield from task_moves(config, state, task)


def _crashes(config: KeyedConfig, state: State) -> Moves:
    for i, driver in enumerate(state.drivers):
        yield KeyedStep("crash.driver", f"driver {driver.epoch}"), without(state, i)
        for task in dict.fromkeys(t for t in state.tasks if t.epoch == driver.epoch and not t.orphan):
            again = _again(config, state, task)
            yield KeyedStep("crash.retry", f"{task.kind} of key {task.key}"), begin(leave(state, task), again)
    if state.unsynced is not None:
        cut = state._replace(tables=state.unsynced, unsynced=None, drivers=(), tasks=())
        yield KeyedStep("crash.power"), cut


def _again(config: KeyedConfig, state: State, task: Task) -> Task:
    """The same task from its beginning, with what its driver had given to it."""
    if task.kind == "send":
        return task._replace(at="look", work=tuple(sorted((*task.done, *task.work))), done=())
    return task._replace(at="call", attempt=1, update=())


def killed(config: KeyedConfig, state: State) -> State:
    """No driver and no task lives."""
    return state._replace(drivers=(), tasks=())


def _durable(state: State) -> State:
    return state._replace(drivers=(), epoch=0, unsynced=None)


KEYED_RULES: Final = Rules(KEYED_ACTIONS, KeyedStep, keyed_moves, killed, KEYED_INVARIANTS, at_rest, _durable)

KEYED_CONFIGURATIONS: Final = (
    KeyedConfig("kills", (0, 0, 1), Budget(crashes=2)),
    KeyedConfig("second attempts, a late task", (0, 0), Budget(crashes=1, doubles=1, late=1), slice=1),
    KeyedConfig("two drivers", (0, 1), Budget(rivals=1), lock=False),
    KeyedConfig("two drivers, a late task", (0,), Budget(rivals=1, doubles=1, late=1), lock=False),
    KeyedConfig("two drivers, a kill", (0, 0), Budget(crashes=1, rivals=1), slice=1, lock=False),
    KeyedConfig("update raises", (0, 0, 0), Budget(crashes=1, faults=2), ("raises", "rejects"), late=1),
    KeyedConfig("the destination is away", (0, 0, 0), Budget(crashes=1, faults=2), ("down", "lost"), slice=1),
    KeyedConfig("everything", (0, 0, 1), Budget(crashes=1, late=1, faults=1), ("raises", "lost"), late=1, slice=2),
)


def _fault(name: str, breaks: str, budget: Budget, *answers: str, **more: object) -> QueueMutation:
    config = KeyedConfig("", (0, 0), budget, answers)._replace(**more)  # type: ignore[arg-type]
    return QueueMutation(name, breaks, config)


KEYED_MUTATIONS: Final = (
    _fault("a commit does not look at the epoch", "I2", Budget(rivals=1), lock=False),
    _fault("update runs before the commit is synced", "I1", Budget(crashes=1)),
    _fault("exports are sent when update returns them", "I1", Budget()),
    _fault("the states are committed before the ledger", "agree", Budget(crashes=1)),
    _fault("the exports follow the journal, not the ledger", "agree", Budget(crashes=1, late=1)),
    _fault("the outbox is committed before the states", "once", Budget(crashes=1)),
    _fault("both attempts of a key count", "agree", Budget(doubles=1)),
    _fault("of two attempts the state of one and the exports of the other count", "agree", Budget(doubles=1)),
    _fault("an update that comes late counts", "agree", Budget(late=1)),
    _fault("what fails does not hold what follows it", "order", Budget(faults=1), "raises"),
    _fault("the position in the exports is not committed", "I9", Budget()),
    _fault("exports count as taken up when they are committed", "I4", Budget()),
    _fault("exports have no sequence", "newest", Budget(late=1), slice=1),
)
