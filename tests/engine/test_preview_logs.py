"""A preview of a plan that reads logs: the entries from where it stands. It moves nothing, and no log learns of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine.preview import Preview
from ferryman.errors import PermanentError, TransientError, Unavailable, UsageError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory, Queue
from ferryman.sources.log import Positions
from tests.support.logs import ChangeFeed, Topic, build_reader
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.previewed import previewed
from tests.support.previewing import ids, with_reasons
from tests.support.recorder import Recorder
from tests.support.snapshot import snapshot


class Ahead(PlanWorld):
    """Plan ``ahead``: a log → steps → ``out``."""

    def __init__(self, folder: Path, *steps: Callable[..., Any], source: Any = None, **options: Any) -> None:
        super().__init__(folder, build_reader, field="n", wait=0)
        self.build(source, *steps, name="ahead", ends=("from_in", "out"), backoff=3600, **options)

    def look(self, **options: Any) -> Preview:
        """Preview. Nothing is written, anywhere."""
        before = snapshot(self.folder)
        try:
            return previewed(self.plan, self.state, **options)
        finally:
            assert snapshot(self.folder) == before


def gets(found: Preview) -> list[str]:
    return [row["document"] for row in found.destinations["out"].gets]


@pytest.mark.rule("log.preview")
def test_it_shows_the_first_entries(place: Path) -> None:
    ahead = Ahead(place)
    ahead.put(*range(10))
    found = ahead.look(limit=3)
    assert with_reasons(found) == dict.fromkeys(["in/1", "in/2", "in/3"], "new")
    assert gets(found) == ["in/1", "in/2", "in/3"]
    assert found.destinations["out"].gets[0]["fields"] == {"n": 0}
    assert (found.more, found.complete) == ({"new": 7}, True)
    assert ahead.into.readers() == {}


@pytest.mark.rule("log.preview")
def test_it_begins_where_the_plan_stands(place: Path) -> None:
    ahead = Ahead(place)
    ahead.put(0, 1)
    ahead.run()
    assert ids(ahead.look()) == []
    ahead.put(2, 3)
    readers = ahead.into.readers()
    found = ahead.look()
    assert (ids(found), found.more) == (["in/3", "in/4"], {})
    assert ahead.into.readers() == readers
    assert [row["revision"] for row in found.destinations["out"].gets] == [1, 1]
    ahead.run()
    assert ids(ahead.look()) == []


@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
def test_beside_a_wave_that_was_killed(place: Path, phase: str) -> None:
    """What is committed is not shown again."""
    ahead = Ahead(place)
    ahead.put(0, 1)
    with pytest.raises(Interrupted):
        ahead.run(observer=Until(1, phase), checked=False)
    ahead.put(2)
    assert ids(ahead.look()) == (["in/1", "in/2", "in/3"] if phase == "commit" else ["in/3"])


def test_what_a_run_then_does(place: Path) -> None:
    """The same deliveries, by their hashes; what a filter drops is shown as dropped."""
    ahead = Ahead(place, types=["command"])
    ahead.into.append([{"n": 0, "type": "command"}, {"n": 1}, {"n": 2, "type": "command"}])
    found = ahead.look()
    assert [row["document"] for row in found.destinations["out"].dropped] == ["in/2"]
    ahead.run()
    sent = [line["hash"] for line in Recorder(place / "out.jsonl").lines() if line["said"] == "ok"]
    assert [row["delivery_hash"] for row in found.destinations["out"].gets] == sent


def test_each_source_has_its_share(place: Path) -> None:
    DurableQueue("in", place).append([{"n": n} for n in range(10)])
    DurableQueue("other", place).append([{"n": n} for n in range(10)])
    plan = Plan("two")
    nodes = [plan.source("a", Queue("in", place)), plan.source("b", Queue("other", place))]
    nodes.append(plan.source("c", Memory([{"id": str(n)} for n in range(10)])))
    plan.destination("out", Recorder(place / "out.jsonl"), after=nodes)
    found = previewed(plan, place / "state", limit=6)
    assert sorted(ids(found)) == ["0", "1", "in/1", "in/2", "other/1", "other/2"]
    assert found.more == {"new": 24}


def test_a_queue_that_does_not_exist(place: Path) -> None:
    """Is not made; the preview says that there is none."""
    found = Ahead(place).look()
    assert found.documents == []
    assert f"source from_in: there is no queue in in {place} yet (there: none)" in found.messages
    assert not (place / "in").exists()


def test_an_empty_queue(place: Path) -> None:
    ahead = Ahead(place)
    ahead.into.make()
    found = ahead.look()
    assert (found.documents, found.messages, found.complete) == ([], [], True)


def test_a_destination_queue_is_not_made(place: Path) -> None:
    plan = Plan("pipe")
    DurableQueue("in", place).append([{"n": 1}])
    plan.source("from_in", Queue("in", place)).destination("to_out", ToQueue("out", place))
    before = snapshot(place)
    assert ids(previewed(plan, place / "state")) == ["in/1"]
    assert snapshot(place) == before


class Away(Topic):
    def end(self) -> Positions:
        raise Unavailable("the broker is away")


def test_a_log_that_is_away(place: Path) -> None:
    """What is not known is said, once."""
    topic = Away(place / "topic")
    topic.publish("p0", {"n": 1})
    found = Ahead(place, source=topic).look()
    assert (found.documents, found.complete) == ([], False)
    assert [m for m in found.messages if "away" in m] == ["source from_in: the broker is away"]


@pytest.mark.rule("log.preview")
def test_one_entry_is_picked(place: Path) -> None:
    ahead = Ahead(place)
    ahead.put(*range(20))
    found = ahead.look(document="in/17")
    assert with_reasons(found) == {"in/17": "new"}
    assert gets(found) == ["in/17"]
    assert found.more == {"new": 19}
    ahead.run()
    found = ahead.look(document="in/17")
    assert with_reasons(found) == {"in/17": "unchanged"}
    assert "in/17 of source from_in is unchanged: a run would not process it now." in found.messages
    assert [row["revision"] for row in found.destinations["out"].gets] == [2]
    assert gets(found) == ["in/17"]


def test_what_is_read_again_is_another_revision(place: Path) -> None:
    """As the run then makes of it."""
    ahead = Ahead(place)
    ahead.put(0, 1)
    ahead.run()
    [reader] = ahead.into.readers()
    ahead.into.tailer(reader).to_start()
    assert [row["revision"] for row in ahead.look().destinations["out"].gets] == [2, 2]


def test_an_entry_that_is_not_there(place: Path) -> None:
    """No source has it, or the queue does not keep it any more."""
    ahead = Ahead(place)
    ahead.put(1, 2)
    for id in ("in/3", "other/1", "in", "x"):
        with pytest.raises(UsageError, match=f"{id}: no source of plan ahead has a document of this id"):
            ahead.look(document=id)


def test_two_queues_with_the_same_index(place: Path) -> None:
    """An id is of one of them."""
    for name in ("in", "other"):
        DurableQueue(name, place).append([{"of": name}])
    plan = Plan("two")
    nodes = [plan.source("a", Queue("in", place)), plan.source("b", Queue("other", place, prefix="b/"))]
    plan.destination("out", Recorder(place / "out.jsonl"), after=nodes)
    assert ids(previewed(plan, place / "state", document="in/1")) == ["in/1"]
    found = previewed(plan, place / "state", document="b/other/1")
    assert found.destinations["out"].gets[0]["fields"] == {"of": "other"}


def moody(doc: Document) -> Document:
    if doc["n"] == 2:
        raise TransientError("not now")
    if doc["n"] == 7:
        raise PermanentError("never")
    return doc


def test_where_it_would_wait_or_stop(place: Path) -> None:
    """In order, what lies behind is not shown."""
    ahead = Ahead(place, moody)
    ahead.put(0, 1, 2, 3)
    found = ahead.look()
    assert gets(found) == ["in/1", "in/2"]
    assert "source from_in would wait at in/3: step moody: TransientError: not now" in found.messages
    other = Ahead(place / "other", moody, source=Queue("in", place))
    other.folder.mkdir()
    ahead.into.delete()
    DurableQueue("in", place).append([{"n": 0}, {"n": 7}, {"n": 1}])
    found = other.look()
    assert gets(found) == ["in/1"]
    assert "source from_in would stop before in/2: step moody: PermanentError: never" in found.messages


def test_entries_that_wait_are_shown(place: Path) -> None:
    """A retry that is due, or that somebody asked for; one that is not due only if it is asked for."""
    ahead = Ahead(place, moody, ordered=False, on_error="continue")
    ahead.put(0, 2, 7)
    ahead.run()
    assert ids(ahead.look()) == []
    assert with_reasons(ahead.look(document="in/2")) == {"in/2": "later"}
    retry(ahead.plan, state=ahead.state)
    found = ahead.look()
    assert with_reasons(found) == {"in/2": "retry", "in/3": "retry"}
    assert [row["document"] for row in found.destinations["out"].refused] == ["in/3"]


def test_entries_of_one_version(place: Path) -> None:
    feed = ChangeFeed(place / "feed")
    for _ in range(3):
        feed.commit({"n": 0}, {"n": 1})
    found = Ahead(place, source=feed).look(limit=3)
    assert ids(found) == ["0/0", "0/1", "1/0"]


def test_partitions(place: Path) -> None:
    topic = Topic(place / "topic")
    topic.publish("p0", *({"n": n} for n in range(5)))
    topic.publish("p1", {"n": 0}, "odd")
    ahead = Ahead(place, source=topic)
    topic.on_error = "continue"
    found = ahead.look(limit=6)
    assert ids(found) == ["p0/0", "p0/1", "p0/2", "p0/3", "p0/4", "p1/0"]
    assert found.more == {"new": 1}
    found = ahead.look(document="p1/1")
    assert [row["document"] for row in found.destinations["out"].refused] == ["p1/1"]
