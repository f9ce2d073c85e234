"""Who calls an ``update``: this process, or a child of it once a worker has died over one.

In a child a call that ends its process costs nothing but the child. It is made again with half of its documents, until
the one stands alone that does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from ferryman.document import Document
from ferryman.engine.keyed.exported import Export, returned
from ferryman.engine.runner.child import Child, Died, TooLong
from ferryman.engine.transform.node_errors import StepTimeout
from ferryman.engine.transform.time_limit import can_interrupt, limited
from ferryman.errors import PermanentError
from ferryman.plan import KeyedNode

Returned = tuple[str | None, list[Export]]
"""The new state as JSON, None if there is none, and the exports."""

_decode = msgspec.json.decode


class UpdateCaller(Protocol):
    """Calls an ``update``."""

    def call(self, key: str, value: str | None, documents: Sequence[Document]) -> Returned:
        """What it returns, checked; what it raises is raised here.

        Args:
            value: the state as JSON; None: there is none.

        Raises:
            StepTimeout: it took longer than ``timeout=``.
            PermanentError: it has returned what it may not, or it ends its process over this one document.
        """
        ...

    def end(self) -> None:
        """No more calls."""


class DirectCaller:
    """Calls it in this process."""

    def __init__(self, node: KeyedNode) -> None:
        self._node = node
        self._timeout_s = node.timeout if can_interrupt() else None

    def call(self, key: str, value: str | None, documents: Sequence[Document]) -> Returned:
        """See ``UpdateCaller.call``."""
        state = None if value is None else _decode(value)
        if self._timeout_s is None:
            return returned(key, self._node.update(key, state, [*documents]))
        with limited(self._timeout_s, _too_long(self._node)):
            given = self._node.update(key, state, [*documents])
            return returned(key, given)  # exports may be made as they are asked for

    def end(self) -> None:
        """Nothing is left."""


class ChildCaller:
    """Calls it in a child process."""

    def __init__(self, node: KeyedNode) -> None:
        self._node = node
        self._child = Child(partial(_update, node))

    def call(self, key: str, value: str | None, documents: Sequence[Document]) -> Returned:
        """See ``UpdateCaller.call``."""
        attempts = self._node.policy.attempts if len(documents) == 1 else 1
        for _ in range(attempts):
            try:
                found: Returned = self._child.ask((key, value, [*documents]), self._node.timeout)
                return found
            except TooLong:
                raise StepTimeout(_too_long(self._node)) from None
            except Died as e:
                death = e
        raise PermanentError(death.said(attempts, size=sum(len(doc.raw or b"") for doc in documents)))

    def end(self) -> None:
        """No more calls."""
        self._child.end()


def _update(node: KeyedNode, request: tuple[str, str | None, list[Document]]) -> Any:  # pragma: no cover - the child
    key, value, documents = request
    return returned(key, node.update(key, None if value is None else _decode(value), documents))


def _too_long(node: KeyedNode) -> str:
    return f"it took longer than timeout={node.timeout:g} s"
