"""The brake: a step that is broken is stopped, and its documents wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.document import Document
from ferryman.errors import BadDocument, Dropped, PermanentError
from ferryman.testing.inprocess import InProcess
from tests.support.outages import AWAY, asking, attempts, ids
from tests.support.plan_world import PlanWorld
from tests.support.sleeper import Sleeper


def buggy(*good: str) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id in good:
            return doc
        return doc["no such field"]  # type: ignore[no-any-return]

    return step


@pytest.mark.rule("brake.stopped")
def test_a_bug_condemns_nobody(trial: PlanWorld) -> None:
    """After 20 in a row, 20 more of the rest; then the step is stopped, and all others have spent nothing."""
    sleeper = Sleeper()
    trial.build(buggy())
    trial.put(*ids(400))
    summary = trial.run(runner=InProcess(slots=1), **sleeper.options())
    assert (summary.exit, sleeper.slept) == (4, [])
    line = buggy.__code__.co_firstlineno + 4
    message = summary.messages[-1]
    assert message.startswith("step step is stopped: KeyError: 'no such field' ("), message
    assert f"{Path(__file__).name}:{line}). 400 deliveries are pending" in message
    spent = attempts(trial)
    assert spent[1] in (40, 80), "40 a task"
    assert spent[0] == 400 - spent[1]
    tried = sorted(d["document"] for d in trial.deliveries() if d["attempt"])
    assert tried[:20] == ids(20)
    assert tried[-1] > "d360", "the second look is spread over the rest"


@pytest.mark.rule("brake.stopped")
def test_a_mended_bug_goes_on_by_itself(trial: PlanWorld) -> None:
    """The code has changed: the next run tries all again."""
    trial.build(buggy())
    trial.put(*ids(100))
    assert trial.run(wait=0).exit == 4
    trial.build(asking(trial.folder / "none", AWAY["unavailable"]))
    assert trial.run().exit == 0
    assert trial.out().counted() == dict.fromkeys(ids(100), 1)


@pytest.mark.rule("brake.odd")
@pytest.mark.parametrize("slots", [1, 2])
def test_odd_documents_end_after_three_runs(trial: PlanWorld, slots: int) -> None:
    """25 that no code can take: they do not hold up the rest."""
    odd, good = [f"a{i:02}" for i in range(25)], [f"b{i:03}" for i in range(200)]
    trial.build(buggy(*good))
    trial.put(*odd, *good)
    for _ in range(3):
        trial.run(wait=10)
    assert trial.counts() == {"delivered": 200, "failed": 25}


@pytest.mark.rule("brake.odd")
def test_odd_documents_alone_end_after_three_runs(trial: PlanWorld) -> None:
    """They are all that there is."""
    trial.build(buggy())
    trial.put(*ids(25))
    for _ in range(2):
        assert trial.run(wait=0).exit == 4
    assert trial.run(wait=0).exit == 3
    assert trial.counts() == {"failed": 25}


def test_fewer_than_the_brake_are_the_documents_own(trial: PlanWorld) -> None:
    """19 documents and a bug: three attempts each, in one run."""
    trial.build(buggy())
    trial.put(*ids(19))
    assert trial.run().exit == 3
    assert trial.counts() == {"failed": 19}


@pytest.mark.rule("brake.purpose")
@pytest.mark.parametrize(
    "error", [BadDocument("broken PDF"), PermanentError("no"), Dropped("draft")], ids=["bad", "permanent", "dropped"]
)
def test_what_code_says_on_purpose_stops_nothing(trial: PlanWorld, error: Exception) -> None:
    """A folder of broken files is no outage."""

    def step(doc: Document) -> Document:
        raise error

    trial.build(step)
    trial.put(*ids(200))
    assert trial.run().exit == (0 if isinstance(error, Dropped) else 3)
    assert trial.counts() == {"dropped" if isinstance(error, Dropped) else "rejected": 200}


def test_without_a_brake_nothing_is_stopped(trial: PlanWorld) -> None:
    """``brake=None``: every document has its own three attempts."""
    trial.build(buggy(), called={"brake": None})
    trial.put(*ids(60))
    assert trial.run().exit == 3
    assert trial.counts() == {"failed": 60}


def test_a_brake_of_its_own(trial: PlanWorld) -> None:
    """``brake=5``."""
    trial.build(buggy(), called={"brake": 5})
    trial.put(*ids(60))
    assert trial.run(wait=0, runner=InProcess(slots=1)).exit == 4
    assert attempts(trial) == {1: 10, 0: 50}


def test_a_success_of_another_task_is_a_success(trial: PlanWorld) -> None:
    """A task has met only odd documents: they are the documents' own, for the step is well elsewhere."""
    odd, good = [f"a{i:02}" for i in range(15)], [f"b{i:02}" for i in range(15)]
    trial.build(buggy(*good), called={"brake": 5})
    trial.put(*odd, *good)
    summary = trial.run(wait=100, wave_bytes=1)
    assert summary.exit == 3
    assert trial.counts() == {"delivered": 15, "failed": 15}
