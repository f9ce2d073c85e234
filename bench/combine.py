"""Sums by key, beside plain Spark that calls the same combiner for each key and merges what it returns into a Delta
table. Also a wave that touches a few of many keys.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.harness import (
    Measurement,
    Row,
    Sizes,
    alternate,
    empty_folder,
    limit_row,
    print_progress,
    spark,
    speed_row,
    timed,
)
from ferryman import Plan, run
from ferryman.observe import Silent
from ferryman.queues import Queue
from ferryman.queues.message import CONTENT
from ferryman.sources import Queue as FromQueue

TARGET = 0.25
WAVE_S = 1.5
EACH = 100
"""Updates for each key."""
_SMALL = 4
"""Number of small waves; the first finds no file in a cache."""
TOUCHED = 100
"""Keys that a small wave touches."""


def key_of(number: int) -> str:
    """Return a key of 45 characters."""
    return f"customer/0000-1111-2222-3333/order-{number:010d}"


def add(key: str, values: list[int]) -> int:
    """Add up values; the combiner of both sides."""
    return sum(values)


def sums(place: Path) -> Plan:
    plan = Plan("sums")
    plan.source("updates", FromQueue("updates", place)).combine("sums", add, key="key", value="n")
    return plan


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    place, state, plain = folder / "queues", folder / "combine", folder / "plain"
    keys = max(1, sizes.documents // EACH)
    empty_folder(place)
    fill(Queue("updates", place), sizes.documents, keys)
    print_progress(f"{sizes.documents} updates of {keys} keys are there")

    def by_ferryman() -> None:
        run(sums(place), state=empty_folder(state), spark=spark())
        assert sums(place).state("sums", state).get(key_of(0)) == EACH

    def by_spark() -> None:
        beside(place / "updates", empty_folder(plain))
        assert DeltaTable(str(plain)).count() == keys

    took, other = (
        alternate(sizes.rounds, by_ferryman, by_spark) if sizes.rounds > 1 else (timed(by_ferryman), timed(by_spark))
    )
    yield speed_row(f"{sizes.documents} updates of {keys} keys, summed", sizes.documents, took, other, TARGET)
    yield from small(place, state, keys)


class Waves(Silent):
    """Measures the seconds from the first phase of a run to its last commit."""

    def __init__(self) -> None:
        self.began = self.took_s = 0.0

    def phase(self, wave: int, name: str) -> None:
        self.began = self.began or time.perf_counter()

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        self.took_s = time.perf_counter() - self.began


def small(place: Path, state: Path, keys: int) -> Iterator[Row]:
    """Measure waves of a few updates in a warm session, without the counts that a run caches at its end."""
    waves, runs = [], []
    for _ in range(_SMALL):
        Queue("updates", place).append([{"key": key_of(n * (keys // TOUCHED)), "n": 1} for n in range(TOUCHED)])
        watch = Waves()
        runs.append(timed(lambda watch=watch: run(sums(place), state=state, spark=spark(), observer=watch)).wall_s)
        waves.append(watch.took_s)
    wave_s, run_s = statistics.median(waves[1:]), statistics.median(runs[1:])
    what, beside = f"a wave that touches {TOUCHED} of {keys} keys", f"the whole run: {run_s:.2f} s"
    yield limit_row(what, Measurement(wave_s, 0), WAVE_S, beside)


def fill(queue: Queue, updates: int, keys: int) -> None:
    """Append updates: each key equally often, in random order."""
    chance = np.random.default_rng(7)
    for first in range(0, updates, 1_000_000):
        numbers = chance.permutation(min(1_000_000, updates - first)) % keys
        texts = [f'{{"key":"{key_of(n)}","n":1}}' for n in numbers.tolist()]
        nothing: list[None] = [None] * len(texts)
        queue.append_rows(pa.table([texts, nothing, nothing], CONTENT))


def beside(queue: Path, table: Path) -> None:
    """Compute the sums with Spark, pandas and a Delta table only, merged by delta-rs in the driver."""
    from pyspark.sql.functions import col, from_json

    shape = "key string, sum long"
    updates = spark().read.parquet(*(str(path) for path in queue.rglob("*.parquet")))
    updates = updates.select(from_json(col("message"), "key string, n long").alias("m")).select("m.key", "m.n")
    sums = updates.groupBy("key").applyInPandas(_summed, shape).toArrow()
    write_deltalake(str(table), sums.schema.empty_table())
    merge = DeltaTable(str(table)).merge(sums, "t.key = s.key", source_alias="s", target_alias="t")
    merge.when_matched_update({"sum": "t.sum + s.sum"}).when_not_matched_insert_all().execute()


def _summed(key: tuple[str], rows: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"key": [key[0]], "sum": [add(key[0], rows["n"].tolist())]})
