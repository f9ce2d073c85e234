"""A hundred differences of each kind, in what needs no server: ``verify`` finds all of them, and nothing else.

``tests/destinations/test_verify_servers.py`` does the same on real servers.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ferryman.destinations import Destination, Directory, JsonLines, Queue, Sql
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory
from ferryman.verification import Verification, verify
from tests.destinations.test_verify_servers import ADDED, IDS, check_differences
from tests.support.plan_world import PlanWorld, place
from tests.test_adoption import keep

__all__ = ["place"]


class InSqlite:
    def __init__(self, path: Path) -> None:
        self._path = path

    def _query(self, statement: str, ids: Sequence[str] = ()) -> None:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("CREATE TEMP TABLE wanted (id TEXT)")
            connection.executemany("INSERT INTO wanted VALUES (?)", [(id,) for id in ids])
            connection.execute(statement)

    def save(self) -> None:
        self._query("CREATE TABLE saved AS SELECT * FROM documents")

    def change(self, ids: Sequence[str]) -> None:
        changes = (
            "title = 'other'",
            "fields = replace(fields, '1.25', '1.26')",
            "text = text || '.'",
            "rank = rank + 1",
        )
        for share, change in enumerate(changes):
            self._query(f"UPDATE documents SET {change} WHERE id IN (SELECT id FROM wanted)", ids[share::4])

    def lose(self, ids: Sequence[str]) -> None:
        self._query("DELETE FROM documents WHERE id IN (SELECT id FROM wanted)", ids)

    def put_back(self, ids: Sequence[str]) -> None:
        self.lose(ids)
        self._query("INSERT INTO documents SELECT * FROM saved WHERE id IN (SELECT id FROM wanted)", ids)

    def add(self, ids: Sequence[str]) -> None:
        self._query("CREATE TABLE added AS SELECT * FROM documents WHERE id IN (SELECT id FROM wanted)", ids)
        self._query(f"UPDATE added SET id = '{ADDED}' || id")
        self._query("INSERT INTO documents SELECT * FROM added")


class InDirectory:
    """Whose index somebody else does not change: so what is put back there is put back with the index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._saved = folder.with_name("saved")

    def save(self) -> None:
        shutil.copytree(self._folder, self._saved)

    def change(self, ids: Sequence[str]) -> None:
        for id in ids:
            (self._folder / id).write_text("changed")

    def lose(self, ids: Sequence[str]) -> None:
        for id in ids:
            (self._folder / id).unlink()

    def put_back(self, ids: Sequence[str]) -> None:
        with closing(sqlite3.connect(self._folder / ".ferryman" / "index.db")) as connection, connection:
            connection.execute("ATTACH ? AS old", (str(self._saved / ".ferryman" / "index.db"),))
            for id in ids:
                connection.execute("REPLACE INTO documents SELECT * FROM old.documents WHERE id = ?", (id,))
                (self._folder / id).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self._saved / id, self._folder / id)


def test_sqlite(place: Path) -> None:
    """Edits of text, JSON and copied columns; also in rows beside each other."""
    columns = {"title": "title", "price": "price", "rank": "rank"}
    check_differences(place, Sql(f"sqlite:///{place}/out.db", columns=columns), InSqlite(place / "out.db"))


def test_directory(place: Path) -> None:
    """Files lost and changed, and older ones with their index."""
    check_differences(place, Directory(place / "files"), InDirectory(place / "files"))


def build(world: PlanWorld, destination: Destination) -> Plan:
    plan = Plan("catalogue", version=1)
    plan.source("docs", Memory(world.documents, max_deleted=1.0)).destination("out", destination, backoff=0)
    return plan


def differing(found: Verification) -> Counter[str]:
    return Counter(each.kind for target in found.targets for each in target.differences)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]


