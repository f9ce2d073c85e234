"""A call that was given up cannot act later; and what was sent before it is known."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import crash, limits
from ferryman.destinations.base import Delivery, Effect
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.storage import processes
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder
from tests.support.tiers import sampled
from tests.support.worker import one_worker

PATIENCE_S = 60.0


def until(happens: Callable[[], object]) -> None:
    """Wait for something that is sure to come."""
    end = time.monotonic() + 5 * PATIENCE_S
    while not happens():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


class Late(Recorder):
    """Its first ``write`` waits for the file ``go``, and takes effect then."""

    def __init__(self, place: Path, **options: Any) -> None:
        super().__init__(place / "out.jsonl", before=self._wait, **options)
        self.place_ = place

    def _wait(self, chunk: list[Delivery]) -> None:
        first = self.place_ / "first"
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            return
        until((self.place_ / "go").exists)


def texts(out: Recorder) -> list[str]:
    return [line["text"] for line in out.lines()]


@pytest.mark.rule("destination.given-up")
@pytest.mark.parametrize("failures", sampled([1, 4], 2))
def test_a_write_that_was_given_up_never_comes_after_a_newer_one(place: Path, failures: int) -> None:
    """Its worker ends when it is given up, whether the runner tries the task again or not."""
    trial = PlanWorld(place).build(out=Late(place), send_timeout=2)
    with one_worker(failures) as runner:
        trial.put("a", text="one")
        summary = trial.run(runner=runner, wait=0)
        assert (summary.exit, summary.pending, runner.deaths) == (4, 1, 1)
        assert any("write: no answer within 2 s" in m for m in summary.messages)
        trial.put("a", text="two")
        assert trial.run(runner=runner).exit == 0
        (place / "go").touch()
        time.sleep(1)  # a thread that is still there would act now
    assert texts(trial.out()) == ["one", "two"]
    assert {line["attempt"] for line in trial.out().lines()} == {1}, "no attempt was spent"


def test_a_worker_that_shares_the_drivers_host_name_and_process_id_ends(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two pods with ``hostNetwork``, in which process ids are counted apart."""
    own = os.getpid
    monkeypatch.setattr(processes, "machine_id", lambda: f"container {own()}")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    trial = PlanWorld(place).build(out=Late(place), send_timeout=2)
    with one_worker() as runner:
        trial.put("a")
        assert (trial.run(runner=runner, wait=0).exit, runner.deaths) == (4, 1)
        (place / "go").touch()


@pytest.mark.rule("destination.given-up")
def test_one_that_hangs_again_is_called_in_a_child_process(place: Path) -> None:
    """In the pass after it hung: now only the child ends. It is asked once more, for the row may be to blame, and then
    later."""
    out = Recorder(place / "out.jsonl", before=lambda chunk: time.sleep(PATIENCE_S) if not go.exists() else None)
    go = place / "go"
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            go.touch()
        time.sleep(seconds)

    trial = PlanWorld(place).build(out=out, send_timeout=2)
    trial.put("a")
    with one_worker() as runner:
        summary = trial.run(runner=runner, wait=600, sleep=nap)
        assert (summary.exit, runner.deaths) == (0, 1)
    assert out.counted() == {"a": 1}
    assert len(out.calls()) == 4


@pytest.mark.rule("destination.given-up")
def test_under_at_most_once_what_was_given_up_is_in_doubt(place: Path) -> None:
    """The rest goes on, in the next pass."""
    trial = PlanWorld(place).build(out=Late(place, effect=Effect.POTENT), send_timeout=2, batch=2)
    trial.put("a", "b", "c", "d")
    with one_worker() as runner:
        assert trial.run(runner=runner).exit == 3
        (place / "go").touch()
        time.sleep(0.5)
    assert trial.counts() == {"in_doubt": 2, "delivered": 2}
    assert trial.out().counted() == {"c": 1, "d": 1}


