"""``plan.errors``: each final failure is one message, and an input has an output or an error, never both."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Delivery, Outcome
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Memory, Queue
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import Interrupted, Until, run_plan


class Refusing(ToQueue):
    """Refuses what has a ``bad`` field."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        outcomes = super().write([d for d in chunk if not d.fields.get("bad")])
        good = iter(outcomes)
        return [Outcome.permanent("no bad ones here") if d.fields.get("bad") else next(good) for d in chunk]


def broken(doc: Document) -> Document:
    if doc["n"] % 3 == 0:
        raise PermanentError(f"{doc['n']} is a multiple of three")
    return doc


def pipe(place: Path, step: Any = broken, **source: Any) -> Plan:
    plan = Plan("pipe", version=1)
    node = plan.source("from_in", Queue("in", place, **source)).step("broken", step)
    node.destination("to_out", Refusing("out", place), backoff=0)
    plan.errors(ToQueue("errors", place))
    return plan


def put(place: Path, *bodies: dict[str, Any]) -> None:
    DurableQueue("in", place).append(bodies)


def bodies(place: Path, name: str) -> list[dict[str, Any]]:
    return [m.body for m in DurableQueue(name, place).read(limit=10_000)]


def numbers(place: Path, name: str) -> list[int]:
    return [body["n"] for body in bodies(place, name)]


def failed_numbers(place: Path) -> list[int]:
    return sorted(message["body"]["n"] for body in bodies(place, "errors") for message in body["messages"])


@pytest.mark.rule("errors.once")
def test_a_failure_of_a_step_is_one_message(place: Path) -> None:
    """With type, cause, where, config and the message that it failed for. The run goes on, and ends with 0."""
    put(place, *({"n": n} for n in range(1, 6)))
    summary = run_plan(pipe(place), place / "state")
    assert (summary.exit, summary.rejected + summary.failed) == (0, 1)
    assert numbers(place, "out") == [1, 2, 4, 5]
    [message] = DurableQueue("errors", place).read()
    assert message.body == {
        "type": "step",
        "cause": "step broken: PermanentError: 3 is a multiple of three",
        "where": "broken",
        "config": {"plan": "pipe", "version": 1, "destinations": ["to_out"]},
        "messages": [{"id": "in/3", "source": "from_in", "body": {"n": 3}}],
    }
    assert message.meta["queues"]["in"]["index"] == 3
    assert run_plan(pipe(place), place / "state").exit == 0
    assert len(bodies(place, "errors")) == 1


@pytest.mark.rule("errors.once")
def test_a_refusal_of_a_destination_is_one_message(place: Path) -> None:
    put(place, {"n": 1}, {"n": 2, "bad": True}, {"n": 4})
    summary = run_plan(pipe(place), place / "state")
    assert (summary.exit, summary.delivered) == (0, 3)
    assert numbers(place, "out") == [1, 4]
    [body] = bodies(place, "errors")
    assert (body["type"], body["where"], body["config"]["destinations"]) == ("destination", "to_out", ["to_out"])
    assert "no bad ones here" in body["cause"]
    assert body["messages"] == [{"id": "in/2", "source": "from_in", "body": {"n": 2, "bad": True}}]
    assert run_plan(pipe(place), place / "state").delivered == 0


@pytest.mark.rule("errors.once")
@pytest.mark.parametrize("wave", [1, 2])
@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
def test_an_interruption_doubles_and_loses_no_message(place: Path, wave: int, phase: str) -> None:
    put(place, *({"n": n, "bad": n % 5 == 0} for n in range(1, 21)))
    with pytest.raises(Interrupted):
        run_plan(pipe(place), place / "state", observer=Until(wave, phase), checked=False)
    run_plan(pipe(place), place / "state")
    threes = {n for n in range(1, 21) if n % 3 == 0}
    fives = {n for n in range(1, 21) if n % 5 == 0} - threes
    assert numbers(place, "out") == sorted(set(range(1, 21)) - threes - fives)
    assert failed_numbers(place) == sorted(threes | fives)


def test_a_failure_above_a_fork_is_one_message(place: Path) -> None:
    """It names the destinations that get nothing."""
    plan = Plan("fork")
    fork = plan.source("from_in", Queue("in", place)).step("broken", broken).route("both", Duplicate())
    fork.destination("one", ToQueue("one", place))
    fork.destination("two", ToQueue("two", place))
    plan.errors(ToQueue("errors", place))
    put(place, {"n": 3}, {"n": 4})
    run_plan(plan, place / "state")
    assert numbers(place, "one") == numbers(place, "two") == [4]
    [body] = bodies(place, "errors")
    assert body["config"]["destinations"] == ["one", "two"]


def test_only_a_final_failure_counts(place: Path) -> None:
    """A transient error is tried again first, and no message is appended for it."""
    tries = place / "tries"

    def flaky(doc: Document) -> Document:
        with tries.open("a") as f:
            f.write(".")
        if doc["n"] == 2 and tries.stat().st_size < 4:
            raise TransientError("not now")
        return doc

    put(place, {"n": 1}, {"n": 2}, {"n": 4})
    assert run_plan(pipe(place, flaky), place / "state").exit == 0
    assert numbers(place, "out") == [1, 2, 4]
    assert bodies(place, "errors") == []


