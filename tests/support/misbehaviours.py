"""What steps do to documents: some two hundred ways to misbehave for one document, and what is right then.

Each is a small function of the document that it misbehaves for. For all others a step does what ``good`` does: field
``seen`` becomes what field ``n`` is. The tables below say what becomes of the document, whichever way its step is
called; ``Misbehaviour.but`` names the exceptions.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import dataclasses
import datetime
import decimal
import enum
import faulthandler
import fractions
import gc
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ferryman.document import Document
from ferryman.errors import (
    BadDocument,
    Dropped,
    EngineError,
    PermanentError,
    PlanError,
    StateDamaged,
    StateLost,
    UsageError,
    WorkerDied,
)
from tests.support import odd_coroutines as coroutines
from tests.support import odd_errors as odd
from tests.support.odd_coroutines import good


@dataclasses.dataclass(frozen=True)
class Misbehaviour:
    """One way to misbehave.

    Attributes:
        call: given the document; what the step returns. An ``async def`` where ``kind`` is "async".
        outcome: "failed", "rejected", "dropped" or "delivered": what becomes of the document, or of its ``member``.
        says: part of the ledger's message.
        kind: "return", "raise", "field", "change", "process", "kill", "time", "async".
        member: what follows the document's id in that of the child which the outcome is of.
        fields: names of the fields that are delivered, all with the value of ``n``; None: whatever they are.
        but: way of calling -> another outcome, and what is said.
        without: ways of calling where it makes no sense.
    """

    name: str
    call: Callable[[Document], Any]
    kind: str
    outcome: str
    says: str = ""
    member: str = ""
    fields: tuple[str, ...] | None = None
    but: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()


TABLE: list[Misbehaviour] = []


def _rows(kind: str, outcome: str, calls: dict[str, Any], **options: Any) -> None:
    """Add rows: name -> the function, or (function, part of the message)."""
    for name, given in calls.items():
        call, says = given if isinstance(given, tuple) else (given, "")
        TABLE.append(Misbehaviour(name, call, kind, outcome, says, **options))


# -- what it returns -----------------------------------------------------------------------------------


async def _coroutine() -> None:
    return None


async def _async_generator() -> Any:
    yield None


def _closed(coroutine: Any) -> Any:
    coroutine.close()
    return coroutine


def _half_way(doc: Document) -> Iterator[Document]:
    yield doc.child("a", n=doc["n"])
    raise ValueError("half way")


def _interrupted_half_way(doc: Document) -> Iterator[Document]:
    yield doc.child("a", n=doc["n"])
    raise KeyboardInterrupt


class _BadIter:
    def __iter__(self) -> Any:
        raise LookupError("no iteration")


class _NoIterator:
    def __iter__(self) -> Any:
        return 7


class _LongList(list[Any]):
    def __len__(self) -> int:
        raise ZeroDivisionError("no length")


class _Proxy:
    """Says that it is a document."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return Document


def _renamed(doc: Document, id: Any) -> list[Any]:
    child = doc.child("a", n=doc["n"])
    child.id = id
    return [child]


def _nameless(doc: Document) -> list[Any]:
    child = doc.child("a", n=doc["n"])
    del child.id
    return [child]


def _returns_error(doc: Document) -> Any:
    return ValueError("not raised")


