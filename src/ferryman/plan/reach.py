"""Code, values and packages that a node's function reaches: what it answers depends on them, besides its own code.

From a function the walk goes on to the functions and classes of the user's own modules that it names, to the constants
that it reads, to its closure and to its default arguments. Of installed packages the version counts, and nothing of
them is walked; of Python itself, its version. The result is the same in every process: no address, no order of a set
and no name of the module that the plan is loaded as goes into it.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib.machinery
import importlib.util
import itertools
import operator
import re
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, EnumMeta
from hashlib import blake2b
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import cloudpickle

from ferryman import limits
from ferryman.plan.nodes import JoinNode, KeyedNode, Node, RouterNode, StepNode

PYTHON: Final = "Python"
PACKAGE: Final = "package "
"""Prefix of the names of packages' versions."""
DEPENDS: Final = "depends: "
"""Prefix of the names of what a step's ``depends`` gives."""


class ReachedFacts(NamedTuple):
    """Facts of what a node's function reaches.

    Attributes:
        facts: name -> hash, or the version of a package. Names are those of the user's code: ``clean()``, ``MODEL``,
            ``Config.size``.
        unseen: values that it reads and of which only the class counts, with that class: ``CLIENT (http.Client)``.
    """

    facts: dict[str, str]
    unseen: list[str]


def reach_of(node: Node) -> ReachedFacts:
    """Return what a step, join, router or keyed node reaches; nothing for other nodes."""
    match node:
        case StepNode():
            walk = _ReachWalk(node.fn)
            walk.add_depends(node.depends.values)
        case JoinNode():
            walk = _ReachWalk(node.fn)
        case RouterNode():
            walk = _ReachWalk(node.router, public_only=True)
        case KeyedNode():
            walk = _ReachWalk(node.update, node.key)
        case _:
            return ReachedFacts({}, [])
    walk.run()
    return walk.result()


