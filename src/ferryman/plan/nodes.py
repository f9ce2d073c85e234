"""The nodes of a plan: frozen data, one class a kind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from ferryman import limits
from ferryman.destinations.base import Delivery, Destination, Effect, Guarantee, Outcome
from ferryman.document import Document, copied
from ferryman.errors import PermanentError
from ferryman.routers import Router
from ferryman.sources.base import Source
from ferryman.sources.exports import Exports

StepFunction = Callable[..., Any]
"""Document -> Document (goes on), None (DROPPED), or an iterable of the document and its children (each goes on); with
``batch`` a list of documents -> as many answers; with ``arrow`` a record batch -> a record batch. Also ``async``."""


class Limits(NamedTuple):
    """How long errors are tried again.

    Attributes:
        attempts: tries; where there is patience, of errors that are not transient by their own word.
        patience_s: how long, from the first one on, transient errors are tried again; None: ``attempts`` count all.
    """

    attempts: int
    patience_s: float | None

    def passed(self, attempt: int, transient: int, waited_s: float | None) -> bool:
        """Was this failed attempt the last one?

        Args:
            attempt: its number, from 1.
            transient: how many of these ended in a transient error.
            waited_s: seconds since the first transient error, if this one is transient; else None.
        """
        if self.patience_s is None:
            return attempt >= self.attempts
        if waited_s is None:
            return attempt - transient >= self.attempts
        return waited_s >= self.patience_s and transient >= limits.PATIENCE_TRIES


@dataclass(frozen=True, slots=True)
class Policy:
    """How a destination is delivered to.

    Attributes:
        guarantee: what a kill may do to a delivery in flight.
        attempts: tries a delivery gets before it is DEAD; of errors that nobody anticipated, where there is patience.
        patience_s: how long transient errors are tried again; None: ``attempts`` are all that there are.
        backoff: seconds to wait at most after the n-th failed attempt (the wait is uniform below it); None: 1 s × 4ⁿ.
        batch: rows a chunk at most.
        batch_bytes: bytes a chunk at most (one larger row is a chunk of its own).
        deletes: False: documents deleted at the source stay there.
        send_timeout: seconds that a call of it may take.
        lanes: tasks that write to it at once, at most; None: as many as there can be.
    """

    guarantee: Guarantee
    attempts: int = limits.ATTEMPTS
    patience_s: float | None = limits.PATIENCE_S
    backoff: tuple[float, ...] | None = None
    batch: int = limits.BATCH_ROWS
    batch_bytes: int = limits.BATCH_BYTES
    deletes: bool = True
    send_timeout: float = limits.SEND_TIMEOUT_S
    lanes: int | None = None

    @property
    def limits(self) -> Limits:
        """Return the limits for errors of the destination itself."""
        return Limits(self.attempts, self.patience_s)

    @property
    def longest_backoff_s(self) -> float:
        """No wait is longer, whatever the attempt; seconds."""
        return max(limits.BACKOFF_MAX_S, *(self.backoff or (0.0,)))

    def longest_wait_s(self, attempt: int, *, patient: bool = False) -> float:
        """Upper end of the wait after attempt number ``attempt`` (from 1), seconds.

        Args:
            patient: there is no last attempt: after many the wait is not shorter than the default, whatever
                ``backoff`` says.
        """
        default = limits.BACKOFF_FIRST_S * limits.BACKOFF_FACTOR ** min(attempt - 1, 32)
        default = min(limits.BACKOFF_MAX_S, default)
        if not self.backoff:
            return default
        wait = self.backoff[min(attempt, len(self.backoff)) - 1]
        return max(wait, default) if patient and attempt >= limits.PATIENCE_TRIES else wait


@dataclass(frozen=True, slots=True)
class Node:
    """Common to all kinds: a name unique in the plan, and the names of the nodes it follows."""

    name: str
    after: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``source``, ``step``, ``router``, ``tee``, ``destination``: in the words of the glossary."""
        return type(self).__name__.removesuffix("Node").lower()


@dataclass(frozen=True, slots=True)
class CalledNode(Node):
    """One that is called for each document before the commit: what its errors mean.

    Attributes:
        brake: after errors of so many documents in a row the node itself is in trouble; None: never.
        patience_s: how long transient errors are tried again.
        attempts: tries, of whatever error; None: as the destination says.
    """

    brake: int | None = field(default=limits.BRAKE, kw_only=True)
    patience_s: float = field(default=limits.PATIENCE_S, kw_only=True)
    attempts: int | None = field(default=None, kw_only=True)

    def limits(self, policy: Policy) -> Limits:
        """Return the limits for errors of this node, for deliveries to a destination of this policy: the node's own
        ``attempts`` win."""
        if self.attempts is not None:
            return Limits(self.attempts, None)
        return Limits(policy.attempts, None if policy.patience_s is None else self.patience_s)


@dataclass(frozen=True, slots=True)
class SourceNode(CalledNode):
    source: Source = field(kw_only=True)

    @property
    def entry(self) -> str:
        """The place in the graph at which its documents come in."""
        return self.name


