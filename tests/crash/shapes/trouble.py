"""Shapes in which a document kills, a service is away, or a destination hangs or is doubted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import Unavailable
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Listed, Memory
from tests.crash.shapes.shape import (
    BATCH,
    Arrived,
    Corpus,
    Shelf,
    chapters,
    deletes,
    quiet,
    source,
    told_of,
    upserts,
    words_of,
)

# -- a document that kills: careful mode -------------------------------------------------------------------------------


DEADLY = {f"d{n}": f"text {n}" for n in range(6)}


def deadly(doc: Document) -> Document:
    if doc.id in ("d1", "d4#4"):
        os._exit(3)
    return doc


def build_deadly(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("deadly", version=1)
    twice = source(plan, "docs", DEADLY).step("chapters", chapters).route("twice", Duplicate())
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    twice.step("deadly", deadly).destination("through", Shelf(root, "through"), guarantee=guarantee(0), **policy)
    twice.destination("past", Shelf(root, "past"), guarantee=guarantee(2), **policy)
    return plan


def expected_deadly() -> dict[str, Arrived]:
    found = words_of(DEADLY)
    return {
        "past": upserts(found, route="past"),
        "through": upserts({i: t for i, t in found.items() if i not in ("d1", "d4#4")}, route="deadly"),
    }


# -- a step and a source were away; now they are back, and some of what waits has changed or is gone -------------------


NEWS = [{"n1": "a", "n2": "b", "n3": "c"}, {"n1": "a", "n2": "d", "n4": "e"}]
SHARED = [{"s1": "x", "s2": "y"}, {"s1": "x", "s2": "z", "s3": "w"}]


class Share(Memory):
    """A source whose reads fail while it is away."""

    def __init__(self, corpus: Corpus, away: bool) -> None:
        super().__init__([{"id": i, "raw": t.encode()} for i, t in corpus.items()], max_deleted=1.0)
        self.away = away

    def listing(self, partition: Any) -> Iterator[Listed]:
        for doc in super().listing(partition):
            assert isinstance(doc, Document)
            yield Listed(doc.id, 1, location=doc.text())

    def read(self, listed: Listed) -> Document:
        if self.away:
            raise ConnectionRefusedError("nobody there")
        return Document(listed.id, raw=listed.location.encode())


def away(doc: Document) -> Document:
    raise Unavailable("the service is being moved")


def build_outage(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("outage", version=1)
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    both = source(plan, "news", NEWS[stage]).route("both", Duplicate())
    asked = both.step("ask", away if stage == 0 else quiet)
    asked.destination("through", Shelf(root, "through"), guarantee=guarantee(0), **policy)
    both.destination("past", Shelf(root, "past"), guarantee=guarantee(1), **policy)
    share = plan.source("share", Share(SHARED[stage], stage == 0))
    share.destination("shared", Shelf(root, "shared"), guarantee=guarantee(2), **policy)
    return plan


def expected_outage() -> dict[str, Arrived]:
    return {
        "through": upserts(NEWS[1], route="ask"),
        "past": upserts(NEWS[0], {"n2": "d", "n4": "e"}, route="past") + deletes(["n3"], route="past"),
        "shared": upserts(SHARED[1]),
    }


# -- a destination that hangs is given up; what its server has taken in acts later -------------------------------------


POSTED = [{"p1": "a", "p2": "b", "p3": "c", "p4": "d"}, {"p1": "a", "p2": "bb", "p4": "dd", "p5": "e"}]
GIVEN_UP_S = 0.4
HANGS_AT_MOST_S = 60.0


class Server(Shelf):
    """Hangs once a stage: a server that has taken a chunk in, and carries it out when it likes: after the next chunk
    that it is sent. It compares sequences, as the guarantees ask of a server that may be so late.

    The thread that called waits as long, and would then write too, if it was still there: without looking.
    """

    def __init__(self, root: Path, name: str, stage: int) -> None:
        super().__init__(root, name)
        self.taken = root / f"{name}.{stage}.taken"
        self.earlier = root / f"{name}.{stage - 1}.taken"
        self.next = root / f"{name}.{stage}.next"

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        try:
            with self.taken.open("x") as taken:
                taken.write("".join(json.dumps(told_of(d)) + "\n" for d in chunk))
        except FileExistsError:
            self.next.touch()
            done = super().write(chunk)
            self._carry_out(self.earlier)
            self._carry_out(self.taken)
            return done
        end = time.monotonic() + HANGS_AT_MOST_S
        while not self.next.exists():
            assert time.monotonic() < end, "nobody gave it up"
            time.sleep(0.01)
        return super().write(chunk)

    def _carry_out(self, taken: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            lines = [json.loads(line) for line in taken.read_text().splitlines()]
            with open(self.path, "a+") as log:
                fcntl.flock(log, fcntl.LOCK_EX)
                log.seek(0)
                highest: dict[str, int] = {}
                for line in map(json.loads, log):
                    highest[line["id"]] = max(line["seq"], highest.get(line["id"], 0))
                late = [line for line in lines if line["seq"] > highest.get(line["id"], 0)]
                os.write(log.fileno(), "".join(json.dumps(line) + "\n" for line in late).encode())


def build_hung(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("hung", version=1)
    all_ = source(plan, "docs", POSTED[stage]).route("all", Duplicate())
    for n, name in enumerate(("north", "middle", "far")):
        all_.destination(
            name,
            Server(root, name, stage),
            guarantee=guarantee(n),
            batch=BATCH,
            backoff=0,
            send_timeout=GIVEN_UP_S,
        )
    return plan


def expected_hung() -> dict[str, Arrived]:
    new = {i: t for i, t in POSTED[1].items() if POSTED[0].get(i) != t}
    return {
        name: upserts(POSTED[0], new, route=name) + deletes(["p3"], route=name) for name in ("north", "middle", "far")
    }


# -- a destination whose connection breaks, although it is well: of one row, and of chunks that are too large ----------

POISON = "r7"
MOST = 24
"""Bytes of content that a chunk may have."""
SENT = [
    {"r1": "first 1", "r2": "first 2", "r9": "first 9"},
    {"r1": "changed 01", "r2": "changed 02", "r4": "new text 4", "r5": "new text 5", "r6": "six", POISON: "poison"},
]
"""In the last stage the first chunk is too large, which the next pass finds out; then there is one with the poison."""


class Doubted(Shelf):
    """Has a front server that resets the connection of a chunk that is too large, or that it does not like."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if any(d.id == POISON for d in chunk) or sum(len(d.raw or b"") for d in chunk) > MOST:
            raise ConnectionResetError("Connection reset by peer")
        return super().write(chunk)


def build_doubted(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("doubted", version=1)
    all_ = source(plan, "docs", SENT[stage]).route("all", Duplicate())
    for n, name in enumerate(("north", "middle", "far")):
        all_.destination(name, Doubted(root, name), guarantee=guarantee(n), batch=BATCH, backoff=0, attempts=2)
    return plan


def expected_doubted() -> dict[str, Arrived]:
    new = {i: t for i, t in SENT[1].items() if i != POISON}
    return {
        name: upserts(SENT[0], new, route=name) + deletes(["r9"], route=name) for name in ("north", "middle", "far")
    }
