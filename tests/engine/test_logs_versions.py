"""A new version of a plan that reads logs continues where the older one stood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import crash
from ferryman.destinations import Delivery, Outcome
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine.migration import migrate
from ferryman.errors import PermanentError, TransientError, Unavailable
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Log, Memory, Queue, Source
from ferryman.sources.log import Positions
from ferryman.state.state import State, state_root
from tests.support.logs import Topic
from tests.support.plan_world import Interrupted, PlanWorld, Until


def build_version(world: PlanWorld, version: int, *steps: Any, **sources: Source) -> Plan:
    """Build a version: sources by their names → steps → ``out``."""
    plan = Plan("trial", version=version)
    nodes = [plan.source(name, source) for name, source in sources.items()]
    for step in steps:
        nodes = [node.step(f"{step.__name__}_{i}", step) for i, node in enumerate(nodes)]
    plan.destination("out", world.out(), after=nodes, backoff=0)
    return plan


@pytest.fixture
def versions(place: Path) -> PlanWorld:
    return PlanWorld(place, build_version)


@pytest.fixture
def queue(place: Path) -> DurableQueue:
    queue = DurableQueue("in", place)
    queue.append([{"n": n} for n in range(4)])
    return queue


@pytest.mark.rule("log.version")
def test_nothing_is_read_twice_or_left_out(versions: PlanWorld, queue: DurableQueue) -> None:
    versions.run(versions.make_plan(1, log=Queue("in", versions.folder)))
    queue.append([{"n": 4}])
    new = versions.make_plan(2, log=Queue("in", versions.folder))
    assert versions.run(new, 1).exit == 0
    assert versions.out().arrived() == [f"in/{n}" for n in range(1, 6)]
    assert versions.log(new) == {"positions": {"in": 6}, "read": 5, "lag": 0}
    queue.append([{"n": 5}])
    versions.run(new, 1)
    assert versions.out().arrived() == [f"in/{n}" for n in range(1, 7)]


def test_each_partition_has_its_position(versions: PlanWorld) -> None:
    topic = Topic(versions.folder / "topic")
    topic.publish("p0", {"n": 0}, {"n": 1})
    topic.publish("p1", {"n": 0})
    versions.run(versions.make_plan(1, log=topic))
    topic.publish("p0", {"n": 2})
    topic.publish("p2", {"n": 0})
    versions.run(versions.make_plan(2, log=topic), 1)
    assert sorted(versions.out().arrived()) == ["p0/0", "p0/1", "p0/2", "p1/0", "p2/0"]


def test_a_state_with_a_checkpoint(versions: PlanWorld, queue: DurableQueue) -> None:
    """Positions that stand only in the checkpoint of the older state's log are carried, too."""
    older = versions.make_plan(1, log=Queue("in", versions.folder))
    versions.run(older)
    with State.take(state_root(older, versions.state), older) as state:
        state.outbox.checkpoint()
        for _ in range(3):
            state.outbox.commit("merge")
    new = versions.make_plan(2, log=Queue("in", versions.folder))
    versions.run(new, 1)
    assert versions.out().arrived() == [f"in/{n}" for n in range(1, 5)]


class Away(Topic):
    """Cannot be asked while a file is there."""

    def end(self) -> Positions:
        if (self.folder / "away").exists():
            raise Unavailable("the broker is away")
        return super().end()


@pytest.mark.rule("log.version")
def test_a_log_that_is_away_is_read_on_later(versions: PlanWorld) -> None:
    """The older state knows where it stood."""
    topic = Away(versions.folder / "topic")
    topic.publish("p0", {"n": 0}, {"n": 1})
    versions.run(versions.make_plan(1, log=topic))
    topic.publish("p0", {"n": 2})
    (topic.folder / "away").touch()
    new = versions.make_plan(2, log=topic)
    assert versions.run(new, 1, wait=0).exit == 4
    (topic.folder / "away").unlink()
    assert versions.run(new).exit == 0
    assert versions.out().arrived() == ["p0/0", "p0/1", "p0/2"]


@pytest.mark.rule("log.version")
def test_a_source_that_was_renamed_or_removed_has_no_position(versions: PlanWorld, queue: DurableQueue) -> None:
    """It is another source: it begins at the beginning, and the run says so."""
    DurableQueue("other", versions.folder).append([{"n": 0}])
    both = {"log": Queue("in", versions.folder), "other": Queue("other", versions.folder)}
    versions.run(versions.make_plan(1, **both))
    versions.run(versions.make_plan(2, renamed=Queue("in", versions.folder)), 1)
    assert versions.out().arrived().count("in/1") == 2
    said = "source renamed: version 1 had no position in it; it is read from its beginning"
    assert said in versions.watch.messages
    versions.run(versions.make_plan(3, **both), 2)
    assert versions.out().arrived().count("other/1") == 2
    assert versions.out().arrived().count("in/1") == 3


def test_another_kind_of_source_of_the_same_name(versions: PlanWorld, queue: DurableQueue) -> None:
    versions.run(versions.make_plan(1, log=Memory([{"id": "a"}])))
    new = versions.make_plan(2, log=Queue("in", versions.folder))
    versions.run(new, 1, checked=False)  # "read" counts messages, and the ledger has the document of before
    assert versions.log(new)["read"] == 4
    assert versions.out().arrived() == ["a", *(f"in/{n}" for n in range(1, 5))]