class _ReachWalk:
    """Walk from a node's function to everything that it reaches.

    Args:
        roots: the node's function, or its functions. Their own code is left to ``fingerprint.code_of``.
        public_only: attributes of the roots whose names begin with ``_`` do not count.
    """

    def __init__(self, *roots: Any, public_only: bool = False) -> None:
        self._hashers: dict[str, Any] = {}
        self._versions = {PYTHON: f"{sys.version_info.major}.{sys.version_info.minor}"}
        self._unseen: dict[str, None] = {}
        self._seen: dict[int, Any] = {}
        """Identity -> functions, classes and objects that were visited."""
        self._kept: list[Any] = []
        """Everything that was met, so that no identity is used again."""
        self._waiting: deque[tuple[str, Any]] = deque()
        self._named: set[tuple[str, int]] = set()
        """Name and identity of what waits or was visited."""
        self._left = 0
        """Values of the current fact that may still be described."""
        self._roots = {id(root): root for root in roots}
        self._public_only = public_only
        self._home = _module_of(roots[0])
        for root in roots:
            self._waiting.append(("", root))

    def add_depends(self, depends: Mapping[str, Any]) -> None:
        """Add the values that a step's ``depends`` names; of a path, the content."""
        self._waiting += [(f"{DEPENDS}{name}", value) for name, value in depends.items()]

    def run(self) -> None:
        """Visit everything that is reached, each thing once."""
        while self._waiting:
            name, value = self._waiting.popleft()
            try:
                self._visit(name, value)
            except Exception:  # whatever an object's own code raises: of such an object its class counts
                self._note_class(name, value)

    def result(self) -> ReachedFacts:
        """Return the facts, sorted by name."""
        hashes = {name: h.hexdigest() for name, h in self._hashers.items()}
        return ReachedFacts(dict(sorted({**hashes, **self._versions}.items())), sorted(self._unseen))

    # -- what is visited ---------------------------------------------------------------------------

    def _visit(self, name: str, value: Any) -> None:
        """Add the facts of a value, and have what it reaches visited later."""
        if len(self._hashers) > limits.REACHED_FACTS:
            self._unseen[f"more than {limits.REACHED_FACTS} functions and values"] = None
            self._waiting.clear()
        elif name.startswith(DEPENDS) and isinstance(value, Path):
            self._note(name, describe_path(value))
        elif _is_code(value):
            self._visit_code(value)
        elif type(value) is ModuleType:
            self._visit_module(value.__name__)
        else:
            self._left = limits.REACHED_VALUES
            texts = [*self._describe(name, value, 0, ())]
            if name:
                self._note(name, texts)

    def _visit_code(self, value: Any) -> None:
        """Visit a function or a class, or what an object made of them wraps: a method, a partial, a cached function."""
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, FunctionType):
            self._visit_function(value)
        elif issubclass(type(value), type):
            self._visit_class(value)
        else:
            self._note_package(_module_of(value))
            for name, part in _unwrap(value):
                self._reach(name, part)

    def _visit_function(self, function: FunctionType) -> None:
        code, module = function.__code__, _module_of(function)
        owner = _owner_of_module(module)
        if owner is not _Owner.USER:
            self._note_package(module)
            for part in _wrapped_by(function):  # a decorator of a package, around a function of the user's
                self._reach("", part)
            return
        is_root = id(function) in self._roots
        label = self._label(module, code.co_qualname)
        if not is_root:
            self._note(f"{label}()", bytecode(code))
        of = "" if is_root else f"{label}(): "
        for argument, default in _defaults(function):
            self._reach(f"{of}default {argument}", default)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._reach(f"{of}variable {variable}", cell.cell_contents)
            except ValueError:  # not bound yet
                continue
        used, globals_ = names_used(code), function.__globals__
        for chain in used.names:
            if chain[0] in globals_:
                self._visit_chain(module, chain, globals_[chain[0]])
        for imported in used.imports:
            self._visit_import(imported, str(globals_.get("__package__") or ""))

    def _visit_chain(self, module: str, chain: Sequence[str], value: Any) -> None:
        """Visit what ``a.b.c`` means, where ``a`` is a global: attributes of the user's modules are followed."""
        name, rest = self._label(module, chain[0]), [*chain[1:]]
        while issubclass(type(value), ModuleType):
            owner = _owner_of_module(value.__name__)
            if owner is not _Owner.USER:
                self._note_package(value.__name__)
                if value.__name__ == "os" and rest[:1] in (["environ"], ["getenv"]):
                    self._unseen["environment variables (os.environ)"] = None
                return
            if not rest or rest[0] not in vars(value):
                self._visit_module(value.__name__)
                return
            name = self._label(value.__name__, rest[0])
            value = vars(value)[rest.pop(0)]
        self._reach(name, value)

    def _visit_import(self, imported: Import, package: str) -> None:
        """Visit a module that code imports while it runs, and those of the names taken from it that are modules."""
        name = imported.absolute_name(package)
        self._visit_module(name)
        if _owner_of_module(name) is _Owner.USER:
            for member in imported.members:
                self._visit_module(f"{name}.{member}")

    def _visit_module(self, name: str) -> None:
        """Visit a module as a whole: the code in its file counts, since it need not be imported yet."""
        self._note_package(name)
        if _owner_of_module(name) is not _Owner.USER or f"module {name}" in self._hashers:
            return
        code = _code_of_module(name)
        if code is not None:
            self._note(f"module {name}", bytecode(code))
            for imported in names_used(code).imports:
                self._visit_import(imported, name.rpartition(".")[0])

    def _visit_class(self, cls: type) -> None:
        module = _module_of(cls)
        self._note_package(module)
        if _owner_of_module(module) is not _Owner.USER:
            return
        label = self._label(module, cls.__qualname__)
        attributes = {name: value for name, value in vars(cls).items() if _is_written(cls, name, value)}
        bases = [base.__qualname__ for base in cls.__bases__]
        self._note(f"class {label}", [*bases, "", *sorted(attributes)])
        for base in (*cls.__bases__, type(cls)):
            self._reach("", base)
        for name, value in attributes.items():
            self._reach(f"{label}.{name}", value)

    def _reach(self, name: str, value: Any) -> None:
        """Have a value visited later."""
        if id(value) not in self._seen and (name, id(value)) not in self._named:
            self._named.add((name, id(value)))
            self._kept.append(value)
            self._waiting.append((name, value))

    # -- values ------------------------------------------------------------------------------------

    def _describe(self, name: str, value: Any, depth: int, above: tuple[int, ...]) -> Iterator[str]:
        """Yield a value's canonical text. Code inside it is named here, and visited later.

        Args:
            name: for what is listed as unseen.
            above: identities of the containers that it is in.
        """
        self._left -= 1
        kind = type(value)
        yield kind.__qualname__
        if self._left < 0 or depth > limits.REACHED_DEPTH or id(value) in above:
            return  # of what is too large, or contains itself, the beginning counts
        if _is_code(value) or issubclass(kind, ModuleType):
            yield _name_of_code(value)
            self._reach("", value)
            return
        if _owner_of_module(_module_of(kind)) is _Owner.USER:
            self._reach("", kind)
        above = (*above, id(value))
        if issubclass(kind, Enum):
            yield value._name_
            yield from self._describe(name, value._value_, depth + 1, above)
        elif (text := _plain_text(value)) is not None:
            yield text
        elif issubclass(kind, _CONTAINERS):
            yield from self._describe_container(name, value, depth, above)
        elif issubclass(kind, (operator.itemgetter, operator.attrgetter, operator.methodcaller)):
            yield from self._describe(name, value.__reduce__()[1:], depth + 1, above)
        else:
            yield from self._describe_object(name, value, depth, above)

    def _describe_container(self, name: str, value: Any, depth: int, above: tuple[int, ...]) -> Iterator[str]:
        yield str(len(value))
        parts = [*itertools.islice(value, limits.REACHED_PLAIN_VALUES)]
        is_set = issubclass(type(value), (set, frozenset))
        if _PLAIN.issuperset(map(type, parts)) and not issubclass(type(value), (dict, types.MappingProxyType)):
            if not is_set or len(parts) == len(value):
                yield repr(sorted(map(repr, parts)) if is_set else parts)
            return
        if is_set:
            if len(parts) <= self._left:  # of a larger one, some elements could not be told from others
                yield from sorted("\0".join(self._describe(name, each, depth + 1, above)) for each in parts)
            return
        if issubclass(type(value), (dict, types.MappingProxyType)):
            parts = [part for key in parts for part in (key, value[key])]
            if _PLAIN.issuperset(map(type, parts)):
                yield repr(parts)
                return
        for part in parts:
            if self._left < 0:
                return
            yield from self._describe(name, part, depth + 1, above)

    def _describe_object(self, name: str, value: Any, depth: int, above: tuple[int, ...]) -> Iterator[str]:
        """Yield the attributes of an object whose class is the user's or a ready-made step's; of others only the class
        counts."""
        module = _module_of(type(value))
        if (array := _array_text(value)) is not None:
            self._note_package(module)
            yield from array
        elif _owner_of_module(module) is not _Owner.USER and not _is_ready_made(value):
            self._note_class(name, value)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            public_only = self._public_only and id(value) in self._roots
            for attribute, part in _attributes(value):
                if public_only and attribute.startswith("_"):
                    continue
                if name:
                    yield attribute
                    yield from self._describe(f"{name}.{attribute}", part, depth + 1, above)
                else:
                    self._reach(f"attribute {attribute}", part)

    # -- facts -------------------------------------------------------------------------------------

    def _note(self, name: str, texts: Iterable[str]) -> None:
        """Add texts to a fact; two things of one name are one fact."""
        h = self._hashers.setdefault(name, blake2b(digest_size=8))
        for text in texts:
            h.update(text.encode("utf-8", "surrogatepass") + b"\0")

    def _note_class(self, name: str, value: Any) -> None:
        """Note that of a value only its class counts."""
        kind = type(value)
        module = _module_of(kind)
        self._note_package(module)
        if name and module.partition(".")[0] != "ferryman":
            self._note(name, [f"object {kind.__qualname__}"])
            self._unseen[f"{name} ({module}.{kind.__qualname__})"] = None

    def _note_package(self, module: str) -> None:
        """Note the version of the package that a module is of, if it is of one."""
        if _owner_of_module(module) is _Owner.PACKAGE:
            package, version = _version_of(module)
            self._versions[f"{PACKAGE}{package}"] = version

    def _label(self, module: str, qualname: str) -> str:
        """Return what a user would call something: without its module where that is the module of the node's function,
        which has another name when the plan file is run as a program."""
        name = qualname.rpartition("<locals>.")[2]
        return name if module == self._home else f"{module}.{name}"


