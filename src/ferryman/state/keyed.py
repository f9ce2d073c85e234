"""Tables of a state's keyed nodes: the state of each key, the exports that the plan has not processed yet, and the
contributions of changeable documents to keys.

They are stored beside the state's other tables, with the same driver and fence, and are created when a plan with the
node first runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ferryman import crash
from ferryman.errors import StateDamaged, UsageError
from ferryman.plan import Plan, keyed_nodes
from ferryman.plan.structure import Structure, keyed_node_names
from ferryman.records.keys import (
    CONTRIBUTIONS,
    EXPORTS,
    EXPORTS_PARTITION,
    FORGOTTEN,
    KEY_STATE,
    PUBLISHED,
    lanes,
    place_id,
)
from ferryman.sources.exports import Exports
from ferryman.storage import files
from ferryman.storage.delta import DataFile
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import Part
from ferryman.storage.tables import Table

MERGED: Final = "ferryman.merged"
"""Application id: number of rows of the node's state when all of its files were last merged."""


class KeyedTables(NamedTuple):
    """Tables of one keyed node."""

    state: Table
    exports: Table
    contributions: Table

    @property
    def all(self) -> tuple[Table, ...]:
        return (self.state, self.exports, self.contributions)

    def load(self, application: str) -> None:
        """Load the current version of all tables, which a reader may find not yet created."""
        if not self.contributions.exists:
            return
        self.state.load([application, PUBLISHED, MERGED, FORGOTTEN])
        self.exports.load([application, PUBLISHED, *map(place_id, lanes())])
        self.contributions.load([application, PUBLISHED, MERGED])

    def publish(
        self, wave: int, state: Sequence[Part], exports: Sequence[tuple[str, Part]], contributions: Sequence[Part]
    ) -> None:
        """Commit a wave's changes, unless they are committed already.

        Args:
            exports: (lane, file), in the order in which they are processed.
        """
        self._publish(self.contributions, wave, contributions)
        self._publish(self.state, wave, state)
        if exports and self.exports.transactions[PUBLISHED] < wave:
            places = {lane: self.exports.transactions[place_id(lane)] for lane in lanes()}
            adds = []
            for lane, part in exports:
                adds.append(self.exports.data_file(part, {"lane": lane, "first_place": str(places[lane])}))
                places[lane] += part.rows
            numbers = {PUBLISHED: wave, **{place_id(lane): place for lane, place in places.items()}}
            self.exports.commit("exports", adds=adds, transactions=numbers)

    def _publish(self, table: Table, wave: int, parts: Sequence[Part]) -> None:
        if parts and table.transactions[PUBLISHED] < wave:
            table.commit(table.folder.parent.name, adds=map(table.data_file, parts), transactions={PUBLISHED: wave})


def may_hold(file: DataFile, least: int, greatest: int) -> bool:
    """Return whether a file of the state may have rows of these buckets."""
    first, last = (int(file.stats[kind]["bucket"]) for kind in ("minValues", "maxValues"))
    return first <= greatest and least <= last


def keyed_tables(plan: Plan, root: StatePath) -> dict[str, KeyedTables]:
    """Return node -> its tables, whether or not they exist, including nodes that only earlier plans had, since a wave
    of theirs may have to be settled. Also set the folder of exports in the plan's nodes."""
    known = set(files.list_names(root / "state"))
    for node in keyed_nodes(plan.nodes):
        known.add(node.name)
        if isinstance(node.exports.source, Exports):
            node.exports.source.folder = root / "exports" / node.name
    return {
        name: KeyedTables(
            Table(root / "state" / name, KEY_STATE, []),
            Table(root / "exports" / name, EXPORTS, EXPORTS_PARTITION),
            Table(root / "contributions" / name, CONTRIBUTIONS, []),
        )
        for name in sorted(known)
    }


def missing_tables(keyed: dict[str, KeyedTables], previous: Structure) -> Iterator[StateDamaged]:
    """Yield an error for each missing table of a node that the plan had in its last run."""
    for name in keyed.keys() & keyed_node_names(previous):
        for table in keyed[name].all:
            if not table.exists:
                yield StateDamaged(str(table.folder), "the folder is missing")


def existing_tables(keyed: dict[str, KeyedTables]) -> list[Table]:
    """Return those of the tables that exist."""
    return [table for each in keyed.values() for table in each.all if table.exists]


def _refuse_added_again(keyed: dict[str, KeyedTables], plan: Plan, previous: Structure) -> None:
    """Refuse a node that was removed from the plan and added again, since its state lacks everything in between, which
    nobody would notice.

    Raises:
        UsageError: a node of the plan has a state, but was not in the plan in its last run.
    """
    recorded = keyed_node_names(previous)
    for node in keyed_nodes(plan.nodes):
        tables = keyed[node.name]
        existing = [table for table in tables.all if table.exists]
        if node.name not in recorded and any(table.transaction_on_disk(PUBLISHED) for table in existing):
            raise UsageError(
                f"{node.name}: this keyed node was taken out of the plan, and its state of before is still there "
                f"({tables.state.folder}), without what came since. Nothing was changed. Give the node another name: "
                "then it begins with no state."
            )


def create_missing_tables(keyed: dict[str, KeyedTables], plan: Plan, previous: Structure) -> None:
    """Create the tables of nodes that the plan did not have in its last run.

    Raises:
        UsageError: one of them was in an earlier version of the plan.
    """
    _refuse_added_again(keyed, plan, previous)
    recorded = keyed_node_names(previous)
    create_tables(tables for name, tables in keyed.items() if name not in recorded)


def create_tables(keyed: Iterable[KeyedTables]) -> None:
    """Create the tables durably; leave existing ones as they are."""
    for tables in keyed:
        for table in tables.all:
            table.create()
            crash.point("create.keyed")
