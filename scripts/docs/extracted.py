"""Generate the tables of docs/reference/text.md: the results of ``extract_text`` for the corpus of the tests."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from scripts.docs.folding import fold
from tests.steps import corpus

from ferryman import Plan, account, steps
from ferryman.destinations import Memory
from ferryman.engine.run import Run
from ferryman.observe import Silent
from ferryman.sources import Memory as Given
from ferryman.state.state import State, state_root
from ferryman.steps import formats as kinds
from ferryman.testing.inprocess import InProcess

_MESSAGE_CHARACTERS = 130
"""Characters of a message in a table."""


def formats() -> str:
    """Return a table of the formats that are read, by MIME type."""
    lines = ["| format | `content_type` |", "|---|---|"]
    lines += [f"| {kind.label} | `{kind.type}` |" for kind in kinds.READ]
    return "\n".join(lines)


def came_out() -> str:
    """Return what was read of the corpus, and the files that were refused, by message."""
    delivered, refused = _run()
    known = delivered | refused
    ids = [id for name in _corpus() for id in (name, *sorted(i for i in known if i.startswith(f"{name}#")))]
    read = [f"| `{id}` | {_describe(delivered[id])} |" for id in ids if id in delivered]
    files: dict[str, list[str]] = defaultdict(list)
    for id in ids:
        if id in refused:
            files[_cell(refused[id].removeprefix(f"{id}: "))].append(f"`{id}`")
    bad = [f"| {', '.join(names)} | {message} |" for message, names in files.items()]
    return "\n\n".join(
        [
            fold(f"{len(read)} were read", "\n".join(["| file | what came out |", "|---|---|", *read])),
            fold(f"{len(refused)} were rejected", "\n".join(["| files | message |", "|---|---|", *bad])),
        ]
    )


def _corpus() -> dict[str, bytes]:
    return corpus.shipped() | corpus.made()


@cache
def _run() -> tuple[dict[str, Any], dict[str, str]]:
    """Run the corpus once; return deliveries, and messages of rejected documents, by id."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan("corpus", version=1)
        documents = [{"id": name, "raw": raw} for name, raw in _corpus().items()]
        plan.source("files", Given(documents)).step("text", steps.extract_text(), timeout=60).destination(
            "texts", Memory()
        )
        plan.freeze()
        root = state_root(plan, Path(folder))
        Memory.clear("texts")
        with State.take(root, plan) as state:
            Run(state, InProcess(), Silent()).run()
        refused = {row["document"]: row["message"] for row in account.deliveries(root, status="rejected", plan=plan)}
        return {d.id: d for d in Memory.of("texts")}, refused


def _describe(delivery: Any) -> str:
    text, fields = delivery.text(), delivery.fields
    kind = next((k.label for k in kinds.READ if k.type == fields.get("content_type")), "")
    properties = [
        f"{len(text.split())} words",
        *(f"{name} {fields[name]}" for name in ("language", "pages", "charset") if name in fields),
        *(f"unread: {', '.join(fields[name])}" for name in ("unread",) if name in fields),
    ]
    known = [name for name in ("title", "author", "created", "modified") if name in fields]
    return f"{kind}: {', '.join(properties)}{'; ' + ', '.join(known) if known else ''}"


def _cell(text: str) -> str:
    """Format a message for a cell of a table: one line, truncated."""
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= _MESSAGE_CHARACTERS else f"{line[:_MESSAGE_CHARACTERS]}…"
