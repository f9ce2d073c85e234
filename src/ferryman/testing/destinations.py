"""Tests of the promises of the destination port: run them over a destination of your own.

    from ferryman.testing.destinations import DestinationSuite

    class TestMyDestination(DestinationSuite):
        def destination(self, folder):
            return MyDestination(folder / "out")

        def hashes(self, folder):
            return [line.split()[0] for line in (folder / "out").read_text().splitlines()]

pytest collects the class and runs every promise as a test. Only ``destination`` is required; a promise that cannot be
checked because you do not override ``hashes`` is skipped. ``ferryman.testing.servers`` has the promises of a
destination that is a server. This module imports no test framework.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest import SkipTest

import cloudpickle

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Guarantee, Outcome
from ferryman.document import Operation

_SPAWN = multiprocessing.get_context("spawn")


def delivery(
    id: str,
    sequence: int,
    text: str | None = "some text",
    fields: dict[str, Any] | None = None,
    *,
    operation: Operation = "upsert",
) -> Delivery:
    """Make a delivery as the engine does: equal arguments give equal deliveries, another sequence another hash."""
    upsert = operation == "upsert"
    return Delivery(
        id,
        hash=blake2b(f"{id}\0{sequence}\0{operation}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest(),
        sequence=sequence,
        operation=operation,
        fields=fields if upsert else None,
        raw=text.encode() if upsert and text is not None else None,
        version=f"{sequence:032x}",
        source="files",
        origin_id=id,
    )


class _BrokenDelivery(Delivery):
    """Delivery whose content cannot be read: the connection breaks while a destination writes it."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("fields", "raw", "_fields_json", "text"):
            raise ConnectionResetError("the connection broke off")
        return super().__getattribute__(name)


def delete(id: str, sequence: int) -> Delivery:
    """Make the delivery of a delete."""
    return delivery(id, sequence, operation="delete")


