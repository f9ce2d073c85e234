"""An access request: a bundle of delivered originals that somebody waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ferryman.intake.item import Item
from ferryman.intake.nodes import access_path, encoded
from ferryman.intake.states import ACCESS, AccessState, Transitions
from ferryman.intake.store import Create, Op, Set
from ferryman.intake.tree import NodeTree


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
        """What was asked for, and, once it lies ready, where."""
        return self._tree.json(f"{self.path}/token")

    def set_token(self, token: Mapping[str, Any]) -> None:
        """Replace it: a new expected time, the URL of what lies ready."""
        path = f"{self.path}/token"
        data = encoded(path, dict(token))
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
        Create(f"{path}/token", encoded(f"{path}/token", dict(token))),
        Create(f"{path}/status", encoded(f"{path}/status", status)),
    ]
