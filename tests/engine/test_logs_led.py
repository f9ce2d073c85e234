"""What a log's destinations have not had, for they came into the plan later: nothing of it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman import operations
from ferryman.destinations import Queue as IntoQueue
from ferryman.engine.run import Summary
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from ferryman.state import state as state_module
from ferryman.state.state import State
from tests.support.keyed import count
from tests.support.plan_world import PlanWorld


def build_changing(world: PlanWorld, nodes: str, version: int = 1, *, below: bool = False) -> Plan:
    """Build plan ``changing``: queue ``in`` → those of these nodes that it has now."""
    plan = Plan("changing", version=version)
    fork = plan.source("log", Queue("in", world.folder)).route("fork", Duplicate())
    for name in nodes.split():
        if name == "counts":
            node = fork.keyed(name, count, key="word")
            if below:
                node.destination("below", IntoQueue("below", world.folder))
        else:
            fork.destination(name, world.out(name), backoff=0)
    return plan


class Changing(PlanWorld):
    def read(self, plan: Plan, *words: str, from_version: int | None = None) -> Summary:
        """Run with more words; the operator accepts each change of the plan."""
        self.put(*words)
        return self.run(plan, from_version, accept_changes=True)


@pytest.fixture
def changing(place: Path) -> Changing:
    return Changing(place, build_changing, field="word")


@pytest.mark.rule("log.led")
def test_a_destination_that_is_new_misses_nothing(changing: Changing) -> None:
    """It has what comes from then on; also after it was away for a while, and before the first run with it."""
    changing.read(changing.make_plan("one"), "a", "b")
    changing.read(changing.make_plan("one two"), "c")
    assert [line["id"] for line in changing.outs["two"].lines()] == ["in/3"]
    changing.read(changing.make_plan("one"), "d", "e")
    plan = changing.make_plan("one two")
    plan.freeze()
    assert changing.status(plan)["balanced"]
    changing.read(plan, "f")
    assert [line["id"] for line in changing.outs["two"].lines()] == ["in/3", "in/6"]
    assert operations.check(changing.root_of(plan)) == []


@pytest.mark.rule("log.led")
def test_a_keyed_node_that_is_new_misses_nothing(changing: Changing) -> None:
    """And what follows it later has its exports from then on."""
    changing.read(changing.make_plan("one"), "a", "b")
    changing.read(changing.make_plan("one counts", below=True), "a")
    changing.read(changing.make_plan("counts"), "a")
    plan = changing.make_plan("counts", below=True)
    changing.read(plan, "a", "b")
    assert changing.status(plan)["destinations"]["below"]["delivered"] == 3


@pytest.mark.rule("log.led")
def test_the_same_in_a_new_version(changing: Changing) -> None:
    """A source that is out of it begins at its beginning when it comes back; nothing is remembered of it."""
    changing.read(changing.make_plan("one"), "a", "b")
    changing.read(changing.make_plan("one two counts", 2), "c", from_version=1)
    changing.read(changing.make_plan("counts", 3), "d", from_version=2)
    changing.read(changing.make_plan("one counts", 4), "e", from_version=3)


@pytest.mark.rule("log.led")
def test_a_change_that_a_kill_cut_short_did_not_happen(changing: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two files: the plan may go on as it was, and change later."""
    changing.read(changing.make_plan("one"), "a", "b")

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    for nodes in ("one two", "one"):
        with monkeypatch.context() as patched:
            patched.setattr(state_module.State, "record_structure", kill)
            if nodes == "one two":
                with pytest.raises(Killed):
                    changing.read(changing.make_plan(nodes), "c")
        changing.read(changing.make_plan("one"), "d")
    changing.read(changing.make_plan("one two"), "e")


def test_what_is_really_missing_is_said(changing: Changing) -> None:
    plan = changing.make_plan("one two")
    changing.read(plan, "a", "b")
    with State.take(changing.root_of(plan), plan) as state:
        state.ledger.commit("test", removes=[next(iter(state.ledger.files))])
    assert not changing.status(plan)["balanced"]
