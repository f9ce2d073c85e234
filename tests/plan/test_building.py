"""Building a plan: names and order, defaults, what it touches, until when it can be changed."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

import pytest

from ferryman import Effect, Guarantee, Plan
from ferryman.destinations import Destination
from ferryman.errors import PlanError
from ferryman.plan import DestinationNode, StepNode, picture
from ferryman.routers import ByField, Duplicate, RoundRobin
from ferryman.sources import Memory
from tests.plan.plans import Index, same


def ended(plan: Plan) -> DestinationNode:
    """Its last node."""
    node = plan.nodes[-1]
    assert isinstance(node, DestinationNode)
    return node


@pytest.mark.rule("plan.state")
def test_the_version_is_0_if_none_is_given() -> None:
    """It is part of the name of the state's folder."""
    assert (Plan("plays").version, Plan("plays").key, Plan("plays", version=3).key) == (0, "plays-v0", "plays-v3")


@pytest.mark.rule("plan.after", "plan.join")
def test_after_takes_nodes_and_names_also_of_later_nodes() -> None:
    """Alone or several; an edge is there once."""
    plan = Plan("p")
    plan.destination("end", Index(), after="late")
    one = plan.source("one", Memory([], prefix="1/"))
    plan.step("late", same, after=[one, "two", "one"])
    plan.source("two", Memory([], prefix="2/"))

    assert {n.name: n.after for n in plan.nodes} == {
        "end": ("late",), "one": (), "late": ("one", "two"), "two": ()
    }  # fmt: skip
    plan.check()


TOUCHES = """
import sys
from ferryman import Plan
from ferryman.destinations import JsonLines, Memory as Kept, Null, Sql
from ferryman.routers import ByField, Duplicate
from ferryman.sources import Files, Memory, DataFrame

def build():
    plan = Plan("p")
    plan.source("files", Files("/nowhere/files")).destination("sql", Sql("sqlite:////nowhere/out.db"))
    plan.source("table", DataFrame(lambda spark: spark.table("t"))).destination("lines", JsonLines("/nowhere/lines"))
    fork = plan.source("memory", Memory([{"id": "a"}])).route("fork", Duplicate())
    fork.step("step", str).destination("kept", Kept())
    fork.route("kind", ByField("kind")).tee("null", Null()).destination("end", Null())

build()  # imports what is imported at the first use
seen = []
watched = ("open", "os.listdir", "os.scandir", "os.mkdir", "socket.", "sqlite3.", "subprocess.")
sys.addaudithook(lambda event, args: event.startswith(watched) and seen.append((event, args)))
build()
print(seen, [name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")])
"""


@pytest.mark.rule("plan.no-io")
def test_building_touches_nothing() -> None:
    """No file, no folder, no connection, no process, of whatever it is built; Spark is not even imported."""
    done = subprocess.run(
        [sys.executable, "-c", TOUCHES],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert done.stdout.strip() == "[] []"


@pytest.mark.rule("plan.fingerprint")
def test_the_structure_is_part_of_the_fingerprint() -> None:
    """Another name, another order, another edge."""

    def made(*names: str, after: str = "s") -> str:
        plan = Plan("p")
        plan.source("s", Memory([]))
        for name in names:
            plan.step(name, same, after=after)
        plan.destination("end", Index(), after=names[-1])
        return plan.fingerprint

    assert made("a", "b") == made("a", "b")
    assert len({made("a"), made("b"), made("a", "b"), made("b", "a"), made("a", "b", after="a")}) == 5


@pytest.mark.rule("effect.mutates")
def test_a_step_says_whether_it_changes_the_document() -> None:
    """It does, unless it is said otherwise; text and JSON of the plan show it."""
    plan = Plan("p")
    node = plan.source("a", Memory([])).step("changes", same).step("keeps", same, mutates=False)
    node.destination("end", Index())

    assert {n.name: n.mutates for n in plan.nodes if isinstance(n, StepNode)} == {"changes": True, "keeps": False}
    lines = picture.text(plan).splitlines()
    assert ["leaves the document as it is" in line for line in lines if "changes" in line] == [False]
    assert ["leaves the document as it is" in line for line in lines if "keeps" in line] == [True]


@pytest.mark.rule("router.kinds")
def test_what_the_shipped_routers_are() -> None:
    """(deterministic, copies)."""
    routers = [ByField("kind"), Duplicate(), RoundRobin()]

    assert [(r.deterministic, r.copies) for r in routers] == [(True, False), (True, True), (False, False)]


@pytest.mark.rule("guarantee.default")
@pytest.mark.parametrize(
    ("potent", "stores", "guarantee"),
    [
        (False, False, Guarantee.AT_LEAST_ONCE),
        (True, False, Guarantee.AT_MOST_ONCE),
        (False, True, Guarantee.EXACTLY_ONCE),
        (True, True, Guarantee.EXACTLY_ONCE),
    ],
)
def test_the_default_guarantee_is_the_best_that_can_be_kept(potent: bool, stores: bool, guarantee: Guarantee) -> None:
    """By what the destination declares; any other can be asked for, by its name too."""

    class Out(Destination):
        effect: ClassVar[Effect] = Effect.POTENT if potent else Effect.IDEMPOTENT
        transactional: ClassVar[bool] = stores

    plan = Plan("p")
    plan.source("a", Memory([])).destination("end", Out())
    assert ended(plan).policy.guarantee is guarantee
    plan.tee("tee", Out(), after="a", guarantee="at-most-once")
    assert ended(plan).policy.guarantee is Guarantee.AT_MOST_ONCE


@pytest.mark.rule("retry.attempts")
def test_a_delivery_has_three_attempts_unless_the_plan_says_otherwise() -> None:
    """Of destinations and tees."""
    plan = Plan("p")
    tee = plan.source("a", Memory([])).tee("tee", Index())
    assert ended(plan).policy.attempts == 3
    tee.destination("end", Index(), attempts=7)
    assert ended(plan).policy.attempts == 7


@pytest.mark.rule("retry.backoff")
def test_the_longest_wait_grows_by_four_up_to_an_hour() -> None:
    """Where the plan says nothing; else it is the plan's numbers, of which the last one repeats."""
    plan = Plan("p")
    plan.source("a", Memory([])).destination("end", Index())
    policy = ended(plan).policy
    assert [policy.longest_wait_s(n) for n in range(1, 9)] == [1, 4, 16, 64, 256, 1024, 3600, 3600]
    assert policy.longest_wait_s(10**6) == 3600
    plan.destination("other", Index(), after="a", backoff=[5, 60])
    assert [ended(plan).policy.longest_wait_s(n) for n in (1, 2, 3)] == [5, 60, 60]


@pytest.mark.rule("plan.frozen")
def test_a_frozen_plan_takes_no_more_nodes() -> None:
    """The run that froze it goes by what it was."""
    plan = Plan("p")
    node = plan.source("a", Memory([]))
    node.destination("end", Index())
    plan.freeze()

    for add in (
        lambda: plan.source("b", Memory([])),
        lambda: node.step("b", same),
        lambda: node.route("b", Duplicate()),
        lambda: node.tee("b", Index()),
        lambda: node.destination("b", Index()),
    ):
        with pytest.raises(PlanError, match="b: plan p has run and is frozen"):
            add()
    assert [n.name for n in plan.nodes] == ["a", "end"]
