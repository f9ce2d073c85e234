"""Sources with a memory: what their listings are given again, explicit deletes, and content that is kept because it
cannot be listed again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.cli.account import print_unseen_deletes
from ferryman.dashboard.recorded import recorded_plan
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError, Unavailable
from ferryman.operations import fsck
from ferryman.sources import Bookmark, Complete, Cursor, CursorExpired, Fetched, Listed, Note, Source, Unchanged
from ferryman.state.source_memory import load_memory
from ferryman.state.state import State
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.previewed import previewed
from tests.support.program import run_program

OWN_POINTS = {"memory.kept": 2, "memory.written": 4}
"""Crash points of a memory -> how often ``feed_story`` comes to them."""

OFTEN = {("memory.kept", 1), ("memory.written", 1), ("memory.written", 3)}
"""Kills of the short tests: when there is no memory yet, and when it is replaced."""

POINTS = ("scan.listed", "scan.judged", "commit.ready", "wave.written", "wave.logged", "settle.closed")


class Feed:
    """An API that lists changes since a number: a file with one change a line, and a note of each question."""

    def __init__(self, folder: Path) -> None:
        self._changes = folder / "changes.jsonl"
        self._asked = folder / "asked.jsonl"
        self._changes.touch()

    def add(self, id: str, **fields: Any) -> None:
        """Append a change; without fields, a deletion."""
        with self._changes.open("a") as file:
            file.write(json.dumps({"id": id, **fields}) + "\n")

    def read(self, cursor: int | None) -> Iterator[tuple[Any, Any]]:
        with self._asked.open("a") as file:
            file.write(json.dumps(cursor) + "\n")
        for number, line in enumerate(self._changes.read_text().splitlines(), 1):
            change = json.loads(line)
            if cursor is None or number > cursor:
                if change.get("raise"):
                    raise TransientError("the server hung up")
                yield (change if len(change) > 1 else Document.deleted(change["id"])), number

    @property
    def asked(self) -> list[Any]:
        return [json.loads(line) for line in self._asked.read_text().splitlines()] if self._asked.exists() else []


@pytest.fixture
def feed(place: Path) -> Feed:
    return Feed(place)


def memory(world: PlanWorld) -> Any:
    """The bookmark of source ``docs``."""
    state = State(world.root, world.plan)
    state.open_for_reading()
    return load_memory(state, "docs").bookmarks.get("")


def position(world: PlanWorld) -> Any:
    return memory(world)["cursor"]


def kept(world: PlanWorld) -> list[str]:
    """Names of the files with kept content."""
    return [path.name for path in (world.root / "sources" / "docs").glob("*.parquet")]


@pytest.mark.rule("cursor.kept")
def test_only_what_is_new_is_asked_for(trial: PlanWorld, feed: Feed) -> None:
    trial.build(source=Cursor(feed.read))
    feed.add("a", n=1)
    feed.add("b", n=1)
    assert trial.run().exit == 0
    assert (trial.arrived(), position(trial)) == ({"a": 1, "b": 1}, 2)
    trial.run()
    assert (trial.arrived(), position(trial)) == ({"a": 1, "b": 1}, 2)
    feed.add("a", n=2)
    feed.add("b")
    feed.add("c", n=1)
    feed.add("never-there")
    assert trial.run().exit == 0
    assert trial.arrived() == {"a": 2, "b": 1, "-b": 1, "c": 1}
    assert (feed.asked, position(trial)) == ([None, 2, 2], 6)
    assert trial.counts() == {"delivered": 2, "deleted": 1}


def test_of_several_changes_the_last_counts(trial: PlanWorld, feed: Feed) -> None:
    trial.build(source=Cursor(feed.read))
    for n in range(3):
        feed.add("a", n=n)
    feed.add("b", n=1)
    feed.add("b")
    feed.add("c")
    feed.add("c", n=1)
    summary = trial.run()
    assert (trial.arrived(), summary.messages) == ({"a": 1, "c": 1}, [])
    assert [line["fields"]["n"] for line in trial.out().lines()] == [2, 1]


@pytest.mark.parametrize(("wave", "phase"), [(1, "transform"), (1, "commit"), (2, "transform"), (2, "commit")])
def test_a_killed_scan_begins_again_where_the_last_one_ended(
    trial: PlanWorld, feed: Feed, wave: int, phase: str
) -> None:
    trial.build(source=Cursor(feed.read, ordered=True))
    for n in range(4):
        feed.add(f"d{n}", raw_size="x" * 1000)
    with pytest.raises(Interrupted):
        trial.run(observer=Until(wave, phase), wave_bytes=2000)
    assert memory(trial) is None
    trial.run(wave_bytes=2000)
    assert (trial.arrived(), position(trial)) == ({f"d{n}": 1 for n in range(4)}, 4)
    assert feed.asked == [None, None]


def test_a_reader_that_fails_keeps_what_came_before(trial: PlanWorld, feed: Feed) -> None:
    trial.build(source=Cursor(feed.read))
    feed.add("a", n=1)
    trial.run()
    feed.add("b", n=1)
    feed.add("x", **{"raise": True})
    summary = trial.run()
    assert (trial.arrived(), position(trial), summary.exit) == ({"a": 1, "b": 1}, 1, 4)
    assert any("the server hung up" in message for message in summary.messages)


def test_an_ordered_reader_that_fails_moves_its_cursor(trial: PlanWorld, feed: Feed) -> None:
    trial.build(source=Cursor(feed.read, ordered=True))
    feed.add("a", n=1)
    feed.add("b", n=1)
    feed.add("x", **{"raise": True})
    trial.run()
    assert (trial.arrived(), position(trial)) == ({"a": 1, "b": 1}, 2)


def failing_step(place: Path, error: Callable[[str], Exception]) -> Callable[[Document], Document]:
    def work(doc: Document) -> Document:
        if (place / f"fails-{doc.id}").exists():
            raise error("not yet")
        return doc

    return work


@pytest.mark.rule("cursor.kept")
@pytest.mark.parametrize("error", [TransientError, Unavailable])
def test_a_document_that_waits_is_not_asked_for_again(
    trial: PlanWorld, feed: Feed, place: Path, error: Callable[[str], Exception]
) -> None:
    trial.build(failing_step(place, error), source=Cursor(feed.read))
    for name in "abc":
        feed.add(name, n=1)
    (place / "fails-b").touch()
    assert trial.run(wait=0).exit == 4
    assert (trial.arrived()["b"], position(trial), len(kept(trial))) == (0, 3, 1)
    trial.run(wait=0)
    assert (trial.arrived()["b"], len(kept(trial))) == (0, 1)
    (place / "fails-b").unlink()
    trial.retry()
    assert trial.run().exit == 0
    assert trial.arrived() == {"a": 1, "b": 1, "c": 1}
    assert [line["fields"]["n"] for line in trial.out().lines()] == [1, 1, 1]
    assert not set(feed.asked) & {0, 1, 2}
    trial.run()
    trial.run()
    assert kept(trial) == []


def test_a_document_that_has_failed_can_be_retried(trial: PlanWorld, feed: Feed, place: Path) -> None:
    trial.build(failing_step(place, PermanentError), source=Cursor(feed.read))
    feed.add("a", n=1)
    feed.add("b", n=1)
    (place / "fails-b").touch()
    assert trial.run().exit == 3
    feed.add("c", n=1)
    assert trial.run().exit == 3
    (place / "fails-b").unlink()
    trial.retry()
    assert trial.run().exit == 0
    assert trial.arrived() == {"a": 1, "b": 1, "c": 1}


def test_a_newer_version_replaces_the_kept_one(trial: PlanWorld, feed: Feed, place: Path) -> None:
    trial.build(failing_step(place, TransientError), source=Cursor(feed.read))
    feed.add("b", n=1)
    (place / "fails-b").touch()
    trial.run(wait=0)
    feed.add("b", n=2)
    trial.run(wait=0)
    (place / "fails-b").unlink()
    trial.retry()
    trial.run()
    assert [line["fields"]["n"] for line in trial.out().lines()] == [2]
    trial.run()
    assert trial.arrived() == {"b": 1}


def test_a_kept_document_that_was_deleted(trial: PlanWorld, feed: Feed, place: Path) -> None:
    trial.build(failing_step(place, TransientError), source=Cursor(feed.read))
    feed.add("b", n=1)
    (place / "fails-b").touch()
    trial.run(wait=0)
    feed.add("b")
    assert trial.run().exit == 0
    (place / "fails-b").unlink()
    trial.run()
    assert (trial.arrived(), kept(trial)) == ({}, [])


def test_deletes_that_are_not_said_are_found_by_reading_everything(trial: PlanWorld, place: Path) -> None:
    there = place / "there"
    there.write_text("a b c d e f g h i j k")

    def read(cursor: int | None) -> Iterator[tuple[Any, Any]]:
        for name in there.read_text().split() if cursor is None else []:
            yield {"id": name}, 1

    trial.build(source=Cursor(read, relist="7d"))
    trial.run()
    there.write_text("a b c d e f g h i j")
    trial.run()
    assert trial.counts() == {"delivered": 11}
    trial.build(source=Cursor(read, relist=0))
    trial.run()
    assert trial.counts() == {"delivered": 10, "deleted": 1}
    there.write_text("a")
    assert trial.run().exit == 2
    assert trial.counts() == {"delivered": 10, "deleted": 1}


@pytest.mark.rule("source.unseen-deletes")
def test_status_says_that_a_source_does_not_see_deletes(
    trial: PlanWorld, feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of the last scan, also for who has only the state: the dashboard."""
    feed.add("a", n=1)
    said = {"docs": "only Document.deleted() deletes; relist= finds what is gone without it."}
    trial.build(source=Cursor(feed.read)).run()
    assert trial.status()["unseen_deletes"] == said
    assert account.status(trial.root, recorded_plan(trial.root))["unseen_deletes"] == said
    print_unseen_deletes(trial.status())
    assert f"docs does not see every delete: {said['docs']}" in capsys.readouterr().out
    trial.build(source=Cursor(feed.read, relist="7d")).run()
    assert "unseen_deletes" not in trial.status()


