"""What tasks tell while they are at work."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.engine.live import MAX_ERRORS, ProgressReader, ProgressWriter
from ferryman.observe import Silent
from ferryman.sources import JsonLines, Memory, records
from tests.support.plan_world import run_plan


class Listener(Silent):
    """Keeps what it is told while phases run."""

    wants_live = True

    def __init__(self) -> None:
        self.name = ""
        self.counts: dict[str, int] = {}
        self.expected: dict[str, int] = {}
        self.outcomes: dict[str, str] = {}
        self.errors: list[tuple[str, str, str]] = []
        self.reads = 0
        self.read: list[tuple[int, int]] = []

    def phase(self, wave: int, name: str) -> None:
        self.name = name

    def planned(self, documents: int) -> None:
        self.reads += documents

    def expects(self, documents: int) -> None:
        self.expected[self.name] = documents

    def outcome(self, text: str) -> None:
        self.outcomes[self.name] = text

    def live(self, documents: int) -> None:
        self.counts[self.name] = max(documents, self.counts.get(self.name, 0))

    def live_bytes(self, done: int, total: int) -> None:
        self.read.append((done, total))

    def error(self, document: str, text: str, trace: str) -> None:
        self.errors.append((document, text, trace))


def odd_fail(doc: Document) -> Document:
    if int(doc.id) % 2:
        raise ValueError("odd")
    return doc


def plan_of(number: int) -> Plan:
    plan = Plan("trial")
    documents = [{"id": f"{n:03}", "raw": b"text"} for n in range(number)]
    plan.source("docs", Memory(documents)).step("odd", odd_fail).destination("out", Null())
    return plan


def test_a_run_says_how_far_each_phase_is(tmp_path: Path) -> None:
    """Listed, transformed and sent; in the end all of it."""
    listener = Listener()
    run_plan(plan_of(10), tmp_path, observer=listener, wait=0)
    assert listener.counts == {"scan": 10, "transform": 10, "deliver": 5}
    assert listener.reads >= 10
    assert listener.outcomes.keys() >= {"scan", "transform"}
    assert "read to see whether" in listener.outcomes["scan"]
    assert not any((tmp_path / "trial-v0" / "staging").glob("*/live/*"))


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_file_says_how_much_of_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """By its bytes on the disk; a small one says nothing."""
    lines = b"".join(b'{"id": "%06d", "x": %d}\n' % (n, n * n) for n in range(20_000))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(lines) if packed else lines)

    def listen() -> list[tuple[int, int]]:
        plan = Plan("trial")
        plan.source("docs", JsonLines(str(path))).destination("out", Null())
        listener = Listener()
        run_plan(plan, tmp_path / "state", observer=listener, checked=False)
        return listener.read

    assert listen() == []
    monkeypatch.setattr(records, "LARGE_BYTES", 1000)
    [(done, total), *_] = listen()
    assert 0.5 * total < done <= total == path.stat().st_size


def test_the_first_errors_are_told_as_they_happen(tmp_path: Path) -> None:
    """Of documents at the beginning; three of one line, and with the traceback."""
    listener = Listener()
    run_plan(plan_of(100), tmp_path, observer=listener, wait=0)
    assert [document for document, _, _ in listener.errors] == ["001", "003", "005"]
    assert listener.errors[0][1].startswith("step odd: ValueError: odd (")
    assert "odd_fail" in listener.errors[0][2]


def test_errors_that_differ_are_told_up_to_a_limit(tmp_path: Path) -> None:
    """Whoever reads them has seen enough."""
    listener = Listener()
    with ProgressReader(tmp_path / "live", listener).follow() as folder:
        task = ProgressWriter(folder, errors=True)
        for number in range(2 * MAX_ERRORS):
            task.error(f"d{number}", f"step x: error {number}", "")
    assert [document for document, _, _ in listener.errors] == [f"d{n}" for n in range(MAX_ERRORS)]


def test_tasks_add_up(tmp_path: Path) -> None:
    """Two at a time; what was told is taken away after the phase."""
    listener = Listener()
    with ProgressReader(tmp_path / "live", listener).follow() as folder:
        for number in (3, 4):
            task = ProgressWriter(folder)
            task.add(number)
            task.flush()
    assert listener.counts == {"": 7}
    assert not Path(folder).exists()


def test_nobody_listens(tmp_path: Path) -> None:
    """Then nothing is written."""
    with ProgressReader(tmp_path / "live", Silent()).follow() as folder:
        task = ProgressWriter(folder, errors=True)
        task.add(3)
        task.flush()
        assert not task.wants_errors
    assert not (tmp_path / "live").exists()
