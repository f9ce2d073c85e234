"""Appending: indices, keys, what a message may be, and many who append at once."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ferryman.errors import EngineError, QueueReplaced, UsageError
from ferryman.queues import Queue, append
from ferryman.queues import place as places
from ferryman.queues.message import CONTENT
from tests.queues.child import store_of


def numbers(queue: Queue) -> list[int]:
    return [m.index for m in queue.read(limit=100_000)]


@pytest.mark.rule("queue.indices")
def test_indices(root: Path) -> None:
    """From 1, one more for each message, over all appends and handles."""
    queue = Queue("orders", root)
    assert queue.append([{"x": 1}, {"x": 2}]) == [1, 2]
    assert queue.append([]) == []
    assert Queue("orders", root).append([{"x": 3}]) == [3]
    assert queue.append([{"x": 4}]) == [4]

    assert [(m.index, m.body) for m in queue.read()] == [(1, {"x": 1}), (2, {"x": 2}), (3, {"x": 3}), (4, {"x": 4})]
    assert queue.last_index == 4


def test_a_message(root: Path) -> None:
    """What was appended, when, and what is known about it."""
    queue = Queue("orders", root)
    before = dt.datetime.now(dt.UTC)
    queue.append([{"a": [1, 2.5, None, True, "ü\x00\n"], "b": {"c": {}}}], meta={"from": "a test"})

    [message] = queue.read()

    assert message.body == {"a": [1, 2.5, None, True, "ü\x00\n"], "b": {"c": {}}}
    assert message.meta == {"from": "a test"}
    assert before <= message.created <= dt.datetime.now(dt.UTC)


def test_read_takes_a_range(root: Path) -> None:
    queue = Queue("orders", root)
    for n in range(5):
        queue.append([{"n": n}, {"n": n}])

    assert [m.index for m in queue.read(4, 3)] == [4, 5, 6]
    assert [m.index for m in queue.read(9, 100)] == [9, 10]
    assert queue.read(11) == queue.read(1, 0) == []
    assert [m.index for m in queue.read(-3, 2)] == [1, 2]


@pytest.mark.rule("queue.made")
def test_a_queue_is_made_when_it_is_first_used(root: Path) -> None:
    """Looking at one makes nothing; an append or a tailer does."""
    queue = Queue("orders", root)
    assert (queue.last_index, queue.read(), queue.readers(), queue.id) == (0, [], {}, None)
    assert queue.trim("1d") == 0
    queue.delete()
    assert queue.append([]) == []
    assert not root.exists()

    queue.tailer()
    assert queue.exists
    assert Queue("orders", root).id == queue.id


@pytest.mark.rule("queue.key")
def test_a_key_appends_once(root: Path) -> None:
    """The second append gives the indices of the first, also from another handle, also if the messages differ."""
    queue = Queue("orders", root)
    assert queue.append([{"x": 1}, {"x": 2}], key="batch-17") == [1, 2]
    queue.append([{"x": 3}])
    assert Queue("orders", root).append([{"other": 1}], key="batch-17") == [1, 2]
    assert queue.append([{"x": 4}], key="batch-18") == [4]
    assert queue.appended("batch-18") == range(4, 5)
    assert queue.appended("batch-19") is None
    assert queue.last_index == 4


@pytest.mark.parametrize("key", ["", 1, b"x"])
def test_a_key_is_a_text(root: Path, key: Any) -> None:
    with pytest.raises(UsageError, match="give a text"):
        Queue("orders", root).append([{}], key=key)


@pytest.mark.parametrize("key", ["ü", "\ud800", "\x00", "/../x", "k" * 100_000])
def test_any_text_is_a_key(root: Path, key: str) -> None:
    queue = Queue("orders", root)
    assert queue.append([{}], key=key) == queue.append([{}], key=key) == [1]


class Odd(str):
    """A text by another class."""


@pytest.mark.rule("queue.json")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (1, "a int is not a JSON object"),
        ([], "a list is not a JSON object"),
        (None, "a NoneType is not a JSON object"),
        ({"x": float("nan")}, "JSON has no nan"),
        ({"x": [float("inf")]}, "JSON has no inf"),
        ({1: 2}, "key 1 is not a string"),
        ({"a": {None: 2}}, "key None is not a string"),
        ({"x": {1, 2}}, "JSON has no form for a set"),
        ({"x": b"bytes"}, "JSON has no form for a bytes"),
        ({"x": dt.date(2020, 1, 1)}, "JSON has no form for a date"),
        ({"x": 10**5000}, "limit"),
    ],
)
def test_what_is_not_json_is_refused(root: Path, body: Any, says: str) -> None:
    """By its number and the reason; nothing of the append is there."""
    queue = Queue("orders", root)
    with pytest.raises(UsageError, match=says) as caught:
        queue.append([{"good": 1}, body])

    assert "message 2: " in str(caught.value)
    assert not queue.exists


def test_what_is_nested_too_deep_is_refused(root: Path) -> None:
    """Also what holds itself."""
    queue = Queue("orders", root)
    deep: dict[str, Any] = {}
    for _ in range(90):
        deep = {"x": deep}
    assert queue.append([deep]) == [1]
    assert queue.read()[0].body == deep

    ring: dict[str, Any] = {}
    ring["x"] = ring
    with pytest.raises(UsageError, match="nested more than 100 deep"):
        queue.append([ring])


@pytest.mark.parametrize("messages", [{"x": 1}, "text", b"bytes"])
def test_one_message_is_not_a_list(root: Path, messages: Any) -> None:
    with pytest.raises(UsageError, match="takes a list of messages"):
        Queue("orders", root).append(messages)


@pytest.mark.parametrize(
    "body",
    [
        {"x": "y" * 1_000_000},
        {"\ud800": "\udfff", "emoji": "😀"},
        {"": ""},
        {"x": 10**400, "y": -0.0, "z": 1e308},
        {"control": "".join(map(chr, range(32))) + "\u2028\u2029\x7f\ufeff"},
        {"odd": Odd("text")},
        {},
    ],
    ids=range(7),
)
def test_hostile_messages_come_back(root: Path, body: dict[str, Any]) -> None:
    queue = Queue("orders", root)
    queue.append([body])
    assert [m.body for m in Queue("orders", root).read()] == [body]


def test_too_large_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferryman.limits.QUEUE_MESSAGE_BYTES", 1 << 20)
    queue = Queue("orders", root)
    with pytest.raises(UsageError, match="message 1: it has more than 1 MiB"):
        queue.append([{"x": "y" * (1 << 20)}])

    queue.append([{"x": "y" * (1 << 19), "n": n} for n in range(5)])  # more than one Arrow column may hold

    assert [m.body["n"] for m in queue.read()] == [0, 1, 2, 3, 4]


@pytest.mark.rule("queue.names")
@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "-x", "_x", "a/b", "a\\b", "a b", "ü", "a\n", "a\x00", "x" * 129, None, 1, "a:b", "~"]
)
def test_names_that_cannot_be(root: Path, name: Any) -> None:
    """Refused at once; nothing was made."""
    with pytest.raises(UsageError, match="cannot be the name of a queue"):
        Queue(name, root)
    assert not root.exists()


@pytest.mark.parametrize("name", ["a", "1", "orders-2.old_x", "x" * 128, "CON"])
def test_names_that_can_be(root: Path, name: str) -> None:
    Queue(name, root).append([{}])
    assert Queue.all(root) == [name]


def test_what_is_not_a_queue_says_so(root: Path) -> None:
    """A folder, a file, a file in place of the root."""
    (root / "folder").mkdir(parents=True)
    (root / "file").write_text("x")
    for name in ("folder", "file"):
        with pytest.raises(UsageError, match=r"is not a queue: it has no queue\.json"):
            Queue(name, root)
    with pytest.raises(UsageError, match="is not a folder"):
        Queue("x", root / "file").append([{}])
    assert Queue.all(root) == []


def test_two_make_one_queue(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second uses the first one's."""
    one, two = Queue("orders", root), Queue("orders", root)
    one.append([{"x": 1}])
    assert two.append([{"x": 2}]) == [2]

    late = Queue("late", root)
    early = Queue("late", root)
    make = places.make

    def slow(folder: Path) -> None:
        monkeypatch.setattr(places, "make", make)
        early.append([{"x": 1}])
        make(folder)

    monkeypatch.setattr(places, "make", slow)
    assert late.append([{"x": 2}]) == [2]
    assert late.id == early.id


