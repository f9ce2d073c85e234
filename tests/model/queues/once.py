"""A model of an at-most-once plan: a commit names the entries before a step sees them, and a task begins once.

What becomes of outputs and error messages after the wave's commit is the other model's: here an entry has ended then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.model.actions import Action, Step, told
from tests.model.state import Budget

ENDED, PENDING, IN_DOUBT = "ended", "pending", "in doubt"
STALE: Final = "a driver that was overtaken committed"

ONCE_ACTIONS: Final[dict[str, Action]] = {
    "crash.driver": Action("the driver is killed, its task goes on", fault=True),
    "crash.retry": Action("a worker is killed, Spark starts its task again", fault=True),
    "crash.all": Action("everything is killed", fault=True),
    "crash.power": Action("the power goes before a commit is synced", (), ("intake.logged", "wave.logged"), fault=True),
    "take": Action("a driver starts, and announces its epoch", ("state.state.State.take",)),
    "take.rival": Action("a driver starts while another one lives", ("state.state.State.take",), fault=True),
    "lost": Action("finds that another driver has taken over, and stops", ("storage.tables.taken_over_error",)),
    "end": Action("has nothing more to do, and ends without having noticed that it was overtaken"),
    "look": Action(
        "takes what is to be run again, or what lies behind the position",
        ("engine.at_most_once.OnceRanges.due_splits",),
    ),
    "intake": Action(
        "commits what its wave takes, and the position behind it", ("engine.at_most_once.begin_once_wave",)
    ),
    "intake.synced": Action("syncs that commit", (), ("intake.synced",)),
    "dispatch": Action("starts a task", ("engine.transform.phase.TransformPhase.run",)),
    "dispatch.double": Action("a second attempt of the task starts", fault=True),
    "begin": Action(
        "a task makes the file that says that it has begun", ("engine.once_task.run_once",), ("once.begun",)
    ),
    "note": Action(
        "notes that those before the next entry are done, and that a step may see this one",
        ("engine.transform.once_reader.OnceReader.process_block", "engine.once_task.TaskNotes.sync"),
    ),
    "check": Action("looks whether it was stopped", ("engine.once_task.TaskNotes.sync",), ("once.noted",)),
    "step": Action("a step sees the entry", ("engine.transform.walk.run_walk",)),
    "away": Action("a node is away, so that the task ends before the next entry", fault=True),
    "last": Action("notes that all are done", ("engine.transform.once_reader.OnceReader.finish",), ("once.walked",)),
    "keep": Action("the task keeps what it made", ("engine.once_task.run_once",), ("once.kept",)),
    "stop": Action(
        "a later run of the task takes the first one for dead, and stops it",
        ("engine.once_task.run_once",),
        ("once.stopped",),
    ),
    "rebuild": Action(
        "reads the notes, and keeps what had been made",
        ("engine.transform.once_reader.stage_notes",),
        ("once.rebuilt",),
    ),
    "judge": Action(
        "what has the task come to? If it has not begun, it cannot any more", ("engine.once_task.kept_result",)
    ),
    "judge.stop": Action("stops a task that has kept nothing", ("engine.once_task.kept_result",)),
    "judge.rebuild": Action("reads its notes, and keeps what it had made", ("engine.once_task.kept_result",)),
    "commit": Action(
        "commits the wave: what has become of each entry",
        ("engine.at_most_once.OnceRanges.results_of",),
        ("transform.done",),
    ),
    "commit.synced": Action("syncs that commit", (), ("wave.synced",)),
    "over": Action("removes the wave's folder", ("engine.at_most_once.end_once_wave",)),
}


class OnceStep(Step):
    """One step of a trace."""

    __slots__ = ()

    def __str__(self) -> str:
        return told(self, ONCE_ACTIONS)


Folder = tuple[int, int]
"""Wave and epoch."""


class Taken(NamedTuple):
    """An intake: what a wave has taken."""

    wave: int
    epoch: int
    """Of the driver that took it; its folder is named after both."""
    entries: tuple[int, ...]

    @property
    def folder(self) -> Folder:
        return self.wave, self.epoch


class Kept(NamedTuple):
    """What a task has kept, or what was kept for it: of its wave's entries so many are done, and so many more are in
    doubt."""

    folder: Folder
    done: int
    doubt: int = 0


class OnceDriver(NamedTuple):
    """A driver's memory."""

    at: str
    epoch: int
    overtaken: bool = False
    taken: Taken = Taken(0, 0, ())
    fates: tuple[str, ...] = ()
    """Of the entries of its wave."""


