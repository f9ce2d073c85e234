"""A plan's code on its way to the workers. What cannot be sent is named before Spark is started.

What a program or a plan file defines travels by value: the workers have no such ``__main__``. cloudpickle sees to that
for functions and classes; for a few other things that such code makes of its functions, ``dumps`` does.
"""

from __future__ import annotations

import functools
import io
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any, ClassVar, Final, NewType, TypedDict, is_typeddict
from weakref import WeakKeyDictionary

import cloudpickle

from ferryman.errors import plain_text
from ferryman.plan.keyed_nodes import KeyedNode
from ferryman.plan.nodes import DestinationNode, JoinNode, Node, RouterNode, StepNode

_DEPTH: Final = 5
"""How far a name is followed from function to function."""


def dumps(value: Any) -> bytes:
    """Pickled for a worker, which unpickles it with ``pickle`` alone.

    Raises:
        Exception: whatever an object's own ``__reduce__`` raises; most often TypeError or PicklingError.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


_Cached: Final = type(functools.lru_cache(len))


def _reduce_cached(cached: Any) -> Any:
    """``functools.cache``: by its name, where workers find that; else the function below it, with an empty cache."""
    if not _by_value(cached):
        return cached.__reduce__()
    about = {name: each for name, each in vars(cached).items() if name != "__wrapped__"}
    return _cache_again, (cached.__wrapped__, cached.cache_parameters()), about


def _cache_again(function: Any, parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_property(made: functools.cached_property[Any]) -> Any:
    """Without the lock that it has in older Pythons."""
    about = {name: each for name, each in vars(made).items() if name != "lock"}
    return functools.cached_property, (made.func,), about


def _reduce_new_type(made: Any) -> Any:
    return (NewType, (made.__name__, made.__supertype__)) if _by_value(made) else made.__reduce__()


def _typed_dict(name: str, module: str, annotations: Mapping[str, Any], total: bool) -> Any:
    made: Any = TypedDict(name, dict(annotations), total=total)  # type: ignore[misc]
    made.__module__ = module
    return made


def _by_value(named: Any) -> bool:
    """No worker finds it by its name."""
    module = sys.modules.get(str(getattr(named, "__module__", "")))
    if module is None or _is_in(module.__name__, _travelling()):
        return True
    found: Any = module
    for part in str(getattr(named, "__qualname__", "")).split("."):
        found = getattr(found, part, None)
    return found is not named


def _travelling() -> frozenset[str]:
    """Modules of which what they define travels by value."""
    return frozenset({"__main__", *cloudpickle.list_registry_pickle_by_value()})


def _is_in(module: str, known: frozenset[str]) -> bool:
    return module in known or any(module.startswith(f"{each}.") for each in known)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, and more of what is made of a program's functions."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {
            _Cached: _reduce_cached,
            functools.cached_property: _reduce_property,
            NewType: _reduce_new_type,
            # of functools.singledispatch
            WeakKeyDictionary: lambda weak: (WeakKeyDictionary, (dict(weak),)),
            MappingProxyType: lambda view: (MappingProxyType, (dict(view),)),
        },
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._known = _travelling()
        self.names: list[str] = []
        """What is sent as a name only, though no worker has the module that it is from."""

    def reducer_override(self, value: Any) -> Any:
        """Called for every object that is not one of Python's plain values, before the table."""
        if is_typeddict(value) and _by_value(value):  # its class is not made as others are
            about = (value.__name__, value.__module__, value.__annotations__, value.__total__)
            return _typed_dict, about
        reduced = super().reducer_override(value)
        if reduced is NotImplemented and type(value) not in self.dispatch_table:
            module = getattr(value, "__module__", None)
            if isinstance(module, str) and _is_in(module, self._known):
                reduced = value.__reduce_ex__(cloudpickle.DEFAULT_PROTOCOL)
                if isinstance(reduced, str):
                    self.names.append(f"{module}.{reduced}")
        return reduced


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
    """Why it cannot be pickled, or not be unpickled by a worker; None if it can."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        try:
            pickler.dump(value)
        except Exception as e:  # whatever an object's own __reduce__ raises
            return (plain_text(e).splitlines() or [type(e).__name__])[0].rstrip(".")
    if pickler.names:
        return f"{pickler.names[0]} is sent as a name only, and no worker has what this program defines"
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
