"""What batches, jobs and access requests have in common: an id, a status, a lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from ferryman.errors import plain_text
from ferryman.intake.errors import NodeInvalid, StateError
from ferryman.intake.nodes import decoded, encoded
from ferryman.intake.states import Transitions
from ferryman.intake.store import Check, Conflict, Delete, Op, SessionLost, Set, StoredNode, Why
from ferryman.intake.tree import Hold, NodeTree, message_text


class StatusNode(NamedTuple):
    """A status node as it was read."""

    node: StoredNode
    values: dict[str, Any]
    state: Any
    """Of the item's own table."""


class Item:
    """A thing of the queue. Its properties are read from the queue each time: what another process changes is seen.

    One that was acquired is locked; an unlocked one may be changed too. A change through an object that holds its lock
    takes effect only while it holds it.
    """

    table: ClassVar[Transitions[Any]]

    def __init__(self, tree: NodeTree, id: str) -> None:
        self._tree = tree
        self.id = id
        self._hold: Hold | None = None
        self._seen: StatusNode | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def path(self) -> str:
        """Its node."""
        raise NotImplementedError

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
        """Is it in a final state, so that ``delete`` may remove it?"""
        return self._status().state in self.table.final

    def set_status(self, status: str, message: str = "") -> None:
        """Move to another state. In the state it has already, only the message changes.

        Raises:
            StateError: the table does not have this move; nothing is changed.
            NodeInvalid: it was removed, or is damaged.
            LockLost: this object held its lock, and lost it; nothing is changed.
        """
        self._move(lambda now: self._named(now, status), message)

    def success(self, message: str = "") -> None:
        """Move to the state that follows when the work of this one is done. Raises as ``set_status``."""
        self._move(lambda now: self.table.succeeded(now.state), message)

    def fail(self, message: str = "") -> None:
        """Move to the state that follows when the work of this one has failed. Raises as ``set_status``."""
        self._move(lambda now: self.table.failed(now.state), message)

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

    def _move(self, choose: Callable[[StatusNode], Any], message: str, *, unlock: bool = False, **how: Any) -> None:
        """Plan the move from what was seen under the lock; if that is not so any more, look, and plan again.

        ``choose`` gives the state after, or raises. ``unlock``: the lock goes in the same commit. ``how`` is for
        ``_moved``.
        """
        seen = self._seen if self._hold else None
        text = message_text(message)

        def plan() -> list[Op]:
            nonlocal seen
            now, seen = seen, None
            if now is not None:
                with suppress(StateError):  # it may follow from what is there now
                    return self._moved(now, choose(now), text, **how)
            now = self._status()
            return self._moved(now, choose(now), text, **how)

        def unlocking() -> list[Op]:
            return [*plan(), Delete(self._hold.path)] if self._hold else plan()

        try:
            self._tree.change(unlocking if unlock else plan, self._hold)
        finally:
            self._seen = None
        if unlock:
            self._hold = None

    def _moved(self, now: StatusNode, after: Any, message: str) -> list[Op]:
        """The operations of a move."""
        return [self._set_status(now, self._next(now, after, message))]

    def _next(self, now: StatusNode, after: Any, message: str) -> dict[str, Any]:
        """The status node's values after a move."""
        modified = now.values.get("last_modified") if after == now.state else self._tree.now()
        return {"status": after.value, "last_modified": modified, "message": message}

    def _set_status(self, now: StatusNode, values: dict[str, Any]) -> Set:
        path = f"{self.path}/status"
        return Set(path, encoded(path, values), now.node.version)

    def _status(self) -> StatusNode:
        return self._status_of(self._tree.get(f"{self.path}/status"))

    def _status_of(self, node: StoredNode | None) -> StatusNode:
        path = f"{self.path}/status"
        if node is None:
            raise NodeInvalid(path, "is not there")
        values = decoded(path, node.data)
        try:
            state = self.table.states(values.get("status"))
        except ValueError:
            raise NodeInvalid(path, f"does not name a state, but {values.get('status')!r}") from None
        self._seen = StatusNode(node, values, state)
        return self._seen

    def state_of(self, node: StoredNode | None) -> Any:
        """The state that its status node, read elsewhere, names.

        Raises:
            NodeInvalid: it was removed, or is damaged.
        """
        return self._status_of(node).state

    # --- lock ---------------------------------------------------------------------------------------------------------

    @property
    def locked(self) -> bool:
        """Does this object hold the lock, for all that is known here? False as soon as the session has ended: stop."""
        return self._hold is not None and self._tree.store.alive(self._hold.session)

    def lock(self) -> bool:
        """Lock it. False if anybody holds it, this process too.

        Raises:
            NodeInvalid: it was removed.
        """
        try:
            self._hold, _ = self._tree.lock(f"{self.path}/lock")
        except Conflict as e:
            if e.why is Why.EXISTS:
                return False
            raise NodeInvalid(self.path, "is not there") from None
        return True

    def unlock(self) -> None:
        """Give the lock back. If this process does not hold it, nothing happens."""
        hold, self._hold = self._hold, None
        store = self._tree.store
        if hold is None:
            found = self._tree.find(f"{self.path}/lock")
            if found is None or not store.alive(found.owner):
                return
            hold = Hold(f"{self.path}/lock", found.owner)
        try:
            store.commit([Delete(hold.path)], session=hold.session)
        except (Conflict, SessionLost):
            return  # it went before: with the session, or with the item

    def acquire(self, state: Any, *checks: Op, look: Sequence[str] = ()) -> list[StoredNode | None] | None:
        """Lock it if nobody holds it and ``checks`` hold, and keep the lock if it is in this state then.

        Returns the nodes at ``look``, read under the lock; None if it is not ours.

        Raises:
            NodeInvalid: it is damaged; it is not locked.
        """
        paths = [f"{self.path}/status", *look]
        try:
            self._hold, (status, *looked) = self._tree.lock(f"{self.path}/lock", *checks, look=paths)
        except Conflict:
            return None
        kept = False
        try:
            kept = self._status_of(status).state == state
        finally:
            if not kept:
                self.unlock()
        return looked if kept else None

    def _refuse_unless_final(self, now: StatusNode) -> None:
        if now.state not in self.table.final:
            raise StateError(now.state, "removed")

    def delete(self) -> None:
        """Remove it, with its entries in all lists.

        Raises:
            StateError: it is in no final state.
            NodeInvalid: it was removed, or is damaged.
        """

        def plan() -> list[Op]:
            now = self._status()
            self._refuse_unless_final(now)
            return self._gone(now)

        self._tree.change(plan, self._hold)
        self._hold = None

    def _gone(self, now: StatusNode) -> list[Op]:
        """What removes its node and all in it, if nobody moves it meanwhile."""
        inside = self._tree.store.children(self.path)
        return [
            Check(f"{self.path}/status", now.node.version),
            *(Delete(f"{self.path}/{name}") for name in inside),
            Delete(self.path),
        ]
