"""docs/reference/state.md: the tables have these columns, and the queries answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferryman.records import rows as schemas
from ferryman.records.rows import ORDINAL_COMMAND, ORDINAL_SENT, ORDINAL_STEPS
from tests.crash import scenario
from tests.support.plan_world import run_plan

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "state.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("table", ["ledger", "documents", "outbox"])
def test_columns_and_types(table: str) -> None:
    """Each column with its type, in its order, as in records/schemas.py."""
    section = PAGE.partition(f"### `{table}`")[2].partition("\n##")[0]
    named = re.findall(r"^\| `(\w+)` \| (\S.*?) \|", section, re.MULTILINE)

    assert named == [(field.name, str(field.type)) for field in getattr(schemas, table.upper())]


def test_the_order_within_a_wave() -> None:
    """The page's numbers are the code's."""
    assert (ORDINAL_COMMAND, ORDINAL_STEPS, ORDINAL_SENT) == (0, 1, 2)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Names that the page's Python blocks make, over the state of a run; ``spark`` blocks are left out."""
    root = tmp_path_factory.mktemp("state")
    scenario.write_corpus(root, scenario.first_corpus())
    run_plan(scenario.make_plan(root, "exactly-once"), root / "state", wait=5)
    names: dict[str, Any] = {}
    for text in blocks("python"):
        if "spark" not in text and "polars" not in text:
            exec(text.replace(".ferryman/plays-v1", str(root / "state" / "crash-v1")), names)
    return names


def answer(found: dict[str, Any], query: str) -> list[tuple[Any, ...]]:
    """A query of the page as a person runs it: ``duckdb.sql`` finds the relations by their names."""
    names = {**found, "query": query}
    exec("rows = duckdb.sql(query).fetchall()", names)
    rows: list[tuple[Any, ...]] = names["rows"]
    return rows


def test_the_queries_answer(found: dict[str, Any]) -> None:
    """Counts by status, reasons, attempts: of ten files one is bad, one refused, one arrives at its second attempt."""
    by_status, reasons, attempts = blocks("sql")

    assert answer(found, by_status) == [("log", "DEAD", 1), ("log", "ERROR_DOC", 1), ("log", "INDEXED", 8)]
    assert answer(found, reasons) == [
        ("ERROR_DOC", "not utf-8 text", 1, scenario.BAD),
        ("DEAD", "refused on principle", 1, scenario.REFUSED),
    ]
    assert answer(found, attempts) == [("log", 1, 7), ("log", 2, 1)]


def test_the_outbox_is_counted_from_the_log(found: dict[str, Any]) -> None:
    """What is dead is parked there."""
    [(destination, rows, size)] = found["waiting"].fetchall()

    assert (destination, rows) == ("log", 1)
    assert size > 0


def test_polars_reads_the_ledger(found: dict[str, Any]) -> None:
    """The block as it stands."""
    [text] = [text for text in blocks("python") if "polars" in text]
    names = dict(found)

    exec(text, names)

    assert names["dead"].to_dicts() == [{"document": scenario.REFUSED, "message": "refused on principle"}]


def test_the_types_are_those_of_files(found: dict[str, Any]) -> None:
    """A file of the ledger has the columns that the page promises."""
    relation = found["ledger"]

    assert relation.columns == schemas.LEDGER.names
    assert pa.types.is_timestamp(relation.to_arrow_table().schema.field("created").type)