@pytest.mark.rule("queue.appenders")
def test_without_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody commits between our look and our commit: we are numbered again. Nothing rests on a lock."""
    queue, other = Queue("orders", root), Queue("orders", root)
    queue.append([{"x": 0}])
    monkeypatch.setattr("ferryman.limits.QUEUE_TURN_S", 0)
    staged = append._write_messages
    interrupted: list[int] = []

    def slow(*arguments: Any) -> Any:
        file = staged(*arguments)
        if len(interrupted) < 3:
            interrupted.append(1)
            interrupted[-1:] = other.append([{"other": len(interrupted)}])
        return file

    monkeypatch.setattr(append, "_write_messages", slow)
    assert queue.append([{"x": 1}, {"x": 2}]) in ([5, 6], [3, 4], [2, 3], [4, 5])
    assert numbers(queue) == [*range(1, queue.last_index + 1)]
    assert sorted(json.dumps(m.body) for m in queue.read() if "x" in m.body) == ['{"x": 0}', '{"x": 1}', '{"x": 2}']
    files = {f.path for f in store_of(queue).table.files}
    assert {p.name for p in (queue.folder / "messages").glob("*.parquet")} == files


@pytest.mark.rule("queue.key")
def test_one_key_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two append with one key at the same moment: one of them takes effect, both have its indices."""
    queue, other = Queue("orders", root), Queue("orders", root)
    queue.append([{"x": 0}])
    monkeypatch.setattr("ferryman.limits.QUEUE_TURN_S", 0)
    staged = append._write_messages
    theirs: list[list[int]] = []

    def slow(*arguments: Any) -> Any:
        file = staged(*arguments)
        if not theirs:
            theirs.append([])
            theirs[0] = other.append([{"x": 1}], key="k")
        return file

    monkeypatch.setattr(append, "_write_messages", slow)
    assert queue.append([{"x": 1}], key="k") == theirs[0] == [2]
    assert numbers(queue) == [1, 2]