def test_another_queue_of_the_same_source_is_read_from_its_beginning(versions: PlanWorld, queue: DurableQueue) -> None:
    versions.run(versions.make_plan(1, log=Queue("in", versions.folder)))
    DurableQueue("other", versions.folder).append([{"n": 0}, {"n": 1}])
    versions.run(versions.make_plan(2, log=Queue("other", versions.folder)), 1)
    assert versions.out().arrived()[4:] == ["other/1", "other/2"]


def test_a_wave_that_the_older_version_left_is_finished_first(versions: PlanWorld, queue: DurableQueue) -> None:
    older = versions.make_plan(1, log=Queue("in", versions.folder))
    with pytest.raises(Interrupted):
        versions.run(older, observer=Until(1, "deliver"), checked=False)
    versions.run(versions.make_plan(2, log=Queue("in", versions.folder)), 1)
    assert versions.out().arrived() == [f"in/{n}" for n in range(1, 5)]


class Failing:
    """A step that fails for a document while a file is not there."""

    __name__ = "failing"

    def __init__(self, folder: Path, error: Exception, id: str) -> None:
        self._mended = folder / "mended"
        self._error = error
        self._id = id

    def __call__(self, doc: Document) -> Document:
        if doc.id == self._id and not self._mended.exists():
            raise self._error
        return doc


@pytest.mark.parametrize("error", [TransientError("not now"), PermanentError("never")])
@pytest.mark.parametrize("ordered", [True, False])
def test_an_entry_that_waits_is_read_by_the_new_version(
    versions: PlanWorld, queue: DurableQueue, error: Exception, ordered: bool
) -> None:
    """Whether a position says that it is to be read, or a row."""

    def source() -> Log:
        return Queue("in", versions.folder, ordered=ordered, on_error="continue")

    versions.run(versions.make_plan(1, Failing(versions.folder, error, "in/2"), log=source()), wait=0)
    (versions.folder / "mended").touch()
    new = versions.make_plan(2, Failing(versions.folder, error, "in/2"), log=source())
    assert versions.run(new, 1).exit == 0
    assert sorted(versions.out().arrived()) == [f"in/{n}" for n in range(1, 5)]
    assert versions.log(new)["read"] == 4


@pytest.mark.rule("log.version")
def test_the_older_version_is_no_reader_any_more(versions: PlanWorld, queue: DurableQueue) -> None:
    """Else the queue would keep all messages for it."""
    versions.run(versions.make_plan(1, log=Queue("in", versions.folder)))
    versions.run(versions.make_plan(2, log=Queue("in", versions.folder)), 1)
    [(name, position)] = queue.readers().items()
    assert name.startswith("trial-v2.log-")
    assert position == 5


def test_a_renamed_source_leaves_no_reader(versions: PlanWorld, queue: DurableQueue) -> None:
    versions.run(versions.make_plan(1, log=Queue("in", versions.folder)))
    versions.run(versions.make_plan(2, renamed=Queue("in", versions.folder)), 1)
    assert [name.rpartition("-")[0] for name in queue.readers()] == ["trial-v2.renamed"]


@pytest.mark.parametrize("point", ["version.fenced", "version.built"])
def test_a_migration_that_is_killed_is_done_again(
    versions: PlanWorld, queue: DurableQueue, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.run(versions.make_plan(1, log=Queue("in", versions.folder)))
    new = versions.make_plan(2, log=Queue("in", versions.folder))
    new.freeze()

    def kill(at: str) -> None:
        if at == point:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(crash, "point", kill)
        with pytest.raises(Interrupted):
            migrate(state_root(new, versions.state), new, 1)
    queue.append([{"n": 4}])
    versions.run(new, 1)
    assert versions.out().arrived() == [f"in/{n}" for n in range(1, 6)]


class Unheard(ToQueue):
    """Appends, and is killed before its caller hears of it, as often as ``deaf`` says."""

    deaf = 1

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        found = super().write(chunk)
        if Unheard.deaf:
            Unheard.deaf -= 1
            raise ConnectionError("the answer was lost")
        return found


@pytest.mark.rule("queue.destination")
@pytest.mark.parametrize("versions_more", [1, 2])
def test_what_had_been_appended_is_not_appended_again(
    versions: PlanWorld, queue: DurableQueue, monkeypatch: pytest.MonkeyPatch, versions_more: int
) -> None:
    """Rows that were sent, and whose outcome nobody has recorded, go on with the new version, which knows them again;
    so does one that comes after that version."""
    monkeypatch.setattr(Unheard, "deaf", versions_more)

    def plan(version: int) -> Plan:
        plan = Plan("trial", version=version)
        source = plan.source("log", Queue("in", versions.folder))
        source.destination("out", Unheard("out", versions.folder), batch=3, backoff=0)
        return plan

    for version in range(1, versions_more + 1):
        versions.run(plan(version), version - 1 or None, wait=0)
    queue.append([{"n": 4}])
    assert versions.run(plan(versions_more + 1), versions_more).exit == 0
    assert [m.body["n"] for m in DurableQueue("out", versions.folder).read(limit=100)] == [0, 1, 2, 3, 4]
