"""The file of a queue in SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from ferryman.intake import LockLost, Queue
from tests.intake.conftest import layout, started


def test_a_file_of_the_older_format_is_brought_to_this_one(place: Path) -> None:
    """What is in it stays; locks that are taken from then on have owners."""
    path = place / "queue.db"
    with Queue.open(f"sqlite:///{path}") as queue:
        started(queue)
        before = layout(queue)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE node DROP COLUMN creation")
        connection.execute("PRAGMA user_version=1")
    with Queue.open(f"sqlite:///{path}") as queue:
        assert layout(queue) == before
        job = queue.acquire_job("Pending")
        assert job is not None
        queue.load_job(job.id).revoke()
        assert queue.load_job(job.id).lock()
        with pytest.raises(LockLost):
            job.success()
