"""A paid service that notes each input it is called for, and steps that ask it in every way that there is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ferryman import Document, PermanentError, Plan, Remember, TransientError
from ferryman.sources import Memory
from tests.support.plan_world import PlanWorld

DIMENSIONS = 32


def event(_name: str) -> None:
    """Do nothing; a process that is to be killed in a call sets another one here."""


class Notes:
    """A list in a file: a step is pickled, and what it appends to a list of this process is lost.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, value: object) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(value) + "\n")

    def read(self) -> list[Any]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


class Service:
    """Answers a text with a vector, and notes the call in a file before and the answer after it, so that a killed call
    can be told.

    Args:
        folder: where the notes are.
    """

    def __init__(self, folder: Path) -> None:
        self._asked, self._answered = folder / "asked", folder / "answered"

    def vector(self, text: str, key: str = "") -> list[float]:
        """Answer for a text; the notes outlive the process."""
        self._note(self._asked, f"{text} {key}")
        event("asked")
        if text.startswith("never"):
            raise PermanentError("this text is too long")
        if text.startswith("later"):
            raise TransientError("busy")
        self._note(self._answered, text)
        event("answered")
        return vector_of(text)

    def calls(self) -> Counter[str]:
        """Text -> how often it was called for."""
        return Counter(line.split()[0] for line in self._lines(self._asked))

    def keys(self) -> dict[str, set[str]]:
        """Text -> idempotency keys of its calls."""
        found: dict[str, set[str]] = {}
        for line in self._lines(self._asked):
            text, _, key = line.partition(" ")
            found.setdefault(text, set()).add(key)
        return found

    def unanswered(self) -> int:
        """How many calls have no answer."""
        return len(self._lines(self._asked)) - len(self._lines(self._answered))

    def _note(self, path: Path, line: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def _lines(self, path: Path) -> list[str]:
        return path.read_text().splitlines() if path.exists() else []


def vector_of(text: str) -> list[float]:
    """What the service answers."""
    return [byte / 7 + 0.001 for byte in hashlib.blake2b(text.encode(), digest_size=DIMENSIONS).digest()]


def steps(service: Service) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Name of a way to call -> a step that asks the service for field ``words``, and its options."""

    def plain(doc: Document) -> Document:
        doc["vector"] = service.vector(doc["words"], doc.idempotency_key)
        return doc

    def several(docs: list[Document]) -> list[Any]:
        answers: list[Any] = []
        for doc in docs:
            try:
                answers.append(plain(doc))
            except (PermanentError, TransientError) as e:
                answers.append(e)
        return answers

    async def awaited(doc: Document) -> Document:
        await asyncio.sleep(0)
        return plain(doc)

    async def several_awaited(docs: list[Document]) -> list[Any]:
        await asyncio.sleep(0)
        return several(docs)

    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        vectors = [service.vector(text) for text in batch["words"].to_pylist()]
        return pa.RecordBatch.from_arrays([batch["id"], batch["words"], pa.array(vectors)], ["id", "words", "vector"])

    return {
        "plain": (plain, {}),
        "batch": (several, {"batch": 4}),
        "arrow": (columns, {"arrow": True, "batch": 4}),
        "threads": (plain, {"concurrency": 3}),
        "async": (awaited, {}),
        "async threads": (awaited, {"concurrency": 3}),
        "async batch": (several_awaited, {"batch": 2, "concurrency": 2}),
        "rate": (plain, {"rate": 5000}),
        "timeout": (plain, {"timeout": 60}),
        "batch of one": (several, {"batch": 1}),
    }


def build_paid(world: PlanWorld, mode: str = "plain", *, name: str = "paid", **options: Any) -> Plan:
    """Build a plan: documents in memory -> a step that remembers -> ``out``."""
    fn, way = steps(Service(world.folder))[mode]
    remember = options.pop("remember", None) or Remember("v1", reads=["words"], writes=["vector"], cost=0.001)
    plan = Plan(name, version=options.pop("version", 1))
    node = plan.source("docs", Memory(world.documents, max_deleted=1.0))
    node.step("embed", fn, remember=remember, **{**way, **options}).destination("out", world.out(), backoff=0)
    return plan
