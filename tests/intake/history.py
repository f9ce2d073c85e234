"""What each job went through, as the store itself has seen it: nobody who is killed forgets to say it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.intake.transactions import transactions
from tests.servers.zookeeper import ZooKeeperServer

LOG = """
CREATE TABLE moved (at INTEGER PRIMARY KEY AUTOINCREMENT, folder TEXT, entry TEXT);
CREATE TRIGGER moves AFTER INSERT ON node WHEN new.parent LIKE '/jobs/states/%' BEGIN
  INSERT INTO moved (folder, entry) VALUES (new.parent, new.name); END;
"""

ONCE = ["pending", "estimating", "provisioning", "downloading", "processing", "storing", "recording", "notify"]
ONCE.append("completed")
"""What a job goes through that never fails."""


def keep_history(database: Path) -> None:
    """From now on the file of a queue keeps every entry of a job in a state."""
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
        connection.executescript(LOG)


def history_in(database: Path) -> dict[str, list[str]]:
    """Job -> the states that it came into, in order, since ``keep_history``."""
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
        rows = connection.execute("SELECT folder, entry FROM moved ORDER BY at").fetchall()
    return _by_job(f"{folder}/{entry}" for folder, entry in rows)


def history_on(server: ZooKeeperServer, chroot: str) -> dict[str, list[str]]:
    """The same from the transaction log of a server."""
    created = (
        change.path.removeprefix(chroot)
        for log in server.transactions
        for changes in transactions(log)
        for change in changes
        if change.kind == "create" and change.path.startswith(f"{chroot}/jobs/states/")
    )
    return _by_job(created)


def _by_job(entries: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in entries:
        parts = path.split("/")
        if len(parts) == 5:  # /jobs/states/STATE/PP-JID
            state, entry = parts[3:]
            if found[entry.partition("-")[2]][-1:] != [state]:  # another priority in the same state
                found[entry.partition("-")[2]].append(state)
    return dict(found)
