"""Common parts of batches, jobs and access requests: id, status, lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from ferryman.errors import plain_text
from ferryman.intake.errors import ItemLocked, LockLost, NodeInvalid, StateError
from ferryman.intake.nodes import access_path, decode_node, encode_node, number_of, numbered_name
from ferryman.intake.states import ACCESS, AccessState, Transitions
from ferryman.intake.store.base import Check, Conflict, ConflictReason, Create, Delete, Op, Set, StoredNode
from ferryman.intake.tree import HeldLock, NodeTree, trim_message

NO_NODE: Final = StoredNode(b"", 0, 0, 0, 0, 0, 0.0, 0.0)
"""Stands for a node that does not exist yet."""


class StatusNode(NamedTuple):
    """A status node and its decoded content."""

    node: StoredNode
    values: dict[str, Any]
    state: Any
    """States of the item's kind."""


class Item:
    """Base of the queue's items. Properties are read from the queue each time, so changes by other processes are
    visible.

    The table says who may change an item, which is checked in the same commit:

    ==============================  =================================================================================
    an object that                  may
    ==============================  =================================================================================
    never held its lock             change what nobody holds; ``ItemLocked`` where somebody does
    holds it                        change it while the lock is the very one it took, and the state the one it knows
    held it, and gave it back or    change nothing, and unlock nothing, until it acquires again: ``LockLost``
    lost it
    ==============================  =================================================================================

    An operator may revoke the lock: ``revoke``, or ``fail`` with ``revoke=True``.
    """

    table: ClassVar[Transitions[Any]]

    def __init__(self, tree: NodeTree, id: str, path: str) -> None:
        self._tree = tree
        self.id, self.path = id, path
        self._status_path, self._lock_path = f"{path}/status", f"{path}/lock"
        self._held_lock: HeldLock | None = None
        self._known_status: StatusNode | None = None
        """Status when the lock was acquired, or after this object's last move; None without the lock."""
        self._ever_held = False
        self.held_state: Any = None
        """State in which this object held the lock last; None if it never did."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def urgency(self) -> tuple[int, str]:
        """Return a key by which items of a kind sort in the order in which they would be acquired."""
        return 0, self.id

    # --- status -------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """Return the item's state.

        Raises:
            NodeInvalid: it was removed, or is damaged.
        """
        return str(self._read_status().state.value)

    @property
    def message(self) -> str:
        """Return the message of the item's last move."""
        return str(self._read_status().values.get("message") or "")

    @property
    def last_modified(self) -> str:
        """Return the time of the item's last move: ``2026-11-20 21:45:38 +0000``."""
        return str(self._read_status().values.get("last_modified") or "")

    @property
    def deletable(self) -> bool:
        """Return whether the item is in a final state, so that ``delete`` may remove it."""
        return self._read_status().state in self.table.final

    def set_status(self, status: str, message: str = "") -> None:
        """Move to another state. If the item is in that state already, only the message changes.

        Raises:
            StateError: the table does not have this move, or somebody else works on the item (``ItemLocked``).
            NodeInvalid: it was removed, or is damaged.
            LockLost: this object held the lock, but has released or lost it.
        """
        self._move(lambda now: self._target_state(now, status), message)

    def success(self, message: str = "", *, unlock: bool = False) -> None:
        """Move to the next state, because the work of this one is done. Raises as ``set_status``.

        ``unlock``: also release the lock, in the same commit.
        """
        self._move(lambda now: self.table.after_success(now.state), message, unlock=unlock)

    def fail(self, message: str = "", *, unlock: bool = False, revoke: bool = False) -> None:
        """Move to the failure state, because the work of this state has failed. Raises as ``set_status``.

        ``unlock``: also release the lock, in the same commit. ``revoke``: take the lock away from whoever holds it.
        """
        self._move(lambda now: self.table.after_failure(now.state), message, unlock=unlock, revoke=revoke)

    def rewrite(self, status: str, message: str = "") -> None:
        """Rewrite the status node, in this state, and list the item where it belongs. For an operator who gives up
        an item whose nodes are damaged, so that it cannot be moved; whoever holds its lock loses it.

        Raises:
            NodeInvalid: the item was removed, or too much of it is damaged.
        """
        after, text = self.table.states(status), trim_message(message)

        def plan() -> list[Op]:
            self._tree.get(self.path)
            node = self._tree.find(self._status_path)
            now = StatusNode(node or NO_NODE, self._readable_values(node), after)
            values = {**self._next_status(now, after, text), "last_modified": self._tree.now()}
            data = encode_node(self._status_path, values)
            return [
                *([Delete(self._lock_path)] if self._tree.find(self._lock_path) else []),
                Set(self._status_path, data, node.version) if node else Create(self._status_path, data),
                *self._relist_ops(after),
            ]

        self._tree.change(plan)
        self._forget_lock()
        self._ever_held = False

    def _readable_values(self, node: StoredNode | None) -> dict[str, Any]:
        """Return the simple values that can still be read from a status node."""
        if node is None:
            return {}
        with suppress(NodeInvalid):
            values = decode_node(self._status_path, node.data)
            return {name: value for name, value in values.items() if isinstance(value, str | int)}
        return {}

    def _relist_ops(self, state: Any) -> list[Op]:
        """Return the operations that list the item in place of this state only."""
        return []

    def _target_state(self, now: StatusNode, status: str) -> Any:
        """Return the state of this name if the item may move there from its present state.

        Raises:
            StateError: there is no such state, or the move is not allowed.
        """
        if status == now.state.value:
            return now.state
        try:
            after = self.table.states(status)
        except ValueError:
            raise StateError(now.state, plain_text(status)) from None
        return self.table.move(now.state, after)

    def _move(
        self,
        choose: Callable[[StatusNode], Any],
        message: str,
        *,
        unlock: bool = False,
        revoke: bool = False,
        **options: Any,
    ) -> None:
        """Move to the state that ``choose`` returns for the present one; ``choose`` may raise.

        Args:
            options: keyword arguments of ``_move_ops``.
        """
        text = trim_message(message)
        self._change(lambda now: self._move_ops(now, choose(now), text, **options), unlock=unlock, revoke=revoke)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _change(
        self, plan: Callable[[StatusNode], Sequence[Op]], *, unlock: bool = False, revoke: bool = False
    ) -> None:
        """Commit the operations that ``plan`` makes from the present status, if this object may change the item.

        Raises:
            ItemLocked, LockLost: this object may not change the item; nothing was changed.
            NodeInvalid: it was removed, or is damaged.
        """
        if revoke:
            self._change_and_revoke(plan)
        elif self._held_lock is not None:
            self._change_as_holder(plan, self._held_lock, unlock=unlock)
        elif self._ever_held:
            raise LockLost(self._lock_path)
        else:
            self._change_unlocked(plan)

    def _change_as_holder(
        self, plan: Callable[[StatusNode], Sequence[Op]], held_lock: HeldLock, *, unlock: bool
    ) -> None:
        """Commit a change as the holder of the item's lock; plan it again if the status node changed meanwhile."""
        now, ops = self._known_status, list[Op]()

        def plan_again() -> list[Op]:
            nonlocal now, ops
            if now is None or ops:  # the status is no longer the known one
                now = self._status_as_holder()
            ops = self._holder_ops(now, plan, held_lock, unlock=unlock)
            return ops

        try:
            try:
                self._tree.change(plan_again, held_lock)
            except StateError:  # which counts only if the item is still in a state that this object works on
                self._tree.commit([], held_lock)
                raise
        except LockLost:
            self._forget_lock()
            raise
        self._note_change(now, ops, held_lock, unlock=unlock)

    def _holder_ops(
        self, now: StatusNode, plan: Callable[[StatusNode], Sequence[Op]], held_lock: HeldLock, *, unlock: bool
    ) -> list[Op]:
        """Return the operations of a change by the holder of the item's lock."""
        return [*self._with_status_check(now, plan(now)), *([Delete(held_lock.path)] if unlock else [])]

    def _note_change(self, now: StatusNode | None, ops: Sequence[Op], held_lock: HeldLock, *, unlock: bool) -> None:
        """Remember what this object has changed as the holder of the lock."""
        self._known_status = self._status_after(now, ops)
        if unlock:
            self._forget_lock()

    def _change_unlocked(self, plan: Callable[[StatusNode], Sequence[Op]]) -> None:
        """Commit a change of an item that nobody holds; the commit acquires and releases the lock."""

        def plan_locked() -> list[Op]:
            now = self._read_status()
            return [Create(self._lock_path), Delete(self._lock_path), *self._with_status_check(now, plan(now))]

        self._tree.change(plan_locked, on_conflict=self._refuse_locked)

    def _change_and_revoke(self, plan: Callable[[StatusNode], Sequence[Op]]) -> None:
        """Commit a change and remove the lock, whoever holds it. The status node gets a new version, so that its former
        holder cannot continue."""

        def plan_revoking() -> list[Op]:
            now = self._read_status()
            ops = list(plan(now))
            if not any(isinstance(op, Set) and op.path == self._status_path for op in ops):
                ops.append(Set(self._status_path, now.node.data, now.node.version))
            return [*([Delete(self._lock_path)] if self._tree.find(self._lock_path) else []), *ops]

        self._tree.change(plan_revoking)
        if self._held_lock is not None:
            self._forget_lock()

    def _with_status_check(self, now: StatusNode, ops: Sequence[Op]) -> list[Op]:
        """Add a check that the status node still has the version from which the operations were planned."""
        is_checked = any(isinstance(op, Set | Check) and op.path == self._status_path for op in ops)
        return list(ops) if is_checked else [Check(self._status_path, now.node.version), *ops]

    def _status_as_holder(self) -> StatusNode:
        """Read the status of an item that this object holds.

        Raises:
            LockLost: the item is in another state than this object knows, so somebody else has moved it.
        """
        now = self._read_status()
        if self._known_status is not None and now.state is not self._known_status.state:
            self.unlock()
            raise LockLost(self._lock_path)
        return now

    def _status_after(self, status: StatusNode | None, ops: Sequence[Op]) -> StatusNode | None:
        """Return the status as it is after this object's own commit; None if the commit removed it."""
        status_sets = [op for op in ops if isinstance(op, Set) and op.path == self._status_path]
        if status is None or not status_sets:
            return status
        node = status.node._replace(data=status_sets[0].data, version=status.node.version + 1)
        values = msgspec.json.decode(node.data)
        return StatusNode(node, values, self.table.states(values["status"]))

    def _refuse_locked(self, conflict: Conflict) -> None:
        if conflict.path == self._lock_path and conflict.reason is ConflictReason.EXISTS:
            raise ItemLocked(self._lock_path)

    def _forget_lock(self) -> None:
        if self._known_status is not None:
            self.held_state = self._known_status.state
        self._held_lock, self._known_status, self._ever_held = None, None, True

    def _move_ops(self, now: StatusNode, after: Any, message: str) -> list[Op]:
        return [self._set_status(now, self._next_status(now, after, message))]

    def _next_status(self, now: StatusNode, after: Any, message: str) -> dict[str, Any]:
        """Return the values of the status node after a move."""
        modified = now.values.get("last_modified") if after == now.state else self._tree.now()
        return {"status": after.value, "last_modified": modified, "message": message}

    def _set_status(self, now: StatusNode, values: dict[str, Any]) -> Set:
        return Set(self._status_path, encode_node(self._status_path, values), now.node.version)

    def _read_status(self) -> StatusNode:
        return self.decode_status(self._tree.get(self._status_path))

    def decode_status(self, node: StoredNode | None) -> StatusNode:
        """Decode a status node that the caller has already read.

        Raises:
            NodeInvalid: it was removed, or is damaged.
        """
        path = self._status_path
        if node is None:
            raise NodeInvalid(path, "is not there")
        values = decode_node(path, node.data)
        try:
            state = self.table.states(values.get("status"))
        except ValueError:
            raise NodeInvalid(path, f"does not name a state, but {values.get('status')!r}") from None
        return StatusNode(node, values, state)

    # --- lock ---------------------------------------------------------------------------------------------------------

    @property
    def locked(self) -> bool:
        """Return whether this object holds the lock, as far as it knows without asking. False once the session has
        ended; stop working then."""
        return self._held_lock is not None and self._tree.store.is_alive(self._held_lock.session)

    def lock(self) -> bool:
        """Lock the item. Returns False if anybody holds the lock, including this process.

        Raises:
            NodeInvalid: it was removed.
        """
        try:
            status, *_ = self._take_lock()
        except Conflict as e:
            if e.reason is ConflictReason.EXISTS:
                return False
            raise NodeInvalid(self.path, "is not there") from None
        with suppress(NodeInvalid):  # a damaged item can be locked, but not moved
            self._known_status = self.decode_status(status)
        return True

    def unlock(self) -> None:
        """Release the lock. Does nothing if this object does not hold it."""
        held_lock = self._held_lock
        if held_lock is None:
            return
        self._forget_lock()

        def plan_unlock() -> list[Op]:
            status = self._tree.find(self._status_path)
            return [*([Check(self._status_path, status.version)] if status else []), Delete(held_lock.path)]

        with suppress(LockLost):  # already gone: with the session, with the item, or revoked by an operator
            self._tree.change(plan_unlock, held_lock)

    def revoke(self) -> bool:
        """Take the lock away from its holder, who cannot change anything from then on. Returns whether the item was
        locked.

        Raises:
            NodeInvalid: it was removed, or is damaged.
        """
        was_locked = self._tree.find(self._lock_path) is not None
        self._change(lambda now: [], revoke=True)
        return was_locked

    def acquire(self, state: Any, *checks: Op, read_after: Sequence[str] = ()) -> Sequence[StoredNode | None] | None:
        """Lock the item if nobody holds it and ``checks`` succeed; keep the lock if the item is in this state.

        Returns the nodes at ``read_after``, read under the lock; None if the lock was not acquired or not kept.

        Raises:
            NodeInvalid: the item is damaged; it was not locked.
        """
        try:
            status, *nodes = self._take_lock(*checks, read_after=read_after)
        except Conflict:
            return None
        return nodes if self._keep_lock_in(state, status) else None

    def lock_request(self, *checks: Op, read_after: Sequence[str]) -> tuple[str, Sequence[Op], Sequence[str]]:
        """Return the arguments by which ``NodeTree.lock_all`` acquires this item's lock for ``hold``."""
        return self._lock_path, checks, [self._status_path, *read_after]

    def hold(self, held_lock: HeldLock) -> None:
        """Take over a lock that ``lock_request`` asked for; ``keep_lock_in`` follows."""
        self._held_lock, self._known_status = held_lock, None

    def keep_lock_in(self, state: Any, nodes: Sequence[StoredNode | None]) -> Sequence[StoredNode | None] | None:
        """Keep the lock if the item is in this state. ``nodes``: those that ``lock_request`` reads. Returns and raises
        as ``acquire``."""
        return nodes[1:] if self._keep_lock_in(state, nodes[0]) else None

    def _keep_lock_in(self, state: Any, status: StoredNode | None) -> bool:
        """Release the lock that was just acquired unless the item is in this state; return whether it is kept.

        Raises:
            NodeInvalid: the item is damaged; it was unlocked.
        """
        try:
            self._known_status = self.decode_status(status)
        finally:
            if self._known_status is None or self._known_status.state is not state:
                self.unlock()
        return self._held_lock is not None

    def _take_lock(self, *checks: Op, read_after: Sequence[str] = ()) -> list[StoredNode | None]:
        """Acquire the lock. Returns the status node and the nodes at ``read_after``, read under the lock."""
        held_lock, nodes = self._tree.lock(self._lock_path, *checks, read_after=[self._status_path, *read_after])
        self._held_lock, self._known_status = held_lock, None
        return nodes

    def _refuse_unless_final(self, now: StatusNode) -> None:
        if now.state not in self.table.final:
            raise StateError(now.state, "removed")

    def delete(self) -> None:
        """Remove the item and its entries in all lists.

        Raises:
            StateError: it is not in a final state, or somebody works on it.
            NodeInvalid: it was removed, or is damaged.
        """

        def plan(now: StatusNode) -> list[Op]:
            self._refuse_unless_final(now)
            return self._delete_ops(now)

        self._change(plan)
        self._held_lock = None

    def _delete_ops(self, now: StatusNode) -> list[Op]:
        """Return the operations that remove the item's node and everything below, on condition that nobody moves the
        item meanwhile."""
        inside = self._tree.store.children(self.path)
        return [
            Check(self._status_path, now.node.version),
            *(Delete(f"{self.path}/{name}") for name in inside),
            Delete(self.path),
        ]


