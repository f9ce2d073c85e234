"""Can a plan's code be sent to the workers? What cannot is named before Spark is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import cloudpickle

from ferryman.errors import plain_text
from ferryman.plan.keyed_nodes import KeyedNode
from ferryman.plan.nodes import DestinationNode, JoinNode, Node, RouterNode, StepNode

_DEPTH: Final = 5
"""How far a name is followed from function to function."""


def cannot_be_pickled(nodes: Sequence[Node]) -> Iterator[str]:
    """A finding for each step, router and destination that cannot be pickled, which names what of it cannot."""
    for node in nodes:
        match node:
            case StepNode() | JoinNode():
                code: Any = node.fn
            case RouterNode():
                code = node.router
            case KeyedNode():
                code = (node.update, node.key)
            case DestinationNode():
                code = node.destination
            case _:
                continue
        if (why := pickling_error(code)) is not None:
            path = _culprit(code, _DEPTH)
            uses = f" it uses {' of '.join(reversed(path))}, and that cannot be pickled:" if path else ""
            yield (
                f"{node.name}: cannot be sent to the workers:{uses} {why}. Make it in the workers: in the function "
                "that needs it, when it is first needed."
            )


def pickling_error(value: Any) -> str | None:
    """Why it cannot be pickled; None if it can."""
    try:
        cloudpickle.dumps(value)
    except Exception as e:  # whatever an object's own __reduce__ raises
        return (plain_text(e).splitlines() or [type(e).__name__])[0].rstrip(".")
    return None


def _culprit(value: Any, depth: int) -> list[str]:
    """The way to what cannot be pickled: a name, then the name that it uses, and so on; [] if none is to blame."""
    for name, part in _parts(value):
        if pickling_error(part) is not None:
            return [name, *(_culprit(part, depth - 1) if depth else [])]
    return []


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What is pickled with it, by name: a function's globals and closure, an object's attributes and methods."""
    if isinstance(value, MethodType):
        yield from _parts(value.__func__)
        value = value.__self__
    if isinstance(value, FunctionType):
        for name in sorted(_names(value.__code__) & value.__globals__.keys()):
            yield f"the global {name}", value.__globals__[name]
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f"the variable {name}", cell.cell_contents
        return
    yield from ((f"the attribute {name}", part) for name, part in getattr(value, "__dict__", {}).items())
    for name, method in vars(type(value)).items():
        if isinstance(method, FunctionType):
            yield f"the method {name}", method


def _names(code: CodeType) -> set[str]:
    """Names that a function and what is defined in it looks up."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)
