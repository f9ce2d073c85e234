"""The whole trip of somebody who builds retrieval: pages, a paid service, edits, another chunk size, another model.

Before each stage the bill is asked for, after it the service is asked what it was paid for: the two are the same.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman import Document, Plan, Remember, steps
from ferryman.destinations import Sql
from ferryman.errors import TransientError, Unavailable
from ferryman.sources import Files
from tests.servers.registry import require_package
from tests.support.paid import Notes
from tests.support.plan_world import PlanWorld, place
from tests.support.previewed import previewed

__all__ = ["place"]

require_package("sqlite_vec")
require_package("trafilatura")

TEAMS = ("sales", "lab", "board")
SECTIONS = 3
DIMENSIONS = 16
COST = 0.001


def text_of(page: int, section: int, paragraph: int) -> str:
    """Some words that no other paragraph has, but those that every tenth page has."""
    if (page % 10, section, paragraph) == (0, 0, 0):
        return "This page is licensed to all who read it, and comes without any warranty."
    words = hashlib.blake2b(f"{page} {section} {paragraph}".encode(), digest_size=24).hexdigest()
    return f"Paragraph {paragraph} of section {section} says " + " ".join(words[n : n + 6] for n in range(0, 48, 6))


def write_page(folder: Path, page: int, edited: str = "") -> None:
    """Write a page: every other one is HTML. ``edited``: its last paragraph."""
    path = folder / TEAMS[page % 3] / f"{page:03d}.{'html' if page % 2 else 'md'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for section in range(SECTIONS):
        texts = [text_of(page, section, n) for n in range(2)]
        if edited and section == SECTIONS - 1:
            texts[-1] = edited
        if path.suffix == ".md":
            lines += [f"## Section {section}", *texts]
        else:
            lines += [f"<h2>Section {section}</h2>", *(f"<p>{text}</p>" for text in texts)]
    title = f"Page {page}"
    head, tail = ([f"# {title}"], []) if path.suffix == ".md" else (
        [f"<html><head><title>{title}</title></head><body><article><h1>{title}</h1>"], ["</article></body></html>"]
    )  # fmt: skip
    path.write_text("\n\n".join([*head, *lines, *tail]))


class Service:
    """A service that answers lists of at most 8 texts, is away at some requests, and refuses some texts at first.

    Args:
        folder: where it notes what it was paid for.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.model = model
        self.paid = Notes(folder / f"{model}.paid")
        self._requests = Notes(folder / f"{model}.requests")
        self._busy = Notes(folder / f"{model}.busy")

    def __call__(self, docs: list[Document]) -> list[Any]:
        self._requests.append(len(docs))
        assert len(docs) <= 8
        if len(self._requests.read()) % 40 == 7:
            raise Unavailable("503: it is restarted")
        return [self._answer(doc) for doc in docs]

    def _answer(self, doc: Document) -> Document | TransientError:
        digest = hashlib.blake2b(f"{self.model} {doc.text()}".encode(), digest_size=DIMENSIONS).digest()
        if digest[0] % 9 == 0 and digest.hex() not in self._busy.read():
            self._busy.append(digest.hex())
            return TransientError("429: too many requests")
        self.paid.append(doc.text())
        doc["vector"] = [byte / 255 + 0.01 for byte in digest]
        return doc


def add_rights(doc: Document) -> Document:
    """Set who may read a page."""
    doc["acl"] = [doc.id.partition("/")[0]]
    return doc


def build_rag(world: PlanWorld, version: int = 1, *, by: str = "headings", model: str = "small") -> Plan:
    """Build pages -> text -> chunks -> vectors -> a table for each version."""
    plan = Plan("rag", version=version)
    pages = plan.source("pages", Files(str(world.folder / "pages"), max_deleted=1.0))
    pages = pages.step("text", steps.extract_text()).step("rights", add_rights)
    chunks = pages.step("split", steps.split_text(by=by, key="content", copy=["title", "acl"]))  # type: ignore[arg-type]
    remember = Remember(f"{model}/{DIMENSIONS}", reads=["text"], writes=["vector"], cost=COST)
    service = Service(world.folder, model)
    vectors = chunks.step("embed", service, batch=8, rate=10_000, remember=remember)
    table = Sql(f"sqlite:///{world.folder}/rag.db", f"chunks_v{version}", vectors={"vector": DIMENSIONS})
    vectors.destination("index", table, backoff=0)
    return plan


