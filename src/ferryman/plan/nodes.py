"""The nodes of a plan: frozen data, one class a kind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from ferryman import limits
from ferryman.destinations.base import Delivery, Destination, Effect, Guarantee, Outcome
from ferryman.document import Document, copy_value
from ferryman.errors import PermanentError
from ferryman.remembered import Remember
from ferryman.routers import Router
from ferryman.sources.base import Source
from ferryman.sources.exports import Exports

StepFunction = Callable[..., Any]
"""Function of a step. It takes a document and returns a document (which continues), None (DROPPED), or an iterable of
the document and its children (all of which continue). With ``batch``: takes a list of documents, returns as many
answers. With ``arrow``: takes and returns a record batch. May be ``async``."""


class RetryLimits(NamedTuple):
    """Limits for retrying errors.

    Attributes:
        attempts: maximum number of attempts; with ``patience_s``, those that end in a transient error do not count.
        patience_s: seconds for which transient errors are retried, counted from the first one; None: all errors count
            as attempts.
    """

    attempts: int
    patience_s: float | None

    def is_exhausted(self, attempt: int, transient: int, waited_s: float | None) -> bool:
        """Return whether this failed attempt was the last one.

        Args:
            attempt: its number, from 1.
            transient: number of attempts so far that ended in a transient error.
            waited_s: seconds since the first transient error, if this one is transient; else None.
        """
        if self.patience_s is None:
            return attempt >= self.attempts
        if waited_s is None:
            return attempt - transient >= self.attempts
        return waited_s >= self.patience_s and transient >= limits.PATIENCE_TRIES


@dataclass(frozen=True, slots=True)
class Policy:
    """How deliveries to a destination are made and retried.

    Attributes:
        guarantee: what a kill may do to a delivery in flight.
        attempts: attempts of a delivery before it is DEAD; with ``patience_s``, those that end in a transient error do
            not count.
        patience_s: seconds for which transient errors are retried; None: they count as attempts like all others.
        backoff: seconds to wait at most after the n-th failed attempt (the wait is uniform below it); None: 1 s × 4ⁿ.
        batch: rows per chunk at most.
        batch_bytes: bytes per chunk at most (one larger row is a chunk of its own).
        deletes: whether documents deleted at the source are deleted at the destination.
        stale: when what a new version no longer makes is deleted: "hold": once all that it makes was delivered;
            "delete": whatever becomes of that.
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
    stale: str = "hold"
    send_timeout: float = limits.SEND_TIMEOUT_S
    lanes: int | None = None

    @property
    def limits(self) -> RetryLimits:
        """Return the limits for errors of the destination itself."""
        return RetryLimits(self.attempts, self.patience_s)

    @property
    def longest_backoff_s(self) -> float:
        """Return the upper bound of the wait after any attempt, seconds."""
        return max(limits.BACKOFF_MAX_S, *(self.backoff or (0.0,)))

    def longest_wait_s(self, attempt: int, *, patient: bool = False) -> float:
        """Return the upper bound of the wait after attempt number ``attempt`` (from 1), seconds.

        Args:
            patient: attempts are not limited in number: after many of them the wait is not shorter than the default,
                whatever ``backoff`` says.
        """
        default = limits.BACKOFF_FIRST_S * limits.BACKOFF_FACTOR ** min(attempt - 1, 32)
        default = min(limits.BACKOFF_MAX_S, default)
        if not self.backoff:
            return default
        wait = self.backoff[min(attempt, len(self.backoff)) - 1]
        return max(wait, default) if patient and attempt >= limits.PATIENCE_TRIES else wait


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a plan: a name, unique in the plan, and the names of the nodes that it follows."""

    name: str
    after: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return the kind of node, as the glossary calls it: ``source``, ``step``, ``router``, ``tee``, …"""
        return type(self).__name__.removesuffix("Node").lower()


@dataclass(frozen=True, slots=True)
class CalledNode(Node):
    """A node that is called for each document before the commit, with its policy for errors.

    Attributes:
        brake: number of consecutive failing documents after which the node itself counts as broken; None: it never
            does.
        patience_s: how long transient errors are tried again.
        attempts: number of tries, whatever the error; None: as the policy of the destination says.
    """

    brake: int | None = field(default=limits.BRAKE, kw_only=True)
    patience_s: float = field(default=limits.PATIENCE_S, kw_only=True)
    attempts: int | None = field(default=None, kw_only=True)

    def limits(self, policy: Policy) -> RetryLimits:
        """Return the limits for errors of this node, for deliveries to a destination with this policy; the node's own
        ``attempts`` take precedence."""
        if self.attempts is not None:
            return RetryLimits(self.attempts, None)
        return RetryLimits(policy.attempts, None if policy.patience_s is None else self.patience_s)


