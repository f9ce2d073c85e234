"""Steps that need something which not every machine has: a graphics card, a licence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Null
from ferryman.document import Document
from ferryman.engine.breakers import BreakerRegistry, NodeBreakers
from ferryman.errors import PlanError
from ferryman.plan import Plan
from ferryman.plan.nodes import CAPABILITIES_VARIABLE
from ferryman.routers import ByField
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld


class Machines(InProcess):
    """Tasks are dealt out to the machines of a cluster by chance, with a seed.

    Args:
        has: what each of them has.
    """

    def __init__(self, *has: str) -> None:
        super().__init__(slots=len(has))
        self.has = list(has)
        self._random = random.Random(0)
        self.started = True  # nothing runs beside the driver

    def run(self, task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """See ``InProcess.run``."""
        answers = []
        with pytest.MonkeyPatch.context() as patch:
            for item in items:
                patch.setenv(CAPABILITIES_VARIABLE, self._random.choice(self.has))
                answers += super().run(task, [item])
        return answers


class Asked(Machines):
    """Counts how often they are asked what they have."""

    times = 0

    def run(self, task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """See ``InProcess.run``."""
        self.times += 1
        return super().run(task, items)


def seen(net: PlanWorld) -> Callable[[Document], Document]:
    """A step that fails where there is no graphics card."""
    import os

    calls = net.counting("seen")

    def step(doc: Document) -> Document:
        assert "gpu" in os.environ[CAPABILITIES_VARIABLE].split(",")
        return calls(doc)

    return step


@pytest.mark.rule("needs.none")
def test_without_a_machine_that_has_it_documents_wait(net: PlanWorld) -> None:
    """The step is named, with what to do; nothing is spent, and what does not need it goes on. Then one has it."""
    fork = net.source().route("kind", ByField("kind"))
    fork.step("picture", seen(net), needs="gpu", attempts=1).destination("seen-out", net.out("seen-out"))
    fork.step("text", net.counting("text")).destination("text-out", net.out("text-out"))
    net.put("p1", "p2", kind="picture")
    net.put("t1", kind="text")
    for _ in range(3):
        summary = net.run(runner=Machines("", "disk"))
        assert summary.exit == 4
        assert summary.messages[-1] == (
            "step picture is stopped: needs gpu, which no executor has. On one machine: --has gpu; on a cluster, "
            "FERRYMAN_HAS in the environment of the executors that have it. 2 deliveries are pending: fix it and run "
            "again."
        )
    assert net.arrived("text-out") == {"t1": 1}
    assert net.events("p1", "seen-out") == ["ERROR"], "said once"
    assert net.run(runner=Machines("", "gpu,disk")).exit == 0
    assert net.arrived("seen-out") == {"p1": 1, "p2": 1}
    assert net.calls("seen") == {"p1": 1, "p2": 1}


@pytest.mark.rule("needs.some")
@pytest.mark.parametrize("machines", [("gpu", ""), ("", "gpu"), ("", "", "gpu")])
def test_where_some_machines_have_it_the_others_leave_it_to_them(net: PlanWorld, machines: tuple[str, ...]) -> None:
    """A document that comes to a machine without is tried on another, in the same run."""
    net.source().step("see", seen(net), needs=["gpu"]).destination("out", net.out("out"), attempts=1)
    net.put(*(f"d{i:02}" for i in range(40)))
    for i in range(3):
        net.put(f"large{i}", text="x" * 20_000)
    assert net.run(runner=Machines(*machines)).exit == 0
    assert sum(net.arrived("out").values()) == 43
    assert set(net.calls("seen").values()) == {1}


def test_several_needs_are_needed_together(net: PlanWorld) -> None:
    """No machine has both."""
    net.source().step("see", seen(net), needs=("gpu", "licence")).destination("out", net.out("out"))
    net.put("a")
    summary = net.run(runner=Machines("gpu", "licence"))
    assert summary.exit == 4
    assert "needs gpu and licence, which no executor has" in summary.messages[-1]
    assert net.run(runner=Machines("", "licence,gpu")).exit == 0


def test_machines_are_asked_now_and_then(place: Path) -> None:
    """Not at each turn of an endless run; where nobody has it, when the step is due to be tried again."""
    now = 1000.0
    plan = Plan("needs")
    plan.source("a", Memory([])).step("see", lambda doc: doc, needs="gpu").destination("b", Null())
    breakers = BreakerRegistry(plan, lambda _: None, lambda: now)
    nodes = NodeBreakers(plan, breakers, lambda: now)
    nodes.breakers.endless = True
    machines = Asked("")
    for _ in range(5):
        nodes.check_capabilities(machines)
    assert (machines.times, nodes.blocked("see")) == (1, True)
    now += 1.5
    machines.has = ["gpu"]
    for _ in range(5):
        nodes.check_capabilities(machines)
    assert (machines.times, nodes.blocked("see")) == (2, False)
    now += 59
    nodes.check_capabilities(machines)
    assert machines.times == 2
    now += 2
    nodes.check_capabilities(machines)
    assert machines.times == 3


@pytest.mark.parametrize("needs", ["", "two words", ["gpu", 7], 7, ["-x"]])
def test_needs_that_are_no_names(net: PlanWorld, needs: Any) -> None:
    """Found by ``check``, with all else."""
    net.source().step("see", lambda doc: doc, needs=needs).destination("out", net.out("out"))
    with pytest.raises(PlanError, match=r"see: needs=.*: give names of letters, digits and -_\. such as 'gpu'\."):
        net.plan.check()
