"""``Sql`` when processes die or meet."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Outcome, Sql
from ferryman.testing.destinations import delete, delivery
from tests.destinations.sql_table import opened, query, verify_index

SPAWN = multiprocessing.get_context("spawn")

DYING = textwrap.dedent(
    """
    import os, signal, sys
    from ferryman.destinations import Sql
    from ferryman.destinations.sql import sqlite
    from ferryman.testing.destinations import delivery
    from tests.destinations.sql_table import CONTEXT

    url, mode, moment = sys.argv[1:]
    begins = {"in the middle": 'INSERT INTO "documents_fts"', "before commit": "COMMIT"}.get(moment)
    die = lambda: os.kill(os.getpid(), signal.SIGKILL)
    open_to_write = sqlite.open_to_write

    def open_traced(url):
        connection = open_to_write(url)
        connection.set_trace_callback(lambda statement: begins and statement.startswith(begins) and die())
        return connection

    sqlite.open_to_write = open_traced
    sql = Sql(url, mode=mode, full_text=["text"])
    sql.open(CONTEXT)
    sql.write([delivery(f"doc-{i}", i, f"word{i}") for i in range(1, 101)])
    die()
    """
)


@pytest.mark.rule("guarantee.hash")
@pytest.mark.parametrize("mode", ["upsert", "append"])
@pytest.mark.parametrize(
    ("moment", "there"), [("in the middle", 0), ("before commit", 0), ("after commit", 100)], ids=str
)
def test_a_killed_chunk_is_there_whole_or_not_at_all(tmp_path: Path, mode: str, moment: str, there: int) -> None:
    """kill -9 before the commit leaves nothing, after it everything; written again, each is there once."""
    path = tmp_path / "out.db"
    sql = Sql(f"sqlite:///{path}", mode=mode, full_text=["text"])  # type: ignore[arg-type]
    sql.check()
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    done = subprocess.run(
        [sys.executable, "-c", DYING, f"sqlite:///{path}", mode, moment], check=False, timeout=300, env=environment
    )
    assert done.returncode == -signal.SIGKILL
    opened(sql)
    assert query(path, "SELECT count(*) FROM documents") == [(there,)]
    verify_index(path)
    rows = [delivery(f"doc-{i}", i, f"word{i}") for i in range(1, 151)]
    assert sql.write(rows) == [Outcome.ok()] * 150
    sql.close()
    assert query(path, "SELECT count(*), count(DISTINCT delivery_hash) FROM documents") == [(150, 150)]
    verify_index(path)


def check_together(url: str, start: Any) -> None:
    sql = Sql(url, columns={"title": "title"}, full_text=["text", "title"])
    start.wait(300)
    sql.check()


def test_several_drivers_may_make_the_tables_at_once(tmp_path: Path) -> None:
    """``check`` of four processes at the same moment makes one database, in WAL mode, with one index."""
    start = SPAWN.Barrier(4)
    url = f"sqlite:///{tmp_path / 'out.db'}"
    drivers = [SPAWN.Process(target=check_together, args=(url, start), daemon=True) for _ in range(4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(300)
    assert [driver.exitcode for driver in drivers] == [0] * 4
    assert query(tmp_path / "out.db", "PRAGMA journal_mode") == [("wal",)]
    verify_index(tmp_path / "out.db")


def write_versions(url: str, start: Any, own: int) -> None:
    """Every id in many versions; one writer has the even sequences, the other the odd ones."""
    sql = Sql(url, full_text=["text"])
    opened(sql)
    start.wait(300)
    for version in range(own, 40, 2):
        chunk = [
            delete(f"doc-{i}", 100 * version + i) if (version + i) % 7 == 0 else delivery(f"doc-{i}", 100 * version + i)
            for i in range(20)
        ]
        assert {o.kind for o in sql.write(chunk)} <= {"ok", "stale"}
    sql.close()


@pytest.mark.rule("destination.stale")
def test_of_two_writers_the_newer_sequence_wins(tmp_path: Path) -> None:
    """Two processes write versions of the same ids at once: of each id the newest is in force, deletes included."""
    start = SPAWN.Barrier(2)
    url = f"sqlite:///{tmp_path / 'out.db'}"
    Sql(url, full_text=["text"]).check()
    writers = [SPAWN.Process(target=write_versions, args=(url, start, own), daemon=True) for own in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
    assert [writer.exitcode for writer in writers] == [0, 0]
    alive = {f"doc-{i}": 3900 + i for i in range(20) if (39 + i) % 7 != 0}
    assert dict(query(tmp_path / "out.db", "SELECT id, sequence FROM documents")) == alive
    dead = dict(query(tmp_path / "out.db", "SELECT id, sequence FROM documents_tombstones"))
    assert dead == {f"doc-{i}": 3900 + i for i in range(20) if (39 + i) % 7 == 0}
    verify_index(tmp_path / "out.db")
