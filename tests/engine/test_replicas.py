"""A state that is replicated by its changes: kept elsewhere as it is, whatever comes between."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, limits
from ferryman.destinations.base import Delivery, Destination, Effect, Outcome
from ferryman.errors import PlanError, UsageError
from ferryman.plan import Plan
from ferryman.plan.flow import Flow
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Changes, Queue
from tests.support.keyed import Hurdle, count_words
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch, run_plan


class Copy(Destination):
    """Key -> [sequence, value] in a file, None for a deletion. What is older than what it has it refuses.

    Args:
        late: it takes what it got first once more, behind all that came later.
    """

    effect = Effect.IDEMPOTENT
    compares_sequences = True

    def __init__(self, folder: Path, *, late: bool = False) -> None:
        self.path, self.late = str(folder / "copy.json"), late

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        path = Path(self.path)
        held: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": {}, "first": None}
        rows = [[d.id, d.sequence, None if d.operation == "delete" else d.fields["value"]] for d in chunk]
        held["first"] = held["first"] or rows
        for id, sequence, value in [*rows, *(held["first"] if self.late else [])]:
            if sequence > held["rows"].get(id, [0])[0]:
                held["rows"][id] = [sequence, value]
        path.write_text(json.dumps(held))
        return [Outcome.ok()] * len(chunk)

    def values(self) -> dict[str, Any]:
        path = Path(self.path)
        rows = json.loads(path.read_text())["rows"] if path.exists() else {}
        return {id: value for id, (_, value) in rows.items() if value is not None}


def turns(key: str, state: int | None, documents: list[Document]) -> tuple[int | None, None]:
    """How many documents of a key came; one with ``out`` removes its state."""
    for doc in documents:
        state = None if doc.get("out") else (state or 0) + 1
    return state, None


class Replica(PlanWorld):
    """Plan ``words`` keeps a state, plan ``replica`` copies it."""

    def __init__(self, folder: Path, *, late: bool = False) -> None:
        super().__init__(folder)
        self.words = count_words(folder, turns)
        self.copy = Copy(folder, late=late)
        plan = Plan("replica", version=1)
        changes = plan.source("changes", Changes(self.words.plan, "counts", self.state))
        changes.destination("copy", self.copy, batch=5)
        self.plan = plan

    def feed(self, *words: str, out: bool = False) -> None:
        """Change the state that is copied."""
        self.words.put(*words, out=out)
        assert self.words.run().exit == 0


@pytest.mark.rule("changes.replica")
def test_a_copy_is_what_the_state_is(place: Path) -> None:
    """After the first run, which reads what is there, and after each later one, which reads what has changed."""
    chance, replica = random.Random(5), Replica(place)
    for turn in range(3):
        for _ in range(2):
            replica.feed(*(f"w{chance.randrange(40)}" for _ in range(15)))
            replica.feed(*{f"w{chance.randrange(40)}" for _ in range(5)}, out=True)
        summary = replica.run()
        assert (summary.exit, replica.copy.values()) == (0, replica.words.states()), turn
        status = replica.status()
        assert (status["sources"]["changes"]["lag"], status["balanced"]) == (0, True)
    assert replica.run().waves == 0


@pytest.mark.rule("changes.replica")
def test_a_key_comes_once_as_it_is_now(place: Path) -> None:
    replica = Replica(place)
    for _ in range(5):
        replica.feed("a", "b")
    assert replica.run().delivered == 2
    replica.feed("a")
    assert replica.status()["sources"]["changes"]["lag"] == 1
    assert replica.run().delivered == 1
    replica.feed("a", out=True)
    assert replica.run().deleted == 1
    assert replica.copy.values() == {"b": 5}


@pytest.mark.rule("changes.late")
def test_a_late_change_does_not_bring_back_what_was_deleted(place: Path) -> None:
    """The destination takes each first change once more, after the deletion."""
    replica = Replica(place, late=True)
    replica.feed("a", "b")
    replica.run()
    replica.feed("a", out=True)
    replica.run()
    replica.feed("b")
    replica.run()
    assert replica.copy.values() == {"b": 2}


@pytest.mark.rule("changes.merged")
def test_no_deletion_is_lost_when_files_are_merged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that comes late gets what was deleted meanwhile; once it has, nothing is kept of it."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "OUTDATED_SHARE", 0.1)
    replica = Replica(place)
    replica.feed("a", "b", "c")
    replica.run()
    replica.feed("a", out=True)
    for turn in range(3):
        replica.feed("b", f"d{turn}")
    assert replica.run().deleted == 1
    assert replica.copy.values() == replica.words.states()
    for _ in range(2):
        replica.feed("b", "c")
        replica.run()
    held = replica.words.plan.state("counts", place / "state")
    assert held.get("a") is None
    assert replica.copy.values() == replica.words.states()


@pytest.mark.rule("changes.merged")
def test_a_reader_that_was_forgotten_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions that it has not read are gone: it stops, and says what to do."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "OUTDATED_SHARE", 0.1)
    replica = Replica(place)
    replica.feed("a", "b", "c")
    replica.run()
    shutil.rmtree(replica.words.root / "changes")
    replica.feed("a", out=True)
    replica.feed("a")
    replica.feed("b", "c", "a", out=True)
    watch = Watch()
    assert replica.run(observer=watch).exit == 4
    assert any("deletions up to wave" in m and "another version" in m for m in watch.messages), watch.messages


@pytest.mark.rule("changes.merged")
def test_a_reader_that_was_killed_before_it_said_where_it_stands(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has had the keys, and nobody knows: the deletions that come are kept all the same."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "OUTDATED_SHARE", 0.1)
    replica = Replica(place)
    replica.feed("a", "b", "c")
    with monkeypatch.context() as patched:
        patched.setattr(Changes, "note", lambda *_: None)
        assert replica.run().delivered == 3
    replica.feed("a", out=True)
    for turn in range(3):
        replica.feed("b", f"d{turn}")
    assert replica.run().deleted == 1
    assert replica.copy.values() == replica.words.states()


@pytest.mark.rule("changes.merged")
def test_who_begins_needs_nothing_that_was_dropped_before(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first read takes many waves, each from where the one before came to."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "OUTDATED_SHARE", 0.1)
    monkeypatch.setattr(limits, "TASK_DOCUMENTS", 1)
    replica = Replica(place)
    for turn in range(4):
        replica.feed("a", f"b{turn}", f"c{turn}")
        replica.feed("a", f"b{turn}", out=True)
    for turn in range(6):
        with contextlib.suppress(Interrupted):
            replica.run(wave_bytes=1, observer=Until(turn + 1, "deliver"), checked=False)
    assert replica.run(wave_bytes=1).exit == 0
    assert replica.copy.values() == replica.words.states()


@pytest.mark.rule("changes.again")
def test_a_state_that_was_made_again_is_read_from_its_beginning(place: Path) -> None:
    """And the copy has its values, though its waves begin at 1 again."""
    replica = Replica(place)
    replica.feed("a", "b")
    replica.run()
    shutil.rmtree(replica.words.root)
    watch = Watch()
    assert replica.run(observer=watch).waves == 0
    assert any("is not there any more" in m for m in watch.messages), watch.messages
    replica.words.into.delete()
    replica.words.into = DurableQueue("in", place)
    replica.feed("a", "a", "a")
    watch = Watch()
    assert replica.run(observer=watch).exit == 0
    assert any("made again" in m for m in watch.messages), watch.messages
    assert replica.copy.values() == {"a": 3, "b": 1}


def test_there_is_no_state_yet(place: Path) -> None:
    replica, watch = Replica(place), Watch()
    assert replica.run(observer=watch).waves == 0
    assert any("no state of counts" in m for m in watch.messages), watch.messages
    replica.feed("a")
    assert replica.run().delivered == 1


@pytest.mark.rule("changes.flow")
def test_a_flow_runs_the_keeper_first(place: Path) -> None:
    replica = Replica(place)
    flow = Flow("both", [replica.plan, replica.words.plan])
    assert flow.check() is not None
    assert [plan.name for plan in flow.order] == ["words", "replica"]
    [joint] = [j for j in flow.joints if j.reader == "replica"]
    assert (joint.writer, joint.destination) == ("words", "counts")


@pytest.mark.rule("changes.replica")
def test_a_change_that_waits_holds_those_behind_it(place: Path) -> None:
    """And once the step is mended, all go on; the key that waited has its newest state."""
    replica = Replica(place)
    plan = Plan("stepped", version=1)
    changes = plan.source("changes", Changes(replica.words.plan, "counts", place / "state"))
    changes.step("hurdle", Hurdle(place, "a")).destination("copy", replica.copy, backoff=0)
    replica.feed("a", "b", "c", "d")
    run_plan(plan, place / "state", wait=0)
    assert "a" not in replica.copy.values()
    replica.feed("a", "b")
    (place / "mended").touch()
    assert run_plan(plan, place / "state").exit == 0
    assert replica.copy.values() == replica.words.states()


def test_mistakes_are_refused(place: Path) -> None:
    words = count_words(place)
    with pytest.raises(UsageError, match="has: counts"):
        Changes(words.plan, "sums")
    with pytest.raises(UsageError, match="is not a Plan"):
        Changes("words", "counts")
    words.plan.source("own", Changes(words.plan, "counts")).destination("copy", Copy(place))
    with pytest.raises(PlanError, match="own: reads the changes of a state that this plan keeps"):
        words.plan.check()


def test_what_needs_plain_entries_is_refused(place: Path) -> None:
    """A join, and a plan at most once."""
    words = count_words(place)
    plan = Plan("joined", version=1)
    inputs = [plan.source("one", Changes(words.plan, "counts")), plan.source("two", Queue("two", place))]
    plan.alts("any", inputs).destination("copy", Copy(place))
    with pytest.raises(PlanError, match="one has deletions in it"):
        plan.check()
    once = Plan("once", version=1, strategy="at-most-once")
    once.source("changes", Changes(words.plan, "counts")).destination("copy", Copy(place))
    with pytest.raises(PlanError, match="without strategy="):
        once.check()


def test_keys_of_all_kinds(place: Path) -> None:
    """Long ones, with signs of their own meaning, and an empty one, which cannot be an id."""
    replica = Replica(place)
    keys = ["x" * 10_000, 'a "quoted" \\ key', "a#b", "zwei Wörter\n", "é" * 50, ""]
    replica.feed(*keys)
    summary = replica.run()
    assert (summary.exit, summary.dropped) == (0, 1)
    assert len(replica.copy.values()) == 5
    replica.feed(*keys, out=True)
    assert replica.run().deleted == 5
    assert replica.copy.values() == {}
