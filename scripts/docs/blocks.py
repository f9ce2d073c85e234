"""Blocks of pages that are generated from the code, between ``<!-- made: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from scripts.docs import (
    bad_input,
    bad_rows,
    extracted,
    guarantees,
    moves,
    plans,
    ports,
    protocol,
    queue,
    signatures,
    tried,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PICTURES: dict[str, Callable[[], str]] = {
    **{f"pictures/{name}-states.svg": partial(queue.picture, name) for name in queue.MACHINES},
    "pictures/plan-papers.svg": plans.papers_svg,
    "pictures/plan-plays.svg": plans.svg,
    "pictures/plan-refused.svg": plans.refused_svg,
    "pictures/protocol.svg": protocol.picture,
    "pictures/statuses.svg": moves.picture,
}


def decisions() -> str:
    """Return a table of the pages in docs/decisions/, by their headings."""
    lines = ["| number | decision |", "|---|---|"]
    for page in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        number, _, title = page.read_text("utf-8").splitlines()[0].removeprefix("# ").partition(": ")
        lines.append(f"| [{number}]({page.name}) | {title} |")
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "decisions": decisions,
    "statuses": moves.table,
    "moves": moves.matrix,
    "bad input": bad_input.tables,
    "bad rows": bad_rows.tables,
    "guarantees": guarantees.sections,
    "tried": tried.table,
    "example plan": plans.building,
    "plan as a tree": plans.tree,
    "plan as a flowchart": plans.mermaid,
    "findings": plans.findings,
    "warnings": plans.warnings,
    "shipped sources": ports.sources,
    "source of jobs": ports.jobs,
    "promises of a source": ports.promises_of_a_source,
    "log port": ports.log_port,
    "promises of a log": ports.promises_of_a_log,
    "ready-made steps": ports.steps,
    "formats": extracted.formats,
    "what came out": extracted.came_out,
    "shipped destinations": ports.destinations,
    "destination attributes": ports.attributes,
    "destination facts": ports.facts,
    "destination port": ports.destination_port,
    "promises of a destination": ports.promises_of_a_destination,
    "promises of a server": ports.promises_of_a_server,
    "sqlite errors": ports.sqlite_errors,
    **{f"{name} states": partial(queue.table, name) for name in queue.MACHINES},
    "queue folders": queue.folders,
    "python: intake": queue.python,
    "postgresql errors": ports.postgresql_errors,
    "mysql errors": ports.mysql_errors,
    "python: ferryman": partial(signatures.module, "ferryman"),
    "python: answers": signatures.answers,
    "python: routers": signatures.routers,
    "python: sources": partial(signatures.names_only, "ferryman.sources"),
    "python: steps": partial(signatures.names, "ferryman.steps"),
    "python: destinations": partial(signatures.names_only, "ferryman.destinations"),
    "python: queues": partial(signatures.module, "ferryman.queues"),
    "python: testing": signatures.testing,
}

_BLOCK = re.compile(r"(<!-- made: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> Iterator[Path]:
    """Yield every page of the docs."""
    return iter(sorted(DOCS.rglob("*.md")))


def blocks_of(page: Path) -> list[str]:
    """Return the names of the blocks of a page."""
    return [match[2] for match in _BLOCK.finditer(page.read_text("utf-8"))]


def regenerate(text: str) -> str:
    """Return a page's text with every block generated again."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]().strip()}\n\n{match[3]}", text)


def write() -> Iterator[Path]:
    """Write the files that have changed, and yield their paths."""
    wanted = {DOCS / name: draw() for name, draw in PICTURES.items()}
    wanted |= {page: regenerate(page.read_text("utf-8")) for page in pages() if blocks_of(page)}
    for path, text in wanted.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            yield path


def stale() -> list[str]:
    """Return the pages and pictures that are outdated."""
    old = [name for name, draw in PICTURES.items() if (DOCS / name).read_text("utf-8") != draw()]
    for page in pages():
        text = page.read_text("utf-8")
        if regenerate(text) != text:
            old.append(page.relative_to(DOCS).as_posix())
    return old
