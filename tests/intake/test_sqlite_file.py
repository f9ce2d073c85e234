"""The file of a queue in SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ferryman.intake import JobQueue, QueueLost, QueueRefused
from ferryman.intake.store.sqlite import SqliteStore
from tests.intake.conftest import started


@pytest.mark.parametrize("number", [1, 99])
def test_a_file_of_another_format_is_refused(place: Path, number: int) -> None:
    """Nothing in it is changed."""
    path = place / "queue.db"
    JobQueue.open(f"sqlite:///{path}").close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={number}")
    with pytest.raises(QueueRefused, match=f"format {number}"):
        JobQueue.open(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (number,)


def test_a_watch_looks_only_after_changes_of_its_own_node(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty threads of a busy serve wait while jobs move through other states: their looks would hold up the moves."""
    with JobQueue.open(f"sqlite:///{place}/queue.db") as queue:
        started(queue, jobs=3)
        watch = queue.watch_jobs("Notify")
        reads: list[object] = []
        inner = type(queue.tree.store).read
        for _ in range(3):
            job = queue.acquire_job("Pending")
            assert job is not None
            job.set_status("Estimating")
        with monkeypatch.context() as patched:
            patched.setattr(
                type(queue.tree.store), "read", lambda self, paths: reads.append(paths) or inner(self, paths)
            )
            assert not watch.wait(0.2)
        assert reads == []
        for state in ("Provisioning", "Downloading", "Processing", "Storing", "Recording", "Notify"):
            job.set_status(state)
        assert watch.wait(60)


def test_a_watch_of_a_quiet_queue_asks_nothing_of_its_nodes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty threads of a serve wait like this; a change of this process or of another wakes them."""
    with JobQueue.open(f"sqlite:///{place}/queue.db") as queue, JobQueue.open(f"sqlite:///{place}/queue.db") as other:
        batch = queue.load_batch(started(queue, jobs=0))
        watch = queue.watch_jobs("Pending")
        watch.wait(0.2)
        reads: list[object] = []
        inner = type(queue.tree.store).read
        monkeypatch.setattr(
            type(queue.tree.store), "read", lambda self, paths: reads.append(paths) or inner(self, paths)
        )
        assert not watch.wait(0.5)
        assert reads == []
        batch.create_job({})
        assert watch.wait(60)
        again = queue.watch_jobs("Pending")
        other.load_batch(batch.id).create_job({})
        assert again.wait(60)


ONE_MORE = """
import sys
from ferryman.intake import JobQueue
with JobQueue.open(sys.argv[1]) as queue:
    print(queue.create_batch({"batchID": sys.argv[2]}).id)
"""


@pytest.mark.rule("intake.sqlite-handles")
def test_two_handles_of_one_process(place: Path) -> None:
    """To open the file again gives up no lock on it: what another process changes and this one changes then, stays.

    It did, and the other process took itself for the last one when it ended, and removed the log beneath both handles.
    """
    url = f"sqlite:///{place}/queue.db"
    with JobQueue.open(url) as first, JobQueue.open(url) as second:
        for number, ours in enumerate((first, second)):
            theirs = subprocess.run(
                [sys.executable, "-c", ONE_MORE, url, f"theirs {number}"], capture_output=True, text=True, check=True
            ).stdout.strip()
            own = ours.create_batch({"batchID": f"ours {number}"}).id
            for handle in (first, second):
                assert {theirs, own} <= set(handle.list_batches())
    with JobQueue.open(url) as found:
        assert len(found.list_batches()) == 4
        assert found.audit() == []


def test_a_session_of_a_queue_that_others_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost, in the queue's words, if they hold it for too long; later there is a session."""
    monkeypatch.setattr("ferryman.intake.store.sqlite.RENEWAL_BUSY_S", 0.01)
    path = place / "queue.db"
    with contextlib.closing(SqliteStore(path)) as store:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(QueueLost, match="other processes have been changing this queue"):
                store.session()
        assert store.is_alive(store.session())
