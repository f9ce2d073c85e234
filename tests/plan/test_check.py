"""``plan check`` finds all that is wrong with a plan in one go, and names the node and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import Effect, Plan
from ferryman.destinations import Destination
from ferryman.errors import PlanError
from ferryman.plan import SourceNode, check
from ferryman.plan.paths import cycles
from ferryman.routers import ByField, Duplicate, RoundRobin
from ferryman.sources import Queue
from tests.plan.plans import Index, same, source


def findings(plan: Plan) -> list[str]:
    """Why it is refused; [] if it is not."""
    try:
        plan.check()
    except PlanError as e:
        return e.findings
    return []


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.rule("check.cycle")
def test_a_cycle() -> None:
    """The ring is told from its first node on, on the way that documents take."""
    plan = Plan("p")
    a = plan.source("a", source())
    fork = plan.step("b", same, after=[a, "c"]).route("fork", ByField("x"))
    fork.step("c", same)
    fork.destination("d", Index())

    assert findings(plan) == [
        "b → fork → c → b: a cycle: these nodes follow each other; remove one of the edges (after=)."
    ]


@pytest.mark.rule("check.cycle")
def test_a_node_that_follows_itself() -> None:
    """The shortest ring."""
    plan = Plan("p")
    plan.step("b", same, after=[plan.source("a", source()), "b"]).destination("c", Index())

    assert "b → b: a cycle" in "\n".join(findings(plan))


def test_rings_that_share_a_node_are_all_told() -> None:
    """Who opens one does not find the next in the next check."""
    plan = Plan("p")
    fork = plan.step("a", same, after=[plan.source("s", source()), "b", "c"]).route("fork", ByField("x"))
    fork.step("b", same)
    fork.step("c", same)
    fork.destination("d", Index())

    assert cycles(plan.nodes) == [["a", "fork", "b"], ["a", "fork", "c"]]


@pytest.mark.rule("plan.unique")
def test_two_nodes_of_one_name() -> None:
    """One mistake is one finding: that edges of twins look like forks and rings is not told."""
    plan = Plan("p")
    plan.source("a", source()).step("b", same).step("b", same).step("c", same).destination("b", Index())

    assert findings(plan) == ["b: 3 nodes have this name: names are unique in a plan, rename all but one."]


@pytest.mark.rule("plan.names")
@pytest.mark.parametrize("name", ["", "1st", "two words", "-x", "é", "a\n", "a/b", 7, None, ["a"]], ids=repr)
def test_bad_names(name: Any) -> None:
    """Of nodes and plans; also what is no text at all."""
    plan = Plan("p")
    plan.source(name, source()).destination("b", Index())
    [found] = findings(plan)

    assert "bad name: use letters, digits" in found
    assert repr(name) in found or str(name) in found
    of_a_plan = Plan(name)
    of_a_plan.source("a", source()).destination("b", Index())
    assert findings(of_a_plan) == [
        f"plan {name!r}: bad name: use letters, digits, '_', '.', '-', beginning with a letter."
    ]


@pytest.mark.parametrize("version", [-1, 1.5, "1", None, True])
def test_bad_versions(version: Any) -> None:
    """A whole number from 0."""
    plan = Plan("p", version=version)
    plan.source("a", source()).destination("b", Index())

    assert findings(plan) == [f"plan p: version {version!r}: give a whole number from 0."]


@pytest.mark.rule("check.orphan")
def test_a_node_that_follows_nothing() -> None:
    """Only sources may."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index())
    plan.step("c", same).destination("d", Index())

    assert findings(plan) == [
        "c: follows no node and is not a source: give it after=[…], or make it from another node."
    ]


@pytest.mark.rule("check.source")
def test_a_source_that_follows_something() -> None:
    """Nothing that builds plans makes one; a plan is data and may come from elsewhere."""
    nodes = [
        SourceNode("a", ("b",), source=source()),
        SourceNode("b", source=source()),
        Plan("q").destination("c", Index(), after="a").plan.nodes[0],
    ]

    assert check.check("p", 0, nodes)[0] == ["a: a source follows nothing: remove its after=."]


