"""``ferryman search``: full-text search in what the ``Sql`` destination wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from ferryman.cli.options import Json, Verbose
from ferryman.cli.terminal import json_line, note, say


def search(
    db: Annotated[
        str,
        typer.Argument(metavar="DB", show_default=False, help="An SQLite file, or the URL given to Sql in the plan."),
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False, help="Words to look for.")],
    table: Annotated[str, typer.Option("--table", metavar="NAME", help="The Sql destination's table.")] = "documents",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most this many hits.")] = 10,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Search what the Sql destination wrote.

    Full text, best hits first; the plan says Sql(…, full_text=[…]). Starts no Spark.
    """
    hits = found(db, text, table, limit)
    if json:
        json_line(hits)
        return
    show(hits)
    if not hits:
        from ferryman.databases import shown

        note(f"Nothing found for {text!r} in {shown(db)}.")


def found(db: str, text: str, table: str = "documents", limit: int = 10) -> list[dict[str, object]]:
    """The hits as ``{"id", "title", "snippet", "rank"}``, best first."""
    from ferryman.destinations.sql.search import search as in_index

    hits = in_index(db, text, table=table, limit=limit)
    return [{"id": h.id, "title": h.title, "snippet": h.snippet, "rank": h.rank} for h in hits]


def show(hits: list[dict[str, object]]) -> None:
    """A line a hit: its id, its title, and where the words stand."""
    for hit in hits:
        title = f"  {hit['title']}" if hit["title"] and hit["title"] != hit["id"] else ""
        snippet = " ".join(str(hit["snippet"] or "").split())
        say(f"{hit['id']}{title}" + (f" — {snippet}" if snippet else ""))
