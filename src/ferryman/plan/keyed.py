"""Methods of plans and nodes for state by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferryman import limits
from ferryman.destinations.base import Guarantee
from ferryman.errors import UsageError
from ferryman.plan.nodes import (
    Combiner,
    Combining,
    Key,
    KeyedNode,
    KeyedState,
    Node,
    Policy,
    SourceNode,
    UpdateFunction,
    Value,
    exports_of,
    keyed_nodes,
)
from ferryman.sources.log import Log

if TYPE_CHECKING:
    from ferryman.plan.plan import Handle, Plan
    from ferryman.records.keys import KeyStates


class KeyedPlan:
    """The part of a plan that keeps state by key."""

    if TYPE_CHECKING:

        @property
        def nodes(self) -> tuple[Node, ...]: ...

        @property
        def key(self) -> str: ...

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
        timeout: float | None = None,
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
            timeout: seconds a call may take; one that takes longer is interrupted, or its process is ended, and
                counts as one that raises.
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
            timeout=timeout,
            exports=exports_of(name),
        )

    def combine(
        self,
        name: str,
        combiner: Combiner,
        *,
        key: Key,
        value: Value | None = None,
        inverse: Callable[[Any], Any] | None = None,
        after: Any = None,
        **options: Any,
    ) -> Handle:
        """A state for each key that is made by combining values: sums, largest values, sets.

        The values of a wave are combined first, then the result with the state, so ``combiner`` must not depend on
        how values are grouped: ``combiner(k, [combiner(k, [a, b]), c])`` is ``combiner(k, [a, b, c])``. What follows
        gets ``{"key", "old", "new"}`` of each key that has changed, under the key as id; ``old`` is the ``new`` that
        was told before, None the first time.

        Args:
            combiner: ``combiner(key, values)`` returns one value for them: of a wave, then of the state (if there is
                one) and the wave. None of the latter: the key has no state any more.
            key: as ``keyed``.
            value: a field, or a function of the document; None: each document has the value 1.
            inverse: makes of a value the one that undoes it, such as ``operator.neg`` for sums. Needed where documents
                can change or vanish, as of files.
            after: nodes or names it follows; a name may be declared later.
            options: as ``keyed``.
        """
        return self.keyed(name, Combining(combiner, value, inverse), key=key, after=after, **options)

    def state(self, name: str, state: str | Path | None = None) -> KeyStates:
        """The committed states of a keyed node: ``plan.state("counts").get(key)``.

        Args:
            state: the folder of states, as ``ferryman.run`` takes it; default: ``.ferryman`` in the current folder.

        Raises:
            UsageError: the plan has no keyed node of this name.
        """
        known = [node.name for node in keyed_nodes(self.nodes)]
        if name not in known:
            raise UsageError(f"{name} is not a keyed node of this plan. It has: {', '.join(known) or 'none'}.")
        from ferryman.records.keys import KeyStates  # it would make each start slower
        from ferryman.storage.files import path_of

        where = path_of(Path(".ferryman") if state is None else state)
        return KeyStates((where.absolute() if isinstance(where, Path) else where) / self.key, name)

    def _make(self, kind: Any, name: str, after: Any, **fields: Any) -> Handle:
        raise NotImplementedError


class KeyedHandle:
    """The part of a node from which one goes on to state by key."""

    plan: Plan

    def keyed(self, name: str, update: UpdateFunction, **options: Any) -> Handle:
        """A keyed node after this node; options as ``Plan.keyed``."""
        return self.plan.keyed(name, update, after=self._after(options), **options)

    def combine(self, name: str, combiner: Combiner, **options: Any) -> Handle:
        """A combining node after this node; options as ``Plan.combine``."""
        return self.plan.combine(name, combiner, after=self._after(options), **options)

    def _after(self, options: dict[str, Any]) -> tuple[str, ...]:
        raise NotImplementedError


def bad_keyed(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the faults of a plan's keyed nodes, each with its remedy."""
    keyed = keyed_nodes(nodes)
    for node in keyed:
        yield from _bad_options(node)
        changeable = [s.name for s in sources_above(node, nodes) if not isinstance(s.source, Log)]
        if changeable and isinstance(node.update, Combining) and node.update.inverse is None:
            yield (
                f"{node.name}: documents of {', '.join(changeable)} may change or vanish, and what they added has "
                "to be taken back then: give inverse=, a function that makes of a value the one that undoes it."
            )