class Task(NamedTuple):
    """The task of a wave; it outlives its driver."""

    taken: Taken
    epoch: int
    at: str
    done: int = 0
    """Entries of its wave that it is done with."""
    read: Kept | None = None
    """What it has read of the first run's notes."""


class Tables(NamedTuple):
    """What is committed."""

    position: int = 0
    wave: int = 0
    taken: Taken = Taken(0, 0, ())
    """By the last intake."""
    fates: tuple[str, ...] = ()


class OnceState(NamedTuple):
    """Everything."""

    tables: Tables
    unsynced: Tables | None = None
    """What a power cut would put in their place."""
    epoch: int = 0
    folders: frozenset[Folder] = frozenset()
    """In which a task may begin."""
    begun: frozenset[Folder] = frozenset()
    stopped: frozenset[Folder] = frozenset()
    """Of tasks that have begun, and must not call any more."""
    notes: frozenset[Kept] = frozenset()
    """What the last note of each task says."""
    kept: frozenset[Kept] = frozenset()
    drivers: tuple[OnceDriver, ...] = ()
    tasks: tuple[Task, ...] = ()
    calls: tuple[int, ...] = ()
    """Observed: how often the steps have seen each entry."""
    budget: Budget = Budget()
    remembered: tuple[str, ...] = ()


class OnceConfig(NamedTuple):
    """What is explored."""

    name: str
    entries: int
    budget: Budget = Budget()
    slice: int = 9
    lock: bool = True
    mutation: str = ""

    def first(self) -> OnceState:
        """The world before the first start."""
        nothing = Tables(fates=("",) * self.entries)
        return OnceState(nothing, budget=self.budget, calls=(0,) * self.entries)


Moves = Iterator[tuple[OnceStep, OnceState]]


def once_moves(config: OnceConfig, state: OnceState, *, outside: bool = True) -> Moves:
    """Everything that may happen next."""
    rival = bool(state.drivers)
    if not rival or (not config.lock and len(state.drivers) < 2 and state.budget.rivals):
        yield _start(state, rival=rival)
    for i, driver in enumerate(state.drivers):
        yield from _driver_moves(config, state, i, driver)
    yield from _crashes(state)
    for task in dict.fromkeys(state.tasks):
        yield from _task_moves(config, state, task)


def _start(state: OnceState, *, rival: bool) -> tuple[OnceStep, OnceState]:
    others = tuple(d._replace(overtaken=True) for d in state.drivers)
    driver = OnceDriver("recover", state.epoch + 1)
    started = state._replace(drivers=(*others, driver), epoch=driver.epoch, unsynced=None)
    if rival:
        started = _spent(started, "rivals")
    return OnceStep("take.rival" if rival else "take", f"driver {driver.epoch}"), started


# -- drivers -----------------------------------------------------------------------------------------


