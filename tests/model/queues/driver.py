"""Drivers of a plan between queues: from the look at the log to the commit of the wave, and the steps of settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.model.queues import settling
from tests.model.queues.actions import QueueStep
from tests.model.queues.walking import walks
from tests.model.queues.worker import begin
from tests.model.queues.world import (
    ERRORS,
    OUT,
    SKIP,
    Command,
    Driver,
    Fold,
    Head,
    Lane,
    QueueConfig,
    Row,
    Staging,
    State,
    Stop,
)
from tests.model.state import DOCUMENTS, LEDGER, OUTBOX, put

Moves = Iterator[tuple[QueueStep, State]]

STALE: Final = "a driver that was overtaken committed a wave"
_TABLES: Final = {"ledger": LEDGER, "documents": DOCUMENTS, "outbox": OUTBOX}
ORDER: Final = ("close", "read", "ledger", "documents", "trim", "outbox")
"""The steps of settle."""


def driver_moves(config: QueueConfig, state: State, i: int) -> Moves:
    """What the driver at this place may do next."""
    driver = state.drivers[i]
    yield from _STEPS[driver.at](config, state, i, driver)


# -- it starts -------------------------------------------------------------------------------------


def starts(config: QueueConfig, state: State) -> Moves:
    rival = bool(state.drivers)
    if state.ended:
        return
    if rival and (config.lock or len(state.drivers) > 1 or not state.budget.rivals):
        return
    epoch = state.epoch + 1
    others = tuple(d._replace(overtaken=(1, 1, 1)) for d in state.drivers)
    started = state._replace(drivers=(*others, Driver("recover", epoch)), epoch=epoch, unsynced=None)
    if rival:
        started = started._replace(budget=state.budget._replace(rivals=state.budget.rivals - 1))
    yield QueueStep("take.rival" if rival else "take", _name(started.drivers[-1])), started


def _recover(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    """Finish what was committed and is not settled; what is staged and not committed is nothing."""
    driver = driver._replace(wave=state.wave, fold=state.fold)
    if config.mutation == "recovery forgets what was refused":
        driver = driver._replace(fold=Fold(state.fold.appended))
    if config.mutation == "a new run counts the attempts of the entry that waits from none":
        state = state._replace(head=Head())
    unsettled = [name for name, table in _TABLES.items() if state.settled[table] < state.wave]
    if unsettled:
        driver = _toward(state, driver, ORDER[0] if "ledger" in unsettled else "documents")
    else:
        driver = _rest(driver)
    yield QueueStep("recover", _name(driver)), _moved(state, i, driver)


# -- look, walk, commit ----------------------------------------------------------------------------------


def _idle(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    if (command := _next_command(state)) is not None:
        yield _apply(config, state, i, driver._replace(command=command))
        return
    due = tuple(entry for entry, _ in state.waits)
    if due:
        retrying = driver._replace(at="walk", entries=due, retries=True, reached=state.position, head=state.head)
        yield QueueStep("look.retries", _name(driver)), _moved(state, i, retrying)
    fresh = () if driver.halted else tuple(range(state.position, state.arrived))[: config.slice]
    if fresh:
        reading = driver._replace(at="walk", entries=fresh, reached=fresh[-1] + 1)
        yield QueueStep("look", _name(driver)), _moved(state, i, reading)
    if state.outbox:
        nothing = driver._replace(at="commit", staged=(Staging(),), reached=state.position, head=state.head)
        yield QueueStep("redeliver", _name(driver)), _moved(state, i, nothing)
    elif driver.halted:
        ended = state.stop.told and len(state.drivers) == 1
        yield QueueStep("end.stopped", _name(driver)), without(state, i)._replace(ended=ended)
    elif any(driver.overtaken) and not due and not fresh:
        yield QueueStep("end", _name(driver)), without(state, i)


def _walk(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    for action, staging, after in walks(config, state, driver):
        walked = driver._replace(at="walked", staged=(*driver.staged, staging))
        yield QueueStep(action, _name(driver)), _moved(after, i, walked)


def _walked(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    """What counts of the walk: all of it, or nothing, and another walk up to the entry that has to wait."""
    blocked = driver.staged[-1].blocked
    if blocked.entry < 0 or config.mutation == "what lies behind an entry that waits counts":
        done = driver._replace(at=_ready(driver))
        if config.mutation == "the position is committed before the outputs":
            state = state._replace(position=driver.reached)
        if config.mutation == "the log is told of the position before the commit":
            state = state._replace(noted=driver.reached)
        yield QueueStep("done", _name(driver)), _moved(state, i, done)
        return
    before = tuple(entry for entry in driver.entries if entry < blocked.entry)
    left = driver.staged if config.mutation == "the files of both walks count" else ()
    cut = driver._replace(entries=before, reached=blocked.entry, head=blocked, staged=left, stopping=-1)
    if driver.staged[-1].stops:
        cut = cut._replace(head=state.head, stopping=blocked.entry)
    cut = cut._replace(at="walk") if before else cut._replace(at=_ready(cut), staged=(*left, Staging()))
    yield QueueStep("cut", _name(driver)), _moved(state, i, cut)


def _ready(driver: Driver) -> str:
    """The step after the walk that counts."""
    return "commit" if driver.stopping < 0 else "stop.staged"


def _stop_staged(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    """The event says why; where the same was told before, and nothing else is to be committed, there is no wave."""
    told = state.stop == Stop(driver.stopping, told=True)
    if told and driver.reached == state.position:
        yield QueueStep("stop.known", _name(driver)), _moved(state, i, _rest(driver._replace(halted=True)))
        return
    yield QueueStep("stop.staged", _name(driver)), _moved(state, i, driver._replace(at="commit", halted=True))


def _commit(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    if _fenced(config, driver, OUTBOX):
        yield _lost(state, i, driver)
        return
    staged = driver.staged if config.mutation == "the files of both walks count" else driver.staged[-1:]
    wave = state.wave + 1
    rows = [Row(*row, wave) for staging in staged for row in staging.rows]
    waits = tuple(wait for staging in staged for wait in staging.waits)
    if driver.epoch < state.epoch:
        state = state._replace(remembered=(*state.remembered, STALE))
    after = settling.with_rows(state, rows)._replace(wave=wave, staged=waits, position=driver.reached, head=driver.head)
    if config.mutation == "the position is committed after the outputs":
        after = after._replace(position=state.position)
    after = after._replace(failures=_failures(state, driver.head, waits), unsynced=settling.tables(state))
    failed = tuple(entry for staging in staged for entry in staging.failed)
    stop = _stop_after(state, driver)
    after = after._replace(stop=stop, stopped=stop.entry, failed=state.failed + failed)
    if config.mutation == "a stop is not in the commit of its wave":
        after = after._replace(stop=state.stop if driver.stopping >= 0 else stop)
    soon = "dispatch" if config.mutation == "the commit is sent before it is synced" else "commit.synced"
    driver = driver._replace(at=soon, wave=wave, work=_lanes(config, after), entries=(), staged=())
    yield QueueStep("commit", _name(driver)), _moved(_committed(after, i, OUTBOX), i, driver)


def _stop_after(state: State, driver: Driver) -> Stop:
    """The entry that the plan stops before when this wave is committed."""
    if driver.stopping >= 0:
        return Stop(driver.stopping, told=True)
    waits_itself = driver.head != state.head and driver.head.entry == state.stop.entry and not state.stop.passed
    return Stop() if driver.reached > state.stop.entry or waits_itself else state.stop


def _failures(state: State, head: Head, waits: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """How often each entry was committed as one that waits."""
    waiting = {entry for entry, attempt in waits if attempt}
    if head != state.head:
        waiting.add(head.entry)
    return tuple(n + (entry in waiting) for entry, n in enumerate(state.failures))


def _lanes(config: QueueConfig, state: State) -> tuple[Lane, ...]:
    """One task a queue: pending rows in the order of their sequences."""
    lanes = []
    for into in (OUT, ERRORS):
        due = [sequence for sequence in state.outbox if state.rows[sequence].into == into]
        if config.mutation == "the newest rows are appended first":
            due.sort(key=lambda sequence: -state.rows[sequence].wave)
        chunks = tuple(tuple(due[n : n + config.batch]) for n in range(0, len(due), config.batch))
        if chunks:
            lanes.append(Lane(into, chunks))
    return tuple(lanes)


def _synced(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    state = state._replace(unsynced=None)
    following = driver._replace(at="note") if driver.command is None else _toward(state, driver, ORDER[0])
    yield QueueStep("commit.synced", _name(driver)), _moved(state, i, following)


def _note(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    state = state._replace(noted=driver.reached)
    if config.mutation == "the position is committed after the outputs":
        state = state._replace(position=driver.reached)
    yield QueueStep("note", _name(driver)), _moved(state, i, driver._replace(at="dispatch"))


# -- operator commands -----------------------------------------------------------------------------------


def _next_command(state: State) -> Command | None:
    """The oldest; one that names no entry, which is a mutation, waits until there is one to apply it to."""
    stopped = state.stop.entry >= 0 and not state.stop.passed
    return next((command for command in state.commands if command.entry >= 0 or stopped), None)


def _apply(config: QueueConfig, state: State, i: int, driver: Driver) -> tuple[QueueStep, State]:
    """A wave of its own, if the plan still stops before the entry that the command is about."""
    command = driver.command
    assert command is not None
    if _fenced(config, driver, OUTBOX):
        return _lost(state, i, driver)
    if state.stop.entry < 0 or command.entry not in (state.stop.entry, -1):
        return QueueStep("command.void", _name(driver)), _moved(state, i, driver._replace(at="command.done"))
    wave, before = state.wave + 1, settling.tables(state)
    again = Stop(state.stop.entry, passed=command.verb == SKIP)
    if driver.epoch < state.epoch:
        state = state._replace(remembered=(*state.remembered, STALE))
    after = state._replace(stop=again, head=Head(), wave=wave, unsynced=before)
    following = driver._replace(at="commit.synced", wave=wave, reached=state.position)
    return QueueStep("command", _name(driver)), _moved(_committed(after, i, OUTBOX), i, following)


def _command_done(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    """The file goes when its wave is settled. Files carry no epoch: a driver that was overtaken does this too."""
    left = tuple(command for command in state.commands if command != driver.command)
    if config.mutation == "a skip is applied twice" and driver.command == Command(SKIP, driver.command.entry):
        left += (Command(SKIP, -1),) if driver.command.entry >= 0 else ()
    done = _moved(state._replace(commands=left), i, _rest(driver._replace(command=None)))
    yield QueueStep("command.done", _name(driver)), done


# -- deliver ---------------------------------------------------------------------------------------------


def _dispatch(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    for lane in driver.work:
        state = begin(state, lane, driver.wave, driver.epoch)
    yield QueueStep("dispatch", _name(driver)), _moved(state, i, driver._replace(at="deliver"))


def _deliver(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    done = _moved(state, i, _toward(state, driver, ORDER[0]))
    mine = [w for w in state.workers if w.pass_ == driver.wave and w.epoch == driver.epoch and not w.orphan]
    if not mine:
        yield QueueStep("deliver.done", _name(driver)), done
    elif state.budget.late:
        late = tuple(w._replace(orphan=True) if w in mine else w for w in state.workers)
        spent = done._replace(workers=late, budget=state.budget._replace(late=state.budget.late - 1))
        yield QueueStep("deliver.late", _name(driver)), spent


# -- settle ----------------------------------------------------------------------------------------------


def _close(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    closed = state._replace(closed=max(state.closed, driver.wave))
    yield QueueStep("close", _name(driver)), _moved(closed, i, _after(state, driver))


def _read(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    driver = driver._replace(fold=settling.read_fold(state, driver.wave))
    yield QueueStep("read", _name(driver)), _moved(state, i, _after(state, driver))


def _trim(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    """Journal files carry no epoch: a driver that was overtaken does this too."""
    left = frozenset(result for result in state.results if result.pass_ > driver.wave)
    trimmed = state._replace(results=left)
    yield QueueStep("trim", _name(driver)), _moved(trimmed, i, _after(state, driver))


def _table(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    """A commit of settle: of the table that this step is named after."""
    table = _TABLES[driver.at]
    if _fenced(config, driver, table):
        yield _lost(state, i, driver)
        return
    change = {
        "ledger": lambda: settling.with_events(state, driver.fold),
        "documents": lambda: settling.with_waits(state),
        "outbox": lambda: settling.without_done(config, state, driver.fold),
    }[driver.at]
    after = change()._replace(settled=put(state.settled, table, driver.wave))
    following = _after(after, driver)
    if driver.at == "outbox" and config.mutation == settling.BY_THEMSELVES and driver.fold.refused:
        following = driver._replace(at="errors")
    yield QueueStep(driver.at, _name(driver)), _moved(_committed(after, i, table), i, following)


def _errors(config: QueueConfig, state: State, i: int, driver: Driver) -> Moves:
    """Mutation: what was refused has left the outbox, its messages come to it later."""
    after = settling.with_refusals(state, driver.fold, driver.wave)
    yield QueueStep("errors", _name(driver)), _moved(after, i, _rest(driver))


# -- what they share -------------------------------------------------------------------------------------


def _name(driver: Driver) -> str:
    return f"driver {driver.epoch}"


def _moved(state: State, i: int, driver: Driver) -> State:
    return state._replace(drivers=(*state.drivers[:i], driver, *state.drivers[i + 1 :]))


def _rest(driver: Driver) -> Driver:
    """Between waves; a command that has become one is removed first."""
    at = "idle" if driver.command is None else "command.done"
    return Driver(at, driver.epoch, driver.wave, driver.overtaken, halted=driver.halted, command=driver.command)


def _toward(state: State, driver: Driver, step: str) -> Driver:
    """At this step of settle, or at the first one after it that is not done yet."""
    for later in ORDER[ORDER.index(step) :]:
        if later not in _TABLES or state.settled[_TABLES[later]] < driver.wave:
            return driver._replace(at=later, work=())
    return _rest(driver)


def _after(state: State, driver: Driver) -> Driver:
    at = ORDER.index(driver.at) + 1
    return _toward(state, driver, ORDER[at]) if at < len(ORDER) else _rest(driver)


def _fenced(config: QueueConfig, driver: Driver, table: int) -> bool:
    return bool(driver.overtaken[table]) and config.mutation != "a commit does not look at the epoch"


def _committed(state: State, i: int, table: int) -> State:
    """Whoever else has read this table will find it changed."""
    drivers = tuple(
        d if j == i else d._replace(overtaken=put(d.overtaken, table, 1)) for j, d in enumerate(state.drivers)
    )
    return state._replace(drivers=drivers)


def _lost(state: State, i: int, driver: Driver) -> tuple[QueueStep, State]:
    return QueueStep("lost", _name(driver)), without(state, i)


def without(state: State, i: int) -> State:
    """A driver ends; its workers may go on, and nobody waits for them."""
    epoch = state.drivers[i].epoch
    workers = tuple(sorted(w._replace(orphan=True) if w.epoch == epoch else w for w in state.workers))
    return state._replace(drivers=state.drivers[:i] + state.drivers[i + 1 :], workers=workers)


_STEPS: Final[dict[str, Callable[[QueueConfig, State, int, Driver], Moves]]] = {
    "recover": _recover,
    "idle": _idle,
    "walk": _walk,
    "walked": _walked,
    "stop.staged": _stop_staged,
    "command.done": _command_done,
    "commit": _commit,
    "commit.synced": _synced,
    "note": _note,
    "dispatch": _dispatch,
    "deliver": _deliver,
    "close": _close,
    "read": _read,
    "ledger": _table,
    "documents": _table,
    "trim": _trim,
    "outbox": _table,
    "errors": _errors,
}
