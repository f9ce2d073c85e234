"""The queue as a destination: every delivery is one message, in order, whatever is repeated or killed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferryman import crash
from ferryman.destinations import Delivery, Destination, DestinationContext, Guarantee, Outcome, Queue
from ferryman.document import Document
from ferryman.errors import Misconfigured, StateForeign, Unavailable, UsageError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.queues import append as once
from ferryman.sources import Memory
from ferryman.testing.destinations import DestinationSuite, delete, delivery
from ferryman.testing.inprocess import InProcess
from tests.support.in_store import faulty, states
from tests.support.plan_world import PlanWorld, Watch, run_plan

__all__ = ["faulty", "states"]


def messages(folder: Path, name: str = "out") -> list[Any]:
    return DurableQueue(name, folder).read(limit=1_000_000)


class TestQueue(DestinationSuite):
    def destination(self, folder: Path) -> Destination:
        return Queue("out", folder)

    def hashes(self, folder: Path) -> list[str]:
        return [d for part in DurableQueue("out", folder).read_rows(1, 1 << 60) for d in part["hash"].to_pylist()]


def opened(folder: Path, state: str = "here") -> Queue:
    queue = Queue("out", folder)
    queue.check()
    queue.open(DestinationContext("tests", 1, "out", 1, Guarantee.EXACTLY_ONCE, state))
    return queue


def numbered(first: int, end: int) -> list[Delivery]:
    return [delivery(f"d{n}", n, fields={"n": n}) for n in range(first, end)]


def test_a_message_is_the_fields(place: Path) -> None:
    """``meta`` says which document it was; raw bytes stand in ``text``, unless there is a field of that name."""
    opened(place).write(
        [
            delivery("a", 7, "raw", {"title": "One", "tags": ["x", {"y": None}]}),
            delivery("b", 8, "raw", {"text": "mine"}),
            delete("c", 9),
        ]
    )
    found = messages(place)
    assert [m.body for m in found] == [
        {"title": "One", "tags": ["x", {"y": None}], "text": "raw"},
        {"text": "mine"},
        {},
    ]
    assert found[0].meta == {"id": "a", "source": "files", "sequence": 7, "writer": "tests-v1/out here"}
    assert found[2].meta["operation"] == "delete"


def test_raw_bytes_can_be_left_out(place: Path) -> None:
    """``text=None``."""
    queue = Queue("out", place, text=None)
    queue.check()
    queue.open(DestinationContext("tests", 1, "out", 1, Guarantee.EXACTLY_ONCE))
    queue.write([delivery("a", 1, "raw", {"x": 1})])
    assert [m.body for m in messages(place)] == [{"x": 1}]


@pytest.mark.rule("queue.destination")
def test_each_state_delivers_for_itself(place: Path) -> None:
    """The same plan in two states, of the same documents at the same time: each appends its own messages."""
    rows = numbered(1, 6)
    for _ in range(2):
        for state in ("one", "other"):
            assert opened(place, state).write(rows) == [Outcome.ok()] * 5
    assert [m.meta["writer"].split()[1] for m in messages(place)] == ["one"] * 5 + ["other"] * 5


@pytest.mark.rule("queue.destination")
def test_an_old_row_that_was_never_appended_is_appended(place: Path) -> None:
    """Somebody asked for it again after newer ones: it is looked for, and is not there."""
    opened(place).write(numbered(5, 10))
    opened(place).write([*numbered(2, 3), *numbered(7, 8)])
    assert [m.body["n"] for m in messages(place)] == [5, 6, 7, 8, 9, 2]


@pytest.mark.rule("queue.destination")
def test_a_late_worker_doubles_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked, its successor appends the same rows cut differently, and then it commits."""
    late, rows = opened(place), numbered(1, 11)
    found = once.RepeatingWriter.new_rows
    turns: list[int] = []

    def new_rows(self: once.RepeatingWriter, store: Any, given: Any) -> Any:
        new = found(self, store, given)
        if not turns:
            turns.append(1)
            for start in range(0, 10, 3):
                opened(place).write(rows[start : start + 3])
        return new

    monkeypatch.setattr(once.RepeatingWriter, "new_rows", new_rows)
    monkeypatch.setattr("ferryman.limits.QUEUE_TURN_S", 0.0)
    assert late.write(rows) == [Outcome.ok()] * 10
    assert [m.body["n"] for m in messages(place)] == list(range(1, 11))


@pytest.mark.rule("queue.destination", "queue.kill")
@pytest.mark.parametrize("point", ["append.staged", "append.written", "append.logged", "append.synced"])
def test_killed_within_an_append(place: Path, tmp_path: Path, point: str) -> None:
    """The run goes on without that worker: every document is one message, in the order of the source."""
    documents = [{"id": f"d{n:02}", "n": n} for n in range(40)]
    plan = pipe(documents, place)
    seen = tmp_path / "seen"
    crash.arm(point, str(seen))
    try:
        first = run_plan(plan, place / "state", runner=InProcess(fork=True, failures=1), wait=0)
    finally:
        crash.disarm()
    assert seen.exists()
    assert any("died over a task" in said for said in first.messages)
    assert [m.body["n"] for m in messages(place)] == list(range(40))


