"""``plan check`` of plans by chance: good ones pass; of one mistake the node is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ferryman import Effect, Plan
from ferryman.plan import DestinationNode, Node, RouterNode, SourceNode, StepNode, check
from tests.plan.plans import Index, good_plans, without


@given(good_plans())
def test_a_plan_in_order_passes(plan: Plan) -> None:
    """Sources, steps, tees, forks, joins and ends in any shape that is allowed."""
    plan.check()


Mutation = Callable[[st.DataObject, list[Node]], tuple[list[Node], set[str]]]
"""(draw, nodes of a good plan) -> (nodes of a bad one, names of which one must be told)."""


def drop_an_edge(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    tees = {n.name for n in nodes if isinstance(n, DestinationNode)}
    edges = [(a, n) for n in nodes for a in n.after if len(n.after) == 1 or a not in tees]
    before, node = data.draw(st.sampled_from(edges))
    return [without(node, before) if n is node else n for n in nodes], {before, node.name}


def add_a_back_edge(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    late = data.draw(st.sampled_from(nodes))
    early = data.draw(st.sampled_from([n for n in nodes if n.name in above(late, nodes)]))
    return [replace(n, after=(*n.after, late.name)) if n is early else n for n in nodes], {early.name}


def above(node: Node, nodes: list[Node]) -> set[str]:
    by_name = {n.name: n for n in nodes}
    found, waiting = set(), [node.name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += by_name[name].after
    return found


def double_a_name(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    one, other = data.draw(st.permutations(nodes))[:2]
    return [replace(n, name=other.name) if n is one else n for n in nodes], {other.name}


def remove_a_node(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    gone = data.draw(st.sampled_from(nodes))
    branching = {n.name for n in nodes if isinstance(n, (RouterNode, DestinationNode))}
    if isinstance(gone, DestinationNode) and not gone.tee:
        assume(not branching & set(gone.after))
    return [n for n in nodes if n is not gone], {
        gone.name,
        *gone.after,
        *(n.name for n in nodes if gone.name in n.after),
    }


def fork_without_a_router(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    at = data.draw(st.sampled_from([n for n in nodes if isinstance(n, (SourceNode, StepNode))]))
    more = Plan("q").destination("more", Index(), after=at.name).plan.nodes
    return [*nodes, *more], {at.name}


def follow_what_is_not_there(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    node = data.draw(st.sampled_from(nodes))
    return [replace(n, after=(*n.after, "nowhere")) if n is node else n for n in nodes], {node.name}


def break_a_name(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    node = data.draw(st.sampled_from(nodes))
    return [replace(n, name=f"{n.name} !") if n is node else n for n in nodes], {f"{node.name} !"}


def make_it_potent(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    steps = [n for n in nodes if isinstance(n, StepNode)]
    assume(steps)
    node = data.draw(st.sampled_from(steps))
    return [replace(n, effect=Effect.POTENT) if n is node else n for n in nodes], {node.name}  # type: ignore[call-arg]


MUTATIONS: list[Mutation] = [
    drop_an_edge, add_a_back_edge, double_a_name, remove_a_node, fork_without_a_router, follow_what_is_not_there,
    break_a_name, make_it_potent,
]  # fmt: skip


@pytest.mark.rule("check.all")
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda m: m.__name__)
@given(plan=good_plans(), data=st.data())
def test_one_mistake_is_found_and_its_node_is_named(mutate: Mutation, plan: Plan, data: st.DataObject) -> None:
    """Whatever the plan, and wherever the mistake."""
    nodes, concerned = mutate(data, list(plan.nodes))
    found, warnings = check.check("random", 0, nodes)

    assert warnings == []
    named = "|".join(map(re.escape, concerned))
    assert any(re.search(rf"(?<![\w-])({named})(?![\w-])", text) for text in found), (found, concerned)
