"""New and changed documents that meet nothing unusual are walked and staged a block at a time; the outcome is the same
as document by document."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, note
from hypothesis import settings as examples
from hypothesis import strategies as st

from ferryman.document import Document
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.staging import Stager
from ferryman.errors import PermanentError
from ferryman.records.rows import now_us
from ferryman.routers import ByField, Duplicate, Router
from ferryman.testing.inprocess import InProcess
from tests.engine.test_random_plans import HEALTH, somewhere
from tests.support.invariants import rows
from tests.support.oracle import Shape
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.stories import CONTENTS, IDS, Content, Turn, shapes, turns
from tests.support.world import World

NOW_US = now_us()
NEVER_THE_SAME = ("created", "due", "since", "path")
"""When something happened, and what is drawn by lot."""


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """No block is walked as one."""
    with patch.object(BlockWalk, "suits", staticmethod(lambda block: False)):
        yield


def committed(run: Callable[..., Any], root: Callable[[], Path], wave: int = 1) -> dict[str, list[Any]]:
    """What a wave commits: rows of the outbox before they are sent, with their order; then the others."""
    with patch("ferryman.engine.transform.phase.now_us", lambda: NOW_US):
        with contextlib.suppress(Interrupted):
            run(observer=Until(wave, "deliver"), checked=False)
        found = {"outbox": everything(root(), "outbox")}
        with contextlib.suppress(Interrupted):
            run(observer=Until(wave + 1, "transform"), checked=False)
    return found | {table: everything(root(), table) for table in ("documents", "ledger")}


def everything(root: Path, table: str) -> list[Any]:
    every = [{k: v for k, v in row.items() if k not in NEVER_THE_SAME} for row in rows(root, table)]
    begin = min((row["first_sequence"] for row in every), default=0) if table == "outbox" else 0  # of the clock
    every = [row | {"first_sequence": row.get("first_sequence", 0) - begin} for row in every]
    return sorted(every, key=lambda row: (row["document"], row.get("destination", ""), repr(row)))


def after_first_wave(shape: Shape, documents: dict[tuple[int, str], Content], turn: Turn, folder: Path) -> Any:
    folder.mkdir()
    world = World(shape, folder)
    world.change(documents)
    world.faults.turn, world.faults.faults, world.faults.down = 1, turn.faults, turn.down
    return committed(world.run, lambda: world.root)


@st.composite
def first_runs(draw: st.DrawFn) -> tuple[Shape, dict[tuple[int, str], Content], Turn]:
    """A plan, documents of each source, and what fails."""
    shape = draw(shapes())
    ids = [*IDS, *"klmnop"]
    documents = {(n, id): draw(CONTENTS) for n in range(len(shape.of("source"))) for id in ids}
    return shape, documents, draw(turns(shape))


@examples(max_examples=3, deadline=None, suppress_health_check=HEALTH, print_blob=True, database=None)
@given(first=first_runs())
def test_a_wave_commits_the_same(first: tuple[Shape, dict[tuple[int, str], Content], Turn]) -> None:
    """Rows of the outbox with their sequences, of ``documents`` and of the ledger, for plans and faults by chance."""
    note("\n".join(map(str, first[0])))
    with somewhere() as folder:
        quick = after_first_wave(*first, folder / "quick")
        with one_by_one():
            slow = after_first_wave(*first, folder / "slow")
    assert quick == slow


def after_second_wave(
    shape: Shape,
    documents: dict[tuple[int, str], Content],
    changed: dict[tuple[int, str], Content],
    turn: Turn,
    folder: Path,
) -> Any:
    folder.mkdir()
    world = World(shape, folder)
    world.change(documents)
    world.run(checked=False)
    world.change(changed)
    world.faults.turn, world.faults.faults, world.faults.down = 1, turn.faults, turn.down
    return committed(world.run, lambda: world.root, 1 + max(row["wave"] for row in rows(world.root, "documents")))


@st.composite
def second_runs(draw: st.DrawFn) -> tuple[Shape, dict[tuple[int, str], Content], dict[tuple[int, str], Content], Turn]:
    """A plan, two versions of documents of each source, and what fails of the second."""
    shape, documents, turn = draw(first_runs())
    texts = ["one", "two"]
    changed = {
        key: new._replace(text=texts[texts.index(documents[key].text) - 1])
        for key in documents
        for new in [documents[key] if draw(st.booleans()) else draw(CONTENTS)]
    }
    return shape, documents, changed, turn


@examples(max_examples=3, deadline=None, suppress_health_check=HEALTH, print_blob=True, database=None)
@given(second=second_runs())
def test_a_wave_of_changed_documents_commits_the_same(second: tuple[Any, Any, Any, Turn]) -> None:
    """Those that take other branches than before, and are deleted where they were, too."""
    note("\n".join(map(str, second[0])))
    with somewhere() as folder:
        quick = after_second_wave(*second, folder / "quick")
        with one_by_one():
            slow = after_second_wave(*second, folder / "slow")
    assert quick == slow


def routed(doc: Document) -> Document:
    doc["side"] = "right" if doc["n"] % 3 == 2 else "left"
    return doc


def changed_again(folder: Path) -> list[dict[str, Any]]:
    """What the second and the third version of documents come to, of which some take another branch each time."""
    folder.mkdir()
    net = PlanWorld.empty(folder)
    sides = net.source().step("routed", routed).route("side", ByField("side"))
    sides.destination("left", net.out("left"))
    sides.destination("right", net.out("right"))
    found = []
    for version in range(3):
        for n in range(12):
            net.put(f"doc-{n}", n=n + version * (n % 4 == 0), version=version)
        net.run()
        found.append({table: everything(net.root, table) for table in ("documents", "ledger")})
    return found


def test_changed_documents_that_take_another_branch_are_deleted_where_they_were(place: Path) -> None:
    with patch.object(Stager, "stage_plain", autospec=True, side_effect=Stager.stage_plain) as stage_plain:
        quick = changed_again(place / "quick")
    with one_by_one():
        slow = changed_again(place / "slow")
    deleted = [row for row in quick[-1]["ledger"] if row["operation"] == "delete"]
    assert {row["document"] for row in deleted} <= {"doc-0", "doc-4", "doc-8"}
    assert deleted
    assert stage_plain.call_count == 3 * 12 - len(deleted)
    assert {row["revision"] for row in quick[-1]["documents"]} == {3}
    assert quick == slow


def plain_answers(docs: list[Document]) -> list[Any]:
    for doc in docs:
        doc["n"] = doc["n"] + 1
    return docs


def all_kinds_of_answers(docs: list[Document]) -> list[Any]:
    kinds: list[Callable[[Document], Any]] = [
        lambda doc: doc,
        lambda doc: None,
        lambda doc: [doc, doc.child("part", n=1)],
        lambda doc: PermanentError("not this one"),
        lambda doc: (doc.child(n, n=n) for n in range(2)),
        lambda doc: "a text",
        lambda doc: Document(doc.id, n=0),
    ]
    return [kinds[doc["n"] % len(kinds)](doc) for doc in docs]


def fails_of_some(docs: list[Document]) -> list[Any]:
    if any(doc["n"] % 11 == 5 for doc in docs):
        raise KeyError("one of them")
    return docs


def wants_again(docs: list[Document]) -> list[Any]:
    for doc in docs:
        if doc["n"] % 5 == 1:
            doc.again("1h")
    return docs


def wants_again_and_fails(docs: list[Document]) -> list[Any]:
    """One that is dropped has its wish, too."""
    return [None if doc.asked_again else KeyError("no") if doc["n"] == 7 else doc for doc in wants_again(docs)]


def column(batch: pa.RecordBatch) -> pa.RecordBatch:
    twice = [2 * n for n in batch["n"].to_pylist()]
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(twice)], [*batch.schema.names, "twice"])


def fewer_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return column(batch).take([n for n in reversed(range(batch.num_rows)) if n % 3])


def other_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Some of a column are changed, one column goes, raw too."""
    some = pa.array([n if n % 2 else None for n in batch["n"].to_pylist()])
    return pa.RecordBatch.from_arrays([batch["id"], some, batch["title"]], ["id", "n", "title"])


