"""A step that waits, 32 calls at a time in each task, beside threads that make the same calls and keep nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import data
from bench.harness import Row, Sizes, empty_folder, phases, spark, time_row, timed
from ferryman import Document, Plan, run
from ferryman.destinations import Null
from ferryman.sources import DataFrame

CONCURRENCY = 32
TASKS = 2
WAITS_S = 0.1
TARGET = 2.5
"""Greatest ratio: 10 000 calls of 100 ms, 64 at a time, take 16 s; with this ratio 40 s."""


def wait(document: Document) -> Document:
    """Wait like a call of a service; the step."""
    time.sleep(WAITS_S)
    return document


def plan(rows: Path) -> Plan:
    plan = Plan("concurrency")
    source = plan.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    source.step("wait", wait, concurrency=CONCURRENCY).destination("nowhere", Null())
    return plan


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Measure one round: waiting takes the time, and nothing disturbs it."""
    count = max(sizes.files // 2, 1)
    rows = data.table(folder / f"rows-{count}", count)

    def ours() -> None:
        with phases() as watch:
            summary = run(plan(rows), state=empty_folder(folder / "concurrency"), spark=spark(), observer=watch)
        assert summary.delivered == count, summary

    def beside() -> None:
        with ThreadPoolExecutor(CONCURRENCY * TASKS) as pool:
            list(pool.map(lambda _: time.sleep(WAITS_S), range(count)))

    spark().range(1).count()
    took, other = timed(ours), timed(beside)
    alone_s = count * WAITS_S / TASKS
    what = (
        f"{count} documents, a step of {WAITS_S * 1000:.0f} ms, concurrency={CONCURRENCY}, {TASKS} tasks "
        f"({alone_s:.0f} s one at a time); {CONCURRENCY * TASKS} threads"
    )
    yield time_row(what, count, took, other, TARGET, "a step that waits")
