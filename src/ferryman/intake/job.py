"""A job: one object of a batch, on its way from Pending to Completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from ferryman.document import json_error, json_problem
from ferryman.errors import FerrymanError, UsageError, plain_text
from ferryman.intake import nodes
from ferryman.intake.errors import NodeInvalid, QueueLost, StateError
from ferryman.intake.items import NO_NODE, Item, StatusNode
from ferryman.intake.nodes import (
    batch_path,
    decode_integer,
    decode_node,
    decode_text,
    encode_node,
    job_path,
    state_path,
)
from ferryman.intake.states import JOB, JobList, JobState, Transitions, job_list_of, resume_state
from ferryman.intake.store.base import Check, Create, Delete, Op, Set, StoredNode
from ferryman.intake.tree import HeldLock, NodeTree, trim_message
from ferryman.net.urls import split
from ferryman.storage import files

JSON_NODES: Final = ("configuration", "identifiers", "metadata", "inventory", "store")
"""Names of a job's JSON nodes; a node exists only if it is not empty."""


class Job(Item):
    """One object of a batch."""

    table: ClassVar[Transitions[Any]] = JOB

    def __init__(self, tree: NodeTree, id: str) -> None:
        super().__init__(tree, id, job_path(id))
        self._batch_id = ""
        self._priority: int | None = None
        self._cached_nodes: dict[str, StoredNode | None] = {}
        """JSON nodes that were read under the lock, so that nobody else can have changed them."""
        self._cached_space: int | None = None
        """Working space in bytes, as this object set it under the lock."""
        self._new_priority: int | None = None
        self._new_nodes: dict[str, StoredNode | None] = {}
        """JSON nodes, and the priority, as the change in progress sets them."""
        self._not_prefetched: set[str] = set()
        """Names of JSON nodes that had to be read singly, because they were not read together with the lock; shared by
        all jobs of a state."""

    @property
    def urgency(self) -> tuple[int, str]:
        return nodes.PRIORITY_IN_NAME_MAX if self._priority is None else self._priority, self.id

    @property
    def entry(self) -> str:
        """Return the name of the job's entry in the folder of its state."""
        return nodes.state_entry(self.priority if self._priority is None else self._priority, self.id)

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def batch_id(self) -> str:
        """Return the id of the job's batch."""
        if not self._batch_id:  # immutable
            path = f"{self.path}/bid"
            self._batch_id = decode_text(path, self._tree.get(path).data)
        return self._batch_id

    @property
    def priority(self) -> int:
        """Return the priority: 0 is the most urgent; values above 99 sort like 99."""
        return self._read_integer("priority")

    @property
    def space_needed(self) -> int:
        """Return the working space that the job needs, in bytes; 0 if unknown."""
        space = self._cached_space
        return self._read_integer("space_needed") if space is None else space

    @property
    def last_successful_status(self) -> str | None:
        """Return the last state whose work was completed; None for a new job."""
        status = self._read_status().values.get("last_successful_status")
        return None if status is None else str(status)

    @property
    def retry_count(self) -> int:
        """Return how many times the job was requeued."""
        return retry_count_of(self._known_status or self._read_status())

    @property
    def configuration(self) -> dict[str, Any]:
        return self._read_json("configuration")

    @property
    def identifiers(self) -> dict[str, Any]:
        return self._read_json("identifiers")

    @property
    def metadata(self) -> dict[str, Any]:
        return self._read_json("metadata")

    @property
    def inventory(self) -> dict[str, Any]:
        return self._read_json("inventory")

    @property
    def store(self) -> dict[str, Any]:
        return self._read_json("store")

    def set_space_needed(self, bytes_needed: int) -> None:
        """Record how many bytes of working space the job needs."""
        if bytes_needed < 0:
            raise UsageError(f"{self.id}: {bytes_needed} bytes of space: give 0 or more.")
        path = f"{self.path}/space_needed"
        self._change(lambda now: [Set(path, str(int(bytes_needed)).encode())])

    def set_inventory(self, values: Mapping[str, Any]) -> None:
        """Replace the content of the ``inventory`` node; {} removes it."""
        self._set_json("inventory", values)

    def set_store(self, values: Mapping[str, Any]) -> None:
        """Replace the content of the ``store`` node; {} removes it."""
        self._set_json("store", values)

    def set_identifiers(self, values: Mapping[str, Any]) -> None:
        """Replace the job's identifiers; {} removes them."""
        self._set_json("identifiers", values)

    # --- moves --------------------------------------------------------------------------------------------------------

    def advance(
        self,
        message: str = "",
        *,
        priority: int | None = None,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        space_needed: int | None = None,
        keep_lock: bool = False,
    ) -> bool:
        """Move to the next state, because the work of this one is done, and store its results in the same commit.

        Returns whether this object still holds the lock. Raises as ``set_status``.

        Args:
            keep_lock: keep the lock, in order to continue at once, unless the queue is paused; otherwise the commit
                releases it.
            priority: new priority; None: unchanged.
            values: JSON nodes to replace, by name; {} removes one.
            space_needed: bytes of working space.
        """
        return self.advance_as(Advance(self, message, priority, values, space_needed, keep_lock))

    def advance_as(self, to: Advance) -> bool:
        """Make a move of this job; see ``advance``."""
        self._change(self._plan_advance(to), unlock=not to.keep_lock)
        return self._note_advance(to.space_needed, is_paused=to.keep_lock and self._tree.is_paused())

    def plan_as_holder(self, to: Advance) -> tuple[StatusNode, list[Op], HeldLock] | None:
        """Return the status from which a move is planned, its operations, and the lock; None if this object does not
        know them without reading."""
        held_lock, now = self._held_lock, self._known_status
        if held_lock is None or now is None:
            return None
        return now, self._holder_ops(now, self._plan_advance(to), held_lock, unlock=not to.keep_lock), held_lock

    def note_advance(
        self, to: Advance, now: StatusNode, ops: Sequence[Op], held_lock: HeldLock, *, is_paused: bool
    ) -> bool:
        """Remember a move that ``plan_as_holder`` has planned and that took effect. Returns as ``advance``."""
        self._note_change(now, ops, held_lock, unlock=not to.keep_lock)
        return self._note_advance(to.space_needed, is_paused=is_paused and to.keep_lock)

    def _plan_advance(self, to: Advance) -> Callable[[StatusNode], list[Op]]:
        """Return the function that makes a move's operations from the present status."""
        text = trim_message(to.message)

        def plan(now: StatusNode) -> list[Op]:
            after = (
                self._target_state(now, JobState.ESTIMATING)
                if now.state is JobState.PENDING
                else self.table.after_success(now.state)
            )
            return self._move_ops(
                now, after, text, priority=to.priority, values=to.values, space_needed=to.space_needed
            )

        return plan

    def _note_advance(self, space_needed: int | None, *, is_paused: bool) -> bool:
        """Complete a move to the next state: return whether this object keeps the lock."""
        if is_paused:
            self.unlock()
        if self._held_lock is not None and space_needed is not None:
            self._cached_space = space_needed
        self._not_prefetched = set()  # the next state's nodes may not have been read together with this state's lock
        return self._held_lock is not None

    def set_status(self, status: str, message: str = "", priority: int | None = None, retry: bool = False) -> None:
        """Move to another state, with another priority if one is given. ``retry``: count the move as a requeue.

        If the job is in that state already, only message and priority change. Raises as ``Item.set_status``.
        """
        if priority is not None:
            check_priority(priority)
        self._move(lambda now: self._target_state(now, status), message, priority=priority, retry=retry)

    def set_priority(self, priority: int) -> None:
        """Change the priority only. Raises as ``set_status``."""
        check_priority(priority)
        self._change(
            lambda now: self._move_ops(now, now.state, str(now.values.get("message") or ""), priority=priority)
        )

    def requeue(
        self, message: str = "", configuration: Mapping[str, Any] | None = None, priority: int | None = None
    ) -> None:
        """Retry a failed job, in the state after the last one that succeeded; counted as a retry.

        A new ``configuration`` replaces the old one in the same commit; the job then starts again from Pending, and
        files fetched for the old configuration are not used. A new ``priority`` is set in the same commit.
        """
        if priority is not None:
            check_priority(priority)
        values = {} if configuration is None else {"configuration": configuration}

        def after(now: StatusNode) -> JobState:
            resumed = resume_state(now.values.get("last_successful_status")) if not values else JobState.PENDING
            if now.state is not JobState.FAILED:  # other states may lead there too, but that is not a retry
                raise StateError(now.state, resumed)
            return resumed

        self._move(after, message, priority=priority, retry=True, values=values)

    def _move_ops(
        self,
        now: StatusNode,
        after: JobState,
        message: str,
        *,
        priority: int | None = None,
        retry: bool = False,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        space_needed: int | None = None,
    ) -> list[Op]:
        old_priority, self._priority = self.priority if self._priority is None else self._priority, None
        self._new_priority = new_priority = old_priority if priority is None else priority
        status = self._next_status(now, after, message)
        if retry and after is not now.state:
            status["retry_count"] += 1
        ops: list[Op] = [self._set_status(now, status)]
        for name, content in (values or {}).items():
            ops += self._replace_ops(name, content)
        if space_needed is not None:
            ops.append(Set(f"{self.path}/space_needed", str(space_needed).encode()))
        if new_priority != old_priority:
            ops.append(Set(f"{self.path}/priority", str(new_priority).encode()))
        old_entry = state_path(now.state, nodes.state_entry(old_priority, self.id))
        new_entry = state_path(after, nodes.state_entry(new_priority, self.id))
        ops += [Delete(old_entry), Create(new_entry)] if old_entry != new_entry else [Check(old_entry)]
        if job_list_of(after) != job_list_of(now.state):
            ops += self._list_move_ops(job_list_of(now.state), job_list_of(after))
        return ops

    def _list_move_ops(self, before: str, after: str) -> list[Op]:
        folder = batch_path(self.batch_id, "states", after)
        return [
            *self._tree.create_missing([folder]),
            Delete(batch_path(self.batch_id, "states", before, self.id)),
            Create(f"{folder}/{self.id}"),
        ]

    def _next_status(self, now: StatusNode, after: Any, message: str) -> dict[str, Any]:
        last_success = now.values.get("last_successful_status")
        keeps_last_success = after in (now.state, JobState.FAILED, JobState.DELETED) or now.state is JobState.FAILED
        plain = super()._next_status(now, after, message)
        return {
            "status": plain["status"],
            "last_successful_status": last_success if keeps_last_success else now.state.value,
            "last_modified": plain["last_modified"],
            "retry_count": retry_count_of(now),
            "message": plain["message"],
        }

    def _relist_ops(self, state: JobState) -> list[Op]:
        ops: list[Op] = []
        try:
            priority = max(0, self.priority)
        except NodeInvalid:
            priority = nodes.DEFAULT_PRIORITY
            ops.append(self._overwrite_op("priority", str(priority)))
        try:
            batch_id = self.batch_id
        except NodeInvalid:
            self._batch_id = batch_id = self._find_batch_id()
            ops.append(self._overwrite_op("bid", batch_id))
        self._priority = None
        entry = state_path(state, nodes.state_entry(priority, self.id))
        entries = [
            state_path(each, name)
            for each in JobState
            for name in self._tree.store.children(state_path(each))
            if nodes.job_of_entry(name) == self.id
        ]
        folder = batch_path(batch_id, "states", job_list_of(state))
        lists = [batch_path(batch_id, "states", name, self.id) for name in JobList]
        listed = [path for path, each in zip(lists, self._tree.store.read(lists), strict=True) if each]
        return [
            *ops,
            *_only_ops(entry, entries),
            *self._tree.create_missing([batch_path(batch_id, "states"), folder]),
            *_only_ops(f"{folder}/{self.id}", listed),
        ]

    def _overwrite_op(self, name: str, text: str) -> Op:
        path = f"{self.path}/{name}"
        return Set(path, text.encode()) if self._tree.find(path) else Create(path, text.encode())

    def _find_batch_id(self) -> str:
        """Return the batch in one of whose lists this job is.

        Raises:
            NodeInvalid: there is none.
        """
        for batch_id in self._tree.store.children(nodes.BATCHES):
            lists = [batch_path(batch_id, "states", name, self.id) for name in JobList]
            if any(self._tree.store.read(lists)):
                return batch_id
        raise NodeInvalid(f"{self.path}/bid", "is damaged, and no batch lists this job")

    # --- making, loading, removing ------------------------------------------------------------------------------------

    def note_entry(self, name: str) -> None:
        """Take the priority from the entry by which the job was acquired, unless entries cannot express it exactly."""
        priority = name.partition("-")[0]
        self._priority = int(priority) if priority != str(nodes.PRIORITY_IN_NAME_MAX) else None

    def load(self) -> Job:
        """Read all nodes of the job.

        Raises:
            NodeInvalid: a node is missing or malformed.
        """
        paths = self.missing_paths()
        self.note_nodes(dict(zip(paths, self._tree.store.read(paths), strict=True)))
        return self

    def missing_paths(self) -> list[str]:
        """Return the paths of the job's nodes, except those that this object knows because it holds the lock."""
        known = {f"{self.path}/{name}" for name in self._known_names()}
        names = ("status", "bid", "priority", "space_needed", *JSON_NODES)
        return [path for path in (f"{self.path}/{name}" for name in names) if path not in known]

    def _known_names(self) -> set[str]:
        if self._held_lock is None:
            return set()
        known = {*self._cached_nodes, *(["bid"] if self._batch_id else [])}
        if self._known_status is not None:
            known.add("status")
        if self._cached_space is not None and self._priority is not None:
            known |= {"priority", "space_needed"}
        return known

    def note_nodes(self, nodes: Mapping[str, StoredNode | None]) -> None:
        """Check nodes that were read at ``missing_paths``, and keep them while this object holds the lock.

        Raises:
            NodeInvalid: a node is missing or malformed.
        """
        read = {path.rpartition("/")[2]: node for path, node in nodes.items()}
        if "status" in read:
            self.decode_status(read["status"])
        for name in read.keys() - set(JSON_NODES):
            if read[name] is None:
                raise NodeInvalid(f"{self.path}/{name}", "is not there")
        if "bid" in read:
            self._batch_id = decode_text(f"{self.path}/bid", _data_of(read["bid"]))
        if "priority" in read:
            self._priority = decode_integer(f"{self.path}/priority", _data_of(read["priority"]))
            decode_integer(f"{self.path}/space_needed", _data_of(read["space_needed"]))
        json_nodes: dict[str, StoredNode | None] = {name: read[name] for name in JSON_NODES if name in read}
        self._not_prefetched |= json_nodes.keys()
        if self._held_lock is not None:
            self._cached_nodes.update(json_nodes)
        for name, node in {**self._cached_nodes, **json_nodes}.items():
            if node is not None:
                decode_node(f"{self.path}/{name}", node.data)

    def remove(self) -> None:
        """Remove the job in any state, because its batch is being removed. Raises ``ItemLocked`` if somebody works on
        it."""
        self._change(self._delete_ops)
        self._held_lock = None

    def _delete_ops(self, now: StatusNode) -> list[Op]:
        entries = [
            state_path(now.state, nodes.state_entry(self.priority, self.id)),
            batch_path(self.batch_id, "states", job_list_of(now.state), self.id),
        ]
        entry_nodes = self._tree.store.read(entries)
        return [
            *(Delete(path) for path, node in zip(entries, entry_nodes, strict=True) if node),
            *super()._delete_ops(now),
        ]

    def _read_integer(self, name: str) -> int:
        path = f"{self.path}/{name}"
        return decode_integer(path, self._tree.get(path).data)

    def cache_nodes(self, nodes: Mapping[str, StoredNode | None], not_prefetched: set[str]) -> None:
        """Keep JSON nodes that were read under the lock, so that they need not be read again while this object holds
        it.

        The names of any others that are requested meanwhile are added to ``not_prefetched``.
        """
        self._cached_nodes, self._not_prefetched = dict(nodes), not_prefetched

    def _forget_lock(self) -> None:
        self._cached_nodes, self._cached_space = {}, None
        super()._forget_lock()

    def _holder_ops(
        self, now: StatusNode, plan: Callable[[StatusNode], Sequence[Op]], held_lock: HeldLock, *, unlock: bool
    ) -> list[Op]:
        self._new_priority, self._new_nodes = None, {}
        return super()._holder_ops(now, plan, held_lock, unlock=unlock)

    def _note_change(self, now: StatusNode | None, ops: Sequence[Op], held_lock: HeldLock, *, unlock: bool) -> None:
        super()._note_change(now, ops, held_lock, unlock=unlock)
        if self._held_lock is held_lock:  # nobody else can change them now
            self._cached_nodes.update(self._new_nodes)
            self._priority = self._new_priority if self._priority is None else self._priority

    def _read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON node. Each call decodes it, so that callers may change what they get; that
        takes a quarter of the time of a deep copy."""
        node = self._read_node(name)
        return {} if node is None else decode_node(f"{self.path}/{name}", node.data)

    def _read_node(self, name: str) -> StoredNode | None:
        """Read a JSON node; only once while this object holds the lock."""
        held_lock, cached = self._held_lock, self._cached_nodes  # another thread may lose the lock and acquire it again
        if held_lock is not None and name in cached:
            return cached[name]
        self._not_prefetched.add(name)
        node = self._tree.find(f"{self.path}/{name}")
        if held_lock is not None and held_lock is self._held_lock:
            cached[name] = node
        return node

    def unknown_paths(self, names: Iterable[str]) -> list[str]:
        """Return the paths of these JSON nodes, except those that this object knows because it holds the lock."""
        return [] if self._held_lock is None else [f"{self.path}/{n}" for n in names if n not in self._cached_nodes]

    def keep_node(self, path: str, node: StoredNode | None) -> None:
        """Keep a JSON node that was just read at one of ``unknown_paths`` by the holder of the lock."""
        if self._held_lock is not None:
            self._cached_nodes[path.rpartition("/")[2]] = node

    def _set_json(self, name: str, values: Mapping[str, Any]) -> None:
        self._change(lambda now: self._replace_ops(name, values))

    def _replace_ops(self, name: str, values: Mapping[str, Any]) -> list[Op]:
        """Return the operations that set a node to these values; {} removes it."""
        path = f"{self.path}/{name}"
        data = encode_node(path, dict(values))
        node = self._read_node(name)
        self._cached_nodes.pop(name, None)  # if it is not in the known version, it is read again
        self._new_nodes[name] = (node or NO_NODE)._replace(data=data) if values else None
        if not values:
            return [Delete(path)] if node else []
        return [Set(path, data) if node else Create(path, data)]


class Advance(NamedTuple):
    """Move of a job to its next state; see ``Job.advance``."""

    job: Job
    message: str = ""
    priority: int | None = None
    values: Mapping[str, Mapping[str, Any]] | None = None
    space_needed: int | None = None
    keep_lock: bool = False


def advance_all(tree: NodeTree, moves: Sequence[Advance]) -> list[bool | Exception]:
    """Move jobs that are locked by their objects to their next states, together if possible.

    Each job moves or fails to move by itself. Returns for each what ``Job.advance`` returns, or the error it raises.
    """
    _read_replaced(tree, moves)
    planned: dict[int, tuple[StatusNode, list[Op], HeldLock]] = {}
    folders: set[str] = set()  # which the first move of a batch's jobs creates for all of them
    for at, move in enumerate(moves):
        with suppress(FerrymanError):  # which the single move raises again
            change = move.job.plan_as_holder(move)
            if change is not None:
                now, ops, held_lock = change
                ops = [op for op in ops if not (isinstance(op, Create) and op.path in folders)]
                folders.update(op.path for op in ops if isinstance(op, Create))
                planned[at] = now, ops, held_lock
    committed = tree.commit_all([(ops, held_lock) for _, ops, held_lock in planned.values()])
    is_moved = dict(zip(planned, committed, strict=True))
    is_paused = any(move.keep_lock for move in moves) and tree.is_paused()
    results: list[bool | Exception] = []
    for at, move in enumerate(moves):
        try:
            if is_moved.get(at):
                results.append(move.job.note_advance(move, *planned[at], is_paused=is_paused))
            else:  # somebody has changed the job, or its lock is lost: find out
                results.append(move.job.advance_as(move))
        except QueueLost:
            raise
        except Exception as e:
            results.append(e)
    return results


def _read_replaced(tree: NodeTree, moves: Sequence[Advance]) -> None:
    """Read the nodes that moves replace, in one call."""
    paths = [(move.job, path) for move in moves for path in move.job.unknown_paths(move.values or ())]
    for (job, path), node in zip(paths, tree.store.read([path for _, path in paths]) if paths else (), strict=True):
        job.keep_node(path, node)


def load_all(tree: NodeTree, jobs: Sequence[Job]) -> list[NodeInvalid | None]:
    """Read all nodes of several jobs in one call; return for each why it is damaged, or None."""
    missing = [job.missing_paths() for job in jobs]
    nodes = iter(tree.store.read([path for paths in missing for path in paths]))
    errors: list[NodeInvalid | None] = []
    for job, paths in zip(jobs, missing, strict=True):
        try:
            job.note_nodes({path: next(nodes) for path in paths})
        except NodeInvalid as e:
            errors.append(e)
        else:
            errors.append(None)
    return errors


def check_priority(priority: int) -> int:
    """Return the priority if it is valid.

    Raises:
        UsageError: it is not a valid priority.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        raise UsageError(f"priority {priority!r}: give a whole number; 0 is most urgent.")
    return priority