# An access request: somebody waits for a bundle of delivered originals.


class Assembly(Item):
    """A request for a bundle of delivered originals, in the queue for small or large bundles."""

    table: ClassVar[Transitions[Any]] = ACCESS

    def __init__(self, tree: NodeTree, size: str, id: str) -> None:
        super().__init__(tree, id, access_path(size, id))
        self.size = size

    @property
    def token(self) -> dict[str, Any]:
        """Return the request's token, which includes the bundle's location once that is ready."""
        return self._tree.json(f"{self.path}/token")

    def set_token(self, token: Mapping[str, Any]) -> None:
        """Replace the token, to note a new expected time or the URL of the finished bundle."""
        path = f"{self.path}/token"
        data = encode_node(path, dict(token))
        self._change(lambda now: [Set(path, data)])

    def load(self) -> Assembly:
        """Read the request, to see whether it is damaged.

        Raises:
            NodeInvalid: a node is missing or malformed.
        """
        self._read_status()
        _ = self.token
        return self


def new_assembly_ops(path: str, token: Mapping[str, Any], now: str) -> list[Op]:
    """Return the operations that create an access request."""
    status = {"status": AccessState.PENDING.value, "last_modified": now, "message": ""}
    return [
        Create(path, numbered=True),
        Create(f"{path}/token", encode_node(f"{path}/token", dict(token))),
        Create(f"{path}/status", encode_node(f"{path}/status", status)),
    ]