_rows(
    "return",
    "rejected",
    {
        "a number": (lambda doc: 7, "a int"),
        "a float": (lambda doc: 0.5, "a float"),
        "true": (lambda doc: True, "a bool"),
        "a str": (lambda doc: doc.id, "a str"),
        "bytes": (lambda doc: b"x", "a bytes"),
        "a dict": (lambda doc: {"n": 1}, "a dict"),
        "its fields": (lambda doc: doc.fields, "a dict"),
        "a class": (lambda doc: Document, "not the document"),
        "a function": (lambda doc: good, "a function"),
        "a module": (lambda doc: json, "a module"),
        "not implemented": (lambda doc: NotImplemented, "a NotImplementedType"),
        "an object": (lambda doc: object(), "a object"),
        "a coroutine": (lambda doc: _closed(_coroutine()), "a coroutine"),
        "an async generator": (lambda doc: _async_generator(), "a async_generator"),
        "an interrupt, returned": (lambda doc: KeyboardInterrupt(), "a KeyboardInterrupt"),
        "a list with none": (lambda doc: [doc, None], "a NoneType among its documents"),
        "a list of numbers": (lambda doc: [1, 2], "a int among its documents"),
        "a nested list": (lambda doc: [[doc]], "a list among its documents"),
        "an array": (lambda doc: np.arange(3), "among its documents"),
        "itself twice": (lambda doc: [doc, doc], "the document itself twice"),
        "another document": (lambda doc: Document("other", n=doc["n"]), "of another id"),
        "a child of another": (lambda doc: Document("other").child("a"), "of another id"),
        "a grandchild of nobody": (lambda doc: Document(f"{doc.id}x#a"), "of another id"),
        "two children of one key": (lambda doc: [doc.child("a"), doc.child("a")], "two children of one key"),
        "a child without a key": (lambda doc: [doc.child("")], "an empty key"),
        "a child whose id is none": (lambda doc: _renamed(doc, None), "which is not text"),
        "a child whose id is a number": (lambda doc: _renamed(doc, 7), "which is not text"),
        "a child whose id is bytes": (lambda doc: _renamed(doc, b"x"), "which is not text"),
        "a child whose id has a surrogate": (lambda doc: _renamed(doc, f"{doc.id}#\ud800"), "which is not text"),
        "a child called nothing": (lambda doc: _renamed(doc, ""), "of another id"),
    },
    without=("arrow", "join"),
)
_rows(
    "return",
    "failed",
    {
        "raises half way": (_half_way, "ValueError: half way"),
        "interrupted half way": (_interrupted_half_way, "KeyboardInterrupt"),
        "cannot be iterated": (lambda doc: _BadIter(), "LookupError: no iteration"),
        "no iterator": (lambda doc: _NoIterator(), "TypeError"),
        "a mapped error": (lambda doc: (1 / 0 for _ in [1]), "ZeroDivisionError"),
        "a child without an id": (_nameless, "AttributeError"),
        "something that says it is a document": (lambda doc: [_Proxy()], "AttributeError"),
    },
    without=("arrow", "join"),
)
_rows(
    "return",
    "rejected",
    {"an error, returned": (_returns_error, "a ValueError")},
    but=dict.fromkeys(
        (
            *("batch", "batch below", "after children, batch", "batch concurrency", "concurrency"),
            *("async", "async concurrency", "async batch"),
        ),
        ("failed", "ValueError: not raised"),
    ),
    without=("arrow", "join"),
)
_rows("return", "dropped", {"none": lambda doc: None}, without=("arrow",))
_rows("return", "dropped", {"an empty list": lambda doc: []}, without=("arrow",))
_rows("return", "dropped", {"an empty generator": lambda doc: iter(())}, without=("arrow",))
_rows(
    "return",
    "delivered",
    {"a list that knows no length": lambda doc: _LongList([good(doc)])},
    fields=("n", "seen"),
    without=("arrow", "join"),
)

# -- what it raises ------------------------------------------------------------------------------------


def _raising(make: Callable[[], BaseException]) -> Callable[[Document], Any]:
    def call(doc: Document) -> Any:
        raise make()

    return call


def _deep(doc: Document) -> Any:
    return _deep(doc)


def _too_large(doc: Document) -> Any:
    return bytearray(1 << 60)


def _not_an_error(doc: Document) -> Any:
    raise "text"  # type: ignore[misc]  # noqa: B016


def _stop(doc: Document) -> Any:
    return next(iter(()))


def _undecodable(doc: Document) -> Any:
    return b"\xff".decode()


def _exits(doc: Document) -> Any:
    sys.exit("usage: …")


def _compiled(doc: Document) -> Any:
    return compile("(", "f", "exec")


