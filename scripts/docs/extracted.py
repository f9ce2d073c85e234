"""Generate the tables of docs/reference/text.md: the results of ``extract_text`` for the corpus of the tests."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.steps import corpus

from ferryman import Plan, account, steps
from ferryman.destinations import Memory
from ferryman.engine.run import Run
from ferryman.observe import Silent
from ferryman.sources import Memory as Given
from ferryman.state.state import State, state_root
from ferryman.steps import formats as kinds
from ferryman.testing.inprocess import InProcess

_TEXT_CHARACTERS = 48
"""Characters of a text in a table."""

_MESSAGE_CHARACTERS = 130
"""Characters of a message in a table."""


def formats() -> str:
    """Return a table of the formats that are read, by MIME type."""
    lines = ["| format | `content_type` |", "|---|---|"]
    lines += [f"| {kind.label} | `{kind.type}` |" for kind in kinds.READ]
    return "\n".join(lines)


def came_out() -> str:
    """Return a table of every file of the corpus, the shipped ones first."""
    delivered, refused = _run()
    lines = ["| file | what came out |", "|---|---|"]
    for name in _corpus():
        if name in refused:
            result = f"**ERROR_DOC** {_cell(refused[name].removeprefix(f'{name}: '), _MESSAGE_CHARACTERS)}"
        else:
            result = _describe(delivered[name])
        lines.append(f"| `{name}` | {result} |")
        for child in sorted(id for id in delivered | refused if id.startswith(f"{name}#")):
            part = child.partition("#")[2]
            if child in refused:
                result = f"**ERROR_DOC** {_cell(refused[child].removeprefix(f'{child}: '), _MESSAGE_CHARACTERS)}"
            else:
                result = _describe(delivered[child])
            lines.append(f"| its `{part}` | {result} |")
    return "\n".join(lines)


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
    ]
    known = [name for name in ("title", "author", "created", "modified") if name in fields]
    excerpt = f" “{_cell(text, _TEXT_CHARACTERS)}”" if text else ""
    return f"{kind}: {', '.join(properties)}{'; ' + ', '.join(known) if known else ''}{excerpt}"


def _cell(text: str, characters: int) -> str:
    """Format text for a cell of a table: one line, truncated."""
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= characters else f"{line[:characters]}…"
