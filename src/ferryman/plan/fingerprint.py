"""What a plan is, in 32 hex digits: its structure and its steps' code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from types import CodeType
from typing import Any

from ferryman.plan.nodes import DestinationNode, Node, RouterNode, SourceNode, StepNode


def fingerprint(nodes: Sequence[Node]) -> str:
    """BLAKE2b-128 over names, kinds, edges, and the code of the steps (not over data they close over)."""
    h = blake2b(digest_size=16)
    for node in sorted(nodes, key=lambda n: n.name):
        for part in _parts(node):
            h.update(part.encode("utf-8", "surrogatepass"))
            h.update(b"\0")
    return h.hexdigest()


def _parts(node: Node) -> Iterator[str]:
    yield type(node).__name__
    yield node.name
    yield from node.after
    match node:
        case SourceNode():
            yield type(node.source).__name__
        case DestinationNode():
            yield type(node.destination).__name__
            yield node.policy.guarantee.value
            yield str(node.tap)
        case RouterNode():
            yield type(node.router).__name__
            yield from _code(node.router.choose)
        case StepNode():
            yield from _code(node.fn)


def _code(fn: Any) -> Iterator[str]:
    """Bytecode and constants of a function, without line numbers: moving it in its file changes nothing."""
    fn = getattr(fn, "func", fn)  # functools.partial
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if code is None:  # an object that is called: its class says what it does
        yield f"{type(fn).__module__}.{type(fn).__qualname__}"
        code = getattr(vars(type(fn)).get("__call__"), "__code__", None)
    if isinstance(code, CodeType):
        yield from _bytecode(code)


def _bytecode(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _bytecode(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
