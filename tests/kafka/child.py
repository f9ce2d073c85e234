"""Runs in forked children of the zygote: a plan from Kafka to Kafka, SQLite or OpenSearch, with a crash point armed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec

from ferryman import crash, limits
from ferryman.destinations import Kafka as ToKafka
from ferryman.destinations import OpenSearch, Sql
from ferryman.document import Document
from ferryman.errors import StateLost
from ferryman.plan import Plan
from ferryman.sources import Kafka
from ferryman.testing.inprocess import InProcess
from tests.support import no_lock
from tests.support.plan_world import Watch, run_plan

OVERTAKEN = "overtaken"
"""Said by a driver that stopped because another one had taken its state over."""


class Job(msgspec.Struct):
    """A run: where from and where to, and how it ends before its end.

    ``into``: "kafka", "sqlite", or the URL of an OpenSearch, whose index has the topic's name. ``alone``: tasks are run
    in its own process, so that a kill ends both. ``stop``: locks do not work, and the armed point stops the process in
    place of killing it.
    """

    url: str
    topic: str
    root: str
    into: str = "kafka"
    arm: tuple[str, str] | None = None
    kill_s: float | None = None
    alone: bool = True
    stop: bool = False
    slots: int = 2


def double(doc: Document) -> Document:
    doc["twice"] = 2 * doc["n"]
    return doc


def plan_of(job: Job) -> Plan:
    plan = Plan("pipe", version=1)
    doubled = plan.source("messages", Kafka(job.url, job.topic)).step("double", double)
    if job.into == "kafka":
        doubled.destination("out", ToKafka(job.url, f"{job.topic}-out", key="kafka.key"), batch=20)
    elif job.into.startswith("http"):
        doubled.destination("out", OpenSearch(job.into, job.topic, refresh=True), batch=20)
    else:
        doubled.destination("out", Sql(f"sqlite:///{job.root}/out.db", columns={"n": "n", "twice": "twice"}), batch=20)
    return plan


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.TASK_DOCUMENTS = 40  # type: ignore[misc]
    if job.stop:
        no_lock.remove_locks()
    if job.arm is not None:
        crash.arm(*job.arm, signal.SIGSTOP if job.stop else signal.SIGKILL)
    if job.kill_s is not None:
        threading.Thread(target=_kill_after, args=(job.kill_s,), daemon=True).start()
    runner = InProcess(fork=not job.alone, slots=job.slots)
    try:
        summary = run_plan(plan_of(job), Path(job.root) / "state", runner=runner, observer=Said(), wave_bytes=100_000)
    except StateLost as e:
        assert job.stop
        print(f"{OVERTAKEN}: {e}")
        return
    print(f"delivered {summary.delivered}")
    assert summary.exit == 0 or job.stop, summary


class Said(Watch):
    def message(self, text: str) -> None:
        print(text, flush=True)


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
