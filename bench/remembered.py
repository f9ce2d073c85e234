"""Answers from a large store: what a task pays to find a thousand inputs among ten million that are remembered."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench.harness import Row, Sizes, print_progress
from ferryman import Document, Remember
from ferryman.remembered.answers import Input, key_of, make_input
from ferryman.remembered.store import AnswerStore
from ferryman.remembered.table import ANSWERS, BUCKET, AnswerTable

KEYS_PER_DOCUMENT: Final = 10
"""Remembered inputs for each of ``--documents``: ten million by default."""
DIMENSIONS: Final = 64
WANTED: Final = 1000
TARGET_S: Final = 1.0
_BUCKETS: Final = 128
_POLICY: Final = Remember("bench", reads=["n"])


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Fill a store, then look up inputs that are in it and as many that are not, as a task does."""
    keys = sizes.documents * KEYS_PER_DOCUMENT
    place = folder / "remembered" / "bench"
    fill(place, keys)
    chance = random.Random(0)
    known = [_input(chance.randrange(keys)) for _ in range(WANTED)]
    took = []
    for _ in range(sizes.rounds):
        began = time.perf_counter()
        store = AnswerStore(place, _POLICY, None)
        assert all(store.recall(each) is not None for each in known)
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
        assert store.recall(_input(keys + 1)) is None
        print_progress(f"    {took[-1]:.2f} s for {WANTED}; {1e6 * (time.perf_counter() - began):.0f} µs for one more")
    median = sorted(took)[len(took) // 2]
    what = f"a wave that needs {WANTED} of {keys} remembered answers of {DIMENSIONS} dimensions"
    yield Row(what, f"{median:.2f} s more", "", "", f"≤ {TARGET_S} s", median <= TARGET_S)


def _input(number: int) -> Input:
    made = make_input("bench", _POLICY, Document(str(number), n=number))
    assert made is not None
    return made


def fill(place: Path, keys: int) -> None:
    """Write a table with these many answers: as merged files have it, each with a range of keys."""
    table = AnswerTable(place)
    table.create()
    hashes = np.sort(np.array([key_of("bench", "bench", {"n": n}, None) for n in range(keys)], "S16"))
    numbers = np.random.default_rng(0)
    added = []
    for number, part in enumerate(np.array_split(hashes, _BUCKETS)):
        found = part.view("V16").tolist()
        vectors = pa.array(numbers.random(len(part) * DIMENSIONS, np.float32))
        lists = pa.ListArray.from_arrays(pa.array(np.arange(len(part) + 1, dtype=np.int32) * DIMENSIONS), vectors)
        fixed = {"version": "bench", "kind": "written", "created": 1 << 50, "error": "", "fields": '{"vector":null}'}
        fixed |= {"vectors": f'[[["vector"],{DIMENSIONS}]]', "removed": None, "reason": None}
        schema = pa.schema([field for field in ANSWERS if field.name != BUCKET])
        columns = {
            name: pa.repeat(pa.scalar(value, schema.field(name).type), len(part)) for name, value in fixed.items()
        }
        columns |= {"key": pa.array([key.hex() for key in found]), "numbers": lists}
        rows = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
        file = table.write(rows, f"{number:x} of {_BUCKETS:x}")
        assert file is not None
        added.append(file)
    table.commit(added, [], {}, {})
    print_progress(f"    {keys} answers in {table.size / 1e9:.2f} GB, {table.size / (keys * DIMENSIONS * 4):.2f}× raw")
