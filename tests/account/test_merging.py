"""Merging small outbox files: nothing large is in memory, no row is copied often, and a failure stops nobody."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from ferryman import limits
from ferryman.destinations.base import Outcome
from ferryman.limits import KIB
from ferryman.records.rows import OUTBOX_CONTENT
from ferryman.state import maintenance
from ferryman.state import maintenance as merging
from ferryman.state.outbox import OutboxWriter
from ferryman.storage.parquet import content_size
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each delivery was written by a merge. No more than a row group is written at a time."""
    found: Counter[str] = Counter()
    merge = merging.merge_outbox_files

    class Counting(OutboxWriter):
        def write(self, table: pa.Table) -> None:
            assert table.num_rows == 1 or table.nbytes <= limits.GROUP_BYTES
            found.update(table["delivery_hash"].to_pylist())
            super().write(table)

    def counted(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(merging, "OutboxWriter", Counting)
            return merge(*args)

    monkeypatch.setattr(maintenance, "merge_outbox_files", counted)
    return found


@pytest.mark.rule("merge.outbox")
def test_rows_kept_for_review_are_copied_a_few_times(trial: PlanWorld, small: None, copied: Counter[str]) -> None:
    """However many waves they wait for an operator; their files stay few."""
    trial.build(answer=lambda d: Outcome.permanent("no"))
    for i in range(24):
        trial.put(f"d{i:02}", text="x" * KIB)
        trial.run(checked=False)
    trial.run()
    with trial.take() as state:
        assert len(state.outbox.files) <= 8
    assert trial.counts() == {"failed": 24}
    assert max(copied.values()) <= 4
    assert len({row["delivery_hash"] for row in rows(trial.root, "outbox")}) == 24
    trial.build(answer=lambda d: Outcome.ok())
    trial.retry()
    assert trial.run().delivered == 24


def test_content_of_any_size_is_merged_a_row_group_at_a_time(
    trial: PlanWorld, small: None, copied: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small on the disk is not small in memory: what packs well is not decoded whole."""
    read = merging.read_part

    def without_content(path: Any, columns: list[str]) -> pa.Table:
        assert not set(columns) & {*OUTBOX_CONTENT}
        return read(path, columns)

    monkeypatch.setattr(merging, "read_part", without_content)
    trial.build(answer=lambda d: Outcome.permanent("no"))
    for turn in range(6):
        trial.put(*(f"d{turn}-{i}" for i in range(20)), text="x" * KIB)
        trial.run(checked=False)
    trial.run()
    assert trial.counts() == {"failed": 120}
    with trial.take() as state:
        sizes = [content_size(state.outbox.folder / path) for path in state.outbox.files]
    assert max(sizes) <= 2 * limits.PART_BYTES


@pytest.mark.rule("merge.failed")
@pytest.mark.parametrize("error", [pa.ArrowCapacityError("too large"), MemoryError("no more"), OSError(28, "full")])
def test_a_merge_that_fails_is_skipped_and_reported(
    trial: PlanWorld, small: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The state starts, the run goes on, and nothing is lost; it says what could not be merged, once."""
    trial.build(answer=lambda d: Outcome.permanent("no"))
    with monkeypatch.context() as patch:

        def failing(*_: object) -> None:
            raise error

        patch.setattr(merging, "combine_small_tables", failing)
        for i in range(6):
            trial.put(f"d{i}")
            summary = trial.run(checked=False)
    [message] = [m for m in summary.messages if "outbox files" in m]
    assert message.startswith("small outbox files of out could not be merged")
    assert trial.counts() == {"failed": 6}
    summary = trial.run()
    assert not summary.messages
    with trial.take() as state:
        assert len(state.outbox.files) == 1
        assert not list(state.outbox.folder.glob(".tmp*"))
