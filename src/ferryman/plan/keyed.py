"""What a plan and its nodes offer to keep state by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ferryman import limits
from ferryman.destinations.base import Guarantee
from ferryman.plan.keyed_nodes import Key, KeyedNode, KeyedState, UpdateFunction, exports_of, keyed_nodes
from ferryman.plan.nodes import DestinationNode, Node, Policy, SourceNode
from ferryman.sources.log import Log

if TYPE_CHECKING:
    from ferryman.plan.plan import Handle, Plan


class KeyedPlan:
    """The part of a plan that keeps state by key."""

    def keyed(
        self,
        name: str,
        update: UpdateFunction,
        *,
        key: Key,
        after: Any = None,
        attempts: int | None = None,
        buckets: int = limits.KEY_BUCKETS,
        buffer_bytes: int = limits.KEY_BUFFER_BYTES,
        brake: int | None = limits.BRAKE,
    ) -> Handle:
        """A state for each key, and what follows from its changes. ``update(key, state, documents)`` is called with the
        documents of a wave that have this key, in their order, and returns the new state and what to export; both are
        committed together. State and exports are JSON values and documents.

        What follows this node gets the exports: documents of any id, dicts of fields (their id is the key), and
        ``Document.deletion(id)``. They go on in the order in which a key has made them.

        Args:
            update: state None: there is none. New state None: it is removed. Exports: a document, several, or None. It
                is called before the commit, perhaps more than once: it must not change anything outside.
            key: a field, or a function of the document that returns text. What raises, or has no such field, is an
                error of that document.
            after: nodes or names it follows; a name may be declared later.
            attempts: tries that a document gets of which ``update`` raises; None: 3, of transient errors for a day.
            buckets: into so many ranges keys are hashed: as many tasks at most work on them at once.
            buffer_bytes: bytes of documents that a call gets at most; what is more comes with the next call for the
                key, with the state that this one has returned. A larger document comes alone.
            brake: after so many failing calls in a task without a success ``update`` itself is in trouble: it is
                stopped, and its documents are kept. None: never.
        """
        policy = Policy(
            guarantee=Guarantee.EXACTLY_ONCE,
            attempts=limits.ATTEMPTS if attempts is None else attempts,
            patience_s=limits.PATIENCE_S if attempts is None else None,
        )
        return self._make(
            KeyedNode,
            name,
            after,
            destination=KeyedState(),
            policy=policy,
            tee=True,
            update=update,
            key=key,
            buckets=buckets,
            buffer_bytes=buffer_bytes,
            brake=brake,
            exports=exports_of(name),
        )

    def _make(self, kind: Any, name: str, after: Any, **fields: Any) -> Handle:
        raise NotImplementedError


class KeyedHandle:
    """The part of a node from which one goes on to state by key."""

    plan: Plan

    def keyed(self, name: str, update: UpdateFunction, **options: Any) -> Handle:
        """A keyed node after this node; options as ``Plan.keyed``."""
        return self.plan.keyed(name, update, after=self._after(options), **options)

    def _after(self, options: dict[str, Any]) -> tuple[str, ...]:
        raise NotImplementedError


def bad_keyed(nodes: Sequence[Node]) -> Iterator[str]:
    """What is wrong with the keyed nodes of a plan, each with its remedy."""
    keyed = keyed_nodes(nodes)
    for node in keyed:
        yield from _bad_options(node)
        for source in _sources_above(node, nodes):
            if not isinstance(source.source, Log):
                yield (
                    f"{node.name}: its source {source.name} is not a log, and a changed document would be counted "
                    "twice: let it read a log, such as sources.Queue."
                )
    if keyed and any(isinstance(n, DestinationNode) and n.errors for n in nodes):
        names = ", ".join(node.name for node in keyed)
        yield f"{names}: a plan that keeps state by key cannot have a destination of errors yet: remove plan.errors(…)."


def _bad_options(node: KeyedNode) -> Iterator[str]:
    if not callable(node.update):
        yield f"{node.name}: {node.update!r} is not a function: give update itself, without calling it."
    if not callable(node.key) and not (isinstance(node.key, str) and node.key):
        yield f"{node.name}: key={node.key!r}: give the name of a field, or a function of the document."
    for option, value in (("buckets", node.buckets), ("buffer_bytes", node.buffer_bytes)):
        if not isinstance(value, int) or value < 1:
            yield f"{node.name}: {option}={value!r}: give a whole number, 1 or more."
    if node.buckets > limits.KEY_BUCKETS_MOST:
        yield f"{node.name}: buckets={node.buckets}: give {limits.KEY_BUCKETS_MOST} at most."
    if node.brake is not None and (not isinstance(node.brake, int) or node.brake < 1):
        yield f"{node.name}: brake={node.brake!r}: give a whole number, 1 or more, or None."


def _sources_above(node: KeyedNode, nodes: Sequence[Node]) -> list[SourceNode]:
    """The sources of which documents come to this node as they are: not through another keyed node."""
    by_name = {n.name: n for n in nodes}
    seen: set[str] = set()
    waiting = [*node.after]
    found = []
    while waiting:
        name = waiting.pop()
        before = by_name.get(name)
        if name in seen or before is None or isinstance(before, KeyedNode):
            continue
        seen.add(name)
        if isinstance(before, SourceNode):
            found.append(before)
        else:
            waiting += before.after
    return found