class DestinationSuite:
    """Base of a test class. ``folder`` is pytest's ``tmp_path``: empty, and used by one test only.

    Attributes:
        keyed: True if it keeps one record per id: an upsert replaces it, a delete removes it. False if it keeps every
            delivery, one after the other.
        secret: a password that is in the destination's arguments: ``target()`` and errors must not show it.
    """

    keyed = False
    secret = ""

    # --- to override --------------------------------------------------------------------------------------------------

    def destination(self, folder: Path) -> Destination:
        """Return the destination; for the same folder, a new object with the same target."""
        raise NotImplementedError

    def hashes(self, folder: Path) -> list[str]:
        """Return the delivery hash of each record in the target now, as a reader of it finds them."""
        raise SkipTest("hashes() is not overridden")

    def node(self, folder: Path) -> str:
        """Return the name of the destination's node in this test's plan."""
        return f"node-{folder.name}"

    # --- the promises -------------------------------------------------------------------------------------------------

    def test_it_says_what_it_can_do(self, tmp_path: Path) -> None:
        """``effect`` is IDEMPOTENT or POTENT; only what can be reached twice has a target, without secrets."""
        destination = self.destination(tmp_path)
        assert destination.effect in (Effect.IDEMPOTENT, Effect.POTENT), f"effect is {destination.effect!r}"
        target = destination.target()
        assert target is None or target == self.destination(tmp_path).target()
        if self.secret:
            assert self.secret not in (target or ""), "target() shows a password"

    def test_it_is_made_without_touching_anything(self, tmp_path: Path) -> None:
        """Building a plan does no I/O: the constructor creates nothing in the folder."""
        before = sorted(tmp_path.rglob("*"))
        self.destination(tmp_path)
        assert sorted(tmp_path.rglob("*")) == before

    def test_it_works_from_a_worker(self, tmp_path: Path) -> None:
        """A pickled copy writes what the original would; it can be pickled before and after use."""
        original = self.destination(tmp_path)
        original.check()
        copy = pickle.loads(cloudpickle.dumps(original))
        self._write(copy, tmp_path, [delivery("a", 1)])
        second_copy = pickle.loads(cloudpickle.dumps(copy))
        self._write(second_copy, tmp_path, [delivery("b", 2)])
        self._holds(tmp_path, [delivery("a", 1), delivery("b", 2)])

    def test_check_may_be_repeated(self, tmp_path: Path) -> None:
        """``check`` changes nothing that was delivered, however often it is called."""
        destination = self.destination(tmp_path)
        destination.check()
        destination.check()
        self._write(destination, tmp_path, [delivery("a", 1)])
        self.destination(tmp_path).check()
        self._holds(tmp_path, [delivery("a", 1)])

    def test_each_delivery_has_its_outcome(self, tmp_path: Path) -> None:
        """``write`` returns one outcome for each delivery; new deliveries are all ok. An empty chunk has none."""
        with self._open(tmp_path) as destination:
            chunk = [delivery(f"doc-{i:04d}", i, "word " * (i % 50), {"title": f"Title {i}"}) for i in range(1, 1201)]
            assert list(destination.write([])) == []
            assert list(destination.write(chunk)) == [Outcome.ok()] * len(chunk)
        self._holds(tmp_path, chunk)

    def test_a_task_may_write_nothing(self, tmp_path: Path) -> None:
        """``open`` and ``close`` may be called without a ``write`` between them, and again."""
        destination = self.destination(tmp_path)
        destination.check()
        for _ in range(2):
            destination.open(self._context(tmp_path))
            destination.close()
        self._write(destination, tmp_path, [delivery("a", 1)])
        self._holds(tmp_path, [delivery("a", 1)])

    def test_a_delivery_is_not_changed(self, tmp_path: Path) -> None:
        """``write`` changes neither the chunk nor its deliveries: they are sent again as they are."""
        chunk = [delivery("a", 1, fields={"title": "One", "tags": ["x", {"y": 1}]}), delete("b", 2)]
        before = pickle.dumps([(d.id, d.hash, d.sequence, d.operation, d.raw, d.fields, d.route) for d in chunk])
        with self._open(tmp_path) as destination:
            destination.write(chunk)
        assert before == pickle.dumps(
            [(d.id, d.hash, d.sequence, d.operation, d.raw, d.fields, d.route) for d in chunk]
        )

    def test_a_repeated_chunk_changes_nothing(self, tmp_path: Path) -> None:
        """A chunk that comes again from another worker, as after a kill, is stored once."""
        self._needs_repeating()
        chunk = [delivery(f"doc-{i}", i) for i in range(1, 51)]
        for _ in range(3):
            outcomes = self._write(self.destination(tmp_path), tmp_path, chunk)
            assert {o.kind for o in outcomes} <= {"ok", "stale"}
        self._holds(tmp_path, chunk)

    def test_rows_may_come_again_in_other_chunks(self, tmp_path: Path) -> None:
        """Deliveries that were not confirmed may come again in other chunks: each is stored once."""
        self._needs_repeating()
        rows = [delivery(f"doc-{i}", i) for i in range(1, 21)]
        for size in (20, 7, 1, 12):
            for start in range(0, len(rows), size):
                self._write(self.destination(tmp_path), tmp_path, rows[start : start + size])
        self._holds(tmp_path, rows)

    def test_a_hash_twice_in_a_chunk_counts_once(self, tmp_path: Path) -> None:
        """A chunk may hold a delivery twice; both are ok, and it is stored once."""
        self._needs_repeating()
        chunk = [delivery("a", 1), delivery("b", 2), delivery("a", 1)]
        outcomes = self._write(self.destination(tmp_path), tmp_path, chunk)
        assert [o.kind for o in outcomes] == ["ok", "ok", "ok"]
        self._holds(tmp_path, chunk)

    def test_a_newer_version_arrives(self, tmp_path: Path) -> None:
        """A later delivery of an id takes effect; if the destination is keyed, it replaces the one before."""
        with self._open(tmp_path) as destination:
            for sequence in (1, 2, 3):
                assert list(destination.write([delivery("a", sequence)])) == [Outcome.ok()]
        self._holds(tmp_path, [delivery("a", sequence) for sequence in (1, 2, 3)])

    def test_a_chunk_may_hold_an_id_several_times(self, tmp_path: Path) -> None:
        """Deliveries of an id take effect in the order of their sequences, whatever their order in the chunk."""
        if self.keyed and not self.destination(tmp_path).compares_sequences:
            raise SkipTest("it does not compare sequences")
        chunk = [delivery("a", 3), delivery("a", 1), delivery("b", 4), delete("b", 5), delivery("a", 2)]
        outcomes = self._write(self.destination(tmp_path), tmp_path, chunk)
        assert {o.kind for o in outcomes} <= {"ok", "stale"}
        self._holds(tmp_path, chunk)

    def test_it_tells_the_highest_sequence_that_it_holds(self, tmp_path: Path) -> None:
        """None before the first delivery; an older one does not change it. A state created again continues above it."""
        destination = self.destination(tmp_path)
        if type(destination).highest_sequence is Destination.highest_sequence:
            raise SkipTest("highest_sequence() is not overridden")
        destination.check()
        assert destination.highest_sequence() is None
        self._write(destination, tmp_path, [delivery("a", 7), delivery("b", 5)])
        assert destination.highest_sequence() == 7
        self._write(self.destination(tmp_path), tmp_path, [delivery("a", 6), delivery("c", 1 << 51)])
        assert destination.highest_sequence() == 1 << 51

    def test_its_identity_stays(self, tmp_path: Path) -> None:
        """ "" before there is a target; then an id that neither another object, nor ``check``, nor a write changes."""
        destination = self.destination(tmp_path)
        if type(destination).identity is Destination.identity:
            raise SkipTest("identity() is not overridden")
        assert destination.identity() == ""
        destination.check()
        identity = destination.identity()
        assert identity
        self._write(self.destination(tmp_path), tmp_path, [delivery("a", 1)])
        assert self.destination(tmp_path).identity() == identity

    def test_an_older_delivery_does_not_undo_a_newer_one(self, tmp_path: Path) -> None:
        """A delivery with a lower sequence than the stored one is stale, and changes nothing."""
        self._needs_comparing(tmp_path)
        with self._open(tmp_path) as destination:
            assert list(destination.write([delivery("a", 5)])) == [Outcome.ok()]
            assert list(destination.write([delivery("a", 4)])) == [Outcome.stale()]
            assert list(destination.write([delete("a", 3)])) == [Outcome.stale()]
        self._holds(tmp_path, [delivery("a", 5)])

    def test_a_delete_takes_effect(self, tmp_path: Path) -> None:
        """A delete is ok, also of an unknown id, and when repeated."""
        with self._open(tmp_path) as destination:
            destination.write([delivery("a", 1), delivery("b", 2)])
            for _ in range(2 if self._repeats() else 1):
                assert list(destination.write([delete("a", 3), delete("never", 4)])) == [Outcome.ok()] * 2
        self._holds(tmp_path, [delivery("a", 1), delivery("b", 2), delete("a", 3), delete("never", 4)])

    def test_a_delete_is_remembered(self, tmp_path: Path) -> None:
        """An upsert that is older than a delete does not bring the document back; a newer one does."""
        self._needs_comparing(tmp_path)
        self._write(self.destination(tmp_path), tmp_path, [delivery("a", 1), delete("a", 3), delete("b", 4)])
        late = self._write(self.destination(tmp_path), tmp_path, [delivery("a", 2), delivery("b", 1)])
        assert [o.kind for o in late] == ["stale", "stale"]
        self._holds(tmp_path, [delivery("a", 1), delete("a", 3), delete("b", 4)])
        assert self._write(self.destination(tmp_path), tmp_path, [delivery("a", 5)]) == [Outcome.ok()]
        self._holds(tmp_path, [delivery("a", 1), delete("a", 3), delete("b", 4), delivery("a", 5)])

    def test_strange_documents_are_documents(self, tmp_path: Path) -> None:
        """Documents without raw or fields, with binary, NULs, any script or JSON are delivered, or refused singly."""
        chunk = [*_unusual_deliveries(), delivery("usual", 100)]
        outcomes = self._write(self.destination(tmp_path), tmp_path, chunk)
        assert len(outcomes) == len(chunk)
        assert all(o.kind in ("ok", "permanent") and (o.why or o.kind == "ok") for o in outcomes), outcomes
        assert outcomes[-1] == Outcome.ok(), "an ordinary document was refused for another's sake"
        self._holds(tmp_path, [d for d, o in zip(chunk, outcomes, strict=True) if o.kind == "ok"])

    def test_a_value_that_does_not_fit_harms_only_its_document(self, tmp_path: Path) -> None:
        """Lone surrogates and integers beyond 64 bit are permanent outcomes of their deliveries, or they are stored."""
        chunk = [delivery(f"good-{i}", i, fields={"title": f"good {i}"}) for i in range(1, 20)]
        chunk[3] = delivery("surrogate", 30, fields={"title": "\ud800"})
        chunk[9] = delivery("surrogate in a list", 31, fields={"title": ["\udfff"]})
        chunk[15] = delivery("huge", 32, fields={"title": 2**70})
        chunk[16] = delivery("surrogate in the \ud800 id", 33)
        outcomes = self._write(self.destination(tmp_path), tmp_path, chunk)
        for d, outcome in zip(chunk, outcomes, strict=True):
            assert outcome.kind in (("ok",) if d.id.startswith("good") else ("ok", "permanent")), (d.id, outcome)
            assert not outcome.universal, outcome
            assert outcome.why.encode() or outcome.kind == "ok", "a reason is text that UTF-8 can hold"
        self._holds(tmp_path, [d for d, o in zip(chunk, outcomes, strict=True) if o.kind == "ok"])

    def test_two_workers_may_write_at_once(self, tmp_path: Path) -> None:
        """Two workers that write the same rows at once, as after a kill, store each once."""
        self._needs_repeating()
        rows = [delivery(f"doc-{i:03d}", i) for i in range(1, 301)]
        self.destination(tmp_path).check()
        start = _SPAWN.Barrier(2)
        workers = [self._worker(tmp_path, rows, size, start=start) for size in (10, 7)]
        for worker in workers:
            worker.join(600)
            assert worker.exitcode == 0, f"a worker failed: exit code {worker.exitcode}"
        self._holds(tmp_path, rows)

    def test_a_killed_write_can_be_repeated(self, tmp_path: Path) -> None:
        """A write that is killed at any moment can be repeated: each delivery is stored once and complete."""
        self._needs_repeating()
        rows = [delivery(f"doc-{i:04d}", i, "some words " * 50, {"title": f"Title {i}"}) for i in range(1, 1001)]
        self.destination(tmp_path).check()
        for wait_s in (0.0, 0.011, 0.047):
            progress = tmp_path.with_name(tmp_path.name + "-progress")
            progress.unlink(missing_ok=True)
            worker = self._worker(tmp_path, rows, 20, str(progress))
            _wait_for(progress, worker)
            time.sleep(wait_s)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            worker.join(60)
        self.destination(tmp_path).check()
        with self._open(tmp_path) as destination:
            for start in range(0, len(rows), 100):
                outcomes = destination.write(rows[start : start + 100])
                assert {o.kind for o in outcomes} <= {"ok", "stale"}
        self._holds(tmp_path, rows)

    def test_it_is_ready_again_after_a_write_that_failed(self, tmp_path: Path) -> None:
        """``close``, which may fail, and ``open`` follow a ``write`` that failed as a whole; then it writes again, and
        nothing of the failed call is stored twice or in part."""
        self._needs_repeating()
        rows = [delivery(f"doc-{i:02d}", i, fields={"title": f"Title {i}"}) for i in range(1, 21)]
        destination = self.destination(tmp_path)
        destination.check()
        destination.open(self._context(tmp_path))
        for broken in (0, 11, 19):
            chunk: list[Delivery] = [*rows]
            chunk[broken] = _BrokenDelivery(rows[broken].id, rows[broken].hash, rows[broken].sequence)
            with suppress(ConnectionError):  # it may answer for this row alone
                destination.write(chunk)
            with suppress(Exception):
                destination.close()
            destination.open(self._context(tmp_path))
            outcomes = list(destination.write(rows[:broken]))
            assert {o.kind for o in outcomes} <= {"ok", "stale"}, outcomes
        outcomes = list(destination.write(rows))
        destination.close()
        assert len(outcomes) == len(rows)
        assert {o.kind for o in outcomes} <= {"ok", "stale"}, outcomes
        self._holds(tmp_path, rows)

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _repeats(self) -> bool:
        destination = type(self).destination(self, Path("unused"))
        return destination.transactional or destination.effect is Effect.IDEMPOTENT

    def _needs_repeating(self) -> None:
        if not self._repeats():
            raise SkipTest("POTENT and not transactional: nothing is ever repeated")

    def _needs_comparing(self, folder: Path) -> None:
        if not self.keyed or not self.destination(folder).compares_sequences:
            raise SkipTest("it does not compare sequences")

    def _context(self, folder: Path) -> DestinationContext:
        destination = self.destination(folder)
        guarantee = Guarantee.AT_LEAST_ONCE if destination.effect is Effect.IDEMPOTENT else Guarantee.AT_MOST_ONCE
        if destination.transactional:
            guarantee = Guarantee.EXACTLY_ONCE
        return DestinationContext("suite", 1, self.node(folder), 1, guarantee)

    @contextmanager
    def _open(self, folder: Path) -> Iterator[Destination]:
        destination = self.destination(folder)
        destination.check()
        destination.open(self._context(folder))
        yield destination
        destination.close()

    def _write(self, destination: Destination, folder: Path, chunk: list[Delivery]) -> list[Outcome]:
        destination.check()
        destination.open(self._context(folder))
        outcomes = list(destination.write(chunk))
        destination.close()
        assert len(outcomes) == len(chunk), "not one outcome a delivery"
        return outcomes

    def _holds(self, folder: Path, deliveries: Iterable[Delivery]) -> None:
        """Assert that the target holds what it must after these deliveries, once each."""
        expected = _current_hashes(deliveries) if self.keyed else {d.hash for d in deliveries}
        stored = Counter(self.hashes(folder))
        doubled = {digest: n for digest, n in stored.items() if n > 1}
        missing, surplus = expected - stored.keys(), stored.keys() - expected
        assert not any((doubled, missing, surplus)), f"doubled: {doubled}, missing: {missing}, surplus: {surplus}"
        self._shows(folder, expected, {d.id for d in deliveries})

    def _shows(self, folder: Path, expected: set[str], ids: set[str]) -> None:
        """Assert that the inventory, if there is one, has these deliveries, unchanged; whole, and of these ids."""
        for some in (None, ids):
            with suppress(NotImplementedError):
                found = list(self.destination(folder).inventory(self._context(folder), some))
                assert {each.hash for each in found} == expected, "the inventory differs from what it holds"
                assert {each.id for each in found} <= ids
                changed = [each.id for each in found if each.intact is False]
                assert not changed, f"as changed since it was written it shows {changed}"

    def _worker(self, folder: Path, rows: list[Delivery], size: int, progress: str = "", start: Any = None) -> Any:
        task = cloudpickle.dumps((self.destination(folder), self._context(folder)))
        worker = _SPAWN.Process(target=_write_all, args=(task, rows, size, progress, start), daemon=True)
        worker.start()
        return worker


