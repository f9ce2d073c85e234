"""Plans by chance: those that can run, and any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from ferryman import Effect, Plan
from ferryman.destinations import Destination
from ferryman.plan import Node
from ferryman.routers import ByField, Duplicate, RoundRobin, Router
from ferryman.sources import Memory


class Index(Destination):
    """Declares what ``plan check`` asks for."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    compares_sequences: ClassVar[bool] = True
    keyed_by_id = True

    def __init__(self, at: str | None = None) -> None:
        self.at = at

    def target(self) -> str | None:
        return self.at


class Mail(Index):
    effect: ClassVar[Effect] = Effect.POTENT


def same(doc: Any) -> Any:
    return doc


@st.composite
def good_plans(draw: st.DrawFn) -> Plan:
    """Sources, then in any order steps, tees, forks, joins and ends, until every path has ended."""
    plan = Plan("random")
    made = iter(range(10_000))
    # What was made last on each path that has not ended.
    paths = [
        plan.source(f"source-{n}", Memory([], prefix=f"{n}/")) for n in range(draw(st.integers(1, 3), label="sources"))
    ]
    for move in draw(st.lists(st.sampled_from(["step", "tee", "fork", "join", "end"]), max_size=14), label="moves"):
        if not paths:
            break
        at = paths.pop(draw(st.integers(0, len(paths) - 1)))
        number = next(made)
        match move:
            case "step":
                paths.append(at.step(f"step-{number}", same))
            case "tee":
                paths.append(at.tee(f"tee-{number}", draw(st.sampled_from([Index, Mail]))()))
            case "fork":
                branches = [f"branch-{next(made)}" for _ in range(draw(st.integers(1, 3)))]
                routers: list[Router] = [ByField("kind", {"x": branches[0]}, branches[-1]), Duplicate(), RoundRobin()]
                fork = at.route(f"fork-{number}", draw(st.sampled_from(routers)))
                paths += [fork.step(name, same) for name in branches]
            case "join" if paths:
                other = paths.pop()
                paths.append(plan.step(f"join-{number}", same, after=[at, other]))
            case _:
                at.destination(f"end-{number}", Index())
    for at in paths:
        at.destination(f"end-{next(made)}", Index())
    return plan


NAMES = [
    "a",
    "b",
    "c",
    "d",
    "e-1",
    "end",
    "1.",
    "",
    "<&>",
    'say "hi"',
    "x" * 90,
    "名前",
    "\x00",
    "\ud800",
    "a\nb",
    "]]>",
]

SIGNS = "ab1 .;#|&\\`'\"<>()[]{}/%-\n\r\t\x07\x85\ud800\uffffé"


@st.composite
def any_plans(draw: st.DrawFn) -> Plan:
    """Any nodes in any order under any names: in rings, doubled, following what is not there."""
    plan = Plan(draw(st.sampled_from(["plays", *NAMES])), version=draw(st.integers(0, 3)))
    names = st.one_of(st.sampled_from(NAMES), st.text(SIGNS, max_size=6))
    routers: list[Any] = [ByField("kind", {1: "a", '"': "b"}, "c"), Duplicate(), RoundRobin(), "no router"]
    for _ in range(draw(st.integers(0, 12))):
        name, after = draw(names), draw(st.lists(names, max_size=3))
        match draw(st.sampled_from(["source", "step", "router", "tee", "destination", "wrong"])):
            case "source":
                plan.source(name, Memory([], prefix=draw(st.sampled_from(["", "<p>/"]))))
                plan._nodes[-1] = replace(plan._nodes[-1], after=tuple(dict.fromkeys(after[:1])))
            case "step":
                plan.step(name, same, after=after, effect=draw(st.sampled_from(Effect)), timeout=2)
            case "router":
                plan.route(name, draw(st.sampled_from(routers)), after=after)
            case "tee":
                plan.tee(name, Mail("mail://<here>"), after=after)
            case "destination":
                plan.destination(name, Index(draw(st.sampled_from([None, "index://here", "\ud800"]))), after=after)
            case "wrong":
                wrong: Any = "nothing"
                plan.destination(name, wrong, after=after)
    return plan


def without(node: Node, name: str) -> Node:
    return replace(node, after=tuple(a for a in node.after if a != name))


def source(prefix: str = "") -> Memory:
    return Memory([], prefix=prefix)
