"""``verify`` finds what a destination lost, what somebody changed there and what should not be there; it repairs it."""

from __future__ import annotations

import operator
import shutil
import signal
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferryman import Document, Remember, limits
from ferryman.cli.account import print_targets
from ferryman.destinations import Directory, JsonLines, Memory, Queue, Sql, Stored, Webhook
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Guarantee,
    Outcome,
    is_same_value,
)
from ferryman.destinations.sql import sqlite as sqlite_dialect
from ferryman.errors import PermanentError, Unavailable, UsageError
from ferryman.operations import resolve, retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import ByField, Duplicate
from ferryman.sources import Memory as Listed
from ferryman.state.targets import load_verified
from ferryman.verification import Verification, verify
from tests.support.paid import Service, steps
from tests.support.plan_world import PlanWorld, place
from tests.support.program import run_program

__all__ = ["place"]

IDS = [f"histories/plays/folio/number-{n:03d}-of-the-collection.txt" for n in range(40)]


def with_pages(doc: Document) -> Iterator[Document]:
    """Return the document and two pages, of which the second does not depend on its text."""
    yield doc
    yield doc.child("a", raw=doc.raw, title=f"first of {doc.text()}")
    same = doc.child("b", raw=b"the same in each version", title="second")
    same.only_if_changed = True
    yield same


def add_up(key: str, values: list[Any]) -> Any:
    return sum(values)


def build(world: PlanWorld, **destinations: Any) -> Plan:
    """Build a plan from a list of documents, with a family of three of each, to these destinations."""
    plan = Plan("checked", version=1)
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


@pytest.mark.rule("verify.differences")
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


@pytest.mark.rule("verify.repair")
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


@pytest.mark.rule("verify.differences")
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
    assert world.run().exit == 3, "what was deleted is there again"
    assert set(found(look(world, delete_extra=True))) == {("extra", IDS[1] + page) for page in ("", "#a", "#b")}
    assert world.run().deleted == 3
    assert look(world).exit == 0
    assert world.run().exit == 0


@pytest.mark.rule("verify.repair")
def test_two_repairs_beside_a_run_send_once(place: Path) -> None:
    """Both are queued, and what is missing is sent once; of what was changed or deleted meanwhile, what is so now."""
    world = world_with(place, rows=sql(place))
    for id in IDS[:4]:
        in_database(place, "DELETE FROM documents WHERE id = ?", id)
    with world.take():
        assert [look(world, repair=True).queued for _ in range(2)] == [True, True]
    world.put(IDS[0], text="changed meanwhile")
    world.drop(IDS[1])
    done = world.run()
    assert (done.exit, done.delivered, done.deleted) == (0, 3 + 2, 3)
    assert look(world).exit == 0
    assert len(rows_of(place)) == 39 * 3


def test_an_emptied_target_is_filled_again(place: Path) -> None:
    """Also if the whole database is gone."""
    world = world_with(place, rows=sql(place))
    for path in place.glob("out.db*"):
        path.unlink()
    verification = look(world, repair=True)
    assert verification.targets[0].counts.missing == 120  # type: ignore[union-attr]
    assert world.run().delivered == 120
    assert look(world).exit == 0


@pytest.mark.rule("verify.differences")
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
    shutil.rmtree(folder / "files")


def remove_lines(folder: Path) -> None:
    shutil.rmtree(folder / "lines")


def remove_queue(folder: Path) -> None:
    DurableQueue("out", folder).delete()


