"""A job: one object of a batch, on its way from Pending to Completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

import msgspec

from ferryman.document import json_problem
from ferryman.errors import UsageError, plain_text
from ferryman.intake import nodes
from ferryman.intake.errors import NodeInvalid, StateError
from ferryman.intake.items import Item, StatusNode
from ferryman.intake.nodes import batch_path, decoded, encoded, job_path, state_path, text_of, whole_number
from ferryman.intake.states import JOB, JobState, Transitions, list_of, resumed_at
from ferryman.intake.store import Check, Create, Delete, Op, Set, StoredNode
from ferryman.intake.tree import Hold, NodeTree
from ferryman.net.urls import split
from ferryman.storage import files

JSON_NODES: Final = ("configuration", "identifiers", "metadata", "inventory", "store")
"""Made only when there is something in them."""

_NO_NODE: Final = StoredNode(b"", 0, 0, 0, 0, 0, 0.0, 0.0)


class Job(Item):
    """One object of a batch."""

    table: ClassVar[Transitions[Any]] = JOB

    def __init__(self, tree: NodeTree, id: str) -> None:
        super().__init__(tree, id)
        self._batch_id = ""
        self._priority: int | None = None
        self._kept: dict[str, StoredNode | None] = {}
        """JSON nodes as they were read under the lock: nobody but its holder may change them."""
        self._space: int | None = None
        """Working space that this object set under the lock, in bytes."""
        self._gets: int | None = None
        self._written: dict[str, StoredNode | None] = {}
        """Priority and JSON nodes as a change makes them that is under way."""
        self._read_alone: set[str] = set()
        """JSON nodes that were read one by one, since they did not come with the lock; shared by jobs of a state."""

    @property
    def path(self) -> str:
        return job_path(self.id)

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def batch_id(self) -> str:
        """The batch it belongs to."""
        if not self._batch_id:  # it never changes
            path = f"{self.path}/bid"
            self._batch_id = text_of(path, self._tree.get(path).data)
        return self._batch_id

    @property
    def priority(self) -> int:
        """0 is most urgent. Above 99 it sorts with 99."""
        return self._number("priority")

    @property
    def space_needed(self) -> int:
        """Working space that it needs, in bytes; 0 while nobody knows."""
        space = self._space
        return self._number("space_needed") if space is None else space

    @property
    def last_successful_status(self) -> str | None:
        """The last state whose work was done; None in a new job."""
        found = self._status().values.get("last_successful_status")
        return None if found is None else str(found)

    @property
    def retry_count(self) -> int:
        """How often it was requeued."""
        return retries_in(self._status())

    @property
    def configuration(self) -> dict[str, Any]:
        return self._json("configuration")

    @property
    def identifiers(self) -> dict[str, Any]:
        return self._json("identifiers")

    @property
    def metadata(self) -> dict[str, Any]:
        return self._json("metadata")

    @property
    def inventory(self) -> dict[str, Any]:
        return self._json("inventory")

    @property
    def store(self) -> dict[str, Any]:
        return self._json("store")

    def set_space_needed(self, bytes_needed: int) -> None:
        """Note how much working space it needs."""
        if bytes_needed < 0:
            raise UsageError(f"{self.id}: {bytes_needed} bytes of space: give 0 or more.")
        path = f"{self.path}/space_needed"
        self._change(lambda now: [Set(path, str(int(bytes_needed)).encode())])

    def set_inventory(self, values: Mapping[str, Any]) -> None:
        """Replace what is known of its inventory; {} removes it."""
        self._set_json("inventory", values)

    def set_store(self, values: Mapping[str, Any]) -> None:
        """Replace what is known of where it was stored; {} removes it."""
        self._set_json("store", values)

    def set_identifiers(self, values: Mapping[str, Any]) -> None:
        """Replace its identifiers; {} removes them."""
        self._set_json("identifiers", values)

    # --- moves --------------------------------------------------------------------------------------------------------

    def go_on(
        self,
        message: str = "",
        *,
        priority: int | None = None,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        space_needed: int | None = None,
        holding: bool = False,
    ) -> bool:
        """The work of its state is done: move to the next one, with what became known by it, in one change.

        Returns whether this object still has the lock. With ``holding`` it does, to go on at once, unless the queue is
        paused; without, the lock is given back in the same change. Raises as ``set_status``.

        Args:
            priority: another one.
            values: JSON nodes that are replaced, by name; {} removes one.
            space_needed: bytes of working space.
        """
        paused = self._move(
            lambda now: (
                self._named(now, JobState.ESTIMATING)
                if now.state is JobState.PENDING
                else self.table.succeeded(now.state)
            ),
            message,
            unlock=not holding,
            look=(nodes.PAUSED,) if holding else (),
            priority=priority,
            values=values,
            space_needed=space_needed,
        )
        if any(paused):
            self.unlock()
        if self._hold is not None and space_needed is not None:
            self._space = space_needed
        self._read_alone = set()  # what the next state asks for need not come with the lock of this one
        return self._hold is not None

    def set_status(self, status: str, message: str = "", priority: int | None = None, retry: bool = False) -> None:
        """Move to another state; with another priority, if one is given. ``retry`` counts it as requeued.

        In the state it has already, only message and priority change. Raises as for every item.
        """
        if priority is not None:
            checked_priority(priority)
        self._move(lambda now: self._named(now, status), message, priority=priority, retry=retry)

    def set_priority(self, priority: int) -> None:
        """Give it another priority; all else stays. Raises as ``set_status``."""
        checked_priority(priority)
        self._change(lambda now: self._moved(now, now.state, str(now.values.get("message") or ""), priority=priority))

    def processed(
        self, message: str = "", identifiers: Mapping[str, Any] | None = None, *, unlock: bool = False
    ) -> None:
        """``success``, and in the same change other identifiers, if there are any. Raises as ``set_status``."""
        values = {} if identifiers is None else {"identifiers": identifiers}
        self._move(lambda now: self.table.succeeded(now.state), message, unlock=unlock, values=values)

    def requeue(
        self, message: str = "", configuration: Mapping[str, Any] | None = None, priority: int | None = None
    ) -> None:
        """Take a failed job up again: in the state after the last one that succeeded, counted as a retry.

        With another ``configuration``, which replaces its own in the same change: from Pending, and nothing that was
        fetched for the old one is used. Another ``priority`` is part of that change too.
        """
        if priority is not None:
            checked_priority(priority)
        values = {} if configuration is None else {"configuration": configuration}

        def after(now: StatusNode) -> JobState:
            resumed = resumed_at(now.values.get("last_successful_status")) if not values else JobState.PENDING
            if now.state is not JobState.FAILED:  # some may follow other states too, but not as a retry
                raise StateError(now.state, resumed)
            return resumed

        self._move(after, message, priority=priority, retry=True, values=values)

    def _moved(
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
        had, self._priority = self.priority if self._priority is None else self._priority, None
        self._gets = gets = had if priority is None else priority
        status = self._next(now, after, message)
        if retry and after is not now.state:
            status["retry_count"] += 1
        ops: list[Op] = [self._set_status(now, status)]
        for name, content in (values or {}).items():
            ops += self._replaced(name, content)
        if space_needed is not None:
            ops.append(Set(f"{self.path}/space_needed", str(space_needed).encode()))
        if gets != had:
            ops.append(Set(f"{self.path}/priority", str(gets).encode()))
        was = state_path(now.state, nodes.entry(had, self.id))
        becomes = state_path(after, nodes.entry(gets, self.id))
        ops += [Delete(was), Create(becomes)] if was != becomes else [Check(was)]
        if list_of(after) != list_of(now.state):
            ops += self._listed(list_of(now.state), list_of(after))
        return ops

    def _listed(self, before: str, after: str) -> list[Op]:
        folder = batch_path(self.batch_id, "states", after)
        return [
            *self._tree.missing([folder]),
            Delete(batch_path(self.batch_id, "states", before, self.id)),
            Create(f"{folder}/{self.id}"),
        ]

    def _next(self, now: StatusNode, after: Any, message: str) -> dict[str, Any]:
        kept = now.values.get("last_successful_status")
        keeps = after in (now.state, JobState.FAILED, JobState.DELETED) or now.state is JobState.FAILED
        plain = super()._next(now, after, message)
        return {
            "status": plain["status"],
            "last_successful_status": kept if keeps else now.state.value,
            "last_modified": plain["last_modified"],
            "retry_count": retries_in(now),
            "message": plain["message"],
        }

    # --- making, loading, removing ------------------------------------------------------------------------------------

    def was_entry(self, name: str) -> None:
        """It was acquired by this entry of its state: that tells its priority, if it is not above what names tell."""
        priority = name.partition("-")[0]
        self._priority = int(priority) if priority != str(nodes.PRIORITY_NAMED_MAX) else None

    def load(self) -> Job:
        """Read all of it.

        Raises:
            NodeInvalid: a node is missing or malformed.
        """
        names = ("status", "bid", "priority", "space_needed", *JSON_NODES)
        known = dict(self._kept) if self._hold is not None else {}
        if self._hold is not None and self._known is not None:
            known["status"] = self._known.node
        self._read_alone |= set(JSON_NODES) - known.keys()
        unknown = [name for name in names if name not in known]
        paths = [f"{self.path}/{name}" for name in unknown]
        found = {**known, **dict(zip(unknown, self._tree.store.read(paths), strict=True))}
        if "status" in unknown:
            self.status_of(found["status"])
        for name in ("bid", "priority", "space_needed"):
            if found[name] is None:
                raise NodeInvalid(f"{self.path}/{name}", "is not there")
        self._batch_id = text_of(f"{self.path}/bid", _data(found["bid"]))
        self._priority = whole_number(f"{self.path}/priority", _data(found["priority"]))
        whole_number(f"{self.path}/space_needed", _data(found["space_needed"]))
        for name in JSON_NODES:
            node = found[name]
            if node is not None:
                decoded(f"{self.path}/{name}", node.data)
        return self

    def remove(self) -> None:
        """Remove it whatever its state: its batch goes. Raises ``ItemLocked`` if somebody works at it."""
        self._change(self._gone)
        self._hold = None

    def _gone(self, now: StatusNode) -> list[Op]:
        listed = [
            state_path(now.state, nodes.entry(self.priority, self.id)),
            batch_path(self.batch_id, "states", list_of(now.state), self.id),
        ]
        found = self._tree.store.read(listed)
        return [
            *(Delete(path) for path, node in zip(listed, found, strict=True) if node),
            *super()._gone(now),
        ]

    def _number(self, name: str) -> int:
        path = f"{self.path}/{name}"
        return whole_number(path, self._tree.get(path).data)

    def keep(self, nodes: Mapping[str, StoredNode | None], read_alone: set[str]) -> None:
        """Some of its JSON nodes, as they were read under the lock: they are not read again while this object holds it.

        The names of others that are asked for meanwhile go into ``read_alone``.
        """
        self._kept, self._read_alone = dict(nodes), read_alone

    def _lose(self) -> None:
        self._kept, self._space = {}, None
        super()._lose()

    def _change_of_holder(
        self, plan: Callable[[StatusNode], Sequence[Op]], hold: Hold, *, unlock: bool, look: Sequence[str]
    ) -> list[StoredNode | None]:
        self._gets, self._written = None, {}
        looked = super()._change_of_holder(plan, hold, unlock=unlock, look=look)
        if self._hold is hold:  # nobody else changes them now
            self._kept.update(self._written)
            self._priority = self._gets if self._priority is None else self._priority
        return looked

    def _json(self, name: str) -> dict[str, Any]:
        path = f"{self.path}/{name}"
        found = self._node(name)
        return {} if found is None else decoded(path, found.data)

    def _node(self, name: str) -> StoredNode | None:
        """One of its JSON nodes; under the lock it is read once."""
        hold, kept = self._hold, self._kept  # another thread may find the lock lost, and begin anew
        if hold is not None and name in kept:
            return kept[name]
        self._read_alone.add(name)
        found = self._tree.find(f"{self.path}/{name}")
        if hold is not None and hold is self._hold:
            kept[name] = found
        return found

    def _set_json(self, name: str, values: Mapping[str, Any]) -> None:
        self._change(lambda now: self._replaced(name, values))

    def _replaced(self, name: str, values: Mapping[str, Any]) -> list[Op]:
        """Return the operations that set a node to these values; {} removes it."""
        path = f"{self.path}/{name}"
        data = encoded(path, dict(values))
        found = self._node(name)
        self._kept.pop(name, None)  # if it is not as it was known, it is read anew
        self._written[name] = (found or _NO_NODE)._replace(data=data) if values else None
        if not values:
            return [Delete(path)] if found else []
        return [Set(path, data) if found else Create(path, data)]


def checked_priority(priority: int) -> int:
    """A priority.

    Raises:
        UsageError: it is not one.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        raise UsageError(f"priority {priority!r}: give a whole number; 0 is most urgent.")
    return priority


