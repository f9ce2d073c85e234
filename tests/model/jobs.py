"""A job of the intake queue, its lock, and the threads that want it: the worlds, and every step that may come next.

A step is what others can see: one commit of the store, one look at it. On ZooKeeper the look at whose lock it is comes
before the commit; in SQLite both are one (``Config.atomic``). A request that was sent takes effect later, or never,
also when its process was killed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

DONE: Final = 2
"""The state after those in which there is work, 0 and 1."""
FAILED: Final = 9


class Lock(NamedTuple):
    """The node that says who works at the job."""

    session: int
    creation: int


class Thread(NamedTuple):
    """A thread and the object through which it works at the job."""

    phase: str = "idle"
    """idle, locked (the lock is made, and not read yet), held, worked, looked, sent, over (given back, or lost)."""
    session: int = 0
    creation: int = 0
    """Of the lock that it believes to be its own."""
    made: int = 0
    """Of the lock that is."""
    state: int = 0
    version: int = 0
    worked: int = -1
    """The state whose work it has done."""


class Move(NamedTuple):
    """A request under way: the job goes to the next state, and the lock away."""

    thread: int
    """Whose it is; -1 when its process was killed."""
    session: int
    creation: int
    made: int
    version: int
    after: int
    worked: int


class Budget(NamedTuple):
    """How often what may go wrong."""

    kills: int = 0
    sessions: int = 0
    """Sessions that end under a process that lives."""
    unlocks: int = 0
    """An operator's."""
    fails: int = 0
    others: int = 0
    """Changes through an object that never held the lock."""
    tools: int = 0
    """Other programs that remove the lock's node, and nothing else."""
    strays: int = 0
    """Other programs that move the job, and heed no lock."""


class World(NamedTuple):
    """What the store holds, and what each thread believes."""

    threads: tuple[Thread, ...]
    sessions: tuple[int, ...]
    """Of each process, the one that it believes in."""
    budget: Budget
    live: frozenset[int]
    state: int = 0
    version: int = 0
    resumes: int = 0
    """Where a failed job is tried again."""
    lock: Lock | None = None
    creations: int = 0
    flying: frozenset[Move] = frozenset()
    broken: str = ""
    """What the last step has broken."""


class Config(NamedTuple):
    """What is explored. ``processes``: of each thread, the process that it belongs to."""

    name: str
    processes: tuple[int, ...]
    budget: Budget
    atomic: bool = False
    fault: str = ""

    def first(self) -> World:
        sessions = tuple(range(1, max(self.processes) + 2))
        return World(tuple(Thread() for _ in self.processes), sessions, self.budget, frozenset(sessions))


class Step(NamedTuple):
    """A step of a trace."""

    what: str
    who: str
    fault: bool = False


Steps = Iterator[tuple[Step, World]]


def steps(config: Config, world: World) -> Steps:
    """Each step that may come next, and the world after it."""
    for n, thread in enumerate(world.threads):
        yield from _of_thread(config, world, n, thread)
    for move in world.flying:
        yield Step("the store takes up a move", f"thread {move.thread}"), _applied(config, world, move)
    for session in world.live - set(world.sessions):
        yield Step("a session of a killed process ends", f"session {session}"), _ended(config, world, session)
    if world.state == FAILED and world.lock is None:
        after = world._replace(state=world.resumes, version=world.version + 1)
        yield Step("requeues the job", "operator"), after
    yield from _outside(config, world)


def _of_thread(config: Config, world: World, n: int, thread: Thread) -> Steps:
    who = f"thread {n}"
    match thread.phase:
        case "idle" if config.fault == "the state is that before the lock":
            yield Step("reads the status", who), _with(world, n, Thread("seen", state=world.state))
        case "idle" | "seen":
            if _may_lock(config, world, n):
                yield Step("makes the lock", who), _locked(config, world, n)
        case "locked":
            yield Step("reads lock and status under it", who), _read(config, world, n, thread)
        case "held":
            yield Step("does the work", who), _with(world, n, thread._replace(phase="worked", worked=thread.state))
        case "worked":
            if config.atomic or config.fault == "only that a lock is there":
                yield Step("sends its move", who), _sent(config, world, n, thread)
            else:
                yield Step("looks whose lock it is", who), _looked(config, world, n, thread)
        case "looked":
            yield Step("sends its move", who), _sent(config, world, n, thread)
        case "over":
            yield Step("unlocks once more, and drops the object", who), _unlocked_again(config, world, n, thread)
            if config.fault == "who gave it back may go on":
                yield Step("moves the job once more", who), _moved_again(world, n)


