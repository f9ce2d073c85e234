"""Runs of a flow: plans joined by queues take turns; what one of them meets does not hold up the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Flow, account
from ferryman.destinations import Delivery, Outcome
from ferryman.engine.runner.base import RunnerLost
from ferryman.errors import EngineError, PlanChanged, StateHeld, Unavailable, UsageError, message_of
from ferryman.queues import Queue
from ferryman.sources import Memory
from ferryman.state.commands import queue_retry
from ferryman.state.state import State, state_root
from tests.support.joined import FlowWorld, Into, Messages, Told, pipe, run_flow, same
from tests.support.recorder import Recorder
from tests.support.sleeper import Sleeper

DOCUMENTS = [{"id": f"d{n}", "n": n} for n in range(3)]


def plus(doc: Document) -> Document:
    doc["n"] += 1
    return doc


class Chain(FlowWorld):
    """``first`` → queue ``a`` → ``second`` → queue ``b`` → ``third`` → a recorder."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, field="n")
        self.documents += DOCUMENTS
        self.steps = {"first": same, "second": plus, "third": plus}

    def flow(self) -> Flow:
        """Made again for each run, and given in the wrong order."""
        a, b = (Into(name, self.folder) for name in "ab")
        return Flow(
            "chain",
            [
                pipe("third", Messages("b", self.folder), self.out(), self.steps["third"]),
                pipe("second", Messages("a", self.folder), b, self.steps["second"]),
                pipe("first", self.documents, a, self.steps["first"]),
            ],
        )


@pytest.fixture
def chain(place: Path) -> Chain:
    return Chain(place)


@pytest.mark.rule("flow.run")
def test_documents_go_through_all_plans_in_one_run(chain: Chain) -> None:
    """Each plan runs after those that it reads from; a run with nothing new does nothing."""
    summary = chain.run()

    assert (summary.exit, list(summary.plans)) == (0, ["first", "second", "third"])
    assert [each.delivered for each in summary.plans.values()] == [3, 3, 3]
    assert chain.values("b") == [1, 2, 3]
    assert chain.out().arrived() == ["1", "2", "3"]
    assert chain.told.scans == ["first", "second", "third"]

    again = chain.run()
    assert [each.waves for each in again.plans.values()] == [0, 0, 0]
    chain.documents.append({"id": "d3", "n": 3})
    assert [each.delivered for each in chain.run().plans.values()] == [1, 1, 1]
    assert chain.out().arrived() == ["1", "2", "3", "4"]


@pytest.mark.rule("flow.state")
def test_each_plan_has_its_own_state(chain: Chain) -> None:
    """It may run alone, too: the flow goes on from there."""
    flow = chain.flow()
    run_flow(Flow("alone", [flow.plans[2]]), chain.state)

    assert chain.values("a") == [0, 1, 2]
    summary = chain.run()
    assert [each.delivered for each in summary.plans.values()] == [0, 3, 3]
    assert sorted(path.name for path in chain.state.iterdir()) == ["first-v0", "second-v0", "third-v0"]


@pytest.mark.rule("flow.cycle")
def test_a_cycle_runs_until_nothing_goes_round(place: Path) -> None:
    """A plan scans again whenever one that it reads from has committed."""

    def down(doc: Document) -> Document | None:
        doc["n"] -= 1
        return doc if doc["n"] > 0 else None

    flow = Flow(
        "round",
        [
            pipe("back", Messages("there", place), Into("here", place), down),
            pipe("there", Messages("here", place), Into("there", place), down),
        ],
    )
    Queue("here", place).append([{"n": 7}])

    summary = run_flow(flow, place / "state")

    assert summary.exit == 0
    assert [m.body["n"] for m in Queue("here", place).read(start=1, limit=100)] == [7, 5, 3, 1]
    assert [m.body["n"] for m in Queue("there", place).read(start=1, limit=100)] == [6, 4, 2]


# --- a plan that waits, a plan that stops -------------------------------------------------------------------------


@pytest.mark.rule("flow.wait")
def test_what_waits_in_one_plan_holds_up_no_other(chain: Chain, place: Path) -> None:
    """The first plan's destination is away for one document: all others are through before anything is waited for."""
    sleeper = Sleeper()
    seen: list[list[str]] = []
    flag = place / "down"
    flag.touch()

    def step(doc: Document) -> Document:
        if doc.id == "d1" and flag.exists():
            raise Unavailable("the service is away", scope="d1")
        return doc

    def wake(total: float) -> None:
        seen.append(chain.out().arrived())
        if total > 3:
            flag.unlink(missing_ok=True)

    chain.steps["first"] = step
    sleeper.then = wake

    summary = chain.run(**sleeper.options())

    assert seen[0] == ["1", "2"]
    assert summary.exit == 0
    assert chain.out().arrived() == ["1", "2", "3"]


