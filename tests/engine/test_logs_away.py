"""A queue that a plan has read and that is not there: deleted, or away for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.destinations import Queue as ToQueue
from ferryman.errors import Unavailable
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Piece, Queue
from ferryman.sources.log import Positions
from tests.support.plan_world import Watch, run_plan
from tests.support.previewed import previewed


def put(place: Path, name: str, *numbers: int) -> None:
    DurableQueue(name, place / "queues").append([{"n": n} for n in numbers])


def out(place: Path) -> list[int]:
    return [m.body["n"] for m in DurableQueue("out", place).read(limit=100)]


def piped(place: Path) -> Plan:
    plan = Plan("pipe")
    plan.source("from_in", Queue("in", place / "queues")).destination("to_out", ToQueue("out", place), backoff=0)
    return plan


def run(plan: Plan, place: Path) -> tuple[int, list[str]]:
    """Exit code, and what was said."""
    watch = Watch()
    return run_plan(plan, place / "state", observer=watch).exit, watch.messages


@pytest.mark.rule("log.away")
def test_a_queue_that_comes_back_is_read_on(place: Path) -> None:
    """Nothing of it is read twice, whatever was appended meanwhile; until then the run says what is missing, and ends
    as one that cannot list a folder."""
    put(place, "in", 1, 2)
    plan = piped(place)
    assert run(plan, place)[0] == 0
    (place / "queues").rename(place / "elsewhere")
    for _ in range(2):
        code, said = run(plan, place)
        assert code == 4
        missing = f"source from_in: {place}/queues/in is not there any more: it was deleted, or its folder is away"
        assert said.count(missing) == 1
    found = previewed(plan, place / "state")
    assert (found.complete, found.documents) == (False, [])
    (place / "elsewhere").rename(place / "queues")
    put(place, "in", 3)
    assert run(plan, place) == (0, [])
    assert out(place) == [1, 2, 3]


class AwayOnce(Queue):
    """Goes away between the look at its end and the division into pieces, as a server may."""

    asked = 0

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        AwayOnce.asked += 1
        if AwayOnce.asked == 1:
            raise Unavailable("the broker has just gone")
        return super().pieces(start, end, limit)


@pytest.mark.rule("log.away")
def test_a_log_that_goes_away_while_it_is_divided_is_waited_for(place: Path) -> None:
    """The run asks again, and reads everything."""
    put(place, "in", 1, 2)
    AwayOnce.asked = 0
    plan = Plan("pipe")
    plan.source("from_in", AwayOnce("in", place / "queues")).destination("to_out", ToQueue("out", place))
    assert run(plan, place)[0] == 0
    assert AwayOnce.asked > 1
    assert out(place) == [1, 2]


@pytest.mark.rule("log.away")
def test_a_deleted_queue_is_missing_until_it_is_made_again(place: Path) -> None:
    put(place, "in", 1, 2)
    plan = piped(place)
    run(plan, place)
    DurableQueue("in", place / "queues").delete()
    assert run(plan, place)[0] == 4
    put(place, "in", 7)
    assert run(plan, place)[0] == 0
    assert out(place) == [1, 2, 7]


@pytest.mark.parametrize("known", [True, False])
def test_alts_go_on_with_the_others(place: Path, known: bool) -> None:
    """One that was never there is not missing."""
    if known:
        put(place, "a", 1)
    put(place, "b", 2)
    plan = Plan("any")
    inputs = [plan.source(f"from_{name}", Queue(name, place / "queues")) for name in "ab"]
    plan.alts("any", inputs).destination("to_out", ToQueue("out", place), backoff=0)
    assert run(plan, place)[0] == 0
    if known:
        DurableQueue("a", place / "queues").delete()
    put(place, "b", 3)
    assert run(plan, place)[0] == (4 if known else 0)
    assert sorted(out(place)) == ([1, 2, 3] if known else [2, 3])
