"""Rows that a writer may append again: each is one message, also if it was trimmed before the writer knew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferryman import limits
from ferryman.errors import UsageError
from ferryman.queues import Queue, table
from tests.queues.child import rows_of, store_of


@pytest.fixture(autouse=True)
def _upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are merged and logs are folded soon."""
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 4)
    monkeypatch.setattr(limits, "QUEUE_FILES", 4)


def trimmed(queue: Queue) -> int:
    """How many rows are kept of what was trimmed."""
    return sum(len(run.high) for run in table.RememberedKeys(store_of(queue).home / "trimmed")._load().values())


@pytest.mark.rule("queue.trimmed-rows")
@pytest.mark.parametrize("force", [False, True])
def test_a_trimmed_row_is_not_appended_again(root: Path, force: bool) -> None:
    """By whoever it was trimmed, and whatever happened to the queue since; rows that are new are appended."""
    queue = Queue("orders", root)
    queue.append([{"other": 1}], key="other")
    assert queue.append_new(rows_of("one", range(10, 15)), "one") == 5
    assert queue.append_new(rows_of("two", range(12, 17)), "two") == 5
    assert queue.trim("0s", force) == 11
    for n in range(12):  # merges and folds
        queue.append([{"n": n}])
    again = Queue("orders", root)
    assert again.append_new(rows_of("one", range(8, 16)), "one") == 3, "8, 9 and 15 are new"
    assert again.append_new(rows_of("two", range(12, 18)), "two") == 1
    assert again.append_new(rows_of("two", range(12, 18)), "two") == 0
    assert again.append([{"other": 1}], key="other") == [1]


@pytest.mark.rule("queue.trimmed-rows")
def test_a_part_of_a_file_is_trimmed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is still a message, what goes is kept."""
    monkeypatch.setattr(limits, "QUEUE_FILES", 2)
    queue = Queue("orders", root)
    queue.append_new(rows_of("one", range(1, 4)), "one")
    queue.append_new(rows_of("one", range(4, 6)), "one")
    queue.register("slow", 3)
    assert queue.trim("0s") == 2
    assert queue.append_new(rows_of("one", range(1, 7)), "one") == 1
    assert [json.loads(text)["sequence"] for part in queue.read_rows(1, 100) for text in part["meta"].to_pylist()] == [
        *range(3, 7)
    ]


@pytest.mark.rule("queue.trimmed-rows")
def test_what_is_kept_stays_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without end: of what was settled nothing is kept. A writer that never comes back leaves its last rows."""
    monkeypatch.setattr(table, "_MERGE_FACTOR", 2)
    queue = Queue("orders", root)
    queue.append_new(rows_of("gone", range(100, 103)), "gone", 100)
    for wave in range(40):
        first = 1000 + 10 * wave
        queue.append_new(rows_of("one", range(first, first + 10)), "one", first)
        queue.trim("0s")
    assert trimmed(queue) <= 3 + 4 * 10
    queue.append_new(rows_of("one", range(5000, 5001)), "one", 5000)
    queue.trim("0s")
    assert trimmed(queue) <= 2 * (3 + 1)
    assert queue.append_new(rows_of("gone", range(100, 104)), "gone", 100) == 1
    assert len(list((root / "orders" / "trimmed").iterdir())) <= 4


@pytest.mark.rule("queue.trimmed-rows")
def test_what_was_settled_does_not_come_again(root: Path) -> None:
    """A process that slept until its rows were settled and trimmed, or an old copy of a state, is told so."""
    queue = Queue("orders", root)
    queue.append_new(rows_of("one", range(1, 4)), "one", 1)
    queue.append_new(rows_of("one", range(4, 6)), "one", 4)
    queue.trim("0s")
    with pytest.raises(UsageError, match=r"one sends sequence 3 again, though it had settled all below 4.*an old copy"):
        queue.append_new(rows_of("one", range(3, 6)), "one")
    assert queue.last_index == 5
    assert queue.append_new(rows_of("one", range(4, 7)), "one", 2) == 1, "what was noted is not taken back"
    assert (queue.highest_of("one"), queue.highest_of("two")) == (6, None)


@pytest.mark.parametrize("meta", ['{"writer": 3, "sequence": []}', "[1]", '{"writer": "one"}', "no JSON", None])
def test_what_others_wrote_is_passed_over(root: Path, meta: str | None) -> None:
    """Rows that somebody else has appended as Arrow, with a hash: they are trimmed, and nothing of them is kept."""
    queue = Queue("orders", root)
    queue.append_new(rows_of("one", range(1, 3)), "one")
    row: dict[str, Any] = {"message": ["{}"], "meta": pa.array([meta], pa.string()), "hash": ["f" * 32]}
    queue.append_rows(pa.table(row))
    assert queue.trim("0s") == 3
    assert trimmed(queue) == 2
