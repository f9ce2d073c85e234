"""``TableChanges`` on Delta tables that delta-rs writes."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import shutil
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from tests.support.plan_world import PlanWorld, place, trial

from ferryman.document import Document
from ferryman.errors import Misconfigured, TransientError, UsageError
from ferryman.operations import retry
from ferryman.sources import TableChanges

__all__ = ["place", "trial"]

FEED = {"delta.enableChangeDataFeed": "true"}


class Lake:
    """A Delta table, and a plan that follows it."""

    def __init__(self, world: PlanWorld) -> None:
        self.world = world
        self.path = world.folder / "table"
        self.write([1, 2, 3], configuration=FEED)
        self.follow()

    def follow(self, **options: Any) -> None:
        self.world.build(source=TableChanges(str(self.path), **{"max_deleted": 1.0, **options}))

    def write(self, ids: list[int], text: str = "first", **options: Any) -> None:
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{text} {id}" for id in ids]})
        deltalake.write_deltalake(str(self.path), table, **options)

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.path))

    def run(self) -> Any:
        return self.world.run(wait=0)

    def found(self) -> dict[str, str]:
        """Documents as the destination has them now."""
        found: dict[str, str] = {}
        for line in self.world.out().lines():
            if line["op"] == "upsert":
                found[line["id"]] = line["fields"]["text"]
            else:
                del found[line["id"]]
        return found

    def rows(self) -> dict[str, str]:
        """Rows as delta-rs reads them."""
        return {str(row["id"]): row["text"] for row in self.table.to_pyarrow_table().to_pylist()}


@pytest.fixture
def lake(trial: PlanWorld) -> Lake:
    return Lake(trial)


def test_a_first_reading_and_then_each_version(lake: Lake) -> None:
    assert lake.run().exit == 0
    assert lake.found() == lake.rows() == {"1": "first 1", "2": "first 2", "3": "first 3"}
    lake.table.update(updates={"text": "'second'"}, predicate="id = 2")
    lake.table.delete("id = 1")
    lake.write([4], mode="append")
    lake.table.update(updates={"id": "30"}, predicate="id = 3")  # its document moves
    assert lake.run().exit == 0
    assert lake.found() == lake.rows() == {"2": "second", "4": "first 4", "30": "first 3"}
    sent = len(lake.world.out().lines())
    lake.run()
    assert len(lake.world.out().lines()) == sent


@pytest.mark.rule("tables.delta")
def test_of_several_changes_of_a_row_the_last_counts(lake: Lake) -> None:
    lake.run()
    lake.table.delete("id = 1")
    lake.write([1], "back", mode="append")
    lake.table.update(updates={"text": "'twice'"}, predicate="id = 1")
    lake.write([2, 3], "new", mode="overwrite")  # deletes and inserts of the same ids in one version
    lake.run()
    assert lake.found() == lake.rows() == {"2": "new 2", "3": "new 3"}


def test_versions_without_changes_move_the_bookmark(lake: Lake) -> None:
    lake.run()
    lake.table.optimize.compact()
    lake.write([9], mode="append")
    lake.table.optimize.compact()
    lake.run()
    assert lake.found() == lake.rows()
    lake.table.optimize.compact()
    assert lake.run().exit == 0


def test_a_row_that_an_operator_asks_for_is_read_again(lake: Lake) -> None:
    """The feed has nothing new of it. One whose content was kept, since its step failed, comes as it was."""

    def step(doc: Document) -> Document:
        if doc["text"] == "first 3" and not (lake.world.folder / "mended").exists():
            raise TransientError("not yet")
        return doc

    lake.world.build(step, source=TableChanges(str(lake.path), max_deleted=1.0), called={"attempts": 100}, backoff=3600)
    assert lake.run().exit == 4
    (lake.world.folder / "mended").touch()
    sent = len(lake.world.out().lines())
    retry(lake.world.plan, state=lake.world.state, force=True)
    retry(lake.world.plan, state=lake.world.state, status="pending")
    assert lake.run().exit == 0
    assert sorted(line["id"] for line in lake.world.out().lines()[sent:]) == ["1", "2", "3"]
    assert lake.found() == lake.rows()
    lake.write([4], mode="append")
    lake.table.delete("id = 1")
    retry(lake.world.plan, state=lake.world.state, force=True)
    assert lake.run().exit == 0
    assert lake.found() == lake.rows()


@pytest.mark.parametrize("ids", [["it's", 'a "b"', "ü/1", "7"], [7, -7, 0]])
def test_rows_of_any_ids_are_read_again(trial: PlanWorld, ids: list[Any]) -> None:
    path = str(trial.folder / "table")
    deltalake.write_deltalake(path, pa.table({"id": ids, "text": ["x"] * len(ids)}), configuration=FEED)
    trial.build(source=TableChanges(path, max_deleted=1.0))
    trial.run()
    first = trial.out().arrived()
    retry(trial.plan, state=trial.state, force=True, document=first[0])
    assert trial.run().exit == 0
    assert trial.out().arrived() == [*first, first[0]]


def vacuum(lake: Lake) -> None:
    lake.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def turn_off(lake: Lake) -> None:
    lake.table.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    lake.table.update(updates={"text": "'unseen'"}, predicate="id = 3")
    lake.table.alter.set_table_properties(FEED)


def clean_log(lake: Lake) -> None:
    last = lake.table.version()
    lake.table.create_checkpoint()
    for version in range(last):
        os.remove(lake.path / "_delta_log" / f"{version:020}.json")


def make_again(lake: Lake) -> None:
    shutil.rmtree(lake.path)
    lake.write([2, 3, 4], "again", configuration=FEED)
    lake.write([5], "again", mode="append")
    lake.write([6], "again", mode="append")
    lake.write([7], "again", mode="append")


def put_back(lake: Lake) -> None:
    last = lake.table.version()
    os.remove(lake.path / "_delta_log" / f"{last:020}.json")
    os.remove(lake.path / "_delta_log" / f"{last - 1:020}.json")


LOSSES = {
    "vacuumed": (vacuum, "were vacuumed"),
    "off meanwhile": (turn_off, "Change Data not enabled"),
    "no log": (clean_log, "its log does not have version"),
    "made again": (make_again, "was made again"),
    "put back": (put_back, "it was put back"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.rule("tables.delta-lost")
def test_versions_that_are_lost_are_loud_and_there_is_a_way_on(lake: Lake, loss: str) -> None:
    lose, why = LOSSES[loss]
    lake.write(list(range(10, 40)), mode="append")
    lake.run()
    if loss == "put back":
        lake.write([4], mode="append")
        lake.write([5], mode="append")
        lake.run()
    else:
        lake.table.update(updates={"text": "'second'"}, predicate="id = 2")
        lake.table.delete("id = 1")
    lose(lake)
    before = lake.found()
    summary = lake.run()
    assert (summary.exit, lake.found()) == (4, before)
    assert any(why in message and "on_lost='compare'" in message for message in summary.messages), summary.messages
    lake.follow(on_lost="compare", max_deleted=1.0)
    summary = lake.run()
    assert any(why in message and "the table is read whole" in message for message in summary.messages)
    assert (summary.exit, lake.found()) == (0, lake.rows())
    lake.write([77], mode="append")
    lake.run()
    assert lake.found() == lake.rows()


def test_a_comparison_keeps_deletes_for_an_operator(lake: Lake) -> None:
    lake.write(list(range(10, 40)), mode="append")
    lake.run()
    make_again(lake)
    lake.follow(on_lost="compare", max_deleted=0.1)
    assert lake.run().exit == 2
    assert len(lake.found()) == 37
    assert lake.run().exit == 2  # the bookmark waits, so that the question comes again
    lake.world.run(wait=0, allow_deletes=True)
    assert lake.found() == lake.rows()


def test_a_table_without_the_feed_is_refused(trial: PlanWorld) -> None:
    table = pa.table({"id": [1]})
    deltalake.write_deltalake(str(trial.folder / "plain"), table)
    with pytest.raises(Misconfigured, match="has no change data feed: ALTER TABLE"):
        list(TableChanges(str(trial.folder / "plain")).listing(None))
    with pytest.raises(Misconfigured, match="none"):
        list(TableChanges(str(trial.folder / "none")).listing(None))
    with pytest.raises(UsageError, match="on_lost='go'"):
        TableChanges("x", on_lost="go")  # type: ignore[arg-type]


def test_rows_without_an_id_and_values_of_all_kinds(trial: PlanWorld) -> None:
    path = str(trial.folder / "table")
    nested = pa.struct([("a", pa.list_(pa.int32())), ("b", pa.binary())])
    table = pa.table(
        {
            "id": pa.array(["a", None, "b", "x" * 300]),
            "d": pa.array([decimal.Decimal("1.50"), None, None, None], pa.decimal128(10, 2)),
            "at": pa.array([dt.datetime(2024, 5, 1, tzinfo=dt.UTC)] * 4, pa.timestamp("us", "UTC")),
            "nested": pa.array([{"a": [1, None], "b": b"x"}] * 4, nested),
            "float": pa.array([float("nan"), 0.1, 1.5, None], pa.float32()),
        }
    )
    deltalake.write_deltalake(path, table, configuration=FEED)
    trial.build(source=TableChanges(path))
    summary = trial.run(wait=0)
    assert (summary.exit, sorted(trial.arrived())) == (4, ["a", "b", "x" * 300])
    assert any("1 rows have no 'id'" in message for message in summary.messages)
    first = {line["id"]: line["fields"] for line in trial.out().lines()}
    assert first["a"] == {
        "id": "a", "d": "1.50", "at": "2024-05-01T00:00:00Z", "nested": {"a": [1, None], "b": "eA=="}, "float": None
    }  # fmt: skip
    deltalake.DeltaTable(path).delete("id IS NULL")
    deltalake.DeltaTable(path).update(updates={"d": "2.5"}, predicate="id IS NOT NULL")
    assert trial.run(wait=0).exit == 0
    last = {line["id"]: line["fields"] for line in trial.out().lines()}
    assert last == {id: {**fields, "d": "2.50"} for id, fields in first.items()}


def test_a_table_with_deletion_vectors_is_refused(trial: PlanWorld) -> None:
    """The reader would not see what a vector alone deletes."""
    path = str(trial.folder / "table")
    vectors = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(path, pa.table({"id": [1]}), configuration={**FEED, **vectors})
    with pytest.raises(Misconfigured, match=r"has deletionVectors.*with which its change data feed is not read safely"):
        list(TableChanges(path).listing(None))


def test_errors_name_the_source(lake: Lake) -> None:
    """It makes fields of rows as ``DataFrame`` does, and is another one."""
    source = TableChanges(str(lake.path), "no_such")
    with pytest.raises(UsageError, match=r"^TableChanges\(id='no_such'\): there is no such column"):
        list(source.listing(None))