@pytest.mark.rule("verify.target")
@pytest.mark.parametrize(
    ("remove", "lost"),
    [
        (remove_rows, ["rows"]),
        (drop_table, ["rows"]),
        (remove_folders, ["files"]),
        (remove_lines, ["lines"]),
        (remove_queue, ["messages"]),
    ],
)
def test_a_target_that_is_gone_or_recreated_is_noticed(
    place: Path, capsys: pytest.CaptureFixture[str], remove: Callable[[Path], None], lost: list[str]
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
    assert said_by_status(world, capsys).count("is not there any more") == len(lost)
    recreated = world.run(checked=False)
    assert (recreated.exit, recreated.delivered) == (3, 12)
    assert all("was recreated" in text for text in recreated.messages)
    assert world.run(checked=False).exit == 3
    assert look(world, repair=True).exit == 3
    assert look(world).exit == 0, "nothing is missing but what is due"
    repaired = world.run(checked=False)
    assert (repaired.exit, repaired.delivered) == (3, 120 * len(lost)), "it was not compared yet"
    assert look(world).exit == 0
    assert world.run().exit == 0
    said = said_by_status(world, capsys)
    assert "The target of" not in said
    assert said.count("was verified up to wave") == 4


@pytest.mark.rule("verify.target")
@pytest.mark.parametrize("name", ["lines", "files"])
def test_a_folder_that_was_moved_is_noticed(place: Path, name: str) -> None:
    """Also if what is in its place has the same files: a verification says that they are all there."""
    world = world_with(place, lines=JsonLines(place / "lines"), files=Directory(place / "files"))
    own = ".ferryman-id" if name == "lines" else ".ferryman/.ferryman-id"
    (place / name / own).rename(place / "moved")
    assert world.run(checked=False).exit == 3
    assert look(world).exit == 0
    world.put("newer")
    assert world.run(checked=False).exit == 3, "it got an identity of its own"
    assert look(world).exit == 0
    assert world.run().exit == 0


@pytest.mark.rule("verify.anew")
def test_a_target_that_was_made_anew_on_purpose(place: Path) -> None:
    """``retry --force --destination`` fills it and accepts its identity, before or after a run has noticed: the next
    run ends with 0. Of one document it accepts nothing."""
    world = world_with(place, rows=sql(place), lines=JsonLines(place / "lines"))
    force = partial(retry, world.plan, state=world.state, force=True)
    for noticed in (False, True):
        world.put(f"newer {noticed}")
        assert world.run().exit == 0
        remove_rows(place)
        remove_lines(place)
        if noticed:
            force(destination="rows", document="newer True")
            found = world.run(checked=False)
            assert found.exit == 3
            assert [text.split(":")[0] for text in found.messages] == ["destination lines", "destination rows"]
        force(destination="rows")
        force(destination="lines")
        done = world.run()
        assert (done.exit, done.messages) == (0, [])
        assert look(world, destination="rows").exit == 0
        assert look(world, destination="lines").exit == 0


def said_by_status(world: PlanWorld, capsys: pytest.CaptureFixture[str]) -> str:
    print_targets(world.plan, world.root, "plan.py", None)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "point",
    [
        "targets.recorded",
        "verified.recorded",
        "command.queued",
        pytest.param("command.queued:2", marks=pytest.mark.slow),
        "command.staged",
        pytest.param("command.staged:2", marks=pytest.mark.slow),
        "command.done",
        "wave.logged:4",
        pytest.param("wave.logged:5", marks=pytest.mark.slow),
        "transform.done:2",
        "deliver.sent:5",
        "deliver.done:3",
    ],
)
def test_a_verification_may_be_killed(place: Path, point: str) -> None:
    """The same command again finds and repairs what is left; other destinations get nothing twice."""
    killed = run_program("tests.support.verified_story", place, point=point)
    assert killed.returncode == -signal.SIGKILL, killed
    done = run_program("tests.support.verified_story", place)
    assert done.stdout.split() == ["0", "42"], done.stderr


