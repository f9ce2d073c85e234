"""A queue of many messages beside a small one: appends, random reads and tailers must cost the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from bench.harness import Measurement, Row, Sizes, alternate, empty_folder, limit_row, time_row, timed
from ferryman.queues import Queue
from ferryman.queues.message import CONTENT

SMALL = 10_000
BATCH = 500
"""Messages of each append while a queue is filled."""
APPENDS, LOOKS, READ, FOLLOWED = 100, 100, 100, 2500
START_S = 1.0
"""Seconds within which a tailer at the end of the largest queue must start."""
FLAT = 2.0


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    place = empty_folder(folder / "queues")
    small, large = Queue("small", place), Queue("large", place)
    fill(small, SMALL)
    tenth = sizes.documents // 10
    first, *_, last = [timed(lambda: fill(large, tenth)) for _ in range(10)]
    what = f"append messages, {BATCH} at once: the last tenth of {sizes.documents}, beside the first"
    yield time_row(what, tenth, last, first, FLAT)
    beside = f"queue of {sizes.documents} messages, beside one of {SMALL}"

    def both(work: Callable[[Queue], None]) -> list[Measurement]:
        return alternate(sizes.rounds, lambda: work(large), lambda: work(small))

    yield time_row(f"{APPENDS} appends of one message: {beside}", APPENDS, *both(append), FLAT)
    yield time_row(f"the same with keys: {beside}", APPENDS, *both(append_with_keys), FLAT)
    yield time_row(f"{LOOKS} looks at {READ} messages anywhere: {beside}", LOOKS * READ, *both(read_anywhere), FLAT)
    yield time_row(f"a tailer reads {FOLLOWED} messages: {beside}", FOLLOWED, *both(follow), FLAT)
    [took] = alternate(sizes.rounds, lambda: start_at_end(large))
    yield limit_row(f"a tailer starts at the end of {sizes.documents} messages", took, START_S)


def fill(queue: Queue, messages: int) -> None:
    """Append small messages, ``BATCH`` at a time."""
    texts, nothing = [f'{{"n":{n},"name":"message {n}"}}' for n in range(BATCH)], [None] * BATCH
    rows = pa.table([texts, nothing, nothing], CONTENT)
    for _ in range(messages // BATCH):
        queue.append_rows(rows)


def append(queue: Queue) -> None:
    for n in range(APPENDS):
        queue.append([{"n": n}])


def append_with_keys(queue: Queue) -> None:
    last = queue.last_index
    for n in range(APPENDS):
        queue.append([{"n": n}], key=f"{last}-{n}")


def read_anywhere(queue: Queue) -> None:
    chance, last = random.Random(1), queue.last_index
    for _ in range(LOOKS):
        assert len(queue.read(chance.randint(1, last - READ), READ)) == READ


def follow(queue: Queue) -> None:
    tailer = queue.tailer().to(queue.last_index // 2)
    for _ in range(FOLLOWED // READ):
        assert len(tailer.read_many(READ)) == READ


def start_at_end(queue: Queue) -> None:
    """Start a tailer at the end, as a new process does."""
    tailer = Queue(queue.name, queue.root).tailer().to_end()
    assert tailer.read() is None
