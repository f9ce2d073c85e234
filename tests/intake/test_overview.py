"""Many jobs at once: what is said of each does not depend on how little is read for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ferryman.intake import JobQueue, overview
from ferryman.intake.store.base import Set, StoredNode
from tests.intake.conftest import brought, started


def test_batches_are_told_from_lists_or_from_each_job(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all lists of two batches; and a job that is in no list while it is looked for."""
    for _ in range(2):
        batch = queue.load_batch(started(queue, jobs=9))
        done, failed, *_ = batch.processing_jobs
        brought(queue, done, "Notify")
        queue.load_job(done).success()
        queue.load_job(failed).fail("no such file")
    ids = queue.list_jobs()
    assert len(ids) == 18 >= 2 * overview.LISTS_PAY_FROM
    read = read_of(queue, monkeypatch)
    rows = list(overview.job_rows(queue.tree, ids))
    assert not any(path.endswith("/bid") for path in read)
    monkeypatch.setattr(overview, "LISTS_PAY_FROM", 1000)
    assert list(overview.job_rows(queue.tree, ids)) == rows
    assert sum(path.endswith("/bid") for path in read) == 18
    assert {row["batch"] for row in rows} == set(queue.list_batches())

    monkeypatch.setattr(overview, "_batch_of_each", lambda tree, ids: {ids[0]: rows[0]["batch"]})
    assert list(overview.job_rows(queue.tree, ids)) == rows


def test_a_report_names_each_job(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """From two of its nodes; one that is damaged by its id alone."""
    batch = queue.create_batch({})
    assert queue.acquire_pending_batch() is not None
    jobs = [batch.create_job({"jobID": f"{n}"}, identifiers={"local_id": [f"object {n}"]}) for n in range(3)]
    queue.tree.store.commit([Set(f"{jobs[1].path}/configuration", b"{")])
    read = read_of(queue, monkeypatch)
    assert list(overview.report_rows(queue.tree, [job.id for job in jobs])) == [
        {"job": jobs[0].id, "jobID": "0", "local_id": ["object 0"]},
        {"job": jobs[1].id},
        {"job": jobs[2].id, "jobID": "2", "local_id": ["object 2"]},
    ]
    assert len(read) == 6


def read_of(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of nodes that are read from now on."""
    paths: list[str] = []
    store: Any = queue.tree.store
    read = store.read

    def noted(asked: Sequence[str]) -> list[StoredNode | None]:
        paths.extend(asked)
        return list(read(asked))

    monkeypatch.setattr(store, "read", noted)
    return paths


def test_the_space_of_many_jobs_is_read_in_one_go(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of each: of thousands that a slow host keeps in Downloading it is asked for every second."""
    started(queue, jobs=9)
    ids = queue.list_jobs()
    for number, job in enumerate(ids):
        queue.load_job(job).set_space_needed(10**number)
    queue.tree.store.commit([Set(f"/jobs/{ids[8]}/space_needed", b"much")])
    read = read_of(queue, monkeypatch)
    assert overview.space_needed(queue.tree, [*ids, "jid0000000099"]) == 11_111_111
    assert len(read) == 10
