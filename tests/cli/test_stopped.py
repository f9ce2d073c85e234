"""What people read of a plan that has stopped before a message, and the command that lets it go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman import operations
from ferryman.cli.app import start
from ferryman.cli.run import print_summary
from ferryman.engine.run import Summary
from ferryman.plan import Plan
from ferryman.plan.load import load_plan
from ferryman.queues import Queue
from tests.support.plan_world import PlanWorld, place

__all__ = ["place"]

PLAN = """
from ferryman import PermanentError, Plan
from ferryman.destinations import Queue as ToQueue
from ferryman.sources import Queue

def refuse(doc):
    if doc["n"] == 2:
        raise PermanentError("two is too many")
    return doc

plan = Plan("pipe")
plan.source("orders", Queue("in", "queues")).step("refuse", refuse).destination("copy", ToQueue("out", "queues"))
"""


class StoppedPlan(PlanWorld):
    """A plan file whose plan has stopped before ``in/3``, and what the commands print."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, each_time=True)
        self.file = folder / "plan.py"
        self.file.write_text(PLAN)
        Queue("in", folder / "queues").append([{"n": n} for n in range(5)])
        self.state = folder / ".ferryman"
        self._capsys = capsys
        self.summary = self.run()

    def make_plan(self) -> Plan:
        return load_plan(str(self.file))

    def shown(self, *command: str, code: int = 0) -> str:
        """What a command prints."""
        self._capsys.readouterr()
        assert start([*command]) == code
        printed = self._capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return printed.out

    def end_of(self, summary: Summary) -> str:
        """What a run prints at its end."""
        self._capsys.readouterr()
        print_summary(summary, self.root, self.plan, str(self.file), None)
        return self._capsys.readouterr().out


@pytest.fixture
def stopped(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> StoppedPlan:
    monkeypatch.chdir(place)
    return StoppedPlan(place, capsys)


WHY = "step refuse: PermanentError: two is too many"


@pytest.mark.rule("log.stop-shown")
def test_status_deliveries_history_and_the_end_of_a_run_name_it(stopped: StoppedPlan) -> None:
    """With the reason and the commands for it; nobody speaks of listing and deleting."""
    spec = str(stopped.file)
    skip = f"ferryman queue skip {spec}"
    status = stopped.shown("status", spec)
    assert "The plan has stopped before a message that failed" in status
    [row] = [line for line in status.splitlines() if line.startswith("orders  in/3")]
    assert WHY in row
    assert skip in status
    assert "Balanced" in status
    listed = stopped.shown("deliveries", spec)
    [row] = [line for line in listed.splitlines() if line.startswith("in/3")]
    assert "stopped" in row
    assert f"the plan stops before it: {WHY}" in row
    assert stopped.shown("deliveries", spec, "--status", "stopped").count("in/") == 1
    history = stopped.shown("history", spec, "in/3")
    assert f"the plan stops before it: {WHY}" in history
    assert "in/3 of source orders has stopped the plan" in history
    end = stopped.end_of(stopped.summary)
    assert f"The plan has stopped before in/3 of orders, and what is behind it waits: {WHY}" in end
    assert skip in end
    assert "listed" not in end
    assert "deleted" not in end.partition("\n")[2]
    [entry] = json.loads(stopped.shown("status", spec, "--json"))["stopped"]
    assert (entry["source"], entry["document"]) == ("orders", "in/3")


@pytest.mark.rule("log.stop-retry", "log.stop-skip")
def test_retry_and_skip_say_what_they_did(stopped: StoppedPlan) -> None:
    spec = str(stopped.file)
    assert stopped.shown("retry", spec, "--doc", "in/3").startswith("1 due now. Next: ferryman run")
    assert "has not stopped before a message that matches" in stopped.shown("queue", "skip", spec, "--doc", "in/4")
    assert stopped.shown("queue", "skip", spec).startswith("1 message will not stop the plan. Next: ferryman run")
    done = json.loads(stopped.shown("queue", "skip", spec, "--json"))
    assert done == {"plan": "pipe", "skipped": 1, "queued": False}
    summary = stopped.run()
    assert summary.exit == 3
    assert "has stopped" not in stopped.end_of(summary) + stopped.shown("status", spec)


@pytest.mark.rule("log.stop-skip")
def test_skip_of_a_plan_that_never_ran_is_refused(stopped: StoppedPlan) -> None:
    assert stopped.shown("queue", "skip", str(stopped.file), "--state", "nowhere", code=2) == ""


@pytest.mark.rule("log.stop-skip")
@pytest.mark.parametrize("act", [operations.skip, operations.retry], ids=["skip", "retry"])
def test_a_command_waits_for_the_run_that_holds_the_state(stopped: StoppedPlan, act: Callable[..., object]) -> None:
    """And that run applies it."""
    with operations.State.take(stopped.root, stopped.plan):
        assert act(stopped.plan, state=stopped.state) == operations.Retried(None, queued=True)
    summary = stopped.run()
    assert summary.exit == (3 if act is operations.skip else 4)
    assert any("1 delivery" in message or "1 message" in message for message in summary.messages), summary.messages
