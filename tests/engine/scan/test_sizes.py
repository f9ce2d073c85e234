"""Scans of any size: compared a part at a time, whatever the query engine's memory does for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from bench import synthetic

from ferryman import limits
from ferryman.engine.scan.changes import SourceComparison
from ferryman.engine.scan.phase import detect_changes
from ferryman.errors import TransientError
from ferryman.plan import Plan
from ferryman.state.state import State
from tests.support.plan_world import PlanWorld, Watch


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of what queries have, and as much less joined at once."""
    monkeypatch.setattr(limits, "QUERY_MEMORY", "24MB")
    monkeypatch.setattr(limits, "JOINED_ROWS", 4096)
    monkeypatch.setattr(limits, "JOINED_BYTES", limits.MIB)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit so low that a few documents meet all of them."""
    for name in ("COMPARED_ROWS", "JOINED_ROWS", "SORTED_ROWS"):
        monkeypatch.setattr(limits, name, 4)


def state_of(place: Path, count: int, **known: Any) -> State:
    """A state that knows so many documents."""
    state = State(place, Plan("sizes", version=1))
    state.documents = synthetic.documents_table(place / "documents", count, **known)
    state.outbox = synthetic.empty_outbox(place / "outbox")
    return state


def detected(place: Path, count: int, listed: int, first: int = 0, **known: Any) -> list[dict[str, Any]]:
    """The rows that a scan takes up of ``count`` documents, listed in this revision."""
    state = state_of(place, count, **known)
    scan = place / "scan"
    scan.mkdir()
    listing = synthetic.listing_of(scan, count, listed, first=first)
    changes = detect_changes([listing], state, scan, now_us=0, allow_deletes=True)
    tables = (rows for piece in changes.batches for task in piece.tasks for rows in task.tables())
    return [row for table in tables for row in table.select(["id", "reason", "given", "known_revision"]).to_pylist()]


@pytest.mark.rule("scan.sizes")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("known", "listed", "reason"),
    [
        ({}, 2, "changed"),
        ({"children": 30}, 2, "changed"),
        ({"forced": True}, 1, "forced"),
        ({"revisions": 2}, 3, "changed"),
    ],
)
def test_documents_are_compared_whatever_their_number(
    place: Path, known: dict[str, Any], listed: int, reason: str
) -> None:
    """All of them, in the source's order, with what is known of each."""
    rows = detected(place, 20_000, listed, **known)
    assert [row["id"] for row in rows] == synthetic.ids(0, 20_000)
    assert {row["reason"] for row in rows} == {reason}
    assert {row["known_revision"] for row in rows} == {known.get("revisions", 1)}
    assert {row["given"].count('"out"') for row in rows} == {1 + known.get("children", 0)}


@pytest.mark.usefixtures("little_memory")
def test_a_second_version_that_is_unchanged_is_left_alone(place: Path) -> None:
    """Older rows of it may still be there."""
    assert detected(place, 20_000, 2, revisions=2) == []


@pytest.mark.usefixtures("little_memory")
def test_what_vanished_is_found_among_many(place: Path) -> None:
    """And nothing else is."""
    rows = detected(place, 20_000, 1, first=7_000)
    assert {row["reason"] for row in rows} == {"gone"}
    assert sorted(row["id"] for row in rows) == sorted(synthetic.ids(0, 7_000))


def test_a_part_that_does_not_fit_is_halved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as it takes."""
    of_part = SourceComparison._join_changes

    def short_of_memory(self: SourceComparison, part: dict[str, Any]) -> Any:
        if part["known"].num_rows > 10:
            raise duckdb.OutOfMemoryException("no room")
        return of_part(self, part)

    monkeypatch.setattr(SourceComparison, "_join_changes", short_of_memory)
    assert [row["id"] for row in detected(place, 500, 2)] == synthetic.ids(0, 500)


def changes(trial: PlanWorld) -> list[Any]:
    """What a second scan does with documents of every kind."""
    failing = {"f1", "f2"}

    def step(doc: Any) -> Any:
        if doc.id in failing:
            raise TransientError("later")
        return doc

    trial.build(step, backoff=0, attempts=2)
    trial.put(*(f"d{i}" for i in range(40)), "f1", "f2")
    trial.run(wait=0)
    failing.clear()
    trial.drop("d3", "d17")
    trial.put("d5", "d11", "d36", text="new")
    trial.put("n1", "n2")
    trial.documents.append({"id": "d20", "n": 7})
    trial.out().forget()
    watch = Watch()
    trial.run(observer=watch)
    trial.run()
    return [trial.out().arrived(), [m for m in watch.messages if "duplicate" in m], trial.status()]


def test_parts_change_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New, changed, vanished, listed twice, waiting: the same in the same order."""
    once = changes(PlanWorld(place / "once"))
    for name in ("COMPARED_ROWS", "JOINED_ROWS", "SORTED_ROWS"):
        monkeypatch.setattr(limits, name, 4)
    assert changes(PlanWorld(place / "parts")) == once


@pytest.mark.usefixtures("small_parts")
def test_what_is_known_stays_readable_for_all_waves_of_a_scan(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when files of ``documents`` are merged between them."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    trial = PlanWorld(place)
    trial.put(*(f"d{i}" for i in range(8)), text="x" * 600 * limits.KIB)
    trial.run()
    trial.put(*(f"d{i}" for i in range(8)), text="y" * 600 * limits.KIB)
    trial.drop("d7")
    trial.out().forget()
    assert trial.run(wave_bytes=1300 * limits.KIB).waves > 3
    assert trial.out().counted() == {**{f"d{i}": 1 for i in range(7)}, "-d7": 1}
    assert {e["revision"] for i in range(8) for e in trial.history(f"d{i}")} == {1, 2}


def test_every_document_counts_whatever_its_name(place: Path) -> None:
    """One in a hundred of many that are named alike vanishes, and each of those is found."""
    count = 60_000
    state = state_of(place, count)
    (place / "scan").mkdir()
    listing = synthetic.listing_of(place / "scan", count, 1, only=lambda n: n % 100 != 0)
    changes = detect_changes([listing], state, place / "scan", now_us=0, allow_deletes=True)
    gone = [id for s in changes.batches for task in s.tasks for t in task.tables() for id in t["id"].to_pylist()]
    assert sorted(gone) == sorted(id for n, id in enumerate(synthetic.ids(0, count)) if n % 100 == 0)
