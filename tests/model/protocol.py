"""The protocol: every step that may be taken next, by the outside world, a driver or a worker; and every crash.

``moves`` is the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import executor
from tests.model.actions import Step
from tests.model.driver import driver_moves, starts, without
from tests.model.moves import name
from tests.model.state import Config, Driver, State

Moves = Iterator[tuple[Step, State]]


def moves(config: Config, state: State, *, outside: bool = True) -> Moves:
    """Everything that may happen next. ``outside``: documents may change, too."""
    if outside:
        yield from _source(config, state)
    for step, after in _moves(config, state):
        yield step, executor.without_idle(config, after) if after.workers else after


def _moves(config: Config, state: State) -> Moves:
    yield from starts(config, state)
    for i in range(len(state.drivers)):
        yield from driver_moves(config, state, i)
    yield from _crashes(config, state)
    seen = None
    for worker in state.workers:
        if worker != seen:  # two that are alike do alike
            yield from executor.worker_moves(config, state, worker)
        seen = worker


# -- the outside -----------------------------------------------------------------------------------------


def _source(config: Config, state: State) -> Moves:
    for i, at in enumerate(state.source):
        if at + 1 < len(config.histories[i]):
            source = (*state.source[:i], at + 1, *state.source[i + 1 :])
            yield Step("source.change", f"document {i}"), state._replace(source=source)


def _crashes(config: Config, state: State) -> Moves:
    if not state.budget.crashes:
        return
    spent = state._replace(budget=state.budget._replace(crashes=state.budget.crashes - 1))
    for i, driver in enumerate(state.drivers):
        yield Step("crash.driver", name(driver)), without(config, spent, i)
        if driver.at == "deliver":
            yield from _worker_crashes(config, spent, driver)
    if state.unsynced:
        yield Step("crash.power"), _power_cut(config, spent)


def _worker_crashes(config: Config, spent: State, driver: Driver) -> Moves:
    """A worker of a dead driver that is killed does no more than one that never moves again, so these are left out."""
    for worker in dict.fromkeys(w for w in spent.workers if w.pass_ == driver.wave and not w.orphan):
        who = f"worker of pass {worker.pass_} at destination {worker.destination}"
        gone = executor.leave(spent, worker)
        yield Step("crash.worker", who), gone
        for lane in driver.work:
            if executor.is_of(worker, lane):
                yield Step("crash.retry", who), executor.begin(config, gone, lane, driver.wave)


def _power_cut(config: Config, state: State) -> State:
    """Nothing is alive any more, and the entry that was not synced never took effect."""
    state = killed(config, state)
    count = sum(row.wave < state.wave for row in state.rows)
    seen = tuple(told for told in state.told[count:] if told.seen)
    return state._replace(
        rows=state.rows[:count],
        told=state.told[:count] + seen,  # what was sent stays sent
        ledger=state.ledger[:count],
        outbox=tuple(w for w in state.outbox if w.sequence < count),
        wave=state.wave - 1,
        staged=(),
        unsynced=False,
    )


def killed(config: Config, state: State) -> State:
    """No driver and no worker lives."""
    for i in range(len(state.drivers)):
        state = without(config, state, len(state.drivers) - 1 - i)
    return state._replace(drivers=(), workers=())