def _only_ops(path: str, existing: Sequence[str]) -> list[Op]:
    """Return the operations after which this node exists, and none of the other ones."""
    wrong: list[Op] = [Delete(other) for other in existing if other != path]
    return wrong if path in existing else [*wrong, Create(path)]


def _data_of(node: StoredNode | None) -> bytes:
    return b"" if node is None else node.data


def retry_count_of(now: StatusNode) -> int:
    """Return the number of retries, even if another tool wrote it as text."""
    count = now.values.get("retry_count") or 0
    return int(count) if str(count).isdigit() else 0


# Inventory: the list of a job's files in the working space.
#
# The list is published as a whole, after every file in it is durable: if the list exists, all its files do.

INVENTORY_NAME: Final = "inventory.jsonl"
FILES_FOLDER: Final = "files"
"""Folder of the files, beside the list."""


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of a job in the working space."""

    path: str
    """Path relative to the folder of files, with ``/`` between names."""
    size: int
    sha256: str
    url: str = ""
    """URL that it was fetched from."""
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields given by the submitter."""


def write_inventory(folder: Path, stored: Iterable[StoredFile], *, synced: bool = True) -> Path:
    """Publish the list of a folder's files, replacing an earlier one. Returns its path.

    ``synced=False``: the list is complete, but durable only after the caller has synced it.
    """
    path = folder / INVENTORY_NAME
    data = b"".join(msgspec.json.encode(each) + b"\n" for each in stored)
    if synced:
        files.replace(path, data)
        return path
    temporary = path.with_name(f".{INVENTORY_NAME}.new")
    temporary.write_bytes(data)
    temporary.replace(path)
    return path


