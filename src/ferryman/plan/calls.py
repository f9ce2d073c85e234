"""Checks of steps' code: how it may be called, what it returns, and whether it can be pickled for workers."""

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


def call_findings(node: StepNode) -> Iterator[str]:
    """Yield the reasons why the step cannot be called with its ``batch``, ``concurrency`` and ``rate``."""
    if node.batch is not None and not _is_positive_int(node.batch):
        yield f"{node.name}: batch={node.batch!r}: give a whole number of documents, 1 or more, or leave it out."
    if node.batch_bytes is not None and not (_is_positive_int(node.batch_bytes) and node.in_batches):
        yield f"{node.name}: batch_bytes={node.batch_bytes!r}: give a whole number, 1 or more, together with batch=."
    if node.weight is not None and (node.batch_bytes is None or not callable(node.weight)):
        yield f"{node.name}: weight={node.weight!r}: give a function of a document, together with batch_bytes=."
    limit = limits.CONCURRENCY_MAX
    if not _is_positive_int(node.concurrency) or node.concurrency > limit:
        yield f"{node.name}: concurrency={node.concurrency!r}: give a whole number from 1 to {limit}."
    if node.rate is not None:
        try:
            durations.per_second(node.rate)
        except ValueError as e:
            yield f"{node.name}: rate={e}."
    if _is_defined_as(node.fn, inspect.isasyncgenfunction):
        yield f"{node.name}: its function is an async generator: return a list of documents."
    elif node.concurrency != 1 and not node.in_batches and _is_defined_as(node.fn, inspect.isgeneratorfunction):
        yield (
            f"{node.name}: its function is a generator, whose code runs while its documents are read, one call "
            f"after the other: return a list of documents, or leave out concurrency={node.concurrency!r}."
        )


def concurrent_step_findings(nodes: Iterable[Node], strategy: object) -> Iterator[str]:
    """Yield a finding for each step with concurrent calls, which a plan of this strategy cannot have: those under way
    when one fails would be repeated."""
    for node in nodes:
        if isinstance(node, StepNode) and node.is_concurrent:
            yield (
                f"{node.name}: strategy={strategy!r} calls a step for one entry after the other, so that an error or a "
                "kill costs no more than that entry: leave out batch=, arrow= and concurrency=."
            )


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether ``fn`` is an ``async def``, or an object whose call is one."""
    return _is_defined_as(fn, inspect.iscoroutinefunction)


def _is_defined_as(fn: Any, kind: Callable[[Any], bool]) -> bool:
    fn = getattr(fn, "func", fn)  # functools.partial
    return kind(fn) or kind(vars(type(fn)).get("__call__"))


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# Steps whose code never returns a document: most often a forgotten ``return doc``.

REMEDY: Final = "A step must return its document (`return doc`); one that returns None drops it."


def forgotten_return_warnings(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a warning for each step whose ``return`` statements all return None."""
    for node in nodes:
        if isinstance(node, StepNode) and always_returns_none(node.fn):
            yield f"{node.name}: its function always returns None, so every document is dropped here. {REMEDY}"


def always_returns_none(function: Any) -> bool:
    """Return whether a function's code returns None at every return; False if that cannot be determined."""
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        function = vars(type(function)).get("__call__")  # an object that is called like a function
    if not isinstance(function, FunctionType):
        return False
    code = inspect.unwrap(function).__code__
    makes_iterators = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return_values = list(_return_values(code))
    return not code.co_flags & makes_iterators and bool(return_values) and not any(return_values)


def _return_values(code: CodeType) -> Iterator[bool]:
    """Yield for each return of the code whether it may return something other than None."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST":
            yield instruction.argval is not None
        elif instruction.opname == "RETURN_VALUE":
            is_none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            yield instruction.is_jump_target or not is_none  # a jump brings another value: `return a if b else None`
        before = instruction


# Pickling of a plan's code for the workers. Code that cannot be pickled is reported before Spark is started.
#
# What a program or a plan file defines is pickled by value, because the workers do not have its ``__main__``.
# cloudpickle does that for functions and classes; ``_Pickler`` adds objects that such code makes of its functions.

_CULPRIT_DEPTH: Final = 5
"""Number of names that are followed from function to function to find the object that cannot be pickled."""


def dumps(value: Any) -> bytes:
    """Pickle a value for a worker, which unpickles it with ``pickle`` alone.

    Raises:
        Exception: whatever an object's own ``__reduce__`` raises; most often TypeError or PicklingError.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


_CachedFunction: Final = type(functools.lru_cache(len))


