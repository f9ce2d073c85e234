"""Tests of the promises of a destination that stores vectors: run them over one of your own.

    from ferryman.testing.vectors import VectorSuite

    class TestMyVectors(VectorSuite):
        def destination(self, folder, vectors):
            return MyVectors(folder / "out", vectors=vectors)

``MemoryVectors`` keeps the promises in the simplest way, in the process: the reference by which the suite itself is
tested. The promises of every destination are in ``ferryman.testing.destinations``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import pyarrow as pa

from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Guarantee,
    Hit,
    LastDelivery,
    Outcome,
    Stored,
    compare,
)
from ferryman.destinations.vectors import (
    Declaration,
    VectorDestination,
    VectorField,
    Where,
    fits,
    read_filter,
    read_question,
    read_vectors,
    score_of,
    vector_fields,
)
from ferryman.errors import Misconfigured, UsageError
from ferryman.testing.destinations import delete, delivery

DIMENSIONS = 4


def vector_delivery(id: str, sequence: int, vector: Any, **fields: Any) -> Delivery:
    """Make a delivery with a vector in the field ``vector``."""
    return delivery(id, sequence, f"text of {id}", {"vector": vector, **fields})


class MemoryVectors(VectorDestination):
    """Keeps documents with vectors in the process, by a name, and compares a question with each of them."""

    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    keyed_by_id = True

    stores: ClassVar[dict[str, dict[str, tuple[Delivery, dict[str, Any]]]]] = {}
    """Name -> id -> the last delivery, deletes too, and its vectors."""
    _dimensions: ClassVar[dict[str, dict[str, int]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str, vectors: Declaration) -> None:
        self.name = name
        self.vectors = vector_fields(vectors)

    @property
    def _store(self) -> dict[str, tuple[Delivery, dict[str, Any]]]:
        return self.stores.setdefault(self.name, {})

    def check(self) -> None:
        ours = {name: field.dimensions for name, field in self.vectors.items()}
        if (there := self._dimensions.setdefault(self.name, ours)) != ours:
            raise Misconfigured(
                f"{self.name} has {there}, the plan says {ours}. Give the plan a higher version with a store of "
                "another name, and run it with --from-version."
            )

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(chunk)
        rows = read_vectors(chunk, self.vectors, outcomes)
        vectors = dict(zip((d.hash for d in rows.deliveries), rows.vectors, strict=True))
        with self._lock:
            known = {id: LastDelivery(d.sequence, d.hash) for id, (d, _) in self._store.items()}
            compared, winners = compare(rows.deliveries, known)
            for id, winner in winners.items():
                self._store[id] = (winner, vectors[winner.hash])
        for position, outcome in zip(rows.positions, compared, strict=True):
            outcomes[position] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        for id, (d, _) in list(self._store.items()):
            if d.operation == "upsert" and (ids is None or id in ids):
                yield Stored(id, d.hash, True, d.source, d.version, d.route)

    def nearest(self, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None) -> list[Hit]:
        question = read_question(self.vectors, field, vector)
        wanted = read_filter(where)
        metric = self.vectors[field].metric
        hits = []
        for id, (d, vectors) in list(self._store.items()):
            if field not in vectors or not fits(d.fields, wanted):
                continue
            distance = _distance(metric, question, vectors[field])
            fields = {name: value for name, value in d.fields.items() if name not in self.vectors}
            hits.append(Hit(id, None, "", distance, score_of(metric, distance), fields, d.text()))
        return sorted(hits, key=lambda hit: hit.rank)[:limit]


def _distance(metric: str, one: Any, other: Any) -> float:
    one, other = one.astype(float), other.astype(float)
    if metric == "l2":
        return float(np.linalg.norm(one - other))
    if metric == "cosine":
        return float(1 - one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
    return float(-(one @ other))


class VectorSuite:
    """Base of a test class. ``folder`` is pytest's ``tmp_path``: empty, and used by one test only.

    Attributes:
        metrics: those that the destination has.
        remembers_deletes: True: an upsert that is older than a delete is refused, however late it comes.
        refuses_late: True: an upsert that is older than what is stored is stale.
    """

    metrics: tuple[str, ...] = ("cosine", "l2", "dot")
    remembers_deletes = True
    refuses_late = True

    # --- to override --------------------------------------------------------------------------------------------------

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        """Return the destination; for the same folder, a new object with the same target."""
        raise NotImplementedError

    def settle(self, destination: VectorDestination) -> None:
        """Wait until what was written is found, in a store that refreshes now and then."""

    # --- the promises -------------------------------------------------------------------------------------------------

    def test_the_nearest_come_first(self, tmp_path: Path) -> None:
        """By each metric the order and the scores are those of a comparison with every vector."""
        points = np.random.default_rng(7).standard_normal((60, DIMENSIONS)).astype(np.float32)
        chunk = [vector_delivery(f"doc-{i}", i + 1, p.tolist(), n=i) for i, p in enumerate(points)]
        for metric in self.metrics:
            folder = tmp_path / metric
            folder.mkdir()
            declared = {"vector": VectorField(DIMENSIONS, metric=metric)}  # type: ignore[arg-type]  # one of them
            reference = MemoryVectors(str(folder), declared)
            self._write(folder, chunk, declared)
            reference.write(chunk)
            for question in points[:5]:
                expected = reference.nearest("vector", question + 0.01, 7)
                found = self._nearest(folder, question + 0.01, 7, vectors=declared)
                assert [hit.id for hit in found] == [hit.id for hit in expected], metric
                assert np.allclose([h.score or 0 for h in found], [h.score or 0 for h in expected], atol=1e-4), metric
                assert [(h.fields, h.text) for h in found] == [(h.fields, h.text) for h in expected], metric

    def test_lists_numpy_and_arrow_are_vectors(self, tmp_path: Path) -> None:
        """Lists of floats and integers, NumPy arrays of any number type and Arrow lists are stored alike."""
        values = [
            [1.0, 2.0, 3.0, 4.0],
            [1, 2, 3, 4],
            np.array([1, 2, 3, 4], np.float32),
            np.array([1, 2, 3, 4], np.float16),
            np.array([1, 2, 3, 4], np.int64),
            pa.array([1, 2, 3, 4], pa.float32()),
            pa.scalar([1.0, 2.0, 3.0, 4.0], pa.list_(pa.float32(), 4)),
        ]
        chunk = [vector_delivery(f"doc-{i}", i + 1, value) for i, value in enumerate(values)]
        assert self._write(tmp_path, chunk) == [Outcome.ok()] * len(chunk)
        found = self._nearest(tmp_path, [1, 2, 3, 4], 10)
        assert {hit.id for hit in found} == {d.id for d in chunk}
        assert all(abs((hit.score or 0) - 1) < 1e-5 for hit in found)

    def test_a_repeated_chunk_changes_nothing(self, tmp_path: Path) -> None:
        """A chunk that comes again from another worker is there once."""
        chunk = [vector_delivery(f"doc-{i}", i, _point(i)) for i in range(1, 30)]
        for _ in range(3):
            assert {o.kind for o in self._write(tmp_path, chunk)} <= {"ok", "stale"}
        self._holds(tmp_path, {d.id: d for d in chunk})

    def test_a_newer_vector_replaces_the_older_one(self, tmp_path: Path) -> None:
        """The older one is not found any more."""
        self._write(tmp_path, [vector_delivery("a", 1, [1, 0, 0, 0]), vector_delivery("b", 2, [0, 1, 0, 0])])
        newer = vector_delivery("a", 3, [0, 0, 1, 0], n=2)
        assert self._write(tmp_path, [newer]) == [Outcome.ok()]
        [first, *_] = self._nearest(tmp_path, [0, 0, 1, 0], 2)
        assert (first.id, first.fields) == ("a", {"n": 2})
        assert abs(self._score(tmp_path, "a", [1, 0, 0, 0])) < 1e-5, "the older vector is found"

    def test_a_late_one_is_stale(self, tmp_path: Path) -> None:
        """A lower sequence than the stored one changes neither vector nor fields."""
        self._needs(self.refuses_late)
        newer = vector_delivery("a", 5, [0, 1, 0, 0], n=5)
        self._write(tmp_path, [newer])
        assert self._write(tmp_path, [vector_delivery("a", 4, [1, 0, 0, 0], n=4)]) == [Outcome.stale()]
        assert self._write(tmp_path, [delete("a", 3)]) == [Outcome.stale()]
        self._holds(tmp_path, {"a": newer})

    def test_what_is_deleted_stays_deleted(self, tmp_path: Path) -> None:
        """An upsert that is older than the delete does not bring it back, whether it was there before or not."""
        self._write(tmp_path, [vector_delivery("a", 1, _point(1)), vector_delivery("c", 2, _point(2))])
        self._write(tmp_path, [delete("a", 5), delete("never", 6)])
        self._holds(tmp_path, {"c": vector_delivery("c", 2, _point(2))})
        self._needs(self.remembers_deletes)
        late = [vector_delivery("a", 3, _point(3)), vector_delivery("never", 4, _point(4))]
        assert [o.kind for o in self._write(tmp_path, late)] == ["stale", "stale"]
        self._holds(tmp_path, {"c": vector_delivery("c", 2, _point(2))})

    def test_what_comes_after_a_delete_is_there_again(self, tmp_path: Path) -> None:
        """The later upsert brings it back: its vector is found, once."""
        self._write(tmp_path, [vector_delivery("a", 1, _point(1))])
        self._write(tmp_path, [delete("a", 2)])
        again = vector_delivery("a", 3, _point(9), n=3)
        assert self._write(tmp_path, [again]) == [Outcome.ok()]
        self._holds(tmp_path, {"a": again})

    def test_a_chunk_may_mix_old_and_new(self, tmp_path: Path) -> None:
        """Each row of a chunk with new ids, newer, equal and older ones takes effect by its own sequence."""
        self._needs(self.refuses_late)
        before = [vector_delivery(f"doc-{i}", 100 + i, _point(i), n=i) for i in range(4)]
        self._write(tmp_path, before)
        newer = vector_delivery("doc-0", 200, _point(50), n=50)
        older = vector_delivery("doc-1", 50, _point(51), n=51)
        unseen = vector_delivery("new", 201, _point(52), n=52)
        outcomes = self._write(tmp_path, [newer, older, before[2], unseen, delete("doc-3", 202)])
        assert [o.kind for o in outcomes] == ["ok", "stale", "ok", "ok", "ok"]
        self._holds(tmp_path, {"doc-0": newer, "doc-1": before[1], "doc-2": before[2], "new": unseen})

    def test_an_id_may_be_twice_in_a_chunk(self, tmp_path: Path) -> None:
        """The higher sequence wins, whatever the order."""
        last = vector_delivery("a", 3, _point(3), n=3)
        chunk = [last, vector_delivery("a", 1, _point(1)), vector_delivery("b", 4, _point(4)), delete("b", 5)]
        assert {o.kind for o in self._write(tmp_path, chunk)} <= {"ok", "stale"}
        self._holds(tmp_path, {"a": last})

    def test_twins_may_insert_the_same_new_ids(self, tmp_path: Path) -> None:
        """Two writers of the same new ids at once: each id is there once, with the last version."""
        old = [vector_delivery(f"doc-{i:03d}", i + 1, _point(i), n=0) for i in range(120)]
        new = [vector_delivery(f"doc-{i:03d}", i + 500, _point(i + 3), n=1) for i in range(120)]
        first, barrier = self._open(tmp_path), threading.Barrier(2)
        if first.single_writer and not self.refuses_late:
            raise SkipTest("it has one writer, which the plan sees to")
        failures: list[BaseException] = []

        def write(rows: list[Delivery], size: int) -> None:
            try:
                twin = self._open(tmp_path)
                barrier.wait(60)
                for start in range(0, len(rows), size):
                    assert {o.kind for o in twin.write(rows[start : start + size])} <= {"ok", "stale"}
                twin.close()
            except BaseException as e:
                barrier.abort()
                failures.append(e)

        threads = [
            threading.Thread(target=write, args=each)
            for each in (
                (old + new, 30),
                (new, 20),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        first.close()
        assert not failures, failures
        self._holds(tmp_path, {d.id: d for d in new})

    def test_a_bad_vector_harms_only_its_document(self, tmp_path: Path) -> None:
        """A wrong dimension, NaN, infinity, zeros or text are permanent outcomes that name document and field."""
        bad: dict[str, Any] = {
            "short": [1.0, 2.0],
            "long": [1.0] * 9,
            "empty": [],
            "text": "1,2,3,4",
            "texts": ["a", "b", "c", "d"],
            "truths": [True, False, True, True],
            "nested": [[1.0, 2.0], [3.0, 4.0]],
            "holes": [1.0, None, 2.0, 3.0],
            "zeros": [0.0] * 4,
            "nan": np.array([1, np.nan, 2, 3], np.float32),
            "infinite": np.array([1, np.inf, 2, 3], np.float32),
            "huge": [1e300, 0.0, 0.0, 0.0],
        }
        good = [vector_delivery(f"good-{i}", i, _point(i)) for i in range(1, 13)]
        worse = [vector_delivery(name, 100 + i, value) for i, (name, value) in enumerate(bad.items())]
        chunk = [d for pair in zip(good, worse, strict=True) for d in pair]
        outcomes = dict(zip((d.id for d in chunk), self._write(tmp_path, chunk), strict=True))
        for d in good:
            assert outcomes[d.id] == Outcome.ok(), outcomes[d.id]
        for d in worse:
            assert outcomes[d.id].kind == "permanent", (d.id, outcomes[d.id])
            assert not outcomes[d.id].universal
            assert d.id in outcomes[d.id].why, outcomes[d.id]
            assert "'vector'" in outcomes[d.id].why, outcomes[d.id]
        self._holds(tmp_path, {d.id: d for d in good})

    def test_a_document_needs_no_vector(self, tmp_path: Path) -> None:
        """One without is stored, and no question finds it."""
        without = delivery("a", 1, "text", {"n": 1})
        empty = vector_delivery("c", 3, None)
        assert self._write(tmp_path, [without, vector_delivery("b", 2, _point(2)), empty]) == [Outcome.ok()] * 3
        assert [hit.id for hit in self._nearest(tmp_path, _point(2), 10)] == ["b"]
        self._shows(tmp_path, {"a", "b", "c"})
        assert self._write(tmp_path, [delivery("b", 4, "text", {"n": 1})]) == [Outcome.ok()]
        assert self._nearest(tmp_path, _point(2), 10) == [], "a vector that was taken away is found"

    def test_a_filter_returns_as_many_as_there_are(self, tmp_path: Path) -> None:
        """Where 20 documents fit, 20 are found, though 400 others are nearer."""
        near = [vector_delivery(f"near-{i}", i + 1, [1, i / 4000, 0, 0], team="a", acl=["all"]) for i in range(400)]
        far = [vector_delivery(f"far-{i}", i + 1000, [-1, i / 40, 0, 0], team="b", acl=["x", "y"]) for i in range(20)]
        self._write(tmp_path, near + far)
        wheres: list[Where] = [{"team": "b"}, {"acl": "x"}, {"acl": ["none", "y"]}, {"team": "b", "acl": ["x"]}]
        for where in wheres:
            found = self._nearest(tmp_path, [1, 0, 0, 0], 20, where)
            assert {hit.id for hit in found} == {d.id for d in far}, where
        assert len(self._nearest(tmp_path, [1, 0, 0, 0], 50, {"team": "b"})) == 20
        assert self._nearest(tmp_path, [1, 0, 0, 0], 50, {"team": "c"}) == []

    def test_a_filter_compares_values(self, tmp_path: Path) -> None:
        """Text with its case, numbers by value, true as itself; one of several, in a list or alone."""
        documents: dict[str, dict[str, Any]] = {
            "text": {"s": "Red wine"},
            "list": {"s": ["white", "Red wine"]},
            "number": {"n": 7},
            "float": {"n": 7.5},
            "numbers": {"n": [1, 7]},
            "true": {"t": True},
            "false": {"t": False},
            "quoted": {"q": 'it\'s "so" %s $1 ? \\'},
            "none": {"s": None, "n": None, "t": None},
            "bare": {},
        }
        self._write(
            tmp_path,
            [vector_delivery(id, i + 1, _point(i + 1), **f) for i, (id, f) in enumerate(documents.items())],
        )
        wheres: list[Where] = [
            {"s": "Red wine"}, {"s": "red wine"}, {"s": "Red"}, {"s": ["white", "x"]}, {"n": 7}, {"n": 7.0}, {"n": 7.5},
            {"n": [1, 7.5]}, {"t": True}, {"t": False}, {"q": documents["quoted"]["q"]}, {"s": "Red wine", "n": 7},
        ]  # fmt: skip
        for where in wheres:
            expected = {id for id, fields in documents.items() if fits(fields, read_filter(where))}
            assert {hit.id for hit in self._nearest(tmp_path, _point(1), 50, where)} == expected, where

    def test_a_question_that_cannot_be_meant_is_refused(self, tmp_path: Path) -> None:
        """Another dimension, an unknown field and a filter without values are errors of who asks."""
        self._write(tmp_path, [vector_delivery("a", 1, _point(1))])
        destination = self.destination(tmp_path, {"vector": DIMENSIONS})
        questions: list[tuple[str, Any, Any]] = [
            ("vector", [1.0, 2.0], None),
            ("vector", None, None),
            ("other", _point(1), None),
            ("vector", _point(1), {"team": []}),
            ("vector", _point(1), {"team": None}),
        ]
        for field, vector, where in questions:
            refused = _error_of(partial(destination.nearest, field, vector, 5, where))
            assert isinstance(refused, UsageError), f"{field}, {vector}, {where}: {refused!r}"
            assert str(refused)
        assert len(destination.nearest("vector", _point(1), 0)) == 0

    def test_another_dimension_is_refused_with_the_way_on(self, tmp_path: Path) -> None:
        """A plan that says another dimension than the store has is stopped, and what is stored stays."""
        self._write(tmp_path, [vector_delivery("a", 1, _point(1))])
        refused = _error_of(self.destination(tmp_path, {"vector": DIMENSIONS + 1}).check)
        assert isinstance(refused, Misconfigured), f"another dimension: {refused!r}"
        assert "--from-version" in str(refused), refused
        assert str(DIMENSIONS) in str(refused), refused
        self._holds(tmp_path, {"a": vector_delivery("a", 1, _point(1))})

    def test_verify_finds_no_false_alarm(self, tmp_path: Path) -> None:
        """Reading back shows that nothing was changed, though numbers are stored as float32."""
        numbers = [0.1, 1 / 3, -1e-7, 12345.6789, 1e-30, -0.0, 2049, 2.0]
        chunk = [vector_delivery(f"doc-{i}", i + 1, [n, 1.1, -n, 0.7], n=n) for i, n in enumerate(numbers)]
        self._write(tmp_path, chunk)
        self._shows(tmp_path, {d.id for d in chunk})

    # --- helpers ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _needs(promise: bool) -> None:
        if not promise:
            raise SkipTest("it does not promise that")

    def _open(self, folder: Path, vectors: Declaration | None = None) -> VectorDestination:
        destination = self.destination(folder, vectors or {"vector": DIMENSIONS})
        destination.check()
        destination.open(self._context(destination))
        return destination

    @staticmethod
    def _context(destination: Destination) -> DestinationContext:
        guarantee = Guarantee.EXACTLY_ONCE if destination.transactional else Guarantee.AT_LEAST_ONCE
        return DestinationContext("suite", 1, "node", 1, guarantee)

    def _write(self, folder: Path, chunk: list[Delivery], vectors: Declaration | None = None) -> list[Outcome]:
        destination = self._open(folder, vectors)
        outcomes = list(destination.write(chunk))
        destination.close()
        assert len(outcomes) == len(chunk), "not one outcome a delivery"
        return outcomes

    def _nearest(
        self,
        folder: Path,
        vector: Any,
        limit: int,
        where: Where | None = None,
        vectors: Declaration | None = None,
    ) -> list[Hit]:
        destination = self.destination(folder, vectors or {"vector": DIMENSIONS})
        self.settle(destination)
        return destination.nearest("vector", vector, limit, where)

    def _score(self, folder: Path, id: str, vector: list[float]) -> float:
        [score] = [hit.score for hit in self._nearest(folder, vector, 100) if hit.id == id]
        assert score is not None
        return score

    def _holds(self, folder: Path, expected: dict[str, Delivery]) -> None:
        """Assert that exactly these documents are found, each once, with its own vector and fields."""
        found = self._nearest(folder, _point(1), 1000)
        assert sorted(hit.id for hit in found) == sorted(expected)
        for hit in found:
            fields = {name: value for name, value in expected[hit.id].fields.items() if name != "vector"}
            assert hit.fields == fields, hit
        for id in list(expected)[:3]:
            assert abs(self._score(folder, id, expected[id].fields["vector"]) - 1) < 1e-5, f"{id}: another vector"
        self._shows(folder, set(expected))

    def _shows(self, folder: Path, ids: set[str]) -> None:
        """Assert that the inventory has exactly these documents, unchanged."""
        destination = self.destination(folder, {"vector": DIMENSIONS})
        found = list(destination.inventory(self._context(destination)))
        assert sorted(each.id for each in found) == sorted(ids)
        assert not [each.id for each in found if each.intact is False], "it is shown as changed"


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as e:
        return e
    return None


def _point(i: int) -> list[float]:
    """Return a vector that differs from any other in its direction."""
    return [float(x) for x in np.random.default_rng(i).standard_normal(DIMENSIONS).astype(np.float32)]