def _may_lock(config: Config, world: World, n: int) -> bool:
    """Nobody has it; and between a lock and the look under it, nobody else of the session sends anything."""
    mine = config.processes[n]
    others = (t for m, t in enumerate(world.threads) if config.processes[m] == mine and m != n)
    in_turn = config.fault == "others of the session come between lock and look" or all(
        other.phase != "locked" for other in others
    )
    return world.lock is None and world.state not in (DONE, FAILED) and in_turn


def _locked(config: Config, world: World, n: int) -> World:
    process = config.processes[n]
    session = world.sessions[process]
    if session not in world.live:
        session = max((*world.sessions, *world.live)) + 1
        sessions = tuple(session if p == process else s for p, s in enumerate(world.sessions))
        world = world._replace(sessions=sessions, live=world.live | {session})
    made = world.creations + 1
    after = world._replace(lock=Lock(session, made), creations=made)
    return _with(after, n, world.threads[n]._replace(phase="locked", session=session, made=made))


def _read(config: Config, world: World, n: int, thread: Thread) -> World:
    if world.lock is None or world.lock.session != thread.session:
        return _with(world, n, Thread())
    if config.fault == "the state is that before the lock":
        return _with(world, n, thread._replace(phase="held", creation=world.lock.creation, version=world.version))
    if world.state in (DONE, FAILED):
        return _with(world._replace(lock=None), n, Thread())
    seen = thread._replace(phase="held", creation=world.lock.creation, state=world.state, version=world.version)
    return _with(world, n, seen)


def _looked(config: Config, world: World, n: int, thread: Thread) -> World:
    ours = world.lock is not None and world.lock.creation == thread.creation
    return _with(world, n, thread._replace(phase="looked" if ours else "over"))


def _sent(config: Config, world: World, n: int, thread: Thread) -> World:
    session = thread.session
    if config.fault == "a move is sent in the session that there is":
        session = world.sessions[config.processes[n]]
    move = Move(n, session, thread.creation, thread.made, thread.version, thread.state + 1, thread.worked)
    return _with(world._replace(flying=world.flying | {move}), n, thread._replace(phase="sent"))


def _applied(config: Config, world: World, move: Move) -> World:
    """The store takes it up: all of it, or nothing."""
    world = world._replace(flying=world.flying - {move})
    lock = world.lock
    gone = move.session not in world.live or lock is None
    if config.fault == "only that the session lives":
        gone = move.session not in world.live
    others = config.atomic and lock is not None and lock.creation != move.creation
    if gone or (others and config.fault != "only that a lock is there"):
        return _answered(world, move, "over")
    blind = ("only that a lock is there", "no version is checked", "only that the session lives")
    if world.version != move.version and config.fault not in blind:
        return _planned_again(config, world, move)
    broken = ""
    if lock is None or lock.creation != move.made:
        broken = "J1"
    elif move.worked != world.state or move.after != world.state + 1:
        broken = "J2"
    after = world._replace(state=move.after, version=world.version + 1, lock=None)
    if config.budget.tools and broken == "J1":
        broken = ""  # who removes nodes by hand has taken that promise away
    return _answered(after._replace(broken=broken or world.broken), move, "over")


def _planned_again(config: Config, world: World, move: Move) -> World:
    """The status has changed: in the same state the work still counts; in another one the lock is given back."""
    if move.thread < 0:
        return world
    thread = world.threads[move.thread]
    if config.fault == "a move starts from whatever state it finds" and world.state not in (DONE, FAILED):
        return _with(world, move.thread, thread._replace(phase="worked", version=world.version, state=world.state))
    if world.state == thread.state:
        return _with(world, move.thread, thread._replace(phase="worked", version=world.version))
    keeps = config.fault == "who finds another state keeps the lock"
    mine = world.lock is not None and world.lock.creation == thread.creation and not keeps
    return _answered(world._replace(lock=None) if mine else world, move, "over")


