"""A model of a destination that breaks connections: of chunks with a row that it does not like, and when it is away.

One lane, whose worker ends with its driver: what a late worker may do is the other models'. What a driver remembers of
earlier passes is lost with it; what became of a row, and its attempts, is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.model.actions import Action, Step, told
from tests.model.state import LEAST, ONCE, Budget

PENDING, CLAIMED, DELIVERED, FAILED, IN_DOUBT = "pending", "claimed", "delivered", "failed", "in doubt"

_DOUBTS, _SENDING = "engine.deliver.doubts.Doubts", "engine.deliver.sending.FileDelivery"

DOUBT_ACTIONS: Final[dict[str, Action]] = {
    "crash.driver": Action("the driver is killed, and its lane", fault=True),
    "crash.all": Action("everything is killed", fault=True),
    "take": Action("a driver starts, and remembers nothing; what was claimed is in doubt"),
    "pass": Action("begins a pass: rows that failed alone come last, each alone", (f"{_SENDING}._select_eligible",)),
    "claim": Action("claims a chunk", (f"{_SENDING}._send_once",), ("deliver.claimed",)),
    "send": Action("sends a chunk, which takes effect", (f"{_SENDING}._send", f"{_SENDING}._send_once")),
    "breaks": Action("sends a chunk with a row that breaks the connection", (f"{_SENDING}._send",)),
    "away": Action("sends a chunk while the destination is away", (f"{_SENDING}._send",), fault=True),
    "note": Action("notes that the chunk was delivered", (f"{_SENDING}._note",), ("deliver.sent", "deliver.noted")),
    "check.ok": Action("calls check, which is well: the destination is doubted", (f"{_DOUBTS}.note_stopped",)),
    "end": Action("has nothing that it could send now, and ends"),
    "settle": Action(
        "settles the pass: a row that failed alone while others were accepted spends an attempt when it fails so again",
        (f"{_DOUBTS}.note_alone", f"{_DOUBTS}.note_success"),
        ("deliver.done",),
    ),
}


class DoubtStep(Step):
    """One step of a trace."""

    __slots__ = ()

    def __str__(self) -> str:
        return told(self, DOUBT_ACTIONS)


Chunk = tuple[int, ...]


class DoubtDriver(NamedTuple):
    """A driver's memory, and its lane's."""

    at: str = "idle"
    doubted: bool = False
    last: frozenset[int] = frozenset()
    """Rows that failed alone while others were accepted."""
    chunks: tuple[Chunk, ...] = ()
    """What its pass has still to send."""
    accepted: bool = False
    """Something was accepted in this pass."""
    alone: frozenset[int] = frozenset()
    """Rows that failed alone in this pass."""
    stopped: bool = False
    """Its pass has met a chunk that failed as if the whole destination did."""
    trusts: bool = False
    """The last pass has accepted nothing, although it was doubted: it is the destination."""
    away: bool = False
    """Observed: it was away in this pass."""


class DoubtState(NamedTuple):
    """Everything."""

    fates: tuple[str, ...]
    attempts: tuple[int, ...]
    """That each row has spent."""
    sends: tuple[int, ...]
    """Observed: how often each row was sent, at most once."""
    together: frozenset[int] = frozenset()
    """Observed: rows of chunks that broke before the destination was doubted, or when it was away, or that were claimed
    when their driver was killed."""
    killed: bool = False
    """Observed: a driver was killed, with what it had learned."""
    was_away: bool = False
    """Observed: some chunk was sent while the destination was away."""
    driver: DoubtDriver | None = None
    ended: bool = False
    """The last run has ended, and another one would meet the same."""
    budget: Budget = Budget()


class DoubtConfig(NamedTuple):
    """What is explored."""

    name: str
    entries: int
    """Rows."""
    poison: frozenset[int]
    guarantee: str = LEAST
    budget: Budget = Budget()
    batch: int = 3
    attempts: int = 2
    mutation: str = ""

    def first(self) -> DoubtState:
        """The world before the first start."""
        nothing = (0,) * self.entries
        return DoubtState((PENDING,) * self.entries, nothing, nothing, budget=self.budget)


Moves = Iterator[tuple[DoubtStep, DoubtState]]


def doubt_moves(config: DoubtConfig, state: DoubtState, *, outside: bool = True) -> Moves:
    """Everything that may happen next."""
    driver = state.driver
    if driver is None:
        if not state.ended:
            fates = tuple(IN_DOUBT if fate == CLAIMED else fate for fate in state.fates)
            claimed = {row for row, fate in enumerate(state.fates) if fate == CLAIMED}
            started = state._replace(fates=fates, driver=DoubtDriver(), together=state.together | claimed)
            yield DoubtStep("take"), started
        return
    if state.budget.crashes:
        spent = state.budget._replace(crashes=state.budget.crashes - 1)
        yield DoubtStep("crash.driver"), state._replace(driver=None, budget=spent, killed=True)
    yield from _STEPS[driver.at](config, state, driver)


def _idle(config: DoubtConfig, state: DoubtState, driver: DoubtDriver) -> Moves:
    pending = [row for row, fate in enumerate(state.fates) if fate == PENDING]
    if not pending or driver.trusts:
        yield DoubtStep("end"), state._replace(driver=None, ended=not (pending and driver.away))
        return
    first = [row for row in pending if row not in driver.last]
    most = 1 if driver.doubted and config.guarantee == ONCE else config.batch
    chunks = [tuple(first[n : n + most]) for n in range(0, len(first), most)]
    chunks += [(row,) for row in pending if row in driver.last]
    begun = driver._replace(
        at="next", chunks=tuple(chunks), accepted=False, alone=frozenset(), stopped=False, away=False
    )
    yield DoubtStep("pass"), state._replace(driver=begun)


def _next(config: DoubtConfig, state: DoubtState, driver: DoubtDriver) -> Moves:
    if not driver.chunks:
        yield DoubtStep("settle"), _settled(config, state, driver)
        return
    if config.guarantee != ONCE:
        yield from _send(config, state, driver)
        return
    yield DoubtStep("claim", _name(driver)), _with(state, driver.chunks[0], CLAIMED, driver._replace(at="send"))


def _send(config: DoubtConfig, state: DoubtState, driver: DoubtDriver) -> Moves:
    chunk = driver.chunks[0]
    counted = chunk if config.guarantee == ONCE else ()
    sent = state._replace(sends=tuple(n + (row in counted) for row, n in enumerate(state.sends)))
    if set(chunk) & config.poison:
        yield DoubtStep("breaks", _name(driver)), _broken(config, sent, driver)
        return
    yield DoubtStep("send", _name(driver)), sent._replace(driver=driver._replace(at="note"))
    if state.budget.faults:
        spent = sent._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
        spent = spent._replace(together=spent.together | {*chunk}, was_away=True)
        yield DoubtStep("away", _name(driver)), _broken(config, spent, driver._replace(away=True))


def _note(config: DoubtConfig, state: DoubtState, driver: DoubtDriver) -> Moves:
    noted = driver._replace(at="next", chunks=driver.chunks[1:], accepted=True)
    yield DoubtStep("note", _name(driver)), _with(state, driver.chunks[0], DELIVERED, noted)


def _broken(config: DoubtConfig, state: DoubtState, driver: DoubtDriver) -> DoubtState:
    """What comes of a chunk whose connection broke."""
    chunk, rest = driver.chunks[0], driver.chunks[1:]
    halves = (chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :])
    if not driver.doubted:
        state = state._replace(together=state.together | {*chunk})
    stopped = driver._replace(at="next", stopped=True)
    if config.mutation == "each row of a chunk that breaks has failed":
        return _with(state, chunk, FAILED, stopped._replace(chunks=rest))
    if config.guarantee == ONCE:
        if config.mutation == "halves are sent at most once, too" and len(chunk) > 1:
            return _with(state, chunk, PENDING, stopped._replace(chunks=(*halves, *rest)))
        left = rest if driver.doubted else ()
        return _with(state, chunk, IN_DOUBT, stopped._replace(chunks=left))
    if not driver.doubted or config.mutation == "a chunk that breaks is not sent in halves":
        return state._replace(driver=stopped._replace(chunks=()))
    if len(chunk) > 1:
        return state._replace(driver=stopped._replace(chunks=(*halves, *rest)))
    return state._replace(driver=stopped._replace(chunks=rest, alone=driver.alone | {*chunk}))


def _settled(config: DoubtConfig, state: DoubtState, driver: DoubtDriver) -> DoubtState:
    """The outcomes of the pass are durable; what its driver has learned is not."""
    blames = driver.accepted or config.mutation == "a row is to blame although nothing was accepted"
    known = driver.alone & driver.last
    again = known if config.mutation != "a row is to blame although nothing was accepted" else driver.alone
    attempts = tuple(n + (row in again) for row, n in enumerate(state.attempts))
    fates = tuple(FAILED if n >= config.attempts else fate for fate, n in zip(state.fates, attempts, strict=True))
    last = driver.last | driver.alone if blames else driver.last
    learned = bool(again) or last != driver.last or driver.accepted
    state = state._replace(fates=fates, attempts=attempts)
    trusts = driver.doubted and driver.stopped and not learned
    if config.mutation == "a broken connection is believed":
        trusts = driver.stopped
    at = "check" if driver.stopped and not driver.doubted and not trusts else "idle"
    doubted = driver.doubted and driver.stopped
    return state._replace(driver=DoubtDriver(at, doubted, last, trusts=trusts, away=driver.away))


def _check(config: DoubtConfig, state: DoubtState, driver: DoubtDriver) -> Moves:
    """A destination that is away makes ``check`` fail: its driver waits then, and calls again until it does not."""
    yield DoubtStep("check.ok"), state._replace(driver=driver._replace(at="idle", doubted=True))


_STEPS: Final[dict[str, Callable[[DoubtConfig, DoubtState, DoubtDriver], Moves]]] = {
    "idle": _idle,
    "next": _next,
    "send": _send,
    "note": _note,
    "check": _check,
}


def _name(driver: DoubtDriver) -> str:
    return f"rows {', '.join(map(str, driver.chunks[0]))}"


def _with(state: DoubtState, chunk: Chunk, fate: str, driver: DoubtDriver) -> DoubtState:
    fates = tuple(fate if row in chunk else before for row, before in enumerate(state.fates))
    return state._replace(fates=fates, driver=driver)
