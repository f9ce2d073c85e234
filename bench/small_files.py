"""Many small files into a table of SQLite, beside CocoIndex: whole commands, with Python's own start and Spark's.

Both read each file once, run one trivial step on its text, write a row (id, text, a number) and keep what they need to
go on after a kill and to see what has changed. Neither has full text. Both are asked to go by size and time of
modification: CocoIndex knows nothing else, and Ferryman reads and hashes everything unless it is told, which is a row
of its own here. What only one of them does is in docs/performance.md.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from bench import data, environment
from bench.command import command, ferryman
from bench.harness import ROOT, Row, Sizes, Took, anew, as_long, median

TARGETS: Final = {"cold": 0.33, "unchanged": 0.25, "1 % changed": 0.5, "unchanged, contents hashed": 0.25}
WARM_UP: Final = 10
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
    """Each round: both cold, both again, then both after a change; the ones of a pair right after each other."""
    ours, theirs = (anew(folder / name) for name in ("small-files", "cocoindex"))
    few = Corpus(folder, WARM_UP)
    _ferryman(_plan(ours / "few", few, "fingerprint"), few)
    _cocoindex(anew(theirs / "few"), few)

    corpus = Corpus(folder, sizes.files)
    by_time = _plan(ours / "fingerprint", corpus, "fingerprint")
    hashed = _plan(ours / "content", corpus, "content")
    _ferryman(hashed, corpus)
    found: dict[str, list[tuple[Took, Took]]] = {kind: [] for kind in TARGETS}
    for _ in range(sizes.rounds):
        for state in (by_time, theirs):
            _forget(state)
        found["cold"].append((_ferryman(by_time, corpus), _cocoindex(theirs, corpus)))
        found["unchanged"].append((_ferryman(by_time, corpus), again := _cocoindex(theirs, corpus)))
        found["unchanged, contents hashed"].append((_ferryman(hashed, corpus), again))
        corpus.change()
        found["1 % changed"].append((_ferryman(by_time, corpus), _cocoindex(theirs, corpus)))
        _ferryman(hashed, corpus)
    for kind, pairs in found.items():
        took, other = (median([pair[of] for pair in pairs]) for of in range(2))
        what = f"{sizes.files} small files into SQLite, whole commands, {kind}; CocoIndex"
        yield as_long(what, sizes.files, took, other, TARGETS[kind], f"small files: {kind}")


def _plan(place: Path, corpus: Corpus, detect: str) -> Path:
    """Its folder, with the plan's file."""
    anew(place)
    (place / "plan.py").write_text(PLAN.format(folder=str(corpus.folder), detect=detect, out=place / "out.db"))
    return place


def _ferryman(place: Path, corpus: Corpus) -> Took:
    took = ferryman("run", str(place / "plan.py"), "--state", str(place / "state"))
    _all_there(place / "out.db", corpus)
    return took


def _cocoindex(place: Path, corpus: Corpus) -> Took:
    took = command([environment.python(), FLOW, corpus.folder, place / "out.db", place / "state"], {})
    _all_there(place / "out.db", corpus)
    return took


def _all_there(database: Path, corpus: Corpus) -> None:
    """The table has a row for each file."""
    with closing(sqlite3.connect(database)) as connection:
        [[rows]] = connection.execute("SELECT count(*) FROM documents")
    assert rows == corpus.files, (database, rows)


def _forget(place: Path) -> None:
    """State and table."""
    shutil.rmtree(place / "state", ignore_errors=True)
    for name in ("", "-wal", "-shm", "-journal"):
        (place / f"out.db{name}").unlink(missing_ok=True)
