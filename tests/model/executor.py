"""Executors: what a worker may do next with the chunk it is at, and what destinations make of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ferryman.records.rows import Status
from tests.model.actions import Step
from tests.model.settling import guarantee, is_upsert, of_one_family
from tests.model.state import (
    CLAIMED,
    EXACT,
    GONE,
    LEAST,
    ONCE,
    OUTBOX,
    PARKED,
    PENDING,
    UNTOUCHED,
    Chunk,
    Claim,
    Config,
    Destination,
    Lane,
    Result,
    Said,
    State,
    Told,
    Waiting,
    Worker,
)

ACTS_LATER: Final = "a call that was given up acts later"
OVERWRITTEN: Final = "an older row overwrote a newer one"
HOLE: Final = "a part of a document was deleted before what the new version has in its place was there"

Moves = Iterator[tuple[Step, State]]


def begin(config: Config, state: State, lane: Lane, pass_: int) -> State:
    """A task starts; it passes over what an earlier attempt has published."""
    said = [said for result in state.results if result.pass_ == pass_ for said in result.said]
    done = {each.sequence for each in said}
    chunks = tuple(chunk for chunk in lane.chunks if not {w.sequence for w in chunk} <= done)
    rows = {w.sequence for chunk in lane.chunks for w in chunk}
    undelivered = _undelivered(state, [each for each in said if each.sequence in rows])
    worker = Worker(pass_, lane.destination, "", chunks, waits=lane.waits, undelivered=undelivered)
    return _put(config, state, worker) if chunks else state


def worker_moves(config: Config, state: State, worker: Worker) -> Moves:
    """What this worker may do next."""
    name = f"worker of pass {worker.pass_} at destination {worker.destination}"
    without = leave(state, worker)
    match worker.at:
        case "claim":
            yield Step("claim", name), _claim(config, without, worker)
        case "look":
            yield Step("look", name), _look(config, without, worker)
        case "hold":
            yield Step("hold", name), _hold(config, without, worker)
        case "send":
            yield from _send(config, without, worker, name)
        case "hung":
            yield Step("send.landed", name), _effects(config, without, worker, worker.chunks[0])
        case "note":
            yield Step("note", name), _note(config, without, worker)
    if worker.pending and worker.at in ("look", "publish"):
        yield Step("publish", name), _publish(config, without, worker)


def without_idle(config: Config, state: State) -> State:
    """Without workers that can do nothing any more that anybody sees: so many states less, and no other outcome."""
    left = tuple(w for worker in state.workers if (w := _still(config, state, worker)) is not None)
    return state if left == state.workers else state._replace(workers=tuple(sorted(left)))


def _still(config: Config, state: State, worker: Worker) -> Worker | None:
    if state.closed < worker.pass_:
        return worker
    trimmed = worker.pass_ <= state.settled[OUTBOX]
    if worker.at in ("look", "hold"):  # it will see that its pass is closed
        worker = worker._replace(at="publish", chunks=())
    if worker.at == "publish" and (trimmed or not worker.pending):
        return None
    if worker.at == "claim" and trimmed:
        return None
    return None if worker.at == "note" and not _may_note(config, state, worker) else worker


def is_of(worker: Worker, lane: Lane) -> bool:
    """Is this the lane that the worker delivers?"""
    rows = {w.sequence for chunk in worker.chunks for w in chunk} | {
        s.sequence for said in worker.pending for s in said
    }
    return lane.destination == worker.destination and rows <= {w.sequence for chunk in lane.chunks for w in chunk}


def leave(state: State, worker: Worker) -> State:
    """The world without this worker."""
    at = state.workers.index(worker)
    return state._replace(workers=state.workers[:at] + state.workers[at + 1 :])


# -- the steps of a chunk --------------------------------------------------------------------------------


def _first(config: Config, state: State, worker: Worker) -> str:
    """Where a worker begins a chunk."""
    if not worker.chunks:
        return "publish" if worker.pending else ""
    if _waiting(config, state, worker):
        return "hold"
    once = config.destinations[worker.destination].guarantee == ONCE
    if not once:
        return "look"
    return {"look before claim": "look", "send before claim": "send"}.get(config.mutation, "claim")


def _next(config: Config, worker: Worker, done: str) -> str:
    """The step after this one, within a chunk of at-most-once."""
    order = {
        "look before claim": ("look", "claim", "send", "note"),
        "send before claim": ("send", "claim", "look", "note"),
    }.get(config.mutation, ("claim", "look", "send", "note"))
    return order[order.index(done) + 1]


def _put(config: Config, state: State, worker: Worker) -> State:
    """The worker begins its next chunk, if there is one."""
    worker = worker._replace(at=_first(config, state, worker))
    return _add(state, worker) if worker.at else state


def _add(state: State, worker: Worker) -> State:
    return state._replace(workers=tuple(sorted((*state.workers, worker))))


def _claim(config: Config, state: State, worker: Worker) -> State:
    """Of two workers with the same chunk one gets it; the other passes over it. No folder, no claim."""
    claim = _claim_of(worker)
    if worker.pass_ <= state.settled[OUTBOX]:
        return state
    if claim in state.claims:
        if config.mutation != "what another worker has claimed holds back nothing":
            claimed = _undelivered(state, [Said(n, CLAIMED, 0) for n in claim.rows])
            worker = worker._replace(undelivered=worker.undelivered | claimed)
        return _put(config, state, worker._replace(chunks=worker.chunks[1:]))
    state = state._replace(claims=state.claims | {claim})
    return _add(state, worker._replace(at=_next(config, worker, "claim")))


def _claim_of(worker: Worker) -> Claim:
    return Claim(worker.pass_, tuple(w.sequence for w in worker.chunks[0]))


def _waiting(config: Config, state: State, worker: Worker) -> dict[int, set[str]]:
    """The rows of the first chunk that wait for upserts of their family, and what those are."""
    if config.mutation == "no delete waits for the upserts of its family":
        return {}
    chunk = worker.chunks[0]
    found: dict[int, set[str]] = {}
    for row in chunk:
        if not is_upsert(state, row.sequence):
            mine = state.rows[row.sequence].delivery
            upserts = {kind for sequence, kind in worker.waits if sequence == row.sequence}
            upserts |= {kind for n, kind in worker.undelivered if of_one_family(state.rows[n].delivery, mine)}
            if upserts:
                found[row.sequence] = upserts
    assert len(found) in (0, len(chunk)), "no world has chunks of which a part waits"
    return found


def _hold(config: Config, state: State, worker: Worker) -> State:
    """Deletes that wait spend no attempt; they fail with an upsert that has failed for good. What waits for a chunk of
    another worker is left to it."""
    if state.closed >= worker.pass_:
        return _put(config, state, worker._replace(chunks=()))
    waiting = _waiting(config, state, worker)
    if any(kinds == {CLAIMED} for kinds in waiting.values()):
        return _put(config, state, worker._replace(chunks=worker.chunks[1:]))
    said = tuple(
        Said(w.sequence, Status.DEAD if PARKED in waiting[w.sequence] else Status.ERROR, w.attempt)
        for w in worker.chunks[0]
    )
    if config.destinations[worker.destination].guarantee == EXACT:
        return _put(config, state, worker._replace(chunks=worker.chunks[1:], pending=(*worker.pending, said)))
    return _add(state, worker._replace(at="note", said=said))


def _undelivered(state: State, said: Iterable[Said]) -> frozenset[tuple[int, str]]:
    """The upserts among these that were not delivered."""
    kinds = {Status.ERROR: PENDING, UNTOUCHED: PENDING, CLAIMED: CLAIMED}
    return frozenset(
        (each.sequence, kinds.get(each.status, PARKED))
        for each in said
        if each.status != Status.INDEXED and is_upsert(state, each.sequence)
    )


def _look(config: Config, state: State, worker: Worker) -> State:
    """Send only while the pass is open; else note what is to be noted, and end."""
    if state.closed >= worker.pass_:
        return _put(config, state, worker._replace(chunks=()))
    once = config.destinations[worker.destination].guarantee == ONCE
    return _add(state, worker._replace(at=_next(config, worker, "look") if once else "send"))


def _may_note(config: Config, state: State, worker: Worker) -> bool:
    """Is the pass's folder there? At-most-once: it goes with the last claim."""
    if config.destinations[worker.destination].guarantee == ONCE and not _waiting(config, state, worker):
        return _claim_of(worker) in state.claims
    return worker.pass_ > state.settled[OUTBOX]