@dataclass(frozen=True, slots=True)
class SourceNode(CalledNode):
    source: Source = field(kw_only=True)

    @property
    def entry(self) -> str:
        """Return the name of the node at which its documents enter the graph."""
        return self.name


@dataclass(frozen=True, slots=True)
class JoinNode(SourceNode):
    """A join: makes one document of one entry of each of several logs. Its source reads all of them."""

    fn: StepFunction = field(kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class AltsNode(SourceNode):
    """An alts node: takes the entries of several logs in turns. Its source reads all of them."""


@dataclass(frozen=True, slots=True)
class Depends:
    """Values that a step's answers depend on, by name, for the driver alone: they are not sent to the workers."""

    values: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return Depends, ({},)


@dataclass(frozen=True, slots=True)
class StepNode(CalledNode):
    """A function of documents.

    Attributes:
        batch: largest number of documents in a call; None: one, unless ``arrow``.
        batch_bytes: largest size of the documents in a call; a larger document comes alone. None: any.
        weight: size of a document for ``batch_bytes``; None: its bytes.
        arrow: it is called with a record batch.
        concurrency: largest number of calls under way at once in a task.
        rate: calls of the whole run, as ``limits.per_second`` parses it; None: no limit.
        needs: capabilities that a machine must have to run it, see ``local_capabilities``.
        nan: what NaN and the infinite numbers in fields are: an error of the document ("reject"), or "null".
        depends: what its answers depend on besides its code.
        remember: how its answers are remembered; None: they are not.
    """

    fn: StepFunction = field(kw_only=True)
    batch: int | None = field(default=None, kw_only=True)
    batch_bytes: int | None = field(default=None, kw_only=True)
    weight: Callable[[Document], float] | None = field(default=None, kw_only=True)
    arrow: bool = field(default=False, kw_only=True)
    concurrency: int = field(default=1, kw_only=True)
    rate: str | float | None = field(default=None, kw_only=True)
    effect: Effect = field(default=Effect.SAFE, kw_only=True)
    mutates: bool = field(default=True, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    needs: frozenset[str] = field(default=frozenset(), kw_only=True)
    nan: str = field(default="reject", kw_only=True)
    depends: Depends = field(default_factory=lambda: Depends({}), kw_only=True)
    remember: Remember | None = field(default=None, kw_only=True)

    @property
    def rows(self) -> int:
        """Return the largest number of documents in a call."""
        return self.batch or (limits.ARROW_ROWS if self.arrow else 1)

    @property
    def in_batches(self) -> bool:
        """Return whether the step is called with several documents, or with a list of one."""
        return self.arrow or self.batch is not None

    @property
    def is_concurrent(self) -> bool:
        """Return whether the step may work on several documents at once."""
        return self.rows > 1 or self.concurrency > 1

    @property
    def call_timeout_s(self) -> float | None:
        """Return the seconds that a call may take: ``timeout``, or the default of a ready-made step; None: no limit."""
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
    """Whether the document continues to the next nodes, regardless of its delivery here."""
    errors: bool = field(default=False, kw_only=True)
    """Whether it is the error queue: it follows no node, and receives a message about each permanent failure in the
    plan."""

    @property
    def kind(self) -> str:
        return "tee" if self.tee else "destination"


def remembering_steps(nodes: Iterable[Node]) -> list[StepNode]:
    """Return the steps that remember, in plan order."""
    return [n for n in nodes if isinstance(n, StepNode) and n.remember is not None]


# Capabilities of machines that steps may need: a graphics card, a licence. Each machine names its own in its
# environment.

CAPABILITIES_VARIABLE: Final = "FERRYMAN_HAS"
"""Environment variable of an executor: names of its capabilities, separated by commas."""

_CAPABILITY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def capability_names(value: Any) -> frozenset[Any]:
    """Return the capabilities given as one name, several, or None; values that are not names are kept for ``check``."""
    if value is None:
        return frozenset()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return frozenset([value])
    return frozenset(value)


def is_capability_name(value: object) -> bool:
    """Return whether a value can name a capability: letters, digits and ``-_.``, such as "gpu"."""
    return isinstance(value, str) and _CAPABILITY_NAME.match(value) is not None


def local_capabilities() -> frozenset[str]:
    """Return the capabilities of this machine, which ``needs=`` asks for."""
    return frozenset(name for part in os.environ.get(CAPABILITIES_VARIABLE, "").split(",") if (name := part.strip()))


def join_names(value: Iterable[str]) -> str:
    """Join names for a message."""
    return " and ".join(sorted(value))


# A combiner as the update of a keyed node.

Combiner = Callable[[str, list[Any]], Any]
"""Function: (key, values) -> one value for all of them; None: the key has no state any more."""

Value = str | Callable[[Document], Any]
"""Value of a document for a combiner: a field's name, or a function of the document."""


@dataclass(frozen=True)
class Combining:
    """Update function that combines the values of a wave's documents, then combines the result with the state, and
    exports the change, if any."""

    combiner: Combiner
    value: Value | None
    inverse: Callable[[Any], Any] | None = None

    def __call__(self, key: str, state: Any, documents: list[Document]) -> tuple[Any, dict[str, Any] | None]:
        new = self.combiner(key, self._values_of(documents))
        if state is not None and new is not None:
            new = self.combiner(
                key, [copy_value(state), new]
            )  # it may change its first argument in place and return it
        elif new is None:
            new = state
        if new == state:
            return new, None
        return new, {"key": key, "old": state, "new": new}

    def _values_of(self, documents: list[Document]) -> list[Any]:
        """Return of each document the value that undoes its former value, if there was one, and its new value."""
        values = []
        for doc in documents:
            if doc.previous is not None and self.inverse is not None:
                values.append(self.inverse(self._value_of(Document.of(doc.id, doc.previous))))
            if doc.operation == "upsert":
                values.append(self._value_of(doc))
        return values

    def _value_of(self, doc: Document) -> Any:
        if self.value is None:
            return 1
        if callable(self.value):
            return self.value(doc)
        try:
            return doc.fields[self.value]
        except KeyError:
            raise PermanentError(f"the document has no field {self.value!r}, which is to be its value") from None


# Nodes that keep state by key: a destination for what comes in, a source for what they export.

UpdateFunction = Callable[[str, Any, list[Document]], Any]
"""Function: (key, state, documents) -> (new state, exports)."""

Key = str | Callable[[Document], str]
"""Key of a document: a field's name, or a function of the document."""


class KeyedState(Destination):
    """Placeholder destination of a keyed node: the engine groups its deliveries by key instead of sending them."""

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
        buckets: number of ranges that keys are hashed to; one task at a time works on each.
        buffer_bytes: largest size of the documents in one call of ``update``; a larger document comes alone.
        brake: number of failing calls without a success in a task after which ``update`` itself counts as broken.
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
        """Return the document's key.

        Raises:
            PermanentError: it has none, or one that cannot be a key.
        """
        if callable(self.key):
            return validate_key(self.key(doc), "the function key=")
        if self.key not in doc.fields:
            raise PermanentError(f"{self.name}: the document has no field {self.key!r}, which is to be its key")
        return validate_key(doc.fields[self.key], f"the field {self.key!r}")


SHORT_KEY: Final = limits.KEY_BYTES // 4
"""Characters of a key that is not too long, whatever they are."""


def validate_key(value: Any, origin: str) -> str:
    """Return the key if it can be stored.

    Args:
        origin: where it came from, for the message.

    Raises:
        PermanentError: it is not text, or too long.
    """
    if not isinstance(value, str):
        raise PermanentError(f"{origin} gives a {type(value).__name__}: a key is text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise PermanentError(
            f"{origin} gives text with half a character (a lone surrogate), which cannot be kept"
        ) from None
    if size > limits.KEY_BYTES:
        most = limits.format_count(limits.KEY_BYTES)
        raise PermanentError(f"{origin} gives a key of {limits.format_count(size)} bytes: a key has {most} at most")
    return value


def keyed_nodes(nodes: Iterable[Node]) -> list[KeyedNode]:
    """Return the keyed nodes in plan order."""
    return [n for n in nodes if isinstance(n, KeyedNode)]


def sources_of(nodes: Sequence[Node]) -> list[SourceNode]:
    """Return all sources: those that the plan names, and the exports of keyed nodes that have successors."""
    followed = {name for node in nodes for name in node.after}
    sources: list[SourceNode] = []
    for node in nodes:
        if isinstance(node, SourceNode):
            sources.append(node)
        elif isinstance(node, KeyedNode) and node.name in followed:
            sources.append(node.exports)
    return sources


def find_source(nodes: Sequence[Node], name: str) -> SourceNode:
    """Return the source of this name; for a keyed node its exports."""
    return next(n for n in sources_of(nodes) if n.name == name)


def exports_node(name: str) -> ExportsNode:
    """Return the source of the exports of the keyed node of this name."""
    return ExportsNode(name, source=Exports())
