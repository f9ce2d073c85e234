"""`ferryman intake serve`: batches of jobs through all states and a trivial plan, warm; the cost of an idle queue."""

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

from bench.harness import Row, Sizes, empty_folder
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.intake import JobQueue
from ferryman.intake.service import Serving, on_spark, serve
from ferryman.net.allowed_addresses import Reach
from ferryman.sources import Jobs

BATCHES, JOBS = 20, 500
SQLITE_JOBS_S, ZOOKEEPER_JOBS_S = 200, 50
WARM_UP = 50
"""Jobs of the first batch, which starts Spark's workers."""
FINISHED, IDLE_S, IDLE_SHARE = 2000, 60.0, 0.01
WINDOW_S, STARTED_SHARE, STARTED_CPU_S = 10.0, 0.05, 1.0
"""A start is over once it took STARTED_CPU_S of CPU time, and then for WINDOW_S less than STARTED_SHARE of a core."""
IDLE_PLAN = """\
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Jobs

plan = Plan("bench_idle", version=1)
plan.source("jobs", Jobs()).destination("null", Null())
"""
PENDING, LIST_SQLITE_S, LIST_ZOOKEEPER_S = 10_000, 2.0, 5.0
DOCUMENTS = 1_000_000
"""Documents of the size option that give the full size here."""
HEAP = "4g"


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    share = min(1.0, sizes.documents / DOCUMENTS)
    yield from measure_store(
        "SQLite", lambda at: f"sqlite:///{at}/queue.db", folder, share, SQLITE_JOBS_S, LIST_SQLITE_S
    )
    server = ZooKeeperServer()
    server.heap = HEAP
    with server:

        def url(at: Path) -> str:
            return f"{server.url}/{uuid4().hex}"

        yield from measure_store("ZooKeeper", url, folder, share, ZOOKEEPER_JOBS_S, LIST_ZOOKEEPER_S)


def measure_store(name: str, url: Any, folder: Path, share: float, rate: int, list_s: float) -> Iterator[Row]:
    at = empty_folder(folder / "serve")
    batches, jobs = max(1, int(BATCHES * share)), JOBS
    with JobQueue.open(url(at)) as queue:
        wall_s, cpu = measure_serving(queue, at, batches, jobs)
        met = batches * jobs / wall_s >= rate
        speed = f"{batches * jobs / wall_s:.0f}/s"
        cost = f"{1000 * cpu / (batches * jobs):.1f} ms CPU a job"
        yield Row(f"{name}: {batches} batches × {jobs} jobs served, warm", speed, "", cost, f"≥ {rate}/s", met)
    with JobQueue.open(url(empty_folder(folder / "serve"))) as queue:
        count = max(10, int(FINISHED * share))
        used = idle_share(queue, folder / "serve", count)
        what = f"{name}: an idle queue with {count} finished batches"
        yield Row(what, f"{used:.1%} of a core", "", "", f"≤ {IDLE_SHARE:.0%}", used <= IDLE_SHARE)
    with JobQueue.open(url(empty_folder(folder / "serve"))) as queue:
        count = max(100, int(PENDING * share))
        add_pending_jobs(queue, count)
        wall_s, cpu = measure_listing(queue.url, count)
        what = f"{name}: `intake jobs --state Pending`, the whole command, {count} jobs"
        yield Row(what, f"{wall_s:.2f} s", "", f"{cpu:.2f} s CPU", f"≤ {list_s:g} s", wall_s <= list_s)


def measure_listing(url: str, count: int) -> tuple[float, float]:
    """Return (seconds, CPU seconds) of the command that lists pending jobs."""
    before, start = os.times(), time.perf_counter()
    command = [Path(sys.executable).with_name("ferryman"), "intake", "jobs", "--state", "Pending", "--queue", url]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(output.splitlines()) == count + 1
    after = os.times()
    return (
        time.perf_counter() - start,
        after.children_user + after.children_system - before.children_user - before.children_system,
    )


def trivial() -> Plan:
    plan = Plan("bench_serve", version=1)
    plan.source("jobs", Jobs()).destination("null", Null())
    return plan


def submit_batches(queue: JobQueue, folder: Path, batches: int, jobs: int) -> None:
    """Submit manifests with one small file for each job."""
    for _ in range(batches):
        place = folder / uuid4().hex
        place.mkdir()
        for number in range(jobs):
            (place / f"{number}.txt").write_text(f"{place.name} {number}\n")
        lines = "".join(f"{number}.txt,{place.name}-{number}\n" for number in range(jobs))
        (place / "manifest.csv").write_text(f"url,local_id\n{lines}")
        queue.create_batch({"manifest_url": (place / "manifest.csv").as_uri(), "payload_type": "manifest"})


def measure_serving(queue: JobQueue, folder: Path, batches: int, jobs: int) -> tuple[float, float]:
    """Return (seconds, CPU seconds of this process) from the first acquired batch to the last report."""
    serving = Serving(folder / "work", once=True, reach=Reach((str(folder),), ()))
    plan = trivial()
    with on_spark(plan, folder / "state", "local[2]", {}) as driver:
        submit_batches(queue, folder, 1, WARM_UP)
        serve(plan, queue, serving, lambda: contextlib.nullcontext(driver))
        submit_batches(queue, folder, batches, jobs)
        start, cpu = time.perf_counter(), time.process_time()
        serve(plan, queue, serving, lambda: contextlib.nullcontext(driver))
        measured = time.perf_counter() - start, time.process_time() - cpu
    assert len(queue.list_jobs("Completed")) == batches * jobs + WARM_UP
    return measured


def idle_share(queue: JobQueue, folder: Path, batches: int) -> float:
    """Return the share of a core that `ferryman intake serve` takes while it waits, without its children."""
    add_finished_batches(queue, batches)
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
    """Wait until a process has started up."""
    before = cpu_s(process)
    while True:
        time.sleep(WINDOW_S)
        now = cpu_s(process)
        if now > STARTED_CPU_S and now - before < STARTED_SHARE * WINDOW_S:
            return
        before = now


def add_finished_batches(queue: JobQueue, batches: int) -> None:
    """Add batches that have ended: every other one Completed, the others Failed."""
    for number in range(batches):
        batch = queue.create_batch({"submitter": f"bench {number}"})
        batch.set_status("Processing")
        batch.set_status("Reporting")
        (batch.fail if number % 2 else batch.success)()


def cpu_s(process: int) -> float:
    """Return the CPU seconds of a process and its threads, without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def add_pending_jobs(queue: JobQueue, jobs: int) -> None:
    queue.create_batch({"submitter": "bench"})
    batch = queue.acquire_pending_batch()
    assert batch is not None
    for number in range(jobs):
        batch.create_job({"payload_url": f"https://example.org/{number}", "local_id": f"object-{number}"})
    batch.unlock()
