"""Generate the tables of docs/reference/bad-input.md: each bad input is created and run, its message copied."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from ferryman import Document, PermanentError, Plan, account, limits
from ferryman.destinations import Sql
from ferryman.engine.run import Run, Summary
from ferryman.engine.settings import RunSettings
from ferryman.errors import TransientError
from ferryman.observe import Silent
from ferryman.sources import Doubt, Files, Listed, Note
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess

NOBODY = 65534
TOO_LONG = 40_000
"""Characters of a text that SQLite refuses here: its limit is lowered from 1 GB to half of this."""


class Case(NamedTuple):
    """A bad file: its id, what is bad, and a remedy beyond the one in the message."""

    id: str
    what: str
    remedy: str = ""


LISTED = (
    Case("nowhere.txt", "a link that leads nowhere"),
    Case("circle.txt", "a link that leads in a circle"),
    Case("up", "a link to a folder that holds it"),
    Case("out.txt", "a link out of the root"),
    Case("pipe", "a pipe, a socket or a device"),
    Case("huge.bin", "a file larger than `max_bytes`"),
)
READ = (
    Case("secret.txt", "a file that this user may not read", "The next scan reads it then."),
    Case("empty.txt", "an empty file", "Nothing: it is a document like any other, with empty text."),
    Case("caf%E9.txt", "a name that is not UTF-8", "Nothing: its bytes are percent-encoded in the id."),
)
STEPS = (
    Case("latin.txt", "text in another encoding, read with `doc.text()`"),
    Case("line.csv", "a malformed line; the step raises `PermanentError`", "Correct the file."),
    Case(
        "line.json",
        "a malformed line; the step lets the parser's error out",
        "Correct the file. Raise `PermanentError` in the step: then it is not tried again in vain.",
    ),
    Case("list.txt", "the step returns neither the document nor `None`", "Correct the step."),
    Case("value.txt", "a field gets a value that JSON has not"),
    Case("slow.txt", "the step takes longer than its `timeout=`", "Give it more time, or make it faster."),
)
SENT = (
    Case("number.txt", "an integer of more than 64 bit in a column of its own"),
    Case("long.txt", "a text that is larger than the destination takes (SQLite: 1 GB)"),
)


def tables() -> str:
    """Return Markdown: a table for each place where bad input is noticed, and the message for an unreadable folder."""
    rows, summary = outcomes()
    pieces = []
    for heading, cases in (
        ("### Noticed while listing", LISTED),
        ("### Noticed while reading", READ),
        ("### Noticed in a step", STEPS),
        ("### Noticed by the destination (here `Sql`)", SENT),
    ):
        lines = ["| input | status | message | what to do |", "|---|---|---|---|"]
        for case in cases:
            status, message = rows[case.id]
            text = f"`{message}`" if message else "none"
            lines.append(f"| {case.what} | {status} | {text} | {case.remedy or 'As the message says.'} |")
        pieces += [heading, "\n".join(lines)]
    incomplete = next(m for m in summary.messages if "incomplete" in m)
    pieces += [
        "### A folder that cannot be read",
        f"The run ends with {summary.exit}, and says:",
        f"```text\n{incomplete}\n```",
    ]
    return "\n\n".join(pieces)


@cache
def outcomes() -> tuple[dict[str, tuple[str, str]], Summary]:
    """Run all files; return id -> (status, message) of every bad file, and the summary."""
    folder = Path(tempfile.mkdtemp()).resolve()
    try:
        corpus = folder / "corpus"
        _make(corpus)
        with _short_texts():
            plan = _plan(corpus, folder / "out.db")
            plan.freeze()
            with State.take(state_root(plan, folder / "state"), plan) as state:
                summary = Run(state, InProcess(), Silent(), RunSettings(wait=5)).run()
            rows = account.deliveries(state_root(plan, folder / "state"))

        def clean(text: str) -> str:
            text = text.partition("\nTraceback")[0].replace(str(corpus), "/corpus").replace(str(folder), "")
            text = re.sub(r"\(\S*/bad_input\.py:\d+\)", "(plan.py:12)", text)  # where its step is, in this file
            return re.sub(r"\(uid \d+\)", "(uid 1000)", text).replace(socket.gethostname(), "HOST")

        summary.messages = [clean(m) for m in summary.messages]
        return {r["document"]: (r["status"], clean(r["message"] or "")) for r in rows}, summary
    finally:
        (folder / "corpus" / "closed").chmod(0o700)
        shutil.rmtree(folder)


def _make(corpus: Path) -> None:
    corpus.parent.chmod(0o755)
    corpus.mkdir()
    (corpus.parent / "elsewhere.txt").write_text("not in the root")
    (corpus / "nowhere.txt").symlink_to("gone.txt")
    (corpus / "circle.txt").symlink_to("circle.txt")
    (corpus / "up").symlink_to(".")
    (corpus / "out.txt").symlink_to("../elsewhere.txt")
    os.mkfifo(corpus / "pipe")
    with (corpus / "huge.bin").open("wb") as huge:
        huge.truncate(limits.GIB)  # takes no room on the disk
    (corpus / "secret.txt").write_text("secret")
    (corpus / "secret.txt").chmod(0)
    (corpus / "empty.txt").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(corpus) + b"/caf\xe9.txt")).write_text("a name in Latin-1")
    (corpus / "latin.txt").write_bytes("café".encode("latin-1"))
    (corpus / "line.csv").write_text("name,age\nAnn,37\nBob\n")
    (corpus / "line.json").write_text('{"name": "Ann"}\n{"name": Bob}\n')
    for name in ("list", "value", "slow", "number", "long"):
        (corpus / f"{name}.txt").write_text(name)
    (corpus / "closed").mkdir(mode=0)


def _plan(corpus: Path, database: Path) -> Plan:
    plan = Plan("bad-input", version=1)
    files = plan.source("files", _Files(corpus))
    parsed = files.step("parse", _parse).step("patient", _patient, timeout=0.2)
    parsed.destination("index", Sql(f"sqlite:///{database}", columns={"number": "number"}), backoff=0)
    return plan


def _parse(doc: Document) -> Any:
    """Process a file as its name says; the step of the table."""
    match doc.id:
        case "line.csv":
            for number, line in enumerate(doc.text().splitlines(), 1):
                if line.count(",") != 1:
                    raise PermanentError(f"{doc.id}: line {number} has not two columns: {line!r}")
        case "line.json":
            doc["names"] = [json.loads(line)["name"] for line in doc.text().splitlines()]
        case "list.txt":
            return [doc.text()]
        case "value.txt":
            doc["at"] = object()
        case "number.txt":
            doc["number"] = 2**70
        case "long.txt":
            doc["text"] = "x" * TOO_LONG
        case _:
            doc["text"] = doc.text()
    return doc


def _patient(doc: Document) -> Document:
    if doc.id == "slow.txt":
        time.sleep(5)  # is interrupted: it stands for a step that takes too long
    return doc


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """Run as nobody inside the block, since root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


class _Files(Files):
    """``Files`` read by an unprivileged user."""

    def listing(self, partition: Any) -> Iterator[Listed | Doubt | Note]:
        listed: list[Listed | Doubt | Note] = []
        error: TransientError | None = None
        with _unprivileged():
            try:
                listed.extend(super().listing(partition))  # keeps what came before an error
            except TransientError as e:
                error = e
        yield from listed
        if error is not None:
            raise error

    def read(self, listed: Listed) -> Document:
        with _unprivileged():
            return super().read(listed)


@contextlib.contextmanager
def _short_texts() -> Iterator[None]:
    """Lower SQLite's limit on the length of texts inside the block."""
    import sqlite3

    def limit(connection: sqlite3.Connection, _record: Any) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, TOO_LONG // 2)

    sa.event.listen(sa.Engine, "connect", limit)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "connect", limit)
