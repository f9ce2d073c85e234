"""Nothing that watches a run slows it, fails it, or keeps it from ending."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ferryman import Plan, limits
from ferryman.account import Figures, figures
from ferryman.monitoring import metrics as metrics_module
from ferryman.monitoring import run as run_module
from ferryman.monitoring import sender as sender_module
from ferryman.monitoring.metrics import MetricsPublisher, MonitoredPlan
from ferryman.monitoring.run import MonitoredRun
from ferryman.monitoring.sender import BackgroundSender
from ferryman.observe import Silent
from ferryman.sources import Queue as FromQueue
from tests.support.monitored import Stopwatch, run_monitored
from tests.support.plan_world import PlanWorld, Watch
from tests.support.receiver import Receiver, Reply
from tests.support.waiting import wait_until


class Clock:
    """A clock that stands still while work is done, and goes on by all that the end of a run may wait for threads that
    hang.

    Attributes:
        waited: seconds that were waited for each thread that hung, by whichever thread.
        metrics_hang: set when the thread of the metrics has come to what hangs, which takes it no time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.waited: list[float] = []
        self.metrics_hang = threading.Event()
        join, main = threading.Thread.join, threading.current_thread()

        def wait(thread: threading.Thread, timeout: float | None = None) -> None:
            if timeout is None:
                join(thread)
                return
            if thread.name.startswith("ferryman-"):
                if thread.name == "ferryman-metrics":
                    self.metrics_hang.wait(60)
                self.waited.append(timeout)
            else:  # it waits itself for those that hang, within its own time
                join(thread, 60)
            if threading.current_thread() is main:
                self.now += timeout

        monkeypatch.setattr(threading.Thread, "join", wait)
        for module in (run_module, sender_module, metrics_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, time=time.time))

    @property
    def end_s(self) -> float:
        """Seconds that the end of the run took."""
        return self.now - 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A collector and lineage server that take requests and never answer."""
    with Receiver(lambda _: Reply(how="late")) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
        yield server


def test_a_run_ends_2_s_later_at_most_with_a_collector_and_a_lineage_server_that_hang(
    trial: PlanWorld, hanging: Receiver, clock: Clock
) -> None:
    """Both together have one budget, and what was not sent is said (opentelemetry-python 2284)."""
    trial.put("a")
    summary = run_monitored(trial, spans=True, openlineage=hanging.url)

    assert summary.exit == 0
    assert clock.end_s <= limits.MONITORING_END_S == 2
    assert len(clock.waited) == 2
    assert max(clock.waited) < limits.MONITORING_END_S
    said = [message for message in trial.watch.messages if "no answer in time" in message]
    assert sorted(message.partition(" ")[0] for message in said) == ["lineage", "spans"]


@pytest.fixture
def hang(clock: Clock) -> Iterator[Callable[..., None]]:
    """A function that does not come back before the end of the test."""
    gone_on = threading.Event()

    def never_return(*_: object) -> None:
        clock.metrics_hang.set()
        gone_on.wait(60)

    yield never_return
    gone_on.set()


def test_a_metrics_file_that_hangs_is_in_the_same_budget(
    trial: PlanWorld, hanging: Receiver, hang: Callable[..., None], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network's file system whose server is away."""
    monkeypatch.setattr("prometheus_client.write_to_textfile", hang)
    trial.put("a")
    summary = run_monitored(trial, metrics=trial.folder / "m.prom", spans=True, openlineage=hanging.url)

    assert summary.exit == 0
    assert clock.end_s <= limits.MONITORING_END_S
    assert len(clock.waited) == 3
    said = [message for message in trial.watch.messages if "in time" in message]
    assert sorted(message.partition(" ")[0] for message in said) == ["lineage", "metrics", "spans"]


@pytest.mark.parametrize("asked", ["end", "begin"])
def test_a_log_that_does_not_answer_is_in_the_budget(
    net: PlanWorld, monkeypatch: pytest.MonkeyPatch, hang: Callable[..., None], clock: Clock, asked: str
) -> None:
    """It is asked for what the plan has not read yet, after the state was counted."""
    net.into.append([{"word": "a"}])
    net.plan.source("in", FromQueue("in", net.folder)).destination("out", net.out())
    net.run()
    monkeypatch.setattr(FromQueue, asked, hang)
    said: list[str] = []
    publisher = MetricsPublisher([MonitoredPlan(net.plan, net.root)], net.folder / "m.prom", said.append)

    publisher.start()
    publisher.end(clock.now + limits.MONITORING_END_S)

    assert clock.waited == [limits.MONITORING_END_S]
    assert said == [
        f"metrics {net.folder}/m.prom: the last metrics were not written in time; they are those of before."
    ]


def test_a_state_that_is_long_to_count_is_waited_for(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """It is work, and nobody hangs: with the numbers of before, a run that has succeeded would seem to have failed."""

    def count_slowly(root: Path, plan: Plan) -> Figures:
        clock.metrics_hang.set()  # for as long as the end of the run waits for others
        wait_until(lambda: clock.waited)
        return figures(root, plan)

    trial.put("a")
    trial.run()
    monkeypatch.setattr(metrics_module, "figures", count_slowly)
    publisher = MetricsPublisher([MonitoredPlan(trial.plan, trial.root)], trial.folder / "m.prom", print)

    publisher.start()
    publisher.end(clock.now + limits.MONITORING_END_S)

    assert clock.waited == [limits.MONITORING_END_S] * 2  # what hangs after that has its own two seconds
    wait_until((trial.folder / "m.prom").exists)


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