def _bad_options(node: KeyedNode) -> Iterator[str]:
    if isinstance(node.update, Combining):
        yield from _bad_combining(node.name, node.update)
    elif not callable(node.update):
        yield f"{node.name}: {node.update!r} is not a function: give update itself, without calling it."
    if not callable(node.key) and not (isinstance(node.key, str) and node.key):
        yield f"{node.name}: key={node.key!r}: give the name of a field, or a function of the document."
    for option, value in (("buckets", node.buckets), ("buffer_bytes", node.buffer_bytes)):
        if not isinstance(value, int) or value < 1:
            yield f"{node.name}: {option}={value!r}: give a whole number, 1 or more."
    if node.buckets > limits.KEY_BUCKETS_MAX:
        yield f"{node.name}: buckets={node.buckets}: give {limits.KEY_BUCKETS_MAX} at most."
    if node.timeout is not None and not (isinstance(node.timeout, (int, float)) and 0 < node.timeout < inf):
        yield f"{node.name}: timeout={node.timeout!r}: give seconds above 0, or leave it out."
    if node.brake is not None and (not isinstance(node.brake, int) or node.brake < 1):
        yield f"{node.name}: brake={node.brake!r}: give a whole number, 1 or more, or None."


def _bad_combining(name: str, given: Combining) -> Iterator[str]:
    if not callable(given.combiner):
        yield f"{name}: {given.combiner!r} is not a function: give the combiner itself, without calling it."
    if given.value is not None and not callable(given.value) and not isinstance(given.value, str):
        yield f"{name}: value={given.value!r}: give the name of a field, or a function of the document."


def copies_meet(nodes: Sequence[Node], reached: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]) -> Iterator[str]:
    """Keyed nodes to which copies of one document come that may change; of a plan of which nothing else is wrong.

    Args:
        reached: see ``graph.ends``.
    """
    for node in keyed_nodes(nodes):
        for source in sources_above(node, nodes):
            routes = [route for name, route in reached[source.entry] if name == node.name]
            if len(routes) > 1 and not isinstance(source.source, Log):
                yield (
                    f"{node.name}: copies of one document of {source.name} come here by several routes, and their "
                    "changes could not be told apart: put it before the router, or a keyed node into each branch."
                )


def counted_once(nodes: Sequence[Node]) -> set[str]:
    """Sources of which nothing may be read again, for a key would count it twice: logs above keyed nodes, and what
    these export."""
    keyed = keyed_nodes(nodes)
    above = {s.name for node in keyed for s in sources_above(node, nodes) if isinstance(s.source, Log)}
    return above | {node.name for node in keyed}


def sources_above(node: KeyedNode, nodes: Sequence[Node]) -> list[SourceNode]:
    """The sources of which documents come to this node as they are: not through another keyed node."""
    return [each for each in _fed_by(node, nodes) if isinstance(each, SourceNode)]


def keyed_above(node: KeyedNode, nodes: Sequence[Node]) -> set[str]:
    """Keyed nodes of which the exports come to this node: not through a third one."""
    return {each.name for each in _fed_by(node, nodes) if isinstance(each, KeyedNode)}


def _fed_by(node: KeyedNode, nodes: Sequence[Node]) -> list[SourceNode | KeyedNode]:
    """Where what comes to this node begins."""
    by_name = {n.name: n for n in nodes}
    seen: set[str] = set()
    waiting = [*node.after]
    found: list[SourceNode | KeyedNode] = []
    while waiting:
        name = waiting.pop()
        before = by_name.get(name)
        if name in seen or before is None:
            continue
        seen.add(name)
        if isinstance(before, SourceNode | KeyedNode):
            found.append(before)
        else:
            waiting += before.after
    return found
