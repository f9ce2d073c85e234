"""One document for which there is too little memory, at each place where it takes some: it is named, and harms only
itself."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.engine import logs
from ferryman.engine.deliver import sending
from ferryman.engine.keyed import grouping
from ferryman.engine.keyed.update import KeyedRow, UpdateKeys
from ferryman.engine.runner import child, fork_server
from ferryman.engine.runner.fork_server import ForkServer
from ferryman.engine.transform.isolation import Spool
from ferryman.engine.transform.rows import OutboxBuffer
from ferryman.errors import OutOfMemory
from ferryman.memory import describe_memory_error, lacks_memory
from ferryman.operations import retry
from ferryman.sources import Listed, Memory
from ferryman.storage.parquet import PartWriter, RowGroups
from ferryman.testing.inprocess import InProcess
from tests.support.keyed import count_words
from tests.support.once import Once
from tests.support.plan_world import PlanWorld

IDS: Final = [f"d{n:02}" for n in range(40)]

LARGE: Final = "d07"
SIZE: Final = 3 << 20

LIMIT: Final = 2 << 20
"""Of what the machine of these tests can hold at once."""


def bytes_in(table: pa.Table) -> int:
    return max(
        (len(each) for name in table.column_names if name == "raw" for each in table[name].to_pylist() if each),
        default=0,
    )


def failing(original: Any, size: Callable[..., int], error: Callable[[], Exception] = MemoryError) -> Any:
    """The function on a machine on which nothing larger than ``LIMIT`` can be allocated."""

    def limited(*args: Any, **options: Any) -> Any:
        if size(*args) > LIMIT:
            raise error()
        return original(*args, **options)

    return limited


def no_arrow_memory() -> Exception:
    return pa.ArrowMemoryError("malloc of size 3145728 failed")


def gathering(patch: pytest.MonkeyPatch) -> None:
    def size(buffer: OutboxBuffer, *_: Any) -> int:
        return max((len(raw or b"") for raw in buffer._raws), default=0)

    patch.setattr(OutboxBuffer, "table", failing(OutboxBuffer.table, size, no_arrow_memory))


def writing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartWriter, "write", failing(PartWriter.write, lambda _, rows: bytes_in(rows), no_arrow_memory))


def size_of_request(value: Any) -> int:
    """Of what a child is asked; what it is to serve, the plan, travels before."""
    return 0 if isinstance(value, tuple) and callable(value[0]) else len(pickle.dumps(value))


def telling(patch: pytest.MonkeyPatch) -> None:
    """What the child is asked."""
    patch.setattr(child, "dumps", failing(child.dumps, size_of_request))
    gathering(patch)


def hearing(patch: pytest.MonkeyPatch) -> None:
    """The message is half read."""
    gathering(patch)
    patch.setattr(child, "_read", failing(child._read, lambda _, size, *__: size))


def spooling(patch: pytest.MonkeyPatch) -> None:
    gathering(patch)
    patch.setattr(Spool, "_write", failing(Spool._write, lambda _, content: len(content)))


def reading_back(patch: pytest.MonkeyPatch) -> None:
    """The outbox, to deliver it."""
    original = RowGroups._read

    def limited(self: RowGroups, group: int) -> pa.Table:
        found = original(self, group)
        if "document" not in self._columns and bytes_in(found) > LIMIT:
            raise no_arrow_memory()
        return found

    patch.setattr(RowGroups, "_read", limited)


def making(patch: pytest.MonkeyPatch) -> None:
    """What a destination gets."""

    def size(column: pa.ChunkedArray) -> int:
        return column.nbytes if pa.types.is_binary(column.type) else 0

    patch.setattr(sending, "column_values", failing(sending.column_values, size))


ISOLATED: Final = [gathering, writing, telling, hearing, spooling, reading_back, making]


def network(place: Path) -> PlanWorld:
    net = PlanWorld.empty(place)
    net.source()
    net.put(*IDS)
    net.put(LARGE, text="x" * SIZE)
    return net


def refused(net: PlanWorld, status: str = "rejected") -> str:
    """Why the large document was; all else has arrived, once."""
    found = account.deliveries(net.root, plan=net.plan, status=status)
    assert [row["document"] for row in found] == [LARGE]
    assert net.arrived("out").keys() == set(IDS) - {LARGE}
    assert set(net.arrived("out").values()) == {1}
    return str(found[0]["message"])


@pytest.mark.rule("kill.memory")
@pytest.mark.parametrize("place_of", ISOLATED, ids=lambda each: each.__name__)
def test_what_does_not_fit_is_named_and_alone(
    place: Path, place_of: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its reason; where there is more, a retry delivers it."""
    net = network(place)
    net.plan.destination("out", net.out("out"), after="docs")
    with monkeypatch.context() as patch:
        place_of(patch)
        summary = net.run(runner=InProcess())
    assert (summary.exit, summary.delivered, summary.rejected, summary.pending) == (3, len(IDS) - 1, 1, 0)
    assert "there is too little memory for it" in refused(net)
    assert net.retry(document=LARGE, force=True).count == 1
    assert net.run().delivered == 1