def _write_all(task: bytes, rows: list[Delivery], size: int, progress: str, barrier: Any) -> None:
    """Write all rows, in a child process. With ``progress`` repeat until killed."""
    destination, context = pickle.loads(task)
    destination.open(context)
    if barrier is not None:
        barrier.wait(60)
    while True:
        for start in range(0, len(rows), size):
            outcomes = destination.write(rows[start : start + size])
            assert {o.kind for o in outcomes} <= {"ok", "stale"}, outcomes
            if progress:
                Path(progress).touch()
        if not progress:
            break
    destination.close()


def _wait_for(path: Path, worker: Any) -> None:
    deadline = time.monotonic() + 600  # on a busy machine it loads for more than a minute
    while not path.exists():
        assert worker.is_alive(), "the worker ended by itself"
        assert time.monotonic() < deadline, "the worker wrote nothing for ten minutes"
        time.sleep(0.001)


def _current_hashes(deliveries: Iterable[Delivery]) -> set[str]:
    """Return the hash of each id's last upsert, unless a delete came after it."""
    last = {d.id: d for d in sorted(deliveries, key=lambda d: d.sequence)}
    return {d.hash for d in last.values() if d.operation == "upsert"}


def _unusual_deliveries() -> list[Delivery]:
    """Make deliveries with unusual fields, raws and ids."""
    fields: list[dict[str, Any]] = [
        {},
        {"title": None},
        {"title": ""},
        {"title": "NUL \0 inside"},
        {"title": "line\nend\r\n\u2028"},
        {"title": "汉字 العربية 👩‍👩‍👧 é"},
        {"title": True, "n": 2**63 - 1, "m": -(2**63), "x": 1.5e308},
        {"title": ["a", {"b": [None, 1.0]}], "": "a field without a name"},
        {"title": "'; DROP TABLE documents; --", "%s": "%s", ":x": "?"},
        {"raw": "a field named raw", "id": "a field named id", "text": "and text"},
    ]
    strange = [delivery(f"fields-{i}", i, fields=some) for i, some in enumerate(fields, 1)]
    raws = [None, b"", b"\0", b"\x80\x81\xff", b"\xef\xbb\xbfBOM", "\ufffd\ufffe".encode(), b"long " * 200_000]
    for i, raw in enumerate(raws, 20):
        one = delivery(f"raw-{i}", i)
        one.raw = raw
        strange.append(one)
    ids = ["a b.txt", "#", "a\0b", "'\"%_?", "汉字/👩‍👩‍👧.txt", "../up", "long/" * 400, "A", "a"]
    return strange + [delivery(id, i) for i, id in enumerate(ids, 40)]