def _driver_moves(config: OnceConfig, state: OnceState, i: int, driver: OnceDriver) -> Moves:
    name, tables = f"driver {driver.epoch}", state.tables
    match driver.at:
        case "recover":
            forgets = config.mutation == "an intake without its wave is forgotten"
            unfinished = tables.taken.wave > tables.wave and not forgets
            driver = driver._replace(at="judge" if unfinished else "idle", taken=tables.taken)
            yield from _driver_moves(config, _moved(state, i, driver), i, driver)
        case "idle":
            yield from _idle(config, state, i, driver)
        case "intake" | "commit" if driver.overtaken and config.mutation != "a commit does not look at the epoch":
            yield OnceStep("lost", name), _without(state, i)
        case "intake":
            yield OnceStep("intake", name), _intake(config, state, i, driver)
        case "intake.synced":
            yield OnceStep("intake.synced", name), _synced(state, i, driver._replace(at="dispatch"))
        case "dispatch":
            waiting = _moved(state, i, driver._replace(at="wait"))
            yield OnceStep("dispatch", name), _with_task(waiting, Task(driver.taken, driver.epoch, "begin"))
        case "wait":
            if state.budget.doubles:
                again = Task(driver.taken, driver.epoch, "begin")
                yield OnceStep("dispatch.double", name), _with_task(_spent(state, "doubles"), again)
            returned = _kept(state, driver.taken.folder) is not None
            if returned or not any(task.epoch == driver.epoch for task in state.tasks):
                yield from _judge(config, state, i, driver)
        case "judge":
            yield from _judge(config, state, i, driver)
        case "judge.stop" | "judge.rebuild":
            yield from _rebuild(config, state, i, driver)
        case "commit":
            yield OnceStep("commit", name), _commit(state, i, driver)
        case "commit.synced":
            yield OnceStep("commit.synced", name), _synced(state, i, driver._replace(at="over"))
        case "over":
            yield OnceStep("over", name), _moved(_removed(state, driver.taken.folder), i, _idle_again(driver))


def _idle(config: OnceConfig, state: OnceState, i: int, driver: OnceDriver) -> Moves:
    """Ranges that are to be run again come first."""
    name, tables = f"driver {driver.epoch}", state.tables
    entries = tuple(entry for entry, fate in enumerate(tables.fates) if fate == PENDING)
    entries = entries or tuple(range(tables.position, config.entries))[: config.slice]
    if entries:
        taken = Taken(tables.wave + 1, driver.epoch, entries)
        yield OnceStep("look", name), _moved(state, i, driver._replace(at="intake", taken=taken))
    elif driver.overtaken:
        yield OnceStep("end", name), _without(state, i)


def _intake(config: OnceConfig, state: OnceState, i: int, driver: OnceDriver) -> OnceState:
    taken = driver.taken
    behind = max(state.tables.position, taken.entries[-1] + 1)
    tables = state.tables._replace(position=behind, taken=taken)
    after = _committed(state, i, driver, tables)._replace(folders=state.folders | {taken.folder})
    hasty = config.mutation == "the steps begin before the intake is synced"
    return _moved(after, i, driver._replace(at="dispatch" if hasty else "intake.synced"))


def _judge(config: OnceConfig, state: OnceState, i: int, driver: OnceDriver) -> Moves:
    """What is kept counts; a task that has kept nothing is stopped first; one that has not begun cannot any more."""
    taken, name = driver.taken, f"driver {driver.epoch}"
    if (found := _kept(state, taken.folder)) is not None:
        whole = config.mutation == "a task that came to an outage counts as a whole"
        rest = IN_DOUBT if config.mutation == "an outage leaves the rest in doubt" else PENDING
        careless = {"what had begun counts as ended": ENDED, "what had begun is run again": PENDING}
        fates = (ENDED,) * found.done + (careless.get(config.mutation, IN_DOUBT),) * found.doubt
        fates += (ENDED if whole else rest,) * (len(taken.entries) - len(fates))
    elif taken.folder not in state.folders:
        fates = (IN_DOUBT,) * len(taken.entries)
    elif taken.folder in state.begun:
        hasty = config.mutation == "the notes are read before the task is stopped"
        yield OnceStep("judge", name), _moved(state, i, driver._replace(at="judge.rebuild" if hasty else "judge.stop"))
        return
    else:
        fates = (PENDING,) * len(taken.entries)
        if config.mutation != "what has not begun may still begin":
            state = state._replace(begun=state.begun | {taken.folder}, stopped=state.stopped | {taken.folder})
    yield OnceStep("judge", name), _moved(state, i, driver._replace(at="commit", fates=fates))