@pytest.mark.rule("check.end")
@pytest.mark.parametrize("kind", ["source", "step", "router"])
def test_a_path_that_ends_in_no_destination(kind: str) -> None:
    """Whatever stands at its end, but for a tee, which is a destination too."""
    plan = Plan("p")
    last = plan.source("a", source())
    if kind != "source":
        last = last.step("b", same) if kind == "step" else last.route("b", Duplicate())

    assert findings(plan) == [
        (
            f"{last.name}: the path ends here without a destination, so nothing would happen to these documents: "
            "add .destination(name, …) after it."
        )
    ]
    last.tee("end", Index())
    assert findings(plan) == []


@pytest.mark.rule("check.potent")
@pytest.mark.parametrize("mutates", [True, False])
def test_a_potent_step(mutates: bool) -> None:
    """Steps run before the commit; where it changes the document too, the two are to be taken apart."""
    plan = Plan("p")
    plan.source("a", source()).step("mail", same, effect=Effect.POTENT, mutates=mutates).destination("c", Index())
    [found] = findings(plan)

    assert found.startswith("mail: a step runs before the commit")
    assert "make it a tee or a destination" in found
    assert ("split it in two" in found) == mutates


@pytest.mark.rule("check.potent")
def test_a_potent_step_where_no_step_sees_an_entry_twice(tmp_path: Path) -> None:
    plan = Plan("p", strategy="at-most-once")
    plan.source("a", Queue("a", tmp_path)).step("charge", same, effect=Effect.POTENT).destination("c", Index())
    assert findings(plan) == []


@pytest.mark.rule("check.fork")
@pytest.mark.parametrize("kind", ["source", "step", "tee"])
def test_several_successors_without_a_router(kind: str) -> None:
    """Who is there twice must be told how."""
    plan = Plan("p")
    at = plan.source("a", source())
    if kind != "source":
        at = at.step("b", same) if kind == "step" else at.tee("b", Index())
    at.destination("c", Index())
    at.destination("d", Index())

    assert findings(plan) == [
        (
            f"{at.name}: has 2 successors (c, d) without a router between: put one there, .route(name, Duplicate()) "
            "for a copy to each."
        )
    ]


def test_what_follows_a_destination() -> None:
    """A path ends there; a tee is meant."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index()).destination("c", Index())

    assert findings(plan) == [
        (
            "c: follows b, but a destination is the end of a path: follow the node before it, or make b a tee: "
            ".tee(name, …)."
        )
    ]


def test_a_name_that_is_not_there() -> None:
    """Each of them."""
    plan = Plan("p")
    plan.destination("b", Index(), after=[plan.source("a", source()), "x", 3])

    assert findings(plan) == [
        "b: follows 'x', which is not in the plan: declare it or correct after=.",
        "b: follows '<3>', which is not in the plan: declare it or correct after=.",
    ]


@pytest.mark.rule("check.branch")
def test_a_branch_that_does_not_exist() -> None:
    """Each branch that the router can name."""
    plan = Plan("p")
    kind = plan.source("a", source()).route("kind", ByField("k", {"1": "one", "2": "two"}, default="rest"))
    kind.destination("one", Index())

    assert [text.partition(":")[0] for text in findings(plan)] == ["kind", "kind"]
    assert findings(plan)[0] == (
        "kind: routes to 'two', which is not one of its branches: a branch is named after its first node, here one. "
        "Add the branch, or correct the router."
    )


def unequal(on_unequal: Any) -> Plan:
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", RoundRobin(on_unequal=on_unequal))
    fork.step("left", same).destination("b", Index())
    fork.tee("right", Index()).destination("c", Index())
    return plan


@pytest.mark.rule("check.unequal")
def test_unequal_branches_of_a_router_that_is_not_deterministic() -> None:
    """A warning, or a refusal where the router says so."""
    told = "fork: is not deterministic, and its branches lead to different destinations (left → b; right → c, right). "

    assert findings(unequal("error")) == [
        told + "on_unequal='error' refuses this: lead each branch to all of them, or allow it with 'warn'."
    ]
    assert unequal("warn").check() == [
        told + "The commit of a wave fixes what was chosen; if all should get it, lead each branch to all of them."
    ]


@pytest.mark.rule("check.unequal")
def test_equal_branches_of_a_router_that_is_not_deterministic() -> None:
    """They meet again: nothing to say."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", RoundRobin(on_unequal="error"))
    plan.destination("b", Index(), after=[fork.step("left", same), fork.step("right", same)])

    assert plan.check() == []