# Code: what a function reads, and what an object wraps.


def bytecode(code: CodeType) -> Iterator[str]:
    """Yield the bytecode and the constants of code, without line numbers."""
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from bytecode(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


class Import(NamedTuple):
    """An import statement inside code.

    Attributes:
        level: number of leading dots.
        members: the names that are taken from the module.
    """

    name: str
    level: int
    members: tuple[str, ...]

    def absolute_name(self, package: str) -> str:
        """Return the module's absolute name, in code of this package."""
        if not self.level:
            return self.name
        try:
            return importlib.util.resolve_name("." * self.level + self.name, package)
        except ImportError:  # it climbs out of the package
            return self.name


class NamesUsed(NamedTuple):
    """Globals that code reads, each with the attributes that follow it at once, and the modules that it imports."""

    names: tuple[tuple[str, ...], ...]
    imports: tuple[Import, ...]


@functools.lru_cache(maxsize=1024)
def names_used(code: CodeType) -> NamesUsed:
    """Return what this code, and code defined in it, reads and imports, in the order of the code."""
    names: list[tuple[str, ...]] = []
    imports: list[Import] = []
    chain: list[str] = []
    constants: list[Any] = [0, ()]
    for operation, argument in _operations(code):
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain.append(code.co_names[argument >> 1 if _ATTRIBUTE_SHIFTED and operation == "LOAD_ATTR" else argument])
            continue
        if chain:
            names.append(tuple(chain))
            chain = []
        if operation == "LOAD_GLOBAL":
            chain = [code.co_names[argument >> 1]]
        elif operation == "LOAD_NAME":
            chain = [code.co_names[argument]]
        elif operation == "LOAD_CONST":
            constants = [constants[-1], code.co_consts[argument]]
        elif operation == "LOAD_SMALL_INT":
            constants = [constants[-1], argument]
        elif operation == "IMPORT_NAME":
            level, members = constants
            imports.append(Import(code.co_names[argument], level if type(level) is int else 0, members or ()))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_used(constant)
            names.extend(inner.names)
            imports.extend(inner.imports)
    return NamesUsed(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(imports)))


