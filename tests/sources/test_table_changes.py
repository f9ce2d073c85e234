"""``TableChanges`` on Delta tables that delta-rs writes."""

from __future__ import annotations

from typing import Any

import deltalake
import pyarrow as pa
import pytest
from tests.support.plan_world import PlanWorld, place, trial

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