def test_an_unforeseen_error_becomes_a_message_after_its_attempts(place: Path) -> None:
    def wrong(doc: Document) -> Document:
        return doc if doc["n"] != 2 else doc["missing"]

    put(place, {"n": 1}, {"n": 2}, {"n": 4})
    summary = run_plan(pipe(place, wrong), place / "state")
    assert (summary.exit, summary.failed) == (0, 1)
    [body] = bodies(place, "errors")
    assert "KeyError: 'missing'" in body["cause"]
    assert numbers(place, "out") == [1, 4]


def test_a_retry_is_the_operators_word(place: Path) -> None:
    """It may give an output besides; if it fails again, that is another failure."""
    put(place, {"n": 3})
    plan = pipe(place)
    run_plan(plan, place / "state")
    retry(plan, state=place / "state", status="rejected")
    run_plan(plan, place / "state")
    assert len(bodies(place, "errors")) == 2
    retry(plan, state=place / "state", status="rejected")
    run_plan(pipe(place, lambda doc: doc), place / "state")
    assert numbers(place, "out") == [3]
    assert len(bodies(place, "errors")) == 2


@pytest.mark.parametrize("dies", [False, True])
def test_what_a_retry_failed_for_is_there_too(place: Path, dies: bool) -> None:
    """As the queue has it, not as the step left it; also where each document is read in a process of its own."""

    def spoil(doc: Document) -> Document:
        n = doc["n"]
        doc["n"] = "spoiled"
        if dies and (place / "again").exists():
            os._exit(3)
        return broken(Document(doc.id, n=n))

    put(place, {"n": 3, "text": "as it is"})
    plan = pipe(place, spoil)
    run_plan(plan, place / "state")
    (place / "again").touch()
    retry(plan, state=place / "state", status="rejected")
    run_plan(plan, place / "state", runner=InProcess(fork=True))
    first, second = DurableQueue("errors", place).read()
    assert second.body["messages"] == first.body["messages"]
    assert first.body["messages"][0]["body"] == {"n": 3, "text": "as it is"}
    assert second.meta["queues"] == first.meta["queues"]


def test_other_sources_report_too(place: Path) -> None:
    plan = Plan("docs")
    node = plan.source("docs", Memory([{"id": "a", "n": 3}, {"id": "b", "n": 4}])).step("broken", broken)
    node.destination("to_out", ToQueue("out", place))
    plan.errors(ToQueue("errors", place))
    assert run_plan(plan, place / "state").exit == 0
    [body] = bodies(place, "errors")
    assert body["messages"] == [{"id": "a", "source": "docs"}]


def test_status_counts_the_messages(place: Path) -> None:
    put(place, {"n": 3}, {"n": 4})
    plan = pipe(place)
    run_plan(plan, place / "state")
    found = account.status(state_root(plan, place / "state"), plan)
    assert found["destinations"]["errors"]["delivered"] == 1
    assert found["destinations"]["to_out"]["rejected"] == 1
    assert found["balanced"]


def test_a_plan_has_one_destination_for_errors(place: Path) -> None:
    plan = pipe(place)
    plan.errors(ToQueue("others", place), name="others")
    with pytest.raises(PlanError, match="errors, others: a plan has one destination for errors: remove all but one"):
        plan.check()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_message_that_nests_deep_is_there_as_text(place: Path) -> None:
    """A queue holds 100 levels, of which an error message needs three."""
    put(place, {"n": 3, "deep": nested(96)}, {"n": 6, "deep": nested(97)}, {"n": 9, "deep": nested(99)})
    assert run_plan(pipe(place), place / "state").exit == 0
    [first], *others = (body["messages"] for body in bodies(place, "errors"))
    assert first["body"]["n"] == 3
    assert [json.loads(message["json"])["n"] for [message] in others] == [6, 9]


def test_a_refused_message_that_nests_deep_is_there_as_text(place: Path) -> None:
    def deepen(doc: Document) -> Document:
        doc["deep"] = nested(150)
        return doc

    put(place, {"n": 1})
    assert run_plan(pipe(place, deepen), place / "state").exit == 0
    [body] = bodies(place, "errors")
    assert "nested more than 100 deep" in body["cause"]
    assert json.loads(body["messages"][0]["json"])["n"] == 1


class Unwilling(ToQueue):
    """Takes nothing."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        return [Outcome.permanent("not here")] * len(chunk)


def test_what_the_error_queue_refuses_is_not_reported(place: Path) -> None:
    """The run ends with 3, as if there were none."""
    plan = Plan("pipe", version=1)
    node = plan.source("from_in", Queue("in", place)).step("broken", broken)
    node.destination("to_out", ToQueue("out", place))
    plan.errors(Unwilling("errors", place))
    put(place, {"n": 3})
    assert run_plan(plan, place / "state").exit == 3
