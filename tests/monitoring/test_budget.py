"""Nothing that watches a run slows it, fails it, or keeps it from ending."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.monitoring.run import MonitoredRun
from ferryman.monitoring.sender import BackgroundSender
from ferryman.observe import Silent
from tests.support.monitored import Stopwatch, run_monitored
from tests.support.plan_world import PlanWorld, Watch
from tests.support.receiver import Receiver, Reply

GRACE_S = 30.0
"""For a machine that does other things: far below what a hanging server would cost, which is minutes."""


def test_a_run_ends_although_collector_and_lineage_server_hang(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both together have one budget, which is said (opentelemetry-python 2284)."""
    trial.put("a")
    with Receiver(lambda _: Reply(how="late")) as hanging:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hanging.port}")
        waited: list[float] = []
        summary = run_monitored(trial, watch=Ending(waited), spans=True, openlineage=hanging.url)
        ended = time.monotonic()

    assert summary.exit == 0
    assert ended - waited[-1] < limits.MONITORING_END_S + GRACE_S
    said = [message for message in trial.watch.messages if "no answer in time" in message]
    assert sorted(message.partition(" ")[0] for message in said) == ["lineage", "spans"]


class Ending(Watch):
    """Notes when the run waits for the last time."""

    def __init__(self, waited: list[float]) -> None:
        super().__init__()
        self._waited = waited

    def waits(self, seconds: float | None = None) -> None:
        self._waited.append(time.monotonic())


def test_a_process_ends_although_both_hang(place: Path) -> None:
    """Not only the run: no thread and no exit handler keeps the interpreter."""
    program = """
import os, sys
from pathlib import Path
from tests.support.monitored import run_monitored
from tests.support.plan_world import PlanWorld
world = PlanWorld(Path(sys.argv[1]))
world.put("a")
print(run_monitored(world, spans=True, openlineage=os.environ["LINEAGE"]).exit)
"""
    with Receiver(lambda _: Reply(how="late")) as hanging:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hanging.port}",
            "LINEAGE": hanging.url,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run(
            [sys.executable, "-c", program, str(place)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert done.stdout.strip() == "0", done.stderr


def test_a_full_queue_drops_and_says_so_once() -> None:
    """Whoever has an item never waits."""
    held, said = threading.Event(), []
    sender: BackgroundSender[int] = BackgroundSender("x", lambda items: held.wait(60) and None, said.append, size=10)

    for number in range(1000):
        sender.put(number)

    assert said == ["x: 10 items wait to be sent; newer ones are dropped. The run goes on."]
    held.set()
    sender.end(time.monotonic() + 60)


def test_items_are_sent_in_order_and_once() -> None:
    sent: list[int] = []
    sender: BackgroundSender[int] = BackgroundSender("x", sent.extend, print, size=5000)

    for number in range(2000):
        sender.put(number)
    sender.end(time.monotonic() + 60)

    assert sent == list(range(2000))


def test_an_end_does_not_wait_for_the_next_try() -> None:
    """Which may be an hour away: there is a last one, now."""
    tries: list[int] = []

    def fail(items: object) -> None:
        tries.append(1)
        raise OSError("away")

    said: list[str] = []
    sender: BackgroundSender[int] = BackgroundSender("x", fail, said.append, size=10)
    sender.put(1)
    clock = Stopwatch()
    sender.end(time.monotonic() + 60)

    assert 1 <= len(tries) <= 2
    assert clock.seconds < 60
    assert said == ["x: away. The run continues without it."]


class Broken(Silent):
    wants_chunks = True

    def __init__(self) -> None:
        self.calls = 0

    def phase(self, wave: int, name: str) -> None:
        self.calls += 1
        raise RuntimeError("a fault of ours")


def test_a_fault_in_a_recorder_ends_the_recorder_not_the_run(trial: PlanWorld) -> None:
    watch, broken = Watch(), Broken()
    run = MonitoredRun(watch)
    run.add(broken)
    trial.put("a")

    summary = trial.run(observer=run)

    assert (summary.exit, broken.calls) == (0, 1)
    assert watch.messages == ["Broken: RuntimeError: a fault of ours. The run continues without it."]


def test_nothing_is_imported_that_is_not_asked_for() -> None:
    """A start must not get slower."""
    program = (
        "import sys, ferryman, ferryman.operations, ferryman.monitoring.run; "
        "print([m for m in ('prometheus_client', 'opentelemetry', 'ferryman.monitoring.lineage') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
