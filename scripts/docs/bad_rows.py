"""Generate the tables of docs/reference/bad-input.md for lines and rows, from runs as in ``bad_input``."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ferryman import Plan, account
from ferryman.destinations import Null
from ferryman.engine.run import Run, Summary
from ferryman.engine.settings import RunSettings
from ferryman.observe import Silent
from ferryman.sources import Csv, Files, JsonLines, Lines, Source
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess


class Bad(NamedTuple):
    """A file with bad content, and the source that reads it."""

    what: str
    source: type[Source]
    data: bytes
    options: dict[str, object]


_TEXT = b"".join(b"line %d\n" % i for i in range(20_000))

ROWS = {
    "encoding.txt": Bad("a line that is not in the file's encoding", Lines, b"one\ncaf\xe9\n", {}),
    "long.txt": Bad("a line longer than `max_bytes`", Lines, b"one\n" + b"x" * 60 + b"\n", {"max_bytes": 50}),
    "jagged.csv": Bad("a row with more or fewer cells than the header", Csv, b"a,b\n1,2\n3\n", {}),
    "quote.csv": Bad("text after a closing quote", Csv, b'a,b\n1,2\n"3"x,4\n', {}),
    "half.jsonl": Bad("a line that is not JSON", JsonLines, b'{"a": 1}\n{"a": \n', {}),
    "nan.jsonl": Bad("`NaN` in JSON", JsonLines, b'{"a": 1}\n{"a": NaN}\n', {}),
    "list.jsonl": Bad("JSON, but not an object", JsonLines, b'{"a": 1}\n[1]\n', {}),
    "cut.gz": Bad(
        "a compressed file that breaks off, read with `Files`",
        Files,
        gzip.compress(_TEXT)[:-100],
        {"decompress": True},
    ),
    "bomb.gz": Bad(
        "a compressed file that is larger than `max_bytes` when unpacked",
        Files,
        gzip.compress(bytes(10_000)),
        {"decompress": True, "max_bytes": 1000},
    ),
}
"""File name -> content of which only the bad row is rejected; each is a source of its own."""

FILES = {
    "open.csv": Bad("a quote that is never closed", Csv, b'a,b\n1,2\n3,"4\n5,6\n', {}),
    "twice.csv": Bad("a header with two columns of one name", Csv, b"a,a\n1,2\n", {}),
    "keys.csv": Bad("a bad row, where ids are in the rows", Csv, b"id,b\nx,1\ny\n", {"id": "id"}),
    "cut.txt.gz": Bad("a compressed file that breaks off", Lines, gzip.compress(_TEXT)[:-100], {}),
    "utf-16.txt": Bad("invalid UTF-16", Lines, "one\n".encode("utf-16") + b"x", {}),
    "link.txt": Bad("a file that is not there, or may not be read", Lines, b"", {}),
}
"""File name -> content that makes the listing incomplete."""


def tables() -> str:
    """Return Markdown: what is rejected, and what makes a listing incomplete."""
    refused, summary = outcomes()
    lines = ["| input | status | message |", "|---|---|---|"]
    for name, bad in ROWS.items():
        [(status, message)] = [row for id, row in refused.items() if id.startswith(name) and row[0] != "INDEXED"]
        lines.append(f"| {bad.what} | {status} | `{message}` |")
    lines += ["", "| input | the run ends with 4, and says |", "|---|---|"]
    for name, bad in FILES.items():
        [message] = [m for m in summary.messages if f"/corpus/{name}" in m]
        lines.append(f"| {bad.what} | `{message.partition('deleted: ')[2]}` |")
    return "\n".join(lines)


@cache
def outcomes() -> tuple[dict[str, tuple[str, str]], Summary]:
    """Run all files; return id -> (status, message) of every document, and the summary."""
    folder = Path(tempfile.mkdtemp()).resolve()
    try:
        corpus = folder / "corpus"
        corpus.mkdir()
        plan = Plan("bad-rows", version=1)
        nodes = []
        for name, bad in {**ROWS, **FILES}.items():
            (corpus / name).write_bytes(bad.data)
            nodes.append(plan.source(name.replace(".", "-"), bad.source(corpus, include=name, **bad.options)))  # type: ignore[call-arg]
        (corpus / "link.txt").unlink()
        (corpus / "link.txt").symlink_to("gone.txt")
        plan.destination("index", Null(), after=nodes)
        plan.freeze()
        with State.take(state_root(plan, folder / "state"), plan) as state:
            summary = Run(state, InProcess(), Silent(), RunSettings(wait=5)).run()
        rows = account.deliveries(state_root(plan, folder / "state"))

        def clean(text: str) -> str:
            return text.replace(str(corpus), "/corpus")

        summary.messages = [clean(m) for m in summary.messages]
        return {r["document"]: (r["status"], clean(r["message"] or "")) for r in rows}, summary
    finally:
        shutil.rmtree(folder)