@dataclass(frozen=True, slots=True)
class JoinNode(SourceNode):
    """Makes one document of one entry of each of several logs. Its source reads all of them."""

    fn: StepFunction = field(kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class AltsNode(SourceNode):
    """Takes the entries of several logs in turns. Its source reads all of them."""


@dataclass(frozen=True, slots=True)
class StepNode(CalledNode):
    """A function of documents.

    Attributes:
        batch: it is called with so many documents at most; None: with one, unless ``arrow``.
        arrow: it is called with a record batch.
        concurrency: calls under way at once in a task, at most.
        rate: calls of the whole run, as ``durations.per_second`` reads it; None: as fast as it goes.
        needs: what a machine must have to run it; see ``needs.here``.
    """

    fn: StepFunction = field(kw_only=True)
    batch: int | None = field(default=None, kw_only=True)
    arrow: bool = field(default=False, kw_only=True)
    concurrency: int = field(default=1, kw_only=True)
    rate: str | float | None = field(default=None, kw_only=True)
    effect: Effect = field(default=Effect.SAFE, kw_only=True)
    mutates: bool = field(default=True, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    needs: frozenset[str] = field(default=frozenset(), kw_only=True)

    @property
    def rows(self) -> int:
        """Documents a call, at most."""
        return self.batch or (limits.ARROW_ROWS if self.arrow else 1)

    @property
    def in_batches(self) -> bool:
        """Return whether the step is called with several documents, or with a list of one."""
        return self.arrow or self.batch is not None

    @property
    def side_by_side(self) -> bool:
        """Are several documents on their way to it at once?"""
        return self.rows > 1 or self.concurrency > 1

    @property
    def limit_s(self) -> float | None:
        """Seconds that a call may take: ``timeout``, or what a ready-made step has by itself; None: any time."""
        own: float | None = getattr(self.fn, "TIMEOUT_S", None)
        return own if self.timeout is None else self.timeout


@dataclass(frozen=True, slots=True)
class RouterNode(CalledNode):
    router: Router = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class DestinationNode(Node):
    destination: Destination = field(kw_only=True)
    policy: Policy = field(kw_only=True)
    tee: bool = field(default=False, kw_only=True)
    """The document goes on, whatever becomes of its delivery here."""
    errors: bool = field(default=False, kw_only=True)
    """It follows nothing: it gets a message of each final failure in the plan."""

    @property
    def kind(self) -> str:
        return "tee" if self.tee else "destination"


# What machines have that steps may need: a graphics card, a licence. Each machine says it in its environment.

VARIABLE: Final = "FERRYMAN_HAS"
"""Names between commas, in the environment of an executor."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def names(given: Any) -> frozenset[Any]:
    """One name, several, or none; what is not a name is kept, for ``is_name`` to refuse."""
    if given is None:
        return frozenset()
    if isinstance(given, str) or not isinstance(given, Iterable):
        return frozenset([given])
    return frozenset(given)


def is_name(given: object) -> bool:
    """May something be called so? Letters, digits and ``-_.``, such as "gpu"."""
    return isinstance(given, str) and _NAME.match(given) is not None


def here() -> frozenset[str]:
    """Return what this machine offers to ``needs=``."""
    return frozenset(name for part in os.environ.get(VARIABLE, "").split(",") if (name := part.strip()))


def listed(given: Iterable[str]) -> str:
    """Names as a message has them."""
    return " and ".join(sorted(given))


# A combiner as the update of a keyed node.

Combiner = Callable[[str, list[Any]], Any]
"""(key, values) -> one value for all of them; None: the key has none any more."""

Value = str | Callable[[Document], Any]
"""A field, or a function of the document."""


@dataclass(frozen=True)
class Combining:
    """Combines the values of a wave's documents, then the result with the state; exports the change, if it is one."""

    combiner: Combiner
    value: Value | None
    inverse: Callable[[Any], Any] | None = None

    def __call__(self, key: str, state: Any, documents: list[Document]) -> tuple[Any, dict[str, Any] | None]:
        new = self.combiner(key, [value for doc in documents for value in self._values_of(doc)])
        if state is not None and new is not None:
            new = self.combiner(key, [copied(state), new])  # it may change the first of them and return that
        elif new is None:
            new = state
        if new == state:
            return new, None
        return new, {"key": key, "old": state, "new": new}

    def _values_of(self, doc: Document) -> Iterator[Any]:
        """Yield the operations that take back the old value and add the new one."""
        if doc.previous is not None and self.inverse is not None:
            yield self.inverse(self._value_of(Document.of(doc.id, doc.previous)))
        if doc.operation == "upsert":
            yield self._value_of(doc)

    def _value_of(self, doc: Document) -> Any:
        if self.value is None:
            return 1
        if callable(self.value):
            return self.value(doc)
        if self.value not in doc.fields:
            raise PermanentError(f"the document has no field {self.value!r}, which is to be its value")
        return doc.fields[self.value]


# Nodes that keep state by key: a destination for what comes in, a source for what they export.

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
    """Exports of a keyed node, as the source of the nodes after it. It has the node's name."""

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