class Trip:
    """A folder of pages, and the plan that is live.

    Attributes:
        sent: number of chunks that the last run has sent.
    """

    def __init__(self, place: Path, pages: int) -> None:
        self.folder = place / "pages"
        for page in range(pages):
            write_page(self.folder, page)
        self.sent = 0
        self.world = PlanWorld(place, build_rag, sleep=time.sleep, wait=600.0).build()

    def go(self, needs: int | None, model: str = "small") -> Counter[str]:
        """Ask for the bill, run, and return the texts that were paid for: as many as the bill says.

        Args:
            needs: so many calls; None: some.
        """
        paid = Service(self.world.folder, model).paid
        before = len(paid.read())
        [bill] = previewed(self.world.plan, self.world.state, limit=1).calls
        summary = self.world.run()
        self.sent = summary.delivered
        assert (summary.exit, summary.failed, summary.rejected, summary.pending) == (0, 0, 0, 0), summary.messages
        made = Counter(paid.read()[before:])
        assert set(made.values()) <= {1}, "a text was paid for twice"
        assert bill["calls"] == made.total(), (bill, made.total())
        assert bill["cost"] == pytest.approx(COST * made.total())
        assert needs is None or made.total() == needs
        status = self.world.status()
        assert status["balanced"]
        return made

    def ids(self) -> set[str]:
        """Return the ids of all chunks in the index."""
        nearest = self._index().nearest("vector", [1.0] * DIMENSIONS, 100_000)
        return {hit.id for hit in nearest}

    def _index(self) -> Any:
        [node] = [node for node in self.world.plan.nodes if node.name == "index"]
        return node.destination  # type: ignore[attr-defined]

    def finds(self, text: str, team: str) -> list[str]:
        """Return the ids of chunks for a question, of those that a team may read."""
        hits = ferryman.search("index", text, plan=self.world.plan, embed="embed", where={"acl": team}, limit=5)
        assert all(hit.fields is not None and hit.fields["acl"] == [team] for hit in hits)
        return [hit.id for hit in hits]


@pytest.mark.rule("remember.preview")
@pytest.mark.rule("remember.once-plus-in-flight")
@pytest.mark.parametrize("pages", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_the_bill_is_what_is_paid_at_every_stage(place: Path, pages: int) -> None:
    """Cold; nothing changed; three pages edited; two deleted; another chunk size; another model beside the old one."""
    trip = Trip(place, pages)
    cold = trip.go(None)
    first = trip.ids()
    assert len(first) == pages * SECTIONS
    assert cold.total() == len(cold)
    trip.go(0)
    for page in (3, 4, 5):
        write_page(trip.folder, page, edited=f"What page {page} says now is new.")
    trip.go(3)
    assert trip.sent == 3
    assert trip.ids() == first, "the chunks of a section keep their ids"
    for page in (7, 8):
        [path] = trip.folder.rglob(f"{page:03d}.*")
        path.unlink()
    trip.go(0)
    assert len(trip.ids()) == (pages - 2) * SECTIONS

    trip.world.build(2, by="paragraphs")
    smaller = trip.go(None)
    assert 0 < smaller.total() < len(trip.ids()) + 1
    assert not smaller.keys() & cold.keys(), "what both sizes have in common was paid for again"

    trip.world.build(3, by="paragraphs", model="large")
    larger = trip.go(None, "large")
    assert larger.keys() >= smaller.keys()
    question = "What page 4 says now is new."
    assert trip.finds(question, TEAMS[4 % 3])[0].startswith(f"{TEAMS[4 % 3]}/004")
    trip.world.build(1)
    assert trip.finds(question, TEAMS[1])
    trip.go(0)