@pytest.mark.rule("kill.memory")
@pytest.mark.parametrize("has_room", [True, False])
def test_what_does_not_fit_while_its_file_is_rewritten(
    place: Path, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have a limit, and cannot read the row again to settle the wave: the driver does it. If it cannot either,
    the run says so, and nothing is lost."""
    net = network(place)
    net.plan.destination("out", net.out("out"), after="docs")
    original, driver = RowGroups._read, os.getpid()

    def limited(self: RowGroups, group: int) -> pa.Table:
        found = original(self, group)
        of_outbox = "raw" in self._columns and ("document" not in self._columns or "due" in self._columns)
        if of_outbox and bytes_in(found) > LIMIT and (os.getpid() != driver or not has_room):
            raise no_arrow_memory()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(RowGroups, "_read", limited)
        if has_room:
            summary = net.run(runner=InProcess(fork=True))
            assert (summary.exit, summary.delivered, summary.rejected) == (3, len(IDS) - 1, 1)
            assert "there is too little memory for it" in refused(net)
        else:
            with pytest.raises(OutOfMemory, match="there is too little memory for it"):
                net.run(runner=InProcess(fork=True), checked=False)
    net.run()
    assert net.retry(document=LARGE).count == 1
    assert net.run().delivered == 1
    assert set(net.arrived("out")) == {*IDS}


class Reading(Memory):
    """Lists what it has, and reads it later; of ``d11`` there is no memory for the content."""

    def listing(self, partition: Any) -> Any:
        return (Listed(doc.id, 1) for doc in super().listing(partition))

    def read(self, listed: Listed) -> Document:
        if listed.id == LARGE:
            raise MemoryError
        return Document(listed.id, raw=b"read")


@pytest.mark.rule("kill.memory")
def test_what_does_not_fit_while_it_is_read(place: Path) -> None:
    """It is tried as often as any other error of a read."""
    net = PlanWorld.empty(place)
    net.plan.source("docs", Reading([{"id": id} for id in IDS])).destination("out", net.out("out"), backoff=0)
    summary = net.run(runner=InProcess())
    assert (summary.exit, summary.failed, summary.pending) == (3, 1, 0)
    assert "reading it: there is too little memory for it (MemoryError)" in refused(net, "failed")


@pytest.mark.rule("kill.memory")
@pytest.mark.parametrize("isolated", [False, True])
def test_what_does_not_fit_in_a_step(place: Path, isolated: bool) -> None:
    """The same; also in a child process."""

    def step(doc: Document) -> Document:
        if doc.id == LARGE:
            raise no_arrow_memory()
        if isolated and doc.id == "d03" and not (place / "died").exists():
            (place / "died").touch()
            child.os._exit(1)
        return doc

    net = network(place)
    net.plan.step("step", step, after="docs").destination("out", net.out("out"), backoff=0)
    summary = net.run(runner=InProcess(fork=isolated, failures=1))
    assert (summary.exit, summary.failed, summary.pending) == (3, 1, 0)
    assert "step step: there is too little memory for it (ArrowMemoryError: malloc of size" in refused(net, "failed")


@pytest.mark.rule("kill.memory")
@pytest.mark.parametrize("isolated", [False, True])
def test_what_does_not_fit_at_a_destination(place: Path, isolated: bool) -> None:
    """Its chunk is halved, as after any other error; it is not the destination's trouble."""
    net = network(place)
    net.put(LARGE)

    def before(chunk: list[Any]) -> None:
        if isolated and not (place / "died").exists():
            (place / "died").touch()
            child.os._exit(1)
        if any(each.id == LARGE for each in chunk):
            raise MemoryError

    net.out("out").before = before
    net.plan.destination("out", net.out("out"), after="docs", batch=10, backoff=0)
    summary = net.run(runner=InProcess(fork=isolated, failures=1))
    assert (summary.exit, summary.delivered, summary.pending) == (3, len(IDS) - 1, 0)
    assert "there is too little memory for it (0.0 MiB: MemoryError)" in refused(
        net, "rejected" if isolated else "failed"
    )


def sorting(patch: pytest.MonkeyPatch) -> None:
    """Into runs, by key."""

    def size(path: Path, rows: pa.Table, runs: int) -> int:
        return max(map(len, rows["fields"].drop_null().to_pylist()), default=0)

    patch.setattr(grouping, "write_run", failing(grouping.write_run, size, no_arrow_memory))


def updating(patch: pytest.MonkeyPatch) -> None:
    """What a key gets."""
    patch.setattr(KeyedRow, "as_document", failing(KeyedRow.as_document, lambda row: row.size))


def in_child(patch: pytest.MonkeyPatch) -> None:
    """The same, where a worker has died over it."""
    patch.setattr(UpdateKeys, "__call__", failing(UpdateKeys.__call__, lambda task, _: 0 if task.isolated else SIZE))
    patch.setattr(child, "dumps", failing(child.dumps, size_of_request))


@pytest.mark.rule("kill.memory")
@pytest.mark.parametrize("place_of", [sorting, updating, in_child], ids=lambda each: each.__name__)
def test_what_does_not_fit_at_a_key(
    place: Path, place_of: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone; the others are counted, its key's too. Where there is more memory, a retry counts it."""
    words = count_words(place, on_error="continue", attempts=1)
    words.put("a", "b", "a")
    words.into.append([{"word": "b", "text": "x" * SIZE}])
    words.put("b", "c")
    with monkeypatch.context() as patch:
        place_of(patch)
        summary = words.run(runner=InProcess())
    assert (summary.exit, summary.failed + summary.rejected) == (3, 1)
    assert words.states() == {"a": 2, "b": 2, "c": 1}
    [row] = account.deliveries(words.root, plan=words.plan, status="rejected" if summary.rejected else "failed")
    assert (row["document"], "there is too little memory for it (" in row["message"]) == ("in/4", True)
    assert retry(words.plan, state=words.state, document="in/4").count == 1
    assert words.run().exit == 0
    assert words.states() == {"a": 2, "b": 3, "c": 1}


@pytest.mark.rule("kill.memory", "once.doubt")
def test_what_does_not_fit_where_steps_run_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in doubt, as when its worker dies: no step sees an entry a second time, and the others go on."""
    monkeypatch.setattr(logs, "_MIN_TASK_ENTRIES", 3)
    once = Once(place)
    once.put(1, 2, 3, 4)
    once.into.append([{"n": 5, "text": "x" * SIZE}])
    once.put(*range(6, 13))

    def size(buffer: OutboxBuffer, *_: Any) -> int:
        return max(map(len, buffer._fields), default=0)

    with monkeypatch.context() as patch:
        patch.setattr(OutboxBuffer, "table", failing(OutboxBuffer.table, size, no_arrow_memory))
        assert once.run(runner=InProcess()).exit == 3
    assert once.in_doubt() == [("in/5..5", "to_out")]
    assert sorted(once.values()) == [1, 2, 3, 4, *range(6, 13)]
    assert set(once.seen().values()) == {1}


@pytest.mark.rule("kill.memory")
def test_a_limit_that_is_too_small_for_anything(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with an error that says so, and no document is blamed; the next one goes on."""
    net = PlanWorld.empty(place)
    net.source()
    net.put(*IDS)
    net.plan.destination("out", net.out("out"), after="docs")
    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "write", failing(PartWriter.write, lambda *_: SIZE, no_arrow_memory))
        with pytest.raises(OutOfMemory, match=r"too little memory for it .*malloc of size"):
            net.run(runner=InProcess(), checked=False)
    assert net.run().delivered == len(IDS)


def test_no_child_can_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same: isolation mode needs a child."""
    net = network(place)
    net.plan.destination("out", net.out("out"), after="docs")

    def begin(server: ForkServer) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        gathering(patch)
        patch.setattr(fork_server, "_servers", {})
        patch.setattr(ForkServer, "__init__", begin)
        with pytest.raises(OutOfMemory, match="Cannot allocate memory"):
            net.run(runner=InProcess(), checked=False)
    assert net.run().delivered == len(IDS)


class OutOfMemoryException(Exception):
    """DuckDB's, which need not be loaded for it."""


OutOfMemoryException.__module__ = "_duckdb"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        no_arrow_memory(),
        pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libarrow.so.2600: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        RuntimeError("std::bad_alloc"),
        OutOfMemoryException("could not allocate block of size 256.0 KiB"),
    ],
    ids=repr,
)
def test_an_allocation_that_fails_is_known(error: Exception) -> None:
    """Also behind the error of who met it."""
    assert lacks_memory(error)
    behind = ValueError("x")
    behind.__cause__ = error
    assert lacks_memory(behind)
    assert describe_memory_error(behind, 1 << 20).startswith(
        f"there is too little memory for it (1.0 MiB: {type(error).__name__}"
    )


@pytest.mark.parametrize(
    "error", [ValueError("cannot allocate memory"), OSError(errno.ENOSPC, "full"), KeyError("bad_alloc")]
)
def test_other_errors_are_no_such_thing(error: Exception) -> None:
    """What a server says of its own memory, for example."""
    assert not lacks_memory(error)
