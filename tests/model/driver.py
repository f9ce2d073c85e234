"""Drivers: what one may do next, from its start to the end of a wave, and again.

A driver is where ``Driver.at`` says; each of its steps is one function below, under the name of its action. The steps
follow the numbers of ``docs/reference/protocol.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.model import executor, settling
from tests.model.actions import Step
from tests.model.moves import Moves, moved, name, rest, take
from tests.model.state import (
    DOCUMENTS,
    LEDGER,
    OUTBOX,
    Config,
    Delivery,
    Driver,
    Fold,
    Row,
    Staging,
    State,
    Told,
    Waiting,
    put,
)
from tests.model.transforming import is_due, transform, transform_ahead

ORDER: Final = ("close", "read", "ledger", "documents", "trim", "outbox")
"""The steps of settle."""
_BESIDE: Final = frozenset({"dispatch", "deliver", *ORDER})
"""Steps beside which the next wave is transformed."""
STALE: Final = "a driver that was overtaken committed a wave"
_MUTATED_ORDER: Final = {
    "the journal is read before the pass is closed": ("read", "close", "ledger", "documents", "trim", "outbox"),
    "the outbox is committed before the ledger": ("close", "read", "outbox", "ledger", "documents", "trim"),
    "the outbox follows the journal, not the ledger": ("close", "read", "ledger", "documents", "outbox", "trim"),
    "the journal is trimmed before the ledger is committed": ("close", "read", "trim", "ledger", "documents", "outbox"),
}


def driver_moves(config: Config, state: State, i: int) -> Moves:
    """What the driver at this place may do next."""
    driver = state.drivers[i]
    yield from _STEPS[driver.at](config, state, i, driver)
    if driver.at in _BESIDE:
        yield from transform_ahead(config, state, i, driver)


# -- it starts -------------------------------------------------------------------------------------


def starts(config: Config, state: State) -> Moves:
    rival = bool(state.drivers)
    if rival and (config.lock or len(state.drivers) > 1 or not state.budget.rivals):
        return
    started = state._replace(drivers=(*state.drivers, Driver("epoch", 1 + max(state.epochs))), unsynced=False)
    if rival:
        budget = state.budget._replace(rivals=state.budget.rivals - 1)
        yield Step("take.rival"), started._replace(budget=budget)
    else:
        yield Step("take"), started


def _epoch(config: Config, state: State, i: int, driver: Driver) -> Moves:
    """On one table after the other; only then anything is closed or recovered."""
    table = driver.wave  # before there is a wave: the table that is next
    if driver.overtaken[table] or state.epochs[table] >= driver.epoch:
        yield _lost(config, state, i, driver)
        return
    epochs = put(state.epochs, table, driver.epoch)
    state = _committed(state._replace(epochs=epochs), i, table)
    after = driver._replace(wave=table + 1) if table < LEDGER else _loaded(config, state, driver)
    yield Step("epoch", name(driver)), moved(state, i, after)


def _loaded(config: Config, state: State, driver: Driver) -> Driver:
    """What it recovers follows from what it has loaded, which nobody had changed when it announced itself."""
    unsettled = [t for t in (LEDGER, DOCUMENTS, OUTBOX) if state.settled[t] < state.wave]
    if config.mutation == "recovery looks at the ledger only" and LEDGER not in unsettled:
        unsettled = []
    driver = driver._replace(at="recover", wave=state.wave, fold=state.fold)
    if not unsettled:
        nothing = (Staging((), (driver.epoch, 0)),) if config.mutation == "every start opens a wave" else ()
        return driver._replace(then="commit" if nothing else "idle", fold=Fold(), staged=nothing)
    order = _order(config)
    then = _toward(config, state, driver, order[0] if LEDGER in unsettled else "documents").at
    return driver._replace(then=then)


def _recover(config: Config, state: State, i: int, driver: Driver) -> Moves:
    """Finish what was committed and is not settled; what is staged and not committed is nothing."""
    if config.mutation == "recovery transforms again":
        state = _made_anew(state, driver)
    driver = driver._replace(at=driver.then, then="")
    if config.mutation == "a listing outlives its driver":
        driver, state = driver._replace(taken_up=state.kept), state._replace(kept=())
    if state.left:  # only under a mutation
        driver, state = take(config, driver, state.left[0]), state._replace(left=())
    if driver.at == "idle":
        driver = rest(config, driver)
    yield Step("recover", name(driver)), moved(state, i, driver)


def _made_anew(state: State, driver: Driver) -> State:
    """Mutation: the rows of the unsettled wave get the bytes of another attempt."""
    if min(state.settled) == state.wave:
        return state
    rows = (row._replace(made=(driver.epoch, 0)) if row.wave == state.wave else row for row in state.rows)
    return state._replace(rows=tuple(rows))


# -- scan, transform, commit -----------------------------------------------------------------------------


def _idle(config: Config, state: State, i: int, driver: Driver) -> Moves:
    listed = tuple(d for d in range(len(config.histories)) if is_due(config, state, d))
    if listed:
        taken = driver._replace(at="transform", taken_up=listed)
        if config.mutation == "a listing outlives its driver":
            state = state._replace(kept=listed)
        yield Step("scan", name(driver)), moved(state, i, taken)
    if settling.late_answers(state) or any(not w.parked for w in state.outbox):
        nothing = driver._replace(at="commit", staged=(Staging((), (driver.epoch, 0)),))
        yield Step("redeliver", name(driver)), moved(state, i, nothing)
    elif any(driver.overtaken) and not listed:
        yield Step("end", name(driver)), without(config, state, i)


def _commit(config: Config, state: State, i: int, driver: Driver) -> Moves:
    if _fenced(config, driver, OUTBOX):
        yield _lost(config, state, i, driver)
        return
    [staging] = driver.staged
    wave = driver.wave + 1
    rows = [
        Row(Delivery(document, destination, version, revision, member), wave, staging.made)
        for destination in range(len(config.destinations))
        for document, version, revision, member in staging.rows
    ]
    fresh = tuple(Waiting(len(state.rows) + n, 0, parked=False) for n in range(len(rows)))
    if driver.epoch < state.epochs[OUTBOX] or wave <= state.wave:
        state = state._replace(remembered=(*state.remembered, STALE))
    state = state._replace(
        rows=state.rows + tuple(rows),
        told=state.told + (Told(),) * len(rows),
        ledger=state.ledger + ("",) * len(rows),
        outbox=state.outbox + fresh,
        wave=wave,
        staged=staging.documents,
        unsynced=True,
    )
    soon = "dispatch" if config.mutation == "the commit is sent before it is synced" else "commit.synced"
    driver = driver._replace(at=soon, wave=wave, staged=(), work=settling.lanes(config, state))
    yield Step("commit", name(driver)), moved(_committed(state, i, OUTBOX), i, driver)


def _synced(config: Config, state: State, i: int, driver: Driver) -> Moves:
    yield Step("commit.synced", name(driver)), moved(state._replace(unsynced=False), i, driver._replace(at="dispatch"))


# -- deliver ---------------------------------------------------------------------------------------------


def _dispatch(config: Config, state: State, i: int, driver: Driver) -> Moves:
    for lane in driver.work:
        state = executor.begin(config, state, lane, driver.wave)
    yield Step("dispatch", name(driver)), moved(state, i, driver._replace(at="deliver"))


def _deliver(config: Config, state: State, i: int, driver: Driver) -> Moves:
    """Wait for the lanes; the loser of a pair, or a worker that nobody hears of any more, may be left behind."""
    if state.budget.doubles:
        for lane in driver.work:
            spent = state._replace(budget=state.budget._replace(doubles=state.budget.doubles - 1))
            yield Step("dispatch.double", name(driver)), executor.begin(config, spent, lane, driver.wave)
    done = moved(state, i, _toward(config, state, driver, _order(config)[0]))
    if config.mutation == "a wave commits before the one before it is settled" and driver.ahead:
        done = moved(state, i, rest(config, driver))
    mine = [w for w in state.workers if w.pass_ == driver.wave and not w.orphan]
    if not mine:
        yield Step("deliver.done", name(driver)), done
    elif state.budget.late:
        late = tuple(w._replace(orphan=True) if w in mine else w for w in state.workers)
        spent = done._replace(workers=late, budget=state.budget._replace(late=state.budget.late - 1))
        yield Step("deliver.late", name(driver)), spent


# -- settle ----------------------------------------------------------------------------------------------


def _order(config: Config) -> tuple[str, ...]:
    return _MUTATED_ORDER.get(config.mutation, ORDER)


def _toward(config: Config, state: State, driver: Driver, step: str) -> Driver:
    """At this step of settle, or at the first one after it that is not done yet."""
    order = _order(config)
    tables = {"ledger": LEDGER, "documents": DOCUMENTS, "outbox": OUTBOX}
    for later in order[order.index(step) :]:
        if later not in tables or state.settled[tables[later]] < driver.wave:
            return driver._replace(at=later)
    return rest(config, driver)


def _after(config: Config, state: State, driver: Driver) -> Driver:
    """At the step of settle after this one."""
    order = _order(config)
    at = order.index(driver.at) + 1
    return _toward(config, state, driver, order[at]) if at < len(order) else rest(config, driver)


def _close(config: Config, state: State, i: int, driver: Driver) -> Moves:
    closed = state._replace(closed=max(state.closed, driver.wave))
    yield Step("close", name(driver)), moved(closed, i, _after(config, state, driver))


def _read(config: Config, state: State, i: int, driver: Driver) -> Moves:
    driver = driver._replace(fold=settling.read_fold(config, state, driver.wave))
    yield Step("read", name(driver)), moved(state, i, _after(config, state, driver))


def _ledger(config: Config, state: State, i: int, driver: Driver) -> Moves:
    if _fenced(config, driver, LEDGER):
        yield _lost(config, state, i, driver)
        return
    state = _settled(settling.with_events(state, driver.fold), LEDGER, driver.wave)
    yield Step("ledger", name(driver)), moved(_committed(state, i, LEDGER), i, _after(config, state, driver))


def _documents(config: Config, state: State, i: int, driver: Driver) -> Moves:
    if _fenced(config, driver, DOCUMENTS):
        yield _lost(config, state, i, driver)
        return
    state = _settled(settling.with_known(state, state.staged), DOCUMENTS, driver.wave)
    yield Step("documents", name(driver)), moved(_committed(state, i, DOCUMENTS), i, _after(config, state, driver))


def _trim(config: Config, state: State, i: int, driver: Driver) -> Moves:
    """Journal files carry no epoch: a driver that was overtaken does this too."""
    trimmed = settling.trimmed(state, driver.wave, driver.fold.unknown)
    yield Step("trim", name(driver)), moved(trimmed, i, _after(config, trimmed, driver))


def _outbox(config: Config, state: State, i: int, driver: Driver) -> Moves:
    if _fenced(config, driver, OUTBOX):
        yield _lost(config, state, i, driver)
        return
    fold = driver.fold
    if config.mutation == "the outbox follows the journal, not the ledger":
        fold = settling.read_fold(config, state, driver.wave)
    state = _settled(settling.without_done(state, fold), OUTBOX, driver.wave)
    state = state._replace(kept=driver.taken_up if state.kept else ())
    yield Step("outbox", name(driver)), moved(_committed(state, i, OUTBOX), i, _after(config, state, driver))


# -- what they share -------------------------------------------------------------------------------------


def _settled(state: State, table: int, wave: int) -> State:
    return state._replace(settled=put(state.settled, table, wave))


def _fenced(config: Config, driver: Driver, table: int) -> bool:
    """Version and epoch are compared on the handle that commits: has anybody else committed since?"""
    return bool(driver.overtaken[table]) and config.mutation != "a commit does not look at the epoch"


def _committed(state: State, i: int, table: int) -> State:
    """Whoever else has read this table will find it changed."""
    drivers = tuple(
        d if j == i or d.overtaken[table] else d._replace(overtaken=put(d.overtaken, table, 1))
        for j, d in enumerate(state.drivers)
    )
    return state._replace(drivers=drivers)


def _lost(config: Config, state: State, i: int, driver: Driver) -> tuple[Step, State]:
    return Step("lost", name(driver)), without(config, state, i)


def without(config: Config, state: State, i: int) -> State:
    """A driver ends; its workers may go on, and nobody waits for them."""
    driver = state.drivers[i]
    workers = state.workers
    if driver.at == "deliver":
        workers = tuple(sorted(w._replace(orphan=True) if w.pass_ == driver.wave else w for w in workers))
    left = driver.ahead if config.mutation == "what was staged ahead outlives its driver" else ()
    return state._replace(drivers=state.drivers[:i] + state.drivers[i + 1 :], workers=workers, left=left or state.left)


_STEPS: Final[dict[str, Callable[[Config, State, int, Driver], Moves]]] = {
    "epoch": _epoch,
    "recover": _recover,
    "idle": _idle,
    "transform": transform,
    "commit": _commit,
    "commit.synced": _synced,
    "dispatch": _dispatch,
    "deliver": _deliver,
    "close": _close,
    "read": _read,
    "ledger": _ledger,
    "documents": _documents,
    "trim": _trim,
    "outbox": _outbox,
}
