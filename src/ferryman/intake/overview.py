"""Many batches or jobs at once: each question reads the nodes of all of them in one go, not one after the other."""

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
from ferryman.intake.job import Job, retries_in
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
from ferryman.intake.store import StoredNode
from ferryman.intake.tree import NodeTree

AT_ONCE: Final = 512
"""Items whose nodes are read together."""

ROWS_AT_ONCE: Final = 4096
"""Jobs of which a line is made together: their status nodes are small."""

LISTS_PAY: Final = 2 * len(JobList)
"""From so many jobs a batch on, the lists of the batches are read in place of each job's ``bid``."""


def count_jobs(tree: NodeTree) -> dict[str, int]:
    """State -> how many jobs are in it. Of many thousands it costs as much as of none."""
    found = tree.store.read([state_path(state) for state in JobState])
    return {state.value: node.children if node else 0 for state, node in zip(JobState, found, strict=True)}


def count_batches(tree: NodeTree) -> dict[str, int]:
    """State -> how many batches are in it; "" for those whose status is damaged."""
    return dict(Counter(state for _, state, _ in batch_states(tree, tree.store.children(BATCHES))))


def batch_states(tree: NodeTree, ids: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each batch with its state, or with "" and why it has none."""
    for some in _chunks(ids):
        found = tree.store.read([batch_path(name, "status") for name in some])
        for name, node in zip(some, found, strict=True):
            try:
                yield name, str(Batch(tree, name).status_of(node).state.value), ""
            except NodeInvalid as e:
                yield name, "", plain_text(e)


def space_needed(tree: NodeTree, ids: Sequence[str]) -> int:
    """Bytes of working space that these jobs need, together. One that went, or is damaged, needs none."""
    total = 0
    for some in _chunks(ids, ROWS_AT_ONCE):
        paths = [job_path(name, "space_needed") for name in some]
        for path, node in zip(paths, tree.store.read(paths), strict=True):
            with suppress(NodeInvalid):
                total += decode_integer(path, node.data) if node else 0
    return total


def batch_rows(tree: NodeTree, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row a batch: ``id``, ``status``, how many of its jobs are where, ``last_modified``, ``message``.

    One that is damaged has the status None, and the message says why.
    """
    for some in _chunks(ids):
        lists = [[batch_path(name, "states", folder) for name in some] for folder in JobList]
        found = _columns(tree, [[batch_path(name, "status") for name in some], *lists])
        for name, status, *folders in zip(some, *found, strict=True):
            batch = Batch(tree, name)
            yield _or_why(batch, lambda b=batch, s=status, f=folders: _batch_row(b, s, f))  # type: ignore[misc]


def priorities(tree: NodeTree, state: str) -> dict[str, int]:
    """Job -> its priority, as a state's list names it; without those of which the name tells only that it is low."""
    names = tree.store.children(state_path(state))
    found = {job_of_entry(name): name.partition("-")[0] for name in names}
    return {job: int(said) for job, said in found.items() if said.isdecimal() and int(said) < PRIORITY_IN_NAME_MAX}


def job_rows(
    tree: NodeTree, ids: Sequence[str], known: Mapping[str, int] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """A row a job: ``id``, ``batch``, ``status``, ``priority``, ``retry_count``, ``last_modified``, ``message``.

    One that is damaged has the status None, and the message says why.

    Args:
        known: priorities that need not be read.
    """
    of = _batches_of(tree, ids)
    for some in _chunks(ids, ROWS_AT_ONCE):
        homeless = [name for name in some if name not in of]
        others = [name for name in some if name not in known]
        parts = (("status", some), ("bid", homeless), ("priority", others))
        found = _columns(tree, [[job_path(name, part) for name in names] for part, names in parts])
        batches = dict(zip(homeless, found[1], strict=True))
        read = dict(zip(others, found[2], strict=True))
        for name, status in zip(some, found[0], strict=True):
            bid, told = of.get(name) or batches[name], known.get(name, read.get(name))
            job = Job(tree, name)
            yield _or_why(job, lambda j=job, s=status, b=bid, p=told: _job_row(j, s, b, p))  # type: ignore[misc]


def _batches_of(tree: NodeTree, ids: Sequence[str]) -> dict[str, str]:
    """Job -> its batch, as the batches list their jobs, where that is less to read than each job's own node. One that
    moves from list to list meanwhile may be missing."""
    batches = tree.store.children(BATCHES)
    if LISTS_PAY * len(batches) > len(ids):
        return {}
    return {
        job: batch
        for batch in batches
        for folder in JobList
        for job in tree.store.children(batch_path(batch, "states", folder))
    }


def reported(tree: NodeTree, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a report's content for each job: ``job``, ``jobID``, its identifiers; for a damaged one its id only."""
    for some in _chunks(ids):
        names = ("configuration", "identifiers")
        for id, *found in zip(some, *_columns(tree, [[job_path(job, n) for job in some] for n in names]), strict=True):
            try:
                configuration, identifiers = (
                    decode_node(job_path(id, name), node.data) if node else {}
                    for name, node in zip(names, found, strict=True)
                )
                yield {"job": id, "jobID": configuration.get("jobID"), **identifiers}
            except NodeInvalid:
                yield {"job": id}


def _batch_row(batch: Batch, status: StoredNode | None, folders: Sequence[StoredNode | None]) -> dict[str, Any]:
    now = batch.status_of(status)
    counts = {
        folder.removeprefix("batch-"): node.children if node else 0
        for folder, node in zip(JobList, folders, strict=True)
    }
    return {"id": batch.id, "status": str(now.state.value), **counts, **_last_word(now)}


def _job_row(
    job: Job, status: StoredNode | None, bid: StoredNode | str | None, priority: StoredNode | int | None
) -> dict[str, Any]:
    now = job.status_of(status)
    if not isinstance(priority, int):
        priority = decode_integer(f"{job.path}/priority", _data(f"{job.path}/priority", priority))
    return {
        "id": job.id,
        "batch": bid if isinstance(bid, str) else decode_text(f"{job.path}/bid", _data(f"{job.path}/bid", bid)),
        "status": str(now.state.value),
        "priority": priority,
        "retry_count": retries_in(now),
        **_last_word(now),
    }


def _last_word(now: StatusNode) -> dict[str, str]:
    return {name: str(now.values.get(name) or "") for name in ("last_modified", "message")}


def _or_why(item: Item, row: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return row()
    except NodeInvalid as e:
        return {"id": item.id, "status": None, "message": str(e)}


def _chunks(ids: Sequence[str], size: int = AT_ONCE) -> Iterator[Sequence[str]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))


def _columns(tree: NodeTree, paths: Sequence[Sequence[str]]) -> list[list[StoredNode | None]]:
    """The nodes at several columns of paths, read in one go."""
    found = iter(tree.store.read([path for column in paths for path in column]))
    return [[next(found) for _ in column] for column in paths]


def _data(path: str, node: StoredNode | None) -> bytes:
    if node is None:
        raise NodeInvalid(path, "is not there")
    return node.data
