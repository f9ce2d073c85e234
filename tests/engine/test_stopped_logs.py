"""A plan that has stopped before an entry that failed for good: who says so, and how it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.operations import Retried, retry, skip
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Log, Queue
from ferryman.state.state import state_root
from tests.engine.test_logs_versions import build_version
from tests.support.logs import ChangeFeed, Topic, read_log
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch


class Picky:
    """A step that raises for some numbers, and counts its calls."""

    __name__ = "picky"

    def __init__(self, folder: Path, *numbers: int, error: Exception | None = None) -> None:
        self.calls = folder / "calls"
        self._broken = folder / "broken"
        self._error = error or PermanentError("broken")
        self.breaks(*numbers)

    def breaks(self, *numbers: int) -> None:
        """From now on it raises for these numbers."""
        self._broken.write_text(" ".join(map(str, numbers)))

    def __call__(self, doc: Document) -> Document:
        with self.calls.open("a") as calls:
            calls.write(f"{doc['n']}\n")
        if str(doc["n"]) in self._broken.read_text().split():
            raise self._error
        return doc

    def count(self, number: int) -> int:
        return self.calls.read_text().splitlines().count(str(number))


def to_queue(place: Path, log: Log | None, *steps: Any, **options: Any) -> PlanWorld:
    """Create a plan: a log → steps → queue ``out``."""
    return read_log(place, log, *steps, into=ToQueue("out", place), **options)


def stopped_world(place: Path, step: Picky | None = None, log: Log | None = None, **options: Any) -> PlanWorld:
    """Create a plan that has stopped before message 3 of four."""
    world = to_queue(place, log, step or Picky(place, 2), **options)
    if log is None:
        world.put(0, 1, 2, 3)
    assert world.run().exit == 4
    return world


def events(world: PlanWorld, document: str) -> list[tuple[str, str, str]]:
    return [(e["status"], e["destination"], e["message"] or "") for e in account.history(world.root, document)]


def stops(world: PlanWorld) -> list[dict[str, Any]]:
    return account.stopped(world.root, world.plan)


WHY = "step picky: PermanentError: broken"


@pytest.mark.rule("log.stop-shown")
def test_status_deliveries_and_history_show_it(place: Path) -> None:
    """And the counts of deliveries, which it is none of, are as without it."""
    world = stopped_world(place)
    found = world.status()
    [stop] = account.activity(world.root, world.plan, found)["stopped"]
    assert (stop["source"], stop["document"], stop["attempt"]) == ("log", "in/3", 1)
    assert stop["reason"].startswith(WHY)
    assert stop["since"]
    assert found["balanced"]
    assert found["destinations"]["out"]["pending"] == 0
    assert found["sources"]["log"] == {"positions": {"in": 3}, "read": 2, "lag": 2}
    [first, *others] = world.deliveries()
    assert (first["document"], first["source"], first["destination"], first["status"]) == ("in/3", "log", "", "stopped")
    assert first["message"].startswith(f"the plan stops before it: {WHY}")
    assert [each["document"] for each in others] == ["in/1", "in/2"]
    [(status, destination, message)] = events(world, "in/3")
    assert (status, destination) == ("ERROR", "")
    assert message.startswith(f"the plan stops before it: {WHY}")


@pytest.mark.rule("log.stop-shown")
@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, True),
        ({"status": "stopped"}, True),
        ({"status": "STOPPED", "source": "log"}, True),
        ({"family": "in/3"}, True),
        ({"family": "in/1"}, False),
        ({"status": "pending"}, False),
        ({"destination": "out"}, False),
    ],
)
def test_filters_of_deliveries_select_it(place: Path, filters: dict[str, str], found: bool) -> None:
    world = stopped_world(place)
    listed = [[d["document"] for d in world.deliveries(limit=limit, **filters)] for limit in (None, 50)]
    assert listed[0] == listed[1]
    assert ("in/3" in listed[0]) == found
    assert account.count_deliveries(world.root, plan=world.plan, **filters) == len(listed[0])
    assert len(world.deliveries(limit=1, **filters)) == min(1, len(listed[0]))


@pytest.mark.rule("log.stop-shown")
def test_the_same_failure_is_recorded_once_and_another_one_again(place: Path) -> None:
    step = Picky(place, 2)
    world = stopped_world(place, step)
    waves = world.status()["waves"]
    assert world.run().exit == 4
    assert step.count(2) == 2
    assert world.status()["waves"] == waves, "nothing has changed, so nothing is committed"
    step = Picky(place, 2, error=PermanentError("worse"))
    other = to_queue(place, None, step)
    assert other.run(accept_changes=True).exit == 4
    assert ["worse" in message for _, _, message in events(other, "in/3")] == [False, True]
    [stop] = stops(other)
    assert "worse" in stop["reason"]


@pytest.mark.rule("log.stop-shown")
def test_it_is_forgotten_when_the_plan_gets_past_it(place: Path) -> None:
    step = Picky(place, 2)
    world = stopped_world(place, step)
    step.breaks()
    assert world.run().exit == 0
    assert world.values() == [0, 1, 2, 3]
    assert stops(world) == []
    assert [d["status"] for d in world.deliveries()] == ["INDEXED"] * 4
    assert [status for status, *_ in events(world, "in/3")] == ["ERROR", "INDEXED"]
    assert world.status()["balanced"]


def test_it_is_forgotten_when_its_reader_is_moved(place: Path) -> None:
    """Also when nothing is left to read."""
    world = stopped_world(place, Picky(place, 3))
    [reader] = world.into.readers()
    world.into.tailer(reader).to_end()
    assert world.run().exit == 0
    assert stops(world) == []


@pytest.mark.rule("log.stop-shown")
def test_the_next_entry_that_stops_the_plan_is_shown_in_its_place(place: Path) -> None:
    step = Picky(place, 2)
    world = stopped_world(place, step)
    step.breaks(3)
    assert world.run().exit == 4
    assert [stop["document"] for stop in stops(world)] == ["in/4"]
    assert world.values() == [0, 1, 2]


@pytest.mark.rule("log.stop-retry")
def test_retry_gives_it_its_attempts_again(place: Path) -> None:
    """An unforeseen error is tried three times; then each run tries it once more, and after ``retry`` three times."""
    step = Picky(place, 2, error=ValueError("what is that"))
    world = stopped_world(place, step)
    assert step.count(2) == 3
    world.run()
    assert step.count(2) == 4
    done = retry(world.plan, state=world.state, why="it is mended")
    assert (done.count, done.queued) == (1, False)
    assert events(world, "in/3")[-1][:2] == ("RESTART", "")
    assert "it is mended" in events(world, "in/3")[-1][2]
    assert len(stops(world)) == 1, "until the plan gets past it"
    assert world.run().exit == 4
    assert step.count(2) == 7
    assert events(world, "in/3")[-1][0] == "ERROR"
    step.breaks()
    assert retry(world.plan, state=world.state, document="in/3").count == 1
    assert world.run().exit == 0
    assert world.values() == [0, 1, 2, 3]


@pytest.mark.rule("log.stop-retry")
@pytest.mark.parametrize(
    "filters", [{"document": "in/4"}, {"source": "other"}, {"destination": "out"}, {"status": "failed"}]
)
def test_filters_of_retry_leave_it_alone(place: Path, filters: dict[str, str]) -> None:
    world = stopped_world(place)
    assert retry(world.plan, state=world.state, **filters).count == 0  # type: ignore[arg-type]
    assert len(events(world, "in/3")) == 1


@pytest.mark.rule("log.stop-skip")
@pytest.mark.parametrize("end", ["it fails again", "it goes through"])
def test_skip_lets_the_plan_go_on_behind_it(place: Path, end: str) -> None:
    """It is tried once more. What fails again counts, and can be retried later."""
    step = Picky(place, 2)
    world = stopped_world(place, step)
    assert skip(world.plan, state=world.state, why="not worth it").count == 1
    if end == "it goes through":
        step.breaks()
        assert world.run().exit == 0
        assert world.values() == [0, 1, 2, 3]
        return
    summary = world.run()
    assert (summary.exit, summary.rejected + summary.failed) == (3, 1)
    assert world.values() == [0, 1, 3]
    assert stops(world) == []
    assert world.status()["balanced"]
    step.breaks()
    assert retry(world.plan, state=world.state).count == 1
    assert world.run().exit == 0
    assert world.values() == [0, 1, 3, 2]


@pytest.mark.rule("log.stop-skip")
def test_skip_is_about_this_entry_alone(place: Path) -> None:
    world = stopped_world(place, Picky(place, 2, 3))
    skip(world.plan, state=world.state, document="in/3")
    assert world.run().exit == 4
    assert [stop["document"] for stop in stops(world)] == ["in/4"]
    assert skip(world.plan, state=world.state, document="in/3").count == 0


class SkipsMeanwhile(Watch):
    """An operator, who has the plan pass what it stops before, while a wave is transformed."""

    def __init__(self, world: PlanWorld) -> None:
        super().__init__()
        self._world = world
        self.said: list[Retried] = []

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if name == "transform" and not self.said:
            self.said.append(skip(self._world.plan, state=self._world.state))


@pytest.mark.rule("log.stop-skip")
def test_a_skip_without_an_id_is_about_the_entry_that_the_plan_stops_before_now(place: Path) -> None:
    """A run that gets past it, and stops before another one, does not apply the command to that."""
    step = Picky(place, 2)
    world = stopped_world(place, step)
    step.breaks(3)
    operator = SkipsMeanwhile(world)
    assert world.run(observer=operator).exit == 4
    assert operator.said == [Retried(None, queued=True)]
    assert [stop["document"] for stop in stops(world)] == ["in/4"]
    assert world.run().exit == 4
    assert [stop["document"] for stop in stops(world)] == ["in/4"]
    assert world.values() == [0, 1, 2]


@pytest.mark.rule("log.stop-skip")
def test_a_skip_that_nothing_stops_is_not_queued_for_what_will(place: Path) -> None:
    step = Picky(place)
    world = to_queue(place, None, step)
    world.put(0, 1, 2, 3)
    step.breaks(2)
    operator = SkipsMeanwhile(world)
    assert world.run(observer=operator).exit == 4
    assert operator.said == [Retried(0, queued=False)]
    assert world.run().exit == 4
    assert world.values() == [0, 1]


@pytest.mark.rule("log.stop-skip")
@pytest.mark.parametrize("phase", ["deliver", "settle"])
def test_a_skip_finds_a_stop_whose_wave_is_not_settled(place: Path, phase: str) -> None:
    """The next run settles the wave, and applies the command before it reads."""
    world = to_queue(place, None, Picky(place, 2))
    world.put(0, 1, 2, 3)
    with pytest.raises(Interrupted):
        world.run(observer=Until(1, phase))
    assert skip(world.plan, state=world.state) == Retried(None, queued=True)
    assert world.run().exit == 3
    assert world.values() == [0, 1, 3]


@pytest.mark.rule("log.stop-skip")
def test_skip_holds_while_the_entry_waits(place: Path) -> None:
    """A transient error is waited for, as without the command; the permanent one after it does not stop the plan."""
    world = stopped_world(place, Picky(place, 2))
    skip(world.plan, state=world.state)
    waiting = to_queue(place, None, Picky(place, 2, error=TransientError("not now")), backoff=3600)
    assert waiting.run(accept_changes=True).exit == 4
    broken = to_queue(place, None, Picky(place, 2))
    assert broken.run(accept_changes=True).exit == 3
    assert broken.values() == [0, 1, 3]


@pytest.mark.rule("log.stop-shown")
def test_an_entry_that_waits_again_does_not_stop_the_plan(place: Path) -> None:
    stopped_world(place, Picky(place, 2))
    waiting = to_queue(place, None, Picky(place, 2, error=TransientError("not now")), backoff=3600)
    assert waiting.run(accept_changes=True).exit == 4
    assert stops(waiting) == []


@pytest.mark.rule("log.stop-shown")
def test_one_partition_of_several_has_stopped(place: Path) -> None:
    """And an entry that the log itself refuses stops it too."""
    topic = Topic(place / "topic")
    topic.publish("a", {"n": 0}, {"n": 2}, {"n": 4})
    topic.publish("b", {"n": 1}, {"n": 3})
    topic.publish("c", {"n": 5}, "no object", {"n": 6})
    world = stopped_world(place, Picky(place, 2), topic)
    assert sorted(stop["document"] for stop in stops(world)) == ["a/1", "c/1"]
    assert sorted(world.values()) == [0, 1, 3, 5]
    assert skip(world.plan, state=world.state).count == 2
    assert world.run().exit == 3
    assert sorted(world.values()) == [0, 1, 3, 4, 5, 6]


@pytest.mark.rule("log.stop-skip")
def test_entries_that_share_a_place_are_told_apart(place: Path) -> None:
    feed = ChangeFeed(place / "feed")
    feed.commit({"n": 0})
    feed.commit({"n": 1}, {"n": 2}, {"n": 3}, {"n": 4})
    world = stopped_world(place, Picky(place, 2, 4), feed)
    assert [stop["document"] for stop in stops(world)] == ["1/1"]
    skip(world.plan, state=world.state)
    world.run()
    assert [stop["document"] for stop in stops(world)] == ["1/3"]
    assert world.values() == [0]


@pytest.mark.rule("log.stop-shown")
def test_a_new_version_of_the_plan_finds_out_itself(place: Path) -> None:
    """The place goes along; why an older version stopped there stays in the older state, and so does a skip."""
    versions = PlanWorld(place, build_version)
    queue = DurableQueue("in", place)
    queue.append([{"n": n} for n in range(4)])
    older = versions.make_plan(1, Picky(place, 2), log=Queue("in", place))
    assert versions.run(older).exit == 4
    skip(older, state=versions.state)
    newer = versions.make_plan(2, Picky(place, 2), log=Queue("in", place))
    assert versions.run(newer, 1).exit == 4
    root = state_root(newer, versions.state)
    assert [stop["document"] for stop in account.stopped(root, newer)] == ["in/3"]
    mended = versions.make_plan(3, Picky(place), log=Queue("in", place))
    assert versions.run(mended, 2).exit == 0
    assert account.stopped(state_root(mended, versions.state), mended) == []
    assert versions.out().arrived() == [f"in/{n}" for n in range(1, 5)]