# A batch's report: which jobs are delivered, which have failed, and why.

SINGLE_IDS_MAX: Final = 20_000
"""Number of job ids up to which a report lists each of them: 16 bytes each fit into a node. More are stored as ranges,
``jid0000000001..jid0000020000``."""


@dataclass(frozen=True)
class Report:
    """The finished jobs of a batch: completed and failed, with the reasons."""

    batch_id: str
    completed: tuple[str, ...]
    failed: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Job -> message of its last move, for failed jobs."""

    def as_stored(self, now: str) -> dict[str, Any]:
        """Return the report as stored in the batch's ``status-report``."""
        return {
            "last_modified": now,
            "failed_jobs": compress_ids(self.failed),
            "successful_jobs": compress_ids(self.completed),
        }

    def since(self, stored: Mapping[str, Any] | None) -> Report:
        """Return the part of the report that the stored one does not contain. If it is empty, nobody needs to be
        notified."""
        if stored is None:
            return self
        failed, completed = set(expand_ids(stored.get("failed_jobs"))), set(expand_ids(stored.get("successful_jobs")))
        newly_failed = tuple(job for job in self.failed if job not in failed)
        return Report(
            self.batch_id,
            tuple(job for job in self.completed if job not in completed),
            newly_failed,
            {job: why for job, why in self.reasons.items() if job in newly_failed},
        )

    def __bool__(self) -> bool:
        return bool(self.completed or self.failed)


def compress_ids(jobs: Iterable[str]) -> list[str]:
    """Return job ids as stored in a report: one by one, or as ranges if there are many."""
    ids = sorted(jobs)
    if len(ids) <= SINGLE_IDS_MAX:
        return ids
    ranges: list[list[int]] = []
    for job in ids:
        number = number_of(job) or 0
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [
        numbered_name("jid", first) if first == last else f"{numbered_name('jid', first)}..{numbered_name('jid', last)}"
        for first, last in ranges
    ]


def expand_ids(stored: object) -> Iterable[str]:
    """Yield the job ids of a stored report, with ranges expanded."""
    for text in stored if isinstance(stored, list) else []:
        first, _, last = str(text).partition("..")
        if not last:
            yield first
            continue
        for number in range(number_of(first) or 0, (number_of(last) or -1) + 1):
            yield numbered_name("jid", number)
