"""Settle between queues: what a journal comes to in the tables. Pure functions of the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ferryman.records.rows import Status
from tests.model.queues.world import ERRORS, REFUSAL, Fold, QueueConfig, Row, State, Undone

BY_THEMSELVES: Final = "messages about what was refused are committed by themselves"


def with_rows(state: State, rows: list[Row]) -> State:
    """New rows of the outbox, under the next sequences."""
    first = len(state.rows)
    return state._replace(
        rows=state.rows + tuple(rows),
        ledger=state.ledger + ("",) * len(rows),
        outbox=state.outbox + tuple(range(first, first + len(rows))),
    )


def read_fold(state: State, wave: int) -> Fold:
    """The journal of this pass; of two workers of a lane both may have written."""
    found = [result.fold for result in state.results if result.pass_ == wave]
    pending = set(state.outbox)
    appended = {n for fold in found for n in fold.appended} & pending
    refused = {n for fold in found for n in fold.refused} & pending
    return Fold(tuple(sorted(appended)), tuple(sorted(refused)))


def with_events(state: State, fold: Fold) -> State:
    """Step 4: the ledger has the fold's events."""
    ledger = list(state.ledger)
    for status, sequences in ((Status.INDEXED, fold.appended), (Status.DEAD, fold.refused)):
        for sequence in sequences:
            ledger[sequence] = status
    return state._replace(ledger=tuple(ledger), fold=fold)


def with_waits(state: State) -> State:
    """Step 5: the ``documents`` rows that the commit named."""
    return state._replace(waits=effective_waits(state), staged=())


def effective_waits(state: State) -> tuple[tuple[int, int], ...]:
    """Entries that wait out of order, as of the last commit."""
    waits = {**dict(state.waits), **dict(state.staged)}
    return tuple(sorted((entry, attempt) for entry, attempt in waits.items() if attempt))


def without_done(config: QueueConfig, state: State, fold: Fold) -> State:
    """Step 8: what is done leaves the outbox; what was refused is held, and its messages come in the same commit."""
    done = {*fold.appended, *fold.refused}
    after = state._replace(
        outbox=tuple(n for n in state.outbox if n not in done),
        refused=_sorted(state.refused, fold.refused),
        fold=Fold(),
    )
    return after if config.mutation == BY_THEMSELVES else with_refusals(after, fold, state.wave)


def with_refusals(state: State, fold: Fold, wave: int) -> State:
    """A message for each row that was refused."""
    return with_rows(state, [Row(state.rows[n].entry, ERRORS, REFUSAL, wave) for n in fold.refused])


def _sorted(*sequences: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(n for each in sequences for n in each))


def tables(state: State) -> Undone:
    """What a power cut would put back in place of the next commit."""
    rows, waves = len(state.rows), (state.wave, state.staged, state.failures)
    return Undone(state.position, state.head, rows, state.outbox, *waves, state.stop, state.stopped, state.failed)
