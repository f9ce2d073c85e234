"""Many small files into a table of SQLite, beside CocoIndex: whole commands, with Python's own start and Spark's.

Both read each file once, run one trivial step on its text, write a row (id, text, a number) and keep what they need to
go on after a kill and to see what has changed. Neither has full text. Both are asked to go by size and time of
modification: CocoIndex knows nothing else, and Ferryman reads and hashes everything unless it is told, which is a row
of its own here. What only one of them does is in docs/performance.md.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from bench import data, environment
from bench.command import command, ferryman
from bench.harness import ROOT, Row, Sizes, Took, anew, as_long, in_turn

TARGETS: Final = {"cold": 1 / 3, "unchanged": 1 / 4, "1 % changed": 1 / 2}
FLOW: Final = ROOT / "bench" / "peers" / "cocoindex_flow.py"
SHARE: Final = 100

PLAN: Final = """
from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.sources import Files

def characters(doc):
    doc["characters"] = len(doc.text())
    return doc

plan = Plan("small-files")
files = plan.source("files", Files({folder!r}, detect={detect!r}))
files.step("characters", characters).destination("table", Sql("sqlite:///{out}"))
"""


class Corpus:
    """The folder; each change gives other files a text that they never had."""

    def __init__(self, folder: Path, files: int) -> None:
        self.folder = data.small_files(folder / f"changing-{files}", files)
        self.files = files
        self._paths = sorted(self.folder.rglob("*.txt"))
        self._changes = 0

    def change(self) -> None:
        self._changes += 1
        for path in self._paths[self._changes % SHARE :: SHARE]:
            path.write_text(f"{os.urandom(8).hex()} {path.read_text()}"[:500])


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    corpus = Corpus(folder, sizes.files)
    ours, theirs = (anew(folder / name) for name in ("small-files", "cocoindex"))
    for detect in ("fingerprint", "content"):
        (ours / f"{detect}.py").write_text(
            PLAN.format(folder=str(corpus.folder), detect=detect, out=ours / f"{detect}.db")
        )
    run, hashed, flow = (
        partial(_ferryman, ours, "fingerprint"),
        partial(_ferryman, ours, "content"),
        partial(_coco, theirs),
    )

    def cold(place: Path, go: Callable[[Corpus], Took]) -> Took:
        for name in ("state", "fingerprint.db", "out.db"):
            _remove(place / name)
        return go(corpus)

    kinds = {
        "cold": (lambda: cold(ours, run), lambda: cold(theirs, flow)),
        "unchanged": (lambda: run(corpus), lambda: flow(corpus)),
        "1 % changed": (lambda: (corpus.change(), run(corpus))[1], lambda: flow(corpus)),
    }
    for kind, works in kinds.items():
        took, other = in_turn(sizes.rounds, *works)
        yield as_long(f"{sizes.files} small files into SQLite, whole commands, {kind}; CocoIndex",
                      sizes.files, took, other, TARGETS[kind], f"small files: {kind}")  # fmt: skip
    hashed(corpus)
    took, other = in_turn(sizes.rounds, lambda: hashed(corpus), lambda: flow(corpus))
    yield as_long(f"{sizes.files} small files, unchanged, of which Ferryman hashes the contents; CocoIndex",
                  sizes.files, took, other, TARGETS["unchanged"], "small files: unchanged, all hashed")  # fmt: skip


def _ferryman(place: Path, detect: str, corpus: Corpus) -> Took:
    took = ferryman("run", str(place / f"{detect}.py"), "--state", str(place / "state" / detect))
    _all_there(place / f"{detect}.db", corpus)
    return took


def _coco(place: Path, corpus: Corpus) -> Took:
    took = command([environment.python(), FLOW, corpus.folder, place / "out.db", place / "state"], {})
    _all_there(place / "out.db", corpus)
    return took


def _all_there(database: Path, corpus: Corpus) -> None:
    """The table has a row for each file."""
    with closing(sqlite3.connect(database)) as connection:
        [[rows]] = connection.execute("SELECT count(*) FROM documents")
    assert rows == corpus.files, (database, rows)


def _remove(path: Path) -> None:
    if path.is_dir():
        anew(path)
    else:
        for name in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + name).unlink(missing_ok=True)