def _note(config: Config, state: State, worker: Worker) -> State:
    """At-most-once, at-least-once: the bare note, before the next chunk is sent. Without a folder it fails."""
    if _may_note(config, state, worker):
        state = state._replace(results=state.results | {Result(worker.pass_, worker.said, part=False)})
    return _put(config, state, worker._replace(chunks=worker.chunks[1:], said=()))


def _publish(config: Config, state: State, worker: Worker) -> State:
    """Exactly-once: one result a run of neighbouring chunks; of two about the same rows the first one stays."""
    state = state._replace(results=_published(state, worker))
    return _put(config, state, worker._replace(pending=()))


def _published(state: State, worker: Worker) -> frozenset[Result]:
    if worker.pass_ <= state.settled[OUTBOX]:
        return state.results
    ranges = {_range(r) for r in state.results}
    made = [Result(worker.pass_, run, part=True) for run in _runs(worker.pending)]
    return state.results | {result for result in made if _range(result) not in ranges}


def _range(result: Result) -> tuple[int, int, int]:
    return (result.pass_, result.said[0].sequence, result.said[-1].sequence)


def _runs(pending: tuple[tuple[Said, ...], ...]) -> list[tuple[Said, ...]]:
    runs: list[tuple[Said, ...]] = []
    for said in pending:
        if runs and runs[-1][-1].sequence + 1 == said[0].sequence:
            runs[-1] += said
        else:
            runs.append(said)
    return runs