def _answered(world: World, move: Move, phase: str) -> World:
    return world if move.thread < 0 else _with(world, move.thread, world.threads[move.thread]._replace(phase=phase))


def _unlocked_again(config: Config, world: World, n: int, thread: Thread) -> World:
    """Careless, and harmless: an object that holds nothing unlocks nothing."""
    world = _with(world, n, Thread())
    if config.fault != "an unlock takes away what the session has":
        return world
    if world.lock is None or world.lock.session != world.sessions[config.processes[n]]:
        return world
    broken = "J3" if world.lock.creation != thread.creation else ""
    return world._replace(lock=None, broken=broken or world.broken)


def _moved_again(world: World, n: int) -> World:
    if world.state in (DONE, FAILED):
        return world
    return _with(world._replace(state=world.state + 1, version=world.version + 1, broken="J1"), n, Thread())


# --- what goes wrong --------------------------------------------------------------------------------------------------


def _outside(config: Config, world: World) -> Steps:
    budget = world.budget
    if budget.kills:
        for process in range(len(world.sessions)):
            after = world._replace(budget=budget._replace(kills=budget.kills - 1))
            yield Step("is killed, and started again", f"process {process}", True), _killed(config, after, process)
    if budget.sessions:
        for session in world.live & set(world.sessions):
            after = world._replace(budget=budget._replace(sessions=budget.sessions - 1))
            yield Step("ends while its process lives", f"session {session}", True), _ended(config, after, session)
    if world.state not in (DONE, FAILED):
        yield from _of_people(config, world)


def _of_people(config: Config, world: World) -> Steps:
    budget = world.budget
    told = world.version + (config.fault != "an operator's unlock leaves no trace")
    if budget.unlocks and world.lock is not None:
        after = world._replace(lock=None, version=told, budget=budget._replace(unlocks=budget.unlocks - 1))
        yield Step("unlocks the job", "operator", True), after
    if budget.fails:
        after = _failed(world)._replace(lock=None, budget=budget._replace(fails=budget.fails - 1))
        yield Step("fails the job at work", "operator", True), after
    if budget.others and (world.lock is None or config.fault == "others need no lock"):
        broken = "J1" if world.lock is not None else ""
        after = _failed(world)._replace(broken=broken, budget=budget._replace(others=budget.others - 1))
        yield Step("fails the job without having held it", "another object", True), after
    if budget.tools and world.lock is not None:
        after = world._replace(lock=None, budget=budget._replace(tools=budget.tools - 1))
        yield Step("removes the lock's node", "another tool", True), after
    if budget.strays:
        after = world._replace(state=world.state + 1, version=world.version + 1)
        yield Step("moves the job", "another tool", True), after._replace(budget=budget._replace(strays=0))


def _failed(world: World) -> World:
    return world._replace(state=FAILED, version=world.version + 1, resumes=world.state)


def _killed(config: Config, world: World, process: int) -> World:
    """Its threads begin again, in another session; what it has sent may still arrive while the old one lives."""
    threads = tuple(Thread() if config.processes[n] == process else t for n, t in enumerate(world.threads))
    flying = frozenset(m._replace(thread=-1) if _is_of(config, m, process) else m for m in world.flying)
    session = max((*world.sessions, *world.live)) + 1
    sessions = tuple(session if p == process else s for p, s in enumerate(world.sessions))
    return world._replace(threads=threads, flying=flying, sessions=sessions, live=world.live | {session})


def _is_of(config: Config, move: Move, process: int) -> bool:
    return move.thread >= 0 and config.processes[move.thread] == process


def _ended(config: Config, world: World, session: int) -> World:
    """With a session its lock goes."""
    stays = config.fault == "a lock outlives its session"
    mine = world.lock is not None and world.lock.session == session and not stays
    return world._replace(live=world.live - {session}, lock=None if mine else world.lock)


def _with(world: World, n: int, thread: Thread) -> World:
    return world._replace(threads=(*world.threads[:n], thread, *world.threads[n + 1 :]))
