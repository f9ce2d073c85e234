"""How a step is called: with one document or several, one call after the other or many at once, and how often."""

from __future__ import annotations

import dis
import functools
import inspect
import io
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any, ClassVar, Final, NewType, TypedDict, is_typeddict
from weakref import WeakKeyDictionary

import cloudpickle

from ferryman import limits
from ferryman import limits as durations
from ferryman.errors import plain_text
from ferryman.plan.nodes import DestinationNode, JoinNode, KeyedNode, Node, RouterNode, StepNode


def bad_calls(node: StepNode) -> Iterator[str]:
    """Why it cannot be called so."""
    if node.batch is not None and not _is_whole(node.batch):
        yield f"{node.name}: batch={node.batch!r}: give a whole number of documents, 1 or more, or leave it out."
    most = limits.CONCURRENCY_MAX
    if not _is_whole(node.concurrency) or node.concurrency > most:
        yield f"{node.name}: concurrency={node.concurrency!r}: give a whole number from 1 to {most}."
    if node.rate is not None:
        try:
            durations.per_second(node.rate)
        except ValueError as e:
            yield f"{node.name}: rate={e}."
    if _is_made_by(node.fn, inspect.isasyncgenfunction):
        yield f"{node.name}: its function is an async generator: return a list of documents."
    elif node.concurrency != 1 and not node.in_batches and _is_made_by(node.fn, inspect.isgeneratorfunction):
        yield (
            f"{node.name}: its function is a generator, of which the code runs as its documents are taken, one call "
            f"after the other: return a list of documents, or leave out concurrency={node.concurrency!r}."
        )


def called_twice(nodes: Iterable[Node], strategy: object) -> Iterator[str]:
    """Steps that a plan of this strategy cannot have: what was under way when a call failed would be called again."""
    for node in nodes:
        if isinstance(node, StepNode) and node.side_by_side:
            yield (
                f"{node.name}: strategy={strategy!r} calls a step for one entry after the other, so that an error or a "
                "kill costs no more than that entry: leave out batch=, arrow= and concurrency=."
            )


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether ``fn`` is an ``async def``, or an object whose call is one."""
    return _is_made_by(fn, inspect.iscoroutinefunction)


def _is_made_by(fn: Any, kind: Callable[[Any], bool]) -> bool:
    fn = getattr(fn, "func", fn)  # functools.partial
    return kind(fn) or kind(vars(type(fn)).get("__call__"))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# Steps whose code never returns a document: most often a forgotten ``return doc``.

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


# A plan's code on its way to the workers. What cannot be sent is named before Spark is started.
#
# What a program or a plan file defines travels by value: the workers have no such ``__main__``. cloudpickle sees to
# that for functions and classes; for a few other things that such code makes of its functions, ``dumps`` does.

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
        """Objects sent by name only although no worker has their module."""

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
    """Yield what is pickled with a value, by name: a function's globals and closure, an object's attributes and
    methods."""
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
