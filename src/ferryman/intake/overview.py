"""Queries over many batches or jobs, whose nodes are read in few calls instead of one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from ferryman.errors import plain_text
from ferryman.intake.batch import Batch
from ferryman.intake.errors import NodeInvalid
from ferryman.intake.items import Item, StatusNode
from ferryman.intake.job import Job, retry_count_of
from ferryman.intake.nodes import (
    BATCHES,
    PRIORITY_IN_NAME_MAX,
    batch_path,
    decode_integer,
    decode_node,
    decode_text,
    job_of_entry,
    job_path,
    state_path,
)
from ferryman.intake.states import JobList, JobState
from ferryman.intake.store.base import StoredNode
from ferryman.intake.tree import NodeTree

ITEMS_AT_ONCE: Final = 512
"""Items whose nodes are read together."""

ROWS_AT_ONCE: Final = 4096
"""Jobs whose nodes are read together: their status nodes are small."""

LISTS_PAY_FROM: Final = 2 * len(JobList)
"""Jobs per batch from which on reading the batches' lists costs less than reading each job's ``bid``."""


def count_jobs(tree: NodeTree) -> dict[str, int]:
    """Map each state to the number of its jobs. The cost does not depend on how many there are."""
    nodes = tree.store.read([state_path(state) for state in JobState])
    return {state.value: node.children if node else 0 for state, node in zip(JobState, nodes, strict=True)}


def count_batches(tree: NodeTree) -> dict[str, int]:
    """Map each state to the number of its batches; "" stands for damaged ones."""
    return dict(Counter(state for _, state, _ in batch_states(tree, tree.store.children(BATCHES))))


def batch_states(tree: NodeTree, ids: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (id, state, "") for each batch; (id, "", reason) for a damaged one."""
    for chunk in _chunks(ids):
        nodes = tree.store.read([batch_path(name, "status") for name in chunk])
        for name, node in zip(chunk, nodes, strict=True):
            try:
                yield name, str(Batch(tree, name).decode_status(node).state.value), ""
            except NodeInvalid as e:
                yield name, "", plain_text(e)


def space_needed(tree: NodeTree, ids: Sequence[str]) -> int:
    """Return the total working space in bytes that these jobs need; jobs that were removed or are damaged count as
    0."""
    total = 0
    for chunk in _chunks(ids, ROWS_AT_ONCE):
        paths = [job_path(name, "space_needed") for name in chunk]
        for path, node in zip(paths, tree.store.read(paths), strict=True):
            with suppress(NodeInvalid):
                total += decode_integer(path, node.data) if node else 0
    return total