def other_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    titles = pa.array([f"{each}!" for each in batch["title"].to_pylist()])
    return pa.RecordBatch.from_arrays([titles, batch["raw"], batch["id"]], ["title", "raw", "id"])


def with_column(make: Callable[[int], Any], kind: pa.DataType | None = None) -> Callable[..., Any]:
    """A step that adds a column ``made`` of the column ``n``."""

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("made", pa.array([make(n) for n in batch["n"].to_pylist()], kind))

    return step


def other_raws(batch: pa.RecordBatch) -> pa.RecordBatch:
    raws = pa.array([None if n % 2 else b"%d" % n for n in batch["n"].to_pylist()])
    return pa.RecordBatch.from_arrays([raws, batch["n"], batch["id"]], ["raw", "n", "id"])


def wrong_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One batch comes back without ids."""
    return batch.drop_columns(["id"]) if 9 in batch["n"].to_pylist() else batch


def only_ids(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["id"])


STEPS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain answers": (plain_answers, {"batch": 4}),
    "all kinds of answers": (all_kinds_of_answers, {"batch": 4}),
    "one answer fails after the other": (lambda docs: [KeyError("no")] * len(docs), {"batch": 4, "brake": 3}),
    "lists of few bytes": (plain_answers, {"batch": 7, "batch_bytes": 10}),
    "some fail": (fails_of_some, {"batch": 4}),
    "one wish": (wants_again, {"batch": 4}),
    "a wish and an error": (wants_again_and_fails, {"batch": 4}),
    "a column": (column, {"arrow": True}),
    "fewer rows": (fewer_rows, {"arrow": True, "batch": 7}),
    "other values": (other_values, {"arrow": True}),
    "other texts": (other_texts, {"arrow": True, "batch": 7}),
    "other raws": (other_raws, {"arrow": True}),
    "only ids": (only_ids, {"arrow": True}),
    "one batch is wrong": (wrong_once, {"arrow": True, "batch": 4}),
    "texts of any script": (with_column(lambda n: 'ä\x00"\\\n\u2028😀' * n), {"arrow": True}),
    "numbers": (with_column(lambda n: n * 1e16 + 0.1), {"arrow": True}),
    "large numbers": (with_column(lambda n: 2**64 - 1 - n, pa.uint64()), {"arrow": True}),
    "small floats": (with_column(lambda n: n / 10, pa.float32()), {"arrow": True}),
    "not a number": (with_column(lambda n: float("nan") if n == 5 else n), {"arrow": True, "batch": 4}),
    "embeddings": (with_column(lambda n: [n / 3, 0.0, -0.0], pa.list_(pa.float32(), 3)), {"arrow": True}),
    "an infinite embedding": (with_column(lambda n: [n / 3, float("inf") if n == 3 else 0]), {"arrow": True}),
    "lists with gaps": (with_column(lambda n: ["a", None] * (n % 3)), {"arrow": True}),
    "objects": (with_column(lambda n: {"b": n, "a": [n]}), {"arrow": True}),
    "dates": (with_column(lambda n: dt.date(2024, 1, 1 + n)), {"arrow": True}),
    "bytes": (with_column(lambda n: b"%d" % n), {"arrow": True}),
    "some are large": (with_column(lambda n: "x" * (3 << 19) if n == 9 else ""), {"arrow": True, "batch": 4}),
}


class Counted:
    """Notes each call: of how many, and their keys."""

    def __init__(self, fn: Callable[..., Any], calls: Path) -> None:
        self._fn = fn
        self._calls = calls

    def __call__(self, given: Any) -> Any:
        keys = [] if isinstance(given, pa.RecordBatch) else [doc.idempotency_key for doc in given]
        with self._calls.open("a") as file:
            file.write(f"{len(given)} {len(set(keys))}\n")
        return self._fn(given)


class Halves(Router):
    """Every other document."""

    def choose(self, document: Document) -> str:
        return ("left", "right")[len(document) % 2]


def batched(folder: Path, what: str, *, straight: bool = False) -> tuple[dict[str, list[Any]], list[str]]:
    """What a first wave has committed, and the calls.

    Args:
        straight: there are only destinations below the step.
    """
    folder.mkdir()
    net, (fn, options) = PlanWorld.empty(folder), STEPS[what]
    step = net.source().step("batch", Counted(fn, folder / "calls"), attempts=2, **options)
    if straight:
        step.tee("first", net.out("first")).destination("last", net.out("last"))
        return committed_batches(net, folder)
    copies = step.route("copies", Duplicate())
    copies.destination("all", net.out("all"))
    halves = copies.route("halves", Halves())
    halves.destination("left", net.out("left"))
    halves.step("right", lambda doc: doc).destination("end", net.out("end"))
    return committed_batches(net, folder)


def committed_batches(net: PlanWorld, folder: Path) -> tuple[dict[str, list[Any]], list[str]]:
    for n in range(23):
        net.put(f"doc-{n}", n=n, title=f"T{n}", tags=[] if n % 2 else ["x"])
    found = committed(partial(net.run, runner=InProcess(slots=1)), lambda: net.root)
    return found, (folder / "calls").read_text().splitlines()


ONLY_DESTINATIONS = list(STEPS).index("a column")
"""First of the steps that are tried with nothing but destinations below them, where columns need no documents."""
WITH_ROUTERS = list(STEPS).index("other raws")
"""First of those that are not tried with routers below them."""


@pytest.mark.parametrize(
    ("what", "straight"),
    [(what, False) for what in list(STEPS)[:WITH_ROUTERS]] + [(what, True) for what in list(STEPS)[ONLY_DESTINATIONS:]],
)
def test_a_first_step_with_batches_commits_the_same(place: Path, what: str, straight: bool) -> None:
    """It is called as often, too, for as many at once."""
    quick = batched(place / "quick", what, straight=straight)
    with one_by_one():
        slow = batched(place / "slow", what, straight=straight)
    assert {row["document"] for row in quick[0]["documents"]} == {f"doc-{n}" for n in range(23)}
    assert quick == slow


def test_columns_go_to_destinations_without_documents(place: Path) -> None:
    """An Arrow step right below the source, and only destinations below it."""
    with patch("ferryman.engine.transform.block_walk.BlockWalk.walk_answered_row", side_effect=AssertionError):
        quick, calls = batched(place / "quick", "embeddings", straight=True)
    assert len(calls) == 1
    assert len(quick["outbox"]) == 2 * 23


def test_changed_documents_behind_an_arrow_step_commit_the_same(place: Path) -> None:
    """Some were delivered before, some are new."""

    def second_wave(folder: Path) -> dict[str, list[Any]]:
        folder.mkdir()
        net = PlanWorld.empty(folder)
        step = net.source().step("batch", STEPS["embeddings"][0], arrow=True)
        step.tee("first", net.out("first")).destination("last", net.out("last"))
        for n in range(12):
            net.put(f"doc-{n}", n=n, title="before")
        net.run()
        for n in range(6, 18):
            net.put(f"doc-{n}", n=n, title="after")
        return committed(partial(net.run, runner=InProcess(slots=1)), lambda: net.root, 2)

    quick = second_wave(place / "quick")
    with one_by_one():
        slow = second_wave(place / "slow")
    assert len(quick["outbox"]) == 2 * 12
    assert quick == slow


def test_a_block_is_walked_as_one(place: Path) -> None:
    """None of its documents goes through the queues of those that wait."""
    with patch("ferryman.engine.transform.concurrent.ConcurrentReader.process_block", side_effect=AssertionError):
        quick, calls = batched(place / "quick", "a column")
    assert len(calls) == 1
    assert len(quick["outbox"]) == 2 * 23
