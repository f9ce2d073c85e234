"""The questions that a program asks: what the command line has, as Python objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import ferryman
from ferryman import Document, Plan
from ferryman.destinations import Sql
from ferryman.errors import UsageError
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.support.plan_world import run_plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """It has run; its state is in ``state``."""
    made = Plan("plays", version=1)
    docs = made.source("docs", Memory([Document("a", raw=b"murder most foul"), Document("b", raw=b"all is well")]))
    docs.destination("index", Sql(f"sqlite:///{tmp_path}/index.db", full_text=["text"]))
    run_plan(made, tmp_path / "state")
    return made


def test_its_tables_are_arrow(plan: Plan, tmp_path: Path) -> None:
    """For pandas, Polars, DuckDB: a row an event, a row a document."""
    tables = ferryman.tables(plan, state=tmp_path / "state")
    ledger = tables.ledger.to_pandas()
    assert sorted(ledger[ledger.status == "INDEXED"].document) == ["a", "b"]
    with duckdb.connect() as db:
        db.register("documents", tables.documents)
        assert db.sql("SELECT document FROM documents ORDER BY 1").fetchall() == [("a",), ("b",)]


def test_no_state_has_no_tables(tmp_path: Path) -> None:
    """It is said, as of every question."""
    with pytest.raises(UsageError, match="there is no state of this plan yet"):
        ferryman.tables(Plan("other", version=1), state=tmp_path)


def test_fsck_names_what_is_damaged(plan: Plan, tmp_path: Path) -> None:
    """Nothing, and then the file that is cut short."""
    assert ferryman.fsck(plan, state=tmp_path / "state") == []
    file = next((state_root(plan, tmp_path / "state") / "ledger").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    assert str(file) in {found.path for found in ferryman.fsck(plan, state=tmp_path / "state")}


def test_search_finds_what_was_delivered(plan: Plan, tmp_path: Path) -> None:
    """By words, in the table that is named."""
    assert [hit.id for hit in ferryman.search(str(tmp_path / "index.db"), "foul")] == ["a"]
    with pytest.raises(UsageError, match="plays"):
        ferryman.search(str(tmp_path / "index.db"), "foul", table="plays")


@pytest.mark.parametrize(
    "asked",
    [
        *(ferryman.run, ferryman.preview, ferryman.retry, ferryman.status, ferryman.deliveries, ferryman.tables),
        *(ferryman.fsck, lambda plan: ferryman.history(plan, "a"), lambda plan: ferryman.resolve(plan, "failed")),
    ],
)
def test_the_name_of_a_file_is_not_a_plan(asked: Callable[[Any], object]) -> None:
    """The command line takes one; here the plan itself is given, and the error says how."""
    with pytest.raises(UsageError, match=r"'plays.py' is not a Plan: import it from its file"):
        asked("plays.py")


def test_only_the_api_is_listed() -> None:
    """What ``dir`` and completion show."""
    assert set(dir(ferryman)) == {*ferryman.__all__, "__version__"}
    assert all(hasattr(ferryman, name) for name in ferryman.__all__)
