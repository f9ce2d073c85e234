"""Two drivers at one state: the second is refused; and where a lock does not hold, the first one stops."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferryman import crash
from ferryman.destinations.base import Effect
from ferryman.errors import EngineError, StateHeld, StateLost
from ferryman.plan.load import load_plan
from ferryman.state.maintenance import sweep
from ferryman.state.state import State
from ferryman.storage.locks import Lock
from tests.support import no_lock
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch
from tests.support.recorder import Recorder, Store
from tests.support.tiers import sampled

PHASES = ["scan", "transform", "commit", "deliver", "settle"]


class Meanwhile(Watch):
    """When the run comes to a phase of a wave for the first time, something else happens first."""

    def __init__(self, wave: int, phase: str, what: object) -> None:
        super().__init__()
        self._when = (wave, phase)
        self._what = what
        self.happened = False

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if (wave, name) == self._when and not self.happened:
            self.happened = True
            self._what()  # type: ignore[operator]


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lock, "take", no_lock.take)


def make(place: Path, guarantee: str) -> PlanWorld:
    out = (
        Store(place / "out.jsonl")
        if guarantee == "exactly-once"
        else Recorder(place / "out.jsonl", effect=Effect.POTENT if guarantee == "at-most-once" else Effect.IDEMPOTENT)
    )
    trial = PlanWorld(place).build(out=out, batch=2, guarantee=guarantee)
    trial.put("a", "b", "c")
    return trial


@pytest.mark.parametrize("phase", PHASES)
def test_the_second_is_refused_while_the_first_runs(trial: PlanWorld, phase: str) -> None:
    """In every phase; the first one does not notice."""

    def try_it() -> None:
        with pytest.raises(StateHeld, match=f"is held by process {os.getpid()}"):
            trial.run(checked=False)

    trial.put("a")
    watch = Meanwhile(1, phase, try_it)
    assert trial.run(observer=watch).delivered == 1
    assert watch.happened


@pytest.mark.parametrize(
    ("phase", "guarantee"),
    sampled([(p, g) for g in ("exactly-once", "at-least-once", "at-most-once") for p in PHASES], 4),
)
def test_without_a_lock_the_first_one_stops_at_its_next_commit(
    place: Path, unlocked: None, phase: str, guarantee: str
) -> None:
    """The second took the state over in the middle of its wave: StateLost, nothing is lost, nothing comes twice."""
    trial = make(place, guarantee)
    watch = Meanwhile(1, phase, lambda: trial.run(checked=False))
    with pytest.raises(StateLost, match="this one stops"):
        trial.run(observer=watch, checked=False)
    trial.run()
    assert trial.out().counted() == {"a": 1, "b": 1, "c": 1}
    assert trial.counts() == {"delivered": 3}


@pytest.mark.parametrize("phase", PHASES)
def test_two_that_take_turns_lose_nothing(place: Path, unlocked: None, phase: str) -> None:
    """Each thinks the other is dead, again and again, with something new each time."""
    trial = make(place, "exactly-once")
    for turn in range(3):
        trial.put(f"new {turn}")
        wave = trial.status()["waves"] + 1 if trial.root.exists() else 1
        watch = Meanwhile(wave, phase, lambda: trial.run(checked=False))
        with pytest.raises(StateLost):
            trial.run(observer=watch, checked=False)
    trial.run()
    assert set(trial.out().counted().values()) == {1}
    assert trial.counts() == {"delivered": 6}


PLAN = """
import time
from pathlib import Path
from ferryman import Plan
from ferryman.sources import Memory
from tests.support.recorder import Recorder

def stop(chunk):
    while Path({hold!r}).exists() and len(out.lines()) >= 3:
        time.sleep(0.02)

