"""Structured Streaming without Spark: a query that keeps Spark's checkpoint as Spark does, and calls ``foreachBatch``.

Its source is a file of JSON lines; the offset is the number of lines. ``tests/engine/test_streams_spark.py`` has the
real one.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlparse

import pyarrow as pa

from ferryman.testing.inprocess import InProcess

BeforeBatch = Callable[[int], None]


class FakeSpark(InProcess):
    """A runner whose session has streams.

    Args:
        per_batch: most rows of a batch.
        before: called before each batch (to fail).
        fork: run each task in a child process; the rows of a batch are stored by this one.
    """

    def __init__(self, per_batch: int = 3, before: BeforeBatch = lambda batch: None, *, fork: bool = False) -> None:
        super().__init__(fork=fork)
        self.per_batch = per_batch
        self.before = before
        self.queries: list[FakeQuery] = []

    def use_session(self, use: Callable[[Any], Any]) -> Any:
        return use(self)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Any]) -> list[Any]:
        rows = read(self).rows
        half = len(rows) // 2
        return [task(number, _batches(part)) for number, part in enumerate((rows[:half], rows[half:], []))]

    def read_stream(self, path: Path) -> FakeFrame:
        """What ``spark.readStream…load(path)`` is."""
        return FakeFrame(self, path)


def _batches(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    if rows:
        yield from pa.Table.from_pylist(rows).to_batches()


class FakeFrame:
    """A streaming frame, and the writer of it."""

    isStreaming = True

    def __init__(self, spark: FakeSpark, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.columns = ["id", "n"]
        self.call: Any = None
        self.checkpoint = Path()
        self.available_now = False

    @property
    def writeStream(self) -> Self:
        return self

    def foreachBatch(self, call: Any) -> Self:
        self.call = call
        return self

    def option(self, name: str, url: str) -> Self:
        assert name == "checkpointLocation"
        self.checkpoint = Path(unquote(urlparse(url).path))
        return self

    def trigger(self, *, availableNow: bool) -> Self:
        self.available_now = availableNow
        return self

    def start(self) -> FakeQuery:
        query = FakeQuery(self)
        self.spark.queries.append(query)
        return query


class FakeQuery:
    """A running query; its thread calls ``foreachBatch``."""

    def __init__(self, frame: FakeFrame) -> None:
        self._frame = frame
        self._stopped = threading.Event()
        self._failed: Exception | None = None
        for name in "offsets", "commits":
            (frame.checkpoint / name).mkdir(parents=True, exist_ok=True)
        metadata = frame.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.id = json.loads(metadata.read_text())["id"]
        self._thread = threading.Thread(target=self._run, name="fake-query")
        self._thread.start()

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        return self._failed

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                if not self._run_batch() and (self._frame.available_now or self._stopped.wait(0.02)):
                    return
        except Exception as e:
            self._failed = e

    def _run_batch(self) -> bool:
        """Run the next batch; False: there is nothing new."""
        checkpoint, spark = self._frame.checkpoint, self._frame.spark
        batch = max((int(path.name) for path in (checkpoint / "commits").iterdir()), default=-1) + 1
        lines = self._frame.path.read_text().splitlines() if self._frame.path.exists() else []
        start = self._offset(batch - 1)
        planned = checkpoint / "offsets" / str(batch)
        if not planned.exists():
            end = min(len(lines), start + spark.per_batch)
            if end == start:
                return False
            planned.write_text(f"v1\n{json.dumps({'batchTimestampMs': uuid.uuid4().int % 10**9})}\n{end}")
        spark.before(batch)
        rows = [json.loads(line) for line in lines[start : self._offset(batch)]]
        self._frame.call(FakeBatch(rows), batch)
        (checkpoint / "commits" / str(batch)).write_text("v1\n{}")
        return True

    def _offset(self, batch: int) -> int:
        path = self._frame.checkpoint / "offsets" / str(batch)
        return int(path.read_text().split("\n")[2]) if batch >= 0 and path.exists() else 0


class FakeBatch:
    """The frame of a batch."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append rows to the file that a stream reads."""
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