@pytest.mark.rule("flow.wait")
def test_wait_is_for_all_plans_together(chain: Chain) -> None:
    """As in a run of one plan: 0 waits for nothing, and what is pending makes the exit code 4."""

    def away(doc: Document) -> Document:
        raise Unavailable("the service is away")

    chain.steps["second"] = away
    sleeper = Sleeper()

    summary = chain.run(wait=0, **sleeper.options())
    assert not sleeper.slept
    assert {name: each.exit for name, each in summary.plans.items()} == {"first": 0, "second": 4, "third": 0}
    assert summary.exit == 4
    assert summary.plans["second"].pending == 3

    chain.run(wait=6, **sleeper.options())
    assert sum(sleeper.slept) == pytest.approx(5, abs=0.1)


class Fault(Told):
    """Has a plan meet an error when it comes to a phase; repaired once there is none."""

    def __init__(self, plan: str, phase: str, error: BaseException) -> None:
        super().__init__()
        self.fault: tuple[str, str] | None = (plan, phase)
        self.error = error

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if (self.plan, name) == self.fault:
            raise self.error


@pytest.mark.rule("flow.stop")
@pytest.mark.parametrize(
    ("phase", "error"),
    [
        ("scan", UsageError("no such folder.")),
        ("transform", KeyError("a bug")),
        ("commit", EngineError("Spark failed.")),
        ("settle", EngineError("Spark failed.")),
    ],
)
def test_a_plan_that_stops_does_not_stop_the_others(place: Path, phase: str, error: Exception) -> None:
    """Its error is told, and is in the summary; its state is free, and the next run goes on from it."""
    outs = [Recorder(place / f"{name}.jsonl") for name in ("one", "two", "three")]

    def flow() -> Flow:
        return Flow("f", [pipe(Path(out.path).stem, DOCUMENTS, out) for out in outs])

    told = Fault("two", phase, error)
    code = 2 if isinstance(error, UsageError) else 1

    summary = run_flow(flow(), place / "state", observer=told)

    assert {name: each.exit for name, each in summary.plans.items()} == {"one": 0, "two": code, "three": 0}
    assert summary.exit == code
    assert [len(out.lines()) for out in (outs[0], outs[2])] == [3, 3]
    assert summary.errors == {"two": error}
    assert told.lines == [f"two: error: it stopped: {message_of(error)} The other plans go on."]
    assert run_flow(flow(), place / "state").exit == 0
    assert [len({line["id"] for line in out.lines()}) for out in outs] == [3, 3, 3]


@pytest.mark.rule("flow.exit")
@pytest.mark.parametrize(
    ("codes", "exit"), [([0, 0], 0), ([0, 3], 3), ([3, 4], 4), ([4, 2, 3], 2), ([2, 1, 4], 1), ([], 0)]
)
def test_the_exit_code_is_the_first_that_any_plan_has(codes: list[int], exit: int) -> None:  # noqa: A002
    """Of 1, 2, 4, 3, 0."""
    from ferryman.engine.summary import FlowSummary, Summary

    summary = FlowSummary("f", {f"p{n}": Summary(exit=code) for n, code in enumerate(codes)})

    assert summary.exit == exit
    assert summary.as_dict()["exit"] == exit


def test_the_json_has_each_plans_summary(chain: Chain) -> None:
    """As ``run --json`` of that plan alone."""
    given = chain.run().as_dict()

    assert given["flow"] == "chain"
    assert set(given) == {"flow", "exit", "plans"}
    assert given["plans"]["second"] == {
        "exit": 0, "waves": 1, "delivered": 3, "deleted": 0, "dropped": 0, "failed": 0, "rejected": 0, "pending": 0,
        "in_doubt": 0,
    }  # fmt: skip


@pytest.mark.rule("flow.kill")
@pytest.mark.parametrize("phase", ["transform", "commit", "deliver", "settle"])
def test_a_kill_between_two_phases_loses_and_doubles_nothing(chain: Chain, phase: str) -> None:
    """Of whatever plan: the next run goes on from each state."""
    for plan in ("first", "second", "third"):
        with pytest.raises(KeyboardInterrupt):
            chain.run(Fault(plan, phase, KeyboardInterrupt()))
    summary = chain.run()

    assert summary.exit == 0
    assert chain.values("a") == [0, 1, 2]
    assert chain.values("b") == [1, 2, 3]
    assert set(chain.out().arrived()) == {"1", "2", "3"}


# --- before anything runs -----------------------------------------------------------------------------------------


@pytest.mark.rule("flow.start")
def test_nothing_runs_while_a_state_is_held(chain: Chain) -> None:
    """All states are taken first; those that could be are given back."""
    flow = chain.flow()
    third = flow.plans[0]
    with State.take(state_root(third, chain.state), third), pytest.raises(StateHeld):
        chain.run()

    assert chain.told.scans == []
    assert chain.run().exit == 0


