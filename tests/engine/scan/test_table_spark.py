"""DataFrame: what Spark's own rows of every type are as documents, read by its workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import JsonLines
from ferryman.plan import Plan
from ferryman.sources import DataFrame
from tests.support.plan_world import run_plan

COLUMNS = {
    "person": ("named_struct('name', 'Ann', 'born', date'1564-04-26', 'tags', array('a', null))",
               {"name": "Ann", "born": "1564-04-26", "tags": ["a", None]}),
    "orders": ("array(named_struct('price', cast(1.50 as decimal(10,2)), 'at', timestamp'2024-05-01 10:00:00+02:00'))",
               [{"price": "1.50", "at": "2024-05-01T08:00:00Z"}]),
    "by_name": ("map('k', array(1, 2), 'j', null)", {"k": [1, 2], "j": None}),
    "by_number": ("map(1, named_struct('x', cast(0.1 as float)))", {"1": {"x": 0.1}}),
    "exact": ("cast('12345678901234567890.123456789012345678' as decimal(38,18))",
              "12345678901234567890.123456789012345678"),
    "bytes": ("X'00ff'", "AP8="),
    "deep": ("array(array(map(date'2024-02-29', X'01')))", [[{"2024-02-29": "AQ=="}]]),
    "local": ("timestamp_ntz'2024-05-01 10:00:00.000120'", "2024-05-01T10:00:00.000120"),
    "whole": ("cast(9223372036854775807 as bigint)", 9223372036854775807),
    "no_number": ("double('NaN')", None),
    "nothing": ("cast(null as struct<a:int>)", None),
    "empty": ("array()", []),
    "truth": ("true", True),
}  # fmt: skip
"""Column -> how Spark makes it, and the JSON value that it is."""


@pytest.mark.spark
def test_nested_types_are_json_values(place: Path, spark: Any) -> None:
    """Structs, arrays, maps, decimals, times and bytes, in each other too; one changed deep inside is one delivery."""
    columns = ", ".join(f"{sql} AS {name}" for name, (sql, _) in COLUMNS.items())
    price = "1.50"

    def read(session: Any) -> Any:
        changed = columns.replace("1.50", f"CASE WHEN id = 7 THEN {price} ELSE 1.50 END")
        return session.sql(f"SELECT id, {changed} FROM range(44)")

    plan = Plan("table", version=1)
    plan.source("rows", DataFrame(read)).destination("out", JsonLines(place / "out"))

    assert run_plan(plan, place / "state", runner=spark).delivered == 44
    found = lines(place / "out")
    assert sorted(found, key=int) == [str(i) for i in range(44)]
    for id, fields in found.items():
        assert fields == {"id": int(id), **{name: value for name, (_, value) in COLUMNS.items()}}

    price = "2.75"
    assert run_plan(plan, place / "state", runner=spark).delivered == 1
    assert lines(place / "out")["7"]["orders"][0]["price"] == "2.75"


@pytest.mark.spark
def test_a_table_that_is_missing_stops_no_other(place: Path, spark: Any) -> None:
    """Nor does a query that fails: both are named in one line."""
    plan = Plan("tables", version=1)
    reads = {
        "well": lambda session: session.range(3),
        "missing": lambda session: session.table("nope.nothing"),
        "failing": lambda session: session.sql("SELECT id, raise_error('not today') AS x FROM range(2)"),
        "returns nothing": lambda session: None,
    }
    for name, read in reads.items():
        plan.source(name.replace(" ", "-"), DataFrame(read)).destination(f"to-{name[:4]}", JsonLines(place / name))

    summary = run_plan(plan, place / "state", runner=spark)
    assert (summary.exit, summary.delivered) == (4, 3)
    told = {message.split()[1]: message for message in summary.messages if " is stopped: " in message}
    assert "TABLE_OR_VIEW_NOT_FOUND" in told["missing"]
    assert "not today" in told["failing"]
    assert "Is a `return` missing?" in told["returns-nothing"]
    assert not any("\n" in message for message in told.values())


def lines(folder: Path) -> dict[str, Any]:
    """The newest fields of each id."""
    found = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return {line["id"]: line["fields"] for line in sorted(found, key=lambda line: line["sequence"])}