# -- sending ---------------------------------------------------------------------------------------------


def _send(config: Config, state: State, worker: Worker, name: str) -> Moves:
    """The destination gets the chunk. What took effect, and what is answered, are two things."""
    chunk = worker.chunks[0]
    state = _received(config, state, chunk)
    well = _effects(config, state, worker, chunk)
    said = tuple(Said(w.sequence, Status.INDEXED, w.attempt + 1) for w in chunk)
    yield Step("send", name), _answered(config, well, worker, said)
    if not state.budget.faults:
        return
    state = state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
    for i in range(len(chunk)):
        yield from _one_is_bad(config, state, worker, i, name)
    if "raised" in config.answers:
        yield Step("send.raised", name), _raised(config, state, worker)
    if "half" in config.answers:
        # A destination that stores the hash with the effect does both for the whole chunk, or nothing.
        least = len(chunk) if config.destinations[worker.destination].guarantee not in (ONCE, LEAST) else 1
        for some in range(least, len(chunk) + 1):
            yield Step("send.half", name), _raised(config, _effects(config, state, worker, chunk[:some]), worker)
    if "down" in config.answers:
        yield Step("send.down", name), _down(config, state, worker)
    if "hung" in config.answers:
        # It publishes what it has, and its process ends.
        if config.mutation == "what was sent counts as delivered":
            worker = worker._replace(pending=(*worker.pending, said))
        results = _published(state, worker)
        if config.destinations[worker.destination].compares or config.mutation == ACTS_LATER:
            # A server that has taken it in may carry it out after all.
            hung = worker._replace(at="hung", chunks=(chunk,), pending=(), orphan=True)
            yield Step("send.hung", name), _add(state._replace(results=results), hung)
        else:
            for after in (state, _effects(config, state, worker, chunk)):
                yield Step("send.hung", name), after._replace(results=results)


def _one_is_bad(config: Config, state: State, worker: Worker, i: int, name: str) -> Moves:
    """The others of the chunk take effect; one of it is answered with transient, or refused."""
    chunk = worker.chunks[0]
    others = chunk[:i] + chunk[i + 1 :]
    for kind in ("transient", "refused"):
        if kind not in config.answers:
            continue
        after = _effects(config, state, worker, others)
        after = _bad(config, after, chunk[i].sequence)
        if kind == "transient":
            after = _free(config, after, chunk[i].sequence)
        said = tuple(
            _failed(config, w, refused=kind == "refused")
            if w is chunk[i]
            else Said(w.sequence, Status.INDEXED, w.attempt + 1)
            for w in chunk
        )
        yield Step(f"send.{kind}", name), _answered(config, after, worker, said)


def _failed(config: Config, row: Waiting, *, refused: bool = False) -> Said:
    attempt = row.attempt + 1
    return Said(row.sequence, Status.DEAD if refused or attempt >= config.attempts else Status.ERROR, attempt)


def _answered(config: Config, state: State, worker: Worker, said: tuple[Said, ...]) -> State:
    """The worker knows the outcomes. Exactly-once notes them when it comes to it, the others at once."""
    promise = config.destinations[worker.destination].guarantee
    worker = worker._replace(undelivered=worker.undelivered | _undelivered(state, said))
    if promise == ONCE:
        return _add(state, worker._replace(at=_next(config, worker, "send"), said=said))
    if promise == LEAST and config.mutation != "what came of a chunk is noted when the next is sent":
        return _add(state, worker._replace(at="note", said=said))
    return _put(config, state, worker._replace(chunks=worker.chunks[1:], pending=(*worker.pending, said)))


def _raised(config: Config, state: State, worker: Worker) -> State:
    """An exception speaks for the whole chunk: unknown, or halved until the bad row stands alone."""
    chunk, rest = worker.chunks[0], worker.chunks[1:]
    if len(chunk) == 1:
        state = _bad(config, state, chunk[0].sequence)
    if config.destinations[worker.destination].guarantee == ONCE:
        if config.mutation == "an exception means nothing took effect":
            return _answered(config, state, worker, tuple(_failed(config, w) for w in chunk))
        said = tuple(Said(w.sequence, Status.INDEXING, w.attempt + 1) for w in chunk)
        return _answered(config, state, worker, said)
    if len(chunk) > 1 and config.mutation != "a failed chunk is everybody's failure":
        middle = len(chunk) // 2
        return _put(config, state, worker._replace(chunks=(chunk[:middle], chunk[middle:], *rest)))
    return _answered(config, state, worker, tuple(_failed(config, w) for w in chunk))


