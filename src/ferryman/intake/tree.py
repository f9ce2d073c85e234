"""The tree as items use it: reading with clear errors, and changes that are planned again when others were faster."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferryman.errors import plain_text
from ferryman.intake.errors import LockLost, NodeInvalid
from ferryman.intake.nodes import decoded, time_text
from ferryman.intake.store import Check, Conflict, Create, Op, SessionLost, Store, StoredNode, Why

TRIES: Final = 60
"""Plans of one change before it is given up: others may be faster a few times, but not this often by chance."""

PAUSE_MAX_S: Final = 0.03
"""Longest pause between two plans: a few times as long as another's change takes."""

MESSAGE_CHARS_MAX: Final = 4000
"""Of a status's message: what a user reads; a longer one is cut."""


@dataclass(frozen=True)
class Hold:
    """A lock that an object holds, and the session that it lives with.

    ``creation`` is the owner's token: a lock that was taken away and made again is another one, also if the same
    process made both.
    """

    path: str
    session: int
    creation: int


class NodeTree:
    """A store, the time, and which folders are known to be there."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.clock = clock
        self._folders: set[str] = set()

    def now(self) -> str:
        """The time as it is written in nodes."""
        return time_text(self.clock())

    # --- reading ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> StoredNode | None:
        return self.store.read([path])[0]

    def get(self, path: str) -> StoredNode:
        """A node.

        Raises:
            NodeInvalid: it is not there.
        """
        found = self.find(path)
        if found is None:
            raise NodeInvalid(path, "is not there")
        return found

    def json(self, path: str) -> dict[str, Any]:
        """The object in a node.

        Raises:
            NodeInvalid: it is not there, or holds something else.
        """
        return decoded(path, self.get(path).data)

    def missing(self, folders: Iterable[str]) -> list[Op]:
        """What makes those of these folders that are not there, each after the one it is in."""
        unknown = [path for path in folders if path not in self._folders]
        found = self.store.read(unknown) if unknown else []
        self._folders.update(path for path, node in zip(unknown, found, strict=True) if node)
        return [Create(path) for path, node in zip(unknown, found, strict=True) if node is None]

    # --- changes ------------------------------------------------------------------------------------------------------

    def change(
        self,
        plan: Callable[[], Sequence[Op]],
        hold: Hold | None = None,
        session: int | None = None,
        unless: Callable[[Conflict], None] = lambda conflict: None,
        look: Sequence[str] = (),
    ) -> list[StoredNode | None]:
        """Commit what ``plan`` makes of the tree as it is. If another was faster, it is asked again.

        Returns the nodes at ``look``, as they are after it.

        ``hold``: only as long as this lock is held; ``session``: only as long as this session lives. ``unless`` is told
        why it could not be, and may raise instead of another try.

        Raises:
            LockLost: it is not held any more; nothing was changed.
            SessionLost: ``session`` has ended; nothing was changed.
            NodeInvalid: the tree does not fit the plan, however often it was made: it is damaged.
        """
        for tried in range(TRIES):
            if tried:
                time.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.001 * 2**tried)))
                self._folders.clear()
            ops = list(plan())
            try:
                if session is None:
                    return self.commit(ops, hold, look)
                return self.store.commit(ops, session=session, look=look)
            except Conflict as e:
                unless(e)
                refused = e
        raise NodeInvalid(refused.path, f"is {refused.why.value}, which does not fit the nodes around it")

    def commit(self, ops: list[Op], hold: Hold | None = None, look: Sequence[str] = ()) -> list[StoredNode | None]:
        """Do all of it or nothing. Returns the nodes at ``look``, as they are after it.

        Raises:
            Conflict: the tree is not as these operations expect.
            LockLost: ``hold`` is not held any more.
        """
        if hold is None:
            return self.store.commit(ops, look=look)
        try:
            return self.store.commit([Check(hold.path, creation=hold.creation), *ops], session=hold.session, look=look)
        except SessionLost:
            raise LockLost(hold.path) from None
        except Conflict as e:
            if e.index == 0:
                raise LockLost(hold.path) from None
            raise

    def lock(self, path: str, *checks: Op, look: Sequence[str] = ()) -> tuple[Hold, list[StoredNode | None]]:
        """Make a lock that lives with this session. Returns it, and the nodes at ``look`` as they are under it.

        Raises:
            Conflict: it is held (``index`` 0), or a check did not hold.
        """
        while True:
            session = self.store.session()
            try:
                lock, *found = self.store.commit(
                    [Create(path, ephemeral=True), *checks], session=session, look=[path, *look]
                )
            except SessionLost:
                continue  # it ended just now: in the next one
            if lock is None or lock.owner != session:  # it was taken away before we saw it
                raise Conflict(0, path, Why.EXISTS)
            return Hold(path, session, lock.creation), found

    def next_number(self, folder: str) -> int:
        """The number that the next numbered child of a folder gets, unless another is faster."""
        return self.get(folder).numbered


def message_text(message: object) -> str:
    """A message as it may be stored."""
    text = plain_text(message)
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"


def below(paths: Iterable[str]) -> list[str]:
    """Paths in an order in which they can be removed: what is in a folder before the folder."""
    return sorted(paths, key=lambda path: path.count("/"), reverse=True)
