"""Plans joined by queues, beside plain Spark that calls the same functions and keeps the same tables in Delta."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import write_deltalake

from bench.harness import Row, Sizes, alternate, empty_folder, limit_row, spark, speed_row, timed
from ferryman import Flow, Plan, run
from ferryman.destinations import Queue as ToQueue
from ferryman.queues import Queue
from ferryman.queues.message import CONTENT
from ferryman.routers import Duplicate
from ferryman.sources import Queue as FromQueue

TARGET = 0.25
WAVE_S, THROUGH_S = 1.0, 2.5
SMALL = 100


def add(docs: Any) -> dict[str, int]:
    """Add up two messages; the function of the join on both sides."""
    return {"n": docs["a"]["n"], "sum": docs["a"]["n"] + docs["b"]["n"]}


def mark(doc: Any) -> Any:
    """Mark even sums; the step on both sides."""
    doc["even"] = doc["sum"] % 2 == 0
    return doc


def flow_of(place: Path) -> Flow:
    """Return a flow that joins two queues and sends the sums through a step into two queues."""
    join = Plan("join")
    inputs = {name: join.source(name, FromQueue(name, place)) for name in ("a", "b")}
    join.join("add", add, inputs).destination("sums", ToQueue("sums", place))
    fork = Plan("fork")
    both = fork.source("sums", FromQueue("sums", place)).step("mark", mark).route("both", Duplicate())
    for name in ("left", "right"):
        both.destination(name, ToQueue(name, place))
    return Flow("bench", [join, fork])


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    each = sizes.documents // 2
    place, state, plain = folder / "queues", folder / "states", folder / "plain"

    def flow() -> None:
        run(flow_of(place), state=state, spark=spark())
        assert Queue("right", place).last_index == each

    def fresh() -> None:
        empty_folder(state)
        for name in ("sums", "left", "right"):
            Queue(name, place).delete()

    empty_folder(place)
    for name in ("a", "b"):
        fill(Queue(name, place), each)
        write_deltalake(str(empty_folder(plain) / name if name == "a" else plain / name), texts(each))
    fresh()
    flow()
    fresh()
    ours = timed(flow)
    beside(plain)
    yield speed_row(
        f"{sizes.documents} messages in two queues, joined, forked to two", sizes.documents, ours,
        timed(lambda: beside(plain)), TARGET,
    )  # fmt: skip
    yield from small(sizes, place, state)


def small(sizes: Sizes, place: Path, state: Path) -> Iterator[Row]:
    """Measure waves of a few messages in a warm session."""
    one = Plan("copy")
    one.source("left", FromQueue("left", place)).destination("copies", ToQueue("copies", place))
    run(one, state=state, spark=spark())

    def wave() -> None:
        Queue("left", place).append([{"n": n} for n in range(SMALL)])
        run(one, state=state, spark=spark())

    def through() -> None:
        for name in ("a", "b"):
            Queue(name, place).append([{"n": n} for n in range(SMALL)])
        run(flow_of(place), state=state, spark=spark())

    yield limit_row(f"a wave of {SMALL} messages, appended and run", alternate(sizes.rounds, wave)[0], WAVE_S)
    what = f"{SMALL} messages from append to output through two plans"
    yield limit_row(what, alternate(sizes.rounds, through)[0], THROUGH_S)


def texts(messages: int) -> pa.Table:
    return pa.table({"index": range(1, messages + 1), "message": [f'{{"n":{n}}}' for n in range(messages)]})


def fill(queue: Queue, messages: int) -> None:
    nothing: list[None] = [None] * messages
    queue.append_rows(pa.table([texts(messages)["message"], nothing, nothing], CONTENT))


def beside(plain: Path) -> None:
    """Do the work of the flow with Spark and Delta tables only, read and written by delta-rs in the driver."""
    session = spark()

    def load(name: str) -> Any:
        return session.read.parquet(*(str(p) for p in (plain / name).glob("*.parquet")))

    def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            out = []
            for one, other in zip(batch["a"].to_pylist(), batch["b"].to_pylist(), strict=True):
                out.append(add({"a": msgspec.json.decode(one), "b": msgspec.json.decode(other)}))
            yield pa.RecordBatch.from_pydict({"index": batch["index"], "message": _encoded(out)})

    def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            out = [mark(msgspec.json.decode(one)) for one in batch["message"].to_pylist()]
            yield pa.RecordBatch.from_pydict({"index": batch["index"], "message": _encoded(out)})

    a, b = (load(name).withColumnRenamed("message", name) for name in ("a", "b"))
    shape = "index long, message string"
    sums = a.join(b, "index").mapInArrow(joined, shape)
    _write(sums, empty_folder(plain / "sums"))
    marks = load("sums").mapInArrow(marked, shape)
    for name in ("left", "right"):
        _write(marks, empty_folder(plain / name))


def _write(frame: Any, folder: Path) -> None:
    write_deltalake(str(folder), frame.toArrow().sort_by("index"))


def _encoded(rows: list[Any]) -> list[str]:
    return [msgspec.json.encode(row).decode() for row in rows]
