"""``ferryman queue``: what its verbs print and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.queues import Queue


class Here:
    """The command in this process, in a folder of its own."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = place / "queues"
        self._capsys = capsys

    def __call__(self, verb: str, *arguments: object) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        code = start(["queue", verb, *map(str, arguments), "--queues", str(self.root)])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def told(self, verb: str, *arguments: object) -> Any:
        """What it says in JSON."""
        code, out, err = self(verb, *arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def here(place: Path, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(place, capsys)


@pytest.fixture
def orders(here: Here, place: Path) -> Queue:
    """Three messages, and a reader that has read one."""
    (place / "lines").write_text('{"n": 1}\n\n{"n": 2}\n{"n": "ü"}\n')
    assert here("append", "orders", place / "lines") == (0, "1 to 3\n", "")
    queue = Queue("orders", here.root)
    queue.tailer("auditor").read()
    return queue


def test_list_and_show(here: Here, orders: Queue) -> None:
    """With counts, and how far each reader is."""
    Queue("lonely", here.root).append([{}])
    code, out, _ = here("list")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines == [
        ["queue", "first", "last", "kept", "readers"],
        ["lonely", "1", "1", "1"],
        ["orders", "1", "3", "3", "auditor"],
    ]
    assert [q["queue"] for q in here.told("list", "--unused")] == ["lonely"]
    expected = {"queue": "orders", "id": orders.id, "first_index": 1, "last_index": 3, "kept": 3}
    assert here.told("show", "orders") == {**expected, "readers": {"auditor": 2}}
    _, out, _ = here("show", "orders")
    assert out.splitlines()[:2] == [f"queue orders, id {orders.id}", "3 messages kept, 1 to 3"]
    assert out.splitlines()[3].split() == ["auditor", "2", "2"]
    assert here("show", "lonely")[1].splitlines()[2] == "no registered readers"


def test_nothing_there(here: Here) -> None:
    """No folder is an empty list; a queue that there is not is an error."""
    assert here("list") == (0, f"no queues in {here.root}\n", "")
    assert here.told("list") == []
    for verb in ("show", "read", "delete", "trim", "rewind", "forget"):
        more = {"trim": ["--keep", "1d"], "rewind": ["r"], "forget": ["r"]}.get(verb, [])
        code, out, err = here(verb, "orders", *more)
        assert (code, out) == (2, "")
        assert err == f"error: There is no queue orders in {here.root} (there: none). Give another --queues or name.\n"
    assert not here.root.exists()


def test_append(here: Here, orders: Queue, place: Path) -> None:
    """With a key once; a line that is not JSON, or not an object, is named, and nothing is appended."""
    (place / "one").write_text('{"n": 4}')
    assert here("append", "orders", place / "one", "--key", "k") == (0, "4\n", "")
    assert here.told("append", "orders", place / "one", "--key", "k") == [4]
    (place / "none").write_text("\n")
    assert here("append", "orders", place / "none") == (0, "nothing to append\n", "")
    deep = '{"n": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for line, says in (
        ("{", "line 2 is not JSON"),
        (deep, "line 2 is not JSON (it is nested more than 200 deep)"),
        ("[1]", "message 2: a list is not a JSON object"),
    ):
        (place / "bad").write_text('{"n": 5}\n' + line)
        code, _, err = here("append", "orders", place / "bad")
        assert code == 2
        assert says in err
    code, _, err = here("append", "orders", place / "missing")
    assert code == 1
    assert "No such file" in err
    assert orders.last_index == 4


def test_read(here: Here, orders: Queue) -> None:
    """A range, which moves nobody; or as a reader, which moves it."""
    assert [m["message"] for m in here.told("read", "orders")] == [{"n": 1}, {"n": 2}, {"n": "ü"}]
    assert [m["index"] for m in here.told("read", "orders", "--start", 2, "--limit", 1)] == [2]
    assert orders.readers() == {"auditor": 2}
    _, out, _ = here("read", "orders", "--tailer", "auditor", "--limit", 1)
    assert out.splitlines()[1].split(None, 3)[::3] == ["2", '{"n": 2}']
    assert [m["index"] for m in here.told("read", "orders", "--tailer", "auditor")] == [3]
    assert here("read", "orders", "--tailer", "auditor", "--wait", "10ms") == (0, "no messages\n", "")
    assert here("read", "orders", "--wait", "soon")[0] == 2


def test_rewind(here: Here, orders: Queue) -> None:
    assert here("rewind", "orders", "auditor", "--end") == (0, "auditor: message 4 comes next\n", "")
    assert here("rewind", "orders", "auditor") == (0, "auditor: message 1 comes next\n", "")
    said = {"queue": "orders", "reader": "auditor", "position": 3}
    assert here.told("rewind", "orders", "auditor", "--to", 3) == said
    assert "no message 9" in here("rewind", "orders", "auditor", "--to", 9)[2]
    assert here("rewind", "orders", "auditor", "--to", 9, "--end")[0] == 2
    assert here("rewind", "orders", "nobody")[2] == "error: orders has no reader nobody (there: auditor).\n"
    assert orders.readers() == {"auditor": 3}


def test_trim_forget_delete(here: Here, orders: Queue) -> None:
    """A reader keeps messages and the queue; ``--force`` does not ask, ``forget`` removes it."""
    assert here("trim", "orders", "--keep", "1d")[1].startswith("0 messages removed")
    assert here("trim", "orders", "--keep", "0s")[1] == "1 message removed; indices from 2 on are kept\n"
    assert here.told("trim", "orders", "--keep", "0s", "--force")["removed"] == 2
    assert here("show", "orders")[1].splitlines()[1] == "empty"
    assert here("trim", "orders", "--keep", "x")[0] == 2
    code, _, err = here("delete", "orders")
    assert (code, "orders has readers: auditor" in err) == (2, True)
    assert here("forget", "orders", "auditor") == (0, "auditor is not a reader of orders any more\n", "")
    assert here("forget", "orders", "auditor")[0] == 2
    assert here("delete", "orders") == (0, "orders is deleted\n", "")
    assert Queue.all(here.root) == []


def test_names_and_damage_are_told(here: Here, orders: Queue) -> None:
    """In words, with the exit code of their kind."""
    assert here("show", "../x")[0] == 2
    (orders.folder / "messages" / "_delta_log" / f"{1:020d}.json").write_text("{}")
    code, _, err = here("show", "orders")
    assert code == 1
    assert "it was not written by Ferryman. Nothing was overwritten. Restore this file from a copy.\n" in err
