"""A state in an object store: all that a state on a disk does, and what it costs in requests."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ferryman
from ferryman import account, limits, operations
from ferryman.destinations import Sql
from ferryman.engine.run import Run
from ferryman.errors import StateDamaged, StateForeign, StateHeld, StateLost, UsageError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.records.keys import KeyFile, KeyValues, contributions_of
from ferryman.sources import Files, Queue
from ferryman.state.state import State, state_root
from ferryman.storage import delta, files, objects
from ferryman.storage.locks import ObjectLease
from ferryman.storage.objects import ObjectPath
from ferryman.testing.inprocess import InProcess
from tests.servers.faulty_s3 import BUCKET, FaultyS3
from tests.support.http_store import HttpStore
from tests.support.in_store import faulty, states
from tests.support.plan_world import Watch, run_plan

__all__ = ["faulty", "states"]


def plan_of(place: Path, version: int = 1) -> Plan:
    plan = Plan("papers", version=version)
    (place / "corpus").mkdir(exist_ok=True)
    files = plan.source("files", Files(str(place / "corpus")))
    files.step("upper", upper).destination("out", Sql(f"sqlite:///{place}/out.db"), backoff=0)
    return plan


def upper(doc: ferryman.Document) -> ferryman.Document | None:
    if "broken" in doc.text():
        raise ValueError("it says broken")
    return doc


def write(place: Path, **texts: str) -> None:
    (place / "corpus").mkdir(exist_ok=True)
    for name, text in texts.items():
        (place / "corpus" / f"{name}.txt").write_text(text)


def delivered(place: Path) -> list[str]:
    with sqlite3.connect(place / "out.db") as db:
        return [id for (id,) in db.execute("SELECT id FROM documents ORDER BY id")]


@pytest.mark.rule("store.kill")
def test_documents_come_change_and_go(states: str, tmp_path: Path) -> None:
    """As with a state on a disk: also retries, the account, the history and the check of every file."""
    plan, root = plan_of(tmp_path), state_root(plan_of(tmp_path), states)
    write(tmp_path, one="1", two="2", three="broken")
    assert run_plan(plan, states, checked=False).failed == 1
    write(tmp_path, one="changed", three="mended")
    (tmp_path / "corpus" / "two.txt").unlink()
    done = run_plan(plan, states, checked=False)
    assert (done.delivered, done.deleted, done.exit) == (2, 1, 0)
    assert delivered(tmp_path) == ["one.txt", "three.txt"]
    assert run_plan(plan, states, checked=False).waves == 0
    assert retry(plan, state=states, document="one.txt", force=True).count == 1
    assert run_plan(plan, states, checked=False).delivered == 1
    status = account.status(root, plan)
    assert status["balanced"]
    assert status["destinations"]["out"]["delivered"] == 2
    assert [e["status"] for e in account.history(root, "two.txt", plan)] == ["INDEXED", "INDEXED"]
    assert operations.check(root) == []
    assert list((tmp_path / "cache").rglob(".tmp-*")) == []


def test_many_waves(states: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are folded and trimmed, files merged and removed: what is in the store stays small."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 3)
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 4)
    monkeypatch.setattr(limits, "READERS_GRACE_S", 0)
    plan, root = plan_of(tmp_path), state_root(plan_of(tmp_path), states)
    counts = []
    for number in range(12):
        write(tmp_path, **{f"new-{number}": "text", "changed": f"text {number}"})
        delta.forget_logs()  # as in another process
        assert run_plan(plan, states, checked=False).exit == 0
        assert isinstance(root, ObjectPath)
        counts.append(len(root.store.list_objects(f"{root.key}/")))
    assert max(counts) <= 70, f"a wave makes some twelve objects: {counts}"
    assert len(delivered(tmp_path)) == 13
    assert operations.check(root) == []
    assert account.status(root, plan)["balanced"]


@pytest.mark.rule("store.lease")
def test_two_drivers(states: str, tmp_path: Path) -> None:
    """The second is told; one that takes over wins, and the first one says so. Nothing is damaged."""
    plan = plan_of(tmp_path)
    write(tmp_path, one="1")
    plan.freeze()
    root = state_root(plan, states)
    first = State.take(root, plan)
    with pytest.raises(StateHeld, match="--take-over"):
        State.take(root, plan)
    delta.forget_logs()  # as in another process
    second = State.take(root, plan, take_over=True)
    for table in first.tables:
        with pytest.raises(StateLost, match="another driver"):
            table.commit("wave", info={"wave": 1})
    with pytest.raises(StateLost):
        first.check_ownership()
    first.release()
    second.release()
    assert run_plan(plan, states, checked=False).delivered == 1
    assert operations.check(root) == []


def driver_that_slept(states: str, place: Path, waves: int) -> tuple[Plan, State]:
    """One whose state has been taken over, and who does not know of the waves that have run since."""
    plan = plan_of(place)
    write(place, one="1")
    plan.freeze()
    sleeper = State.take(state_root(plan, states), plan)
    delta.forget_logs()  # as in another process
    State.take(sleeper.root, plan, take_over=True).release()
    for number in range(waves):
        write(place, **{f"new-{number}": "text"})
        assert run_plan(plan, states, checked=False).delivered == (2 if number == 0 else 1)
    return plan, sleeper


@pytest.mark.rule("store.lease")
def test_a_driver_that_slept(states: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have taken over and trimmed the logs meanwhile, so that the number of its next entry is free again."""
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 2)
    plan, sleeper = driver_that_slept(states, tmp_path, waves=4)
    root = sleeper.root
    entries = [root / table.name / "_delta_log" / f"{table.version + 1:020d}.json" for table in sleeper.tables]
    assert not any(map(files.exists, entries)), "they were trimmed: else the test shows nothing"
    for table in sleeper.tables:
        with pytest.raises(StateLost, match="another driver"):
            table.commit("wave", info={"wave": 1})
    sleeper.release()
    assert operations.check(root) == []
    for entry in entries:  # killed before it saw that: nobody reads it any more
        files.replace(entry, b"an entry")
    delta.forget_logs()
    assert operations.check(root) == []
    assert run_plan(plan, states, checked=False).waves == 0
    assert account.status(root, plan)["balanced"]