_rows(
    "raise",
    "failed",
    {
        "an error": (_raising(lambda: ValueError("plain")), "ValueError: plain"),
        "an error without words": (_raising(ValueError), "ValueError"),
        "an error with bytes": (_raising(lambda: ValueError(b"\xff", None, 7)), "ValueError"),
        "a surrogate": (_raising(lambda: ValueError("name \udcff")), "ValueError: name"),
        "control characters": (_raising(lambda: ValueError("\0 \x1b[31m \r\n \u2028")), "ValueError"),
        "a long message": (_raising(lambda: ValueError("long " * 400_000)), "ValueError: long long"),
        "no str": (_raising(odd.NoStr), "NoStr"),
        "no repr": (_raising(lambda: odd.NoRepr(odd.NoRepr("x"))), "NoRepr"),
        "str is a number": (_raising(odd.StrIsNumber), "StrIsNumber"),
        "str exits": (_raising(odd.StrExits), "StrExits"),
        "str interrupts": (_raising(odd.StrInterrupts), "StrInterrupts"),
        "attributes without end": (_raising(odd.Recursive), "Recursive"),
        "lazy attributes": (_raising(odd.Lazy), "Lazy"),
        "no attributes": (_raising(odd.NoAttributes), "NoAttributes"),
        "no cause": (_raising(odd.NoCause), "NoCause"),
        "not comparable": (_raising(odd.Unequal), "Unequal"),
        "no truth": (_raising(odd.NoBool), "NoBool"),
        "cannot be pickled": (_raising(odd.NoReduce), "NoReduce"),
        "cannot be unpickled": (_raising(lambda: odd.TwoArguments(1, 2)), "TwoArguments: 1 and 2"),
        "holds a lock": (_raising(lambda: ValueError(threading.Lock())), "ValueError"),
        "no class": (_raising(odd.LiesAboutItsClass), "LiesAboutItsClass"),
        "no name": (_raising(odd.Nameless), ""),
        "a long name": (_raising(type("E" * 100_000, (Exception,), {})), "EEEE"),
        "notes that are no text": (_raising(odd.noted), "ValueError: with notes"),
        "a circle of causes": (_raising(odd.circle), "ValueError: one"),
        "its own context": (_raising(odd.own_cause), "ValueError: own cause"),
        "thousands of causes": (_raising(odd.long_chain), "ValueError: one of many"),
        "a group": (_raising(lambda: ExceptionGroup("g", [ValueError("a"), TypeError("b")])), "ExceptionGroup: g"),
        "a group of interrupts": (
            _raising(lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), SystemExit(3)])),
            "BaseExceptionGroup: g",
        ),
        "nested groups": (_raising(odd.nested_groups), "ExceptionGroup: group"),
        "a syntax error with bytes": (
            _raising(lambda: SyntaxError("malformed", ("f", 1, 1, b"bytes"))),
            "SyntaxError: malformed",
        ),
        "a syntax error with odd places": (
            _raising(lambda: SyntaxError("malformed", ("f", -5, 99, "x", 10**20, None))),
            "SyntaxError",
        ),
        "a syntax error": (_compiled, "SyntaxError"),
        "a decode error": (_undecodable, "UnicodeDecodeError"),
        "recursion": (_deep, "RecursionError"),
        "recursion, raised": (_raising(RecursionError), "RecursionError"),
        "out of memory": (_too_large, "MemoryError"),
        "out of memory, raised": (_raising(MemoryError), "MemoryError"),
        "not an error": (_not_an_error, "TypeError"),
        "exits": (_exits, "SystemExit: usage"),
        "exits with 0": (_raising(lambda: SystemExit(0)), "SystemExit: 0"),
        "exits with an object": (_raising(lambda: SystemExit(object())), "SystemExit"),
        "an interrupt": (_raising(KeyboardInterrupt), "KeyboardInterrupt"),
        "a generator's exit": (_raising(GeneratorExit), "GeneratorExit"),
        "a base exception": (_raising(lambda: odd.Base("of base")), "Base: of base"),
        "base exception itself": (_raising(BaseException), "BaseException"),
        "cancelled": (_raising(asyncio.CancelledError), "CancelledError"),
        "a future that was cancelled": (_raising(concurrent.futures.CancelledError), "CancelledError"),
        "an assertion": (_raising(lambda: AssertionError({"a": 1})), "AssertionError"),
        "a warning": (_raising(lambda: UserWarning("warned")), "UserWarning: warned"),
        "no space": (_raising(lambda: OSError(28, "No space left on device")), "No space left"),
        "an error of ours": (_raising(lambda: EngineError("ours")), "EngineError: ours"),
        "a worker's death": (_raising(lambda: WorkerDied("dead")), "WorkerDied: dead"),
        "a lost state": (_raising(lambda: StateLost("lost")), "StateLost: lost"),
        "a damaged state": (_raising(lambda: StateDamaged("/a", "torn")), "StateDamaged"),
        "a usage error": (_raising(lambda: UsageError("usage")), "UsageError: usage"),
        "a plan error without findings": (_raising(lambda: PlanError(7)), "PlanError"),  # type: ignore[arg-type]
    },
)
_rows(
    "raise",
    "failed",
    {
        "no more": (_stop, "StopIteration"),
        "no more, raised": (_raising(lambda: StopIteration(7)), "StopIteration"),
        "no more of async": (_raising(lambda: StopAsyncIteration(7)), "StopAsyncIteration"),
    },
    but=dict.fromkeys(("async", "async concurrency", "async batch", "generator"), ("failed", "")),
)
_rows(
    "raise",
    "rejected",
    {
        "a bad document": (_raising(lambda: BadDocument("cannot be parsed")), "cannot be parsed"),
        "a permanent error of a number": (_raising(lambda: PermanentError(7)), "PermanentError"),  # type: ignore[arg-type]
    },
)
_rows(
    "raise",
    "dropped",
    {
        "dropped": (_raising(lambda: Dropped("a draft")), "a draft"),
        "dropped for no text": (_raising(lambda: Dropped(object())), ""),
        "dropped for a surrogate": (_raising(lambda: Dropped("\udcff")), ""),
    },
    without=("key", "router"),
)

