"""Questions to an index in PostgreSQL: no sign of a question or a filter breaks one, and documents are read back."""

from __future__ import annotations

from pathlib import Path

import pytest

import ferryman
from ferryman import Plan, steps
from ferryman.destinations import Sql
from ferryman.errors import UsageError
from ferryman.sources import Files
from ferryman.steps.embed import Role
from tests.destinations.postgres import Database, database, postgres
from tests.retrieval.test_sql_index import HOSTILE
from tests.support.plan_world import run_plan

__all__ = ["database", "postgres"]


def encode(texts: list[str], role: Role) -> list[list[float]]:
    return [[text.count("train") + 0.01, text.count("room") + 0.01] for text in texts]


def make_plan(folder: Path, database: Database) -> Plan:
    plan = Plan("pages", version=1)
    embedded = plan.source("pages", Files(folder)).step("embed", steps.embed_text(model=encode))
    embedded.destination("index", Sql(database.url, "pages", full_text=["text"], vectors={"vector": 2}))
    return plan


def test_questions_to_postgresql(tmp_path: Path, database: Database) -> None:
    """By meaning and words, with filters, also of characters that PostgreSQL does not have."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "train.txt").write_text("A train leaves.")
    (folder / "room.txt").write_text("A room is free, said Napoleon.")
    plan = make_plan(folder, database)

    with pytest.raises(UsageError, match=r"#pages: there is no such table. Run the plan first"):
        ferryman.search("index", "room", plan=plan, embed="embed")  # it never ran
    run_plan(plan, tmp_path / "state")

    assert [hit.id for hit in ferryman.search("index", "train", plan=plan, embed="embed")] == ["train.txt", "room.txt"]
    assert ferryman.search(database.url, "Napoleon", plan=plan, embed="embed")[0].id == "room.txt"
    for text in HOSTILE:
        assert len(ferryman.search("index", text, plan=plan, embed="embed")) == 2, text
    for value in ("room.txt", ["x", "room.txt"]):
        hits = ferryman.search("index", "train", plan=plan, embed="embed", where={"name": value})
        assert [hit.id for hit in hits] == ["room.txt"]
    for name, value in (("name", "' OR 1=1 --"), ("n'a\"m$e", "x"), ("name", "\0"), ("na\0me", "x")):
        assert ferryman.search("index", "train", plan=plan, embed="embed", where={name: value}) == [], (name, value)
    [node] = [node for node in plan.nodes if node.name == "index"]
    found = node.destination.lookup("room.txt")  # type: ignore[attr-defined]
    assert (found.text, found.fields["name"]) == ("A room is free, said Napoleon.", "room.txt")
    assert "vector" not in found.fields
    for id in ("gone.txt", "\0", "x" * 10_000, "\ud800"):
        assert node.destination.lookup(id) is None  # type: ignore[attr-defined]
