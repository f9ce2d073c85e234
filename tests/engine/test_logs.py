"""Sources known by position, as a plan reads them: a durable queue, and what a wave commits of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import ByField
from ferryman.sources import Queue
from ferryman.state.logs import LogPositions
from tests.support.invariants import rows
from tests.support.logs import read_log
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch, run_plan


def copy_queue(place: Path, *steps: Any, **options: Any) -> PlanWorld:
    """Create plan ``pipe``: queue ``in`` → steps → queue ``out``."""
    out = ToQueue("out", place)
    return read_log(place, None, *steps, name="pipe", ends=("from_in", "to_out"), into=out, **options)


@pytest.mark.rule("log.once")
def test_messages_go_through_once_and_in_order(place: Path) -> None:
    """A second run has nothing to do; what is appended later is all that the next one takes up."""
    pipe = copy_queue(place)
    pipe.put(*range(1, 8))
    summary = pipe.run()
    assert (summary.exit, summary.delivered) == (0, 7)
    assert pipe.values() == list(range(1, 8))
    assert pipe.log() == {"positions": {"in": 8}, "read": 7, "lag": 0}
    before = pipe.run()
    assert (before.waves, before.delivered) == (0, 0)
    pipe.put(8, 9)
    assert pipe.log()["lag"] == 2
    assert pipe.run().delivered == 2
    assert pipe.values() == list(range(1, 10))


@pytest.mark.rule("log.once")
def test_what_went_through_leaves_no_row_in_documents(place: Path) -> None:
    pipe = copy_queue(place)
    pipe.put(*range(50))
    pipe.run()
    assert rows(pipe.root, "documents") == []


def test_several_tasks_and_waves_keep_the_order(place: Path) -> None:
    pipe = copy_queue(place)
    pipe.into.append([{"n": n} for n in range(2_000)])
    summary = pipe.run(wave_bytes=20_000)
    assert summary.waves > 1
    assert pipe.values() == list(range(2_000))


@pytest.mark.rule("log.once")
@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
def test_an_interrupted_wave_is_finished_or_done_again(place: Path, phase: str) -> None:
    pipe = copy_queue(place)
    pipe.put(*range(20))
    with pytest.raises(Interrupted):
        pipe.run(observer=Until(1, phase), checked=False)
    pipe.run()
    assert pipe.values() == list(range(20))


@pytest.mark.rule("log.provenance")
def test_messages_tell_where_they_came_from(place: Path) -> None:
    """``meta["queues"]`` has all queues on the way, ``tx`` the index on the first."""
    pipe = copy_queue(place)
    pipe.put(5, 6)
    pipe.run()
    after = Plan("after")
    after.source("from_out", Queue("out", place)).destination("to_last", ToQueue("last", place))
    run_plan(after, pipe.state)
    first, second = DurableQueue("last", place).read()
    time = pipe.into.read()[1].created.isoformat(timespec="microseconds")
    assert second.meta["queues"]["in"] == {"index": 2, "time": time}
    assert second.meta["queues"]["out"]["index"] == 2
    assert (first.meta["tx"], second.meta["tx"]) == (1, 2)
    assert second.meta["id"] == "out/2"


def test_provenance_can_be_left_out(place: Path) -> None:
    DurableQueue("in", place).append([{"n": 1}])
    plan = Plan("pipe", provenance=False)
    plan.source("from_in", Queue("in", place)).destination("to_out", ToQueue("out", place))
    run_plan(plan, place / "state")
    [message] = DurableQueue("out", place).read()
    assert "queues" not in message.meta
    assert "tx" not in message.meta


class Flaky:
    """A step that fails for some numbers, so often."""

    __name__ = "flaky"

    def __init__(self, folder: Path, error: Exception, *numbers: int, times: int = 1 << 30) -> None:
        self._folder = folder
        self._error = error
        self._numbers = numbers
        self._times = times

    def __call__(self, doc: Document) -> Document:
        tries = self._folder / f"tries-{doc['n']}"
        with tries.open("a") as f:
            f.write(".")
        if doc["n"] in self._numbers and tries.stat().st_size <= self._times:
            raise self._error
        return doc

    def tries(self, number: int) -> int:
        return (self._folder / f"tries-{number}").stat().st_size


@pytest.mark.rule("log.order")
def test_an_entry_that_waits_holds_those_behind_it(place: Path) -> None:
    """What lies before it is committed; it goes first when it goes, and spends the attempts that it has."""
    flaky = Flaky(place, TransientError("not now"), 4, times=2)
    pipe = copy_queue(place, flaky)
    pipe.put(*range(8))
    summary = pipe.run()
    assert pipe.values() == list(range(8))
    assert summary.exit == 0
    assert pipe.log() == {"positions": {"in": 9}, "read": 8, "lag": 0}
    assert rows(pipe.root, "documents") == []


@pytest.mark.rule("log.order")
def test_an_entry_that_waits_at_the_end_of_a_run_is_named(place: Path) -> None:
    pipe = copy_queue(place, Flaky(place, TransientError("not now"), 2), backoff=3600)
    pipe.put(0, 1, 2, 3)
    watch = Watch()
    summary = pipe.run(observer=watch)
    assert summary.exit == 4
    assert pipe.values() == [0, 1]
    assert pipe.log() == {"positions": {"in": 3}, "read": 2, "lag": 2}
    assert any("source from_in waits at in/3: step flaky: TransientError: not now" in m for m in watch.messages), watch


def test_unordered_passes_over_it(place: Path) -> None:
    flaky = Flaky(place, TransientError("not now"), 1, times=1)
    pipe = copy_queue(place, flaky, ordered=False)
    pipe.put(0, 1, 2)
    summary = pipe.run()
    assert summary.exit == 0
    assert pipe.values() == [0, 2, 1]
    [*_, last] = rows(pipe.root, "documents")
    assert last["document"] == "in/2"


@pytest.mark.rule("log.stop")
def test_a_final_failure_stops_the_plan_before_it(place: Path) -> None:
    """Exit 4, naming queue, index, step and error. Mended code goes on with that very message."""
    pipe = copy_queue(place, Flaky(place, PermanentError("broken"), 2))
    pipe.put(0, 1, 2, 3)
    watch = Watch()
    summary = pipe.run(observer=watch)
    assert summary.exit == 4
    assert pipe.values() == [0, 1]
    assert any("source from_in is stopped: it stops before in/3: step flaky" in m for m in watch.messages), (
        watch.messages
    )
    assert pipe.run().exit == 4
    assert pipe.values() == [0, 1]
    mended = copy_queue(place, Flaky(place, PermanentError("broken")))
    assert mended.run().exit == 0
    assert mended.values() == [0, 1, 2, 3]


def test_attempts_end_and_then_it_stops(place: Path) -> None:
    """An error that nobody foresaw is tried as often as the destination says."""
    flaky = Flaky(place, ValueError("what is that"), 1)
    pipe = copy_queue(place, flaky)
    pipe.put(0, 1, 2)
    assert pipe.run().exit == 4
    assert flaky.tries(1) == 3
    assert pipe.values() == [0]


@pytest.mark.rule("log.stop")
def test_on_error_continue_counts_it_and_goes_on(place: Path) -> None:
    pipe = copy_queue(place, Flaky(place, PermanentError("broken"), 2), on_error="continue")
    pipe.put(0, 1, 2, 3)
    summary = pipe.run()
    assert (summary.exit, summary.rejected + summary.failed) == (3, 1)
    assert pipe.values() == [0, 1, 3]
    assert pipe.log() == {"positions": {"in": 5}, "read": 4, "lag": 0}
    assert pipe.run().exit == 3


@pytest.mark.rule("log.filter")
def test_filters_drop_what_does_not_pass(place: Path) -> None:
    """``type`` equal, or a true value in ``topics``."""
    pipe = copy_queue(place, types=["command"], topics=["doc"])
    pipe.into.append(
        [
            {"n": 0, "type": "command"},
            {"n": 1, "type": "event"},
            {"n": 2, "topics": {"doc": True}},
            {"n": 3, "topics": {"doc": False}, "type": ["command"]},
            {"n": 4},
        ]
    )
    summary = pipe.run()
    assert (summary.delivered, summary.dropped) == (2, 3)
    assert pipe.values() == [0, 2]
    assert pipe.log()["read"] == 5
    [dropped] = account.deliveries(pipe.root, plan=pipe.plan, document="in/2")
    assert dropped["message"] == "not type command or topics doc: queue in is read with a filter"


def test_branches_into_one_queue_keep_the_order(place: Path) -> None:
    """Whichever branch a message took."""
    into = DurableQueue("in", place)
    into.append([{"n": n, "odd": str(n % 2)} for n in range(40)])
    plan = Plan("branches")
    node = plan.source("from_in", Queue("in", place)).route("parity", ByField("odd", {"1": "odd", "0": "even"}))
    odd, even = node.step("odd", lambda doc: doc), node.step("even", lambda doc: doc)
    plan.destination("to_out", ToQueue("out", place), after=[odd, even])
    run_plan(plan, place / "state")
    assert [m.body["n"] for m in DurableQueue("out", place).read()] == list(range(40))


def test_a_queue_that_is_not_there_yet_has_nothing(place: Path) -> None:
    pipe = copy_queue(place)
    watch = Watch()
    assert pipe.run(observer=watch).exit == 0
    assert f"source from_in: there is no queue in in {place} yet (there: none)" in watch.messages
    pipe.put(1)
    assert pipe.run().delivered == 1


@pytest.mark.rule("log.another")
def test_a_queue_that_was_made_again_is_read_from_its_beginning(place: Path) -> None:
    """And said; the same message in it is another one."""
    pipe = copy_queue(place)
    pipe.put(1, 2)
    pipe.run()
    pipe.into.delete()
    pipe.into = DurableQueue("in", place)
    pipe.put(1)
    watch = Watch()
    pipe.run(observer=watch)
    another = (
        "is not what was read before: it was deleted and made again, or the plan names another one now; it is read"
    )
    assert f"source from_in: {place}/in {another} from its beginning" in watch.messages
    assert pipe.values() == [1, 2, 1]


@pytest.mark.rule("log.trimmed")
def test_the_plan_is_a_reader_of_the_queue(place: Path) -> None:
    """What it has not read is not trimmed."""
    pipe = copy_queue(place)
    pipe.put(1, 2, 3)
    pipe.run()
    [(name, position)] = pipe.into.readers().items()
    assert name.startswith("pipe-v1.from_in-")
    assert position == 4
    pipe.put(4)
    assert pipe.into.trim(0) == 3
    pipe.run()
    assert pipe.values() == [1, 2, 3, 4]


@pytest.mark.rule("log.trimmed")
def test_messages_that_were_removed_unread_are_named(place: Path) -> None:
    pipe = copy_queue(place)
    pipe.put(1)
    pipe.run()
    pipe.put(2)
    pipe.put(3)
    pipe.into.trim(0, force=True)
    pipe.put(4)
    watch = Watch()
    pipe.run(observer=watch)
    said = "source from_in: in 2 to 3 are not kept any more: they were removed before they were read"
    assert said in watch.messages
    assert pipe.values() == [1, 4]


@pytest.mark.rule("log.moved")
def test_a_plan_reads_again_from_where_it_is_moved(place: Path) -> None:
    """Once: as another processing of these messages, also by a destination that knows what it has."""
    pipe = copy_queue(place)
    pipe.put(1, 2, 3, 4)
    pipe.run()
    [reader] = pipe.into.readers()
    pipe.into.tailer(reader).to(3)
    watch = Watch()
    assert pipe.run(observer=watch).delivered == 2
    assert "source from_in: was moved, and goes on at in 3" in watch.messages
    assert pipe.values() == [1, 2, 3, 4, 3, 4]
    assert pipe.run().delivered == 0
    assert pipe.into.readers() == {reader: 5}
    pipe.put(5)
    assert pipe.run().delivered == 1
    assert pipe.log() == {"positions": {"in": 6}, "read": 7, "lag": 0}


@pytest.mark.rule("log.moved")
@pytest.mark.parametrize("phase", ["transform", "commit", "deliver", "settle"])
def test_an_interrupted_move_is_followed_once(place: Path, phase: str) -> None:
    pipe = copy_queue(place)
    pipe.put(1, 2)
    pipe.run()
    [reader] = pipe.into.readers()
    pipe.into.tailer(reader).to_start()
    with pytest.raises(Interrupted):
        pipe.run(observer=Until(2, phase), checked=False)
    pipe.run()
    pipe.run()
    assert pipe.values() == [1, 2, 1, 2]


def test_a_plan_that_is_moved_to_the_end_passes_over_the_rest(place: Path) -> None:
    pipe = copy_queue(place)
    pipe.put(1)
    pipe.run()
    [reader] = pipe.into.readers()
    pipe.put(2, 3)
    pipe.into.tailer(reader).to_end()
    assert pipe.run().delivered == 0
    pipe.put(4)
    pipe.run()
    assert pipe.values() == [1, 4]


@pytest.mark.rule("log.balanced")
def test_an_entry_without_a_delivery_is_not_balanced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = copy_queue(place)
    pipe.put(1, 2, 3)
    pipe.run()
    assert account.status(pipe.root, pipe.plan)["balanced"]
    monkeypatch.setattr(LogPositions, "entries_read", 4)
    assert not account.status(pipe.root, pipe.plan)["balanced"]