def test_a_document_that_waits_is_gone_when_everything_is_read_without_it(trial: PlanWorld, place: Path) -> None:
    there = place / "there"
    there.write_text("a b")

    def read(cursor: int | None) -> Iterator[tuple[Any, Any]]:
        for name in there.read_text().split():
            yield {"id": name}, 1

    (place / "fails-b").touch()
    trial.build(failing_step(place, TransientError), source=Cursor(read, relist=0, max_deleted=1.0))
    trial.run(wait=0)
    there.write_text("a")
    trial.run(wait=0)
    (place / "fails-b").unlink()
    trial.retry()
    assert trial.run().exit == 0
    assert trial.arrived() == {"a": 1}


def test_more_documents_wait_than_can_be_named(
    trial: PlanWorld, feed: Feed, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their content was kept: they are tried again, and the API is not asked for them."""
    monkeypatch.setattr(limits, "NAMED_DOCUMENTS", 3)

    def fails_once(doc: Document) -> Document:
        tried = place / f"tried-{doc.id}"
        if not tried.exists():
            tried.touch()
            raise TransientError("not yet")
        return doc

    trial.build(fails_once, source=Cursor(feed.read))
    for n in range(7):
        feed.add(f"d{n}", n=1)
    assert trial.run().exit == 0
    assert (trial.arrived(), feed.asked) == ({f"d{n}": 1 for n in range(7)}, [None])


class Shelves(Source):
    """Documents of several shelves; a listing is complete for some of them."""

    lists_all = False

    def __init__(self, folder: Path) -> None:
        super().__init__(prefix="s/", max_deleted=0.5)
        self._folder = folder

    def partitions_after(self, bookmarks: Any) -> list[Any]:
        return [bookmarks, "nothing"]

    def listing(self, partition: Any) -> Iterator[Any]:
        if partition == "nothing":
            return
        for line in (self._folder / "shelves").read_text().split():
            yield Document.deleted(line[1:]) if line.startswith("-") else Document(line, n=1)
        yield Complete("a/", Bookmark("a", partition.get("a", 0) + 1))


def test_what_a_listing_names_completely_by_the_beginning_of_ids(trial: PlanWorld, place: Path) -> None:
    def bookmark() -> Any:
        state = State(trial.root, trial.plan)
        state.open_for_reading()
        return load_memory(state, "docs").bookmarks.get("a")

    shelves = place / "shelves"
    shelves.write_text(" ".join([*(f"a/{n}" for n in range(4)), "a", *(f"b/{n}" for n in range(20))]))
    trial.build(source=Shelves(place)).run()
    assert (trial.counts(), bookmark()) == ({"delivered": 25}, 1)
    shelves.write_text("a/0 a/1 a/2 -b/1 -b/2")
    assert trial.run().exit == 0
    assert (trial.counts(), bookmark()) == ({"delivered": 22, "deleted": 3}, 2)
    shelves.write_text("-b/3")  # three of three are missing: they wait, and so does the bookmark
    assert trial.run().exit == 2
    assert (trial.counts(), bookmark()) == ({"delivered": 21, "deleted": 4}, 2)
    shelves.write_text("a/1 a/2 -b/4")
    assert trial.run().exit == 0
    assert (trial.counts(), bookmark()) == ({"delivered": 19, "deleted": 6}, 3)


def test_an_expired_cursor_begins_again_and_says_so(trial: PlanWorld, place: Path) -> None:
    def read(cursor: str | None) -> Iterator[tuple[Any, Any]]:
        if cursor == "t1" and (place / "expired").exists():
            raise CursorExpired("410 Gone")
        yield {"id": "a"}, "t1"
        if (place / "expired").exists():
            yield {"id": "b"}, "t2"

    trial.build(source=Cursor(read, ordered=True))
    trial.run()
    (place / "expired").touch()
    summary = trial.run()
    assert (trial.arrived(), position(trial), summary.exit) == ({"a": 1, "b": 1}, "t2", 0)
    assert "source docs: the cursor 't1' has expired (410 Gone): everything is read from the start" in summary.messages


class Pages(Source):
    """Pages with a number that says whether one has changed, read by conditional requests."""

    counts_raw = False

    def __init__(self, folder: Path, *, remembers: bool = True) -> None:
        super().__init__(detect="fingerprint")
        self._folder = folder
        self._remembers = remembers

    def partitions_after(self, bookmarks: Any) -> list[Any]:
        return [bookmarks]

    def listing(self, partition: Any) -> Iterator[Any]:
        for path in sorted(self._folder.glob("*.page")):
            yield Listed(path.stem, 1)
        if self._remembers:
            yield Bookmark("host", {"scans": partition.get("host", {"scans": 0})["scans"] + 1})

    def read(self, listed: Listed) -> Any:
        tag, text = (self._folder / f"{listed.id}.page").read_text().split(" ", 1)
        with (self._folder / "read").open("a") as file:
            file.write(f"{listed.id} {listed.known or '-'}\n")
        if listed.known == tag:
            return Unchanged()
        return Fetched(Document(listed.id, raw=f"<nonce {tag}>{text}".encode(), text=text), tag)


def test_the_other_side_says_what_is_unchanged(trial: PlanWorld, place: Path) -> None:
    (place / "a.page").write_text("v1 hello")
    trial.build(source=Pages(place))
    trial.run()
    trial.run()
    (place / "a.page").write_text("v2 hello")  # only its markup is another
    trial.run()
    (place / "a.page").write_text("v3 bye")
    trial.run()
    trial.run()
    assert (place / "read").read_text().splitlines() == ["a -", "a v1", "a v1", "a v2", "a v3"]
    assert trial.arrived() == {"a": 2}
    state = State(trial.root, trial.plan)
    state.open_for_reading()
    assert load_memory(state, "docs").bookmarks == {"host": {"scans": 5}}


def test_a_retry_reads_without_a_condition(trial: PlanWorld, place: Path) -> None:
    (place / "a.page").write_text("v1 hello")
    trial.build(failing_step(place, TransientError), source=Pages(place))
    trial.run()
    (place / "a.page").write_text("v2 bye")
    (place / "fails-a").touch()
    trial.run(wait=0)
    (place / "fails-a").unlink()
    trial.retry()
    assert trial.run().exit == 0
    assert trial.arrived() == {"a": 2}
    assert (place / "read").read_text().splitlines()[-2:][0] == "a -"


def test_unchanged_without_a_question_is_a_fault_of_the_source(trial: PlanWorld, place: Path) -> None:
    class Wrong(Pages):
        def read(self, listed: Listed) -> Any:
            return Unchanged()

    (place / "a.page").write_text("v1 hello")
    trial.build(source=Wrong(place))
    trial.run(wait=0)
    [delivery] = trial.deliveries()
    assert "its source says that it is unchanged, but its content is needed" in delivery["message"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("x" * (2 << 20), "the bookmark of host has 2.0 MiB, more than 1.0 MiB"),
        (object(), "the bookmark of host cannot be stored"),
    ],
    ids=["large", "no JSON"],
)
def test_a_bookmark_that_cannot_be_stored(trial: PlanWorld, place: Path, value: Any, why: str) -> None:
    class Marking(Pages):
        def listing(self, partition: Any) -> Iterator[Any]:
            yield Listed("a", 1)
            yield Bookmark("host", value)

    (place / "a.page").write_text("v1 hello")
    summary = trial.build(source=Marking(place)).run(wait=0)
    assert (summary.exit, trial.arrived()) == (4, {"a": 1})
    assert any(why in message for message in summary.messages), summary.messages


def test_what_a_listing_says_that_is_usually_not_complete(trial: PlanWorld, place: Path) -> None:
    class Partly(Pages):
        lists_all = False

        def listing(self, partition: Any) -> Iterator[Any]:
            yield Note("hello from the other side")
            yield from super().listing(partition)
            if (place / "complete").exists():
                yield Complete()

    for n in range(3):
        (place / f"p{n}.page").write_text("v1 x")
    trial.build(source=Partly(place), max_deleted=1.0)
    summary = trial.run()
    assert "source docs: hello from the other side" in summary.messages
    (place / "p0.page").unlink()
    trial.run()
    assert trial.counts() == {"delivered": 3}
    (place / "complete").touch()
    trial.run()
    assert trial.counts() == {"delivered": 2, "deleted": 1}


def test_a_preview_sees_what_a_run_would_and_moves_nothing(trial: PlanWorld, feed: Feed, place: Path) -> None:
    trial.build(failing_step(place, TransientError), source=Cursor(feed.read))
    feed.add("a", n=1)
    feed.add("b", n=1)
    (place / "fails-b").touch()
    trial.run(wait=0)
    feed.add("c", n=1)
    (place / "fails-b").unlink()
    found = [previewed(trial.plan, trial.state), previewed(trial.plan, trial.state, document="b")]
    assert [{each["document"]: each["reason"] for each in shown.documents} for shown in found] == [
        {"c": "new"},
        {"b": "later"},  # its content is in the state
    ]
    assert position(trial) == 2


def test_a_damaged_memory_is_named(trial: PlanWorld, feed: Feed) -> None:
    trial.build(source=Cursor(feed.read))
    feed.add("a", n=1)
    trial.run()
    [path] = (trial.root / "sources" / "docs").glob("*.json")
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert [str(path) in str(finding) for finding in fsck(trial.plan, state=trial.state)] == [True]
    with pytest.raises(Exception, match=r"sources/docs/.*checksum"):
        trial.run(checked=False)


def test_a_new_version_of_the_plan_goes_on_at_the_cursor(trial: PlanWorld, feed: Feed, place: Path) -> None:
    trial.build(failing_step(place, TransientError), source=Cursor(feed.read))
    feed.add("a", n=1)
    feed.add("b", n=1)
    (place / "fails-b").touch()
    trial.run(wait=0)
    newer = trial.make_plan(failing_step(place, TransientError), source=Cursor(feed.read))
    newer.version = 2
    (place / "fails-b").unlink()
    feed.add("c", n=1)
    trial.run(newer, from_version=1)
    assert trial.arrived() == {"a": 1, "b": 1, "c": 1}
    assert feed.asked[-1] == 2


@pytest.mark.parametrize(
    "point",
    [
        *(
            pytest.param(f"{name}:{n}", marks=[] if (name, n) in OFTEN else [pytest.mark.slow])
            for name, last in OWN_POINTS.items()
            for n in range(1, last + 1)
        ),
        *(
            pytest.param(f"{name}:{n}", marks=pytest.mark.slow)
            for name in POINTS
            for n in range(
                1, 6 if name.startswith("scan.") else 7
            )  # five runs; what waits is due in a sixth scan, or not
        ),
    ],
)
def test_a_run_with_a_feed_may_be_killed(place: Path, point: str) -> None:
    killed = run_program("tests.support.feed_story", place, point=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_program("tests.support.feed_story", place)
    assert json.loads(done.stdout or "null") == [0, True, True, []], done.stderr