def _data(node: StoredNode | None) -> bytes:
    return b"" if node is None else node.data


def retries_in(now: StatusNode) -> int:
    """Retries, also where another tool wrote the number as text."""
    found = now.values.get("retry_count") or 0
    return int(found) if str(found).isdigit() else 0


# What lies in the working space for a job: a file that lists its files.
#
# The list is published whole, after every file in it is durable: where it is, all of them are.

NAME: Final = "inventory.jsonl"
FILES: Final = "files"
"""The folder beside the list that the files are in."""


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that is there."""

    path: str
    """Relative to the folder of files, with ``/`` between names."""
    size: int
    sha256: str
    url: str = ""
    """Where it came from."""
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields given by the submitter."""


def write(folder: Path, held: Iterable[StoredFile], *, synced: bool = True) -> Path:
    """Publish the list of a folder's files; another one is replaced. Returns its path.

    ``synced=False``: whole, but durable only when its caller has synced it.
    """
    path = folder / NAME
    data = b"".join(msgspec.json.encode(each) + b"\n" for each in held)
    if synced:
        files.replace(path, data)
        return path
    fresh = path.with_name(f".{NAME}.new")
    fresh.write_bytes(data)
    fresh.replace(path)
    return path


def read(path: Path) -> Iterator[StoredFile]:
    """The files of a list.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is not a list of files.
    """
    with path.open("rb") as lines:
        for line in lines:
            try:
                found = msgspec.json.decode(line, type=StoredFile)
            except (msgspec.MsgspecError, RecursionError) as e:
                raise ValueError(plain_text(e)) from None
            if why := json_problem(found.fields):
                raise ValueError(f"what is said of {found.path} {why}")
            yield found


