"""From a database into a database, through the engine: the account and the tables say the same, whatever breaks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ferryman import Document, Plan, account
from ferryman.destinations import Sql as Index
from ferryman.sources import Sql
from ferryman.state.state import state_root
from ferryman.testing.proxy import Proxy, ProxyFault
from tests.destinations.postgres import Database, database, postgres
from tests.support.plan_world import place, run_plan
from tests.support.tiers import sampled

__all__ = ["database", "place", "postgres"]

ROWS = 44


def slowly(doc: Document) -> Document:
    doc["n"] = int(doc.id)
    return doc


def plan(database: Database, port: int = 0, mode: str = "upsert", **source: str) -> Plan:
    """A table of ``ROWS`` rows into another one, reached through a port."""
    made = Plan("articles", version=1)
    rows = Sql(database.url, "SELECT * FROM articles", id="id", content="body", **source)  # type: ignore[arg-type]
    index = Index(
        database.url_at(port or database.server.port),
        mode=mode,  # type: ignore[arg-type]
        columns={"n": "n"},
        full_text=["text"],
    )
    made.source("rows", rows).step("number", slowly).destination("index", index, batch=4, backoff=0)
    return made


@pytest.fixture(autouse=True)
def articles(database: Database) -> None:
    database.query("CREATE TABLE articles (id int PRIMARY KEY, body text, at int DEFAULT 1)")
    database.query(f"INSERT INTO articles SELECT n, 'article ' || n FROM generate_series(1, {ROWS}) n")


def texts(database: Database) -> dict[str, str]:
    rows = database.query("SELECT id, text FROM documents")
    assert len(rows) == len(dict(rows)), "doubled"
    return dict(rows)


def expected(database: Database) -> dict[str, str]:
    return {str(id): text for id, text in database.query("SELECT id, body FROM articles")}


@pytest.mark.parametrize("source", [{}, {"changed": "at"}, {"split": "id"}], ids=str)
def test_what_changes_in_one_changes_in_the_other(database: Database, place: Path, source: dict[str, str]) -> None:
    """44 rows; one changed, one removed, one that the table refuses: index, account and exit code."""
    made = plan(database, **source)
    assert run_plan(made, place).exit == 0
    assert texts(database) == expected(database)
    database.query("ALTER TABLE documents ADD CONSTRAINT fit CHECK (text <> 'unfit')")
    database.query("UPDATE articles SET body = 'changed', at = 2 WHERE id = 7")
    database.query("UPDATE articles SET body = 'unfit', at = 2 WHERE id = 9")
    database.query("DELETE FROM articles WHERE id = 8")
    summary = run_plan(plan(database, **source), place)
    assert (summary.exit, summary.delivered, summary.deleted, summary.failed) == (3, 1, 1, 1)
    assert texts(database) == expected(database) | {"9": "article 9"}
    counts = account.status(state_root(made, place), made)["destinations"]["index"]
    assert (counts["delivered"], counts["deleted"], counts["failed"]) == (ROWS - 2, 1, 1)
    [dead] = account.deliveries(state_root(made, place), status="failed")
    assert "fit" in dead["message"]


@pytest.mark.rule("destination.lost-commit", "guarantee.hash")
@pytest.mark.parametrize("mode", ["upsert", "append"])
@pytest.mark.parametrize(
    "fault",
    sampled([ProxyFault.SWALLOW_ANSWER, ProxyFault.DROP_REQUEST, ProxyFault.HALF_ANSWER], 3),
    ids=lambda f: f.value,
)
def test_a_connection_lost_in_the_commit_loses_and_doubles_nothing(
    database: Database, place: Path, fault: ProxyFault, mode: str
) -> None:
    """Before the commit or after it: the chunk is sent again, the hashes tell what is there, no attempt is spent."""
    with Proxy("127.0.0.1", database.server.port) as proxy:
        made = plan(database, proxy.port, mode)
        proxy.break_next(fault, b"COMMIT")  # of check()
        proxy.break_next(fault, b"COMMIT")
        summary = run_plan(made, place, wait=30)
        assert proxy.broken == 2
    assert summary.exit == 0, summary
    assert texts(database) == expected(database)
    assert {d["attempt"] for d in account.deliveries(state_root(made, place))} == {1}


def test_a_server_that_restarts_in_the_middle_of_a_wave(database: Database, place: Path) -> None:
    """What was confirmed is kept, the rest follows when it is back: each row once."""

    def restart() -> None:
        database.server.kill()
        database.server.start()

    with ThreadPoolExecutor(1) as pool, Proxy("127.0.0.1", database.server.port) as proxy:
        made = plan(database, proxy.port)
        proxy.break_next(ProxyFault.SWALLOW_ANSWER, b"COPY")
        running = pool.submit(run_plan, made, place, wait=60)
        while not proxy.broken and not running.done():
            time.sleep(0.005)
        restart()
        summary = running.result()
    assert summary.exit == 0, summary
    assert texts(database) == expected(database)
