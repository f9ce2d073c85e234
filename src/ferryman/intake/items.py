"""Common parts of batches, jobs and access requests: an id, a status, a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from ferryman.errors import plain_text
from ferryman.intake.errors import ItemLocked, LockLost, NodeInvalid, StateError
from ferryman.intake.nodes import access_path, decode_node, encode_node, number_of, numbered_name
from ferryman.intake.states import ACCESS, AccessState, Transitions
from ferryman.intake.store import Check, Conflict, ConflictReason, Create, Delete, Op, Set, StoredNode
from ferryman.intake.tree import Hold, NodeTree, message_text


class StatusNode(NamedTuple):
    """A status node as it was read."""

    node: StoredNode
    values: dict[str, Any]
    state: Any
    """States of the item's kind."""


class Item:
    """A thing of the queue. Its properties are read from the queue each time: what another process changes is seen.

    Who may change it, with what the change checks in the same commit:

    ==============================  =================================================================================
    an object that                  may
    ==============================  =================================================================================
    never held its lock             change what nobody holds; ``ItemLocked`` where somebody does
    holds it                        change it while the lock is the very one it took, and the state the one it knows
    held it, and gave it back or    change nothing, and unlock nothing, until it acquires again: ``LockLost``
    lost it
    ==============================  =================================================================================

    An operator may take the lock away: ``revoke``, or ``fail`` with ``revoke=True``.
    """

    table: ClassVar[Transitions[Any]]

    def __init__(self, tree: NodeTree, id: str) -> None:
        self._tree = tree
        self.id = id
        self._hold: Hold | None = None
        self._known: StatusNode | None = None
        """Under the lock: the status as it was when it was acquired, or after this object's last move."""
        self._held_before = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def path(self) -> str:
        """Return the item's node."""
        raise NotImplementedError

    @property
    def _status_path(self) -> str:
        return f"{self.path}/status"

    @property
    def _lock_path(self) -> str:
        return f"{self.path}/lock"

    # --- status -------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """The state it is in.

        Raises:
            NodeInvalid: it was removed, or is damaged.
        """
        return str(self._status().state.value)

    @property
    def message(self) -> str:
        """The word that came with its last move."""
        return str(self._status().values.get("message") or "")

    @property
    def last_modified(self) -> str:
        """When it moved last: ``2026-11-20 21:45:38 +0000``."""
        return str(self._status().values.get("last_modified") or "")

    @property
    def deletable(self) -> bool:
        """Return whether the item is in a final state, so that ``delete`` may remove it."""
        return self._status().state in self.table.final

    def set_status(self, status: str, message: str = "") -> None:
        """Move to another state. In the state it has already, only the message changes.

        Raises:
            StateError: the table does not have this move, or somebody else works at it (``ItemLocked``).
            NodeInvalid: it was removed, or is damaged.
            LockLost: this object held its lock, and gave it back or lost it.
        """
        self._move(lambda now: self._named(now, status), message)

    def success(self, message: str = "", *, unlock: bool = False) -> None:
        """Move to the state that follows when the work of this one is done. Raises as ``set_status``.

        ``unlock``: and give the lock back, both or neither.
        """
        self._move(lambda now: self.table.after_success(now.state), message, unlock=unlock)

    def fail(self, message: str = "", *, unlock: bool = False, revoke: bool = False) -> None:
        """Move to the state that follows when the work of this one has failed. Raises as ``set_status``.

        ``unlock``: and give the lock back, both or neither. ``revoke``: and take it away from whoever works at it.
        """
        self._move(lambda now: self.table.after_failure(now.state), message, unlock=unlock, revoke=revoke)

    def _named(self, now: StatusNode, status: str) -> Any:
        """The state of this name.

        Raises:
            StateError: there is none, or it does not follow.
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
        read_after: Sequence[str] = (),
        **how: Any,
    ) -> list[StoredNode | None]:
        """Move to the state that ``choose`` gives for the present one; it may raise. ``how`` is for ``_moved``."""
        text = message_text(message)
        return self._change(
            lambda now: self._moved(now, choose(now), text, **how), unlock=unlock, revoke=revoke, read_after=read_after
        )

    # --- changes ------------------------------------------------------------------------------------------------------

    def _change(
        self,
        plan: Callable[[StatusNode], Sequence[Op]],
        *,
        unlock: bool = False,
        revoke: bool = False,
        read_after: Sequence[str] = (),
    ) -> list[StoredNode | None]:
        """Commit what ``plan`` makes of the present status, if this object may; see the table of this class.

        Returns the nodes at ``read_after`` as they are after it, if it holds the lock.

        Raises:
            ItemLocked, LockLost: it may not; nothing was changed.
            NodeInvalid: it was removed, or is damaged.
        """
        if revoke:
            self._change_of_anybody(plan)
        elif self._hold is not None:
            return self._change_of_holder(plan, self._hold, unlock=unlock, read_after=read_after)
        elif self._held_before:
            raise LockLost(self._lock_path)
        else:
            self._change_of_others(plan)
        return []

    def _change_of_holder(
        self, plan: Callable[[StatusNode], Sequence[Op]], hold: Hold, *, unlock: bool, read_after: Sequence[str]
    ) -> list[StoredNode | None]:
        now, ops = self._known, list[Op]()

        def planned() -> list[Op]:
            nonlocal now, ops
            if now is None or ops:  # it is not as it was known
                now = self._status_of_held()
            ops = [*self._unless_changed(now, plan(now)), *([Delete(hold.path)] if unlock else [])]
            return ops

        try:
            try:
                looked = self._tree.change(planned, hold, read_after=read_after)
            except StateError:  # which counts only if the state is still this object's business
                self._tree.commit([], hold)
                raise
        except LockLost:
            self._lose()
            raise
        self._known = self._status_after(now, ops)
        if unlock:
            self._lose()
        return looked

    def _change_of_others(self, plan: Callable[[StatusNode], Sequence[Op]]) -> None:
        """In the commit itself the lock is taken and given back: nobody else may have it."""

        def planned() -> list[Op]:
            now = self._status()
            return [Create(self._lock_path), Delete(self._lock_path), *self._unless_changed(now, plan(now))]

        self._tree.change(planned, on_conflict=self._refuse_locked)

    def _change_of_anybody(self, plan: Callable[[StatusNode], Sequence[Op]]) -> None:
        """The lock goes in the same commit, and the version of the status node changes: its holder cannot go on."""

        def planned() -> list[Op]:
            now = self._status()
            ops = list(plan(now))
            if not any(isinstance(op, Set) and op.path == self._status_path for op in ops):
                ops.append(Set(self._status_path, now.node.data, now.node.version))
            return [*([Delete(self._lock_path)] if self._tree.find(self._lock_path) else []), *ops]

        self._tree.change(planned)
        if self._hold is not None:
            self._lose()

    def _unless_changed(self, now: StatusNode, ops: Sequence[Op]) -> list[Op]:
        """These operations, with a check that the status is still the one they were planned from."""
        checked = any(isinstance(op, Set | Check) and op.path == self._status_path for op in ops)
        return list(ops) if checked else [Check(self._status_path, now.node.version), *ops]

    def _status_of_held(self) -> StatusNode:
        """The status now, of an item that this object holds.

        Raises:
            LockLost: it is not in the state that this object knows: others have moved it.
        """
        now = self._status()
        if self._known is not None and now.state is not self._known.state:
            self.unlock()
            raise LockLost(self._lock_path)
        return now

    def _status_after(self, known: StatusNode | None, ops: Sequence[Op]) -> StatusNode | None:
        """The status as this object's own commit has left it; None if it went with the commit."""
        written = [op for op in ops if isinstance(op, Set) and op.path == self._status_path]
        if known is None or not written:
            return known
        node = known.node._replace(data=written[0].data, version=known.node.version + 1)
        return self.status_of(node)

    def _refuse_locked(self, conflict: Conflict) -> None:
        if conflict.path == self._lock_path and conflict.reason is ConflictReason.EXISTS:
            raise ItemLocked(self._lock_path)

    def _lose(self) -> None:
        self._hold, self._known, self._held_before = None, None, True

    def _moved(self, now: StatusNode, after: Any, message: str) -> list[Op]:
        """The operations of a move."""
        return [self._set_status(now, self._next(now, after, message))]

    def _next(self, now: StatusNode, after: Any, message: str) -> dict[str, Any]:
        """The status node's values after a move."""
        modified = now.values.get("last_modified") if after == now.state else self._tree.now()
        return {"status": after.value, "last_modified": modified, "message": message}

    def _set_status(self, now: StatusNode, values: dict[str, Any]) -> Set:
        return Set(self._status_path, encode_node(self._status_path, values), now.node.version)

    def _status(self) -> StatusNode:
        return self.status_of(self._tree.get(self._status_path))

    def status_of(self, node: StoredNode | None) -> StatusNode:
        """Decode a status node that was read elsewhere.

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
        """Does this object hold the lock, for all that is known here? False as soon as the session has ended: stop."""
        return self._hold is not None and self._tree.store.is_alive(self._hold.session)

    def lock(self) -> bool:
        """Lock it. False if anybody holds it, this process too.

        Raises:
            NodeInvalid: it was removed.
        """
        try:
            status, *_ = self._take()
        except Conflict as e:
            if e.reason is ConflictReason.EXISTS:
                return False
            raise NodeInvalid(self.path, "is not there") from None
        with suppress(NodeInvalid):  # a damaged one can be locked, and not moved
            self._known = self.status_of(status)
        return True

    def unlock(self) -> None:
        """Give the lock back. An object that does not hold it changes nothing."""
        hold = self._hold
        if hold is None:
            return
        self._lose()

        def planned() -> list[Op]:
            status = self._tree.find(self._status_path)
            return [*([Check(self._status_path, status.version)] if status else []), Delete(hold.path)]

        with suppress(LockLost):  # it went before: with the session, with the item, or an operator took it away
            self._tree.change(planned, hold)

    def revoke(self) -> bool:
        """Take the lock away from whoever works at it, who cannot change anything from then on. Was it locked?

        Raises:
            NodeInvalid: it was removed, or is damaged.
        """
        was_locked = self._tree.find(self._lock_path) is not None
        self._change(lambda now: [], revoke=True)
        return was_locked

    def acquire(self, state: Any, *checks: Op, read_after: Sequence[str] = ()) -> list[StoredNode | None] | None:
        """Lock it if nobody holds it and ``checks`` hold, and keep the lock if it is in this state then.

        Returns the nodes at ``read_after``, read under the lock; None if it is not ours.

        Raises:
            NodeInvalid: it is damaged; it is not locked.
        """
        try:
            status, *looked = self._take(*checks, read_after=read_after)
        except Conflict:
            return None
        try:
            self._known = self.status_of(status)
        finally:
            if self._known is None or self._known.state is not state:
                self.unlock()
        return looked if self._hold else None

    def _take(self, *checks: Op, read_after: Sequence[str] = ()) -> list[StoredNode | None]:
        """Take the lock; returns the status node and those at ``read_after``, read under it."""
        hold, found = self._tree.lock(self._lock_path, *checks, read_after=[self._status_path, *read_after])
        self._hold, self._known = hold, None
        return found

    def _refuse_unless_final(self, now: StatusNode) -> None:
        if now.state not in self.table.final:
            raise StateError(now.state, "removed")

    def delete(self) -> None:
        """Remove it, with its entries in all lists.

        Raises:
            StateError: it is in no final state, or somebody works at it.
            NodeInvalid: it was removed, or is damaged.
        """

        def plan(now: StatusNode) -> list[Op]:
            self._refuse_unless_final(now)
            return self._gone(now)

        self._change(plan)
        self._hold = None

    def _gone(self, now: StatusNode) -> list[Op]:
        """Return the operations that remove its node and all below, unless somebody moves it meanwhile."""
        inside = self._tree.store.children(self.path)
        return [
            Check(self._status_path, now.node.version),
            *(Delete(f"{self.path}/{name}") for name in inside),
            Delete(self.path),
        ]


# An access request: a bundle of delivered originals that somebody waits for.


class Assembly(Item):
    """A request in the queue of small or of large ones."""

    table: ClassVar[Transitions[Any]] = ACCESS

    def __init__(self, tree: NodeTree, size: str, id: str) -> None:
        super().__init__(tree, id)
        self.size = size

    @property
    def path(self) -> str:
        return access_path(self.size, self.id)

    @property
    def token(self) -> dict[str, Any]:
        """Return the request and, once the bundle is ready, its place."""
        return self._tree.json(f"{self.path}/token")

    def set_token(self, token: Mapping[str, Any]) -> None:
        """Replace it: a new expected time, the URL of what lies ready."""
        path = f"{self.path}/token"
        data = encode_node(path, dict(token))
        self._change(lambda now: [Set(path, data)])

    def load(self) -> Assembly:
        """Read it.

        Raises:
            NodeInvalid: a node is missing or malformed.
        """
        self._status()
        _ = self.token
        return self


def creation(path: str, token: Mapping[str, Any], now: str) -> list[Op]:
    """The nodes of a new request."""
    status = {"status": AccessState.PENDING.value, "last_modified": now, "message": ""}
    return [
        Create(path, numbered=True),
        Create(f"{path}/token", encode_node(f"{path}/token", dict(token))),
        Create(f"{path}/status", encode_node(f"{path}/status", status)),
    ]


# What a batch's report says: which jobs are delivered, which have failed, and why.

LISTED_MAX: Final = 20_000
"""Jobs that a report's node names one by one: 16 bytes each keep it below what a node may hold. More are written as
spans of their numbers, ``jid0000000001..jid0000020000``."""


@dataclass(frozen=True)
class Report:
    """The jobs of a batch that are done with."""

    batch_id: str
    completed: tuple[str, ...]
    failed: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Messages of failed jobs, from each one's last move."""

    def kept(self, now: str) -> dict[str, Any]:
        """Return the report as stored in the batch's ``status-report``."""
        return {"last_modified": now, "failed_jobs": spans(self.failed), "successful_jobs": spans(self.completed)}

    def since(self, kept: Mapping[str, Any] | None) -> Report:
        """Return the part of the report that the stored one does not contain. Empty: nobody has to be notified."""
        if kept is None:
            return self
        failed, completed = set(named(kept.get("failed_jobs"))), set(named(kept.get("successful_jobs")))
        newly = tuple(job for job in self.failed if job not in failed)
        return Report(
            self.batch_id,
            tuple(job for job in self.completed if job not in completed),
            newly,
            {job: why for job, why in self.reasons.items() if job in newly},
        )

    def __bool__(self) -> bool:
        return bool(self.completed or self.failed)


def spans(jobs: Iterable[str]) -> list[str]:
    """Ids of jobs as a report's node has them."""
    ids = sorted(jobs)
    if len(ids) <= LISTED_MAX:
        return ids
    found: list[list[int]] = []
    for job in ids:
        number = number_of(job) or 0
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [
        numbered_name("jid", first) if first == last else f"{numbered_name('jid', first)}..{numbered_name('jid', last)}"
        for first, last in found
    ]


def named(listed: object) -> Iterable[str]:
    """The ids that a report's node names."""
    for text in listed if isinstance(listed, list) else []:
        first, _, last = str(text).partition("..")
        if not last:
            yield first
            continue
        for number in range(number_of(first) or 0, (number_of(last) or -1) + 1):
            yield numbered_name("jid", number)
