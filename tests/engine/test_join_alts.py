"""``plan.join`` and ``plan.alts``: several logs as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory, Queue
from ferryman.state.state import state_root
from tests.support.plan_world import Interrupted, Until, Watch, run_plan


def put(place: Path, name: str, *numbers: int, **more: Any) -> None:
    DurableQueue(name, place).append([{"n": n, **more} for n in numbers])


def bodies(place: Path, name: str = "out") -> list[dict[str, Any]]:
    return [m.body for m in DurableQueue(name, place).read(limit=100_000)]


def added(docs: dict[str, Document]) -> dict[str, Any]:
    return {"pair": [docs["a"]["n"], docs["b"]["n"]], "sum": docs["a"]["n"] + docs["b"]["n"]}


def joined(place: Path, fn: Any = added, **of_a: Any) -> Plan:
    plan = Plan("sums", version=1)
    a, b = plan.source("in_a", Queue("qa", place, **of_a)), plan.source("in_b", Queue("qb", place))
    plan.join("sum", fn, {"a": a, "b": b}).destination("to_out", ToQueue("out", place), backoff=0)
    plan.errors(ToQueue("errors", place))
    return plan


def alternating(place: Path, *names: str, step: Any = None) -> Plan:
    plan = Plan("any", version=1)
    node: Any = plan.alts("any", [plan.source(f"in_{name}", Queue(name, place)) for name in names])
    node = node.step("step", step) if step else node
    node.destination("to_out", ToQueue("out", place), backoff=0)
    return plan


def pairs(place: Path) -> list[list[int]]:
    return [body["pair"] for body in bodies(place)]


@pytest.mark.rule("join.pairs")
def test_a_join_makes_one_of_each(place: Path) -> None:
    """The k-th with the k-th; it waits for the slowest, and goes on when there is more."""
    put(place, "qa", 1, 2, 3)
    put(place, "qb", 10, 20)
    plan = joined(place)
    assert run_plan(plan, place / "state").delivered == 2
    assert pairs(place) == [[1, 10], [2, 20]]
    assert run_plan(plan, place / "state").waves == 0
    put(place, "qb", 30, 40)
    run_plan(plan, place / "state")
    assert pairs(place) == [[1, 10], [2, 20], [3, 30]]


def test_a_join_is_an_end_and_a_source(place: Path) -> None:
    put(place, "qa", 1, 2, 3)
    put(place, "qb", 10, 20)
    plan = joined(place)
    run_plan(plan, place / "state")
    found = account.status(state_root(plan, place / "state"), plan)
    assert found["sources"]["in_a"] == {"positions": {"qa": 3}, "read": 2, "lag": 1}
    assert found["sources"]["in_b"] == {"positions": {"qb": 3}, "read": 2, "lag": 0}
    assert found["sources"]["sum"]["read"] == 2
    assert found["sources"]["sum"]["lag"] == 0
    assert found["destinations"]["sum"]["delivered"] == 4
    assert found["balanced"]


def test_messages_of_a_join_tell_of_all_inputs(place: Path) -> None:
    put(place, "qa", 1, 2)
    put(place, "qb", 10, 20)
    run_plan(joined(place), place / "state")
    second = DurableQueue("out", place).read()[1]
    assert {name: where["index"] for name, where in second.meta["queues"].items()} == {"qa": 2, "qb": 2}
    assert second.meta["id"] == "qa/2&qb/2"
    assert second.meta["tx"] == 2


@pytest.mark.rule("join.pairs")
def test_a_join_takes_those_that_pass_the_filters(place: Path) -> None:
    """The k-th that passes; what does not pass is dropped, and counted."""
    put(place, "qa", 1, 2, type="x")
    put(place, "qa", 3, 4, type="y")
    put(place, "qa", 5, type="x")
    put(place, "qb", 10, 20, 30, 40)
    plan = joined(place, types=["y"])
    summary = run_plan(plan, place / "state")
    assert pairs(place) == [[3, 10], [4, 20]]
    assert (summary.delivered, summary.dropped) == (2, 3)
    put(place, "qa", 6, type="y")
    run_plan(plan, place / "state")
    assert pairs(place) == [[3, 10], [4, 20], [6, 30]]
    assert account.status(state_root(plan, place / "state"), plan)["sources"]["in_a"]["positions"] == {"qa": 7}


@pytest.mark.rule("join.pairs")
@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
def test_an_interrupted_join_doubles_and_loses_nothing(place: Path, phase: str) -> None:
    put(place, "qa", *range(600))
    put(place, "qb", *range(600))
    plan = joined(place)
    with pytest.raises(Interrupted):
        run_plan(plan, place / "state", observer=Until(1, phase), checked=False)
    run_plan(joined(place), place / "state")
    assert pairs(place) == [[n, n] for n in range(600)]


@pytest.mark.rule("join.returns")
@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda docs: docs["a"], [{"n": 1}]),
        (lambda docs: Document("any", total=3), [{"total": 3}]),
        (lambda docs: None, []),
        (lambda docs: [{"x": 1}, docs["b"]], [{"x": 1}, {"n": 2}]),
    ],
)
def test_what_a_join_may_return(place: Path, returned: Any, expected: list[Any]) -> None:
    put(place, "qa", 1)
    put(place, "qb", 2)
    run_plan(joined(place, returned), place / "state")
    assert bodies(place) == expected


def test_a_join_that_fails_is_an_error_message(place: Path) -> None:
    """With the messages of all inputs; the next pair goes on."""

    def picky(docs: dict[str, Document]) -> Any:
        if docs["a"]["n"] == 2:
            raise PermanentError("not two")
        return added(docs)

    put(place, "qa", 1, 2, 3)
    put(place, "qb", 10, 20, 30)
    assert run_plan(joined(place, picky), place / "state").exit == 0
    assert pairs(place) == [[1, 10], [3, 30]]
    [error] = bodies(place, "errors")
    assert (error["type"], error["where"]) == ("join", "sum")
    assert error["cause"] == "join sum: PermanentError: not two"
    [message] = error["messages"]
    assert message["body"]["b"] == {"id": "qb/2", "fields": {"n": 20}}


def test_a_join_that_has_to_wait_goes_on_with_that_pair(place: Path) -> None:
    tries = place / "tries"

    def flaky(docs: dict[str, Document]) -> Any:
        if docs["a"]["n"] == 2:
            with tries.open("a") as f:
                f.write(".")
            if tries.stat().st_size < 3:
                raise TransientError("not now")
        return added(docs)

    put(place, "qa", 1, 2, 3)
    put(place, "qb", 10, 20, 30)
    run_plan(joined(place, flaky), place / "state")
    assert pairs(place) == [[1, 10], [2, 20], [3, 30]]


@pytest.mark.rule("alts.order")
def test_alts_take_whichever_has_one(place: Path) -> None:
    """Each input keeps its order, and both get their turns."""
    put(place, "qa", *range(1000))
    put(place, "qb", *range(5000, 6000))
    plan = alternating(place, "qa", "qb")
    run_plan(plan, place / "state")
    found = [body["n"] for body in bodies(place)]
    assert [n for n in found if n < 5000] == list(range(1000))
    assert [n for n in found if n >= 5000] == list(range(5000, 6000))
    assert min(found.index(5000), found.index(0)) < max(found.index(999), found.index(5999)) / 2
    put(place, "qb", 7)
    run_plan(plan, place / "state")
    assert [body["n"] for body in bodies(place)] == [*found, 7]


@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
def test_alts_interrupted_while_the_other_queue_fills(place: Path, phase: str) -> None:
    """What was committed stays chosen; nothing is doubled or lost, whatever came meanwhile."""
    put(place, "qa", 1, 2, 3)
    with pytest.raises(Interrupted):
        run_plan(alternating(place, "qa", "qb"), place / "state", observer=Until(1, phase), checked=False)
    put(place, "qb", 10, 20)
    put(place, "qa", 4)
    run_plan(alternating(place, "qa", "qb"), place / "state")
    found = [body["n"] for body in bodies(place)]
    assert [n for n in found if n < 10] == [1, 2, 3, 4]
    assert [n for n in found if n >= 10] == [10, 20]


@pytest.mark.rule("alts.order")
def test_alts_hold_only_the_input_that_has_to_wait(place: Path) -> None:
    def picky(doc: Document) -> Document:
        if doc["n"] == 2:
            raise PermanentError("not two")
        return doc

    put(place, "qa", 1, 2, 3)
    put(place, "qb", 10, 20)
    watch = Watch()
    summary = run_plan(alternating(place, "qa", "qb", step=picky), place / "state", observer=watch)
    assert summary.exit == 4
    assert sorted(body["n"] for body in bodies(place)) == [1, 10, 20]
    assert any("it stops before qa/2" in message for message in watch.messages), watch.messages


def test_inputs_must_be_logs(place: Path) -> None:
    plan = Plan("wrong")
    one, two = plan.source("in_a", Queue("qa", place)), plan.source("docs", Memory([]))
    plan.alts("any", [one, two]).destination("to_out", ToQueue("out", place))
    with pytest.raises(PlanError, match=r"any: its input docs is not a log: give sources such as sources\.Queue"):
        plan.check()


def test_one_input_is_too_few(place: Path) -> None:
    plan = Plan("wrong")
    plan.alts("any", [plan.source("in_a", Queue("qa", place))]).destination("to_out", ToQueue("out", place))
    with pytest.raises(PlanError, match="any: has 1 inputs: give two or more"):
        plan.check()


def test_a_retry_reads_the_entry_of_its_own_input(place: Path) -> None:
    """Not the one at that place of another input."""

    def picky(doc: Document) -> Document:
        if doc["n"] == 20 and not (place / "mended").exists():
            raise PermanentError("not twenty")
        return doc

    put(place, "qa", 1, 2, 3)
    put(place, "qb", 10, 20, 30)
    plan = alternating(place, "qa", "qb", step=picky)
    plan.errors(ToQueue("errors", place))
    run_plan(plan, place / "state")
    (place / "mended").touch()
    assert retry(plan, state=place / "state", status="rejected").count == 1
    run_plan(plan, place / "state")
    assert bodies(place)[-1] == {"n": 20}


def test_an_input_that_no_document_can_hold_is_that_pairs_failure(place: Path) -> None:
    """The others go on."""
    put(place, "qa", 1, 3)
    DurableQueue("qa", place).append([{"n": 5, "text": "\ud800"}])
    put(place, "qa", 7)
    put(place, "qb", 10, 30, 50, 70)
    summary = run_plan(joined(place), place / "state")
    assert (summary.exit, summary.rejected) == (0, 1)
    assert pairs(place) == [[1, 10], [3, 30], [7, 70]]
    [error] = bodies(place, "errors")
    assert error["cause"].startswith("qa/3: field 'text' holds text with half a character in it (a lone surrogate)")
    assert error["messages"][0]["id"] == "qa/3&qb/3"


def test_a_join_goes_on_when_its_queues_were_made_again(place: Path) -> None:
    """However many it has read before."""
    put(place, "qa", *range(50))
    put(place, "qb", *range(50))
    plan = joined(place)
    run_plan(plan, place / "state")
    for name in ("qa", "qb"):
        DurableQueue(name, place).delete()
        put(place, name, 100, 200)
    run_plan(plan, place / "state")
    assert pairs(place)[50:] == [[100, 100], [200, 200]]


def test_a_join_begins_with_what_is_kept(place: Path) -> None:
    """And says what is not."""
    put(place, "qa", 1, 2, 3)
    DurableQueue("qa", place).trim(0, force=True)
    put(place, "qa", 4, 5)
    put(place, "qb", 10, 20)
    watch = Watch()
    run_plan(joined(place), place / "state", observer=watch)
    assert pairs(place) == [[4, 10], [5, 20]]
    assert "source sum: a 1 to 3 are not kept any more: they were removed before they were read" in watch.messages


def test_one_queue_can_be_two_inputs(place: Path) -> None:
    """With ids of their own; what either has not read is not trimmed."""
    queue = DurableQueue("qa", place)
    queue.append([{"n": n, "type": kind} for n in range(4) for kind in ("x", "y", "z")])
    queue.append([{"n": 9, "type": "x"}])
    plan = Plan("sums", version=1)
    a = plan.source("in_a", Queue("qa", place, types=["x"]))
    b = plan.source("in_b", Queue("qa", place, types=["y"], prefix="y:"))
    plan.join("sum", added, {"a": a, "b": b}).destination("to_out", ToQueue("out", place), backoff=0)
    run_plan(plan, place / "state")
    assert pairs(place) == [[n, n] for n in range(4)]
    positions = {name.partition("-v1.sum.")[2][:1]: at for name, at in queue.readers().items()}
    assert positions == {"a": 13, "b": 14}


@pytest.mark.parametrize("make", ["alts", "join"])
def test_two_inputs_with_the_same_ids_are_refused(place: Path, make: str) -> None:
    plan = Plan("wrong")
    inputs = [plan.source(f"in_{kind}", Queue("qa", place, types=[kind])) for kind in "xy"]
    node = plan.alts("any", inputs) if make == "alts" else plan.join("any", added, dict(zip("ab", inputs, strict=True)))
    node.destination("to_out", ToQueue("out", place))
    with pytest.raises(PlanError, match=r"any: its inputs in_x and in_y read the same log, .* another prefix="):
        plan.check()


class MadeAgain(Watch):
    """Deletes a queue and makes it again when a wave begins that has seen the old one."""

    def __init__(self, place: Path, name: str, *numbers: int) -> None:
        super().__init__()
        self.place, self.name, self.numbers = place, name, numbers

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if name == "transform" and self.numbers:
            DurableQueue(self.name, self.place).delete()
            put(self.place, self.name, *self.numbers)
            self.numbers = ()


@pytest.mark.parametrize("shape", ["plain", "alts", "join"])
def test_a_queue_that_is_made_again_while_a_run_reads_it(place: Path, shape: str) -> None:
    """Nothing of the new one is taken for the old one's: each message of it comes once."""
    put(place, "qa", 1, 2)
    put(place, "qb", 10, 20)

    def plan() -> Plan:
        if shape != "plain":
            return joined(place) if shape == "join" else alternating(place, "qa", "qb")
        made = Plan("any", version=1)
        made.source("in_qa", Queue("qa", place)).destination("to_out", ToQueue("out", place), backoff=0)
        return made

    run_plan(plan(), place / "state", observer=MadeAgain(place, "qa", 100, 200), wait=0)
    run_plan(plan(), place / "state")
    found = [body.get("pair") or body["n"] for body in bodies(place)]
    wanted = {"plain": [100, 200], "alts": [10, 20, 100, 200], "join": [[100, 10], [200, 20]]}[shape]
    assert sorted(found) == wanted
    if shape == "join":
        put(place, "qb", 30, 40)
    run_plan(plan(), place / "state")
    assert len(bodies(place)) == len(wanted)