_ATTRIBUTE_SHIFTED: Final = sys.version_info >= (3, 12)
"""Whether the lowest bit of the argument of ``LOAD_ATTR`` is a flag."""


def _operations(code: CodeType) -> Iterator[tuple[str, int]]:
    """Yield the operations of code with their arguments; ``dis`` takes a hundred times as long."""
    raw, extended = code.co_code, 0
    for at in range(0, len(raw), 2):
        operation, argument = dis.opname[raw[at]], raw[at + 1] | extended
        extended = argument << 8 if operation == "EXTENDED_ARG" else 0
        if operation not in ("EXTENDED_ARG", "CACHE"):
            yield operation, argument


_CachedFunction: Final = type(functools.lru_cache(len))

_WRAPPERS: Final = (
    MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    functools.partial,
    functools.partialmethod,
    functools.cached_property,
    functools.singledispatchmethod,
    staticmethod,
    classmethod,
    property,
    _CachedFunction,
)


def _is_code(value: Any) -> bool:
    """Return whether a value is a function, a class, or made of one."""
    kind = type(value)
    return kind is FunctionType or issubclass(kind, type) or issubclass(kind, _WRAPPERS)


def _unwrap(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a method, a partial or another wrapper is made of, each with the name of its fact."""
    if isinstance(value, MethodType | classmethod | staticmethod):
        yield "", value.__func__
    if isinstance(value, MethodType):
        yield "", value.__self__
    if isinstance(value, functools.partial | functools.partialmethod):
        yield "", value.func
        for number, argument in enumerate(value.args):
            yield f"argument {number}", argument
        for name, argument in value.keywords.items():
            yield f"argument {name}", argument
    if isinstance(value, property):
        yield from (("", each) for each in (value.fget, value.fset, value.fdel) if each is not None)
    if isinstance(value, functools.cached_property | functools.singledispatchmethod):
        yield "", value.func
    if isinstance(value, _CachedFunction):
        yield "", value.__wrapped__


def _wrapped_by(function: FunctionType) -> Iterator[Any]:
    """Yield the functions that a package's function was given, as a decorator is, or that were registered with it."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        among = value.values() if issubclass(type(value), (dict, types.MappingProxyType)) else [value]
        yield from (each for each in among if _is_code(each))
    if (wrapped := vars(function).get("__wrapped__")) is not None and _is_code(wrapped):
        yield wrapped


def _name_of_code(value: Any) -> str:
    """Return the name of a function, class or module without where it is defined, where it has one."""
    if isinstance(value, FunctionType):
        return value.__code__.co_name
    if issubclass(type(value), type):
        return str(value.__qualname__).rpartition("<locals>.")[2]
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) and not issubclass(type(value), ModuleType) else ""


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a function that have a default, with it."""
    code, values = function.__code__, function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


_MADE_BY_PYTHON: Final = frozenset(
    {
        *("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__classcell__", "__dict__"),
        *("__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__qualname__"),
        *("__static_attributes__", "__weakref__", "__abstractmethods__", "_abc_impl", "__slots__"),
        *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__repr__", "__eq__", "__hash__"),
        "__replace__",
    }
)


def _is_written(cls: type, name: str, value: Any) -> bool:
    """Return whether a class attribute is what the user wrote, not what Python or a decorator of it adds."""
    if name in _MADE_BY_PYTHON or isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
        return False
    if issubclass(type(cls), EnumMeta) and name.startswith("_") and name.endswith("_"):
        return False
    return not name.startswith("__pydantic_")


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes by name, without calling code of its class; of a dataclass, the fields that make
    two objects differ."""
    kind = type(value)
    left_out = {each.name for each in fields(kind) if not each.compare} if is_dataclass(kind) else set()
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        left_out |= {name for name, each in vars(base).items() if isinstance(each, functools.cached_property)}
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    found[name] = slot.__get__(value, kind)
                except AttributeError:  # not set
                    continue
    with contextlib.suppress(AttributeError):
        found |= object.__getattribute__(value, "__dict__")
    yield from sorted((name, each) for name, each in found.items() if isinstance(name, str) and name not in left_out)


