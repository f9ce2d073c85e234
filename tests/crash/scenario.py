"""A small corpus that meets every branch of the protocol, a destination that shows doubles, an oracle of its own.

Two runs: the first indexes ten files; before the second some are changed, removed and made, and a person retries what
is dead. One document cannot be read (ERROR_DOC), one is refused by the destination (DEAD), one succeeds only at its
second attempt.
"""

from __future__ import annotations

import collections
import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ferryman import crash
from ferryman.destinations.base import Delivery, Guarantee, Outcome
from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.sources import Files
from tests.crash.names import BAD, REFUSED, SECOND
from tests.crash.shapes.shape import Shelf

GUARANTEES = [g.value for g in Guarantee]
BATCH = 3
IN_WRITE = "in-write"
"""Armed like a crash point: the destination's ``write`` stops its process before it takes effect. Also the name of the
file that says so."""


class Log(Shelf):
    """One document it refuses, one it takes at the second attempt only; before it writes it may stop its process."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "delivered", {REFUSED: "refuse", SECOND: "first"})

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        stop_if_asked(Path(self.path).parent)
        return super().write(chunk)


def stop_if_asked(root: Path) -> None:
    """Once: see ``IN_WRITE``."""
    asked = root / IN_WRITE
    if asked.exists():
        asked.unlink()
        crash.stop_here(signal.SIGSTOP)


def words(doc: Document) -> Document:
    doc["words"] = len(doc.text().split())
    return doc


def make_plan(root: Path, guarantee: str) -> Plan:
    plan = Plan("crash", version=1)
    log = Log(root)
    files = plan.source("files", Files(str(root / "corpus")))
    plan.notify(f"tee -a {root / 'told.jsonl'}")
    files.step("words", words).destination("log", log, guarantee=guarantee, batch=BATCH, backoff=0, attempts=3)
    return plan


def first_corpus() -> dict[str, bytes]:
    """Before the first run."""
    corpus = {f"f{i}.txt": f"first {i}".encode() for i in range(7)}
    return {**corpus, BAD: b"\x80\x81", REFUSED: b"refuse me", SECOND: b"second"}


def second_corpus() -> dict[str, bytes]:
    """Before the second run: changed, removed, new; and two more that are refused or fail first."""
    corpus = first_corpus()
    corpus |= {
        "f1.txt": b"changed 1",
        "f2.txt": b"changed 2",
        "new.txt": b"new",
        BAD: b"\xff",
        REFUSED: b"refuse me again",
        SECOND: b"second again",
    }
    del corpus["f3.txt"], corpus["f4.txt"]
    return corpus


def write_corpus(root: Path, corpus: dict[str, bytes]) -> None:
    folder = root / "corpus"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in corpus:
            path.unlink()
    for name, content in corpus.items():
        if not (folder / name).exists() or (folder / name).read_bytes() != content:
            (folder / name).write_bytes(content)


Expected = collections.Counter[tuple[str, str, str]]


def expected(shape: str) -> Expected:
    """What must arrive, by the corpora alone: (operation, id, text), once each."""
    first, second = first_corpus(), second_corpus()
    silent = {BAD, REFUSED}
    arrives = collections.Counter(("upsert", i, c.decode()) for i, c in first.items() if i not in silent)
    if shape == "second":
        arrives.update(("upsert", i, c.decode()) for i, c in second.items() if i not in silent and first.get(i) != c)
        arrives.update(("delete", i, "") for i in first if i not in second)
    return arrives


def delivered(root: Path) -> list[dict[str, Any]]:
    log = root / "delivered.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _check_told(root: Path, shape: str, in_doubt: set[tuple[str, str]], dead: int) -> None:
    """Whoever is to be told knows of all that failed in the last version; a kill may have told it twice."""
    digests = [json.loads(line) for line in (root / "told.jsonl").read_text().splitlines()]
    told = {(e["status"], e["document"]) for d in digests for e in d["examples"]}
    assert ("rejected", BAD) in told
    assert not dead or ("failed", REFUSED) in told
    assert {("in_doubt", id) for _, id in in_doubt} <= told
    waves = [(d["since"], d["wave"]) for d in digests]
    assert len(waves) <= (2 if shape == "second" else 1) + 1, waves


def check(root: Path, shape: str, guarantee: str, status: dict[str, Any], unknown: Iterable[dict[str, Any]]) -> None:
    """The destination against the oracle, the ledger against both."""
    lines = delivered(root)
    got: Expected = collections.Counter((d["op"], d["id"], d["text"]) for d in lines)
    wanted = expected(shape)
    assert not got.keys() - wanted.keys(), "delivered what nobody asked for"
    missing = wanted.keys() - got.keys()
    doubled = {k: n for k, n in got.items() if n > 1}
    in_doubt = {(u["operation"], u["document"]) for u in unknown}
    match guarantee:
        case "exactly-once":
            assert not missing, "lost"
            assert not doubled, "doubled"
        case "at-least-once":
            assert not missing, "lost"
            assert len(doubled) <= BATCH, "doubled more than was in flight"
        case _:
            assert not doubled, "doubled"
            assert {(op, id) for op, id, _ in missing} <= in_doubt, "lost without a word"
            assert len(in_doubt) <= BATCH, "more in doubt than was in flight"
    _in_order(lines)
    _check_told(root, shape, in_doubt, status["destinations"]["log"]["failed"])
    assert status["balanced"], status
    counts = status["destinations"]["log"]
    current = second_corpus() if shape == "second" else first_corpus()
    gone = len(first_corpus().keys() - current.keys()) if shape == "second" else 0
    assert counts["pending"] == 0, counts
    assert counts["rejected"] == 1, counts
    assert counts["failed"] == 1 or (counts["in_doubt"] and (guarantee == "at-most-once")), counts
    ended = sum(counts[name] for name in ("delivered", "deleted", "in_doubt", "failed"))
    assert ended == len(current) - 1 + gone, counts
    if guarantee != "at-most-once":
        assert counts["in_doubt"] == 0, counts


def _in_order(lines: list[dict[str, Any]]) -> None:
    """No older version of an id arrives after a newer one."""
    highest: dict[str, int] = {}
    for line in lines:
        assert line["seq"] >= highest.get(line["id"], 0), f"{line['id']} went back in time"
        highest[line["id"]] = line["seq"]
