"""``verify`` finds what a destination lost, what somebody changed there and what should not be there; it repairs it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document
from ferryman.destinations import Directory, JsonLines, Memory, Queue, Sql, Webhook
from ferryman.errors import UsageError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.state.targets import load_verified
from ferryman.verification import Verification, verify
from tests.support.plan_world import PlanWorld, place

__all__ = ["place"]

IDS = [f"histories/plays/folio/number-{n:03d}-of-the-collection.txt" for n in range(40)]


def with_pages(doc: Document) -> Iterator[Document]:
    """Return the document and two pages, of which the second does not depend on its text."""
    yield doc
    yield doc.child("a", raw=doc.raw, title=f"first of {doc.text()}")
    same = doc.child("b", raw=b"the same in each version", title="second")
    same.only_if_changed = True
    yield same


def build(world: PlanWorld, **destinations: Any) -> Plan:
    """Build a plan from a list of documents, with a family of three of each, to these destinations."""
    plan = Plan("checked", version=1)
    from ferryman.sources import Memory as Listed

    pages = plan.source("docs", Listed(world.documents, max_deleted=1.0)).step("pages", with_pages)
    *tees, (last, final) = destinations.items()
    for name, destination in tees:
        pages = pages.tee(name, destination, backoff=0)
    pages.destination(last, final, backoff=0)
    return plan


def world_with(folder: Path, **destinations: Any) -> PlanWorld:
    """Run a plan over 40 documents once."""
    world = PlanWorld(folder, partial(build, **destinations))
    world.put(*IDS, title="Henry", pages=[1, 2.5], rank=1e16)
    assert world.run().exit == 0
    return world


def look(world: PlanWorld, **options: Any) -> Verification:
    return verify(world.plan, state=world.state, **options)


def found(verification: Verification) -> list[tuple[str, str]]:
    """Return (kind, document) of all differences."""
    return [(each.kind, each.document) for target in verification.targets for each in target.differences]


def in_database(folder: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(folder / "out.db")) as connection, connection:
        connection.execute(statement, values)


def sql(folder: Path, **options: Any) -> Sql:
    return Sql(f"sqlite:///{folder}/out.db", columns={"title": "title", "rank": "rank", "pages": "pages"}, **options)


def test_what_was_delivered_is_there(place: Path) -> None:
    """After new, changed and deleted documents nothing differs, and everything was compared."""
    queue = Queue("out", place)
    world = world_with(
        place, rows=sql(place), log=sql(place, table="log", mode="append"), lines=JsonLines(place / "lines"),
        files=Directory(place / "files"), kept=Memory(), messages=queue,
    )  # fmt: skip
    for change in (lambda: world.put(*IDS[:10], text="changed"), lambda: world.drop(*IDS[5:12]), lambda: None):
        change()
        assert world.run().exit == 0
        verification = look(world)
        assert found(verification) == []
        assert verification.exit == 0
        for target in verification.targets:
            assert target.counts is not None
            assert target.counts.expected >= 33 * 3
            assert (target.counts.unknown, target.counts.others, target.counts.in_flight) == (0, 0, 0)
    assert all(each.clean is not None for each in load_verified(world.root).values())


def test_lost_rows_are_found_and_sent_again_alone(place: Path) -> None:
    """Only what is missing is made again, under its hash, for the destination that lost it; then nothing differs."""
    world = world_with(place, other=sql(place, table="other", mode="append"), rows=sql(place))
    world.put(IDS[1], text="changed")  # its second page stays as it is, and is not sent again
    assert world.run().exit == 0
    lost = [IDS[0], f"{IDS[1]}#a", f"{IDS[1]}#b", f"{IDS[2]}#b"]
    for id in lost:
        in_database(place, "DELETE FROM documents WHERE id = ?", id)
    verification = look(world, repair=True, why="lost")
    assert found(verification) == [("missing", id) for id in lost]
    assert (verification.exit, verification.repaired) == (3, 4)
    assert world.counts("rows")["pending"] == 4
    assert look(world).targets[1].counts.in_flight == 4  # type: ignore[union-attr]
    assert world.run().delivered == 4
    assert look(world).exit == 0
    assert world.status()["balanced"]
    assert len(world.history(lost[0])) >= 3
    with closing(sqlite3.connect(place / "out.db")) as connection:
        assert connection.execute("SELECT count(*) FROM documents").fetchone() == (120,)
        assert connection.execute("SELECT count(*) FROM other").fetchone() == (122,)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE documents SET title = 'Hamlet'",
        "UPDATE documents SET text = text || ' '",
        "UPDATE documents SET fields = replace(fields, '2.5', '2.6')",
        "UPDATE documents SET fields = 'no JSON'",
        "UPDATE documents SET parent_id = 'somebody'",
        "UPDATE documents SET source = 'elsewhere'",
        "UPDATE documents SET sequence = sequence + 1",
        "UPDATE documents SET rank = 7",
        "UPDATE documents SET rank = NULL",
        "UPDATE documents SET pages = '[1, 2.6]'",
        "UPDATE documents SET route = '[\"left\"]'",
        "UPDATE documents SET delivery_hash = 'ffffffffffffffffffffffffffffffff'",
        "UPDATE documents SET version = 'f'",
    ],
)
def test_a_change_by_hand_is_found_and_undone(place: Path, change: str) -> None:
    """Whatever the column; ids, hash and sequence need not change for that. A repair restores what was written."""
    world = world_with(place, rows=sql(place))
    before = rows_of(place)
    in_database(place, f"{change} WHERE id = ?", IDS[3])
    verification = look(world, repair=True)
    assert found(verification) == [("changed", IDS[3])]
    assert world.run().exit == 0
    assert look(world).exit == 0
    after = rows_of(place)
    assert after[IDS[3]]["sequence"] > before[IDS[3]]["sequence"]
    for row in (before[IDS[3]], after[IDS[3]]):
        del row["sequence"], row["content_hash"]
    assert after == before


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    with closing(sqlite3.connect(folder / "out.db")) as connection:
        connection.row_factory = sqlite3.Row
        return {row["id"]: dict(row) for row in connection.execute("SELECT * FROM documents")}


def test_an_older_copy_of_the_target_is_found_and_caught_up(place: Path) -> None:
    """A target put back from a backup lacks the newer documents, has older versions, and has deleted ones again."""
    world = world_with(place, rows=sql(place))
    copy = (place / "out.db").read_bytes()
    world.put(IDS[0], text="newer")
    world.put("new", title="New")
    world.drop(IDS[1])
    assert world.run().exit == 0
    for name in ("out.db-wal", "out.db-shm"):
        (place / name).unlink(missing_ok=True)
    (place / "out.db").write_bytes(copy)
    verification = look(world, repair=True)
    kinds = [(kind, id.split("#")[0]) for kind, id in found(verification)]
    assert sorted(set(kinds)) == [("changed", IDS[0]), ("extra", IDS[1]), ("missing", "new")]
    assert world.run().exit == 0
    assert set(found(look(world, delete_extra=True))) == {("extra", IDS[1] + page) for page in ("", "#a", "#b")}
    assert world.run().deleted == 3
    assert look(world).exit == 0


def test_an_emptied_target_is_filled_again(place: Path) -> None:
    """Also if the whole database is gone."""
    world = world_with(place, rows=sql(place))
    for path in place.glob("out.db*"):
        path.unlink()
    verification = look(world, repair=True)
    assert verification.targets[0].counts.missing == 120  # type: ignore[union-attr]
    assert world.run().delivered == 120
    assert look(world).exit == 0


def test_rows_of_others_are_left_alone(place: Path) -> None:
    """What other plans, nodes and programs wrote is counted, and is no difference; what a lost state wrote is extra."""
    world = world_with(place, rows=sql(place))
    in_database(
        place,
        "INSERT INTO documents (id, origin_id, source, version, sequence, delivery_hash, route, fields) "
        "VALUES ('theirs', 'theirs', 'docs', 'v', 1, 'ffffffffffffffffffffffffffffffff', '[]', '{}')",
    )
    verification = look(world)
    assert (found(verification), verification.targets[0].counts.others) == ([], 1)  # type: ignore[union-attr]
    forgotten = PlanWorld(place, partial(build, rows=sql(place)))
    forgotten.state = place / "another state"
    forgotten.put("only there")
    assert forgotten.run().exit == 0
    assert sorted(found(look(world, delete_extra=True))) == [
        ("extra", f"only there{page}") for page in ("", "#a", "#b")
    ]
    assert world.run().deleted == 3
    assert found(look(world)) == []
    assert "theirs" in rows_of(place)


def test_most_of_a_target_is_not_deleted_by_mistake(place: Path) -> None:
    """A state that has forgotten nearly everything does not empty the target, unless it is told to."""
    world_with(place, rows=sql(place))
    forgotten = PlanWorld(place, partial(build, rows=sql(place)))
    forgotten.state = place / "another state"
    forgotten.put("only there")
    assert forgotten.run().exit == 0
    with pytest.raises(UsageError, match="more than half"):
        look(forgotten, delete_extra=True)
    assert look(forgotten, delete_extra=True, allow_deletes=True).repaired == 120
    assert forgotten.run().deleted == 120
    assert len(rows_of(place)) == 3


def lose_line(folder: Path) -> None:
    [path] = (folder / "lines").glob("*.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def change_line(folder: Path) -> None:
    [path] = (folder / "lines").glob("*.jsonl")
    path.write_text(path.read_text().replace("Henry", "Hamlet", 1))


def lose_file(folder: Path) -> None:
    (folder / "files" / IDS[0]).unlink()


def change_file(folder: Path) -> None:
    (folder / "files" / IDS[0]).write_text("twO")


@pytest.mark.parametrize(
    ("damage", "kind", "can_be_repaired"),
    [
        (lose_line, "missing", True),
        (change_line, "changed", False),
        (lose_file, "missing", True),
        (change_file, "changed", True),
    ],
)
def test_files_are_compared_too(place: Path, damage: Callable[[Path], None], kind: str, can_be_repaired: bool) -> None:
    """A log of lines cannot replace a line: that is said, and the rest is repaired."""
    world = world_with(place, lines=JsonLines(place / "lines"), files=Directory(place / "files"))
    damage(place)
    verification = look(world, repair=True)
    assert found(verification) == [(kind, IDS[0])]
    assert [why for _, why in verification.unrepairable] == (
        [] if can_be_repaired else ["nothing is replaced there: remove the record, then verify again"]
    )
    assert world.run().exit == 0
    assert look(world).exit == (0 if can_be_repaired else 3)


def test_a_queue_may_have_been_trimmed(place: Path) -> None:
    """Then nobody can tell whether a message was lost: it is counted, and no failure. A deleted queue is one."""
    world = world_with(place, messages=Queue("out", place))
    queue = DurableQueue("out", place)
    queue.trim("0s", force=True)
    verification = look(world)
    [target] = verification.targets
    if queue.first_index > 1:
        assert target.forgets
    assert verification.exit == 0


def test_a_sample_is_drawn_at_random(place: Path) -> None:
    """It compares so many documents; what it finds is real."""
    world = world_with(place, rows=sql(place))
    verification = look(world, sample=30)
    assert (verification.exit, verification.targets[0].counts.expected) == (0, 30)  # type: ignore[union-attr]
    assert load_verified(world.root)["rows"].clean is None, "a sample proves nothing about the others"
    in_database(place, "DELETE FROM documents")
    assert look(world, sample=30).targets[0].counts.missing == 30  # type: ignore[union-attr]


def test_only_what_came_since_a_wave(place: Path) -> None:
    """Earlier documents are not compared."""
    world = world_with(place, rows=sql(place))
    world.put("late")
    assert world.run().exit == 0
    wave = world.status()["waves"]
    in_database(place, "DELETE FROM documents WHERE id IN (?, 'late')", IDS[0])
    assert found(look(world, since=wave)) == [("missing", "late")]


def test_what_cannot_be_read_back_is_said(place: Path) -> None:
    """A webhook says nothing about what it got; a database that is away is no clean one."""
    world = PlanWorld(place, partial(build, hook=Webhook("http://127.0.0.1:9/")))
    world.run(wait=0)
    verification = look(world)
    assert verification.exit == 4
    assert "cannot read back" in verification.targets[0].why
    with pytest.raises(UsageError, match="has hook"):
        look(world, destination="rows")


def test_there_must_be_a_state(place: Path) -> None:
    """Nothing is compared with nothing."""
    world = PlanWorld(place, partial(build, rows=sql(place)))
    with pytest.raises(UsageError, match="no state of this plan yet"):
        look(world)


def remove_rows(folder: Path) -> None:
    for path in folder.glob("out.db*"):
        path.unlink()


def drop_table(folder: Path) -> None:
    in_database(folder, "DROP TABLE documents")


def remove_folders(folder: Path) -> None:
    shutil.rmtree(folder / "lines")
    shutil.rmtree(folder / "files")


def remove_queue(folder: Path) -> None:
    DurableQueue("out", folder).delete()


@pytest.mark.parametrize(
    ("remove", "lost"),
    [
        (remove_rows, ["rows"]),
        (drop_table, ["rows"]),
        (remove_folders, ["files", "lines"]),
        (remove_queue, ["messages"]),
    ],
)
def test_a_target_that_is_gone_or_made_anew_is_noticed(
    place: Path, remove: Callable[[Path], None], lost: list[str]
) -> None:
    """Each run says so and ends with 3, also one that finds nothing to do, until a verification finds all of it."""
    world = world_with(
        place, rows=sql(place), lines=JsonLines(place / "lines"), files=Directory(place / "files"),
        messages=Queue("out", place),
    )  # fmt: skip
    assert world.run().exit == 0
    remove(place)
    gone = world.run(checked=False)
    assert gone.exit == 3
    assert [text.split(":")[0] for text in gone.messages] == [f"destination {name}" for name in lost]
    assert all("is not there any more" in text for text in gone.messages)
    world.put("one more")
    anew = world.run(checked=False)
    assert (anew.exit, anew.delivered) == (3, 12)
    assert all("was made anew" in text for text in anew.messages)
    assert world.run(checked=False).exit == 3
    assert look(world, repair=True).exit == 3
    assert world.run(checked=False).delivered == 120 * len(lost)
    assert look(world).exit == 0
    assert world.run().exit == 0


@pytest.mark.parametrize(
    "point",
    [
        "targets.recorded",
        "verified.recorded",
        "command.queued",
        "command.queued:2",
        "command.staged",
        "command.staged:2",
        "command.done",
        "wave.logged:4",
        "wave.logged:5",
        "transform.done:2",
        "deliver.sent:5",
        "deliver.done:3",
    ],
)
def test_a_verification_may_be_killed(place: Path, point: str) -> None:
    """The same command again finds and repairs what is left; other destinations get nothing twice."""
    command = [sys.executable, "-m", "tests.support.verified_story", str(place)]
    killed = subprocess.run(command, env={**os.environ, "FERRYMAN_CRASH": point}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "42"], done.stderr