def node(path: Path, held: list[StoredFile]) -> dict[str, Any]:
    """Return the content of the job's ``inventory`` node."""
    return {"url": url_of(path), "files": len(held), "bytes": sum(each.size for each in held)}


def place(job_path: str, values: Mapping[str, Any]) -> Path:
    """Where the list is that a job's ``inventory`` node names.

    Raises:
        NodeInvalid: it names none.
    """
    try:
        _, url = split(str(values.get("url") or ""))
    except ValueError as e:
        raise NodeInvalid(f"{job_path}/inventory", f"names a list of files, but {e}") from None
    if url.scheme != "file" or not url.path:
        raise NodeInvalid(f"{job_path}/inventory", "names no list of files (a file:// URL)")
    return Path(unquote(url.path))


def url_of(path: Path) -> str:
    return "file://" + quote(str(path.absolute()))


# The nodes of a new job.


def creation(
    job_id: str,
    batch_id: str,
    values: Mapping[str, Mapping[str, Any]],
    *,
    now: str,
    priority: int = nodes.PRIORITY,
    state: JobState = JobState.PENDING,
    message: str = "",
) -> list[Op]:
    """The nodes of a new job, but for its place in its batch's list. ``values``: its JSON nodes by name."""
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
        *(Create(f"{path}/{name}", encoded(f"{path}/{name}", dict(d))) for name, d in values.items() if d),
        Create(f"{path}/priority", str(priority).encode()),
        Create(f"{path}/space_needed", b"0"),
        Create(f"{path}/status", encoded(f"{path}/status", status)),
        Create(state_path(state, nodes.entry(priority, job_id))),
    ]
