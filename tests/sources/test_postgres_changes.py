"""``PostgresChanges`` on a real server: what its tables become, and what happens to the slot."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.destinations.postgres import Database, database, postgres
from tests.servers.postgres import PostgresServer
from tests.support.plan_world import Interrupted, PlanWorld, Until, place, trial
from tests.support.previewed import previewed

from ferryman.document import Document
from ferryman.errors import Misconfigured, TransientError, Unavailable, UsageError
from ferryman.operations import remove_retained
from ferryman.plan import Plan
from ferryman.sources import PostgresChanges
from ferryman.sources import postgres_changes as module
from ferryman.sources import postgres_server as server_module
from ferryman.sources.postgres_changes import SEGMENT_BYTES, SLOT, ChangeReader
from ferryman.sources.postgres_server import Session, lsn_number
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

    @property
    def source(self) -> Any:
        [node] = [node for node in self.world.plan.nodes if node.name == "docs"]
        return node.source

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


@pytest.mark.rule("tables.key")
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


def items(shop: Shop, rows: int = 5) -> None:
    shop.query("CREATE TABLE items (id int PRIMARY KEY, name text)")
    shop.query("INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, %s) i", rows)


def names(shop: Shop) -> dict[str, str]:
    """Documents and their names, as the destination has them."""
    return {id: fields["name"] for id, fields in shop.found().items()}


def rows(shop: Shop, table: str = "items") -> dict[str, str]:
    """Rows and their names, as the server has them."""
    return {str(id): name for id, name in shop.query(f"SELECT id, name FROM {table}")}


# --- positions: the slot and the state ---


@pytest.mark.rule("tables.position")
def test_an_advance_that_the_server_lost_repeats_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that crashes after our commit may forget that its slot was advanced."""
    items(shop)
    shop.follow("items").run()
    before = shop.slots()
    shop.query("UPDATE items SET name = 'new' WHERE id = 1; DELETE FROM items WHERE id = 2")
    with monkeypatch.context() as patch:
        patch.setattr(Session, "advance", lambda *_: None)
        shop.run()
    assert shop.slots() == before
    shop.query("INSERT INTO items VALUES (2, 'again')")
    asked: list[Any] = []
    read = ChangeReader.read

    def noted(reader: ChangeReader) -> Iterator[Any]:
        for entry in read(reader):
            asked.append(entry)
            yield entry

    monkeypatch.setattr(ChangeReader, "read", noted)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "advance", lambda *_: None)
        shop.run()
    assert [entry.id for entry in asked] == ["2"]  # what is before our position was dropped, not compared
    assert names(shop) == rows(shop)
    shop.run()
    assert shop.slots() == {shop.slot: shop.bookmarks()[SLOT]["position"]}


@pytest.mark.rule("tables.position")
def test_a_real_crash_of_the_server(shop: Shop, postgres: PostgresServer) -> None:
    items(shop)
    shop.follow("items").run()
    shop.query("UPDATE items SET name = 'new' WHERE id = 1")
    shop.run()
    shop.query("CHECKPOINT")
    shop.query("UPDATE items SET name = 'newer' WHERE id = 1")
    shop.run()
    postgres.kill()
    postgres.start()
    shop.query("DELETE FROM items WHERE id = 3")
    assert shop.run().exit == 0
    assert names(shop) == rows(shop)
    assert [line["fields"]["name"] for line in shop.world.out().lines() if line["id"] == "1"] == [
        "item 1",
        "new",
        "newer",
    ]