def test_a_kill_while_a_hang_is_noted_changes_nothing(place: Path) -> None:
    """Crash point ``deliver.hung``: the note is there, and the process ends a moment earlier."""
    trial = PlanWorld(place).build(out=Late(place), send_timeout=2)
    trial.put("a")
    crash.arm("deliver.hung", str(place / "seen"))
    try:
        summary = trial.run(runner=InProcess(fork=True, failures=1), wait=0)
    finally:
        crash.disarm()
    assert (place / "seen").exists()
    assert any("no answer within" in m for m in summary.messages)
    (place / "go").touch()
    assert trial.run().exit == 0
    assert trial.out().counted() == {"a": 1}


@pytest.mark.parametrize("method", sampled(["open", "close"], 2))
def test_other_calls_that_hang_end_their_process_too(place: Path, method: str) -> None:
    """What was delivered before ``close`` is noted."""
    trial = PlanWorld(place).build(send_timeout=2)

    def hang(*_: object) -> None:
        if not (place / "go").exists():
            time.sleep(PATIENCE_S)

    hang.__name__ = method
    setattr(trial.out(), method, hang)
    trial.put("a")
    with one_worker() as runner:
        summary = trial.run(runner=runner, wait=0)
        assert runner.deaths == 1
        assert any(f"{method}: no answer within 2 s; it was in hang, line" in m for m in summary.messages)
        assert summary.pending == (1 if method == "open" else 0)
        (place / "go").touch()
        assert trial.run(runner=runner).exit == 0
    assert trial.out().counted() == {"a": 1}


# --- what a kill sends again ----------------------------------------------------------------------------


def killing_at(id: str, mark: Path, ready: Callable[[], object] = lambda: True) -> Callable[[list[Delivery]], None]:
    """Once: kills its process when this row is to be written, as soon as ``ready`` says so."""

    def before(chunk: list[Delivery]) -> None:
        if any(d.id == id for d in chunk) and not mark.exists():
            mark.touch()
            until(ready)
            os.kill(os.getpid(), signal.SIGKILL)

    return before


@pytest.mark.rule("guarantee.one-chunk")
@pytest.mark.parametrize("failures", sampled([1, 4], 2))
def test_under_at_least_once_a_kill_doubles_one_chunk_at_most(place: Path, failures: int) -> None:
    """What came of a chunk is noted before the next is sent."""
    trial = PlanWorld(place)
    trial.build(out=Recorder(place / "out.jsonl", before=killing_at("d5", place / "mark")), batch=1)
    trial.put(*(f"d{n}" for n in range(8)))
    assert trial.run(runner=InProcess(fork=True, failures=failures)).exit == 0
    assert trial.out().counted() == {f"d{n}": 1 for n in range(8)}


@pytest.mark.rule("guarantee.one-chunk")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_while_a_write_takes_long_what_was_sent_before_it_is_noted(
    place: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """As a file of the ledger and a result: nothing of it is sent again when the process is killed then."""
    monkeypatch.setattr(limits, "RESULT_EVERY_S", 0.05)
    journal = PlanWorld(place).root / "journal"
    before = killing_at("d5", place / "mark", lambda: list(journal.glob("*/*-000000005.result")))
    out = Recorder(place / "out.jsonl", before=before, transactional=True)
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, batch=1)
    trial.put(*(f"d{n}" for n in range(8)))
    assert trial.run(runner=InProcess(fork=True, failures=1)).exit == 0
    assert trial.out().counted() == {f"d{n}": 1 for n in range(8)}


# --- send_timeout= --------------------------------------------------------------------------------------


@pytest.mark.rule("destination.send-timeout")
def test_each_destination_has_its_own_time(place: Path) -> None:
    """Sixty seconds unless the plan says otherwise; a tee too."""
    plan = Plan("p")
    docs = plan.source("docs", Memory([])).tee("tee", Recorder(place / "tee"), send_timeout=3)
    docs.destination("out", Recorder(place / "out"))
    assert {n.name: n.policy.send_timeout for n in plan.nodes if n.name != "docs"} == {"tee": 3, "out": 60}  # type: ignore[attr-defined]