# -- fields that are not JSON --------------------------------------------------------------------------


def _field(make: Callable[[Document], Any]) -> Callable[[Document], Any]:
    def call(doc: Document) -> Any:
        doc["x"] = make(doc)
        return doc

    return call


def _nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def _itself() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def _dict_of_itself() -> Any:
    found: dict[str, Any] = {}
    found["x"] = found
    return found


def _key(key: Any) -> Callable[[Document], Any]:
    def call(doc: Document) -> Any:
        doc.fields[key] = 1
        return doc

    return call


class _Colour(enum.Enum):
    RED = object()


class _Strange:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __deepcopy__(self, _memo: Any) -> Any:
        raise KeyboardInterrupt


class _ExitsWhenCopied:
    def __deepcopy__(self, _memo: Any) -> Any:
        sys.exit(3)


class _Text(str):
    def __str__(self) -> str:
        raise ValueError("no text")


class _Number(int):
    def __int__(self) -> int:
        raise ValueError("no number")


@dataclasses.dataclass
class _Record:
    handle: Any


_rows(
    "field",
    "rejected",
    {
        "a set of objects": (_field(lambda doc: {object()}), "'x'"),
        "nan": (_field(lambda doc: float("nan")), "'x'"),
        "infinite": (_field(lambda doc: [1, {"a": float("-inf")}]), "'x'"),
        "a lock": (_field(lambda doc: threading.Lock()), "'x'"),
        "a generator": (_field(lambda doc: (n for n in range(3))), "'x'"),
        "a list in itself": (_field(lambda doc: _itself()), "'x'"),
        "a dict in itself": (_field(lambda doc: _dict_of_itself()), "'x'"),
        "nested 500 deep": (_field(lambda doc: _nested(500)), "'x'"),
        "nested 50 000 deep": (_field(lambda doc: _nested(50_000)), "'x'"),
        "a surrogate in a field": (_field(lambda doc: "a\ud800"), "'x'"),
        "a surrogate in a list": (_field(lambda doc: ["a", "\udcff"]), "'x'"),
        "a complex number": (_field(lambda doc: 1j), "'x'"),
        "a range": (_field(lambda doc: range(3)), "'x'"),
        "a path": (_field(lambda doc: pathlib.Path("/x")), "'x'"),
        "a fraction": (_field(lambda doc: fractions.Fraction(1, 3)), "'x'"),
        "a numpy complex number": (_field(lambda doc: np.complex64(0.5)), "'x'"),
        "a numpy array of objects": (_field(lambda doc: np.array([object()])), "'x'"),
        "a view of a dict": (_field(lambda doc: types.MappingProxyType({"a": 1})), "'x'"),
        "an enum of an object": (_field(lambda doc: _Colour.RED), "'x'"),
        "a class in a field": (_field(lambda doc: Document), "'x'"),
        "a function in a field": (_field(lambda doc: good), "'x'"),
        "an exception in a field": (_field(lambda doc: ValueError("x")), "'x'"),
        "a document in a field": (_field(lambda doc: Document("y")), "'x'"),
        "the document in its field": (_field(lambda doc: doc), "'x'"),
        "a socket": (_field(lambda doc: socket.socket()), "'x'"),
        "what raises when it is looked at": (_field(lambda doc: _Strange()), "'x'"),
        "what exits when it is copied": (_field(lambda doc: _ExitsWhenCopied()), "'x'"),
        "a record with a lock": (_field(lambda doc: _Record(threading.Lock())), "'x'"),
        "a str of its own": (_field(lambda doc: _Text("x")), "'x'"),
        "an int of its own": (_field(lambda doc: _Number(7)), "'x'"),
        "a key that is a tuple": (_key((1, 2)), ""),
        "a key that is none": (_key(None), ""),
        "a key that is an object": (_key(object()), ""),
        "a key with a surrogate": (_key("\ud800"), ""),
    },
    without=("arrow",),
)
_Pair = namedtuple("_Pair", "a b")