def batch_rows(tree: NodeTree, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch: ``id``, ``status``, the number of jobs in each list, ``last_modified``, ``message``.

    A damaged batch has the status None, and its message is the reason.
    """
    for chunk in _chunks(ids):
        lists = [[batch_path(name, "states", folder) for name in chunk] for folder in JobList]
        columns = _read_columns(tree, [[batch_path(name, "status") for name in chunk], *lists])
        for name, status, *folders in zip(chunk, *columns, strict=True):
            batch = Batch(tree, name)
            yield _row_or_fault(batch, lambda b=batch, s=status, f=folders: _batch_row(b, s, f))  # type: ignore[misc]


def priorities(tree: NodeTree, state: str) -> dict[str, int]:
    """Map jobs in a state to their priorities, except jobs whose entry cannot express the exact priority."""
    names = tree.store.children(state_path(state))
    texts = {job_of_entry(name): name.partition("-")[0] for name in names}
    return {job: int(said) for job, said in texts.items() if said.isdecimal() and int(said) < PRIORITY_IN_NAME_MAX}


def job_rows(
    tree: NodeTree, ids: Sequence[str], known: Mapping[str, int] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """Yield a row for each job: ``id``, ``batch``, ``status``, ``priority``, ``retry_count``, ``last_modified``,
    ``message``.

    A damaged job has the status None, and its message is the reason.

    Args:
        known: job -> its priority, where that need not be read.
    """
    batch_of = _batch_of_each(tree, ids)
    for chunk in _chunks(ids, ROWS_AT_ONCE):
        unlisted = [name for name in chunk if name not in batch_of]
        unprioritized = [name for name in chunk if name not in known]
        parts = (("status", chunk), ("bid", unlisted), ("priority", unprioritized))
        columns = _read_columns(tree, [[job_path(name, part) for name in names] for part, names in parts])
        batches = dict(zip(unlisted, columns[1], strict=True))
        read = dict(zip(unprioritized, columns[2], strict=True))
        for name, status in zip(chunk, columns[0], strict=True):
            bid, priority = batch_of.get(name) or batches[name], known.get(name, read.get(name))
            job = Job(tree, name)
            yield _row_or_fault(job, lambda j=job, s=status, b=bid, p=priority: _job_row(j, s, b, p))  # type: ignore[misc]


def _batch_of_each(tree: NodeTree, ids: Sequence[str]) -> dict[str, str]:
    """Map jobs to batches: from the batches' lists if that is less to read, otherwise from the jobs' own nodes. A job
    that moves between lists meanwhile may be missing."""
    batches = tree.store.children(BATCHES)
    if LISTS_PAY_FROM * len(batches) > len(ids):
        return {}
    return {
        job: batch
        for batch in batches
        for folder in JobList
        for job in tree.store.children(batch_path(batch, "states", folder))
    }


def report_rows(tree: NodeTree, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the content of a report for each job: ``job``, ``jobID``, its identifiers; for a damaged job only its
    id."""
    for chunk in _chunks(ids):
        names = ("configuration", "identifiers")
        for id, *nodes in zip(
            chunk, *_read_columns(tree, [[job_path(job, n) for job in chunk] for n in names]), strict=True
        ):
            try:
                configuration, identifiers = (
                    decode_node(job_path(id, name), node.data) if node else {}
                    for name, node in zip(names, nodes, strict=True)
                )
                yield {"job": id, "jobID": configuration.get("jobID"), **identifiers}
            except NodeInvalid:
                yield {"job": id}


def _batch_row(batch: Batch, status: StoredNode | None, folders: Sequence[StoredNode | None]) -> dict[str, Any]:
    now = batch.decode_status(status)
    counts = {
        folder.removeprefix("batch-"): node.children if node else 0
        for folder, node in zip(JobList, folders, strict=True)
    }
    return {"id": batch.id, "status": str(now.state.value), **counts, **_last_change(now)}


def _job_row(
    job: Job, status: StoredNode | None, bid: StoredNode | str | None, priority: StoredNode | int | None
) -> dict[str, Any]:
    now = job.decode_status(status)
    if not isinstance(priority, int):
        priority = decode_integer(f"{job.path}/priority", _data_of(f"{job.path}/priority", priority))
    return {
        "id": job.id,
        "batch": bid if isinstance(bid, str) else decode_text(f"{job.path}/bid", _data_of(f"{job.path}/bid", bid)),
        "status": str(now.state.value),
        "priority": priority,
        "retry_count": retry_count_of(now),
        **_last_change(now),
    }


def _last_change(now: StatusNode) -> dict[str, str]:
    return {name: str(now.values.get(name) or "") for name in ("last_modified", "message")}


def _row_or_fault(item: Item, row: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return row()
    except NodeInvalid as e:
        return {"id": item.id, "status": None, "message": str(e)}


def _chunks(ids: Sequence[str], size: int = ITEMS_AT_ONCE) -> Iterator[Sequence[str]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))


def _read_columns(tree: NodeTree, paths: Sequence[Sequence[str]]) -> list[list[StoredNode | None]]:
    """Read the nodes at several columns of paths in one call."""
    nodes = iter(tree.store.read([path for column in paths for path in column]))
    return [[next(nodes) for _ in column] for column in paths]


def _data_of(path: str, node: StoredNode | None) -> bytes:
    if node is None:
        raise NodeInvalid(path, "is not there")
    return node.data