def _is_ready_made(value: Any) -> bool:
    """Return whether a value is a ready-made step, of which the arguments count."""
    return _module_of(type(value)).startswith("ferryman.steps") and is_dataclass(value)


# Values with a canonical text.

_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of which ``repr`` is the same in every process, so that containers of them are described at once."""

_CONTAINERS: Final = (list, tuple, deque, dict, set, frozenset, types.MappingProxyType)


def _plain_text(value: Any) -> str | None:
    """Return the text of a value that has one which is the same in every process; None: it has not."""
    match value:
        case None | bool() | float() | complex():
            return repr(value)
        case int():
            return int.__format__(value, "x")
        case str():
            return str.__str__(value)
        case bytes() | bytearray():
            return bytes(value).decode("latin-1")
        case date() | time():
            return value.isoformat()
        case timedelta() | timezone() | range() | slice():
            return repr(value)
        case Decimal():
            return str(value)
        case PurePath():
            return value.as_posix()
        case re.Pattern():
            return f"{int(value.flags)} {value.pattern!r}"
    if (type(value).__module__, type(value).__qualname__) in _TEXT_IS_CANONICAL:
        return str(value)
    return "" if value is ... or value is NotImplemented else None


_TEXT_IS_CANONICAL: Final = (("fractions", "Fraction"), ("uuid", "UUID"), ("zoneinfo", "ZoneInfo"))
"""Classes by their names: importing them would make each start slower."""


def _array_text(value: Any) -> list[str] | None:
    """Return the text of a NumPy array or number; None for anything else, and for arrays of objects or larger ones."""
    kind = type(value)
    if kind.__module__ != "numpy" or not hasattr(kind, "tobytes") or value.dtype.hasobject:
        return None
    if value.nbytes > limits.REACHED_BYTES:
        return None
    return [value.dtype.str, str(value.shape), blake2b(value.tobytes()).hexdigest()]


def describe_path(path: Path) -> Iterator[str]:
    """Yield the content of a file, or the names and the content of the files of a folder.

    Of a large file its size counts, and pieces of its beginning, middle and end.
    """
    if path.is_dir():
        names = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
        yield f"folder of {len(names)}"
        for name in names[: limits.REACHED_FACTS]:
            yield name
            yield from describe_path(path / name)
        return
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            yield f"file of {size}"
            last = max(0, size - limits.REACHED_BYTES)
            for at in dict.fromkeys([0, last // 2, last]):
                file.seek(at)
                yield blake2b(file.read(limits.REACHED_BYTES)).hexdigest()
    except FileNotFoundError:
        yield "missing"
    except OSError as e:
        yield f"unreadable: {type(e).__name__}"


# Modules: the user's own, installed packages, Python's.


class _Owner(Enum):
    """Whose a module is."""

    USER = "the user's"
    PACKAGE = "an installed package's"
    OTHER = "Python's, or Ferryman's"


_STANDARD: Final = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))


def _module_of(value: Any) -> str:
    """Return the name of the module that a value's code is in; "" if it has none."""
    if isinstance(value, FunctionType):  # not ``__module__``, which a decorator copies
        return str(value.__globals__.get("__name__", ""))
    if not _is_code(value):
        value = type(value)
    try:
        module = vars(value).get("__module__") if issubclass(type(value), type) else None
        module = value.__module__ if module is None else module
    except Exception:  # an attribute that raises
        return ""
    return module if isinstance(module, str) else ""


