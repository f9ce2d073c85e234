"""`status` and `fsck` of a plan that reads a log which is not there, or not whole: they count what they know."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, sources
from ferryman.cli.app import start
from ferryman.plan import Plan
from ferryman.plan.load import load_plan
from ferryman.queues import Queue
from ferryman.sources.log import Positions
from ferryman.state.state import state_root
from tests.support.logs import Topic
from tests.support.plan_world import PlanWorld, Watch, place, run_plan, trial
from tests.support.recorder import Recorder

__all__ = ["place", "trial"]

PLAN = """
from ferryman import Plan
from ferryman.destinations import Queue as ToQueue
from ferryman.sources import Queue

plan = Plan("pipe")
plan.source("orders", Queue("in", "queues")).destination("copy", ToQueue("out", "copies"))
"""


class Pipe(PlanWorld):
    """The plan file, and what the commands say of it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, each_time=True)
        self.file = folder / "plan.py"
        self.file.write_text(PLAN)
        self.into = Queue("in", folder / "queues")
        self.state = folder / ".ferryman"
        self._capsys = capsys

    def make_plan(self) -> Plan:
        return load_plan(str(self.file))

    def told(self, *command: str) -> str:
        """What a command prints, that ends well."""
        self._capsys.readouterr()
        assert start([command[0], str(self.file), *command[1:]]) == 0
        printed = self._capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return printed.out

    def reads(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.told("status", "--json"))["sources"]["orders"]
        return found


@pytest.fixture
def pipe(place: Path, capsys: pytest.CaptureFixture[str]) -> Pipe:
    pipe = Pipe(place, capsys)
    pipe.into.append([{"n": n} for n in range(5)])
    pipe.run()
    pipe.into.append([{"n": 5}])
    return pipe


def deleted(pipe: Pipe) -> None:
    pipe.into.delete()


def of_another_machine(pipe: Pipe) -> None:
    """The folder of queues is not mounted here."""
    (pipe.folder / "queues").rename(pipe.folder / "elsewhere")


def no_log(pipe: Pipe) -> None:
    shutil.rmtree(pipe.folder / "queues" / "in" / "messages" / "_delta_log")


def cut_identity(pipe: Pipe) -> None:
    [path] = (pipe.folder / "queues" / "in").glob("queue.json")
    path.write_bytes(path.read_bytes()[:10])


def a_file_in_its_place(pipe: Pipe) -> None:
    shutil.rmtree(pipe.folder / "queues" / "in")
    (pipe.folder / "queues" / "in").touch()


WAYS = [deleted, of_another_machine, no_log, cut_identity, a_file_in_its_place]


@pytest.mark.rule("log.status")
@pytest.mark.parametrize("harm", WAYS, ids=lambda f: f.__name__)
def test_status_counts_what_it_knows(pipe: Pipe, harm: Callable[[Pipe], None]) -> None:
    """Where the plan stands, and what it has read; how much there is to come is not known."""
    assert pipe.reads() == {"positions": {"in": 6}, "read": 5, "lag": 1}
    harm(pipe)
    assert pipe.reads() == {"positions": {"in": 6}, "read": 5, "lag": None}
    told = pipe.told("status")
    assert any(line.split() == ["orders", "6", "5", "unknown"] for line in told.splitlines()), told
    assert "Balanced" in told


@pytest.mark.parametrize("harm", WAYS, ids=lambda f: f.__name__)
def test_fsck_is_about_the_state(pipe: Pipe, harm: Callable[[Pipe], None]) -> None:
    harm(pipe)
    pipe.told("fsck")


@pytest.mark.parametrize("harm", WAYS, ids=lambda f: f.__name__)
def test_a_run_changes_no_position(pipe: Pipe, harm: Callable[[Pipe], None]) -> None:
    """It says what is wrong. Where the queue comes back, it is read on."""
    queues, kept = pipe.folder / "queues", pipe.folder / "kept"
    shutil.copytree(queues, kept)
    harm(pipe)
    watch = Watch()
    pipe.run(observer=watch, wait=0, checked=False)
    assert any(m.startswith("source orders: ") for m in watch.messages), watch.messages
    shutil.rmtree(queues, ignore_errors=True)
    kept.rename(queues)
    assert pipe.run().exit == 0
    assert [m.body["n"] for m in Queue("out", pipe.folder / "copies").read()] == list(range(6))


def test_a_plan_that_never_ran(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to come of a queue that nobody has made."""
    pipe = Pipe(place, capsys)
    assert pipe.reads() == {"positions": {"in": 1}, "read": 0, "lag": 0}
    pipe.into.append([{"n": 1}])
    assert pipe.reads()["lag"] == 1
    cut_identity(pipe)
    assert pipe.reads() == {"positions": {}, "read": 0, "lag": None}


def test_a_queue_that_was_made_again(pipe: Pipe) -> None:
    """All of it is to come."""
    pipe.into.delete()
    Queue("in", pipe.folder / "queues").append([{"n": 1}, {"n": 2}])
    assert pipe.reads() == {"positions": {"in": 1}, "read": 5, "lag": 2}


@pytest.mark.parametrize("harm", [None, deleted])
def test_the_picture_has_the_counts_of_a_log(pipe: Pipe, harm: Callable[[Pipe], None] | None) -> None:
    if harm is not None:
        harm(pipe)
    pipe.told("status", "--svg", str(pipe.folder / "plan.svg"))
    drawn = (pipe.folder / "plan.svg").read_text()
    assert "5 read" in drawn
    assert ("1 to come" in drawn) == (harm is None)


class Odd(Topic):
    def end(self) -> Positions:
        if (self.folder / "odd").exists():
            raise RuntimeError("its client raises what it likes")
        return super().end()


def test_a_log_that_raises_anything(trial: PlanWorld) -> None:
    topic = Odd(trial.folder / "topic")
    topic.publish("p0", {"n": 0})
    trial.build(source=topic)
    trial.run()
    (topic.folder / "odd").touch()
    found = account.status(state_root(trial.plan, trial.state), trial.plan)
    assert found["sources"]["docs"] == {"positions": {"p0": 1}, "read": 1, "lag": None}


def pair(docs: dict[str, Any]) -> dict[str, Any]:
    return {"pair": [docs["a"]["n"], docs["b"]["n"]]}


@pytest.mark.parametrize("kind", ["join", "alts"])
def test_one_of_several_logs_is_gone(place: Path, kind: str) -> None:
    """The others are counted as before."""
    for name in ("qa", "qb"):
        Queue(name, place).append([{"n": n} for n in range(3)])
    plan = Plan("both")
    a, b = plan.source("in_a", sources.Queue("qa", place)), plan.source("in_b", sources.Queue("qb", place))
    both = plan.join("both", pair, {"a": a, "b": b}) if kind == "join" else plan.alts("both", [a, b])
    both.destination("out", Recorder(place / "out.jsonl"))
    run_plan(plan, place / "state")
    root = state_root(plan, place / "state")
    Queue("qb", place).append([{"n": 3}])
    assert account.status(root, plan)["sources"]["in_b"] == {"positions": {"qb": 4}, "read": 3, "lag": 1}
    Queue("qb", place).delete()
    found = account.status(root, plan)["sources"]
    assert found["in_a"] == {"positions": {"qa": 4}, "read": 3, "lag": 0}
    assert found["in_b"]["lag"] is None
    (place / "qb").touch()
    found = account.status(root, plan)["sources"]
    assert found["in_a"] == {"positions": {"qa": 4}, "read": 3, "lag": 0}
    assert (found["in_b"]["lag"], found["both"]["lag"]) == (None, None)
