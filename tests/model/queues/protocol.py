"""Every step that may be taken next between a log and two queues, and every crash. ``RULES`` is what is explored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model.explore import Rules
from tests.model.queues.actions import QUEUE_ACTIONS, QueueStep
from tests.model.queues.driver import driver_moves, starts, without
from tests.model.queues.invariants import INVARIANTS, at_rest
from tests.model.queues.worker import begin, leave, without_idle, worker_moves
from tests.model.queues.world import Command, Driver, QueueConfig, State

Moves = Iterator[tuple[QueueStep, State]]


def moves(config: QueueConfig, state: State, *, outside: bool = True) -> Moves:
    """Everything that may happen next. ``outside``: entries may arrive, too."""
    if outside and state.arrived < config.entries:
        yield QueueStep("entry.arrives", f"entry {state.arrived}"), state._replace(arrived=state.arrived + 1)
    if outside and state.stop.entry >= 0:
        yield from _asked(config, state)
    for step, after in _moves(config, state):
        yield step, without_idle(after) if after.workers else after


def _moves(config: QueueConfig, state: State) -> Moves:
    yield from starts(config, state)
    for i in range(len(state.drivers)):
        yield from driver_moves(config, state, i)
    yield from _crashes(state)
    for worker in dict.fromkeys(state.workers):  # two that are alike do alike
        yield from worker_moves(config, state, worker)


def _asked(config: QueueConfig, state: State) -> Moves:
    """An operator sees that the plan has stopped, and says how it goes on."""
    for verb in state.may_ask:
        command = Command(verb, state.stop.entry)
        left = tuple(other for other in state.may_ask if other != verb)
        asked = state._replace(may_ask=left, asked=(*state.asked, command), ended=False)
        if config.mutation == "a skip names no entry":
            command = command._replace(entry=-1)
        yield QueueStep(verb, "an operator"), asked._replace(commands=(*state.commands, command))


def _crashes(state: State) -> Moves:
    if not state.budget.crashes:
        return
    spent = state._replace(budget=state.budget._replace(crashes=state.budget.crashes - 1))
    for i, driver in enumerate(state.drivers):
        yield QueueStep("crash.driver", f"driver {driver.epoch}"), without(spent, i)
        if driver.at == "deliver":
            yield from _worker_crashes(spent, driver)
    if state.unsynced is not None:
        yield QueueStep("crash.power"), _power_cut(spent)


def _worker_crashes(spent: State, driver: Driver) -> Moves:
    """A worker of a dead driver that is killed does no more than one that never moves again, so these are left out."""
    for worker in dict.fromkeys(w for w in spent.workers if w.epoch == driver.epoch and not w.orphan):
        who = f"worker of pass {worker.pass_} at queue {worker.into}"
        gone = leave(spent, worker)
        yield QueueStep("crash.worker", who), gone
        for lane in driver.work:
            if lane.into == worker.into:
                yield QueueStep("crash.retry", who), begin(gone, lane, driver.wave, driver.epoch)


def _power_cut(state: State) -> State:
    """Nothing is alive any more, and the entry that was not synced never took effect."""
    before = state.unsynced
    assert before is not None
    return state._replace(
        position=before.position,
        head=before.head,
        rows=state.rows[: before.rows],
        ledger=state.ledger[: before.rows],
        outbox=before.outbox,
        wave=before.wave,
        staged=before.staged,
        failures=before.failures,
        stop=before.stop,
        stopped=before.stopped,
        failed=before.failed,
        unsynced=None,
        drivers=(),
        workers=(),
    )


def killed(config: QueueConfig, state: State) -> State:
    """No driver and no worker lives; somebody starts the plan again."""
    return state._replace(drivers=(), workers=(), ended=False)


def _durable(state: State) -> State:
    """What outlives a driver, but for its epoch."""
    return state._replace(drivers=(), epoch=0, unsynced=None)


RULES: Final = Rules(QUEUE_ACTIONS, QueueStep, moves, killed, INVARIANTS, at_rest, _durable)