def trimmed_before_the_writer_knew(queues: Path | str, state: Path | str, seen: Path, keep: str | None) -> None:
    """A worker is killed when its append has taken effect; what it appended is read, and trimmed by the operator, or by
    another program that appends with ``keep=``; then the plan runs on: a reader has each document once."""
    documents = [{"id": f"d{n:02}", "n": n} for n in range(40)]
    plan = pipe(documents, queues)
    reader = DurableQueue("out", queues).tailer("reader")
    crash.arm("deliver.sent:2", str(seen))
    try:
        run_plan(plan, state, runner=InProcess(fork=True, failures=1), wait=0, checked=False)
    finally:
        crash.disarm()
    assert seen.exists()
    read = reader.read_many(1000)
    if keep is None:
        assert DurableQueue("out", queues).trim("0s") == len(read)
    else:
        for n in range(2):
            DurableQueue("out", queues, keep=keep).append([{"n": 1000 + n}])
        assert DurableQueue("out", queues).first_index > len(read)
    assert run_plan(plan, state, runner=InProcess(), checked=False).exit == 0
    read += reader.read_many(1000)
    assert [m.body["n"] for m in read if m.body["n"] < 1000] == list(range(40))
    documents.append({"id": "d40", "n": 40})
    assert run_plan(pipe(documents, queues), state, runner=InProcess(), checked=False).exit == 0
    assert [m.body["n"] for m in reader.read_many(1000)] == [40]


@pytest.mark.rule("queue.trimmed-rows", "queue.destination")
@pytest.mark.parametrize("keep", [None, "0s"])
def test_trimmed_before_the_writer_knew(place: Path, tmp_path: Path, keep: str | None) -> None:
    trimmed_before_the_writer_knew(place / "queues", place / "state", tmp_path / "seen", keep)


@pytest.mark.rule("queue.trimmed-rows", "queue.destination")
def test_trimmed_before_the_writer_knew_in_a_store(states: str, tmp_path: Path) -> None:
    trimmed_before_the_writer_knew(f"{states}/queues", f"{states}/state", tmp_path / "seen", None)


@pytest.mark.rule("state.old-copy")
def test_an_old_copy_of_a_state_is_refused(place: Path) -> None:
    """The queue has more of this state than the copy knows: nothing is sent twice. The newest state goes on."""
    documents = [{"id": f"d{n:02}", "n": n} for n in range(4)]
    assert run_plan(pipe(documents, place), place / "state").exit == 0
    shutil.copytree(place / "state", place / "copy")
    documents.append({"id": "d04", "n": 4})
    assert run_plan(pipe(documents, place), place / "state").exit == 0
    (place / "state").rename(place / "newest")
    (place / "copy").rename(place / "state")
    for _ in range(2):
        with pytest.raises(StateForeign, match=r"is an old copy: destination out has deliveries of this state up to"):
            run_plan(pipe(documents, place), place / "state", checked=False)
    assert [m.body["n"] for m in messages(place)] == list(range(5))
    shutil.rmtree(place / "state")
    (place / "newest").rename(place / "state")
    documents.append({"id": "d05", "n": 5})
    assert run_plan(pipe(documents, place), place / "state").exit == 0
    assert [m.body["n"] for m in messages(place)] == list(range(6))


class Away(Queue):
    """Does not answer as long as there is this file."""

    def __init__(self, name: str, root: Path, file: Path) -> None:
        super().__init__(name, root)
        self.file = file

    def _answer(self) -> None:
        if self.file.exists():
            raise ConnectionError("away")

    def check(self) -> None:
        self._answer()
        super().check()

    def highest_of(self, context: DestinationContext) -> int | None:
        self._answer()
        return super().highest_of(context)


