"""Drivers of a plan that keeps state by key: from the look at the log to the last commit of settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.model.keyed import settling
from tests.model.keyed.actions import KeyedStep
from tests.model.keyed.tasks import LATE, begin, spent
from tests.model.keyed.world import Driver, Fold, KeyedConfig, State, Tables, Task

Moves = Iterator[tuple[KeyedStep, State]]

STALE: Final = "a driver that was overtaken committed"

LEDGER, STATES, EXPORTS, OUTBOX = range(4)
ORDER: Final = ("close", "read", "ledger", "states", "exports", "trim", "outbox")
"""The steps of settle."""

_TABLES: Final = {"ledger": LEDGER, "states": STATES, "exports": EXPORTS, "outbox": OUTBOX}

_NEEDED: Final = {"close": LEDGER, "read": LEDGER, "trim": OUTBOX, **_TABLES}
"""Until this table is settled, the step is taken (again)."""


def driver_moves(config: KeyedConfig, state: State, i: int) -> Moves:
    """What the driver at this place may do next."""
    driver = state.drivers[i]
    fenced = driver.overtaken and config.mutation != "a commit does not look at the epoch"
    if fenced and (driver.at == "commit" or driver.at in _TABLES):
        yield KeyedStep("lost", _name(driver)), without(state, i)
    else:
        yield from _STEPS[driver.at](config, state, i, driver)


def starts(config: KeyedConfig, state: State) -> Moves:
    """A driver starts, alone or, where nothing locks, beside another one."""
    rival = bool(state.drivers)
    if rival and (config.lock or len(state.drivers) > 1 or not state.budget.rivals):
        return
    driver = Driver("recover", state.epoch + 1)
    others = tuple(d._replace(overtaken=True) for d in state.drivers)
    started = state._replace(drivers=(*others, driver), epoch=driver.epoch, unsynced=None)
    yield KeyedStep("take.rival" if rival else "take", _name(driver)), spent(started, "rivals") if rival else started


def without(state: State, i: int) -> State:
    """A driver ends; its tasks may go on, and nobody waits for them."""
    epoch = state.drivers[i].epoch
    tasks = tuple(sorted(t._replace(orphan=True) if t.epoch == epoch else t for t in state.tasks))
    return state._replace(drivers=state.drivers[:i] + state.drivers[i + 1 :], tasks=tasks)


def _recover(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    driver = driver._replace(wave=state.tables.wave, fold=state.tables.fold)
    yield KeyedStep("recover", _name(driver)), _moved(state, i, _toward(config, state, driver, "close"))


# -- the wave ----------------------------------------------------------------------------------------


def _idle(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    tables = state.tables
    fresh = tuple(range(tables.position, state.arrived))[: config.slice]
    unread = any(len(mine) > reached for mine, reached in zip(tables.exports, tables.reached, strict=True))
    if fresh or unread or tables.due or tables.pending:
        yield KeyedStep("look", _name(driver)), _moved(state, i, driver._replace(at="commit", entries=fresh))
    elif driver.overtaken:
        yield KeyedStep("end", _name(driver)), without(state, i)


def _commit(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    before = state.tables
    reached = tuple(len(mine) for mine in before.exports)
    pending = [(key, n) for key, end in enumerate(reached) for n in range(before.reached[key], end)]
    after = before._replace(
        wave=before.wave + 1,
        position=max(before.position, *(entry + 1 for entry in driver.entries), 0),
        reached=reached,
        due=before.due + driver.entries,
        pending=before.pending + tuple(pending),
    )
    if config.mutation == "the position in the exports is not committed":
        after = after._replace(reached=before.reached)
    hasty = config.mutation == "update runs before the commit is synced"
    driver = driver._replace(
        at="update.dispatch" if hasty else "commit.synced", wave=after.wave, known=before.states, entries=()
    )
    yield KeyedStep("commit", _name(driver)), _moved(_committed(state, i, after)._replace(unsynced=before), i, driver)


def _synced(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    after = state._replace(unsynced=None)
    yield KeyedStep("commit.synced", _name(driver)), _moved(after, i, driver._replace(at="update.dispatch"))


# -- state by key, and deliver -----------------------------------------------------------------------


def _dispatch_updates(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    after = _moved(state, i, driver._replace(at="update"))
    for task in updates_of(config, state, driver):
        after = begin(after, task)
    yield KeyedStep("update.dispatch", _name(driver)), after


def updates_of(config: KeyedConfig, state: State, driver: Driver) -> Iterator[Task]:
    """A task for each key of which an entry is due."""
    for key, value in enumerate(driver.known):
        if mine := tuple(entry for entry in state.tables.due if config.keys[entry] == key):
            yield Task("update", driver.wave, driver.epoch, key, "call", 0, value, mine)


def _update(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    if state.budget.doubles:
        for task in updates_of(config, state, driver):
            again = begin(spent(state, "doubles"), task._replace(attempt=1))
            yield KeyedStep("update.double", f"key {task.key}"), again
    yield from _waited(state, i, driver, "update", "dispatch")


def _dispatch(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    after = _moved(state, i, driver._replace(at="deliver"))
    for key in dict.fromkeys(key for key, _ in state.tables.pending):
        places = tuple(sorted(place for mine, place in state.tables.pending if mine == key))
        after = begin(after, Task("send", driver.wave, driver.epoch, key, "look", work=places))
    yield KeyedStep("dispatch", _name(driver)), after


def _deliver(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    yield from _waited(state, i, driver, "deliver", "close")


def _waited(state: State, i: int, driver: Driver, kind: str, following: str) -> Moves:
    """All its tasks of this kind have returned, or it goes on without them."""
    after = _moved(state, i, driver._replace(at=following, known=()))
    mine = [task for task in state.tasks if task.epoch == driver.epoch and not task.orphan]
    if not mine:
        yield KeyedStep(f"{kind}.done", _name(driver)), after
    elif state.budget.late:
        left = tuple(sorted(t._replace(orphan=True) if t in mine else t for t in after.tasks))
        yield KeyedStep(f"{kind}.late", _name(driver)), spent(after._replace(tasks=left), "late")


# -- settle ------------------------------------------------------------------------------------------


def _close(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    closed = state._replace(closed=max(state.closed, driver.wave))
    yield KeyedStep("close", _name(driver)), _moved(closed, i, driver._replace(at="read"))


def _read(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    read = driver._replace(fold=settling.read_fold(config, state, driver.wave))
    first = "states" if config.mutation == "the states are committed before the ledger" else "ledger"
    yield KeyedStep("read", _name(driver)), _moved(state, i, read._replace(at=first))


def _table(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    settle: dict[str, Callable[[Tables, Fold], Tables]] = {
        "ledger": settling.with_ledger,
        "states": settling.with_states,
        "exports": settling.with_exports,
        "outbox": settling.without_done,
    }
    at, table = driver.at, _TABLES[driver.at]
    if at == "exports" and config.mutation == "the exports follow the journal, not the ledger":
        driver = driver._replace(fold=settling.read_fold(config, state, driver.wave))
    if state.tables.settled[table] < driver.wave:
        after = settle[at](state.tables, driver.fold)
        if at == "exports" and config.mutation == "exports count as taken up when they are committed":
            after = after._replace(reached=tuple(map(len, after.exports)))
        settled = tuple(driver.wave if n == table else wave for n, wave in enumerate(after.settled))
        state = _committed(state, i, after._replace(settled=settled))
    yield KeyedStep(at, _name(driver)), _moved(state, i, _next(config, state, driver))


def _trim(config: KeyedConfig, state: State, i: int, driver: Driver) -> Moves:
    trimmed = state._replace(
        trimmed=max(state.trimmed, driver.wave),
        updates=frozenset(u for u in state.updates if u.pass_ > driver.wave or config.mutation == LATE),
        sent=frozenset(s for s in state.sent if s.pass_ > driver.wave),
    )
    yield KeyedStep("trim", _name(driver)), _moved(trimmed, i, _next(config, state, driver))


# -- what they share ---------------------------------------------------------------------------------


def _order(config: KeyedConfig) -> tuple[str, ...]:
    if config.mutation == "the outbox is committed before the states":
        return ("close", "read", "ledger", "outbox", "states", "exports", "trim")
    if config.mutation == "the states are committed before the ledger":
        return ("close", "read", "states", "ledger", "exports", "trim", "outbox")
    return ORDER


def _next(config: KeyedConfig, state: State, driver: Driver) -> Driver:
    order = _order(config)
    at = order.index(driver.at) + 1
    return driver._replace(at=order[at]) if at < len(order) else _rest(driver)


def _toward(config: KeyedConfig, state: State, driver: Driver, step: str) -> Driver:
    """The first step of settle that is not done yet. All of it is done when the outbox is committed."""
    settled = state.tables.settled
    if settled[OUTBOX] >= driver.wave:
        return _rest(driver)
    order = _order(config)
    for later in order[order.index(step) :]:
        if settled[_NEEDED[later]] < driver.wave:
            return driver._replace(at=later)
    return _rest(driver)


def _name(driver: Driver) -> str:
    return f"driver {driver.epoch}"


def _moved(state: State, i: int, driver: Driver) -> State:
    return state._replace(drivers=(*state.drivers[:i], driver, *state.drivers[i + 1 :]))


def _rest(driver: Driver) -> Driver:
    """Between waves."""
    return Driver("idle", driver.epoch, driver.overtaken)


def _committed(state: State, i: int, tables: Tables) -> State:
    """Whoever else has read a table will find it changed."""
    if state.drivers[i].epoch < state.epoch:
        state = state._replace(remembered=(STALE,))
    others = tuple(d if j == i else d._replace(overtaken=True) for j, d in enumerate(state.drivers))
    return state._replace(drivers=others, tables=tables)


_STEPS: Final[dict[str, Callable[[KeyedConfig, State, int, Driver], Moves]]] = {
    "recover": _recover,
    "idle": _idle,
    "commit": _commit,
    "commit.synced": _synced,
    "update.dispatch": _dispatch_updates,
    "update": _update,
    "dispatch": _dispatch,
    "deliver": _deliver,
    "close": _close,
    "read": _read,
    "ledger": _table,
    "states": _table,
    "exports": _table,
    "trim": _trim,
    "outbox": _table,
}