class _Fields(dict[str, Any]):
    def items(self) -> Any:
        raise ValueError("no items")


_rows(
    "field",
    "delivered",
    {
        "a date": _field(lambda doc: datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)),
        "a decimal": _field(lambda doc: decimal.Decimal("0.1")),
        "a uuid": _field(lambda doc: uuid.UUID(int=1)),
        "a named tuple": _field(lambda doc: _Pair(1, 2)),
        "an ordered dict": _field(lambda doc: OrderedDict(b=1, a=2)),
        "a set of numbers": _field(lambda doc: {1}),
        "bytes in a field": _field(lambda doc: b"\xff"),
        "a large text": _field(lambda doc: "x" * 3_000_000),
        "an empty key": _key(""),
        "a key with a NUL": _key("a\0b"),
        "many fields": lambda doc: doc.fields.update({f"f{n}": n for n in range(5000)}) or doc,
    },
    without=("arrow",),
)

_rows(
    "field",
    "delivered",
    {"a dict of its own": _field(lambda doc: _Fields(a=1))},
    but=dict.fromkeys(("above a batch", "duplicate"), ("rejected", "'x'")),  # no copy can be made
    without=("arrow",),
)

# -- what it does to the document ----------------------------------------------------------------------


def _set(name: str, value: Any) -> Callable[[Document], Any]:
    def call(doc: Document) -> Any:
        good(doc)
        setattr(doc, name, value)
        return doc

    return call


def _without(name: str) -> Callable[[Document], Any]:
    def call(doc: Document) -> Any:
        good(doc)
        delattr(doc, name)
        return doc

    return call


class _OtherDocument(Document):
    @property
    def fields(self) -> Any:
        raise ValueError("no fields")


def _of_another_class(doc: Document) -> Any:
    return _OtherDocument.of(doc.id, dict(doc.fields))


def _cleared(doc: Document) -> Any:
    doc.fields.clear()
    return doc


