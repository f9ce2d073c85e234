"""Joins: edges that skip a step, and several sources."""

from __future__ import annotations

import pytest

from ferryman.routers import Duplicate
from tests.support.failing import failing
from tests.support.plan_world import PlanWorld


@pytest.mark.rule("plan.join")
def test_a_skip_edge_is_a_branch(net: PlanWorld) -> None:
    """A → B, A → C, B → C: two copies come to C, by routes of their own."""
    fork = net.source().route("fork", Duplicate())
    near = fork.step("near", failing(0))
    net.plan.step("far", failing(0), after=[fork, near])
    net.plan.destination("out", net.out("out"), after="far")
    net.put("a")
    net.run()
    assert net.arrived("out") == {"a by near": 1, "a by far": 1}


@pytest.mark.rule("plan.join")
def test_several_sources_join(net: PlanWorld) -> None:
    """They are different documents, also under one id."""
    left, right = net.source("left"), net.source("right")
    net.plan.step("join", failing(0), after=[left, right])
    net.plan.destination("out", net.out("out"), after="join")
    net.put("a", "b", source="left")
    net.put("a", source="right")
    assert net.run().delivered == 3
    assert net.arrived("out") == {"a": 2, "b": 1}