def test_threads_share_a_handle(root: Path) -> None:
    queue = Queue("orders", root)
    got: list[int] = []

    def work() -> None:
        for n in range(20):
            got.extend(queue.append([{"n": n}, {"n": n}]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == numbers(queue) == [*range(1, 161)]


@pytest.mark.rule("queue.delta")
def test_other_programs_read_it(root: Path) -> None:
    """It is a Delta table, also after merges and a checkpoint."""
    queue = Queue("orders", root)
    for n in range(150):
        queue.append([{"n": n}])

    table = DeltaTable(str(queue.folder / "messages"))

    rows = table.to_pyarrow_table().sort_by("index").to_pylist()
    assert [(r["index"], r["message"]) for r in rows] == [(n + 1, f'{{"n":{n}}}') for n in range(150)]
    assert rows[0]["created"] == queue.read()[0].created
    assert table.transaction_version("index") == 150


def test_rows_that_are_arrow(root: Path) -> None:
    """As a plan appends and reads them: with hashes, under a key; any range, in order."""
    queue = Queue("out", root)
    rows = pa.table([['{"x":1}', '{"x":2}'], ['{"m":1}', None], ["aa", "bb"]], CONTENT)
    assert queue.append_rows(rows, "plan-1/wave-7") == range(1, 3)
    assert queue.append_rows(rows, "plan-1/wave-7") == range(1, 3)
    assert queue.append_rows(rows.slice(0, 0), "empty") == range(0)
    queue.append_rows(rows)

    read = pa.concat_tables(queue.read_rows(2, 4))

    assert read.column("index").to_pylist() == [2, 3]
    assert read.column("hash").to_pylist() == ["bb", "aa"]
    assert [m.meta for m in queue.read()] == [{"m": 1}, {}, {"m": 1}, {}]


@pytest.mark.rule("queue.another")
def test_a_queue_made_again_is_another_one(root: Path) -> None:
    """Who has the old one open is told; nothing goes into the new one by mistake."""
    queue = Queue("orders", root)
    queue.append([{"x": 1}])
    known = queue.id
    Queue("orders", root).delete()
    for use in (lambda: queue.append([{"x": 2}]), queue.read, queue.readers, lambda: queue.last_index, queue.delete):
        with pytest.raises(QueueReplaced, match=f"{known}, was deleted\\. "):
            use()
    Queue("orders", root).append([{"y": 1}])
    with pytest.raises(QueueReplaced, match=f"{known}, was deleted and made again: it is "):
        queue.append([{"x": 2}])

    assert [m.body for m in Queue("orders", root).read()] == [{"y": 1}]


def test_a_handle_that_deleted_its_queue_makes_a_new_one(root: Path) -> None:
    queue = Queue("orders", root)
    queue.append([{"x": 1}], key="k")
    queue.delete()
    assert Queue.all(root) == []
    assert queue.append([{"x": 2}], key="k") == [1]
    assert [m.body for m in queue.read()] == [{"x": 2}]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, r"the disk is full.*ake room"), (errno.EROFS, r"read and written, then")],
)
def test_a_disk_that_cannot_be_written(root: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    """Whatever is called says what to do about it, also where nothing is appended."""
    queue = Queue("orders", root)
    queue.append([{"x": 1}])
    tailer = queue.tailer("auditor")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("ferryman.storage.files.write_synced", refuse)
    monkeypatch.setattr("ferryman.queues.place.write_synced", refuse)
    calls: list[Callable[[], object]] = [
        lambda: Queue("other", root).make(),
        lambda: queue.append([{"x": 2}]),
        tailer.read,
        tailer.to_end,
        lambda: queue.tailer("new"),
        lambda: queue.register("new", 1),
        lambda: queue.trim("0s", force=True),
    ]
    for call in calls:
        with pytest.raises(EngineError, match=words):
            call()
