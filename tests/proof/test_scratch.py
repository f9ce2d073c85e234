"""Scratch tables on a server: beside the user's own, and gone in the end."""

from __future__ import annotations

import pytest

from ferryman import Document, Plan
from ferryman.destinations import Sql
from ferryman.proof.proof import prove
from ferryman.sources import Memory
from tests.destinations.postgres import Database, database, postgres

__all__ = ["database", "postgres"]


@pytest.mark.slow
def test_a_proof_on_a_server_writes_to_tables_of_its_own(database: Database) -> None:
    plan = Plan("scratched")
    documents = [Document(f"d{n}", raw=b"text %d" % n) for n in range(8)]
    plan.source("docs", Memory(documents)).destination("index", Sql(database.url, table="mine"))

    result = prove(plan, documents=8, kinds=["half", "drops"], spark=False, scratch=True)

    assert result.twins == {"index": "scratch"}
    assert result.violations == []
    assert result.exit == 0
    left = database.query("SELECT tablename FROM pg_tables WHERE schemaname = %s", database.name)
    assert [name for (name,) in left if name.startswith("mine")] == []
