"""Fast path of the walk, for blocks of new and changed documents, or entries of logs, to which nothing unusual happens.

Most documents reach their destinations without an error, a child or a request to be read again. Their deliveries are
gathered in columns for the whole block. As soon as anything else happens, ``Walk`` takes over the document at its
current node, together with the node's answer, which only ``Walk`` can interpret. Both paths write the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, Self

from ferryman import limits
from ferryman.document import Document, decode_fields, encode_fields
from ferryman.engine.live import ProgressWriter
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.compiled_nodes import CompiledNode, nodes_below
from ferryman.engine.transform.rows import Content, OutboxBuffer, SkippedDelivery
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import (
    NOT_CALLED,
    PlanPath,
    Raised,
    Walk,
    ends_not_chosen,
    not_chosen_message,
    run_walk,
)
from ferryman.errors import unless_interrupt
from ferryman.plan.nodes import SHORT_KEY
from ferryman.records.families import encode_published

_TIMED_ROWS: Final = 16
"""Rows for one of which the calls of steps are timed: a look at the clock takes a hundredth of what a document
costs."""

_LARGE_BYTES: Final = limits.MIB
"""Content of at least this size is staged by the general walk at once, instead of waiting for the rest of its block."""


class Fallback(NamedTuple):
    """Position from which the general walk continues a document.

    Attributes:
        node: the next node; None: the document has no more nodes.
        answer: the node's answer, see ``Walk.resume``.
        ahead: copies of the document still to be walked, with their nodes; the next one is last.
    """

    doc: Document
    node: PathNode | None
    answer: Any
    ahead: list[tuple[Document, PathNode]]


class BlockWalk:
    """Walks blocks of one task.

    Args:
        walk: the general walk, which takes over when something unusual happens.

    Attributes:
        first_node: the node below the source; None: there is none.
    """

    def __init__(self, walk: Walk, stager: Stager, live: ProgressWriter) -> None:
        self._walk = walk
        self._stager = stager
        self._carries = stager.carries
        self._live = live
        self.first_node = PathNode(walk.source, PlanPath(), walk, stager).next
        self._is_timed = False
        """Whether the calls for the current row are timed."""
        self._deliveries: list[Content] = []
        self._skipped: list[SkippedDelivery] = []
        self._published: dict[tuple[OutboxBuffer, ...], str] = {}
        self._large = min(_LARGE_BYTES, limits.MAX_CONTENT_BYTES)

    @classmethod
    def create(cls, walk: Walk, stager: Stager, live: ProgressWriter) -> Self | None:
        """Return the fast path; None if the plan has a node below the source other than steps, routers and
        destinations, or a step whose fields are changed after it."""
        return cls(walk, stager, live) if all(map(_is_plain, nodes_below(walk.source))) else None

    @staticmethod
    def suits(block: Block) -> bool:
        """Return whether the fast path can process a block, except for what its source drops."""
        return block.is_plain

    def walk_row(self, block: Block, i: int, fields: bytes, raw: bytes | None) -> None:
        """Walk and stage row ``i`` of the block, with this content."""
        self._begin(block, i)
        self._live.add(1)
        doc = Document.of(block.ids[i], decode_fields(fields), raw, block.versions[i])
        self._stage(block, i, doc, self._walk_from(doc, self.first_node))

    def walk_answered_row(self, block: Block, i: int, doc: Document, answer: Any) -> None:
        """Walk and stage row ``i`` after a call of its first node; ``answer``: what the call returned, or the exception
        it raised."""
        self._begin(block, i)
        node = self.first_node
        assert node is not None
        assert node.health is not None
        if answer is not doc or doc.asked_again is not None or doc.refused is not None:
            answer = Raised(answer) if isinstance(answer, Exception) else answer
            self._stage(block, i, doc, Fallback(doc, node, answer, []))
            return
        if not node.health.steady:
            node.health.note_return()
        self._stage(block, i, doc, self._walk_from(doc, node.next))

    @property
    def delivers_below_first(self) -> bool:
        """Return whether documents go from the first node to destinations only."""
        return self.first_node is not None and self._destinations() is not None

    def deliver_answered_rows(self, block: Block, fields: list[bytes], raws: list[bytes | None]) -> bool:
        """Stage all rows of the block, to which calls of the first node have given this content; return False,
        and stage none, if one of them needs the general walk.

        Only destinations are below, see ``delivers_below_first``.
        """
        node, destinations = self.first_node, self._destinations()
        assert node is not None
        assert node.health is not None
        assert destinations is not None
        sizes = [len(each) for each in fields] + [len(raw) for raw in raws if raw is not None]
        if max(sizes, default=0) > self._large:
            return False
        buffers = [each.buffer for each in destinations]
        published = encode_published([buffer.given for buffer in buffers])
        if self._carries or any(before and before != published for before in block.published):
            return False  # something of the version before may have to be deleted
        if not node.health.steady:
            node.health.note_return()
        self._stager.stage_plain_rows(buffers, fields, raws, published)
        return True

    def _destinations(self) -> list[PathNode] | None:
        """Return the nodes below the first one, if all are destinations that take whatever comes."""
        assert self.first_node is not None
        found: list[PathNode] = []
        node = self.first_node.next
        while node is not None:
            if node.step is not None or node.choose is not None or node.health is not None:
                return None
            if node.compiled.accepts is not None:  # a keyed node looks at each document
                return None
            found.append(node)
            node = node.next
        return found

    def _begin(self, block: Block, i: int) -> None:
        self._walk.call_scope.at(block, i)
        self._is_timed = not i % _TIMED_ROWS
        self._walk.row += 1
        self._deliveries, self._skipped = [], []

    def _stage(self, block: Block, i: int, doc: Document, fallback: Fallback | None) -> None:
        """Stage the outcome of the document's walk."""
        self._walk.call_scope.step = ""
        if self._carries:
            self._stager.begin_version(i)
        if fallback is None:
            buffers = tuple([buffer for buffer, _, _ in self._deliveries])
            if (published := self._published.get(buffers)) is None:
                published = self._published[buffers] = encode_published([buffer.given for buffer in buffers])
            if not (before := block.published[i]) or before == published:
                self._stager.stage_plain(i, self._deliveries, self._skipped, published)
                return
            fallback = Fallback(doc, None, NOT_CALLED, [])  # something of the version before may have to be deleted
        go_on = partial(self._continue_in_walk, block.ids[i], fallback)
        self._stager.stage_walk(i, self._walk, go_on, retry=False)

    def _walk_from(self, doc: Document, node: PathNode | None) -> Fallback | None:
        """Walk until the general walk has to take over, and return the position; None: all deliveries were gathered."""
        id, call_scope = doc.id, self._walk.call_scope
        ahead: list[tuple[Document, PathNode]] = []
        while True:
            if node is None:
                if not ahead:
                    return None
                doc, node = ahead.pop()
            elif node.health is not None and node.health.closed:
                return Fallback(doc, node, NOT_CALLED, ahead)
            elif node.step is not None:
                call_scope.step, call_scope.route = node.name, node.route
                try:
                    out = node.step(doc) if not self._is_timed else node.call_timed(doc)
                except BaseException as e:  # the general walk interprets it
                    doc.id = id
                    return Fallback(doc, node, Raised(e), ahead)
                doc.id = id
                if out is not doc or doc.asked_again is not None or doc.refused is not None:
                    return Fallback(doc, node, out, ahead)
                if node.health is not None and not node.health.steady:
                    node.health.note_return()
                node = node.next
            elif node.choose is not None:
                if (fallback := self._branch(doc, node, ahead)) is not None:
                    return fallback
                node = None
            elif doc.id == id and self._deliver(doc, (node,)):
                node = node.next
            else:
                return Fallback(doc, node, NOT_CALLED, ahead)

    def _branch(self, doc: Document, node: PathNode, ahead: list[tuple[Document, PathNode]]) -> Fallback | None:
        """Deliver the copies that a router made of the document, or add them to ``ahead``."""
        assert node.choose is not None
        self._walk.call_scope.step = ""
        id = doc.id
        try:
            try:
                answer = node.choose(doc)
            finally:
                doc.id = id
            if node.copies and not isinstance(answer, str):
                answer = tuple(answer)
            chosen = node.branches_for(answer)
        except BaseException as e:
            return Fallback(doc, node, Raised(e), ahead)
        if doc.refused is not None:
            return Fallback(doc, node, answer, ahead)
        delivered = chosen.deliver and self._deliver(doc, chosen.nodes)
        try:
            copies = [] if delivered else [doc.copy() for _ in chosen.nodes[1:]]
        except BaseException:
            return Fallback(doc, node, answer, ahead)
        if node.health is not None and not node.health.steady:
            node.health.note_success()
        self._skipped += chosen.skipped
        if delivered:
            return None
        if copies:
            ahead += reversed(list(zip([*copies, doc], chosen.nodes, strict=True)))
        else:
            ahead.append((doc, chosen.nodes[0]))
        return None

    def _deliver(self, doc: Document, nodes: Sequence[PathNode]) -> bool:
        """Gather the content of deliveries to these nodes; return False, and gather none, if the general walk has to
        deliver one."""
        try:
            fields = encode_fields(doc.fields)
        except Exception:
            return False
        raw = doc.raw
        if len(fields) > self._large or (raw is not None and (type(raw) is not bytes or len(raw) > self._large)):
            return False
        for node in nodes:
            if node.compiled.accepts is not None and not self._accepts(doc, node.compiled, fields):
                return False
        for node in nodes:
            self._deliveries.append((node.buffer, fields, raw))
        return True

    def _accepts(self, doc: Document, node: CompiledNode, fields: bytes) -> bool:
        """Return whether a keyed node is certain to accept the document with these encoded fields."""
        if node.key_field:
            key = doc.fields.get(node.key_field)
            return type(key) is str and len(key) <= SHORT_KEY
        assert node.accepts is not None
        self._walk.call_scope.step = ""
        try:
            node.accepts(Document.of(doc.id, decode_fields(fields), doc.raw))  # a copy, as in the general walk
        except BaseException as e:  # also a user's sys.exit()
            unless_interrupt(e)
            return False
        return True

    def _continue_in_walk(self, id: str, fallback: Fallback) -> None:
        """Stage what the document has delivered so far, and continue it in the general walk."""
        for buffer, fields, raw in self._deliveries:
            self._stager.upsert(Document.of(id, {}, raw), buffer.end, buffer.branches, fields, None)
        for end in self._skipped:
            self._stager.drop(Document.of(id, {}), (end.destination, end.route), end.branches, end.message, 1)
        doc, node = fallback.doc, fallback.node
        ahead = [(each, below.compiled, below.path) for each, below in reversed(fallback.ahead)]
        compiled, path = (None, PlanPath()) if node is None else (node.compiled, node.path)
        run_walk(self._walk, self._walk.resume(id, doc, compiled, path, fallback.answer, ahead))