@pytest.mark.parametrize("beside", [[], ["beside"]], ids=["alone", "beside a run"])
@pytest.mark.parametrize(("sent", "has_deleted"), [(5, False), (6, True)])
def test_a_repair_that_is_killed_has_written_before_it_deletes(
    place: Path, sent: int, has_deleted: bool, beside: list[str]
) -> None:
    """So that there is never less than before it."""
    killed = run_program("tests.support.verified_story", place, *beside, point=f"deliver.sent:{sent}")
    assert killed.returncode == -signal.SIGKILL, killed
    with closing(sqlite3.connect(place / "out.db")) as db:
        there = {id for (id,) in db.execute("SELECT id FROM documents")}
    assert there >= {"d3", "d4#a", "d5", "d5#a", "d5#b"}
    assert there.isdisjoint({"gone", "gone#a", "gone#b"}) == has_deleted


@pytest.mark.rule("verify.types")
def test_numbers_in_columns_of_every_precision() -> None:
    """A column prints a number with its own precision; numpy and SQLite are the oracles. Anything else is a change."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE kinds (text TEXT, real REAL, whole INTEGER, number NUMERIC, free)")
    numbers = [
        1,
        0,
        -7,
        2**53 + 1,
        2**63 - 1,
        2.5,
        0.1 + 0.2,
        -0.0,
        1e22,
        1e300,
        1.2345678901234567e-300,
        1 / 3,
        True,
        False,
    ]
    for number in (*numbers, True, False):
        connection.execute("DELETE FROM kinds")
        connection.execute("INSERT INTO kinds VALUES (?, ?, ?, ?, ?)", [number] * 5)
        [row] = connection.execute("SELECT * FROM kinds").fetchall()
        assert all(map(is_same_value, row, [number] * 5, [True, False, False, False, False])), (number, row)
    connection.close()
    for number in (3.14159274, 1 / 3, 16777217, 1e-20, 123456.789, 2.5, 0.1 + 0.2):
        assert is_same_value(str(np.float32(number)), number, is_text=False), number
    others = [("8", 7), (2**53 + 2, 2**53 + 1), ("0.3000000000000001", 0.1 + 0.2), ("0.333", 1 / 3), ("x", 1)]
    others += [("3.14159", 3.14159274), ("sNaN", 1), ("Infinity", 1e300), ("1e999999999", 1.0)]
    for stored, written in others:
        assert not is_same_value(stored, written, is_text=False), (stored, written)


@pytest.mark.parametrize(
    "change",
    [
        "title = CAST(x'ff' AS TEXT)",
        "text = x'00ff'",
        "route = '[1, 2]'",
        "fields = '5'",
        "fields = 7",
        "fields = x'ff'",
        "source = x'ff'",
        "version = x'ff'",
        "delivery_hash = x'ff'",
        "sequence = 'abc'",
        "rank = 'sNaN'",
    ],
)
def test_a_row_that_is_nothing_of_ours_any_more_hides_no_other(place: Path, change: str) -> None:
    """Text that is no UTF-8, bytes, numbers, and JSON of another shape are changes like any other."""
    world = world_with(place, rows=sql(place))
    in_database(place, f"UPDATE documents SET {change} WHERE id = ?", IDS[3])
    in_database(place, "DELETE FROM documents WHERE id = ?", IDS[5])
    assert found(look(world, repair=True)) == [("changed", IDS[3]), ("missing", IDS[5])]
    assert world.run(checked=False).exit in (0, 3)
    assert set(found(look(world))) <= {("changed", IDS[3])}


@pytest.mark.parametrize("page", [16, 1000])
def test_a_text_that_is_not_utf_8_repeats_and_hides_no_row(
    place: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stand behind rows that were read already, in each place of a page."""
    monkeypatch.setattr(sqlite_dialect, "PAGE_ROWS", page)
    world = world_with(place, rows=Sql(f"sqlite:///{place}/out.db"))
    for broken in (0, 15, 16):
        in_database(place, "UPDATE documents SET text = CAST(x'ff' AS TEXT) WHERE id = ?", IDS[broken])
        [target] = look(world, repair=True).targets
        assert [(each.kind, each.document) for each in target.differences] == [("changed", IDS[broken])]
        assert target.counts is not None
        assert target.counts.expected == 3 * len(IDS)
        assert world.run().exit == 0
        assert not found(look(world))


