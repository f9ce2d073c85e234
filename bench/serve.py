"""`ferryman intake serve`: batches of jobs through all states and a trivial plan, warm; what an idle queue costs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.servers.zookeeper import ZooKeeperServer

from bench.harness import Row, Sizes, anew
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.intake import JobQueue
from ferryman.intake.service import Serving, on_spark, serve
from ferryman.net.reach import Reach
from ferryman.sources import Jobs

BATCHES, JOBS = 20, 500
SQLITE_JOBS_S, ZOOKEEPER_JOBS_S = 200, 50
WARM_UP = 50
"""Jobs of a first batch, which starts Spark's workers."""
FINISHED, IDLE_S, IDLE_SHARE = 2000, 60.0, 0.01
WINDOW_S, STARTED_SHARE, STARTED_CPU_S = 10.0, 0.05, 1.0
"""A start is over when it has taken a second of CPU time, and so long a window takes less of a core than this. It takes
longer beside other work."""
IDLE_PLAN = """\
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Jobs

plan = Plan("bench_idle", version=1)
plan.source("jobs", Jobs()).destination("null", Null())
"""
PENDING, LIST_SQLITE_S, LIST_ZOOKEEPER_S = 10_000, 2.0, 5.0
DOCUMENTS = 1_000_000
"""The sizes are said in documents: of as many, the full size is made."""
HEAP = "4g"


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    share = min(1.0, sizes.documents / DOCUMENTS)
    yield from of_store("SQLite", lambda at: f"sqlite:///{at}/queue.db", folder, share, SQLITE_JOBS_S, LIST_SQLITE_S)
    server = ZooKeeperServer()
    server.heap = HEAP
    with server:

        def url(at: Path) -> str:
            return f"{server.url}/{uuid4().hex}"

        yield from of_store("ZooKeeper", url, folder, share, ZOOKEEPER_JOBS_S, LIST_ZOOKEEPER_S)


def of_store(name: str, url: Any, folder: Path, share: float, rate: int, list_s: float) -> Iterator[Row]:
    at = anew(folder / "serve")
    batches, jobs = max(1, int(BATCHES * share)), JOBS
    with JobQueue.open(url(at)) as queue:
        taken, cpu = served(queue, at, batches, jobs)
        met = batches * jobs / taken >= rate
        said = f"{batches * jobs / taken:.0f}/s"
        cost = f"{1000 * cpu / (batches * jobs):.1f} ms CPU a job"
        yield Row(f"{name}: {batches} batches × {jobs} jobs served, warm", said, "", cost, f"≥ {rate}/s", met)
    with JobQueue.open(url(anew(folder / "serve"))) as queue:
        count = max(10, int(FINISHED * share))
        used = idle(queue, folder / "serve", count)
        what = f"{name}: an idle queue with {count} finished batches"
        yield Row(what, f"{used:.1%} of a core", "", "", f"≤ {IDLE_SHARE:.0%}", used <= IDLE_SHARE)
    with JobQueue.open(url(anew(folder / "serve"))) as queue:
        count = max(100, int(PENDING * share))
        filled(queue, count)
        taken, cpu = listed(queue.url, count)
        what = f"{name}: `intake jobs --state Pending`, the whole command, {count} jobs"
        yield Row(what, f"{taken:.2f} s", "", f"{cpu:.2f} s CPU", f"≤ {list_s:g} s", taken <= list_s)


def listed(url: str, count: int) -> tuple[float, float]:
    """(seconds, seconds of CPU) of the command."""
    before, start = os.times(), time.perf_counter()
    command = [Path(sys.executable).with_name("ferryman"), "intake", "jobs", "--state", "Pending", "--queue", url]
    told = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(told.splitlines()) == count + 1
    after = os.times()
    return (
        time.perf_counter() - start,
        after.children_user + after.children_system - before.children_user - before.children_system,
    )


def trivial() -> Plan:
    plan = Plan("bench_serve", version=1)
    plan.source("jobs", Jobs()).destination("null", Null())
    return plan


def submitted(queue: JobQueue, folder: Path, batches: int, jobs: int) -> None:
    """Manifests of one small file a job."""
    for _ in range(batches):
        place = folder / uuid4().hex
        place.mkdir()
        for number in range(jobs):
            (place / f"{number}.txt").write_text(f"{place.name} {number}\n")
        lines = "".join(f"{number}.txt,{place.name}-{number}\n" for number in range(jobs))
        (place / "manifest.csv").write_text(f"url,local_id\n{lines}")
        queue.create_batch({"manifest_url": (place / "manifest.csv").as_uri(), "payload_type": "manifest"})


def served(queue: JobQueue, folder: Path, batches: int, jobs: int) -> tuple[float, float]:
    """(seconds, seconds of CPU of this process) from the first acquired batch to the last report."""
    serving = Serving(folder / "work", once=True, reach=Reach((str(folder),), ()))
    plan = trivial()
    with on_spark(plan, folder / "state", "local[2]", {}) as driver:
        submitted(queue, folder, 1, WARM_UP)
        serve(plan, queue, serving, lambda: contextlib.nullcontext(driver))
        submitted(queue, folder, batches, jobs)
        start, cpu = time.perf_counter(), time.process_time()
        serve(plan, queue, serving, lambda: contextlib.nullcontext(driver))
        taken = time.perf_counter() - start, time.process_time() - cpu
    assert len(queue.list_jobs("Completed")) == batches * jobs + WARM_UP
    return taken


def idle(queue: JobQueue, folder: Path, batches: int) -> float:
    """Share of a core that `ferryman intake serve` costs while it waits: CPU time of its process, by /proc, without
    its children."""
    finished(queue, batches)
    (folder / "plan.py").write_text(IDLE_PLAN)
    command = [str(Path(sys.executable).with_name("ferryman")), "intake", "serve", str(folder / "plan.py")]
    options = ["--queue", queue.url, "--state", str(folder / "state"), "--work", str(folder / "work")]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as serving:
        try:
            settle(serving.pid)
            start, cpu = time.perf_counter(), cpu_s(serving.pid)
            time.sleep(IDLE_S)
            assert serving.poll() is None, "it has ended"
            return (cpu_s(serving.pid) - cpu) / (time.perf_counter() - start)
        finally:
            serving.terminate()


def settle(process: int) -> None:
    """Wait until all that a start does is done."""
    before = cpu_s(process)
    while True:
        time.sleep(WINDOW_S)
        now = cpu_s(process)
        if now > STARTED_CPU_S and now - before < STARTED_SHARE * WINDOW_S:
            return
        before = now


def finished(queue: JobQueue, batches: int) -> None:
    """Batches that are done with: every other one Completed, the others Failed."""
    for number in range(batches):
        batch = queue.create_batch({"submitter": f"bench {number}"})
        batch.set_status("Processing")
        batch.set_status("Reporting")
        (batch.fail if number % 2 else batch.success)()


def cpu_s(process: int) -> float:
    """CPU time of a process and its threads, in seconds, without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def filled(queue: JobQueue, jobs: int) -> None:
    queue.create_batch({"submitter": "bench"})
    batch = queue.acquire_pending_batch()
    assert batch is not None
    for number in range(jobs):
        batch.create_job({"payload_url": f"https://example.org/{number}", "local_id": f"object-{number}"})
    batch.unlock()
