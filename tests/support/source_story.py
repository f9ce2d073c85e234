"""A program to kill while it reads a source of any kind: ``python -m tests.support.source_story FOLDER KIND OPTIONS``.

What it delivers goes to two tables: ``documents`` has what is there, ``sent`` a row for each delivery.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from ferryman.destinations import Sql
from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.sources import (
    Cursor,
    Dlt,
    Elasticsearch,
    Files,
    Git,
    Imap,
    Mailbox,
    OpenSearch,
    Rows,
    Site,
    Solr,
    Source,
)
from tests.support.plan_world import run_plan

WAVE_BYTES = 40
"""So few that the scan of the killed process takes several waves."""

Page = list[dict[str, Any]]


def read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that a file has."""
    yield from json.loads(Path(path).read_text())


def read_changes(path: str, cursor: int | None) -> Iterator[tuple[Any, int]]:
    """Yield the changes of a file after a cursor; one without a text is a deletion."""
    for number, row in enumerate(json.loads(Path(path).read_text()), 1):
        if number > (cursor or 0):
            yield (row if "text" in row else Document.deleted(row["id"])), number


def all_rows(path: str) -> Any:
    """Return a resource of dlt that replaces what there was."""
    import dlt

    return dlt.resource(lambda: read_rows(path), name="rows", write_disposition="replace")


def newer_rows(path: str, order: str, kill_at: int, fails_at: int) -> Any:
    """Return a resource of dlt that yields pages of what is newer than its cursor.

    Args:
        order: "asc", "desc", "unordered", "parallel", or "transformed".
        kill_at, fails_at: its process is killed, or it fails, before this row, from 1; 0: at none.
    """
    import dlt

    rows = json.loads(Path(path).read_text())
    pages = [rows[at : at + 2] for at in range(0, len(rows), 2)]
    if order in ("desc", "unordered"):
        pages = [page[::-1] for page in pages[::-1]] if order == "desc" else pages[1::2] + pages[::2]
    cursor = dlt.sources.incremental("at", initial_value=0, row_order=order if order in ("asc", "desc") else None)

    @dlt.resource(name="feed", primary_key="id")
    def feed(at: Any = cursor) -> Iterator[Page]:
        asked = 0
        for page in pages:
            asked += len(page)
            if kill_at and asked >= kill_at:
                yield page[: kill_at - asked + len(page) - 1]
                os.kill(os.getpid(), signal.SIGKILL)
            if fails_at and asked >= fails_at:
                raise ConnectionError("page 2 does not come")
            yield page

    if order == "parallel":
        return feed.parallelize()
    if order == "transformed":

        @dlt.transformer(data_from=feed, name="details", primary_key="id")
        def details(page: Page) -> Iterator[Page]:
            yield [{**row, "text": f"{row['text']}, in detail"} for row in page]

        return details
    return feed


KINDS: dict[str, Callable[..., Source]] = {
    "Rows": lambda path, **more: Rows(partial(read_rows, path), **more),
    "Cursor": lambda path: Cursor(partial(read_changes, path), ordered=True),
    "Dlt": lambda path, **more: Dlt(partial(all_rows, path), id="id", **more),
    "newer of Dlt": lambda path, order, kill_at=0, fails_at=0: Dlt(
        partial(newer_rows, path, order, kill_at, fails_at), id="id"
    ),
    "Site": Site,
    "Git": Git,
    "Mailbox": Mailbox,
    "Imap": Imap,
    "OpenSearch": OpenSearch,
    "Elasticsearch": Elasticsearch,
    "Solr": Solr,
    "Files": Files,
}
"""Sources by name; each is given the options of the case."""


def run(folder: Path, kind: str, options: dict[str, Any], **settings: Any) -> None:
    """Run the plan once, to its end."""
    folder.mkdir(exist_ok=True)
    plan = Plan("story", version=1)
    node = plan.source("docs", KINDS[kind](**options))
    node.tee("sent", Sql(f"sqlite:///{folder}/out.db", table="sent", mode="append")).destination(
        "out", Sql(f"sqlite:///{folder}/out.db")
    )
    summary = run_plan(plan, folder / "state", wait=0, **settings)
    assert summary.exit == 0, summary


def delivered(folder: Path) -> tuple[list[Any], list[str]]:
    """Return what is there, by id and content, and the operation of each delivery that was made."""
    with closing(sqlite3.connect(folder / "out.db")) as db:
        there = db.execute("SELECT id, text, fields FROM documents ORDER BY id").fetchall()
        return there, [operation for (operation,) in db.execute("SELECT operation FROM sent").fetchall()]


def main(place: str, kind: str, options: str, environment: str = "{}") -> None:
    os.environ.update(json.loads(environment))
    run(Path(place), kind, json.loads(options), wave_bytes=WAVE_BYTES)


if __name__ == "__main__":
    main(*sys.argv[1:])