@pytest.mark.rule("check.exactly-once")
def test_an_unknown_effect_or_guarantee() -> None:
    """What a destination must declare, and what it cannot keep."""

    class Silent(Destination):
        pass

    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    fork.destination("b", Silent())
    fork.destination("c", Index(), guarantee="exactly-once")

    assert findings(plan) == [
        "b: Silent does not say its effect: set effect = Effect.IDEMPOTENT or Effect.POTENT.",
        (
            "c: Index cannot keep exactly-once, for it does not store the delivery hash with the effect "
            "(transactional = True): ask for at-least-once or at-most-once."
        ),
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attempts", 0),
        ("attempts", "3"),
        ("batch", 0),
        ("batch_bytes", -1),
        ("lanes", 0),
        ("lanes", "2"),
        ("batch", 1.5),
        ("backoff", []),
        ("backoff", -1),
        ("backoff", "10"),
        ("backoff", [float("nan")]),
    ],
)
def test_numbers_of_a_policy(option: str, value: Any) -> None:
    """Out of range, or no numbers."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index(), **{option: value})
    [found] = findings(plan)

    assert found.startswith(f"b: {option}=")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "2"])
def test_timeouts(timeout: Any) -> None:
    """Seconds above 0."""
    plan = Plan("p")
    plan.source("a", source()).step("b", same, timeout=timeout).destination("c", Index())

    assert findings(plan) == [f"b: timeout={timeout!r}: give seconds above 0, or leave it out."]


def test_a_word_for_nan() -> None:
    plan = Plan("p")
    plan.source("a", source()).step("b", same, nan="zero").destination("c", Index())  # type: ignore[arg-type]

    assert findings(plan) == ['b: nan=\'zero\': give "reject" or "null".']


@pytest.mark.rule("destination.send-timeout")
@pytest.mark.parametrize("send_timeout", [0, -1, 601, float("inf"), "60", None])
def test_a_send_timeout_that_is_none(send_timeout: Any) -> None:
    """Nor may it hold up the waves of all others for hours."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index(), send_timeout=send_timeout)

    assert findings(plan) == [f"b: send_timeout={send_timeout!r}: give seconds above 0, 600 at most."]


def test_what_is_not_what_it_should_be() -> None:
    """A folder is no source, a URL is no destination, a field is no router, a name is no function."""
    wrong: Any = "x"
    plan = Plan("p")
    plan.source("a", wrong).step("b", wrong).route("c", wrong).destination("d", wrong)

    assert [text.partition(":")[0] for text in findings(plan)] == ["a", "b", "c", "d"]


@pytest.mark.rule("check.all")
def test_all_mistakes_are_found_in_one_go() -> None:
    """Nobody has to mend a plan a mistake at a time."""
    wrong: Any = "x"
    plan = Plan("bad plan", version=-1)
    a = plan.source("a", source())
    plan.step("ring-1", same, after=[a, "ring-2"])
    plan.step("ring-2", same, after="ring-1")
    plan.step("twin", same, after=a)
    plan.step("twin", same, after="nowhere")
    plan.step("lonely", same)
    plan.step("1st", same, after="lonely")
    plan.step("mail", same, effect=Effect.POTENT, timeout=-1, after="1st")
    fork = plan.route("fork", RoundRobin(on_unequal="error"), after="mail")
    fork.destination("left", Index(), guarantee="exactly-once", attempts=0)
    fork.destination("right", wrong, backoff=-1)
    kind = plan.route("kind", ByField("k", default="rest"), after="right")
    kind.step("stop", wrong)
    told = "\n".join(findings(plan))

    for words in [
        "plan 'bad plan': bad name",
        "version -1",
        "ring-1 → ring-2 → ring-1: a cycle",
        "twin: 2 nodes have this name",
        "twin: follows 'nowhere'",
        "twin: the path ends here",
        "a: has 2 successors",
        "lonely: follows no node",
        "'1st': bad name",
        "mail: a step runs before",
        "mail: timeout=-1",
        "fork: is not deterministic",
        "left: Index cannot keep exactly-once",
        "left: attempts=0",
        "right: 'x' is not a Destination",
        "kind: follows right, but a destination",
        "kind: routes to 'rest'",
        "stop: 'x' is not a function",
        "stop: the path ends here",
    ]:
        assert words in told, words
