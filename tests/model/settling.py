"""Settle: what the journal comes to, and what follows from that in the tables. Pure functions of the state."""

from __future__ import annotations

from ferryman.records.rows import Status, check_move
from tests.model.state import (
    GONE,
    PARKED,
    PENDING,
    UNTOUCHED,
    Chunk,
    Claim,
    Config,
    Delivery,
    Fold,
    Known,
    Lane,
    Result,
    Said,
    State,
    Waiting,
)

ILLEGAL = "an event that the ledger's table of moves does not know"


def read_fold(config: Config, state: State, wave: int) -> Fold:
    """The journal of this pass, and late answers to claims that older passes left open: ``settle.read_fold``."""
    waiting = {w.sequence: w for w in state.outbox}
    heard = [r for r in state.results if r.said[0].sequence in waiting and _counts(state, r, wave)]
    results = _without_overlap(heard)
    answered = {s.sequence for r in results for s in r.said if r.pass_ == wave}
    unknown = frozenset(
        c for c in state.claims if c.pass_ == wave and c.rows[0] in waiting and not set(c.rows) <= answered
    )
    said = [s for r in results for s in r.said]
    if config.mutation != "an unknown chunk is sent again":
        said += [Said(n, Status.INDEXING, waiting[n].attempt + 1) for c in unknown for n in c.rows if n not in answered]
    return Fold(tuple(sorted(said)), unknown)


def _counts(state: State, result: Result, wave: int) -> bool:
    if result.pass_ == wave:
        return True
    claim = Claim(result.pass_, tuple(s.sequence for s in result.said))
    return result.pass_ < wave and not result.part and claim in state.claims


def _without_overlap(results: list[Result]) -> list[Result]:
    """Two workers of one file may both have written: the one that begins first counts, then the longer one."""
    taken: list[Result] = []
    for result in sorted(results, key=lambda r: (r.said[0].sequence, -len(r.said), r)):
        if not {s.sequence for s in result.said} & {s.sequence for t in taken for s in t.said}:
            taken.append(result)
    return taken


def late_answers(state: State) -> bool:
    """Has a late worker answered a claim that was settled as unknown?"""
    return any(r.pass_ <= min(state.settled) for r in state.results)


def with_events(state: State, fold: Fold) -> State:
    """Step 4: the ledger has the fold's events; each must be a legal move."""
    ledger = list(state.ledger)
    for said in fold.said:
        if said.status == UNTOUCHED:
            continue
        try:
            ledger[said.sequence] = check_move(Status(ledger[said.sequence] or Status.BATCHED), Status(said.status))
        except ValueError:
            state = state._replace(remembered=(*state.remembered, ILLEGAL))
    return state._replace(ledger=tuple(ledger), fold=fold)


def with_known(state: State, known: tuple[tuple[int, Known], ...]) -> State:
    """Step 5: the ``documents`` rows that the commit named."""
    rows = list(state.known)
    for document, row in known:
        rows[document] = row
    return state._replace(known=tuple(rows))


def without_done(state: State, fold: Fold) -> State:
    """Step 8: what is done leaves the outbox; the rest waits for its turn, or is parked."""
    said = {s.sequence: s for s in fold.said if s.status != UNTOUCHED}
    outbox = []
    for row in state.outbox:
        event = said.get(row.sequence)
        if event is None:
            outbox.append(row)
        elif event.status not in (Status.INDEXED, Status.DROPPED):
            outbox.append(Waiting(row.sequence, event.attempt, parked=event.status != Status.ERROR))
    return state._replace(outbox=tuple(outbox), fold=Fold())


def trimmed(state: State, wave: int, keep: frozenset[Claim]) -> State:
    """Step 7: nothing is left of the journal but this pass's claims without an answer, and answers to them."""
    answers = {(c.pass_, c.rows) for c in keep if c.pass_ == wave}
    return state._replace(
        claims=frozenset(c for c in state.claims if c.pass_ > wave or (c.pass_, c.rows) in answers),
        results=frozenset(
            r for r in state.results if r.pass_ > wave or (r.pass_, tuple(s.sequence for s in r.said)) in answers
        ),
    )


def due(config: Config, state: State) -> dict[tuple[int, int], list[Waiting]]:
    """(destination, wave of its file) -> rows to send, each the lowest owed of its member at its destination."""
    found: dict[tuple[int, int], list[Waiting]] = {}
    first: dict[tuple[int, int, str], int] = {}
    """Place -> revision of its lowest owed row."""
    for row in state.outbox:
        if row.parked:
            continue
        committed = state.rows[row.sequence]
        delivery = committed.delivery
        place = (delivery.destination, delivery.document, delivery.member)
        if not _is_held(config, first.get(place), delivery.revision):
            found.setdefault((delivery.destination, committed.wave), []).append(row)
        first.setdefault(place, delivery.revision)
    return found


def is_upsert(state: State, sequence: int) -> bool:
    """Does the row put something there?"""
    return state.rows[sequence].delivery.version != GONE


def of_one_family(one: Delivery, other: Delivery) -> bool:
    """Are these deliveries of two members of a family, in one revision?"""
    return one.member != other.member and one[:2] == other[:2] and one.revision == other.revision


def lanes(config: Config, state: State) -> tuple[Lane, ...]:
    """What is due, a task for each file. No delete is in one chunk with an upsert of its family."""
    upserts = [w for w in state.outbox if is_upsert(state, w.sequence)]
    made = []
    for (destination, _), rows in due(config, state).items():
        sent = {w.sequence for w in rows}
        waits = frozenset(
            (w.sequence, PARKED if u.parked else PENDING)
            for w in rows
            for u in upserts
            if not is_upsert(state, w.sequence)
            and u.sequence not in sent
            and of_one_family(state.rows[u.sequence].delivery, state.rows[w.sequence].delivery)
        )
        if config.mutation == "a delete waits for upserts of its file only":
            waits = frozenset()
        chunks: list[Chunk] = []
        for row in rows:
            last = chunks[-1] if chunks else ()
            mine = state.rows[row.sequence].delivery
            before = [state.rows[w.sequence].delivery for w in last if is_upsert(state, w.sequence)]
            waits_here = mine.version == GONE and any(of_one_family(each, mine) for each in before)
            if 0 < len(last) < config.batch and not waits_here:
                chunks[-1] = (*last, row)
            else:
                chunks.append((row,))
        made.append(Lane(destination, tuple(chunks), waits))
    return tuple(made)


def _is_held(config: Config, older: int | None, revision: int) -> bool:
    """Does a row wait for an older one, of this revision?"""
    match config.mutation:
        case "nothing is held behind an older row":
            return False
        case "a row waits for older revisions only":
            return older is not None and older < revision
    return older is not None


def guarantee(config: Config, state: State, sequence: int) -> str:
    """What the row's destination was promised."""
    return config.destinations[state.rows[sequence].delivery.destination].guarantee