@pytest.mark.rule("store.lease")
def test_a_driver_that_slept_before_a_checkpoint(states: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark would name a checkpoint that is older than what was trimmed."""
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 2)
    plan, sleeper = driver_that_slept(states, tmp_path, waves=3)
    root = sleeper.root
    for table in sleeper.tables:
        with pytest.raises(StateLost, match="another driver"):
            table.checkpoint()
    delta.forget_logs()
    assert operations.check(root) == []
    write(tmp_path, two="2")
    assert run_plan(plan, states, checked=False).delivered == 1


@pytest.mark.rule("store.price")
def test_what_a_small_wave_costs(states: str, tmp_path: Path, faulty: FaultyS3) -> None:
    """Requests of a whole run with one new document, its start and its end with it."""
    plan = plan_of(tmp_path)
    write(tmp_path, one="1")
    run_plan(plan, states, checked=False)
    write(tmp_path, two="2")
    faulty.counts()
    assert run_plan(plan, states, checked=False).delivered == 1
    counts = faulty.counts()
    assert counts["PUT"] <= 40, counts
    assert counts["LIST"] <= 30, counts
    assert counts["GET"] + counts["HEAD"] <= 65, counts  # some 15 for the look whether state or target is an older copy


class OnAnotherMachine(InProcess):
    """Tasks have a cache of their own, and see nothing of the driver's."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.started = True  # nothing runs beside the driver

    def run(self, task: Any, items: Sequence[Any]) -> list[Any]:
        before = os.environ[objects.CACHE_VARIABLE]
        os.environ[objects.CACHE_VARIABLE] = str(self._folder)
        try:
            return super().run(task, items)
        finally:
            os.environ[objects.CACHE_VARIABLE] = before


def test_executors_on_another_machine(states: str, tmp_path: Path) -> None:
    """What one has staged the other reads, in each scan what belongs to it: no name is used twice."""
    plan = plan_of(tmp_path)
    runner = OnAnotherMachine(tmp_path / "theirs")
    root = state_root(plan, states)
    for number in range(3):
        for name in range(4):
            write(tmp_path, **{f"a-document-with-an-ordinary-name-{name}": f"text {number} {name}"})
        plan.freeze()
        with State.take(root, plan) as taken:
            run = Run(taken, runner, Watch())
            assert run.run().delivered == 4
            write(tmp_path, **{"a-document-with-an-ordinary-name-1": f"again {number}"})
            assert Run(taken, runner, Watch()).run().delivered == 1  # of the same epoch
    with sqlite3.connect(tmp_path / "out.db") as db:
        texts = dict(db.execute("SELECT id, text FROM documents"))
    assert texts == {
        f"a-document-with-an-ordinary-name-{name}.txt": "again 2" if name == 1 else f"text 2 {name}"
        for name in range(4)
    }
    assert list((tmp_path / "theirs").rglob("*.parquet")), "they have read nothing"


def test_an_entry_of_somebody_else(states: str, tmp_path: Path) -> None:
    """It is named, and nothing is overwritten; so is one that was changed."""
    plan, root = plan_of(tmp_path), state_root(plan_of(tmp_path), states)
    write(tmp_path, one="1")
    run_plan(plan, states, checked=False)
    assert isinstance(root, ObjectPath)
    log = root / "ledger" / "_delta_log"
    newest = delta.open_log(root / "ledger").last()
    last, following = f"{newest:020}.json", f"{newest + 1:020}.json"
    log.store.put((log / following).key, b'{"commitInfo":{"operation":"OPTIMIZE"}}')
    with pytest.raises(StateDamaged, match=rf"s3://.*{following}.*not written by Ferryman"):
        run_plan(plan, states, checked=False)
    log.store.delete([(log / following).key])
    before = log.store.get((log / last).key)
    assert before is not None
    log.store.put((log / last).key, before + b"\n")
    with pytest.raises(StateDamaged, match=rf"s3://.*{last}.*checksum"):
        run_plan(plan, states, checked=False)
    log.store.put((log / last).key, before)
    assert run_plan(plan, states, checked=False).exit == 0


def test_a_data_file_that_is_gone(states: str, tmp_path: Path) -> None:
    plan, root = plan_of(tmp_path), state_root(plan_of(tmp_path), states)
    write(tmp_path, one="1")
    run_plan(plan, states, checked=False)
    assert isinstance(root, ObjectPath)
    [name] = [each.key for each in root.store.list_folder((root / "documents").key)[1]]
    root.store.delete([name])
    with pytest.raises(StateDamaged, match=rf"s3://{BUCKET}/{name}: the file is missing"):
        run_plan(plan, states, checked=False)


def test_what_is_not_a_state(states: str, tmp_path: Path) -> None:
    """Nothing is made among somebody else's objects."""
    plan, root = plan_of(tmp_path), state_root(plan_of(tmp_path), states)
    assert isinstance(root, ObjectPath)
    root.store.put((root / "theirs.csv").key, b"1")
    with pytest.raises(StateForeign, match=r"theirs\.csv"):
        run_plan(plan, states, checked=False)


def test_a_store_that_overwrites(states: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ignores conditions is found out before anything is sent."""
    monkeypatch.setattr(HttpStore, "create", lambda self, key, data: self.put(key, data))
    with pytest.raises(UsageError, match="If-None-Match"):
        run_plan(plan_of(tmp_path), states, checked=False)


def test_a_keyed_state(states: str, tmp_path: Path) -> None:
    """States of keys, what they export, and who reads them."""
    queue = DurableQueue("in", tmp_path)
    plan = Plan("count", version=1)
    (
        plan.source("in", Queue("in", tmp_path))
        .combine("words", total, key="word", value="n")
        .destination("out", Sql(f"sqlite:///{tmp_path}/out.db"), backoff=0)
    )
    for _ in range(3):
        queue.append([{"word": f"a-word-of-forty-five-characters-or-so-{n % 5}", "n": 1} for n in range(20)])
        assert run_plan(plan, states, checked=False).exit == 0
        delta.forget_logs()
    assert plan.state("words", states).get("a-word-of-forty-five-characters-or-so-1") == 12
    assert len(delivered(tmp_path)) == 5
    assert account.status(state_root(plan, states), plan)["balanced"]


def total(key: str, values: list[int]) -> int:
    return sum(values)


def test_a_keyed_state_of_documents_that_change(states: str, tmp_path: Path) -> None:
    """What keys were given before is looked up in the store: they have each document once, as it is."""
    plan = Plan("letters", version=1)
    counted = plan.source("files", Files(str(tmp_path / "corpus"), max_deleted=1.0)).step("upper", upper)
    counted.keyed("letters", letters, key=first_letter).destination("out", Sql(f"sqlite:///{tmp_path}/out.db"))
    write(tmp_path, one="a", two="a", three="b", four="c")
    assert run_plan(plan, states, checked=False).exit == 0
    delta.forget_logs()
    write(tmp_path, one="changed", two="a, changed")
    (tmp_path / "corpus" / "three.txt").unlink()
    assert run_plan(plan, states, checked=False).exit == 0
    found = {key: plan.state("letters", states).get(key) for key in "abc"}
    assert found == {"a": ["two.txt"], "b": None, "c": ["four.txt", "one.txt"]}
    assert account.status(state_root(plan, states), plan)["balanced"]
    assert operations.check(state_root(plan, states)) == []


def test_a_file_of_a_keyed_state_that_is_gone(states: str, tmp_path: Path) -> None:
    """It is named by its URL, whoever misses it."""
    gone = f"{states}/00000000-{'0' * 8}-{'0' * 8}-1.parquet"
    wanted = pa.table({"source": ["files"], "document": ["one.txt"]})
    with pytest.raises(StateDamaged, match=f"{gone}: the file is missing"):
        contributions_of([gone], wanted, tmp_path)
    with pytest.raises(StateDamaged, match=f"{gone}: the file is missing"):
        KeyValues([KeyFile(gone, 0, 9)]).of(pa.array(["a"]), 0, 9)


def letters(
    key: str, state: list[str] | None, documents: list[ferryman.Document]
) -> tuple[list[str] | None, ferryman.Document]:
    """The ids of the documents of a key."""
    there = {*(state or []), *(doc.id for doc in documents)}
    there -= {doc.id for doc in documents if doc.operation == "delete"}
    return sorted(there) or None, ferryman.Document(key, ids=sorted(there))


def first_letter(doc: ferryman.Document) -> str:
    return doc.text()[0]


def test_the_lease_is_given_up(states: str, tmp_path: Path) -> None:
    """Whoever comes next from another machine does not wait."""
    plan = plan_of(tmp_path)
    run_plan(plan, states, checked=False)
    root = state_root(plan, states)
    assert isinstance(root, ObjectPath)
    ObjectLease.take(root / "lock").release()


def test_a_cache_of_somebody_else(states: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are not read where another user may have put them."""
    (tmp_path / "theirs").mkdir()
    monkeypatch.setenv(objects.CACHE_VARIABLE, str(tmp_path / "theirs"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UsageError, match="belongs to another user"):
        run_plan(plan_of(tmp_path), states, checked=False)


def data_objects(root: Any) -> list[ObjectPath]:
    """The data files that are live after a run of one wave."""
    return [path for path, _ in objects.walk(root) if path.parent.name in ("documents", "ledger")]


def test_fsck_reads_the_objects(states: str, tmp_path: Path) -> None:
    """Not the copies of them that this machine keeps, which may be whole though an object is not."""
    plan, root = plan_of(tmp_path), state_root(plan_of(tmp_path), states)
    write(tmp_path, one="1", two="2")
    assert run_plan(plan, states, checked=False).exit == 0
    damaged = data_objects(root)
    for path in damaged:
        assert objects.cached_path(path).exists()
        path.store.put(path.key, files.read(path).replace(b"PAR1", b"PAR2"))
    delta.forget_logs()
    assert {finding.path for finding in operations.check(root)} == {str(path) for path in damaged}


def test_a_damaged_copy_of_an_object_is_fetched_again(states: str, tmp_path: Path) -> None:
    """After the next try: a power cut may leave copies cut off, and the objects are as they were."""
    plan, root = plan_of(tmp_path), state_root(plan_of(tmp_path), states)
    write(tmp_path, one="1", two="2")
    assert run_plan(plan, states, checked=False).exit == 0
    copies = [objects.cached_path(path) for path in data_objects(root)]
    for copy in copies:
        copy.write_bytes(b"")
    delta.forget_logs()
    assert operations.check(root) == []
    for copy in copies:
        copy.write_bytes(copy.read_bytes()[:-20])
    messages = []
    for _ in copies:
        try:
            account.history(root, "one.txt", plan)
        except StateDamaged as e:
            messages.append(str(e))
    assert all("a copy of an object on this machine, and was removed: run again" in each for each in messages)
    assert [e["status"] for e in account.history(root, "one.txt", plan)] == ["INDEXED"]