def to_one_table(world: PlanWorld, names: str, **kinds: type[Sql]) -> Plan:
    """Build a plan that sends a copy of each document to several nodes, which write to one table."""
    plan = Plan("copies", version=1)
    copies = plan.source("docs", Listed(world.documents, max_deleted=1.0)).route("copy", Duplicate())
    for name in names:
        kind = kinds.get(name, Sql)
        copies.destination(name, kind(f"sqlite:///{world.folder}/out.db"), backoff=0)
    return plan


def test_one_of_several_copies_is_there(place: Path) -> None:
    """Whichever of those of a wave came last."""
    world = PlanWorld(place, partial(to_one_table, names="abc"))
    world.put(*IDS)
    assert world.run().exit == 0
    assert look(world).exit == 0


def with_columns(world: PlanWorld, **columns: dict[str, str]) -> Plan:
    """Build a plan whose documents go to one of several nodes, which write different columns of one table."""
    plan = Plan("columns", version=1)
    kinds = plan.source("docs", Listed(world.documents, max_deleted=1.0)).route("kind", ByField("kind"))
    for name, each in columns.items():
        kinds.destination(name, Sql(f"sqlite:///{world.folder}/out.db", columns=each), backoff=0)
    return plan


def test_nodes_with_other_columns_of_one_table(place: Path) -> None:
    """Each row is compared by the columns of the node that wrote it."""
    world = PlanWorld(place, partial(with_columns, a={"title": "title", "rank": "rank"}, b={"rank": "rank"}))
    with closing(sqlite3.connect(place / "out.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    world.put("x", kind="a", title="Henry", rank=1)
    assert world.run().exit == 0
    world.put("y", "z", kind="b", title="Hamlet", rank=2)
    assert world.run().exit == 0
    assert found(look(world)) == []
    in_database(place, "UPDATE documents SET rank = 3 WHERE id IN ('x', 'z')")
    assert found(look(world, repair=True)) == [("changed", "x"), ("changed", "z")]
    assert world.run().exit == 0
    assert found(look(world)) == []


def test_more_differences_than_are_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are counted, the first are listed and repaired; then the next."""
    monkeypatch.setattr(limits, "DIFFERENCES", 50)
    world = world_with(place, rows=sql(place))
    in_database(place, "DELETE FROM documents")
    lost = [120, 70, 20, 0]
    for missing in lost:
        verification = look(world, repair=True)
        assert verification.targets[0].counts.missing == missing  # type: ignore[union-attr]
        assert verification.repaired == min(missing, 50)
        assert world.run(checked=False).delivered == min(missing, 50)
    assert look(world).exit == 0


class Away(Sql):
    """Cannot be reached while there is a file ``down`` beside the database."""

    def check(self) -> None:
        if Path(self.url.removeprefix("sqlite:///")).with_name("down").exists():
            raise Unavailable("down")
        super().check()


def test_what_came_too_late_is_not_expected(place: Path) -> None:
    """After an outage of one of two nodes its older copies are stale, and those of the other stay."""
    world = PlanWorld(place, partial(to_one_table, names="ab", a=Away))
    world.put("x")
    assert world.run().exit == 0
    (place / "down").touch()
    for text in ("two", "three"):
        world.put("x", text=text)
        world.run(wait=0)
    (place / "down").unlink()
    assert world.run().exit == 0
    assert found(look(world)) == []
    in_database(place, "UPDATE documents SET delivery_hash = 'f' WHERE id = 'x'")
    assert found(look(world)) == [("changed", "x")]


def test_a_repair_that_failed_leaves_the_document_missing(place: Path) -> None:
    """It is in flight until its step has failed; also if an operator gives it up."""

    def step(doc: Document) -> Document:
        if (place / "fail").exists():
            raise PermanentError("no")
        return doc

    world = PlanWorld(place)
    world.plan = Plan("line", version=1)
    documents = world.plan.source("docs", Listed(world.documents, max_deleted=1.0)).step("step", step)
    documents.destination("rows", sql(place), backoff=0)
    world.put("x", "y")
    assert world.run().exit == 0
    in_database(place, "DELETE FROM documents WHERE id = 'x'")
    assert look(world, repair=True).repaired == 1
    assert found(look(world)) == []
    (place / "fail").touch()
    assert world.run().exit == 3
    assert found(look(world)) == [("missing", "x")]
    resolve(world.plan, "dropped", state=world.state, document="x")
    assert found(look(world)) == [("missing", "x")]
    (place / "fail").unlink()
    assert look(world, repair=True).repaired == 1
    assert world.run().exit == 0
    assert look(world).exit == 0


def test_what_an_older_version_delivered_is_repaired(place: Path) -> None:
    """Under a hash of the new version, of which the ledger has nothing before the repair."""

    def build_version(world: PlanWorld, version: int = 1) -> Plan:
        plan = Plan("versions", version=version)
        plan.source("docs", Listed(world.documents, max_deleted=1.0)).destination("rows", sql(place), backoff=0)
        return plan

    world = PlanWorld(place, build_version)
    world.put("x", "y")
    assert world.run().exit == 0
    newer = world.make_plan(2)
    assert world.run(newer, from_version=1).exit == 0
    world.plan = newer
    in_database(place, "DELETE FROM documents WHERE id = 'x'")
    assert found(look(world, repair=True)) == [("missing", "x")]
    assert world.run().delivered == 1
    assert look(world).exit == 0


class Lost(Sql):
    """Loses the connection after the work while there is a file ``die`` beside the database."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        outcomes = super().write(chunk)
        if Path(self.url.removeprefix("sqlite:///")).with_name("die").exists():
            raise ConnectionError("lost after the work")
        return outcomes


def test_what_is_in_doubt_is_not_compared(place: Path) -> None:
    """Nobody knows whether the old or the new delivery is there, until an operator says it."""
    world = PlanWorld(place)
    world.plan = Plan("doubt", version=1)
    documents = world.plan.source("docs", Listed(world.documents, max_deleted=1.0))
    documents.destination("rows", Lost(f"sqlite:///{place}/out.db"), guarantee=Guarantee.AT_MOST_ONCE, backoff=0)
    world.put("x", "y", "z")
    assert world.run().exit == 0
    (place / "die").touch()
    world.put("x", text="two")
    world.drop("y")
    assert world.run(wait=0).exit == 3
    verification = look(world)
    assert (found(verification), verification.targets[0].counts.in_flight) == ([], 2)  # type: ignore[union-attr]
    resolve(world.plan, "failed", state=world.state)
    assert found(look(world)) == [("changed", "x"), ("missing", "y")]


def test_a_log_gets_no_delete_for_what_another_state_wrote(place: Path) -> None:
    """A delete would be one more line, and remove nothing: that is said."""
    world = world_with(place, lines=JsonLines(place / "lines"))
    other = PlanWorld(place, partial(build, lines=JsonLines(place / "lines")))
    other.state = place / "another state"
    other.put("only there")
    assert other.run().exit == 0
    verification = look(world, delete_extra=True)
    assert (verification.repaired, len(verification.unrepairable)) == (0, 3)


def test_a_line_that_is_lost_twice_is_found_twice(place: Path) -> None:
    """A repair of a log sends the delivery under its hash; it has to be there from then on."""
    world = world_with(place, lines=JsonLines(place / "lines"))
    lose_line(place)
    assert look(world, repair=True).exit == 3
    assert world.run().delivered == 1
    assert look(world).exit == 0
    max((place / "lines").glob("*.jsonl")).unlink()
    assert found(look(world)) == [("missing", IDS[0])]


def test_an_archive_gets_its_content_back(place: Path) -> None:
    """A file named after its content that has another one is written again."""
    world = PlanWorld(place)
    world.plan = Plan("archive", version=1)
    world.plan.source("docs", Listed(world.documents)).destination("kept", Directory(place / "kept", by="content"))
    world.put("x", "same")
    world.put("y", text="other")
    assert world.run().exit == 0
    for path in (place / "kept" / "sha256").rglob("*"):
        if path.is_file():
            path.write_text("oops!")
    assert len(found(look(world, repair=True))) == 3
    assert world.run().exit == 0
    assert look(world).exit == 0


@pytest.mark.rule("verify.repair")
def test_a_repair_calls_no_step_again_for_what_it_remembers(place: Path) -> None:
    """What is sent again is made of remembered answers; nothing is called, and nothing differs then."""
    service = Service(place)

    def plan_of(world: PlanWorld) -> Plan:
        fn, _ = steps(service)["plain"]
        plan = Plan("paid", version=1)
        documents = plan.source("docs", Listed(world.documents))
        embedded = documents.step("embed", fn, remember=Remember("v1", reads=["words"], writes=["vector"]))
        embedded.destination("rows", sql(place), backoff=0)
        return plan

    world = PlanWorld(place, plan_of)
    for n in range(4):
        world.put(f"d{n}", words=f"text {n}")
    assert world.run().exit == 0
    called = service.calls()
    assert sum(called.values()) == 4
    in_database(place, "DELETE FROM documents WHERE id = 'd1'")
    in_database(place, "UPDATE documents SET fields = '{}' WHERE id = 'd2'")
    assert found(look(world, repair=True)) == [("changed", "d2"), ("missing", "d1")]
    assert world.run(checked=False).delivered == 2
    assert service.calls() == called
    assert look(world).exit == 0


@pytest.mark.rule("verify.repair")
def test_an_export_of_a_key_that_is_lost_is_named(place: Path) -> None:
    """It is not made again, for what it was made from is read only once; the next change of its key brings it back."""

    def plan_of(world: PlanWorld) -> Plan:
        plan = Plan("sums", version=1)
        amounts = plan.source("docs", Listed(world.documents, max_deleted=1.0))
        sums = amounts.combine("sums", add_up, key="from", value="amount", inverse=operator.neg)
        sums.destination("rows", sql(place), backoff=0)
        return plan

    world = PlanWorld(place, plan_of)
    world.put("a", "b", amount=2, **{"from": "x"})
    world.put("c", amount=3, **{"from": "y"})
    assert world.run().exit == 0
    assert look(world).exit == 0
    in_database(place, "DELETE FROM documents WHERE id = 'x'")
    lost = look(world, repair=True)
    assert (found(lost), lost.repaired) == ([("missing", "x")], 0)
    assert "reads it only once" in lost.unrepairable[0][1]
    world.put("d", amount=1, **{"from": "x"})
    world.run(checked=False)
    assert look(world).exit == 0


class Odd(Destination):
    """Answers what its inventory yields, or raises."""

    effect = Effect.IDEMPOTENT

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        return [Outcome.ok()] * len(chunk)

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "answer",
    [
        ValueError("boom"), sqlite3.OperationalError("locked"), KeyError("x"), PermissionError(13, "denied", "x"),
        None, [("x", "h")], [Stored(None, "h")], [Stored(5, "h")], [Stored("x", None)], [Stored("x", 7)],  # type: ignore[arg-type]
        [Stored("x", "h", "yes")], [Stored("x", "h", route=None)], [Stored("x", "h\ud800")],  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_inventory_that_fails_hides_no_other_target(place: Path, answer: Any) -> None:
    """Of a user's destination, whatever it raises or yields: it is named, with what it said."""
    world = world_with(place, odd=Odd(answer), rows=sql(place))
    in_database(place, "DELETE FROM documents WHERE id = ?", IDS[5])
    verification = look(world)
    odd, _ = verification.targets
    assert odd.is_away
    assert odd.why
    assert found(verification) == [("missing", IDS[5])]