def _is_plain(compiled: CompiledNode) -> bool:
    if compiled.nan_is_null:
        return False
    return compiled.is_called or compiled.delivers


def _is_last(node: PathNode) -> bool:
    return node.compiled.delivers and node.next is None


# The nodes of a plan by path. Everything that the fast path needs to know of a node is computed once.


class ChosenBranches(NamedTuple):
    """Branches that a router chose with one answer.

    Attributes:
        nodes: first nodes of the branches; each gets a copy, and the last one the document itself.
        skipped: deliveries that the document does not get.
        deliver: whether each node is the last of its branch, a destination, so that all get the same.
    """

    nodes: list[PathNode]
    skipped: list[SkippedDelivery]
    deliver: bool


class PathNode:
    """A node as documents reach it by one path.

    Attributes:
        step: the step's function; None: the node is not a step.
        choose: the router's ``choose``; None: the node is not a router.
        health: health of the node; None: the node is never called.
    """

    def __init__(self, compiled: CompiledNode, path: PlanPath, walk: Walk, stager: Stager) -> None:
        self.compiled = compiled
        self.path = path
        self.name, self.route = compiled.name, path.route
        self.step = compiled.step
        self.choose = None if compiled.router is None else compiled.router.choose
        self.copies = compiled.router is not None and compiled.router.copies
        self.health = compiled.health
        self._walk = walk
        self._stager = stager
        self._next: PathNode | None = None
        self._buffer: OutboxBuffer | None = None
        self._chosen: dict[Any, ChosenBranches] = {}

    def call_timed(self, doc: Document) -> Any:
        """Call the step, and count its time for all rows that this one stands for."""
        assert self.step is not None
        began = perf_counter()
        try:
            return self.step(doc)
        finally:
            self.compiled.took_s += _TIMED_ROWS * (perf_counter() - began)

    @property
    def next(self) -> PathNode | None:
        """Return the next node; None: there is none, or a router chooses it."""
        if self._next is None and self.compiled.next is not None:
            self._next = self._node_at(self.compiled.next, self.path)
        return self._next

    @property
    def buffer(self) -> OutboxBuffer:
        """Return the buffer that collects a destination's rows."""
        if self._buffer is None:
            self._buffer = self._stager.buffer((self.name, self.route), self.path.branches)
        return self._buffer

    def branches_for(self, answer: Any) -> ChosenBranches:
        """Return the branches that a router's answer names.

        Raises:
            PermanentError: the answer is wrong.
        """
        found = self._chosen.get(answer)
        if found is None:
            names = self._walk.check_branches(self.compiled, answer)
            branches, path = self.compiled.branches, self.path
            paths = [path.into_copy(name) if self.copies else path.into_branch(self.name, name) for name in names]
            nodes = [self._node_at(branches[name], below) for name, below in zip(names, paths, strict=True)]
            why = not_chosen_message(self.compiled, names)
            ends = [
                self._stager.skipped_delivery(end, path.branches, why)
                for end in ends_not_chosen(self.compiled, names, path)
            ]
            found = self._chosen[answer] = ChosenBranches(nodes, ends, all(map(_is_last, nodes)))
        return found

    def _node_at(self, compiled: CompiledNode, path: PlanPath) -> Self:
        return type(self)(compiled, path, self._walk, self._stager)
