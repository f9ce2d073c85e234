"""Many processes at one queue, also while they are killed at random."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from ferryman.queues import Queue

ROOT = Path(__file__).parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.queues.worker", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def said(process: subprocess.Popen[str]) -> list[list[int]]:
    """Its lines, as numbers."""
    out, _ = process.communicate(timeout=800)
    assert process.returncode == 0, out
    return [[int(word) for word in line.split()] for line in out.splitlines()]


@pytest.mark.rule("queue.appenders")
@pytest.mark.parametrize(
    ("appenders", "messages", "most"), [(3, 300, 60), pytest.param(8, 10_000, 500, marks=pytest.mark.slow)]
)
def test_appenders_and_tailers(place: Path, appenders: int, messages: int, most: int) -> None:
    """Indices without gaps or repeats; each tailer sees each message once, in order; so does who comes later."""
    root, total = place / "queues", appenders * messages
    readers = [start("read", root, f"reader-{n}", total) for n in range(3)]
    writers = [start("append", root, n, messages, most) for n in range(appenders)]
    given = [(first, first + size) for writer in writers for first, size in said(writer)]
    seen = [said(reader) for reader in readers]

    assert [i for first, end in sorted(given) for i in range(first, end)] == [*range(1, total + 1)]
    for each in seen:
        assert [index for index, _, _ in each] == [*range(1, total + 1)]
        for number in range(appenders):  # what one process appends is in its order
            assert [n for _, by, n in each if by == number] == [*range(messages)]
    assert seen[0] == seen[1] == seen[2]
    queue = Queue("orders", root)
    assert queue.last_index == total
    assert [m.index for m in queue.tailer().read_many(total + 1)] == [*range(1, total + 1)]
    found = DeltaTable(str(queue.folder / "messages")).to_pyarrow_table().column("index").to_pylist()
    assert sorted(found) == [*range(1, total + 1)]


@pytest.mark.rule("queue.kill")
@pytest.mark.parametrize(("kills", "batches"), [(6, 60), pytest.param(100, 400, marks=pytest.mark.slow)])
def test_random_kills(place: Path, kills: int, batches: int) -> None:
    """Two that append the same batches are killed at any time, and started again: each batch is there once."""
    root, chance = place / "queues", random.Random(kills)
    running = {n: start("keys", root, n, batches) for n in range(2)}
    for _ in range(kills):
        victim = chance.choice([*running])
        try:
            running[victim].wait(chance.uniform(0.6, 1.6))
        except subprocess.TimeoutExpired:
            running[victim].kill()
        running[victim].communicate()
        running[victim] = start("keys", root, victim, batches)
    for process in running.values():
        assert said(process) == []

    queue = Queue("orders", root)
    found = queue.read(limit=10 * batches)
    assert [m.index for m in found] == [*range(1, len(found) + 1)]
    pairs = [(m.body["batch"], m.body["part"]) for m in found]
    assert sorted(pairs) == [(batch, part) for batch in range(batches) for part in range(batch % 4 + 1)]
    for message in found:
        part = message.body["part"]
        assert pairs[message.index - 1 - part : message.index] == [(message.body["batch"], p) for p in range(part + 1)]
