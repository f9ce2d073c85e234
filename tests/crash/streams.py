"""Runs in forked children of the zygote: a plan from a stream to PostgreSQL, to be killed at a crash point or at any
time; ``streams_spark`` is the same on real Spark."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ferryman import crash, limits
from ferryman.destinations import Sql
from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.engine.watch import EventWatch
from ferryman.errors import TransientError
from ferryman.plan import Plan
from ferryman.sources import Stream
from ferryman.state.state import State, state_root
from tests.support import invariants
from tests.support.fake_stream import FakeSpark
from tests.support.plan_world import Watch


class Job(msgspec.Struct):
    """A run, and how it ends before its end.

    Attributes:
        root: folder with ``rows.jsonl``, which the stream reads; on real Spark it reads the files of ``in``.
        arm: crash point, and the file that is created at the kill.
        kill_s: seconds after which the process is killed.
        alone: tasks are run in the driver's process, so that a kill ends both.
        watch: the run goes on until it is killed.
    """

    url: str
    root: str
    per_batch: int = 3
    arm: tuple[str, str] | None = None
    kill_s: float | None = None
    alone: bool = True
    watch: bool = False


def build(job: Job, read: Callable[[Any], Any] | None = None) -> Plan:
    plan = Plan("streamed", version=1)
    rows = Path(job.root) / "rows.jsonl"
    read = read or (lambda spark: spark.read_stream(rows))
    node = plan.source("stream", Stream(read, id="id", kept_batches=2)).step(
        "split", split, attempts=1000, patience="1h"
    )
    node.tee("log", Sql(job.url, table="log", mode="append"), batch=5, backoff=0).destination(
        "out", Sql(job.url, table="out", columns={"n": "n"}), batch=5, backoff=0
    )
    return plan


def split(doc: Document) -> list[Document] | Document | None:
    """Drop some rows, give others a child, and fail now and then."""
    if random.random() < 0.02:
        raise TransientError("by chance")
    n = doc["n"]
    if n % 7 == 0:
        return None
    return [doc, doc.child("half", n=n)] if n % 5 == 0 else doc


def expected(path: Path) -> tuple[dict[str, int], set[tuple[str, int]]]:
    """Return what the rows of a stream come to: number by id of what the newest version of each document is and makes,
    and all that any version is and makes."""
    newest: dict[str, int] = {}
    made = set()
    for row in map(msgspec.json.decode, path.read_text().splitlines()):
        id, n = row["id"], row["n"]
        newest = {each: number for each, number in newest.items() if each not in (id, f"{id}#half")}
        ids = [] if n % 7 == 0 else [id, f"{id}#half"] if n % 5 == 0 else [id]
        newest |= dict.fromkeys(ids, n)
        made |= {(each, n) for each in ids}
    return newest, made


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.TASK_DOCUMENTS = 4  # type: ignore[misc]
    limits.WATCH_TICK_S = 0.01  # type: ignore[misc]
    if job.arm is not None:
        crash.arm(*job.arm)
    if job.kill_s is not None:
        threading.Thread(target=_kill_after, args=(job.kill_s,), daemon=True).start()
    plan = build(job)
    plan.freeze()
    root = state_root(plan, Path(job.root) / "state")
    runner = FakeSpark(job.per_batch, fork=not job.alone)
    with State.take(root, plan) as state:
        if job.watch:
            run = Run(state, runner, Watch(10**9), RunSettings(wait=0, wave_bytes=2048))
            with EventWatch({"": plan}, 3600, lambda *_: None) as watch:
                run.run(3600, watch)
        summary = Run(state, runner, Watch(10**6), RunSettings(wave_bytes=2048)).run()
    invariants.check(root, plan, summary)
    print(f"delivered {summary.delivered}")
    assert summary.exit == 0, summary


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
