"""Nodes that keep state by key: a destination for what comes in, a source for what they export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ferryman import limits
from ferryman.destinations.base import Delivery, Destination, Effect, Outcome
from ferryman.document import Document
from ferryman.errors import PermanentError
from ferryman.plan.nodes import DestinationNode, Node, SourceNode
from ferryman.sources.exports import Exports

UpdateFunction = Callable[[str, Any, list[Document]], Any]
"""(key, state, documents) -> (new state, exports)."""

Key = str | Callable[[Document], str]
"""A field, or a function of the document."""


class KeyedState(Destination):
    """The state of a keyed node, as the engine's deliveries see it. Only the engine writes it, wave by wave."""

    effect = Effect.IDEMPOTENT
    transactional = True
    in_order: ClassVar[bool] = True
    compares_sequences: ClassVar[bool] = True

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        raise NotImplementedError("a keyed node's documents are grouped by key, not sent")


@dataclass(frozen=True, slots=True)
class ExportsNode(SourceNode):
    """What a keyed node exports, as the source of what follows it. It has the node's name."""

    @property
    def entry(self) -> str:
        return f"{self.name}()"


@dataclass(frozen=True, slots=True)
class KeyedNode(DestinationNode):
    """Keeps a state for each key, and exports what follows from its changes.

    Attributes:
        update: (key, state, documents) -> (new state, exports).
        key: a field, or a function of the document.
        buckets: into so many ranges the keys are hashed; each is worked on by one task at a time.
        buffer_bytes: of documents that one call of ``update`` gets at most; a larger one comes alone.
        brake: after so many failing calls without a success in a task, ``update`` itself is broken.
        timeout: seconds that a call may take; None: any time.
        exports: the source of what follows.
    """

    update: UpdateFunction = field(kw_only=True)
    key: Key = field(kw_only=True)
    buckets: int = field(default=limits.KEY_BUCKETS, kw_only=True)
    buffer_bytes: int = field(default=limits.KEY_BUFFER_BYTES, kw_only=True)
    brake: int | None = field(default=limits.BRAKE, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    exports: ExportsNode = field(kw_only=True)

    @property
    def kind(self) -> str:
        return "keyed"

    def key_of(self, doc: Document) -> str:
        """The document's key.

        Raises:
            PermanentError: it has none, or one that cannot be a key.
        """
        if callable(self.key):
            return checked_key(self.key(doc), "the function key=")
        if self.key not in doc.fields:
            raise PermanentError(f"{self.name}: the document has no field {self.key!r}, which is to be its key")
        return checked_key(doc.fields[self.key], f"the field {self.key!r}")


def checked_key(given: Any, whose: str) -> str:
    """A key that can be kept.

    Raises:
        PermanentError: it is not text, or too long.
    """
    if not isinstance(given, str):
        raise PermanentError(f"{whose} gives a {type(given).__name__}: a key is text")
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise PermanentError(
            f"{whose} gives text with half a character (a lone surrogate), which cannot be kept"
        ) from None
    if size > limits.KEY_BYTES:
        raise PermanentError(f"{whose} gives a key of {size:,} bytes: a key has {limits.KEY_BYTES:,} at most")
    return given


def keyed_nodes(nodes: Iterable[Node]) -> list[KeyedNode]:
    """In the order of their making."""
    return [n for n in nodes if isinstance(n, KeyedNode)]


def sources_of(nodes: Sequence[Node]) -> list[SourceNode]:
    """Every source: those that the plan names, and the exports of keyed nodes that something follows."""
    followed = {name for node in nodes for name in node.after}
    found: list[SourceNode] = []
    for node in nodes:
        if isinstance(node, SourceNode):
            found.append(node)
        elif isinstance(node, KeyedNode) and node.name in followed:
            found.append(node.exports)
    return found


def source_named(nodes: Sequence[Node], name: str) -> SourceNode:
    """The source of this name; of a keyed node its exports."""
    return next(n for n in sources_of(nodes) if n.name == name)


def exports_of(name: str) -> ExportsNode:
    """The source of what a keyed node of this name exports."""
    return ExportsNode(name, source=Exports())
