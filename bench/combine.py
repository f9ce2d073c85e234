"""Sums by key, beside plain Spark that calls the same combiner for each key and merges what it returns into a Delta
table. And a wave that touches a few of many keys."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.harness import Row, Sizes, Took, anew, as_fast, in_turn, say, spark, timed, within
from ferryman import Plan, run
from ferryman.observe import Silent
from ferryman.queues import Queue
from ferryman.queues.message import CONTENT
from ferryman.sources import Queue as FromQueue

TARGET = 0.25
WAVE_S = 1.5
EACH = 100
"""Updates a key."""
_SMALL = 4
"""Small waves: the first one finds the files in no cache."""
TOUCHED = 100
"""Keys of a small wave."""


def key_of(number: int) -> str:
    """45 characters, as ordinary keys have."""
    return f"customer/0000-1111-2222-3333/order-{number:010d}"


def add(key: str, values: list[int]) -> int:
    """The combiner, of both."""
    return sum(values)


def sums(place: Path) -> Plan:
    plan = Plan("sums")
    plan.source("updates", FromQueue("updates", place)).combine("sums", add, key="key", value="n")
    return plan


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    place, state, plain = folder / "queues", folder / "combine", folder / "plain"
    keys = max(1, sizes.documents // EACH)
    anew(place)
    fill(Queue("updates", place), sizes.documents, keys)
    say(f"{sizes.documents} updates of {keys} keys are there")

    def ours() -> None:
        run(sums(place), state=anew(state), spark=spark())
        assert sums(place).state("sums", state).get(key_of(0)) == EACH

    def theirs() -> None:
        beside(place / "updates", anew(plain))
        assert DeltaTable(str(plain)).count() == keys

    took, other = in_turn(sizes.rounds, ours, theirs) if sizes.rounds > 1 else (timed(ours), timed(theirs))
    yield as_fast(f"{sizes.documents} updates of {keys} keys, summed", sizes.documents, took, other, TARGET)
    yield from small(place, state, keys)


class Waves(Silent):
    """How long the waves of a run took, from the first phase to the last commit, in seconds."""

    def __init__(self) -> None:
        self.began = self.took_s = 0.0

    def phase(self, wave: int, name: str) -> None:
        self.began = self.began or time.perf_counter()

    def settled(self, delivered: int, owed: int, dead: int) -> None:
        self.took_s = time.perf_counter() - self.began


def small(place: Path, state: Path, keys: int) -> Iterator[Row]:
    """In a warm session: a few updates more. What the run counts at its end for those who ask is apart."""
    waves, runs = [], []
    for _ in range(_SMALL):
        Queue("updates", place).append([{"key": key_of(n * (keys // TOUCHED)), "n": 1} for n in range(TOUCHED)])
        watch = Waves()
        runs.append(timed(lambda watch=watch: run(sums(place), state=state, spark=spark(), observer=watch)).wall_s)
        waves.append(watch.took_s)
    took, whole = statistics.median(waves[1:]), statistics.median(runs[1:])
    what, beside = f"a wave that touches {TOUCHED} of {keys} keys", f"the whole run: {whole:.2f} s"
    yield within(what, Took(took, 0), WAVE_S, beside)


def fill(queue: Queue, updates: int, keys: int) -> None:
    """Each key as often as each other, in any order."""
    chance = np.random.default_rng(7)
    for first in range(0, updates, 1_000_000):
        numbers = chance.permutation(min(1_000_000, updates - first)) % keys
        texts = [f'{{"key":"{key_of(n)}","n":1}}' for n in numbers.tolist()]
        nothing: list[None] = [None] * len(texts)
        queue.append_rows(pa.table([texts, nothing, nothing], CONTENT))


def beside(queue: Path, table: Path) -> None:
    """The same with nothing but Spark, pandas and a Delta table, merged by delta-rs in the driver."""
    from pyspark.sql.functions import col, from_json

    shape = "key string, sum long"
    updates = spark().read.parquet(*(str(path) for path in queue.rglob("*.parquet")))
    updates = updates.select(from_json(col("message"), "key string, n long").alias("m")).select("m.key", "m.n")
    found = updates.groupBy("key").applyInPandas(_summed, shape).toArrow()
    write_deltalake(str(table), found.schema.empty_table())
    merge = DeltaTable(str(table)).merge(found, "t.key = s.key", source_alias="s", target_alias="t")
    merge.when_matched_update({"sum": "t.sum + s.sum"}).when_not_matched_insert_all().execute()


def _summed(key: tuple[str], rows: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"key": [key[0]], "sum": [add(key[0], rows["n"].tolist())]})
