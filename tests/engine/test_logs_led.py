"""What a log's destinations have not had, for they came into the plan later: nothing of it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account, operations
from ferryman.destinations import Queue as IntoQueue
from ferryman.engine import driver
from ferryman.engine.migration import migrate
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from ferryman.state import state as state_module
from ferryman.state.state import State, state_root
from tests.support.keyed import count
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder


class Changing:
    """Plan ``changing``: queue ``in`` → those of these nodes that it has now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.into = DurableQueue("in", folder)
        self.outs = {name: Recorder(folder / f"{name}.jsonl") for name in ("one", "two")}

    def plan(self, nodes: str, version: int = 1, *, below: bool = False) -> Plan:
        plan = Plan("changing", version=version)
        fork = plan.source("log", Queue("in", self.folder)).route("fork", Duplicate())
        for name in nodes.split():
            if name == "counts":
                node = fork.keyed(name, count, key="word")
                if below:
                    node.destination("below", IntoQueue("below", self.folder))
            else:
                fork.destination(name, self.outs[name], backoff=0)
        return plan

    def run(self, plan: Plan, *words: str, from_version: int | None = None) -> Any:
        """More words come, and a run whose operator accepts each change of the plan."""
        self.into.append([{"word": word} for word in words])
        plan.freeze()
        root = state_root(plan, self.folder / "state")
        if from_version is not None:
            migrate(root, plan, from_version)
        with State.take(root, plan) as state:
            driver.remember_plan(state, accept_changes=True)
        return run_plan(plan, self.folder / "state")

    def balanced(self, plan: Plan) -> bool:
        found = account.status(state_root(plan, self.folder / "state"), plan)
        return bool(found["balanced"])


@pytest.fixture
def changing(place: Path) -> Changing:
    return Changing(place)


@pytest.mark.rule("log.led")
def test_a_destination_that_is_new_misses_nothing(changing: Changing) -> None:
    """It has what comes from then on; also after it was away for a while, and before the first run with it."""
    changing.run(changing.plan("one"), "a", "b")
    changing.run(changing.plan("one two"), "c")
    assert [line["id"] for line in changing.outs["two"].lines()] == ["in/3"]
    changing.run(changing.plan("one"), "d", "e")
    plan = changing.plan("one two")
    plan.freeze()
    assert changing.balanced(plan)
    changing.run(plan, "f")
    assert [line["id"] for line in changing.outs["two"].lines()] == ["in/3", "in/6"]
    assert operations.check(state_root(plan, changing.folder / "state")) == []


@pytest.mark.rule("log.led")
def test_a_keyed_node_that_is_new_misses_nothing(changing: Changing) -> None:
    """And what follows it later has its exports from then on."""
    changing.run(changing.plan("one"), "a", "b")
    changing.run(changing.plan("one counts", below=True), "a")
    changing.run(changing.plan("counts"), "a")
    plan = changing.plan("counts", below=True)
    changing.run(plan, "a", "b")
    assert account.status(state_root(plan, changing.folder / "state"), plan)["destinations"]["below"]["delivered"] == 3


@pytest.mark.rule("log.led")
def test_the_same_in_a_new_version(changing: Changing) -> None:
    """A source that is out of it begins at its beginning when it comes back; nothing is remembered of it."""
    changing.run(changing.plan("one"), "a", "b")
    changing.run(changing.plan("one two counts", 2), "c", from_version=1)
    changing.run(changing.plan("counts", 3), "d", from_version=2)
    changing.run(changing.plan("one counts", 4), "e", from_version=3)


@pytest.mark.rule("log.led")
def test_a_change_that_a_kill_cut_short_did_not_happen(changing: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two files: the plan may go on as it was, and change later."""
    changing.run(changing.plan("one"), "a", "b")

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    for nodes in ("one two", "one"):
        with monkeypatch.context() as patched:
            patched.setattr(state_module.State, "record_structure", kill)
            if nodes == "one two":
                with pytest.raises(Killed):
                    changing.run(changing.plan(nodes), "c")
        changing.run(changing.plan("one"), "d")
    changing.run(changing.plan("one two"), "e")


def test_what_is_really_missing_is_said(changing: Changing) -> None:
    plan = changing.plan("one two")
    changing.run(plan, "a", "b")
    with State.take(state_root(plan, changing.folder / "state"), plan) as state:
        state.ledger.commit("test", removes=[next(iter(state.ledger.files))])
    assert not changing.balanced(plan)
