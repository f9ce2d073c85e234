"""The tables of a state's keyed nodes: the state of each key, the exports that the plan has not carried
on yet, and what keys were given of documents that may change.

They stand beside the tables of every state, have the same driver and the same fence, and are made when a plan with the
node runs for the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ferryman import crash
from ferryman.errors import StateDamaged, UsageError
from ferryman.plan import Plan, keyed_nodes
from ferryman.plan.structure import Structure, keyed_of
from ferryman.records.keys import (
    CONTRIBUTIONS,
    EXPORTS,
    EXPORTS_PARTITION,
    FORGOTTEN,
    KEY_STATE,
    PUBLISHED,
    bucket_of,
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
"""Application id: rows of the state when all of its files were merged last."""


class KeyedTables(NamedTuple):
    """Of one keyed node."""

    state: Table
    exports: Table
    contributions: Table

    @property
    def all(self) -> tuple[Table, ...]:
        return (self.state, self.exports, self.contributions)

    def load(self, application: str) -> None:
        """Read all as they are now; a reader may come before they are made."""
        if not self.contributions.exists:
            return
        self.state.load([application, PUBLISHED, MERGED, FORGOTTEN])
        self.exports.load([application, PUBLISHED, *map(place_id, lanes())])
        self.contributions.load([application, PUBLISHED, MERGED])

    def publish(
        self, wave: int, state: Sequence[Part], exports: Sequence[tuple[str, Part]], contributions: Sequence[Part]
    ) -> None:
        """Make known what a wave has changed; nothing if that was done before.

        Args:
            exports: (lane, file), in the order in which they go on.
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

    def files_of(self, key: str) -> list[DataFile]:
        """Files of the state that may have a row of this key."""
        return [file for file in self.state.files.values() if may_hold(file, bucket_of(key), bucket_of(key))]


def may_hold(file: DataFile, least: int, greatest: int) -> bool:
    """May a file of the state have rows of these buckets?"""
    first, last = (int(file.stats[kind]["bucket"]) for kind in ("minValues", "maxValues"))
    return first <= greatest and least <= last


def keyed_tables(plan: Plan, root: StatePath) -> dict[str, KeyedTables]:
    """Node -> its tables, there or not, also of nodes that the plan had once: a wave of theirs may have to be settled.
    The plan's nodes know from now on where their exports lie."""
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


def missing_tables(keyed: dict[str, KeyedTables], remembered: Structure) -> Iterator[StateDamaged]:
    """Tables that should be there, for the plan had their nodes when it ran last."""
    for name in keyed.keys() & keyed_of(remembered):
        for table in keyed[name].all:
            if not table.exists:
                yield StateDamaged(str(table.folder), "the folder is missing")


def existing_tables(keyed: dict[str, KeyedTables]) -> list[Table]:
    """Those of the tables that have been made."""
    return [table for each in keyed.values() for table in each.all if table.exists]


def _refuse_added_again(keyed: dict[str, KeyedTables], plan: Plan, remembered: Structure) -> None:
    """A node that was taken out of the plan has missed what came since: its state would be wrong without a word.

    Raises:
        UsageError: one of the plan's nodes was not in it when it ran last, and has a state of before.
    """
    had = keyed_of(remembered)
    for node in keyed_nodes(plan.nodes):
        tables = keyed[node.name]
        made = [table for table in tables.all if table.exists]
        if node.name not in had and any(table.transaction_on_disk(PUBLISHED) for table in made):
            raise UsageError(
                f"{node.name}: this keyed node was taken out of the plan, and its state of before is still there "
                f"({tables.state.folder}), without what came since. Nothing was changed. Give the node another name: "
                "then it begins with no state."
            )


def create_missing_tables(keyed: dict[str, KeyedTables], plan: Plan, remembered: Structure) -> None:
    """Make the tables of nodes that the plan did not have when it ran last.

    Raises:
        UsageError: one of them had been in the plan before that.
    """
    _refuse_added_again(keyed, plan, remembered)
    had = keyed_of(remembered)
    create_tables(tables for name, tables in keyed.items() if name not in had)


def create_tables(keyed: Iterable[KeyedTables]) -> None:
    """Make those of the tables that are not there."""
    for tables in keyed:
        for table in tables.all:
            if not table.exists:
                table.create()
                crash.point("create.keyed")
