"""What a killed process does: the same work each time, which may be done again; and the check of what must be then."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from ferryman import crash, limits
from ferryman.queues import Queue
from ferryman.queues import table as remembered
from ferryman.queues.message import CONTENT
from ferryman.queues.store import QueueStore
from ferryman.storage import files, objects
from tests.support.http_store import HttpStore

BATCHES = 24
SENT = 8


class Job(msgspec.Struct):
    """``work``: all of it, dying at ``arm``; ``check``: all of it again, then the check."""

    verb: str
    root: str
    arm: str = ""
    kills: int = 1
    """So often it was killed before."""
    queues: str = ""
    """The folder of queues, or its URL; "": below ``root``."""
    environment: dict[str, str] = {}


def work(job: Job) -> None:
    limits.QUEUE_FILES = 2  # type: ignore[misc]  # so that a few appends meet every kind of maintenance
    limits.QUEUE_COMMITS = 4  # type: ignore[misc]
    limits.READERS_GRACE_S = -1.0  # type: ignore[misc]  # what a kill has left is removed at the next merge
    limits.TEMPORARY_S = -1.0  # type: ignore[misc]
    remembered._MERGE_FACTOR = 2  # type: ignore[misc]
    root = Path(job.root)
    if job.arm:
        crash.arm(job.arm)
    if job.queues:
        os.environ.update(job.environment)
        objects.set_store_opener(HttpStore)
    queues = job.queues or str(root / "queues")
    do(root, queues)
    if job.verb == "check":
        check(root, queues, job.kills)


def messages(batch: int) -> list[dict[str, int]]:
    return [{"batch": batch, "part": part} for part in range(batch % 3 + 1)]


def do(root: Path, queues: str) -> None:
    """Append with keys, read with a tailer between, trim a second queue, delete a third."""
    queue = Queue("orders", queues)
    tailer = queue.tailer("auditor")
    for batch in range(BATCHES):
        queue.append(messages(batch), key=f"batch-{batch}")
        while (message := tailer.read()) is not None:
            with (root / "seen").open("a") as seen:
                seen.write(f"{message.index} {json.dumps(message.body)}\n")
    old = Queue("old", queues)
    for batch in range(6):
        old.append(messages(batch), key=f"batch-{batch}")
    old.register("slow", 6)
    old.trim(0)
    sent = Queue("sent", queues)
    for sequence in range(1, SENT + 1):  # a writer that was killed before it knew: it sends all again
        sent.append_new(rows_of("writer", range(1, sequence + 1)), "writer")
        sent.trim(0)
    gone = Queue("gone", queues)
    if not (root / "deleted").exists():
        gone.append([{"x": 1}], key="once")
        (root / "deleted").touch()
    gone.delete()


def rows_of(writer: str, sequences: range) -> pa.Table:
    """Rows as a destination appends them."""
    meta = [json.dumps({"writer": writer, "sequence": n}) for n in sequences]
    hashes = [f"{n:032x}" for n in sequences]
    columns = {"message": ["{}"] * len(meta), "meta": meta, "hash": hashes, "sequence": list(sequences)}
    return pa.table(columns, CONTENT.append(pa.field("sequence", pa.int64())))


def check(root: Path, queues: str, kills: int) -> None:
    queue = Queue("orders", queues)
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

    old = Queue("old", queues)
    assert (old.first_index, old.last_index) == (6, 12)
    assert [m.index for m in old.read()] == [*range(6, 13)]
    assert old.appended("batch-0") == range(1, 2), "a key outlives its messages"
    sent = Queue("sent", queues)
    assert (sent.first_index, sent.last_index) == (SENT + 1, SENT), "each row once, though all were trimmed"
    assert Queue.all(queues) == ["old", "orders", "sent"]
    for each in (queue, old):
        check_folder(each)


def store_of(queue: Queue) -> QueueStore:
    """Return the tables of a queue, as they are now."""
    store = queue._store or queue._open_if_exists()
    assert store is not None
    store.refresh()
    return store


def check_folder(queue: Queue) -> None:
    """Other programs read the table; nothing is left over."""
    queue.append([])
    store = store_of(queue)
    folder = store.table.folder
    if isinstance(folder, Path):
        found = DeltaTable(str(folder)).to_pyarrow_table().column("index").to_pylist()
        assert sorted(found) == [m.index for m in queue.read(limit=1000)]
    live = {f.path for f in store.table.files}
    there = {name for name in files.list_names(folder) if name.endswith(".parquet")}
    assert live <= there
    assert len(there - live) <= 4, "the last kill's, until the next merge"
    assert len(files.list_names(folder / "_delta_log")) < 20
    assert not [name for name in files.list_names(queue.root) if name.startswith(".deleted")]
    assert isinstance(folder, Path) or sorted(files.list_names(queue.folder)) == sorted(
        [store.identity.id, "queue.json"]
    )
