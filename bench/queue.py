"""A queue of many messages beside a small one: appends, looks, a tailer that starts at the end. All cost alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from bench.harness import Row, Sizes, Took, anew, as_long, in_turn, timed, within
from ferryman.queues import Queue
from ferryman.queues.message import CONTENT

SMALL = 10_000
BATCH = 500
"""Messages of an append while a queue is filled."""
APPENDS, LOOKS, READ, FOLLOWED = 100, 100, 100, 2500
TAKES_S = 1.0
"""A tailer at the end of the largest queue has started after this."""
FLAT = 2.0


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    place = anew(folder / "queues")
    small, large = Queue("small", place), Queue("large", place)
    fill(small, SMALL)
    tenth = sizes.documents // 10
    first, *_, last = [timed(lambda: fill(large, tenth)) for _ in range(10)]
    what = f"append messages, {BATCH} at once: the last tenth of {sizes.documents}, beside the first"
    yield as_long(what, tenth, last, first, FLAT)
    beside = f"queue of {sizes.documents} messages, beside one of {SMALL}"

    def both(work: Callable[[Queue], None]) -> list[Took]:
        return in_turn(sizes.rounds, lambda: work(large), lambda: work(small))

    yield as_long(f"{APPENDS} appends of one message: {beside}", APPENDS, *both(append), FLAT)
    yield as_long(f"the same with keys: {beside}", APPENDS, *both(append_with_keys), FLAT)
    yield as_long(f"{LOOKS} looks at {READ} messages anywhere: {beside}", LOOKS * READ, *both(look), FLAT)
    yield as_long(f"a tailer reads {FOLLOWED} messages: {beside}", FOLLOWED, *both(follow), FLAT)
    [took] = in_turn(sizes.rounds, lambda: start_at_end(large))
    yield within(f"a tailer starts at the end of {sizes.documents} messages", took, TAKES_S)


def fill(queue: Queue, messages: int) -> None:
    """Small messages, in appends of ``BATCH``."""
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


def look(queue: Queue) -> None:
    chance, last = random.Random(1), queue.last_index
    for _ in range(LOOKS):
        assert len(queue.read(chance.randint(1, last - READ), READ)) == READ


def follow(queue: Queue) -> None:
    tailer = queue.tailer().to(queue.last_index // 2)
    for _ in range(FOLLOWED // READ):
        assert len(tailer.read_many(READ)) == READ


def start_at_end(queue: Queue) -> None:
    """As a new process does."""
    tailer = Queue(queue.name, queue.root).tailer().to_end()
    assert tailer.read() is None
