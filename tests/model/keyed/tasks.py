"""Tasks: how the documents of a key are counted, and how exports are sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

from tests.model.keyed.actions import KeyedStep
from tests.model.keyed.world import Count, Export, KeyedConfig, Sent, State, Task, Update

Moves = Iterator[tuple[KeyedStep, State]]
_T = TypeVar("_T")

UNCOMMITTED: Final = "update saw a document that no durable commit has"
LATE: Final = "an update that comes late counts"
EARLY: Final = "the destination was sent an export that no commit has"


def begin(state: State, task: Task) -> State:
    """A task starts."""
    return state._replace(tasks=tuple(sorted((*state.tasks, task))))


def leave(state: State, task: Task) -> State:
    """The world without this task."""
    at = state.tasks.index(task)
    return state._replace(tasks=state.tasks[:at] + state.tasks[at + 1 :])


def spent(state: State, what: str) -> State:
    """One less of what may go wrong."""
    return state._replace(budget=state.budget._replace(**{what: getattr(state.budget, what) - 1}))


def without_idle(config: KeyedConfig, state: State) -> State:
    """Without tasks that can do nothing any more that anybody sees: so many states less, and no other outcome."""
    left = tuple(task for task in state.tasks if not _is_idle(config, state, task))
    return state if len(left) == len(state.tasks) else state._replace(tasks=left)


def _is_idle(config: KeyedConfig, state: State, task: Task) -> bool:
    if task.kind == "update" or task.at == "publish":
        return task.pass_ <= state.trimmed and config.mutation != LATE
    return task.at == "look" and state.closed >= task.pass_ and not task.done


def task_moves(config: KeyedConfig, state: State, task: Task) -> Moves:
    """What this task may do next."""
    name, alone = f"{task.kind} of key {task.key} in pass {task.pass_}", leave(state, task)
    match task.kind, task.at:
        case "update", "call":
            yield from _call(config, alone, task, name)
        case "update", "publish":
            yield KeyedStep("update.publish", name), _publish(config, alone, task)
        case "send", "look":
            may = state.closed < task.pass_
            yield KeyedStep("send.look", name), begin(alone, task._replace(at="send")) if may else _end(alone, task)
        case "send", "send":
            yield from _send(config, alone, task, name)
        case _:
            yield KeyedStep("send.publish", name), _published(alone, task)


# -- update ------------------------------------------------------------------------------------------


def _call(config: KeyedConfig, alone: State, task: Task, name: str) -> Moves:
    if alone.unsynced is not None and not set(task.work) <= set(alone.unsynced.due):
        alone = alone._replace(remembered=(UNCOMMITTED,))
    yield KeyedStep("update.call", name), _updated(config, alone, task, task.work, ())
    if not alone.budget.faults:
        return
    faulty = spent(alone, "faults")
    for n, bad in enumerate(task.work):
        before, behind = task.work[:n], task.work[n + 1 :]
        if "raises" in config.answers:
            held = () if config.mutation != "what fails does not hold what follows it" else behind
            yield KeyedStep("update.raises", name), _updated(config, faulty, task, (*before, *held), ())
        if "rejects" in config.answers:
            yield KeyedStep("update.rejects", name), _updated(config, faulty, task, (*before, *behind), (bad,))


def _updated(
    config: KeyedConfig, alone: State, task: Task, counted: tuple[int, ...], refused: tuple[int, ...]
) -> State:
    """Its files are written, and nobody knows of them yet."""
    value = (*task.value, *(Count(entry, task.attempt) for entry in counted))
    exports = (Export(task.key, task.value, value),) if counted else ()
    update = Update(task.pass_, task.key, value, exports, counted, refused)
    if config.mutation == "exports are sent when update returns them" and counted:
        place = len(alone.tables.exports[task.key])
        alone = _received(config, alone, task, place, value)._replace(remembered=(EARLY,))
    if not counted and not refused:
        return alone
    return begin(alone, task._replace(at="publish", update=(update,)))


def _publish(config: KeyedConfig, alone: State, task: Task) -> State:
    """Without the folder of its pass it fails; and of two for a key the first counts."""
    if task.pass_ <= alone.trimmed and config.mutation != LATE:
        return alone
    twice = ("both attempts of a key count", "of two attempts the state of one and the exports of the other count")
    if config.mutation not in twice and any(u.pass_ == task.pass_ and u.key == task.key for u in alone.updates):
        return alone
    return alone._replace(updates=alone.updates.union(task.update))


# -- send --------------------------------------------------------------------------------------------


def _send(config: KeyedConfig, alone: State, task: Task, name: str) -> Moves:
    place = task.work[0]
    value = alone.tables.exports[task.key][place].new
    after = _received(config, alone, task, place, value)
    done = task._replace(work=task.work[1:], done=(*task.done, place), at="look")
    yield KeyedStep("send", name), begin(after, done) if done.work else _end(after, done)
    if alone.budget.faults and "down" in config.answers:
        yield KeyedStep("send.down", name), _end(spent(alone, "faults"), task)
    if alone.budget.faults and "lost" in config.answers:
        yield KeyedStep("send.lost", name), _end(spent(after, "faults"), task)


def _received(config: KeyedConfig, state: State, task: Task, place: int, value: tuple[Count, ...]) -> State:
    """The destination compares sequences: what is older than what it has changes nothing."""
    if place <= state.received[task.key] and config.mutation != "exports have no sequence":
        return state
    return state._replace(received=_put(state.received, task.key, place), values=_put(state.values, task.key, value))


def _end(state: State, task: Task) -> State:
    return begin(state, task._replace(at="publish", work=())) if task.done else state


def _published(state: State, task: Task) -> State:
    if task.pass_ <= state.trimmed:
        return state
    return state._replace(sent=state.sent | {Sent(task.pass_, task.key, task.done)})


def _put(values: tuple[_T, ...], at: int, value: _T) -> tuple[_T, ...]:
    return (*values[:at], value, *values[at + 1 :])
