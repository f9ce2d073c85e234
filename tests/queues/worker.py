"""What processes of the tests do: append, or read. Run as ``python -m tests.queues.worker``."""

from __future__ import annotations

import random
import sys

from ferryman.queues import Queue


def append(root: str, number: int, messages: int, most: int) -> None:
    """So many messages in batches of 1 to ``most``; prints the indices."""
    queue, chance, done = Queue("orders", root), random.Random(number), 0
    while done < messages:
        size = min(chance.randint(1, most), messages - done)
        indices = queue.append([{"by": number, "n": done + n} for n in range(size)])
        assert indices == [*range(indices[0], indices[0] + size)], indices
        done += size
        sys.stdout.write(f"{indices[0]} {size}\n")


def read(root: str, name: str, until: int) -> None:
    """Every message, as it comes, up to this index; prints index, by whom, and which of theirs."""
    tailer = Queue("orders", root).tailer(name)
    last = 0
    while last < until:
        for message in tailer.read_many(1000, wait_s=60):
            last = message.index
            sys.stdout.write(f"{last} {message.body['by']} {message.body['n']}\n")


def share(root: str, name: str, last: int) -> None:
    """Messages until the last one was read by somebody: others read with the same name; prints the indices."""
    queue = Queue("orders", root)
    tailer = queue.tailer(name)
    while queue.readers()[name] <= last:
        for message in tailer.read_many(7, wait_s=0.1):
            sys.stdout.write(f"{message.index}\n")


def append_with_keys(root: str, number: int, batches: int) -> None:
    """Batches with keys that all such processes share; may be killed, and run again."""
    queue, chance = Queue("orders", root), random.Random(number)
    order = [*range(batches)]
    chance.shuffle(order)
    for batch in order:
        indices = queue.append([{"batch": batch, "part": part} for part in range(batch % 4 + 1)], key=f"b{batch}")
        assert len(indices) == batch % 4 + 1


if __name__ == "__main__":
    what, root, *rest = sys.argv[1:]
    if what == "append":
        append(root, *map(int, rest))
    elif what == "read":
        read(root, rest[0], int(rest[1]))
    elif what == "share":
        share(root, rest[0], int(rest[1]))
    else:
        append_with_keys(root, *map(int, rest))