out = Recorder({out!r}, before=stop)
plan = Plan("held", version=1)
documents = [{{"id": str(i), "raw": b"x"}} for i in range(10)]
plan.source("docs", Memory(documents)).destination("out", out, batch=1, guarantee="at-most-once")
"""

RUN = """
import sys
from pathlib import Path
from ferryman.plan.load import load_plan
from tests.support.plan_world import run_plan
run_plan(load_plan(sys.argv[1]), Path(sys.argv[2]), checked=False)
"""


def test_a_killed_driver_is_followed_at_once(place: Path) -> None:
    """kill -9 in the middle of delivering: the next one starts without waiting, and says what it recovered."""
    hold = place / "hold"
    hold.touch()
    out = Recorder(place / "out.jsonl")
    plan_file = place / "plan.py"
    plan_file.write_text(PLAN.format(hold=str(hold), out=out.path))
    repository = Path(__file__).parents[2]
    command = [sys.executable, "-c", RUN, str(plan_file), str(place / "state")]
    first = subprocess.Popen(command, cwd=repository)
    try:
        until = time.monotonic() + 300
        while len(out.calls()) < 4:
            assert first.poll() is None, "the first driver has ended"
            assert time.monotonic() < until
            time.sleep(0.02)
        second = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert f"is held by process {first.pid} on" in second.stderr
    finally:
        first.kill()
        first.wait()
    hold.unlink()
    subprocess.run(command, cwd=repository, check=True)
    assert out.counted() == {str(i): 1 for i in range(10) if i != 3}, "the fourth was in flight: unknown"
    with State.take(place / "state" / "held-v1", load_plan(str(plan_file))) as state:
        assert state.epoch == 3


def test_a_driver_that_was_overtaken_removes_nothing(place: Path, unlocked: None) -> None:
    """It knows the tables as they were: what the new driver has committed looks like orphans to it."""
    trial = make(place, "at-least-once")
    with trial.take():
        pass
    stale = trial.take()
    with pytest.raises(Interrupted):
        trial.run(observer=Until(1, "deliver"), checked=False, wait=0)
    with trial.take() as now:
        live = [path for table in now.tables for path in table.paths()]
        assert live
        with pytest.raises(StateLost, match="another driver has taken this state over"):
            sweep(stale)
        assert all(path.exists() for path in live)


@pytest.mark.rule("state.epochs")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_an_overtaken_driver_that_cleans_up_harms_the_new_one_nowhere(
    place: Path, unlocked: None, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """At every step of the new driver's run the old one, which looked at the epochs just before it was overtaken,
    sweeps and empties its scratch: what the new one has staged stays."""
    trial = make(place, guarantee)
    with trial.take():
        pass
    stale = trial.take()
    monkeypatch.setattr(stale, "check_ownership", lambda: None)
    real, points = crash.point, []

    def point(name: str) -> None:
        points.append(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crash, "point", real)
            sweep(stale)
            stale.clear_staging()

    monkeypatch.setattr(crash, "point", point)
    trial.run()
    trial.put("a", text="two")
    trial.drop("b")
    trial.run()
    assert {"transform.outbox", "transform.done", "commit.ready", "deliver.part", "settle.closed"} <= set(points)
    assert trial.counts() == {"delivered": 2, "deleted": 1}


@pytest.mark.rule("state.epochs")
def test_a_new_driver_removes_what_older_ones_have_staged(place: Path, unlocked: None) -> None:
    """Files and scratch of an epoch before ours belong to nobody."""
    trial = make(place, "at-least-once")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(1, "commit"), checked=False)
    assert len(list((trial.root / "outbox").glob("1-*.parquet"))) == 1
    assert any((trial.root / "staging" / "1").iterdir())
    summary = trial.run()
    assert any("removed 2 staged files that no wave had committed" in line for line in summary.messages)
    assert not list((trial.root / "outbox").glob("1-*.parquet"))
    assert [p.name for p in (trial.root / "staging").iterdir()] == ["2"]


@pytest.mark.rule("state.written")
@pytest.mark.parametrize("name", ["outbox", "documents"])
def test_nothing_is_committed_that_is_not_there(place: Path, name: str) -> None:
    """Somebody removes a staged file just before the commit: an error that names it, and the next run does it all."""
    trial = make(place, "at-least-once")
    trial.run()
    trial.put("d")

    def remove() -> None:
        staged = sorted((trial.root / name).glob("*.parquet"), key=lambda p: p.stat().st_mtime_ns)
        staged[-1].unlink()

    with pytest.raises(EngineError, match=f"{name}/.*the file is missing.* Nothing was committed"):
        trial.run(observer=Meanwhile(2, "commit", remove), checked=False)
    trial.run()
    assert trial.counts() == {"delivered": 4}