@pytest.mark.rule("flow.start")
def test_nothing_runs_if_a_plan_has_changed(chain: Chain, place: Path) -> None:
    """And no state remembers the change of another plan, which would be told no more."""
    chain.run()
    flow = chain.flow()
    flow.plans[0].source("more", Memory([], prefix="more/")).destination("there", Recorder(place / "there"))
    chain.steps["first"] = plus
    changed = Flow("chain", [flow.plans[0], *chain.flow().plans[1:]])

    with pytest.raises(PlanChanged):
        run_flow(changed, chain.state)
    told = Told()
    run_flow(changed, chain.state, accept_changes=True, observer=told)

    assert any(line.startswith("first: work changed: ") for line in told.lines)
    assert any(line.startswith("third: source more is new: ") for line in told.lines)


# --- permanently --------------------------------------------------------------------------------------------------


class Enough(Exception):
    """Stands for a kill."""


def periods(chain: Chain, number: int, between: Any = None, observer: Told | None = None) -> Sleeper:
    """Run with ``every=10`` for so many periods."""

    def sleep(total: float) -> None:
        if between is not None:
            between(total)
        if total >= 10 * number:
            raise KeyboardInterrupt

    sleeper = Sleeper(sleep)
    with pytest.raises(KeyboardInterrupt):
        chain.run(every=10.0, observer=observer, **sleeper.options())
    return sleeper


@pytest.mark.rule("flow.run")
def test_with_every_each_period_scans_all_plans(chain: Chain) -> None:
    """What has come meanwhile goes through all of them."""
    periods(chain, 3, lambda total: chain.documents.append({"id": f"e{total}", "n": total}))

    assert len(chain.out().arrived()) == 5
    assert chain.told.scans[:6] == ["first", "second", "third"] * 2


@pytest.mark.rule("flow.stop")
def test_with_every_a_plan_that_stopped_is_started_again(chain: Chain) -> None:
    """In a later period, after 1, 4, 16 s at least, from what its state says."""
    told = Fault("second", "commit", EngineError("Spark failed."))

    def repair(total: float) -> None:
        if total >= 30:
            told.fault = None

    periods(chain, 9, repair, told)

    assert chain.out().arrived() == ["1", "2", "3"]
    recovered = "second: recovered: removed 2 staged files that no wave had committed"
    assert told.lines == [
        "second: error: it stopped: Spark failed. The other plans go on. It is started again after 1 s.",
        "second: it is started again",
        recovered,
        "second: error: it stopped: Spark failed. The other plans go on. It is started again after 4 s.",
        "second: it is started again",
        recovered,
        "second: error: it stopped: Spark failed. The other plans go on. It is started again after 16 s.",
        "second: it is started again",
        recovered,
    ]


@pytest.mark.rule("flow.stop")
def test_with_every_it_ends_when_spark_is_lost(chain: Chain) -> None:
    """With one message: no plan can do anything any more, and those that are idle would never find out."""
    told, sleeper = Fault("second", "transform", RunnerLost("Spark's JVM ended. Run again.")), Sleeper()

    summary = chain.run(every=10.0, observer=told, **sleeper.options())

    assert not sleeper.slept
    assert summary.exit == 1
    assert set(summary.errors) == {"first", "second", "third"}
    assert (summary.plans["first"].exit, summary.plans["first"].delivered) == (1, 3)
    assert told.lines == ["second: error: it stopped: Spark's JVM ended. Run again. The other plans stop, too."]
    assert chain.run().exit == 0
    assert chain.out().arrived() == ["1", "2", "3"]


@pytest.mark.rule("flow.stop")
def test_with_every_it_ends_when_no_plan_is_left(place: Path) -> None:
    """As the run of one plan ends with its error."""
    flow = Flow("f", [pipe("one", DOCUMENTS, Recorder(place / "out"))])
    sleeper = Sleeper()

    summary = run_flow(
        flow, place / "state", every=10.0, observer=Fault("one", "scan", EngineError("gone.")), **sleeper.options()
    )

    assert summary.exit == 1
    assert not sleeper.slept


@pytest.mark.rule("flow.run")
def test_an_operators_command_is_applied_in_the_next_round(chain: Chain) -> None:
    """``retry`` while the flow runs: the plan takes it in its turn, and what it delivers goes on from there."""
    flow = chain.flow()
    root = state_root(flow.plans[2], chain.state)

    def ask(total: float) -> None:
        if total == 10.0:
            state = State(root, flow.plans[2])
            queue_retry(state, "in", ["d0"], "a test")

    periods(chain, 3, ask)

    assert account.status(root, flow.plans[2])["balanced"]


def refuse_second(delivery: Delivery) -> Outcome | None:
    return Outcome.permanent("no") if delivery.id == "2" else Outcome.ok()


def test_a_plan_with_failures_ends_with_3(chain: Chain) -> None:
    """The others with 0; the flow with 3."""
    chain.out().answer = refuse_second

    summary = chain.run()

    assert summary.exit == 3
    assert summary.plans["third"].failed == 1
    assert chain.run().exit == 3
