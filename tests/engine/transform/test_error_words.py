"""What other people's code says when something fails, whatever it is: an error of that document, in words that can be
kept, and no more of them than can be read."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.engine.results import ErrorKind, Traces, classify_error
from ferryman.engine.summary import Summary
from ferryman.errors import PermanentError, describe, plain_text, safe_repr, shortened
from ferryman.plan import Handle, Plan
from ferryman.routers import Router
from ferryman.sources import Listed, Memory, Source
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder
from tests.support.tiers import sampled

HALF = b"a\xff.txt".decode("utf-8", "surrogateescape")


class Lazy(Exception):
    """As of API clients: it gives access to the fields of the answer."""

    def __init__(self) -> None:
        self.__dict__["answer"] = {"code": 7}
        super().__init__("refused")

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["answer"][name]


class Endless(Exception):
    """Asks itself for what it has not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self, name + "_")


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Wordless(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class Closed(Exception):
    """No attribute of it can be asked for, not even those that all have."""

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(name)


class Unpickled(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not pickled")


class Never(Exception):
    """Cannot be made again."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("two arguments")


def syntax() -> Exception:
    return SyntaxError("malformed", ("f", 1, 1, b"bytes"))  # type: ignore[arg-type]


def loop() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def grouped() -> Exception:
    return ExceptionGroup(HALF, [Silent(), syntax(), ExceptionGroup("inner", [Lazy()])])


def noted() -> Exception:
    error = ValueError("noted")
    error.__notes__ = 7  # type: ignore[assignment]
    return error


def long() -> Exception:
    return ValueError("begin" + "x" * 1_000_000 + "end")


def chained() -> Exception:
    error = ValueError("last")
    for n in range(3000):
        before, error = error, ValueError(f"caused {n}")
        error.__cause__ = before
    return error


def in_a_file() -> Exception:
    namespace: dict[str, Any] = {}
    exec(compile("def fail(): raise ValueError('here')", f"/tmp/{HALF}", "exec"), namespace)
    try:
        namespace["fail"]()
    except ValueError as e:
        return e
    raise AssertionError


ERRORS: dict[str, Callable[[], Exception]] = {
    "an attribute of it fails": Lazy,
    "asks itself without end": Endless,
    "no words": Silent,
    "leaves when asked": Leaving,
    "a number for words": Wordless,
    "nothing can be asked": Closed,
    "bytes in a syntax error": syntax,
    "causes in a circle": loop,
    "three thousand causes": chained,
    "a group": grouped,
    "notes that are none": noted,
    "half a character": lambda: ValueError(HALF),
    "half a character, foreseen": lambda: PermanentError(HALF),
    "a file's name": in_a_file,
    "a megabyte": long,
    "cannot be pickled": Unpickled,
    "cannot be made again": lambda: Never(1, 2),
    "a key error of half a character": lambda: KeyError(HALF),
    "an odd name": lambda: type(HALF, (Exception,), {})("named"),
}


def raised(make: Callable[[], Exception]) -> Exception:
    try:
        raise make()
    except Exception as e:
        return e


@pytest.mark.rule("errors.any")
@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS.keys())
def test_any_error_is_put_into_words(make: Callable[[], Exception]) -> None:
    """They name its class and can be stored; the traceback has the line that raised it."""
    error = raised(make)
    fault = classify_error(error, "work", "step work", traces=Traces())
    assert fault.text.startswith(f"step work: {plain_text(type(error).__name__)}")
    assert fault.kind in (ErrorKind.UNFORESEEN, ErrorKind.PERMANENT)
    assert len(fault.text.encode()) < 2 * limits.MESSAGE_CHARACTERS
    assert len(fault.trace.encode()) <= 2 * limits.TRACE_CHARACTERS
    if fault.kind is ErrorKind.UNFORESEEN and type(error) is not Closed:
        assert "in raised" in fault.trace


@pytest.mark.rule("errors.limit")
def test_a_long_message_is_shortened_in_the_middle() -> None:
    text = plain_text("begin" + "x" * 1_000_000 + "end")
    assert text.startswith("beginx")
    assert text.endswith("xend")
    assert f"{limits.format_count(1_000_008 - limits.MESSAGE_CHARACTERS)} characters left out" in text
    assert len(text) < limits.MESSAGE_CHARACTERS + 100
    assert shortened("x" * limits.MESSAGE_CHARACTERS, limits.MESSAGE_CHARACTERS) == "x" * limits.MESSAGE_CHARACTERS
    assert safe_repr(Silent()) == "a Silent"
    assert describe(ValueError(HALF)) == r"ValueError: a\udcff.txt"


@pytest.mark.rule("errors.limit")
def test_the_frames_of_a_traceback_have_room_beside_a_long_message() -> None:
    fault = classify_error(raised(long), "work", "step work", traces=Traces())
    assert "in raised" in fault.trace
    assert "characters left out" in fault.trace
    assert len(fault.trace) <= limits.TRACE_CHARACTERS + 10


@pytest.mark.rule("errors.limit")
@pytest.mark.parametrize("where", ["step", "destination"])
def test_many_long_messages_take_little_memory_and_disk(place: Path, where: str) -> None:
    """Forty documents, each with an error of 2 MB: no more than a few are in memory at once, and of each the beginning
    is kept. (What a destination returns for a chunk is in memory at once; here that are two answers.)"""
    words = "refused: " + "x" * 2_000_000

    def step(doc: Document) -> Document:
        raise PermanentError(f"{doc.id} {words}")

    def answer(delivery: Delivery) -> Outcome:
        return Outcome.permanent(f"{delivery.id} {words}")

    def run(name: str, documents: int) -> Summary:
        plan = Plan(name, version=1)
        docs: Handle = plan.source("docs", Memory([{"id": f"d{n}"} for n in range(documents)]))
        if where == "step":
            docs = docs.step("work", step, brake=1000)
        docs.destination("out", Recorder(place / "out.jsonl", answer=answer), backoff=0, batch=2)
        return run_plan(plan, place / "state")

    run("first", 1)  # loads what there is to load
    tracemalloc.start()
    try:
        summary = run("long", 40)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert summary.failed + summary.rejected == 40
    assert peak < 20 * len(words)
    root = place / "state" / "long-v1"
    assert sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) < len(words)
    rows = account.deliveries(root, status="failed") or account.deliveries(root, status="rejected")
    assert all(f"{row['document']} refused: xx" in row["message"] for row in rows)
    assert all(len(row["message"]) < 2 * limits.MESSAGE_CHARACTERS for row in rows)


BAD = {f"bad{n:02}": make for n, make in enumerate(ERRORS.values())}
GOOD = ["a", "m", "z"]


def check(id: str) -> None:
    """Raise what this document is for."""
    if id == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    if id in BAD:
        raise BAD[id]()


def plain(doc: Document) -> Document:
    check(doc.id)
    return doc


def several(docs: list[Document]) -> list[Document]:
    return [plain(doc) for doc in docs]


def answers(docs: list[Document]) -> list[Any]:
    found: list[Any] = []
    for doc in docs:
        try:
            found.append(plain(doc))
        except Exception as e:
            found.append(e)
    return found


async def later(doc: Document) -> Document:
    await asyncio.sleep(0)
    return plain(doc)


def made(doc: Document) -> Iterator[Document]:
    yield doc.child("one")
    yield plain(doc)


def update(key: str, state: Any, documents: list[Document]) -> tuple[int, Document]:
    check(key)
    return 1, Document(key)


def combiner(key: str, values: list[int]) -> int:
    check(key)
    return sum(values)


class Choosing(Router):
    def choose(self, document: Document) -> str:
        check(document.id)
        return "same"


class Writing(Recorder):
    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        for delivery in chunk:
            check(delivery.id)
        return super().write(chunk)


class Reading(Source):
    def __init__(self, ids: list[str]) -> None:
        super().__init__()
        self.ids = ids

    def partitions(self) -> list[Any]:
        return [0]

    def listing(self, partition: Any) -> Iterator[Listed]:
        yield from (Listed(id, 1, "1") for id in self.ids)

    def read(self, listed: Listed) -> Document:
        check(listed.id)
        return Document(listed.id, raw=b"x")


def id_of(doc: Document) -> str:
    return doc.id


def same(doc: Document) -> Document:
    return doc


Build = Callable[[Handle, Recorder], None]


def step(fn: Callable[..., Any], **options: Any) -> Build:
    return lambda node, out: _end(node.step("work", fn, brake=None, attempts=1, **options), out)


def keyed(fn: Callable[..., Any], **options: Any) -> Build:
    return lambda node, out: _end(node.keyed("keys", fn, brake=None, attempts=1, **{"key": id_of, **options}), out)


def _end(node: Handle, out: Recorder) -> None:
    node.destination("out", out, backoff=0, attempts=1)


def key(doc: Document) -> str:
    check(doc.id)
    return doc.id


PLACES: dict[str, Build] = {
    "a step": step(plain),
    "a generator": step(made),
    "a batch": step(several, batch=4),
    "an answer of a batch": step(answers, batch=4),
    "threads": step(plain, concurrency=2),
    "the event loop": step(later),
    "a router": lambda node, out: _end(node.route("fork", Choosing(), brake=None, attempts=1).step("same", same), out),
    "a key": keyed(lambda key, state, documents: (1, Document(key)), key=key),
    "an update": keyed(update),
    "a combiner": lambda node, out: _end(
        node.combine("keys", combiner, key=id_of, inverse=operator.neg, brake=None, attempts=1), out
    ),
    "a destination": lambda node, out: _end(node, Writing(Path(out.path))),
    "a read": _end,
}


@pytest.mark.rule("errors.any")
@pytest.mark.parametrize("where", PLACES)
def test_wherever_it_is_raised_it_is_one_documents_error(place: Path, where: str) -> None:
    """Each of these errors is of one document; all others are delivered."""
    _fails_alone(place, where, [*GOOD, *BAD], InProcess(slots=1))


@pytest.mark.rule("errors.any")
@pytest.mark.parametrize("where", sampled(["a step", "an update", "a generator", "a batch", "a router", "a read"], 6))
def test_so_it_is_in_a_child(place: Path, where: str) -> None:
    """A document that kills its worker has all others of its task looked at in a child, which tells what it raised."""
    _fails_alone(place, where, [*GOOD, *BAD, "killer"], InProcess(slots=1, fork=True))


def _fails_alone(place: Path, where: str, ids: list[str], runner: InProcess) -> None:
    plan, out = Plan("words", version=1), Recorder(place / "out.jsonl")
    given = Reading(ids) if where == "a read" else Memory([{"id": id, "raw": b"x"} for id in ids])
    PLACES[where](plan.source("docs", given, brake=None, attempts=1), out)
    assert run_plan(plan, place / "state", runner=runner, wait=0).exit == 3
    assert {line["id"] for line in out.lines() if line["said"] == "ok" and "#" not in line["id"]} == set(GOOD)
    for id in ids[len(GOOD) :]:
        events = account.history(state_root(plan, place / "state"), id, plan)
        assert {event["status"] for event in events} & {"DEAD", "ERROR_DOC"}, id
        assert all(len(event["message"] or "") < 3 * limits.MESSAGE_CHARACTERS for event in events), id