@pytest.mark.rule("state.old-copy")
@pytest.mark.parametrize("back", ["in this run", "before the next", "after a kill"])
def test_an_old_copy_is_refused_when_its_destination_is_back(place: Path, back: str) -> None:
    """A destination that is away when the run begins is asked before anything is sent to it, whenever that is: as to
    what the state knew when it was put back. A state that is no copy goes on."""
    documents = [{"id": f"d{n:02}", "n": n} for n in range(4)]
    away = place / "away"

    def go(*, comes_back: bool = False) -> Any:
        plan = Plan("pipe", version=1)
        plan.source("docs", Memory(documents)).destination("out", Away("out", place, away), batch=8)
        watch = Watch()
        watch.phase = lambda wave, name: away.unlink(missing_ok=True) if comes_back else None  # type: ignore[method-assign]
        return run_plan(plan, place / "state", observer=watch, checked=False, wait=0)

    def killed() -> int:
        """Run in a copy of this process that ends at its fourth commit of an epoch: that notes who did not answer."""
        if not (pid := os.fork()):
            try:
                crash.arm("epoch.synced:4")
                go()
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert go().exit == 0
    shutil.copytree(place / "state", place / "copy")
    documents.append({"id": "d05", "n": 5})
    assert go().exit == 0
    (place / "state").rename(place / "newest")
    (place / "copy").rename(place / "state")
    documents.insert(0, {"id": "d00a", "n": 6})
    away.touch()
    if back == "after a kill":
        assert killed() == -9
    if back != "in this run":
        assert go().pending == 2
        away.unlink()
    for _ in range(2):
        with pytest.raises(StateForeign, match=r"is an old copy: destination out has deliveries of this state up to"):
            go(comes_back=True)
    assert [m.body["n"] for m in messages(place)] == [0, 1, 2, 3, 5]
    shutil.rmtree(place / "state")
    (place / "newest").rename(place / "state")
    away.touch()
    if back != "in this run":
        assert go().pending == 1
        away.unlink()
    assert go(comes_back=True).exit == 0
    assert go().exit == 0
    assert [m.body["n"] for m in messages(place)] == [0, 1, 2, 3, 5, 6]


def pipe(documents: list[Any], place: Path | str) -> Plan:
    plan = Plan("pipe", version=1)
    plan.source("docs", Memory(documents)).destination("out", Queue("out", place), batch=8)
    return plan


def test_runs_append_what_is_new(place: Path) -> None:
    """In the order of the source; a vanished document is a message too; a run that changes nothing appends none."""
    documents = [{"id": f"d{n:02}", "n": n} for n in range(20)]
    for _ in range(2):
        assert run_plan(pipe(documents, place), place / "state").exit == 0
        assert [m.body["n"] for m in messages(place)] == list(range(20))
    documents[3] = {"id": "d03", "n": 300}
    assert run_plan(pipe(documents[:-1], place), place / "state", allow_deletes=True).exit == 0
    assert [(m.meta["id"], m.meta.get("operation", "upsert")) for m in messages(place)[20:]] == [
        ("d03", "upsert"),
        ("d19", "delete"),
    ]


def test_children_name_their_parents(trial: PlanWorld) -> None:
    """By ``parent_id`` and ``origin_id``."""

    def halves(doc: Document) -> list[Document]:
        return [doc.child(raw=part) for part in (b"a", b"b")]

    plan = Plan("family", version=1)
    node = plan.source("docs", Memory([{"id": "d"}])).step("halves", halves)
    node.destination("out", Queue("out", trial.folder))
    assert run_plan(plan, trial.state).exit == 0
    assert [(m.meta["id"], m.meta["parent_id"], m.meta["origin_id"], m.body) for m in messages(trial.folder)] == [
        ("d#0", "d", "d", {"text": "a"}),
        ("d#1", "d", "d", {"text": "b"}),
    ]


def test_what_cannot_be_one_is_refused_in_the_plan() -> None:
    """Before anything is made."""
    with pytest.raises(UsageError, match="a/b"):
        Queue("a/b")
    with pytest.raises(UsageError, match="soon"):
        Queue("a", keep="soon")


def test_what_is_wrong_with_the_queue_concerns_all(place: Path) -> None:
    """Something else at its place; a damaged log. Nothing is appended, and it says what to do."""
    (place / "out").mkdir(parents=True)
    (place / "out" / "thesis.tex").touch()
    with pytest.raises(Misconfigured, match="out"):
        Queue("out", place).check()
    assert sorted(p.name for p in (place / "out").iterdir()) == ["thesis.tex"]

    queue = opened(place / "other")
    queue.write(numbered(1, 3))
    [entry] = (place / "other" / "out" / "messages" / "_delta_log").glob("*1.json")
    entry.write_bytes(entry.read_bytes().replace(b'"level"', b'"LEVEL"'))
    with pytest.raises(Misconfigured, match="checksum"):
        opened(place / "other").write(numbered(3, 5))


def test_a_document_that_json_cannot_hold_harms_only_itself(place: Path) -> None:
    """It is refused with the reason."""
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    outcomes = opened(place).write([delivery("a", 1, fields={"x": deep}), delivery("b", 2, fields={"x": 1})])
    assert outcomes == [Outcome.permanent("the message: it is nested more than 100 deep"), Outcome.ok()]
    assert [json.dumps(m.body) for m in messages(place)] == ['{"x": 1, "text": "some text"}']


@pytest.mark.rule("queue.destination")
@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowInvalid("too large"), OSError(5, "Input/output error")])
def test_an_append_that_fails_is_about_the_whole_queue(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Else its messages would be tried one by one, and later ones could come before them."""
    queue = opened(place)

    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr(DurableQueue, "append_new", fail)
    with pytest.raises(Unavailable):
        queue.write(numbered(1, 4))
