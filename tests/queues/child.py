"""What a killed process does: the same work each time, which may be done again; and the check of what must be then."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from deltalake import DeltaTable

from ferryman import crash, limits
from ferryman.queues import Queue
from ferryman.queues import keys as remembered
from ferryman.queues.store import QueueStore

BATCHES = 24


class Job(msgspec.Struct):
    """``work``: all of it, dying at ``arm``; ``check``: all of it again, then the check."""

    verb: str
    root: str
    arm: str = ""
    kills: int = 1
    """So often it was killed before."""


def work(job: Job) -> None:
    limits.QUEUE_FILES = 2  # type: ignore[misc]  # so that a few appends meet every kind of maintenance
    limits.QUEUE_COMMITS = 4  # type: ignore[misc]
    limits.READERS_GRACE_S = -1.0  # type: ignore[misc]  # what a kill has left is removed at the next merge
    limits.TEMPORARY_S = -1.0  # type: ignore[misc]
    remembered._CLASS = 2  # type: ignore[misc]
    root = Path(job.root)
    if job.arm:
        crash.arm(job.arm)
    do(root)
    if job.verb == "check":
        check(root, job.kills)


def messages(batch: int) -> list[dict[str, int]]:
    return [{"batch": batch, "part": part} for part in range(batch % 3 + 1)]


def do(root: Path) -> None:
    """Append with keys, read with a tailer between, trim a second queue, delete a third."""
    queue = Queue("orders", root / "queues")
    tailer = queue.tailer("auditor")
    for batch in range(BATCHES):
        queue.append(messages(batch), key=f"batch-{batch}")
        while (message := tailer.read()) is not None:
            with (root / "seen").open("a") as seen:
                seen.write(f"{message.index} {json.dumps(message.body)}\n")
    old = Queue("old", root / "queues")
    for batch in range(6):
        old.append(messages(batch), key=f"batch-{batch}")
    old.register("slow", 6)
    old.trim(0)
    gone = Queue("gone", root / "queues")
    if not (root / "deleted").exists():
        gone.append([{"x": 1}], key="once")
        (root / "deleted").touch()
    gone.delete()


def check(root: Path, kills: int) -> None:
    queue = Queue("orders", root / "queues")
    wanted = [body for batch in range(BATCHES) for body in messages(batch)]
    found = queue.read(limit=1000)
    assert [m.body for m in found] == wanted
    assert [m.index for m in found] == list(range(1, len(wanted) + 1)) == [*range(1, queue.last_index + 1)]
    first = 1
    for batch in range(BATCHES):
        assert queue.appended(f"batch-{batch}") == range(first, first + batch % 3 + 1)
        first += batch % 3 + 1
    seen = [int(line.split()[0]) for line in (root / "seen").read_text().splitlines()]
    assert seen == sorted(set(seen)), "a message was read twice, or out of order"
    assert len(seen) >= len(wanted) - kills, "only what was noted and not returned is missing"
    assert queue.readers() == {"auditor": len(wanted) + 1}

    old = Queue("old", root / "queues")
    assert (old.first_index, old.last_index) == (6, 12)
    assert [m.index for m in old.read()] == [*range(6, 13)]
    assert old.appended("batch-0") == range(1, 2), "a key outlives its messages"
    assert Queue.all(root / "queues") == ["old", "orders"]
    for each in (queue, old):
        check_folder(each)


def check_folder(queue: Queue) -> None:
    """Other programs read the table; nothing is left over."""
    found = DeltaTable(str(queue.folder / "messages")).to_pyarrow_table().column("index").to_pylist()
    assert sorted(found) == [m.index for m in queue.read(limit=1000)]
    queue.append([])
    store: QueueStore | None = queue._open
    assert store is not None
    store.move_on()
    live = {f.path for f in store.table.files}
    there = {p.name for p in (queue.folder / "messages").glob("*.parquet")}
    assert live <= there
    assert len(there - live) <= 4, "the last kill's, until the next merge"
    assert len(list((queue.folder / "messages" / "_delta_log").iterdir())) < 20
    assert not [p for p in (queue.root).iterdir() if p.name.startswith(".deleted")]
