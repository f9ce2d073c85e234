"""Ten million messages from one topic to another: each is there once, and memory does not grow with their number.

The environment variable ``MESSAGES`` says another number. Memory takes two steps, both before a million: a worker holds
the messages of its task, of which there are as many as a task may have once each partition has so many; and from
``limits.COUNTED_EVENTS`` on the run counts what it has recorded. So the smaller number is past both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

from ferryman import limits
from tests.support.kafka_topics import Topics

MANY = int(os.environ.get("MESSAGES", "10000000"))
PARTITIONS = 4
KEYS = 1000
FEWEST = 2 * max(PARTITIONS * limits.TASK_DOCUMENTS, limits.COUNTED_EVENTS)
"""Messages past the steps of memory: some are read by tasks that have no other number of them than in a larger run."""

PROGRAM = """
import contextlib, re, sys, threading, time
from pathlib import Path
from ferryman import Plan
from ferryman.destinations import Kafka as ToKafka
from ferryman.sources import Kafka
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import run_plan

peaks = {}

def note(kind, pids):
    for pid in pids:
        if written := re.findall(r"RssAnon:\\s+(\\d+)", Path(f"/proc/{pid}/status").read_text()):
            peaks[kind] = max(peaks.get(kind, 0), int(written[0]) // 1024)

def sample():
    while True:
        with contextlib.suppress(OSError):  # a thread, or a child, has ended
            for thread in Path("/proc/self/task").iterdir():
                note("worker", (thread / "children").read_text().split())
        note("driver", ["self"])
        time.sleep(0.05)

threading.Thread(target=sample, daemon=True).start()
url, topic, out, state = sys.argv[1:]
plan = Plan("large", version=1)
plan.source("messages", Kafka(url, topic)).destination("out", ToKafka(url, out, key="kafka.key"))
summary = run_plan(plan, Path(state), runner=InProcess(fork=True), checked=False)
print(summary.delivered, peaks["driver"], peaks["worker"])
"""
"""Samples what each process has written to its memory: the system may drop pages of libraries, and loads them again."""


def fill(topics: Topics, count: int) -> str:
    topic = topics.new(partitions=PARTITIONS)
    producer = topics.producer(linger_ms=20, queue_buffering_max_messages=1_000_000)
    for n in range(count):
        producer.produce(topic, b'{"n":%d}' % n, b"k%d" % (n % KEYS), n % PARTITIONS)
        if n % 10_000 == 0 and len(producer) > 500_000:
            producer.flush(300)
    assert producer.flush(300) == 0
    return topic


def check(topics: Topics, topic: str, count: int) -> None:
    """Check that each number is there once, and those of a key in their order."""
    last = [-1] * KEYS
    seen = 0
    for partition, end in topics.cluster.stable_offsets(topic, range(PARTITIONS), 60).items():
        for message in topics.cluster.read(topic, partition, 0, end):
            n = json.loads(message.value() or b"")["n"]
            key = n % KEYS
            assert (message.key(), last[key] < n) == (b"k%d" % key, True), (last[key], n)
            last[key] = n
            seen += 1
    assert seen == count, "each of so many is larger than the one of its key before"


@pytest.mark.slow
@pytest.mark.rule("kafka.exactly-once")
@pytest.mark.timeout(6 * 3600)
def test_ten_million_messages(topics: Topics) -> None:
    """With so few that memory has taken its steps, and with many more."""
    fewer = max(MANY // 10, FEWEST)
    assert fewer <= MANY // 2, f"growth cannot be told from those steps: let MESSAGES be {2 * FEWEST} or more"
    peaks = []
    for count in (fewer, MANY):
        topic, out = fill(topics, count), topics.new(partitions=PARTITIONS)
        with tempfile.TemporaryDirectory() as state:
            command = [sys.executable, "-c", PROGRAM, topics.url, topic, out, state]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        delivered, *mb = map(int, said.splitlines()[-1].split())
        assert delivered == count
        check(topics, out, count)
        peaks.append(mb)
        for each in (topic, out):
            topics.delete(each)
    few, many = peaks
    assert many[0] <= 1.3 * few[0], (few, many)
    assert many[1] <= 1.3 * few[1], (few, many)