def _owner_of_module(name: str) -> _Owner:
    """Return whose a module is: installed packages lie in ``site-packages``, except those that the plan is of."""
    top = name.partition(".")[0]
    if top in ("ferryman", "builtins", ""):
        return _Owner.OTHER
    if name == "__main__" or name in cloudpickle.list_registry_pickle_by_value():
        return _Owner.USER
    place = _place_of_module(name)
    if place is None:
        standard = top in sys.stdlib_module_names or name not in sys.modules
        return _Owner.OTHER if standard else _Owner.USER
    if "/site-packages/" in place or "/dist-packages/" in place:
        return _Owner.PACKAGE
    return _Owner.OTHER if place.startswith(_STANDARD) else _Owner.USER


def _place_of_module(name: str) -> str | None:
    """Return the path of a module's file or folder; None if it has none."""
    module = sys.modules.get(name)
    if module is None:
        spec = _find_spec(name.partition(".")[0])
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    else:
        places = [vars(module).get("__file__"), *(vars(module).get("__path__") or ())]
    place = next((each for each in places if isinstance(each, str) and each not in ("built-in", "frozen")), None)
    return None if place is None else place.replace("\\", "/")


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return where a module is, without importing the packages that it is in; None: there is none."""
    module, path = sys.modules.get(name), None
    if module is not None and isinstance(spec := vars(module).get("__spec__"), importlib.machinery.ModuleSpec):
        return spec
    parent = name.rpartition(".")[0]
    if parent:
        above = _find_spec(parent)
        if above is None or above.submodule_search_locations is None:
            return None
        path = [*above.submodule_search_locations]
    return importlib.machinery.PathFinder.find_spec(name, path)


def _code_of_module(name: str) -> CodeType | None:
    """Return the code of a module's file; None: there is no such module, or it is not written in Python."""
    spec = _find_spec(name)
    loader: Any = None if spec is None else spec.loader
    try:
        source = loader.get_source(name) if hasattr(loader, "get_source") else None
        return None if source is None else compile(source, name, "exec", dont_inherit=True)
    except (ImportError, SyntaxError, ValueError):
        return None


def _version_of(module: str) -> tuple[str, str]:
    """Return the package that a module is of, by the name that is imported, and its version; "?" if it says none."""
    from importlib.metadata import PackageNotFoundError  # it would make each start slower
    from importlib.metadata import version as version_of

    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        loaded = sys.modules.get(name)
        version = None if loaded is None else vars(loaded).get("__version__")
        if isinstance(version, str):
            return name, version
        try:
            return name, version_of(name.replace(".", "-"))
        except (PackageNotFoundError, ValueError):
            continue
    return parts[0], "?"