def test_lines_of_json(place: Path) -> None:
    """A hundred lost, changed, and of another state each, and a hundred that an older copy of the folder lacks. What is
    changed cannot be replaced: once it is removed, it is missing. A repair is one more line of the same hash; the older
    ones may be cut out later."""
    folder = place / "lines"
    world = PlanWorld(place, partial(build, destination=JsonLines(folder)))
    look = partial(verify, state=world.state)
    world.put(*IDS[:300], title="Henry")
    assert world.run().exit == 0
    paths = sorted(folder.glob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
    for path in paths:
        path.unlink()
    path.write_text("".join([*(line.replace("Henry", "Hamlet") for line in lines[:100]), *lines[200:]]))
    other = PlanWorld(place, partial(build, destination=JsonLines(folder)))
    other.state = place / "another state"
    other.put(*IDS[300:400])
    assert other.run().exit == 0
    found = look(world.plan, repair=True)
    assert differing(found) == {"missing": 100, "changed": 100, "extra": 100}
    assert (found.repaired, len(found.unrepairable)) == (100, 100)
    assert world.run().delivered == 100
    path.write_text("".join(lines[200:]))
    for each in folder.glob("*.jsonl"):
        if all(line["id"] in IDS[300:400] for line in map(json.loads, each.read_text().splitlines())):
            each.unlink()
    assert differing(look(world.plan, repair=True)) == {"missing": 100}
    assert world.run().delivered == 100
    assert look(world.plan).exit == 0
    assert Counter(Counter(line["id"] for line in lines_of(folder)).values()) == {1: 300}
    path.write_text("".join(lines))  # from a copy: the older lines are there again, with lower sequences
    assert look(world.plan).exit == 0
    put_back = keep(folder)
    world.put(*IDS[400:])
    assert world.run().delivered == 100
    put_back()
    noticed = world.run(checked=False)
    assert (noticed.exit, noticed.delivered) == (3, 0)
    assert differing(look(world.plan, repair=True)) == {"missing": 100}
    assert world.run(checked=False).delivered == 100
    assert look(world.plan).exit == 0
    assert world.run().exit == 0
    assert Counter(line["id"] for line in lines_of(folder) if line["id"] in IDS[400:]) == dict.fromkeys(IDS[400:], 1)


@pytest.mark.rule("verify.differences")
def test_changes_of_records_in_one_bucket_do_not_cancel(place: Path) -> None:
    """Neither the same edit in two rows, nor two rows that have changed places."""
    names = "SELECT 'volume ' || range AS id FROM range(400)"
    query = f"SELECT list(id ORDER BY id) FROM ({names}) GROUP BY hash(id) & 4095 HAVING count(*) > 1 LIMIT 1"
    [([first, second, *_],)] = duckdb.sql(query).fetchall()
    world = PlanWorld(place, partial(build, destination=Sql(f"sqlite:///{place}/out.db")))
    world.put(first, second)
    assert world.run().exit == 0
    renames = ((first, "other"), (second, first), ("other", second))
    for changes in (
        ["UPDATE documents SET text = 'the same'"],
        [f"UPDATE documents SET id = '{new}' WHERE id = '{id}'" for id, new in renames],
    ):
        with closing(sqlite3.connect(place / "out.db")) as connection, connection:
            for change in changes:
                connection.execute(change)
        assert differing(verify(world.plan, state=world.state, repair=True)) == {"changed": 2}
        assert world.run().delivered == 2
        assert verify(world.plan, state=world.state).exit == 0


@pytest.mark.rule("verify.repair")
def test_deletes_that_a_log_has_lost(place: Path) -> None:
    """They are sent again, once: else a reader would take the documents for those that are there. Not if the document
    has come back since."""
    folder = place / "lines"
    world = PlanWorld(place, partial(build, destination=JsonLines(folder)))
    look = partial(verify, state=world.state)
    world.put(*IDS[:6])
    assert world.run().exit == 0
    kept = set(folder.glob("*.jsonl"))
    world.drop(*IDS[:3])
    assert world.run().exit == 0
    lost = set(folder.glob("*.jsonl")) - kept
    world.put(IDS[0], text="back")
    assert world.run().exit == 0
    for path in lost:
        path.unlink()
    found = look(world.plan, repair=True)
    assert [(each.kind, each.document) for each in found.targets[0].differences] == [("missing", id) for id in IDS[:3]]
    assert found.repaired == 2
    assert world.run().deleted == 2
    [left] = look(world.plan).targets[0].differences
    assert left.document == IDS[0], "an older delivery than its last"
    last = {line["id"]: line["operation"] for line in sorted(lines_of(folder), key=lambda line: line["sequence"])}
    assert last == {IDS[0]: "upsert", **dict.fromkeys(IDS[1:3], "delete"), **dict.fromkeys(IDS[3:6], "upsert")}
    assert Counter(line["id"] for line in lines_of(folder) if line["operation"] == "delete") == {
        IDS[1]: 1,
        IDS[2]: 1,
    }


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_queue(place: Path, trimmed: bool) -> None:
    """An older copy of it lacks a hundred messages; nothing else can be lost, changed or added by hand. A run notices.
    After the repair each message is there once. Of a trimmed one nobody can tell."""
    world = PlanWorld(place, lambda world: build(world, Queue("out", place)), each_time=True)  # as each process does
    look = partial(verify, state=world.state)
    world.put(*IDS[:100])
    assert world.run().exit == 0
    shutil.copytree(place / "out", place / "copy")
    world.put(*IDS[100:200])
    assert world.run().exit == 0
    shutil.rmtree(place / "out")
    (place / "copy").rename(place / "out")
    queue = DurableQueue("out", place)
    if trimmed:
        queue.trim("0s", force=True)
        assert look(world.plan).exit == 0
        assert look(world.plan).targets[0].forgets
        return
    noticed = world.run(checked=False)
    assert noticed.exit == 3
    assert "put back from an older copy" in noticed.messages[0]
    assert differing(look(world.plan, repair=True)) == {"missing": 100}
    assert world.run(checked=False).delivered == 100
    assert look(world.plan).exit == 0
    assert world.run().exit == 0
    assert Counter(Counter(each.meta["id"] for each in queue.read(1, 1000)).values()) == {1: 200}
