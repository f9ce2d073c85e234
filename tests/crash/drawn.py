"""Plans by chance whose steps get several documents in a call, or have several calls under way; and what must arrive.

Everything comes from the seed: the steps, what fails in them, the documents before each of two runs.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from tests.crash import scenario
from tests.crash.shapes import oracle
from tests.crash.shapes.shape import BATCH, Arrived, Corpus, Shelf, deletes, source, upserts

SHAPE = "drawn"
DIES = "dies"
"""While this file is there, the process is killed in which a step comes to the call whose number is in it."""
BROKEN = "broken"
"""A file: a chunk has broken a connection."""
WORDS = ("one", "two", "three", "four", "five", "six")
KINDS = ("plain", "batch", "batch", "arrow", "async", "threads", "async batch", "threads batch")
RATE = 2000


@dataclass(frozen=True)
class Call:
    """What a step does.

    Attributes:
        alone: fails every call that has more than this document.
        never: fails for good.
        dropped: goes no further.
        later: fails at the first call for it, counted over all processes.
    """

    root: Path
    name: str
    alone: str
    never: str
    dropped: str
    later: str

    def lists(self, docs: list[Document]) -> list[Any]:
        self.begin()
        for doc in docs:
            self._mark(doc)
        if len(docs) > 1 and any(doc.id == self.alone for doc in docs):
            raise RuntimeError("not with others")
        return [self._answer(doc) for doc in docs]

    def one(self, doc: Document) -> Document | None:
        self.begin()
        self._mark(doc)
        answer = self._answer(doc)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def async_lists(self, docs: list[Document]) -> list[Any]:
        await asyncio.sleep(0)
        return self.lists(docs)

    async def async_one(self, doc: Document) -> Document | None:
        await asyncio.sleep(0)
        return self.one(doc)

    def arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.begin()
        ids = batch["id"].to_pylist()
        if len(ids) > 1 and self.alone in ids:
            raise RuntimeError("not with others")
        for id in ids:
            if error := self._error(id):
                raise error
        raws = pa.array([raw + self.mark.encode() for raw in batch["raw"].to_pylist()], batch["raw"].type)
        batch = batch.set_column(batch.schema.get_field_index("raw"), "raw", raws)
        return batch.take([n for n, id in enumerate(ids) if id != self.dropped])

    @property
    def mark(self) -> str:
        return f"/{self.name}"

    def begin(self) -> None:
        """Is this the call that ends the process?"""
        dies = self.root / DIES
        with (self.root / "calls").open("ab") as file:
            file.write(b".")
            number = file.tell()
        if dies.exists() and number >= int(dies.read_text()):
            dies.unlink(missing_ok=True)  # another thread may be here, too
            os.kill(os.getpid(), signal.SIGKILL)

    def _mark(self, doc: Document) -> None:
        doc.raw = (doc.raw or b"") + self.mark.encode()

    def _answer(self, doc: Document) -> Document | Exception | None:
        return None if doc.id == self.dropped else self._error(doc.id) or doc

    def _error(self, id: str) -> Exception | None:
        if id == self.never:
            return PermanentError("never")
        if id == self.later:
            seen = self.root / f"{self.name}.later"
            if not seen.exists():
                seen.touch()
                return TransientError("not yet")
        return None


def split(doc: Document) -> Any:
    """The document, and a child for each of its words."""
    yield doc
    for word in words(doc.text()):
        yield doc.child(word, raw=word.encode())


def words(text: str) -> list[str]:
    return text.partition("/")[0].split()


class Fragile(Shelf):
    """Its connection breaks at each chunk with one of these documents."""

    def __init__(self, root: Path, name: str, breaks: frozenset[str]) -> None:
        super().__init__(root, name)
        self._root = root
        self.breaks = breaks

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if any(delivery.id in self.breaks for delivery in chunk):
            (self._root / BROKEN).touch()
            raise ConnectionResetError("Connection reset by peer")
        return super().write(chunk)


def is_undelivered(row: dict[str, Any]) -> bool:
    """Return whether an upsert has failed or is in doubt: deletes of its family are held with it."""
    return row["operation"] == "upsert" and row["status"] in ("DEAD", "ERROR_DOC", "INDEXING")


class Drawn:
    """The plan of a seed.

    Attributes:
        corpora: the documents before each run.
        breaks: ids that break the connection of each destination that may be sent to again.
        wave_bytes: of a run.
    """

    def __init__(self, root: Path, seed: int) -> None:
        chance = random.Random(seed)
        self.root = root
        first = {f"d{n:02}": self._text(chance) for n in range(chance.randint(2, 16))}
        second = {i: self._text(chance) if chance.random() < 0.4 else t for i, t in first.items()}
        second = {i: t for i, t in second.items() if chance.random() < 0.8}
        second |= {f"e{n:02}": self._text(chance) for n in range(chance.randint(1, 16))}
        self.corpora = (first, second)
        self.wave_bytes = chance.randint(20, 120)
        self.guarantees = [chance.choice(scenario.GUARANTEES) for _ in range(chance.randint(1, 3))]
        kinds = [chance.choice(KINDS) for _ in range(chance.choice((1, 1, 2, 3)))]
        if kinds == ["plain"]:
            kinds = ["batch"]
        if chance.random() < 0.6:
            kinds.insert(chance.randint(0, len(kinds)), "split")
        ids = sorted({*first, *second})
        ids += [f"{id}#{word}" for id in ids for word in WORDS] if "split" in kinds else []
        self.breaks = frozenset(chance.sample(ids, min(len(ids), 2)) if chance.random() < 0.3 else ())
        chance.shuffle(ids)
        self.steps = [
            (kind, Call(root, f"s{n}", *(ids.pop() if ids else "" for _ in range(4))), self._options(kind, chance))
            for n, kind in enumerate(kinds)
        ]

    @staticmethod
    def _text(chance: random.Random) -> str:
        return " ".join(chance.sample(WORDS, chance.randint(1, 4)))

    @staticmethod
    def _options(kind: str, chance: random.Random) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "batch" in kind or kind == "arrow":
            options["batch"] = chance.randint(2, 6)
        if kind == "arrow":
            options["arrow"] = True
        if kind.startswith(("async", "threads")):
            options["concurrency"] = chance.randint(2, 6)
            if chance.random() < 0.5:
                options["rate"] = RATE
        return options

    def plan(self, stage: int) -> Plan:
        plan = Plan(SHAPE, version=1)
        node = source(plan, "docs", self.corpora[stage])
        for kind, call, options in self.steps:
            node = node.step(call.name, self._function(kind, call), **options)
        both = node.route("both", Duplicate())
        for name, guarantee in self.destinations().items():
            breaks = frozenset() if guarantee == "at-most-once" else self.breaks
            out = Fragile(self.root, name, breaks)
            both.destination(name, out, guarantee=guarantee, batch=BATCH, attempts=2, backoff=0)
        return plan

    def destinations(self) -> dict[str, str]:
        """Name -> guarantee."""
        return {f"out{n}": guarantee for n, guarantee in enumerate(self.guarantees)}

    @staticmethod
    def _function(kind: str, call: Call) -> Callable[..., Any]:
        return {
            "split": split,
            "plain": call.one,
            "batch": call.lists,
            "arrow": call.arrow,
            "async": call.async_one,
            "threads": call.one,
            "async batch": call.async_lists,
            "threads batch": call.lists,
        }[kind]

    def check(self, ledger: list[dict[str, Any]], kills: int) -> None:
        """Every destination against what the corpora say, after so many kills at most."""
        unknown = oracle.ever_unknown(ledger)
        for name, guarantee in self.destinations().items():
            lines = oracle.delivered(self.root, name)
            got, wanted = oracle.counted({d["hash"]: d for d in lines}.values()), self._expected(name)
            if guarantee != "at-most-once":
                assert not self.breaks & {id for _, id, *_ in got}
                wanted = Counter({key: n for key, n in wanted.items() if key[1] not in self.breaks})
            assert not got - wanted, f"{name}: nobody asked for {got - wanted}"
            failed = {row["origin"] for row in ledger if row["destination"] == name and is_undelivered(row)}
            for op, id, route, _ in wanted - got:
                held = op == "delete" and id.partition("#")[0] in failed  # what it waits for may still be retried
                assert held or (name, op, id, route) in unknown, f"{name}: lost {op} of {id}"
            doubled = len(lines) - len({d["hash"] for d in lines})
            assert doubled <= (BATCH * kills if guarantee == "at-least-once" else 0), f"{name}: {doubled} doubled"
            oracle.in_order(lines, again=False)
        promises = self.destinations()
        assert all(promises[name] == "at-most-once" for name, *_ in unknown), "unknown, where nothing can be"
        assert len(unknown) <= BATCH * kills, "more in doubt than was in flight"

    def _expected(self, route: str) -> Arrived:
        first, second = self.corpora
        changed = {i: t for i, t in second.items() if first.get(i) != t}
        old, again, now = map(self._outcome, (first, changed, second))
        return upserts(old, again, route=route) + deletes(old.keys() - now.keys(), route=route)

    def _outcome(self, corpus: Corpus) -> dict[str, str]:
        """Id -> text of all that comes through."""
        found: dict[str, str] = {}
        for id, text in corpus.items():
            family = {id: text}
            for kind, call, _ in self.steps:
                if kind == "split":
                    family |= {f"{i}#{word}": word for i, t in list(family.items()) for word in words(t)}
                else:
                    family = {i: t + call.mark for i, t in family.items() if i not in (call.never, call.dropped)}
            found |= family
        return found
