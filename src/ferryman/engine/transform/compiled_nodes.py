"""Nodes of a plan as a walk meets them: each with its function, what follows it, and the deliveries below it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from ferryman.document import Document
from ferryman.engine.transform.health import NodeHealth
from ferryman.errors import Misconfigured, PermanentError, Unavailable, describe, unless_interrupt
from ferryman.memory import describe_memory_error, is_failed_allocation
from ferryman.plan import DestinationNode, JoinNode, KeyedNode, Node, RouterNode, SourceNode, StepNode, ends, successors
from ferryman.routers import Router
from ferryman.sources.log import split_joined

End = tuple[str, str]
"""(destination, whole route)."""


@dataclass(slots=True)
class CompiledNode:
    """A node of the plan, prepared for walking."""

    name: str
    ends: tuple[tuple[str, str], ...]
    """(destination, rest of the route from here) of each delivery below this node."""
    step: Callable[[Document], Any] | None = None
    router: Router | None = None
    branches: dict[str, CompiledNode] = field(default_factory=dict)
    nan_is_null: bool = False
    """Whether NaN and the infinite numbers that the step leaves in fields become null."""
    delivers: bool = False
    accepts: Callable[[Document], Any] | None = None
    """Checks that a document can be delivered here, and raises if it cannot; None: no check."""
    key_field: str = ""
    """Field that is all that ``accepts`` looks at: text there is a key, if it is not too long. "": there is none."""
    next: CompiledNode | None = None
    label: str = ""
    """Name of the node in messages."""
    health: NodeHealth | None = None
    """Health of the node; None: it is not called."""
    steps_below: bool = False
    """Whether documents may come to a step after this node."""
    took_s: float = 0.0
    """Seconds that this task has spent in calls of the step."""
    _full_ends: dict[str, tuple[End, ...]] = field(default_factory=dict)

    @property
    def is_called(self) -> bool:
        """Return whether the node is a step or a router."""
        return self.step is not None or self.router is not None

    def ends_from(self, route: str) -> tuple[End, ...]:
        """Return all deliveries below this node for a document that reached it by this route."""
        full_ends = self._full_ends.get(route)
        if full_ends is None:
            full_ends = self._full_ends[route] = tuple((name, join_routes(route, rest)) for name, rest in self.ends)
        return full_ends


def compile_nodes(
    nodes: Sequence[Node], task: int, prepare_step: Callable[[StepNode], Callable[..., Any]]
) -> dict[str, CompiledNode]:
    """Compile the nodes of a plan; returns them by name, with their routers opened.

    Args:
        task: number of the task in its wave; see ``Router.open``.
        prepare_step: returns the function that is called for a step.
    """
    below, following = ends(nodes), successors(nodes)
    compiled_nodes = {
        n.name: CompiledNode(n.name, tuple((e.destination, "/".join(e.route)) for e in below[n.name])) for n in nodes
    }
    joins: dict[str, CompiledNode] = {}
    for node in nodes:
        compiled = compiled_nodes[node.name]
        after = {n.name: compiled_nodes[n.name] for n in following[node.name]}
        match node:
            case JoinNode():
                compiled.label = "reading it"
                call = StepNode(node.name, fn=join_step(node.fn), timeout=node.timeout)
                inner = CompiledNode(node.name, compiled.ends, prepare_step(call), label=f"join {node.name}")
                inner.next = next(iter(after.values()), None)
                joins[f"{node.name}()"] = inner
                after = {node.name: inner}
            case SourceNode():
                compiled.label = "reading it"
            case StepNode():
                compiled.step = prepare_step(node)
                compiled.nan_is_null = node.nan == "null"
                compiled.label = f"step {node.name}"
            case RouterNode():
                compiled.router = open_router(node.router, tuple(after), task)
                compiled.branches, after = after, {}
                compiled.label = f"router {node.name}"
            case KeyedNode():
                compiled.delivers, compiled.accepts = True, node.key_of
                compiled.key_field = node.key if isinstance(node.key, str) else ""
                compiled.label = f"for {node.name}"
                below_it = tuple((e.destination, "/".join(e.route)) for e in below.get(node.exports.entry, ()))
                exports = CompiledNode(node.name, below_it, label="reading it", next=next(iter(after.values()), None))
                joins[node.exports.entry] = exports
                after = {}
            case DestinationNode():
                compiled.delivers = True
                compiled.label = f"for {node.name}"
        compiled.next = next(iter(after.values()), None)
    compiled_nodes |= joins
    for compiled in compiled_nodes.values():
        compiled.steps_below = any(each.step is not None for each in nodes_below(compiled))
    return compiled_nodes


def nodes_below(node: CompiledNode) -> Iterator[CompiledNode]:
    """Yield each node that a document may reach after this one, once."""
    ahead, seen = [node], {id(node)}
    while ahead:
        node = ahead.pop()
        for each in (node.next, *node.branches.values()):
            if each is not None and id(each) not in seen:
                seen.add(id(each))
                ahead.append(each)
                yield each


def open_router(router: Router, branches: Sequence[str], task: int) -> Router:
    """Return an open copy of a router. If it cannot be opened, return a router that raises the error whenever it is
    called, so that only documents that come to it wait."""
    try:
        opened = copy.copy(router)
        opened.open(branches, task)
    except BaseException as e:
        return _UnopenedRouter(unless_interrupt(e))
    return opened


class _UnopenedRouter(Router):
    """Stands for a router that could not be opened. As with a destination, the error concerns the router as a whole,
    and only an operator can remedy a permanent one."""

    def __init__(self, error: BaseException) -> None:
        self._why = f"open: {describe_memory_error(error) if is_failed_allocation(error) else describe(error)}"
        self._kind = Misconfigured if isinstance(error, PermanentError) else Unavailable

    def choose(self, document: Document) -> str:
        raise self._kind(self._why)


def join_routes(one: str, other: str) -> str:
    """Join two parts of a route, or of the branches that were chosen."""
    return f"{one}/{other}" if one and other else one or other


# A join's function as a step.


def join_step(fn: Callable[..., Any]) -> Callable[[Document], Any]:
    """Return a step that calls ``fn`` with the inputs of a joined document, which combines one entry of each input."""

    @wraps(fn)
    def call_join(doc: Document) -> Any:
        out = fn(split_joined(doc))
        if out is None:
            return None
        if isinstance(out, Mapping):
            return _with_content(doc, out)
        if isinstance(out, Iterable) and not isinstance(out, str | bytes):
            return _children_of_join(doc, out)
        raise PermanentError(f"returned a {type(out).__name__}: return a document, a dict of fields, several, or None")

    return call_join


def _children_of_join(doc: Document, out: Iterable[Any]) -> Iterator[Document]:
    for each in out:
        if not isinstance(each, Mapping):
            raise PermanentError(f"returned a {type(each).__name__} among several: return documents or dicts of fields")
        yield _with_content(doc.child(), each)


def _with_content(doc: Document, out: Mapping[str, Any]) -> Document:
    """Replace the document's content with that of the returned document or dict."""
    fields = dict(out)
    doc.fields.clear()
    doc.fields.update(fields)
    doc.raw = out.raw if isinstance(out, Document) else None
    return doc