def _changed_when_it_fails(doc: Document) -> Any:
    doc.fields.clear()
    doc.raw = None
    doc.id = "other"
    raise ValueError("after changes")


def _again(after: Any, why: Any = "") -> Callable[[Document], Any]:
    def call(doc: Document) -> Any:
        good(doc).again(after, why=why)
        return doc

    return call


_GOOD = ("n", "seen")
_rows(
    "change",
    "delivered",
    {
        "another id": _set("id", "other"),
        "no id": _set("id", None),
        "an id that is a list": _set("id", []),
        "another version": _set("version", "\ud800"),
    },
    fields=_GOOD,
    without=("arrow", "join"),
)
_rows("change", "delivered", {"no fields": _cleared}, fields=(), without=("arrow", "join"))
_rows(
    "change",
    "rejected",
    {
        "raw is text": (_set("raw", "text"), "a str as raw"),
        "raw is a number": (_set("raw", 7), "a int as raw"),
        "raw is a bytearray": (_set("raw", bytearray(b"x")), "a bytearray as raw"),
        "refused": (_set("refused", "cannot be opened"), "cannot be opened"),
        "refused with a surrogate": (_set("refused", "\udcff"), ""),
        "refused for a number": (_set("refused", 7), "7"),
        "again never": (_again(float("nan")), "again"),
        "again some day": (_again("soon"), "again"),
        "again too late": (_again(1e300), "again"),
    },
    without=("arrow", "join"),
)
_rows(
    "change",
    "failed",
    {
        "the fields are gone": (_without("_fields"), "cannot be deleted"),
        "raw is gone": (_without("raw"), "cannot be deleted"),
        "the id is gone": (_without("id"), "cannot be deleted"),
        "the origin is gone": (_without("origin_id"), "cannot be deleted"),
        "the version is gone": (_without("version"), "cannot be deleted"),
        "refused is gone": (_without("refused"), "cannot be deleted"),
        "changed, then failed": (_changed_when_it_fails, "ValueError: after changes"),
    },
    without=("arrow", "join"),
)
_rows(
    "change",
    "failed",
    {"a document of another class": (_of_another_class, "no fields")},
    but=dict.fromkeys(("above a batch", "duplicate"), ("rejected", "cannot be copied (ValueError: no fields)")),
    without=("arrow", "join"),
)
_rows(
    "change",
    "delivered",
    {"again with a surrogate": _again(60, "\udcff"), "again for no text": _again(60, object())},
    fields=_GOOD,
    without=("arrow", "join"),
)
_rows(
    "change",
    "delivered",
    {
        "no parent": _set("parent_id", 7),
        "another origin": _set("origin_id", 7),
    },
    fields=_GOOD,
    without=("arrow", "join"),
)


# -- what it does to its process -----------------------------------------------------------------------


def _then_good(do: Callable[[], Any]) -> Callable[[Document], Any]:
    def call(doc: Document) -> Any:
        do()
        return good(doc)

    return call


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _fork_that_exits() -> None:
    if os.fork() == 0:
        sys.exit(0)


def _fork_left_behind() -> None:
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)


def _thread_that_raises() -> None:
    def work() -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()


def _patched_json() -> None:
    json.dumps = json.loads = _deep


def _no_modules() -> None:
    for name in ("json", "msgspec", "traceback", "asyncio"):
        sys.modules.pop(name, None)


def _deaf() -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only that one can
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)


def _no_output() -> None:
    sys.stdout.close()
    sys.stderr.close()
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def _traced() -> None:
    def trace(*_: Any) -> Any:
        raise ValueError("traced")

    threading.settrace(trace)


