"""What a keyed node exports on its way: what waits, what comes late, and what is left of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, limits
from ferryman.destinations import Queue as IntoQueue
from ferryman.destinations.base import Delivery, Destination, Effect, Outcome
from ferryman.engine.keyed.grouping import RUN, merge_runs, write_run
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.records.keys import bucket_of, key_hash, lane_number, lane_of
from ferryman.records.rows import table_of
from ferryman.sources import Queue
from ferryman.state import maintenance
from tests.support.invariants import Files
from tests.support.keyed import Counted, Hurdle, count, count_words
from tests.support.plan_world import run_plan


@pytest.mark.rule("keyed.holds")
def test_an_export_that_waits_holds_its_key(place: Path) -> None:
    """Other keys go on; once the step is mended the rest follows in order; ``update`` was called once for each."""
    words = count_words(place, Counted(place / "calls"))
    plan = Plan("held", version=1)
    source = plan.source("from_in", Queue("in", place))
    node = source.keyed("counts", Counted(place / "calls"), key="word").step("hurdle", Hurdle(place, "a"))
    node.destination("to_out", IntoQueue("out", place), backoff=0)
    others = [f"w{n}" for n in range(20)]
    for _ in range(2):
        words.put("a", *others)
        run_plan(plan, place / "state", wait=0)
    assert {export["key"] for export in words.bodies()} == set(others)
    (place / "mended").touch()
    retry(plan, state=place / "state")
    assert run_plan(plan, place / "state").exit == 0
    assert [(e["old"], e["new"]) for e in words.bodies() if e["key"] == "a"] == [(0, 1), (1, 2)]
    assert sorted((place / "calls").read_text().split()) == sorted(["a", *others] * 2)


class Late(Destination):
    """Keeps the documents of each id in a file. What it got first it takes once more after what came next, as a late
    worker's; it refuses what is older than what it has."""

    effect = Effect.IDEMPOTENT
    compares_sequences = True

    def __init__(self, folder: Path) -> None:
        self.path, self.first = str(folder / "late.json"), str(folder / "first.json")

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        path, first = Path(self.path), Path(self.first)
        held: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        rows = [[d.id, d.sequence, d.operation, d.fields.get("n")] for d in chunk]
        late = json.loads(first.read_text()) if first.exists() else []
        if not first.exists():
            first.write_text(json.dumps(rows))
        for id, sequence, *what in [*rows, *late]:
            if sequence > held.get(id, [0])[0]:
                held[id] = [sequence, *what]
        path.write_text(json.dumps(held))
        return [Outcome.ok()] * len(chunk)


def once(key: str, state: int | None, documents: list[Document]) -> tuple[int | None, Document]:
    """The first document makes the key's entry, the second removes it."""
    return (1, Document(key, n=1)) if state is None else (None, Document.deletion(key))


@pytest.mark.rule("keyed.late")
def test_a_late_export_does_not_bring_back_what_was_deleted(place: Path) -> None:
    plan = Plan("late", version=1)
    plan.source("in", Queue("in", place)).keyed("entries", once, key="word").destination("late", Late(place))
    queue = DurableQueue("in", place)
    for _ in range(2):
        queue.append([{"word": "a"}, {"word": "b"}])
        assert run_plan(plan, place / "state").exit == 0
    held = json.loads((place / "late.json").read_text())
    assert {id: what for id, (_, what, _) in held.items()} == {"a": "delete", "b": "delete"}


@pytest.mark.rule("keyed.tables")
def test_the_files_of_a_node_stay_few(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many waves; and each key has its last state."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 4)
    words = count_words(place)
    for turn in range(12):
        words.put(*(f"w{n}" for n in range(turn, turn + 20)), "each time")
        words.run()
    assert len(Files(words.root / "state", "counts").paths) <= 8
    assert len(Files(words.root / "exports", "counts").paths) <= 8
    expected = {f"w{n}": sum(turn <= n < turn + 20 for turn in range(12)) for n in range(31)}
    assert words.states() == {**expected, "each time": 12}


def test_few_exports_are_kept_without_a_look_at_documents(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are too few to be dropped stay, whatever waits: no wave reads ``documents`` to find that out."""
    monkeypatch.setattr(maintenance, "lowest_places", lambda *_: pytest.fail("documents were read"))
    words = count_words(place)
    for _ in range(2):
        words.put("a", "b")
        words.run()
    assert len(words.bodies()) == 4
    assert Files(words.root / "exports", "counts").paths


def test_states_that_were_removed_do_not_come_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when files are merged of which one has the key and a later one its removal."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    words = count_words(place, once)
    for turn in range(6):
        words.put(*"abc"[: 1 + turn % 3])
        words.run()
    assert words.states() == {}


def test_a_key_may_export_the_same_again(place: Path) -> None:
    """With the same content, too: each export is delivered."""
    words = count_words(place, lambda key, state, documents: (None, Document(key, same=True)))
    for _ in range(3):
        words.put("a")
        words.run()
    assert words.bodies() == [{"same": True}] * 3


def test_a_hot_key_exports_in_order(place: Path) -> None:
    """Called again and again in one wave: each export reaches the queue, in order."""
    words = count_words(place, buffer_bytes=1)
    words.put(*["a"] * 12)
    assert words.run().exit == 0
    assert [(e["old"], e["new"]) for e in words.bodies()] == [(n, n + 1) for n in range(12)]


def test_nothing_is_kept_of_exports_that_nobody_gets(place: Path) -> None:
    plan = Plan("alone", version=1)
    plan.source("in", Queue("in", place)).keyed("counts", count, key="word")
    DurableQueue("in", place).append([{"word": "a"}])
    assert run_plan(plan, place / "state").exit == 0
    assert not Files(place / "state" / "alone-v1" / "exports", "counts").paths


@pytest.mark.rule("keyed.memory")
def test_of_many_runs_a_merge_holds_little_of_each(place: Path) -> None:
    """All together stay below a limit; what is merged is in order, and complete."""
    rows = table_of(RUN, 2000, bucket=0, key=[f"k{n:04}" for n in range(2000)], source_number=0, place="", sequence=0)
    paths = [str(place / f"{n}.arrow") for n in range(50)]
    for path in paths:
        write_run(Path(path), rows, limits.KEY_MERGE_BYTES // 4096)
    largest = max(table.num_rows for table in merge_runs(paths[:1]))
    assert rows.nbytes * largest // rows.num_rows <= 4096
    keys = [key for table in merge_runs(paths) for key in table["key"].to_pylist()]
    assert keys == sorted(keys)
    assert len(keys) == 50 * 2000


def test_a_keys_hash_says_its_lane() -> None:
    for n in range(200):
        assert f"lane{lane_number(key_hash(f'k{n}'))}" == lane_of(bucket_of(f"k{n}"))