def _rebuild(config: OnceConfig, state: OnceState, i: int, driver: OnceDriver) -> Moves:
    """A driver finds out what a task had made that has kept nothing."""
    name, folder = f"driver {driver.epoch}", driver.taken.folder
    hasty = config.mutation == "the notes are read before the task is stopped"
    if driver.at == "judge.stop":
        stopped = state._replace(stopped=state.stopped | {folder})
        yield (
            OnceStep("judge.stop", name),
            _moved(stopped, i, driver._replace(at="judge" if hasty else "judge.rebuild")),
        )
    else:
        read, after = _keep(state, _noted(state, folder)), driver._replace(at="judge.stop" if hasty else "judge")
        yield OnceStep("judge.rebuild", name), _moved(read, i, after)


def _commit(state: OnceState, i: int, driver: OnceDriver) -> OnceState:
    fates = list(state.tables.fates)
    for entry, fate in zip(driver.taken.entries, driver.fates, strict=True):
        fates[entry] = fate
    behind = max(state.tables.position, driver.taken.entries[-1] + 1)
    tables = state.tables._replace(position=behind, wave=driver.taken.wave, fates=tuple(fates))
    return _moved(_committed(state, i, driver, tables), i, driver._replace(at="commit.synced"))


def _committed(state: OnceState, i: int, driver: OnceDriver, tables: Tables) -> OnceState:
    if driver.epoch < state.epoch:
        state = state._replace(remembered=(*state.remembered, STALE))
    others = tuple(d if j == i else d._replace(overtaken=True) for j, d in enumerate(state.drivers))
    return state._replace(drivers=others, unsynced=state.tables, tables=tables)


def _synced(state: OnceState, i: int, driver: OnceDriver) -> OnceState:
    return _moved(state._replace(unsynced=None), i, driver)


def _removed(state: OnceState, folder: Folder) -> OnceState:
    """Without the folder of a wave, and all that its task has left in it."""
    return state._replace(
        folders=state.folders - {folder},
        begun=state.begun - {folder},
        stopped=state.stopped - {folder},
        notes=frozenset(note for note in state.notes if note.folder != folder),
        kept=frozenset(kept for kept in state.kept if kept.folder != folder),
    )


def _idle_again(driver: OnceDriver) -> OnceDriver:
    return OnceDriver("idle", driver.epoch, driver.overtaken)


# -- tasks -------------------------------------------------------------------------------------------


def _task_moves(config: OnceConfig, state: OnceState, task: Task) -> Moves:
    name, folder = f"task of wave {task.taken.wave}", task.taken.folder
    alone, entries = _left(state, task), task.taken.entries
    there = folder in state.folders
    match task.at:
        case "begin":
            blind = config.mutation == "a task does not look whether it has begun"
            if there and (blind or folder not in state.begun):
                begun = alone._replace(begun=state.begun | {folder})
                yield OnceStep("begin", name), _with_task(begun, task._replace(at="note"))
            else:
                kept = not there or _kept(state, folder) is not None
                yield OnceStep("begin", name), alone if kept else _with_task(alone, task._replace(at="stop"))
        case "note" if task.done < len(entries):
            first = config.mutation == "a step is called before that is noted"
            noted = _note(alone, Kept(folder, task.done, 1)) if there and not first else alone
            yield OnceStep("note", name), _with_task(noted, task._replace(at="check")) if there else alone
            if state.budget.faults:
                yield OnceStep("away", name), _with_task(_spent(alone, "faults"), task._replace(at="keep"))
        case "note":
            noted = _note(alone, Kept(folder, task.done)) if there else alone
            yield OnceStep("last", name), _with_task(noted, task._replace(at="keep")) if there else alone
        case "check":
            blind = config.mutation == "a task does not look whether it was stopped"
            goes_on = blind or (there and folder not in state.stopped)
            yield OnceStep("check", name), _with_task(alone, task._replace(at="step")) if goes_on else alone
        case "step":
            calls = tuple(n + (entry == entries[task.done]) for entry, n in enumerate(state.calls))
            called = alone._replace(calls=calls)
            yield OnceStep("step", name), _with_task(called, task._replace(at="note", done=task.done + 1))
        case "keep":
            yield OnceStep("keep", name), _keep(alone, Kept(folder, task.done)) if there else alone
        case "stop" | "rebuild":
            yield from _later_run(config, state, task)