_rows(
    "process",
    "delivered",
    {
        "another folder": _then_good(lambda: os.chdir("/")),
        "no environment": _then_good(os.environ.clear),
        "no output": _then_good(_no_output),
        "deaf to signals": _then_good(_deaf),
        "a thread left behind": _then_good(threading.Thread(target=threading.Event().wait, daemon=True).start),
        "a thread that raises": _then_good(_thread_that_raises),
        "a fork": _then_good(_fork),
        "a fork that goes on": _then_good(os.fork),
        "a fork that exits": _then_good(_fork_that_exits),
        "a fork left behind": _then_good(_fork_left_behind),
        "a process left behind": _then_good(lambda: subprocess.Popen(["sleep", "1"])),
        "json patched": _then_good(_patched_json),
        "modules gone": _then_good(_no_modules),
        "garbage is left": _then_good(lambda: (gc.disable(), gc.set_threshold(0))),
        "no faulthandler": _then_good(
            lambda: (faulthandler.disable(), faulthandler.cancel_dump_traceback_later()),
        ),
        "threads are traced": _then_good(_traced),
        "a deep stack allowed": _then_good(lambda: sys.setrecursionlimit(10_000)),
        "umask": _then_good(lambda: os.umask(0o777)),
        "an alarm is off": _then_good(lambda: signal.setitimer(signal.ITIMER_REAL, 0)),
    },
    fields=_GOOD,
)


def _no_stack(doc: Document) -> Any:
    sys.setrecursionlimit(1)
    return doc


def _shallow(doc: Document) -> Any:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    sys.setrecursionlimit(depth + 3)
    return good(doc)


def _closes(doc: Document) -> Any:
    os.closerange(3, 200)
    return good(doc)


_rows("process", "failed", {"no stack": (_no_stack, "RecursionError"), "almost no stack": (_shallow, "")})

_rows(
    "kill",
    "rejected",
    {
        "ends its process": (_then_good(lambda: os._exit(3)), "it ended its process"),
        "ends its process in peace": (_then_good(lambda: os._exit(0)), "it ended its process"),
        "aborts": (_then_good(os.abort), "SIGABRT"),
        "killed": (_then_good(lambda: os.kill(os.getpid(), signal.SIGKILL)), "SIGKILL"),
        "terminated": (_then_good(lambda: os.kill(os.getpid(), signal.SIGTERM)), "SIGTERM"),
        "reads nothing": (_then_good(lambda: (faulthandler.disable(), ctypes.string_at(0))), "SIGSEGV"),
        "closes all files": (_closes, "it ended its process"),
    },
)

# -- time ----------------------------------------------------------------------------------------------


def _sleeps(doc: Document) -> Any:
    threading.Event().wait()


def _catches_timeouts(doc: Document) -> Any:
    try:
        threading.Event().wait()
    except BaseException as e:
        raise ValueError("caught") from e


def _slow_generator(doc: Document) -> Any:
    yield doc.child("a", n=doc["n"])
    threading.Event().wait()


_rows(
    "time",
    "failed",
    {
        "never returns": (_sleeps, "took longer than timeout="),
        "catches its timeout": (_catches_timeouts, ""),
    },
)
_rows(
    "time",
    "failed",
    {"never ends its list": (_slow_generator, "took longer than timeout=")},
    without=("generator", "arrow", "update", "combiner"),
)

# -- async def -----------------------------------------------------------------------------------------


_rows(
    "async",
    "failed",
    {
        "gathers an exit": (coroutines.gather, "SystemExit"),
        "a group with an exit": (coroutines.group, "SystemExit"),
        "waits for an exit": (coroutines.wait_for, "SystemExit"),
        "a thread that exits": (coroutines.to_thread, "SystemExit"),
        "cancels itself": (coroutines.cancels_itself, "CancelledError"),
        "runs the loop": (coroutines.runs_a_loop, "RuntimeError"),
        "closes the loop": (coroutines.closes_the_loop, "RuntimeError"),
    },
)
_rows(
    "async",
    "delivered",
    {
        "an exit left behind": coroutines.left_behind,
        "an interrupt left behind": coroutines.interrupt_left_behind,
        "exits soon": coroutines.soon,
        "stops the loop": coroutines.stops,
        "a handler that exits": coroutines.odd_handler,
    },
    fields=_GOOD,
)
_rows(
    "async time",
    "failed",
    {"hangs": (coroutines.hangs, "took longer than timeout="), "swallows its timeout": (coroutines.swallows, "")},
)