def read_inventory(path: Path) -> Iterator[StoredFile]:
    """Yield the files of a list.

    Raises:
        OSError: the list does not exist or cannot be read.
        ValueError: the file is not a list of files.
    """
    with path.open("rb") as lines:
        for line in lines:
            try:
                stored = msgspec.json.decode(line, type=StoredFile)
            except msgspec.MsgspecError as e:
                raise ValueError(plain_text(e)) from None
            except RecursionError as e:
                raise ValueError(json_error(b"", e)) from None
            if why := json_problem(stored.fields):
                raise ValueError(f"the metadata of {stored.path} {why}")
            yield stored


def inventory_values(path: Path, stored: list[StoredFile]) -> dict[str, Any]:
    """Return the content of the job's ``inventory`` node."""
    return {"url": file_url(path), "files": len(stored), "bytes": sum(each.size for each in stored)}


def inventory_path(job_path: str, values: Mapping[str, Any]) -> Path:
    """Return the path of the list of files that a job's ``inventory`` node names.

    Raises:
        NodeInvalid: it names no list.
    """
    try:
        _, url = split(str(values.get("url") or ""))
    except ValueError as e:
        raise NodeInvalid(f"{job_path}/inventory", f"names a list of files, but {e}") from None
    if url.scheme != "file" or not url.path:
        raise NodeInvalid(f"{job_path}/inventory", "does not name a list of files (a file:// URL)")
    return Path(unquote(url.path))


def file_url(path: Path) -> str:
    return "file://" + quote(str(path.absolute()))


# The nodes of a new job.


def new_job_ops(
    job_id: str,
    batch_id: str,
    values: Mapping[str, Mapping[str, Any]],
    *,
    now: str,
    priority: int = nodes.DEFAULT_PRIORITY,
    state: JobState = JobState.PENDING,
    message: str = "",
) -> list[Op]:
    """Return the operations that create a job, except for its entry in the batch's list. ``values``: its JSON nodes by
    name."""
    path = job_path(job_id)
    status = {
        "status": state.value,
        "last_successful_status": None,
        "last_modified": now,
        "retry_count": 0,
        "message": message,
    }
    return [
        Create(path, numbered=True),
        Create(f"{path}/bid", batch_id.encode()),
        *(Create(f"{path}/{name}", encode_node(f"{path}/{name}", dict(d))) for name, d in values.items() if d),
        Create(f"{path}/priority", str(priority).encode()),
        Create(f"{path}/space_needed", b"0"),
        Create(f"{path}/status", encode_node(f"{path}/status", status)),
        Create(state_path(state, nodes.state_entry(priority, job_id))),
    ]
