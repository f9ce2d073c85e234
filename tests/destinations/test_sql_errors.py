"""The ``Sql`` destination, with a database that is not as it should be."""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from ferryman.destinations import Outcome, Sql
from ferryman.destinations.sql import sqlite
from ferryman.destinations.sql.sqlite import SQLite
from ferryman.errors import DeliveryError, PermanentError, TransientError
from ferryman.net import faults
from ferryman.testing.destinations import delivery
from tests.destinations.sql_table import CONTEXT, opened, path, query, url

__all__ = ["path"]


OK, STALE = Outcome.ok(), Outcome.stale()


def fault(call: Callable[[], object]) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        call()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return caught.value


def test_a_missing_folder_is_for_a_person_to_make(tmp_path: Path) -> None:
    """It is permanent and universal, names the folder, and nothing is made."""
    sql = Sql(f"sqlite:///{tmp_path}/no/such/out.db")
    for call in (sql.check, lambda: sql.open(CONTEXT)):
        error = fault(call)
        assert isinstance(error, PermanentError)
        assert error.universal
        assert f"{tmp_path}/no/such" in str(error)
    assert os.listdir(tmp_path) == []


def test_what_is_no_database_is_refused(path: Path) -> None:
    """A file of something else is not overwritten."""
    path.write_text("this is no database, and long enough to be read as the header of one: " * 10)
    before = path.read_bytes()
    error = fault(Sql(url(path)).check)
    assert isinstance(error, PermanentError)
    assert error.universal
    assert path.read_bytes() == before


@pytest.mark.parametrize("open_engine", [sqlite.make_engine, sqlite.reader])
@pytest.mark.parametrize(("query", "waits_ms"), [("", 30_000), ("?timeout=1.5", 1500)])
def test_a_timeout_in_the_url_wins(
    path: Path, open_engine: Callable[[sa.URL], sa.Engine], query: str, waits_ms: int
) -> None:
    """For reading and for writing."""
    with open_engine(sa.make_url(f"sqlite:///{path}{query}")).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == waits_ms
    with closing(sqlite.open_to_write(f"sqlite:///{path}{query}")) as writer:
        assert writer.execute("PRAGMA busy_timeout").fetchone() == (waits_ms,)


def test_a_locked_database_is_waited_for_and_then_tried_later(path: Path) -> None:
    """Another program's write lock beyond the busy timeout is universal and transient; nothing was written."""
    sql = opened(Sql(f"{url(path)}?timeout=0.05"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for call in (sql.check, lambda: sql.write([delivery("a", 1)])):
            error = fault(call)
            assert isinstance(error, TransientError)
            assert error.universal
            assert "locked" in str(error)
        other.execute("ROLLBACK")
    assert sql.write([delivery("a", 1)]) == [OK]
    sql.close()


def test_readers_do_not_lock_writers_out(path: Path) -> None:
    """WAL: a reader in a transaction sees what was there, and the chunk is written all the same."""
    sql = opened(Sql(f"{url(path)}?timeout=0.05"))
    sql.write([delivery("a", 1)])
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM documents").fetchone() == (1,)
        assert sql.write([delivery("b", 2)]) == [OK]
        assert reader.execute("SELECT count(*) FROM documents").fetchone() == (1,)
    sql.close()
    assert query(path, "PRAGMA journal_mode") == [("wal",)]


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """What writers open while the test runs, the latest last."""
    made: list[sqlite3.Connection] = []
    open_to_write = sqlite.open_to_write

    def note(url: str) -> sqlite3.Connection:
        made.append(open_to_write(url))
        return made[-1]

    monkeypatch.setattr(sqlite, "open_to_write", note)
    return made


def test_a_full_disk_is_waited_for(path: Path, connections: list[sqlite3.Connection]) -> None:
    """No room is universal and transient; the chunk left nothing, and is written when there is room again."""
    sql = opened(Sql(url(path), full_text=["text"]))
    sql.write([delivery("a", 1)])
    connections[-1].execute(f"PRAGMA max_page_count = {query(path, 'PRAGMA page_count')[0][0]}")
    chunk = [delivery(f"doc-{i}", i, f"word{i} " * 500) for i in range(2, 200)]
    error = fault(lambda: sql.write(chunk))
    assert isinstance(error, TransientError)
    assert error.universal
    assert "full" in str(error)
    assert query(path, "SELECT count(*) FROM documents") == [(1,)]
    connections[-1].execute("PRAGMA max_page_count = 1000000")
    assert sql.write(chunk) == [OK] * len(chunk)
    sql.close()


def test_a_value_that_is_too_large_harms_only_its_document(path: Path, connections: list[sqlite3.Connection]) -> None:
    """What is beyond SQLite's limit of a value is permanent, and says what to do; the others are written."""
    sql = opened(Sql(url(path), full_text=["text"]))
    connections[-1].setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
    chunk = [delivery(f"doc-{i}", i, "word " * (20_000 if i == 5 else 10)) for i in range(1, 12)]
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["permanent" if i == 5 else "ok" for i in range(1, 12)]
    assert "the database refuses it: string or blob too big: shorten it" in outcomes[4].why
    assert len(query(path, "SELECT id FROM documents")) == 10


def test_a_commit_waits_for_the_disk(path: Path, connections: list[sqlite3.Connection]) -> None:
    """Every transaction is synced before ``write`` returns: a power cut takes nothing that was confirmed."""
    sql = opened(Sql(url(path)))
    assert connections[-1].execute("PRAGMA synchronous").fetchone() == (2,)
    sql.close()


@pytest.mark.parametrize("code", sorted(faults.SQLITE))
def test_errors_say_what_to_do(code: int) -> None:
    """Every fault of SQLite that we know says where, what, and what happens next; detail codes mean the same."""
    error = sqlite3.OperationalError("it failed")
    for variant in (code, code | 3 << 8):
        error.sqlite_errorcode = variant
        explained = SQLite().explain(error, "here")
        assert isinstance(explained, TransientError | PermanentError)
        assert str(explained).startswith("here: it failed: ")
        assert str(explained).endswith(".")


@pytest.mark.parametrize("code", [sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR_NOMEM])
def test_too_little_memory_is_about_the_document(code: int) -> None:
    """One that is too large must not keep all others from the database."""
    error = sqlite3.OperationalError("out of memory")
    error.sqlite_errorcode = code
    explained = SQLite().explain(error, "here")
    assert isinstance(explained, TransientError)
    assert not explained.universal


def test_other_errors_are_left_alone() -> None:
    """What is not the database's is not explained away."""
    assert SQLite().explain(KeyError("x"), "here") is None
    with pytest.raises(KeyError), SQLite().translated_errors("here"):
        raise KeyError("x")