@pytest.mark.rule("tables.quiet")
def test_a_quiet_table_beside_a_busy_one(shop: Shop) -> None:
    items(shop)
    shop.query("CREATE TABLE busy (n int, filler text)")
    shop.follow("items", max_held_bytes=SEGMENT_BYTES).run()
    before = shop.slots()[shop.slot]
    for turn in range(3):
        shop.query("INSERT INTO busy SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
        summary = shop.run()
        assert any("MiB of the server's log, more than 16 MiB" in m for m in summary.messages)
        assert shop.slots()[shop.slot] > before, turn
        before = shop.slots()[shop.slot]
    shop.query("CHECKPOINT")
    [(held,)] = shop.query(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint FROM pg_replication_slots"
    )
    assert held < SEGMENT_BYTES


def test_nothing_is_written_for_a_server_that_hardly_writes(shop: Shop) -> None:
    items(shop)
    shop.query("CREATE TABLE other (n int)")
    shop.follow("items").run()
    waves = shop.world.status()["waves"]
    shop.query("INSERT INTO other VALUES (1)")
    shop.run()
    shop.run()
    assert shop.world.status()["waves"] == waves


LOSSES = {
    "dropped": ("SELECT pg_drop_replication_slot('{slot}')", "was dropped"),
    "made again": (
        "SELECT pg_drop_replication_slot('{slot}'); SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        "was made again, or somebody else reads it",
    ),
    "advanced by somebody else": (
        "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())",
        "was made again, or somebody else reads it",
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.rule("tables.lost")
def test_lost_changes_are_loud_and_there_is_a_way_on(shop: Shop, loss: str) -> None:
    statement, why = LOSSES[loss]
    items(shop, 30)
    shop.query("CREATE TABLE more (id int PRIMARY KEY, name text); INSERT INTO more VALUES (1, 'one')")
    shop.follow("items", "more").run()
    shop.query("UPDATE items SET name = 'missed' WHERE id = 1; DELETE FROM items WHERE id = 2")
    for each in statement.format(slot=shop.slot).split("; "):
        shop.query(each)
    shop.query("INSERT INTO items VALUES (31, 'late')")
    summary = shop.run()
    assert (summary.exit, any(why in m and "on_lost='copy'" in m for m in summary.messages)) == (4, True)
    assert len(shop.found()) == 31  # nothing is deleted, nothing is skipped
    shop.follow("items", "more", on_lost="copy", max_deleted=0.2)
    summary = shop.run()
    assert (summary.exit, any(why in m and "copied again" in m for m in summary.messages)) == (0, True)
    assert names(shop) == {f"items/{id}": name for id, name in rows(shop).items()} | {"more/1": "one"}
    shop.query("DELETE FROM more")
    shop.run()
    assert not any(id.startswith("more/") for id in shop.found())


@pytest.mark.rule("tables.lost")
def test_a_state_older_than_its_slot_is_loud(shop: Shop) -> None:
    """The slot has passed what the copy has not: nothing is skipped in silence, and a new copy of the table goes on."""
    items(shop, 3)
    shop.follow("items").run()
    shutil.copytree(shop.world.state, shop.world.folder / "copy")
    shop.query("UPDATE items SET name = 'missed' WHERE id = 1")
    assert shop.run().exit == 0
    shutil.rmtree(shop.world.state)
    (shop.world.folder / "copy").rename(shop.world.state)
    shop.query("UPDATE items SET name = 'late' WHERE id = 2")
    summary = shop.run(checked=False)
    assert (summary.exit, any("somebody else reads it" in m for m in summary.messages)) == (4, True)
    shop.follow("items", on_lost="copy")
    assert shop.run(checked=False).exit == 0
    assert names(shop) == rows(shop)


@pytest.mark.slow
@pytest.mark.rule("tables.lost")
def test_a_slot_that_fell_too_far_behind(shop: Shop, postgres: PostgresServer) -> None:
    items(shop)
    shop.query("CREATE TABLE busy (n int, filler text)")
    shop.follow("items").run()
    slot = shop.slot
    shop.query("UPDATE items SET name = 'missed' WHERE id = 1")
    shop.query("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'")
    shop.query("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            shop.query("INSERT INTO busy SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
            shop.query("SELECT pg_switch_wal()")
            shop.query("CHECKPOINT")
        assert shop.query("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", slot) == [("lost",)]
        summary = shop.run()
        assert (summary.exit, any("is lost: the server has removed its log" in m for m in summary.messages)) == (
            4,
            True,
        )
        shop.follow("items", on_lost="copy")
        assert shop.run().exit == 0
    finally:
        shop.query("ALTER SYSTEM RESET max_slot_wal_keep_size")
        shop.query("SELECT pg_reload_conf()")
    assert names(shop) == rows(shop)


@pytest.mark.rule("tables.lost")
def test_another_server_behind_the_same_name(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    bookmarks = shop.bookmarks()
    elsewhere = {**bookmarks, SLOT: {**bookmarks[SLOT], "system": "1/2"}}
    with pytest.raises(Misconfigured, match="on another server or database"):
        shop.source.begin_scan("x", elsewhere)


@pytest.mark.rule("tables.lost")
def test_a_server_that_was_put_back(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    bookmarks = shop.bookmarks()
    ahead = {**bookmarks, SLOT: {**bookmarks[SLOT], "position": bookmarks[SLOT]["position"] + (1 << 40)}}
    with pytest.raises(Misconfigured, match="put back to an older copy"):
        shop.source.begin_scan("x", ahead)


# --- what a change becomes ---


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.rule("tables.omitted")
def test_a_large_value_that_did_not_change(shop: Shop, identity: str) -> None:
    shop.query("CREATE TABLE items (id int PRIMARY KEY, name text, body text)")
    shop.query("ALTER TABLE items ALTER body SET STORAGE EXTERNAL")
    shop.query(f"ALTER TABLE items REPLICA IDENTITY {identity}")
    shop.query("INSERT INTO items SELECT i, 'a', repeat(i::text, 20000) FROM generate_series(1, 4) i")
    shop.follow("items").run()
    shop.query("UPDATE items SET name = 'b' WHERE id <= 3")
    shop.query("UPDATE items SET id = 20 WHERE id = 2")
    shop.query("UPDATE items SET name = 'c' WHERE id = 3; DELETE FROM items WHERE id = 3")
    assert shop.run().exit == 0
    found = {id: (fields["name"], fields["body"]) for id, fields in shop.found().items()}
    assert found == {str(i): (name, body) for i, name, body in shop.query("SELECT * FROM items")}
    assert len(found) == 3


@pytest.mark.rule("tables.omitted")
def test_a_row_that_is_read_again_is_found_by_a_key_of_a_fixed_length(shop: Shop) -> None:
    """``character`` without a length is one of a single character, as ``bit`` is of a single bit."""
    shop.query("CREATE TABLE items (code char(8), flags bit(3), name text, body text, PRIMARY KEY (code, flags))")
    shop.query("ALTER TABLE items ALTER body SET STORAGE EXTERNAL")
    shop.query("INSERT INTO items VALUES ('abc', '101', 'a', repeat('x', 20000))")
    shop.follow("items").run()
    shop.query("UPDATE items SET name = 'b'")
    assert shop.run().exit == 0
    assert [(f["name"], len(f["body"])) for f in shop.found().values()] == [("b", 20000)]


@pytest.mark.rule("tables.truncate")
def test_truncate_is_deletes_under_max_deleted(shop: Shop) -> None:
    items(shop, 20)
    shop.query("CREATE TABLE more (id int PRIMARY KEY, name text)")
    shop.query("INSERT INTO more SELECT i, 'more' FROM generate_series(1, 20) i")
    shop.follow("items", "more", max_deleted=0.2).run()
    shop.query("UPDATE items SET name = 'x' WHERE id = 1; TRUNCATE items; INSERT INTO items VALUES (3, 'three')")
    shop.query("UPDATE more SET name = 'changed' WHERE id = 1")
    summary = shop.run()
    assert summary.exit == 2
    assert any("missing, more than max_deleted=0.2 allows" in m for m in summary.messages)
    assert any("table items was truncated" in m for m in summary.messages)
    found = names(shop)
    assert (len(found), found["items/3"], found["more/1"]) == (40, "three", "changed")
    held = shop.slots()[shop.slot]
    shop.query("UPDATE more SET name = 'again' WHERE id = 1; INSERT INTO items VALUES (99, 'new')")
    assert shop.run().exit == 2  # it asks again, and the rest goes on
    assert (names(shop)["more/1"], names(shop)["items/99"]) == ("again", "new")
    assert shop.slots()[shop.slot] > held
    assert shop.run(allow_deletes=True).exit == 0
    assert names(shop) == {f"{t}/{id}": n for t in ("items", "more") for id, n in rows(shop, t).items()}
    assert shop.run().messages == []


def test_keys_of_several_columns_and_odd_values(shop: Shop) -> None:
    shop.query("CREATE TABLE items (a text, b int, name text, PRIMARY KEY (b, a))")
    odd = ["x/y", "x%2Fy", "ü #1", "", "a" * 300, "line\nbreak"]
    for at, a in enumerate(odd):
        shop.query("INSERT INTO items VALUES (%s, %s, 'first')", a, at % 2)
    shop.follow("items")
    shop.run()
    copied = set(shop.found())
    shop.query("UPDATE items SET name = 'second'")
    shop.run()
    assert {(f["a"], f["b"], f["name"]) for f in shop.found().values()} == {
        (a, at % 2, "second") for at, a in enumerate(odd)
    }
    assert set(shop.found()) == copied
    assert {"0/x%2Fy", "1/x%25252Fy"} <= copied  # the engine encodes a %25 once more
    shop.query("DELETE FROM items")
    shop.run()
    assert shop.found() == {}


VALUES = {
    "bool": "true", "int2": "-7", "int8": "9007199254740993", "float4": "0.1", "float8": "1e300", "numeric": "1.50",
    "text": "'a\\b\tc\nd'", "varchar(5)": "'x'", "char(5)": "'x'", "bytea": "'\\x00ff'", "date": "'2024-05-01'",
    "time": "'10:00:00.5'", "timestamp": "'2024-05-01 10:00'", "timestamptz": "'2024-05-01 10:00+02'",
    "interval": "'1 day 2 hours'", "uuid": "'00000000-0000-0000-0000-000000000001'", "inet": "'10.0.0.1/8'",
    "json": "'{\"a\": [1, null]}'", "jsonb": "'{\"a\": 1.10}'", "int[]": "'{{1,2},{3,NULL}}'",
    "text[]": "'{a,\"b,c\",NULL}'", "int4range": "'[1,5)'", "point": "'(1,2)'",
    "numeric[]": "'{1.50,NaN}'", "date[]": "'{2024-05-01,infinity}'", "bit(3)": "'101'", "money": "1.5",
}  # fmt: skip
ODD_VALUES = {
    "date": "'infinity'", "timestamp": "'4713-01-01 BC'", "float8": "'NaN'", "numeric": "'Infinity'",
    "timestamptz": "'-infinity'", "interval": "'178000000 years'", "text": "''",
}  # fmt: skip


def test_a_change_has_the_values_that_a_copy_has(shop: Shop) -> None:
    """Of every type, and as ``Sql`` has them where it has something."""
    types = [*VALUES.items(), *ODD_VALUES.items()]
    columns = ", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(types))
    values = ", ".join(f"{value}::{kind}" for kind, value in types)
    nulls = ", ".join("NULL" for _ in types)
    shop.query(f"CREATE TABLE items (id int PRIMARY KEY, {columns}, made int GENERATED ALWAYS AS (id + 1) STORED)")
    shop.query(f"INSERT INTO items VALUES (1, {values}), (2, {nulls})")
    shop.follow("items").run()
    shop.query("UPDATE items SET id = id + 10")
    assert shop.run().exit == 0
    found = shop.found()
    assert found.keys() == {"11", "12"}
    first = {line["id"]: line["fields"] for line in shop.world.out().lines() if line["op"] == "upsert"}
    assert {**first["1"], "id": 0} == {**first["11"], "id": 0}
    assert {**first["2"], "id": 0} == {**first["12"], "id": 0}
    by_type = {kind: first["11"][f"c{at}"] for at, (kind, _) in enumerate(types[: len(VALUES)])}
    wanted = {
        "bool": True, "int2": -7, "int8": 9007199254740993, "float4": 0.1, "numeric": "1.50", "text": "a\\b\tc\nd",
        "char(5)": "x    ", "bytea": "AP8=", "date": "2024-05-01", "timestamptz": "2024-05-01T08:00:00Z",
        "interval": "P1DT7200S", "json": {"a": [1, None]}, "int[]": [[1, 2], [3, None]], "text[]": ["a", "b,c", None],
        "int4range": "[1,5)", "point": "(1,2)", "numeric[]": ["1.50", None],
    }  # fmt: skip
    assert {kind: by_type[kind] for kind in wanted} == wanted


def test_columns_that_come_and_go(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    shop.query("ALTER TABLE items ADD COLUMN extra int DEFAULT 7")
    shop.query("UPDATE items SET name = 'with extra' WHERE id = 1")
    shop.query("ALTER TABLE items DROP COLUMN name, ADD COLUMN title text")
    shop.query("UPDATE items SET title = 'now' WHERE id = 2")
    assert shop.run().exit == 0
    found = shop.found()
    assert found["1"] == {"id": 1, "name": "with extra", "extra": 7}
    assert found["2"] == {"id": 2, "extra": 7, "title": "now"}


def test_a_partitioned_table_is_one_table(shop: Shop) -> None:
    shop.query("CREATE TABLE items (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    shop.query("CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (10)")
    shop.query("CREATE TABLE high PARTITION OF items FOR VALUES FROM (10) TO (100)")
    shop.query("INSERT INTO items SELECT i, 'item' FROM generate_series(8, 12) i")
    shop.follow("items").run()
    shop.query("UPDATE items SET id = 50 WHERE id = 8; UPDATE items SET name = 'x' WHERE id = 11")
    shop.run()
    assert names(shop) == rows(shop)


def test_a_key_that_becomes_another_one(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    shop.query("ALTER TABLE items ADD COLUMN code text NOT NULL DEFAULT 'c'; UPDATE items SET code = 'c' || id")
    shop.query("ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (code)")
    shop.query("UPDATE items SET name = 'x' WHERE id = 1; DELETE FROM items WHERE id = 2")
    shop.run()
    shop.run()
    assert {id: f["name"] for id, f in shop.found().items()} == dict(shop.query("SELECT code, name FROM items"))


def test_a_table_that_was_dropped_and_made_again(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    shop.query("DROP TABLE items")
    assert shop.run().exit == 4
    assert len(shop.found()) == 5
    items(shop, 3)
    shop.run()
    assert names(shop) == rows(shop)
    shop.query("UPDATE items SET name = 'x'")
    shop.run()
    assert names(shop) == rows(shop)


REFUSED = {
    "no key": ("CREATE TABLE items (id int, name text)", "has no identity"),
    "full without a key": (
        "CREATE TABLE items (id int, name text); ALTER TABLE items REPLICA IDENTITY FULL",
        "has no identity",
    ),
    "nothing": (
        "CREATE TABLE items (id int PRIMARY KEY); ALTER TABLE items REPLICA IDENTITY NOTHING",
        "has no identity",
    ),
    "a parent": (
        "CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE part (PRIMARY KEY (id)) INHERITS (items)",
        "tables that inherit from it (part)",
    ),
    "a view": ("CREATE VIEW items AS SELECT 1 AS id", "is not a table"),
    "no table": ("SELECT 1", "there is no table items"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.rule("tables.key")
def test_what_cannot_be_followed_is_refused(shop: Shop, case: str) -> None:
    statements, why = REFUSED[case]
    for each in statements.split("; "):
        shop.query(each)
    summary = shop.follow("items").run()
    assert (summary.exit, any(why in message for message in summary.messages)) == (4, True), summary.messages
    assert shop.slots() == {}


@pytest.mark.rule("tables.key")
def test_rows_that_pass_on_their_keys(shop: Shop) -> None:
    """Where keys are compared at the end of a transaction, a row may take a key before its owner leaves it."""
    shop.query("CREATE TABLE items (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, name text)")
    shop.query("ALTER TABLE items REPLICA IDENTITY FULL")
    shop.query("INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 5) i")
    shop.follow("items").run()
    shop.query("UPDATE items SET id = id + 1")
    shop.query("INSERT INTO items VALUES (3, 'new'); DELETE FROM items WHERE name = 'item 2'")
    shop.query("UPDATE items SET id = 9 WHERE id = 4; UPDATE items SET id = 10 WHERE id = 9")
    assert shop.run().exit == 0
    assert names(shop) == rows(shop)
    assert sorted(names(shop), key=int) == ["2", "3", "5", "6", "10"]


def test_the_columns_of_an_index_may_be_the_identity(shop: Shop) -> None:
    shop.query("CREATE TABLE items (a int, code text NOT NULL UNIQUE, name text)")
    shop.query("ALTER TABLE items REPLICA IDENTITY USING INDEX items_code_key")
    shop.query("INSERT INTO items VALUES (1, 'x', 'one')")
    shop.follow("items").run()
    shop.query("UPDATE items SET code = 'y'")
    shop.run()
    assert names(shop) == {"y": "one"}


# --- copies ---


@pytest.mark.rule("tables.again")
def test_a_table_is_copied_again_while_the_others_are_followed(shop: Shop) -> None:
    items(shop)
    shop.query("CREATE TABLE more (id int PRIMARY KEY, name text); INSERT INTO more VALUES (1, 'one')")
    shop.follow("items", "more").run()
    sent = len(shop.world.out().lines())
    shop.query("ALTER TABLE items ADD COLUMN extra int DEFAULT 7")
    shop.query("UPDATE more SET name = 'two'")
    shop.follow("items", "more", copy={"items": 1}).run()
    assert len(shop.world.out().lines()) == sent + 6
    assert {f["extra"] for id, f in shop.found().items() if id.startswith("items/")} == {7}
    shop.run()
    assert len(shop.world.out().lines()) == sent + 6


def test_tables_that_the_plan_takes_up_and_leaves_out(shop: Shop) -> None:
    items(shop)
    shop.query("CREATE TABLE more (id int PRIMARY KEY, name text); INSERT INTO more VALUES (1, 'one')")
    shop.follow("items", "more").run()
    shop.query("CREATE TABLE third (id int PRIMARY KEY, name text); INSERT INTO third VALUES (1, 'three')")
    shop.query("DELETE FROM items WHERE id = 1")
    shop.follow("items", "third").run()
    assert names(shop) == {**{f"items/{id}": n for id, n in rows(shop).items()}, "third/1": "three"}
    assert "table more" not in shop.bookmarks()
    shop.query("INSERT INTO more VALUES (2, 'two')")
    shop.query("INSERT INTO third VALUES (2, 'more')")
    assert shop.run().exit == 0
    assert len(shop.found()) == 6


@pytest.mark.rule("tables.copy")
def test_a_copy_and_its_changes_meet_exactly(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commits while a table is copied is in the copy or in the changes, and never in neither."""
    items(shop, 3)
    shop.query("CREATE TABLE more (id int PRIMARY KEY, name text); INSERT INTO more VALUES (1, 'one')")
    open_one = psycopg.connect(shop.database.url)
    enter = Session.enter_snapshot

    def enter_slowly(session: Session, slot: str) -> int:
        shop.query("UPDATE items SET name = 'before' WHERE id = 1")
        position = enter(session, slot)
        open_one.execute("UPDATE items SET name = 'open' WHERE id = 2")
        shop.query("UPDATE items SET name = 'after' WHERE id = 3; INSERT INTO items VALUES (4, 'after')")
        return position

    monkeypatch.setattr(Session, "enter_snapshot", enter_slowly)
    shop.follow("items", "more").run()
    assert names(shop) == {"items/1": "before", "items/2": "item 2", "items/3": "item 3", "more/1": "one"}
    monkeypatch.undo()
    shop.run()
    open_one.commit()
    open_one.close()
    shop.run()
    assert names(shop) == {**{f"items/{id}": n for id, n in rows(shop).items()}, "more/1": "one"}
    assert len(shop.found()) == 5


@pytest.mark.rule("tables.copy")
def test_large_tables_are_copied_one_scan_each(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPY_BYTES", 1)
    for name in ("a", "b", "c"):
        shop.query(f"CREATE TABLE {name} (id int PRIMARY KEY, name text); INSERT INTO {name} VALUES (1, '{name}')")
    shop.follow("a", "b", "c")
    with pytest.raises(Interrupted):
        shop.run(observer=Until(3, "transform"))
    done = [name for name in shop.bookmarks() if name.startswith("table ")]
    assert len(done) == 2  # those need not be copied again
    copied: list[str] = []
    copy = Session.copy
    monkeypatch.setattr(Session, "copy", lambda self, t, where="": (copied.append(t.name), copy(self, t, where))[1])
    shop.run()
    assert len(copied) == 1
    assert names(shop) == {f"{name}/1": name for name in ("a", "b", "c")}
    assert len(shop.slots()) == 1


def test_an_open_transaction_that_a_copy_waits_for_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WAIT_S", 1)
    items(shop)
    with psycopg.connect(shop.database.url, application_name="the nightly job") as other:
        other.execute("INSERT INTO items VALUES (100, 'open')")
        summary = shop.follow("items").run()
        assert summary.exit == 4
        assert any("waits for transactions that are open: process" in m for m in summary.messages), summary.messages
        assert any("the nightly job" in m for m in summary.messages)
        assert shop.slots() == {}
    assert shop.run().exit == 0
    assert names(shop) == rows(shop)


def test_a_publication_of_the_users(shop: Shop) -> None:
    shop.query("CREATE TABLE items (id int PRIMARY KEY, name text, secret text, kind int)")
    for i in range(1, 5):
        shop.query("INSERT INTO items VALUES (%s, %s, 'secret', %s)", i, f"item {i}", i % 2)
    shop.query(f"CREATE PUBLICATION mine_{shop.database.name} FOR TABLE items (id, name, kind) WHERE (id <> 3)")
    shop.follow("items", publication=f"mine_{shop.database.name}").run()
    assert {id: sorted(f) for id, f in shop.found().items()} == {key: ["id", "kind", "name"] for key in "124"}
    shop.query("UPDATE items SET name = 'x'")
    shop.run()
    assert {(id, f["name"], "secret" in f) for id, f in shop.found().items()} == {(i, "x", False) for i in "124"}
    shop.follow("items", publication="none").run()
    assert any("there is no publication none" in m for m in shop.world.watch.messages)


def test_a_preview_makes_nothing_and_moves_nothing(shop: Shop) -> None:
    items(shop, 2)
    shop.follow("items")
    assert {d["document"] for d in previewed(shop.world.plan, shop.world.state).documents} == {"1", "2"}
    assert shop.slots() == {}
    shop.run()
    before = shop.slots()
    shop.query("UPDATE items SET name = 'x' WHERE id = 1")
    assert {d["document"] for d in previewed(shop.world.plan, shop.world.state).documents} == {"1"}
    assert shop.slots() == before
    shop.run()
    assert names(shop) == rows(shop)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresChanges("sqlite:///x.db", "t"),
        lambda: PostgresChanges("nonsense", "t"),
        lambda: PostgresChanges("postgresql://h/d", []),
        lambda: PostgresChanges("postgresql://h/d", ["a", "a"]),
        lambda: PostgresChanges("postgresql://h/d", "a", copy={"b": 1}),
        lambda: PostgresChanges("postgresql://h/d", "a", on_lost="go"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_cannot_be_meant(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


# --- what is said, and what is left ---


@pytest.mark.rule("tables.quiet")
def test_status_names_the_slot_and_what_it_holds(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    items(shop)
    shop.follow("items", max_held_bytes=1).run()
    shop.query("CREATE TABLE busy (filler text)")
    shop.query("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
    [kept] = shop.world.status()["retained"]["docs"]
    assert kept["place"].startswith(
        f"replication slot {shop.slot} and publication {shop.slot} at postgresql+psycopg://"
    )
    assert "not-so-secret" not in kept["place"]
    assert kept["bytes"] > 1_000_000
    assert "of the server's log, more than 0 MiB (max_held_bytes)" in kept["warning"]
    assert any("(max_held_bytes)" in message for message in shop.run().messages)


def test_a_server_that_is_away(shop: Shop, postgres: PostgresServer) -> None:
    items(shop)
    shop.follow("items").run()
    postgres.stop()
    try:
        assert shop.run().exit == 4
        assert "retained" not in shop.world.status()
        with pytest.raises(Unavailable):
            remove_retained(shop.world.plan, state=shop.world.state)
    finally:
        postgres.start()
    shop.query("UPDATE items SET name = 'x' WHERE id = 1")
    assert shop.run().exit == 0
    assert names(shop) == rows(shop)


@pytest.mark.rule("tables.left")
def test_what_a_plan_leaves_is_named_and_removed(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    slot = shop.slot
    [kept] = remove_retained(shop.world.plan, state=shop.world.state)
    assert slot in kept.place
    assert (shop.slots(), shop.query("SELECT * FROM pg_publication")) == ({}, [])
    assert remove_retained(shop.world.plan, state=shop.world.state) == []
    summary = shop.run()
    assert (summary.exit, any("was dropped" in message for message in summary.messages)) == (4, True)


def test_a_new_version_of_the_plan_goes_on_with_the_slot(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    slot = shop.slot
    newer = shop.world.make_plan(source=PostgresChanges(shop.database.url, "items", max_deleted=1.0))
    newer.version = 2
    shop.query("UPDATE items SET name = 'x' WHERE id = 1")
    shop.world.run(newer, from_version=1, wait=0)
    assert names(shop) == rows(shop)
    assert list(shop.slots()) == [slot]
    assert len(shop.world.out().lines()) == 6


@pytest.mark.slow
def test_two_plans_have_a_slot_each(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    plan = Plan("another", version=1)
    plan.source("docs", PostgresChanges(shop.database.url, "items")).destination("out", shop.world.out("second"))
    shop.world.run(plan, wait=0)
    assert len(shop.slots()) == 2
    shop.query("DELETE FROM items WHERE id = 1")
    shop.run()
    shop.world.run(plan, wait=0)
    assert "-1" in shop.world.arrived("second")
    assert names(shop) == rows(shop)


@pytest.mark.slow
def test_a_document_that_waits_is_deleted_with_its_row(shop: Shop) -> None:
    """Its content is kept in the state, and does not count as listed when its table is copied."""
    items(shop, 3)
    ready = shop.world.folder / "ready"

    def work(doc: Document) -> Document:
        if doc.id in ("items/1", "items/2") and not ready.exists():
            raise TransientError("not yet")
        return doc

    shop.query("CREATE TABLE more (id int PRIMARY KEY, name text)")
    shop.follow("items", "more", steps=(work,)).run()
    assert set(shop.found()) == {"items/3"}
    shop.query("TRUNCATE items; INSERT INTO items VALUES (2, 'item 2')")
    shop.run()
    ready.touch()
    shop.world.retry()
    shop.run()
    assert names(shop) == {"items/2": "item 2"}


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.rule("tables.large")
def test_a_large_transaction_in_bounded_memory(shop: Shop, count: int) -> None:
    """What the source holds of it does not grow with its number of rows."""
    items(shop, 1)
    shop.follow("items").run()
    shop.query("INSERT INTO items SELECT i, repeat('x', 100) FROM generate_series(2, %s) i", count)
    source = shop.source
    source.begin_scan("x", shop.bookmarks())
    [partition] = source.partitions_after(shop.bookmarks())
    tracemalloc.start()
    seen = sum(isinstance(entry, Document) for entry in source.listing(partition))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (seen, peak < 4_000_000) == (count - 1, True), peak


# --- as a stranger would have it ---


def test_changes_that_were_not_published_are_found_by_a_copy(shop: Shop) -> None:
    items(shop)
    shop.query("CREATE TABLE more (id int PRIMARY KEY, name text); INSERT INTO more VALUES (1, 'one')")
    shop.follow("items", "more").run()
    shop.query(f"ALTER PUBLICATION {shop.slot} DROP TABLE items")
    shop.query("UPDATE items SET name = 'unpublished' WHERE id = 1; DELETE FROM items WHERE id = 2")
    assert shop.run().exit == 0
    assert names(shop) == {**{f"items/{id}": n for id, n in rows(shop).items()}, "more/1": "one"}
    shop.query(f"DROP PUBLICATION {shop.slot}")
    shop.query("UPDATE items SET name = 'again' WHERE id = 1; UPDATE more SET name = 'two'")
    shop.run()
    shop.run()
    assert names(shop) == {**{f"items/{id}": n for id, n in rows(shop).items()}, "more/1": "two"}


def test_a_publication_that_leaves_out_deletes_is_refused(shop: Shop) -> None:
    items(shop)
    shop.query(f"CREATE PUBLICATION mine_{shop.database.name} FOR TABLE items WITH (publish = 'insert, update')")
    shop.follow("items", publication=f"mine_{shop.database.name}").run()
    assert any("leaves out some kinds of changes" in message for message in shop.world.watch.messages)
    shop.query(f"DROP PUBLICATION mine_{shop.database.name}; CREATE TABLE other (id int)")
    shop.query(f"CREATE PUBLICATION mine_{shop.database.name} FOR TABLE other")
    shop.run()
    assert any("does not have table items: ALTER PUBLICATION" in message for message in shop.world.watch.messages)


def test_a_user_with_few_rights(shop: Shop) -> None:
    user = f"reader_{shop.database.name}"
    items(shop)
    shop.query(
        f"CREATE ROLE {user} LOGIN PASSWORD 'secret-{user}'; GRANT USAGE ON SCHEMA {shop.database.name} TO {user}"
    )
    url = shop.database.url.replace("postgres:not-so-secret@", f"{user}:secret-{user}@")
    name = f"mine_{shop.database.name}"
    shop.world.build(source=PostgresChanges(url, "items", publication=name, max_deleted=1.0))
    steps = [
        (f"CREATE PUBLICATION {name} FOR TABLE items", "there is no publication"),
        (f"ALTER ROLE {user} REPLICATION", "permission denied to use replication slots"),
        (f"GRANT SELECT ON items TO {user}", "permission denied for table items"),
    ]
    for statement, why in steps:
        summary = shop.run()
        assert (summary.exit, any(why in message for message in summary.messages)) == (4, True), summary.messages
        assert not any(f"secret-{user}" in message for message in summary.messages)
        shop.query(statement)
    assert shop.run().exit == 0
    shop.query("UPDATE items SET name = 'x' WHERE id = 1")
    shop.run()
    assert names(shop) == rows(shop)
    shop.query(f"DROP OWNED BY {user}; DROP ROLE {user}")


def test_odd_names(shop: Shop) -> None:
    table = '"Odd %s {} \'s "" Näme"'
    shop.query(f'CREATE TABLE {table} ("Id %" text PRIMARY KEY, "a ""b"" {{}} %s" text, body text)')
    shop.query(f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL")
    key = "%s {} ' \\ %(x)s"
    with psycopg.connect(shop.database.url) as connection:
        insert: Any = f"INSERT INTO {table.replace('%', '%%')} VALUES (%s, %s, repeat('y', 20000))"
        connection.execute(insert, [key, "value"])
    shop.follow(table)
    assert shop.run().exit == 0
    shop.query(f'UPDATE {table} SET "a ""b"" {{}} %s" = \'changed\'')
    assert shop.run().exit == 0
    [(id, fields)] = shop.found().items()
    assert (id, fields['a "b" {} %s'], len(fields["body"])) == (key, "changed", 20000)


@pytest.mark.slow
def test_a_database_with_another_encoding(shop: Shop, postgres: PostgresServer) -> None:
    name = f"latin_{shop.database.name}"
    shop.query(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = postgres.url_of(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('CREATE TABLE items (id text PRIMARY KEY, "Größe" text)')
        connection.execute("INSERT INTO items VALUES ('é', 'ü')")
        shop.world.build(source=PostgresChanges(url, "items"))
        shop.run()
        connection.execute("""UPDATE items SET "Größe" = 'ß'""")
        shop.run()
        assert {id: fields["Größe"] for id, fields in shop.found().items()} == {"é": "ß"}
        remove_retained(shop.world.plan, state=shop.world.state)
    shop.query(f"DROP DATABASE {name} WITH (FORCE)")


def test_somebody_who_reads_from_the_slot_right_now(shop: Shop) -> None:
    items(shop)
    shop.follow("items").run()
    shop.query("UPDATE items SET name = 'x' WHERE id = 1")
    publication = f'"{shop.slot}"'
    other = psycopg.connect(shop.database.url, autocommit=True, replication="database")
    options = f"(proto_version '1', publication_names '{publication}')"
    other.pgconn.send_query(f"START_REPLICATION SLOT {shop.slot} LOGICAL 0/0 {options}".encode())
    while shop.query("SELECT active FROM pg_replication_slots") == [(False,)]:
        pass
    summary = shop.run()
    assert (summary.exit, any("it is tried again" in message for message in summary.messages)) == (4, True)
    other.pgconn.finish()
    while shop.query("SELECT active FROM pg_replication_slots") == [(True,)]:
        pass
    assert shop.run().exit == 0
    assert names(shop) == rows(shop)
