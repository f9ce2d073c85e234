"""What an endless run writes while nothing happens, how long a phase took beside a pause, and the level of trouble."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ferryman.errors import Unavailable
from ferryman.observe import EndedPhase, JsonLog, LineProgress, PhaseTracker, Silent
from tests.support.plan_world import PlanWorld, build_line

HOUR_S = 3600.0


class Enough(BaseException):
    """Ends an endless run."""


class Time:
    """Clock of an observer. A pause of the run passes at once, and so does a listing of twelve seconds."""

    def __init__(self, until_s: float) -> None:
        self.now = 0.0
        self._until_s = until_s

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self._until_s:
            raise Enough


class Slow(Silent):
    """Lets a listing take twelve seconds."""

    def __init__(self, observer: PhaseTracker, time: Time) -> None:
        self._observer, self._time = observer, time

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "phase":
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_observer"), name)

    def phase(self, wave: int, name: str) -> None:
        self._observer.phase(wave, name)
        self._time.now += 12.0 if name == "scan" else 0.0


def run_endless(trial: PlanWorld, observer: PhaseTracker, time: Time, every: float = 300.0, **options: Any) -> None:
    with pytest.raises(Enough):
        trial.run(every=every, observer=Slow(observer, time), sleep=time.sleep, checked=False, **options)


@pytest.mark.rule("lines.quiet")
def test_a_run_that_finds_nothing_writes_a_line_an_hour(trial: PlanWorld) -> None:
    """It says for how long, and when it looks next; listings that take long are no news."""
    trial.build()
    trial.put("a", "b")
    lines, time = io.StringIO(), Time(8.5 * HOUR_S)

    run_endless(trial, LineProgress(lines, clock=time), time)

    written = lines.getvalue().splitlines()
    [settled] = [number for number, line in enumerate(written) if "2 delivered" in line]
    quiet = written[settled + 1 :]
    assert len(quiet) == 8
    assert all(line.startswith("nothing has happened for 1 h ") for line in quiet), quiet
    assert all("; the next look is at 20" in line and line.endswith(" UTC") for line in quiet), quiet


@pytest.mark.rule("lines.quiet")
def test_a_json_log_is_as_quiet(trial: PlanWorld) -> None:
    """Each line has when it looks next, as a time that programs can read."""
    trial.build()
    trial.put("a")
    lines, time = io.StringIO(), Time(3.5 * HOUR_S)

    run_endless(trial, JsonLog(lines, clock=time), time)

    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    [settled] = [number for number, each in enumerate(events) if each["event"] == "settled"]
    quiet = events[settled + 1 :]
    assert [each["event"] for each in quiet] == ["quiet"] * 3
    assert all(each["next"] > each["time"] and each["seconds"] >= HOUR_S and not each["pending"] for each in quiet)


@pytest.mark.rule("lines.quiet")
def test_news_and_pending_deliveries_are_told(trial: PlanWorld) -> None:
    """A document that comes after hours is news at once; what is pending is counted in the line of the hour."""
    trial.build()
    trial.put("a")
    lines, time = io.StringIO(), Time(5.5 * HOUR_S)
    sleep, closed = time.sleep, trial.folder / "closed"

    def refuse() -> None:
        if closed.exists():
            raise Unavailable("closed for the night")

    trial.out().refuse = refuse
    trial.out().before = lambda _chunk: refuse()

    def sleep_and_change(seconds: float) -> None:
        sleep(seconds)
        if time.now > 2 * HOUR_S and not closed.exists():
            closed.touch()
            trial.put("b")

    time.sleep = sleep_and_change  # type: ignore[method-assign]
    run_endless(trial, LineProgress(lines, clock=time), time, clock=time)

    written = lines.getvalue().splitlines()
    assert any(line.startswith("warning: destination out: ") and "closed for the night" in line for line in written)
    hours = [line for line in written if line.startswith("nothing has happened")]
    assert len(hours) > 3
    assert "pending" not in hours[0]
    assert sum("0 delivered, 1 pending" in line for line in written) == 1, "said once, not at each try"
    assert ", 1 delivery is pending; the next look" in hours[-1]


@pytest.mark.rule("lines.pause")
def test_a_pause_is_not_the_work_of_a_phase(trial: PlanWorld) -> None:
    """A step is away for two calls: no phase lasts over the pauses between them."""
    called = trial.folder / "called"

    def flaky(doc: Any) -> Any:
        with called.open("a") as file:
            file.write(".")
        if called.stat().st_size < 3:
            raise Unavailable("not yet")
        return doc

    lines, time = io.StringIO(), Time(HOUR_S)
    ended: list[tuple[str, float]] = []

    class Ended(JsonLog):
        def phase_ended(self, phase: EndedPhase) -> None:
            ended.append((phase.name, phase.took_s))

    trial.put("a")
    plan = build_line(trial, flaky)
    trial.run(plan, observer=Ended(lines, clock=time), sleep=time.sleep, clock=time, wait=600)
    assert time.now >= 1.0, "it has paused"
    assert called.stat().st_size == 3
    assert {took_s for _, took_s in ended} == {0.0}, ended


@pytest.mark.rule("lines.levels")
def test_trouble_of_a_node_is_a_warning_in_the_json_log(trial: PlanWorld) -> None:
    """Of a destination and of a step, at the end of a run; the summary has the words without the level."""

    def away(doc: Any) -> Any:
        raise Unavailable("the model is loading")

    trial.put("a")
    lines = io.StringIO()
    summary = trial.run(build_line(trial, away), observer=JsonLog(lines), wait=0)
    messages = [each for each in map(json.loads, lines.getvalue().splitlines()) if each["event"] == "message"]
    [trouble] = [each for each in messages if "the model is loading" in each["text"]]
    assert trouble["level"] == "warning"
    assert trouble["text"].startswith("step away is not available: ")
    assert trouble["text"] in summary.messages