def _reduce_cached(cached: Any) -> Any:
    """Reduce a ``functools.cache`` to its name if workers can import it, else to its function and an empty cache."""
    if not _is_pickled_by_value(cached):
        return cached.__reduce__()
    attributes = {name: each for name, each in vars(cached).items() if name != "__wrapped__"}
    return _rebuild_cached, (cached.__wrapped__, cached.cache_parameters()), attributes


def _rebuild_cached(function: Any, parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_property(prop: functools.cached_property[Any]) -> Any:
    """Reduce a ``cached_property`` without the lock that it has in older versions of Python."""
    attributes = {name: each for name, each in vars(prop).items() if name != "lock"}
    return functools.cached_property, (prop.func,), attributes


def _reduce_code(code: CodeType) -> Any:
    """Reduce code with the name of its file, which the ledger shows and cloudpickle 3.1.3 leaves out."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if each == _LEFT_OUT else each for each in arguments)


_LEFT_OUT: Final = "<dynamic-code>"


def _reduce_new_type(new_type: Any) -> Any:
    return (
        (NewType, (new_type.__name__, new_type.__supertype__))
        if _is_pickled_by_value(new_type)
        else new_type.__reduce__()
    )


def _rebuild_typed_dict(name: str, module: str, annotations: Mapping[str, Any], total: bool) -> Any:
    rebuilt: Any = TypedDict(name, dict(annotations), total=total)  # type: ignore[misc]
    rebuilt.__module__ = module
    return rebuilt


def _is_pickled_by_value(subject: Any) -> bool:
    """Return whether an object must be pickled by value because no worker can import it by name."""
    module = sys.modules.get(str(getattr(subject, "__module__", "")))
    if module is None or _is_module_in(module.__name__, _modules_by_value()):
        return True
    value: Any = module
    for part in str(getattr(subject, "__qualname__", "")).split("."):
        value = getattr(value, part, None)
    return value is not subject


def _modules_by_value() -> frozenset[str]:
    """Return the modules whose definitions are pickled by value."""
    return frozenset({"__main__", *cloudpickle.list_registry_pickle_by_value()})


def _is_module_in(module: str, known: frozenset[str]) -> bool:
    return module in known or any(module.startswith(f"{each}.") for each in known)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, extended to more objects that are made of a program's functions."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {
            _CachedFunction: _reduce_cached,
            functools.cached_property: _reduce_property,
            NewType: _reduce_new_type,
            CodeType: _reduce_code,
            # used by functools.singledispatch
            WeakKeyDictionary: lambda weak: (WeakKeyDictionary, (dict(weak),)),
            MappingProxyType: lambda view: (MappingProxyType, (dict(view),)),
        },
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._known = _modules_by_value()
        self.names: list[str] = []
        """Names of objects pickled by name although no worker has their module."""

    def reducer_override(self, value: Any) -> Any:
        """Implement ``Pickler.reducer_override``, called before the dispatch table for every object that is not one of
        Python's plain values."""
        if is_typeddict(value) and _is_pickled_by_value(value):  # cloudpickle cannot rebuild such a class
            arguments = (value.__name__, value.__module__, value.__annotations__, value.__total__)
            return _rebuild_typed_dict, arguments
        reduced = super().reducer_override(value)
        if reduced is NotImplemented and type(value) not in self.dispatch_table:
            module = getattr(value, "__module__", None)
            if isinstance(module, str) and _is_module_in(module, self._known):
                reduced = value.__reduce_ex__(cloudpickle.DEFAULT_PROTOCOL)
                if isinstance(reduced, str):
                    self.names.append(f"{module}.{reduced}")
        return reduced


def pickling_findings(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a finding for each step, router and destination that cannot be pickled, naming the part to blame."""
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
            path = _path_to_culprit(code, _CULPRIT_DEPTH)
            uses = f" it uses {' of '.join(reversed(path))}, and that cannot be pickled:" if path else ""
            yield (
                f"{node.name}: cannot be sent to the workers:{uses} {why}. Make it in the workers: in the function "
                "that needs it, when it is first needed."
            )


def pickling_error(value: Any) -> str | None:
    """Return the reason why a value cannot be pickled, or not be unpickled by a worker; None if it can."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        try:
            pickler.dump(value)
        except Exception as e:  # whatever an object's own __reduce__ raises
            return (plain_text(e).splitlines() or [type(e).__name__])[0].rstrip(".")
    if pickler.names:
        return f"{pickler.names[0]} is sent by name only, and workers cannot import what this program defines"
    return None


def _path_to_culprit(value: Any, depth: int) -> list[str]:
    """Return the names that lead to the part that cannot be pickled: a name, the name that it uses, and so on; [] if no
    single part is to blame."""
    for name, part in _parts(value):
        if pickling_error(part) is not None:
            return [name, *(_path_to_culprit(part, depth - 1) if depth else [])]
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
    """Return the names that a function and the functions defined in it look up."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)
