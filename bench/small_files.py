"""Many small files into a table of SQLite, beside CocoIndex: whole commands, with Python's own start and Spark's.

Both read each file once, run one trivial step on its text, write a row (id, text, a number) and store what they need to
continue after a kill and to detect changes. Neither has full text. Both detect changes by size and time of
modification: CocoIndex has nothing else, and Ferryman hashes all contents by default, which is a row of its own here.
Features of only one of them are listed in docs/performance.md.
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
from bench.harness import ROOT, Measurement, Row, Sizes, empty_folder, median, time_row

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
    """The folder of files; each change gives other files a new text."""

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
    """Measure rounds: both cold, both again, then both after a change; the runs of a pair follow each other."""
    ferryman_folder, cocoindex_folder = (empty_folder(folder / name) for name in ("small-files", "cocoindex"))
    warm_up = Corpus(folder, WARM_UP)
    _ferryman(_plan(ferryman_folder / "few", warm_up, "fingerprint"), warm_up)
    _cocoindex(empty_folder(cocoindex_folder / "few"), warm_up)

    corpus = Corpus(folder, sizes.files)
    by_time = _plan(ferryman_folder / "fingerprint", corpus, "fingerprint")
    hashed = _plan(ferryman_folder / "content", corpus, "content")
    _ferryman(hashed, corpus)
    runs: dict[str, list[tuple[Measurement, Measurement]]] = {kind: [] for kind in TARGETS}
    for _ in range(sizes.rounds):
        for state in (by_time, cocoindex_folder):
            _remove_state(state)
        runs["cold"].append((_ferryman(by_time, corpus), _cocoindex(cocoindex_folder, corpus)))
        runs["unchanged"].append((_ferryman(by_time, corpus), again := _cocoindex(cocoindex_folder, corpus)))
        runs["unchanged, contents hashed"].append((_ferryman(hashed, corpus), again))
        corpus.change()
        runs["1 % changed"].append((_ferryman(by_time, corpus), _cocoindex(cocoindex_folder, corpus)))
        _ferryman(hashed, corpus)
    for kind, pairs in runs.items():
        took, other = (median([pair[side] for pair in pairs]) for side in range(2))
        what = f"{sizes.files} small files into SQLite, whole commands, {kind}; CocoIndex"
        yield time_row(what, sizes.files, took, other, TARGETS[kind], f"small files: {kind}")


def _plan(place: Path, corpus: Corpus, detect: str) -> Path:
    """Write the plan file into a folder, and return that."""
    empty_folder(place)
    (place / "plan.py").write_text(PLAN.format(folder=str(corpus.folder), detect=detect, out=place / "out.db"))
    return place


def _ferryman(place: Path, corpus: Corpus) -> Measurement:
    took = ferryman("run", str(place / "plan.py"), "--state", str(place / "state"))
    _check_complete(place / "out.db", corpus)
    return took


def _cocoindex(place: Path, corpus: Corpus) -> Measurement:
    took = command([environment.python(), FLOW, corpus.folder, place / "out.db", place / "state"], {})
    _check_complete(place / "out.db", corpus)
    return took


def _check_complete(database: Path, corpus: Corpus) -> None:
    """Assert that the table has a row for each file."""
    with closing(sqlite3.connect(database)) as connection:
        [[rows]] = connection.execute("SELECT count(*) FROM documents")
    assert rows == corpus.files, (database, rows)


def _remove_state(place: Path) -> None:
    """Remove the state and the table."""
    shutil.rmtree(place / "state", ignore_errors=True)
    for name in ("", "-wal", "-shm", "-journal"):
        (place / f"out.db{name}").unlink(missing_ok=True)
