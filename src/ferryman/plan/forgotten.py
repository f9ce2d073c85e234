"""Steps whose code never returns a document: most often a forgotten ``return doc``."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from ferryman.plan.nodes import Node, StepNode

REMEDY: Final = "A step must return its document (`return doc`); one that returns None drops it."


def forgotten_returns(nodes: Sequence[Node]) -> Iterator[str]:
    """A warning for each step of which every ``return`` returns None."""
    for node in nodes:
        if isinstance(node, StepNode) and returns_nothing(node.fn):
            yield f"{node.name}: its function always returns None, so every document is dropped here. {REMEDY}"


def returns_nothing(function: Any) -> bool:
    """Does this function's code return None wherever it returns? False where that cannot be seen."""
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        function = vars(type(function)).get("__call__")  # an object that is called like a function
    if not isinstance(function, FunctionType):
        return False
    code = inspect.unwrap(function).__code__
    makes_iterators = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    returned = list(_returned(code))
    return not code.co_flags & makes_iterators and bool(returned) and not any(returned)


def _returned(code: CodeType) -> Iterator[bool]:
    """For each return of the code: may it return something else than None?"""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST":
            yield instruction.argval is not None
        elif instruction.opname == "RETURN_VALUE":
            none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            yield instruction.is_jump_target or not none  # a jump brings another value: `return a if b else None`
        before = instruction