def _down(config: Config, state: State, worker: Worker) -> State:
    """Nothing took effect, no attempt is spent, the lane ends here."""
    for w in worker.chunks[0]:
        state = _free(config, state, w.sequence)
    said = tuple(Said(w.sequence, UNTOUCHED, w.attempt) for w in worker.chunks[0])
    return _answered(config, state, worker._replace(chunks=worker.chunks[:1]), said)


# -- destinations ----------------------------------------------------------------------------------------


def _received(config: Config, state: State, chunk: Chunk) -> State:
    for w in chunk:
        told = state.told[w.sequence]
        name = (w.attempt if config.mutation == "the hash depends on the attempt" else 0, state.rows[w.sequence].made)
        sends = told.sends + _is_counted(config, state, w.sequence)
        if guarantee(config, state, w.sequence) == LEAST:
            sends = min(sends, 2)
        told = told._replace(seen=True, sends=sends, names=told.names | {name})
        state = _set_told(state, w.sequence, told)
    return state


def _effects(config: Config, state: State, worker: Worker, chunk: Chunk) -> State:
    """These rows take effect, but for those that the destination knows, or knows something newer of."""
    destination = config.destinations[worker.destination]
    for w in chunk:
        state = _effect(config, state, destination, w, worker.orphan)
    return state


def _effect(config: Config, state: State, destination: Destination, row: Waiting, orphan: bool) -> State:
    delivery = state.rows[row.sequence].delivery
    if _is_known(config, state, destination, row):
        return state
    place = config.place(delivery)
    before = state.there[place]
    orphan = orphan and config.mutation != ACTS_LATER
    if row.sequence < before:
        clock = config.mutation == "the sequence is the time of sending"
        if destination.compares and not clock:
            return _set_told(state, row.sequence, state.told[row.sequence]._replace(done=True))
        if destination.compares or not (orphan or _disturbed(config, state)):
            state = state._replace(remembered=(*state.remembered, OVERWRITTEN))
    if delivery.version == GONE and _has_a_hole(state, row.sequence):
        state = state._replace(remembered=(*state.remembered, HOLE))
    there = (*state.there[:place], row.sequence, *state.there[place + 1 :])
    told = state.told[row.sequence]
    most = 2 if destination.guarantee == EXACT else 1
    told = told._replace(effects=min(told.effects + 1, most), done=True)
    return _set_told(state._replace(there=there), row.sequence, told)


def _has_a_hole(state: State, sequence: int) -> bool:
    """Is there an upsert of this delete's family that has not taken effect, or a part that is still to be made?"""
    mine = state.rows[sequence].delivery
    known = dict(state.staged).get(mine.document, state.known[mine.document])
    if known is not None and known.owed and known.revision == mine.revision:
        return True
    return any(
        is_upsert(state, n) and of_one_family(state.rows[n].delivery, mine) and not told.done
        for n, told in enumerate(state.told[: len(state.rows)])
    )


def _is_known(config: Config, state: State, destination: Destination, row: Waiting) -> bool:
    """Does the destination have this hash?"""
    if destination.guarantee in (ONCE, LEAST) or config.mutation == "exactly-once without storing hashes":
        return False
    if config.mutation == "the hash depends on the attempt":
        return len(state.told[row.sequence].names) == 1 and state.told[row.sequence].effects > 0
    delivery = state.rows[row.sequence].delivery
    return any(t.effects and r.delivery == delivery for t, r in zip(state.told, state.rows, strict=True))


def _disturbed(config: Config, state: State) -> bool:
    """Was anything killed, doubled or left behind? Then one that does not compare may get an older row late."""
    return state.budget._replace(faults=0) != config.budget._replace(faults=0)


def _bad(config: Config, state: State, sequence: int) -> State:
    """This very row was answered with anything but ok."""
    told = state.told[sequence]
    return _set_told(state, sequence, told._replace(bad=min(told.bad + 1, config.attempts)))


def _free(config: Config, state: State, sequence: int) -> State:
    """The destination has said that nothing took effect: it may be sent again."""
    told = state.told[sequence]
    return _set_told(state, sequence, told._replace(sends=told.sends - _is_counted(config, state, sequence)))


def _is_counted(config: Config, state: State, sequence: int) -> bool:
    """Does an invariant ask how often it was sent? Under at-least-once only where there are several chunks: of one,
    another send says nothing."""
    promise = guarantee(config, state, sequence)
    return promise == ONCE or (promise == LEAST and len(config.histories) > config.batch)


def _set_told(state: State, sequence: int, told: Told) -> State:
    return state._replace(told=(*state.told[:sequence], told, *state.told[sequence + 1 :]))