def _later_run(config: OnceConfig, state: OnceState, task: Task) -> Moves:
    """A run of a task that another one has begun takes it over, whether that is dead or only seems so."""
    name, folder, alone = f"task of wave {task.taken.wave}", task.taken.folder, _left(state, task)
    if folder not in state.folders:
        yield OnceStep(task.at, name), alone
        return
    stopped = alone._replace(stopped=state.stopped | {folder})
    hasty = config.mutation == "the notes are read before the task is stopped"
    if task.at == "stop":
        after = task._replace(at="rebuild", read=_noted(state, folder) if hasty else None)
        yield OnceStep("stop", name), _with_task(alone if hasty else stopped, after)
    else:
        yield OnceStep("rebuild", name), _keep(stopped, task.read or _noted(state, folder))


def _kept(state: OnceState, folder: Folder) -> Kept | None:
    return next((kept for kept in state.kept if kept.folder == folder), None)


def _keep(state: OnceState, kept: Kept) -> OnceState:
    """The first that is kept counts."""
    return state if _kept(state, kept.folder) is not None else state._replace(kept=state.kept | {kept})


def _noted(state: OnceState, folder: Folder) -> Kept:
    return next((note for note in state.notes if note.folder == folder), Kept(folder, 0))


def _note(state: OnceState, note: Kept) -> OnceState:
    others = {each for each in state.notes if each.folder != note.folder}
    return state._replace(notes=frozenset({*others, note}))


# -- crashes -----------------------------------------------------------------------------------------


def _crashes(state: OnceState) -> Moves:
    if not state.budget.crashes:
        return
    spent = _spent(state, "crashes")
    for i, driver in enumerate(state.drivers):
        yield OnceStep("crash.driver", f"driver {driver.epoch}"), _without(spent, i)
    for task in dict.fromkeys(t for t in state.tasks if any(d.epoch == t.epoch for d in state.drivers)):
        name = f"task of wave {task.taken.wave}"
        yield OnceStep("crash.retry", name), _with_task(_left(spent, task), Task(task.taken, task.epoch, "begin"))
    if state.unsynced is not None:
        cut = spent._replace(tables=state.unsynced, unsynced=None, drivers=(), tasks=())
        yield OnceStep("crash.power"), cut


def _spent(state: OnceState, what: str) -> OnceState:
    return state._replace(budget=state.budget._replace(**{what: getattr(state.budget, what) - 1}))


def _moved(state: OnceState, i: int, driver: OnceDriver) -> OnceState:
    return state._replace(drivers=(*state.drivers[:i], driver, *state.drivers[i + 1 :]))


def _without(state: OnceState, i: int) -> OnceState:
    return state._replace(drivers=state.drivers[:i] + state.drivers[i + 1 :])


def _with_task(state: OnceState, task: Task) -> OnceState:
    return state._replace(tasks=tuple(sorted((*state.tasks, task))))


def _left(state: OnceState, task: Task) -> OnceState:
    at = state.tasks.index(task)
    return state._replace(tasks=state.tasks[:at] + state.tasks[at + 1 :])
