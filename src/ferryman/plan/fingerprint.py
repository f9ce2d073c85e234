"""Fingerprint of a plan, 32 hex digits: its structure, its steps' code and parameters, and what they reach."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from hashlib import blake2b
from pathlib import PurePath
from types import CodeType
from typing import Any

from ferryman.plan.nodes import DestinationNode, JoinNode, KeyedNode, Node, RouterNode, SourceNode, StepNode
from ferryman.plan.reach import bytecode, reach_of


def fingerprint(nodes: Sequence[Node]) -> str:
    """Return a BLAKE2b-128 hash of names, kinds, edges, the steps' code and arguments, and what that code reaches."""
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
    for name, fact in reach_of(node).facts.items():
        yield name
        yield fact
    match node:
        case SourceNode():
            yield type(node.source).__name__
            if isinstance(node, JoinNode):
                yield from code_of(node)
        case KeyedNode():
            yield from code_of(node)
        case DestinationNode():
            yield type(node.destination).__name__
            yield node.policy.guarantee.value
            yield str(node.tee)
        case RouterNode():
            yield type(node.router).__name__
            yield from code_of(node)
        case StepNode():
            yield from code_of(node)


def code_of(node: StepNode | RouterNode | JoinNode | KeyedNode) -> Iterator[str]:
    """Yield the code and parameters of a step or router."""
    if isinstance(node, (StepNode, JoinNode)):
        yield from _code(node.fn)
        return
    if isinstance(node, KeyedNode):
        yield from _code(node.update)
        yield from _value(node.key)
        return
    yield from _router(node.router)


def _router(router: Any) -> Iterator[str]:
    """Yield the code of ``choose``, and the router's public attributes, class attributes of ``Router`` included.

    Names that begin with ``_`` hold what changes while the router runs. The order of a mapping does not matter.
    """
    yield from _code(getattr(router, "choose", None))  # an object that is not a Router is refused by plan check
    names = {"deterministic", "copies", "on_unequal", *getattr(router, "__dict__", ())}
    for base in type(router).__mro__:
        slots = vars(base).get("__slots__", ())
        names.update([slots] if isinstance(slots, str) else slots)
    for name in sorted(n for n in names if not n.startswith("_")):
        value = getattr(router, name, None)
        yield name
        yield from _value(dict(sorted(value.items(), key=repr)) if isinstance(value, dict) else value)


def _code(fn: Any) -> Iterator[str]:
    """Yield bytecode and constants of a function, without line numbers: moving it in its file changes nothing.

    For a callable object: its class, the code of its ``__call__``, and if it is a dataclass, its fields.
    """
    if isinstance(fn, partial):
        yield from _code(fn.func)
        if fn.args or fn.keywords:
            yield from _value([fn.args, fn.keywords])
        return
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if code is None:
        owner = fn if hasattr(fn, "__qualname__") else type(fn)  # a built-in function has a name of its own
        yield f"{getattr(owner, '__module__', '')}.{owner.__qualname__}"
        code = getattr(vars(type(fn)).get("__call__"), "__code__", None)
    if isinstance(code, CodeType):
        yield from bytecode(code)
    if is_dataclass(fn) and not isinstance(fn, type):
        for field in fields(fn):
            if field.compare:  # other fields do not make two objects differ
                yield field.name
                yield from _value(getattr(fn, field.name))


def _value(value: Any) -> Iterator[str]:
    """Yield a parameter's canonical text. For objects without a stable text (a client, a lock) only the class
    counts."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | Enum() | date() | timedelta() | Decimal() | PurePath():
            yield repr(value)
        case list() | tuple():
            yield f"{type(value).__name__} of {len(value)}"
            for element in value:
                yield from _value(element)
        case dict():
            yield f"dict of {len(value)}"
            for key, element in value.items():
                yield repr(key)
                yield from _value(element)
        case set() | frozenset():
            yield repr(sorted(map(repr, value)))
        case re.Pattern():
            yield repr((value.pattern, value.flags))
        case _:
            yield from _code(value)
