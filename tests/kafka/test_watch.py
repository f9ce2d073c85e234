"""``run --watch`` from one topic to another: each message that comes in is passed on once, for as long as it takes."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.engine.watch import EventWatch
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.kafka.child import Job, plan_of
from tests.servers.kafka import KafkaServer
from tests.support import invariants
from tests.support.kafka_topics import Topics
from tests.support.plan_world import Watch
from tests.support.waiting import LATE_S, wait_until

PLAN = """
from tests.kafka.child import Job, plan_of

plan = plan_of(Job({url!r}, {topic!r}, {root!r}))
"""


class Reader:
    """Reads what arrives at a topic, as it becomes readable."""

    def __init__(self, topics: Topics, topic: str) -> None:
        settings = {"group.id": "reader", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "bootstrap.servers": topics.url, "log_level": 0})
        partitions = topics.leaders(topic)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self.numbers: list[int] = []

    def await_all(self, count: int) -> None:
        """Wait until so many messages have arrived."""

        def has_all() -> bool:
            for message in self._consumer.consume(1000, 0.2):
                if message.error() is None:
                    self.numbers.append(json.loads(message.value() or b"")["n"])
            return len(self.numbers) >= count

        wait_until(has_all, f"{count} messages, {self.numbers[-5:]}")

    def close(self) -> None:
        self._consumer.close()


class Pipe:
    """Two topics between which a plan runs."""

    def __init__(self, topics: Topics, place: Path) -> None:
        self.topics = topics
        self.topic = topics.new()
        self.out = topics.new(f"{self.topic}-out", 2)
        self.job = Job(topics.url, self.topic, str(place))
        self.written = 0

    def write(self, messages: int) -> None:
        numbers = range(self.written, self.written + messages)
        self.topics.write(self.topic, [(f"k{n % 7}", b'{"n": %d}' % n) for n in numbers])
        self.written += messages


@contextmanager
def reading(pipe: Pipe) -> Iterator[Reader]:
    reader = Reader(pipe.topics, pipe.out)
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.rule("watch.leaks")
def test_waves_over_topics_leave_nothing(topics: Topics, place: Path) -> None:
    """As many open files and threads after a dozen waves as after a few: clients of the brokers go with their tasks."""

    def open_things() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    pipe = Pipe(topics, place)
    plan = plan_of(pipe.job)
    plan.freeze()
    root = state_root(plan, place / "state")
    with (
        reading(pipe) as reader,
        EventWatch({"": plan}, 600.0, lambda *_: None) as watch,
        State.take(root, plan) as state,
    ):
        run = Run(state, InProcess(), Watch(most=10_000), RunSettings(wait=0))
        run.recover()
        run.turn()
        counts = []
        for _ in range(12):
            pipe.write(1)
            assert watch.wait(time.monotonic() + 300, run.has_work) == {}
            run.turn(scan={})
            reader.await_all(pipe.written)
            counts.append(open_things())
        assert sorted(reader.numbers) == list(range(pipe.written))
        assert counts[-1] == counts[4], counts
        summary = run.finish()
    invariants.check(root, plan, summary)


def processes(root: int) -> list[int]:
    """A process and those below it."""
    found = [root]
    for pid in found:
        with suppress(OSError):
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, path.read_text().split())
    return found


def held(root: int) -> dict[str, int]:
    """Open files, threads and megabytes of a process and those below it."""
    files = threads = kilobytes = 0
    for pid in processes(root):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            status = Path(f"/proc/{pid}/status").read_text()
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            files += len(os.listdir(f"/proc/{pid}/fd"))
            threads += int(fields["Threads"])
            kilobytes += int(fields.get("RssAnon", "0 kB").split()[0])
    return {"files": files, "threads": threads, "MB": kilobytes // 1024}


@pytest.mark.slow
@pytest.mark.rule("watch.leaks")
def test_hundreds_of_waves_over_topics(topics: Topics, kafka: KafkaServer, place: Path) -> None:
    """The command itself, while the broker is killed and started again: nothing is lost or doubled, it holds no more at
    the end than after fifty waves, and SIGTERM ends it."""
    pipe = Pipe(topics, place)
    (place / "plan.py").write_text(PLAN.format(url=topics.url, topic=pipe.topic, root=str(place)))
    command = [sys.executable, "-m", "ferryman.cli", "run", str(place / "plan.py"), "--watch"]
    with (place / "said").open("wb") as said, reading(pipe) as reader:
        run = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "PYTHONPATH": os.getcwd()})
        try:
            early: dict[str, int] = {}
            for wave in range(300):
                if wave in (100, 200):
                    kafka.kill()
                    kafka.start()
                pipe.write(1 + wave % 5)
                reader.await_all(pipe.written)
                assert run.poll() is None, (place / "said").read_text()
                if wave == 50:
                    early = held(run.pid)
            late = held(run.pid)
            run.send_signal(signal.SIGTERM)
            assert run.wait(LATE_S) == 130, (place / "said").read_text()
        finally:
            run.kill()
            run.wait()
        reader.await_all(pipe.written)
    assert sorted(reader.numbers) == list(range(pipe.written))
    assert late["files"] <= early["files"] + 5, (early, late)
    assert late["threads"] <= early["threads"] + 5, (early, late)
    assert late["MB"] <= early["MB"] * 1.2 + 20, (early, late)
