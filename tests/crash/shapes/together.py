"""Shapes with steps that get several documents in a call, or have several calls under way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import Plan
from ferryman.remembered import Remember
from ferryman.routers import Duplicate
from tests.crash.shapes.shape import (
    BATCH,
    Arrived,
    Corpus,
    Shelf,
    chapters,
    deletes,
    failing,
    source,
    upserts,
    words_of,
)

Batched = Callable[[list[Document]], list[Any]]


def marked(doc: Document, mark: str) -> Document:
    """Its text says which steps it has passed, and how often."""
    doc.raw = (doc.raw or b"") + mark.encode()
    return doc


def batched(root: Path, name: str, *, alone: str, never: str, times: Mapping[str, int]) -> Batched:
    """A step of lists, which marks what it gets before it fails.

    Args:
        alone: this document fails every list but the one that has nothing else.
        never: this one has an error for an answer, for good.
        times: id -> so many answers that are errors, counted over all processes.
    """
    once = failing(root, name, times)

    def step(docs: list[Document]) -> list[Any]:
        for doc in docs:
            marked(doc, f"/{name}")
        if len(docs) > 1 and any(doc.id == alone for doc in docs):
            raise RuntimeError("not with others")
        return [PermanentError("never") if doc.id == never else _or_error(once, doc) for doc in docs]

    return step


def _or_error(step: Callable[[Document], Document], doc: Document) -> Document | Exception:
    try:
        return step(doc)
    except RuntimeError as e:
        return TransientError(str(e))


def columns(root: Path, name: str, alone: str, times: Mapping[str, int], batch: pa.RecordBatch) -> pa.RecordBatch:
    """An Arrow step: marks the contents, and fails as ``batched`` does, but for whole lists only."""
    ids = batch["id"].to_pylist()
    if len(ids) > 1 and alone in ids:
        raise RuntimeError("not with others")
    if len(ids) == 1:
        failing(root, name, times)(Document(ids[0]))
    raws = pa.array([raw + f"/{name}".encode() for raw in batch["raw"].to_pylist()], batch["raw"].type)
    return batch.set_column(batch.schema.get_field_index("raw"), "raw", raws)


def with_mark(corpus: Corpus, marks: str) -> dict[str, str]:
    return {id: text + marks for id, text in corpus.items()}


# -- right below the source: called for a whole block first ------------------------------------------------------------


NEW = [
    {"x": "old", "y": "goes", "z": "kept"},
    {**{f"n{n:02}": f"new {n:02}" for n in range(14)}, "x": "newer", "z": "kept"},
]
"""In the second stage two waves have nothing but new documents: in one of them all goes well."""
ALONE, NEVER, LATER = "n08", "n09", "n10"
THREE = ("first", "second", "third")


def build_blocks(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("blocks", version=1)
    embed = batched(root, "embed", alone=ALONE, never=NEVER, times={LATER: 1})
    _three_of(source(plan, "docs", NEW[stage]).step("embed", embed, batch=3), root, guarantee)
    return plan


def expected_blocks() -> dict[str, Arrived]:
    return _expected_new("/embed", never={NEVER})


def build_columns(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    """The same with an Arrow step, which has no answer of its own for a document."""
    plan = Plan("columns", version=1)
    step = partial(columns, root, "embed", ALONE, {ALONE: 1})
    _three_of(source(plan, "docs", NEW[stage]).step("embed", step, arrow=True, batch=3), root, guarantee)
    return plan


def expected_columns() -> dict[str, Arrived]:
    return _expected_new("/embed", never=set())


def _three_of(step: Any, root: Path, guarantee: Callable[[int], str]) -> None:
    """All that comes through, to each of three destinations; the first try of one document fails."""
    both = step.route("both", Duplicate())
    for n, name in enumerate(THREE):
        shelf = Shelf(root, name, {"n02": "first"})
        both.destination(name, shelf, guarantee=guarantee(n), batch=BATCH, backoff=0)


def _expected_new(marks: str, never: set[str]) -> dict[str, Arrived]:
    first = with_mark(NEW[0], marks)
    changed = {i: t for i, t in NEW[1].items() if NEW[0].get(i) != t and i not in never}
    return {name: upserts(first, with_mark(changed, marks), route=name) + deletes(["y"], route=name) for name in THREE}


# -- a step that remembers ---------------------------------------------------------------------------------------------

KILLS = ("killed", "killed-before")
"""Files in the folder of a case that are there once it was killed."""


def paid(root: Path, docs: list[Document]) -> list[Any]:
    """Ask a service that is paid for each text: it refuses "never", and each that was paid for already, but for calls
    that may have been under way at a kill."""
    kills = sum((root / name).exists() for name in KILLS)
    answers: list[Any] = []
    for doc in docs:
        text = doc["words"]
        with (root / f"paid.{text.replace(' ', '_')}").open("ab") as file:
            file.write(b".")
            paid_again = file.tell() > 1 + kills
        doc["answer"] = text[::-1]
        answers.append(PermanentError(f"{text} is refused") if paid_again or text == "never" else doc)
    return answers


def show_answer(doc: Document) -> Document:
    """Append the answer to the content."""
    return marked(doc, f"/{doc['answer']}")


def name_words(doc: Document) -> Document:
    """Have the content in a field, for the step that remembers reads fields only."""
    doc["words"] = doc.text()
    return doc


BOUGHT = [
    {"a": "one two", "b": "three", "c": "gone", "d": "one two"},
    {"a": "one four", "b": "three", "d": "one two", "e": "one four", "f": "gone", "h": "never", "n02": "five"},
]
"""In the second stage two documents have a text that is new, and one has that of a document that is gone; one is
refused for good, and one is delivered at its second attempt."""


def build_bought(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("bought", version=1)
    remember = Remember("v1", reads=["words"], writes=["answer"])
    read = source(plan, "docs", BOUGHT[stage]).step("name", name_words)
    asked = read.step("paid", partial(paid, root), batch=2, remember=remember)
    _three_of(asked.step("show", show_answer), root, guarantee)
    return plan


def expected_bought() -> dict[str, Arrived]:
    first, now = ({i: f"{t}/{t[::-1]}" for i, t in corpus.items()} for corpus in BOUGHT)
    changed = {i: t for i, t in now.items() if first.get(i) != t and i != "h"}
    return {name: upserts(first, changed, route=name) + deletes(["c"], route=name) for name in THREE}


# -- anywhere: a task walks many documents at once ---------------------------------------------------------------------


CALLS = 3
"""Calls that a step may have under way."""
IN_CALLS = "in-calls"
"""While this file is there, so many calls of the step whose name is in it wait for each other, and then kill their
process; or, if a second word is in it, the one whose id is in ``driver.pid``."""

STORIES = [
    {"a": "one two", "b": "three", "c": "gone"},
    {"a": "one four", "b": "three", "d": "five six seven", "e": "bad", "f": "eight nine", "g": "ten"},
]


class Meeting:
    """Kills once so many calls are under way, if it is asked to. For a process that runs one task at a time."""

    def __init__(self, root: Path, name: str) -> None:
        self._asked = root / IN_CALLS
        self._driver = root / "driver.pid"
        self._name = name

    def begin(self, id: str) -> None:
        _under_way[self._name].append(id)

    def waits(self, id: str) -> bool:
        """Does the call for this document wait for others? If all are here: the end."""
        calls = _under_way[self._name]
        asked = ""
        with contextlib.suppress(FileNotFoundError):
            asked = self._asked.read_text()
        name, _, whom = asked.partition(" ")
        if name != self._name:
            calls.remove(id)
        elif len(calls) == CALLS:
            with contextlib.suppress(FileNotFoundError):  # another call was first, and this process lives on
                self._asked.unlink()
                os.kill(int(self._driver.read_text()) if whom else os.getpid(), signal.SIGKILL)
        return name == self._name


_under_way: dict[str, list[str]] = {"ask": [], "call": []}
"""Step -> documents of its calls, in this process."""


def ask(root: Path, stage: int) -> Callable[[Document], Any]:
    first, meeting = failing(root, f"ask-{stage}", {"d#six": 1}), Meeting(root, "ask")

    async def ask(doc: Document) -> Document:
        meeting.begin(doc.id)
        while meeting.waits(doc.id):
            await asyncio.sleep(0.001)
        return first(marked(doc, "/ask"))

    return ask


def call(root: Path, stage: int) -> Callable[[Document], Document]:
    first, meeting = failing(root, f"call-{stage}", {"f": 1}), Meeting(root, "call")

    def call(doc: Document) -> Document:
        meeting.begin(doc.id)
        while meeting.waits(doc.id):
            time.sleep(0.001)
        return first(marked(doc, "/call"))

    return call


def build_flights(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("flights", version=1)
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    embed = batched(root, "embed", alone="f#nine", never="e#bad", times={"g": 1})
    made = source(plan, "docs", STORIES[stage]).step("chapters", chapters).step("embed", embed, batch=4)
    all_ = made.route("all", Duplicate())
    step = partial(columns, root, "columns", "d#seven", {"d#seven": 1})
    arrow = all_.step("columns", step, arrow=True, batch=4)
    arrow.destination("vectors", Shelf(root, "vectors", {"d": "first"}), guarantee=guarantee(0), **policy)
    asked = all_.step("ask", ask(root, stage), concurrency=CALLS, rate=1000)
    asked.destination("answers", Shelf(root, "answers"), guarantee=guarantee(1), **policy)
    called = all_.step("call", call(root, stage), concurrency=CALLS, rate=1000)
    called.destination("calls", Shelf(root, "calls"), guarantee=guarantee(2), **policy)
    return plan


def expected_flights() -> dict[str, Arrived]:
    old, now = (words_of(corpus) for corpus in STORIES)
    again = words_of({i: t for i, t in STORIES[1].items() if STORIES[0].get(i) != t})
    del again["e#bad"]
    return {
        name: upserts(with_mark(old, f"/embed/{step}"), with_mark(again, f"/embed/{step}"), route=step)
        + deletes(old.keys() - now.keys(), route=step)
        for name, step in (("vectors", "columns"), ("answers", "ask"), ("calls", "call"))
    }
