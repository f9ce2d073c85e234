"""What a pass's updates of keys come to: files of the ledger now, of the keyed nodes' tables when that is committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ferryman.records.key_results import UpdateResult
from ferryman.state.journal import Journal
from ferryman.state.state import State
from ferryman.storage.files import fsync_folder
from ferryman.storage.parquet import Part


def read_updates(journal: Journal, wave: int, files: Collection[int]) -> list[UpdateResult]:
    """Those of a pass that are about outbox files (by first sequence) that are there."""
    return [each for each in journal.updates(wave) if each.leaving.keys() <= set(files)]


def files_of(updates: Sequence[UpdateResult]) -> dict[str, dict[str, Any]]:
    """What the ledger's commit says of them, for ``publish_updates``: node -> its files."""
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"state": [], "exports": [], "contributions": []})
    for each in sorted(updates, key=lambda update: (update.node, update.range)):
        found[each.node]["state"] += [each.state] if each.state is not None else []
        found[each.node]["contributions"] += [each.contributions] if each.contributions is not None else []
        found[each.node]["exports"] += [(each.lane, each.exports)] if each.exports is not None else []
    return dict(found)


def publish_updates(state: State, wave: int, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Commit the states and exports that the ledger's commit of this wave has named. Idempotent."""
    for name, mine in files.items():
        tables = state.keyed[name]
        for table in tables.all:
            fsync_folder(table.folder)
        exports = [(lane, Part(*part)) for lane, part in mine["exports"]]
        states, contributions = ([Part(*part) for part in mine[kind]] for kind in ("state", "contributions"))
        tables.publish(wave, states, exports, contributions)
