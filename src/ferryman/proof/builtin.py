"""Plan that is proved when no other is given: branches, children, deletes, a queue, state by key, all guarantees."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

from ferryman.destinations import Directory, JsonLines, Sql, Webhook
from ferryman.destinations import Queue as QueueDestination
from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import ByField, Duplicate
from ferryman.sources import Memory, Queue

KINDS = ("short", "long")
SENDERS = 5
LINES = 3
"""Lines of a page, each of which becomes a child."""


def split_lines(doc: Document) -> list[Document]:
    """Make a child of each line of a page."""
    lines = doc.text().splitlines()
    return [doc, *(doc.child(str(n), raw=line.encode(), kind=doc["kind"]) for n, line in enumerate(lines))]


def count_words(doc: Document) -> Document:
    """Count the words of a document."""
    doc["words"] = len(doc.text().split())
    return doc


def total(key: str, values: list[Any]) -> Any:
    """Add up what a sender has sent."""
    return sum(values)


def make_plan(folder: Path, documents: int) -> Plan:
    """Return the plan. Nothing is written where its destinations are: a proof writes to twins of them.

    Args:
        folder: for the queue that it reads, which is made.
        documents: of each of its two sources.
    """
    letters = DurableQueue("letters", folder / "queues")
    letters.append([{"from": f"sender {n % SENDERS}", "amount": n} for n in range(documents)], key="letters")
    plan = Plan("built-in", version=1)
    pages = plan.source("pages", Memory([_page(n) for n in range(documents)]))
    split = pages.step("lines", split_lines)
    kinds = split.tee("every", JsonLines(folder / "every")).route("kinds", ByField("kind"))
    kinds.step("short", count_words).destination("index", Sql(f"sqlite:///{folder}/index.db"))
    kinds.destination("long", Directory(folder / "long"))
    copies = plan.source("letters", Queue("letters", folder / "queues")).route("copies", Duplicate())
    copies.destination("archive", QueueDestination("archive", folder / "queues"))
    copies.destination("notify", Webhook("https://proof.invalid/letters"))
    copies.combine("totals", total, key="from", value="amount", inverse=operator.neg).destination(
        "sums", Sql(f"sqlite:///{folder}/sums.db")
    )
    return plan


def _page(number: int) -> Document:
    text = "\n".join(f"page {number} line {line} {'word ' * (number % 7)}" for line in range(number % (LINES + 1)))
    return Document(f"page {number:04}", raw=text.encode(), kind=KINDS[number % 2])
