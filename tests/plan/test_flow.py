"""Flows: which plans come after which, what is refused, what is warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman import Flow, Plan
from ferryman.destinations import Queue as QueueDestination
from ferryman.errors import PlanError
from ferryman.plan import Joint
from ferryman.sources import Memory, Queue
from tests.plan.plans import Index
from tests.support.joined import Into, Messages, pipe

ROOT = Path("/queues")


def plan(name: str, reads: str | None = None, writes: str | None = None, version: int = 0) -> Plan:
    """A plan that reads a queue and writes one, or what is none of a flow's."""
    source = Messages(reads, ROOT) if reads else []
    return pipe(name, source, Into(writes, ROOT) if writes else Index(), version=version)


def names(flow: Flow) -> list[str]:
    return [each.name for each in flow.order]


def findings(flow: Flow) -> list[str]:
    with pytest.raises(PlanError) as refused:
        flow.check()
    return refused.value.findings


@pytest.mark.rule("flow.order")
def test_a_plan_comes_after_those_whose_queues_it_reads() -> None:
    """However they were given; two plans may write one queue, and two may read it."""
    flow = Flow(
        "f", [plan("end", "c"), plan("other", "b"), plan("b", "b", "c"), plan("one", None, "b"), plan("two", None, "b")]
    )

    assert names(flow) == ["one", "two", "other", "b", "end"]
    assert flow.joints == (
        Joint("file:///queues/b", "one", "out", "other", "in"),
        Joint("file:///queues/b", "two", "out", "other", "in"),
        Joint("file:///queues/b", "one", "out", "b", "in"),
        Joint("file:///queues/b", "two", "out", "b", "in"),
        Joint("file:///queues/c", "b", "out", "end", "in"),
    )


@pytest.mark.rule("flow.order")
def test_plans_that_nothing_joins_keep_their_order() -> None:
    """A flow may be of plans that have nothing to do with each other."""
    flow = Flow("f", [plan("b"), plan("c"), plan("a")])

    assert names(flow) == ["b", "c", "a"]
    assert not flow.joints


@pytest.mark.rule("flow.cycle")
def test_a_cycle_of_plans_is_warned_of() -> None:
    """It may run; what follows the cycle comes after all of it."""
    flow = Flow("f", [plan("end", "c"), plan("b", "b", "c"), plan("c", "c", "b"), plan("one", None, "b")])

    assert names(flow) == ["one", "b", "c", "end"]
    (told,) = [w for w in flow.check() if "cycle" in w]
    assert told.startswith("b → c → b: a cycle of plans: what each writes comes back to it.")


@pytest.mark.rule("flow.cycle")
def test_a_plan_that_reads_what_it_writes_is_refused() -> None:
    """A loop without end; the error says how it is done."""
    with pytest.raises(PlanError) as refused:
        plan("loop", "q", "q").check()

    (told,) = refused.value.findings
    assert told == (
        "in: reads file:///queues/q, which out of the same plan writes: a loop without end. Make two plans of it, one "
        "that writes and one that reads, and run them together as a Flow: Flow(name, [first, second])."
    )


def test_a_folder_under_another_name_is_the_same(tmp_path: Path) -> None:
    """A loop through a symbolic link is one; plans that are joined through one take their turns."""
    (tmp_path / "real folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real folder")
    loop = Plan("loop")
    source = loop.source("in", Queue("q", tmp_path / "link"))
    source.destination("out", QueueDestination("q", tmp_path / "real folder"))
    with pytest.raises(PlanError, match="a loop without end"):
        loop.check()

    first, second = Plan("first"), Plan("second")
    first.source("in", Memory([])).destination("out", QueueDestination("q", tmp_path / "real folder"))
    second.source("in", Queue("q", tmp_path / "link")).destination("out", QueueDestination("r", tmp_path))
    assert [joint.writer for joint in Flow("both", [second, first]).joints] == ["first"]


def test_mistakes_are_told_all_at_once() -> None:
    """Those of the flow, then those of each plan behind its name."""
    bad = Plan("bad")
    bad.source("in", Messages("q", ROOT))
    flow = Flow("1st", [bad, "plan.py", plan("a"), plan("a")])  # type: ignore[list-item]

    assert findings(flow) == [
        "flow '1st': bad name: use letters, digits, '_', '.', '-', beginning with a letter.",
        "flow 1st: plans[1] is a str: give Plans.",
        "flow 1st: 2 plans are a-v0, and would share a state: give each a name of its own.",
        (
            "bad: in: the path ends here without a destination, so nothing would happen to these documents: add "
            ".destination(name, …) after it."
        ),
    ]


def test_a_flow_has_a_plan_at_least() -> None:
    """An empty list is a mistake; one plan is enough."""
    assert findings(Flow("f", [])) == ["flow f: it has no plans: give one or more, Flow(name, [plan, plan])."]
    assert Flow("f", [plan("a")]).check() == []


def test_warnings_name_their_plan() -> None:
    """As the plan's own check gives them, behind its name."""
    flow = Flow("f", [plan("a"), plan("b")])
    for each in flow.plans:
        each.source("more", Messages("x", ROOT)).destination("same", Index("here"))
        each.source("most", Messages("y", ROOT)).destination("again", Index("here"))

    told = flow.check()

    assert [w.partition(": ")[0] for w in told] == ["a", "b"]
    assert told[0].startswith("a: here: the sources more, most reach it without distinct prefixes")


def test_two_versions_of_a_plan_are_told_apart() -> None:
    """By name and version, where the name alone would not do."""
    flow = Flow("f", [plan("a", version=1), plan("a", version=2), plan("b")])

    assert [flow.label(each) for each in flow.plans] == ["a-v1", "a-v2", "b"]
    assert flow.check() == []


def test_a_flow_that_has_run_is_frozen() -> None:
    """So are its plans."""
    flow = Flow("f", [plan("a")])
    flow.freeze()

    with pytest.raises(PlanError):
        flow.plans[0].source("late", Messages("q", ROOT))
