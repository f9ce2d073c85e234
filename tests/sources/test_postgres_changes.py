"""``PostgresChanges`` on a real server: what its tables become, and what happens to the slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.destinations.postgres import Database, database, postgres
from tests.support.plan_world import PlanWorld, place, trial

from ferryman.sources import PostgresChanges
from ferryman.sources.postgres_changes import SLOT
from ferryman.sources.postgres_server import lsn_number
from ferryman.state.source_memory import load_memory
from ferryman.state.state import State

__all__ = ["database", "place", "postgres", "trial"]

pytestmark = pytest.mark.server


class Shop:
    """A schema with tables, and a plan that follows some of them."""

    def __init__(self, world: PlanWorld, database: Database) -> None:
        self.world = world
        self.database = database
        self.query = database.query

    def follow(self, *tables: str, steps: tuple[Any, ...] = (), **options: Any) -> Shop:
        """Make a plan that follows this table, or these tables by their names."""
        given: Any = tables[0] if len(tables) == 1 else tables
        options = {"max_deleted": 1.0, **options}
        self.world.build(*steps, source=PostgresChanges(self.database.url, given, **options))
        return self

    def run(self, **options: Any) -> Any:
        return self.world.run(wait=0, **options)

    def found(self) -> dict[str, Any]:
        """Documents as the destination has them now."""
        found: dict[str, Any] = {}
        for line in self.world.out().lines():
            if line["op"] == "upsert":
                found[line["id"]] = line["fields"]
            else:
                del found[line["id"]]
        return found

    def bookmarks(self) -> dict[str, Any]:
        state = State(self.world.root, self.world.plan)
        state.open_for_reading()
        return dict(load_memory(state, "docs").bookmarks)

    @property
    def slot(self) -> str:
        return str(self.bookmarks()[SLOT]["slot"])

    def slots(self) -> dict[str, int]:
        """Slots of the server -> the positions at which they begin."""
        rows = self.query("SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots")
        return {name: lsn_number(position) for name, position in rows}


@pytest.fixture
def shop(trial: PlanWorld, database: Database) -> Iterator[Shop]:
    yield Shop(trial, database)
    database.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    for (name,) in database.query("SELECT pubname FROM pg_publication"):
        database.query(f'DROP PUBLICATION "{name}"')


def test_a_copy_and_then_each_change(shop: Shop) -> None:
    shop.query("CREATE TABLE items (id int PRIMARY KEY, name text, n numeric)")
    shop.query("INSERT INTO items SELECT i, 'item ' || i, i / 2.0 FROM generate_series(1, 5) i")
    shop.follow("items")
    assert shop.run().exit == 0
    assert shop.found()["3"] == {"id": 3, "name": "item 3", "n": "1.5000000000000000"}
    shop.query("INSERT INTO items VALUES (6, 'six', NULL); UPDATE items SET name = 'two' WHERE id = 2")
    shop.query("DELETE FROM items WHERE id = 1; UPDATE items SET id = 50 WHERE id = 5")
    assert shop.run().exit == 0
    found = shop.found()
    assert {id: fields["name"] for id, fields in found.items()} == {
        "2": "two", "3": "item 3", "4": "item 4", "50": "item 5", "6": "six"
    }  # fmt: skip
    assert found["6"]["n"] is None
    assert shop.run().messages == []
    assert shop.slots() == {shop.slot: shop.bookmarks()[SLOT]["position"]}
