"""Settle: what a journal comes to in the tables. Pure functions of the tables."""

from __future__ import annotations

from ferryman.records.rows import Status
from tests.model.keyed.tasks import LATE
from tests.model.keyed.world import Fold, KeyedConfig, State, Tables, Update


def read_fold(config: KeyedConfig, state: State, wave: int) -> Fold:
    """The journal of this pass, as far as it is about what is in the outbox."""
    late = config.mutation == LATE
    due = set(state.tables.due)
    found = (update for update in state.updates if late or update.pass_ == wave)
    updates = sorted(update for update in found if due.issuperset((*update.counted, *update.refused)))
    if config.mutation == "of two attempts the state of one and the exports of the other count":
        updates = [_mixed(update, updates) for update in updates[:1]]
    sent = sorted(s for s in state.sent if s.pass_ == wave)
    return Fold(tuple(updates), tuple(sent))


def _mixed(update: Update, all_: list[Update]) -> Update:
    others = [other for other in all_ if other.key == update.key]
    return update._replace(exports=others[-1].exports)


def with_ledger(tables: Tables, fold: Fold) -> Tables:
    """Step 4: what has ended, and the files of states and exports that this commit names."""
    ended = list(tables.ended)
    for update in fold.updates:
        for entry in update.counted:
            ended[entry] = Status.INDEXED
        for entry in update.refused:
            ended[entry] = Status.DEAD
    delivered = {*tables.delivered, *((sent.key, place) for sent in fold.sent for place in sent.places)}
    return tables._replace(ended=tuple(ended), delivered=tuple(sorted(delivered)), fold=fold)


def with_states(tables: Tables, fold: Fold) -> Tables:
    """Step 5: the states."""
    states = list(tables.states)
    for update in fold.updates:
        states[update.key] = update.value
    return tables._replace(states=tuple(states))


def with_exports(tables: Tables, fold: Fold) -> Tables:
    """Step 5: the exports, behind those that are there."""
    exports = list(tables.exports)
    for update in fold.updates:
        exports[update.key] = (*exports[update.key], *update.exports)
    return tables._replace(exports=tuple(exports))


def without_done(tables: Tables, fold: Fold) -> Tables:
    """Step 8: what has ended leaves the outbox."""
    return tables._replace(
        due=tuple(entry for entry in tables.due if not tables.ended[entry]),
        pending=tuple(row for row in tables.pending if row not in tables.delivered),
        fold=Fold(),
    )


def as_named(tables: Tables) -> Tables:
    """The states and exports as the last commit of the ledger has named them, published or not."""
    ledger, states, exports, _ = tables.settled
    if states < ledger:
        tables = with_states(tables, tables.fold)
    return with_exports(tables, tables.fold) if exports < ledger else tables
