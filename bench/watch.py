"""From saving a file to finding it in SQLite by ``run --watch``, beside CocoIndex's live mode; a burst of files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from bench import environment
from bench.command import QUIET
from bench.harness import Row, Sizes, empty_folder, print_progress
from bench.small_files import FLOW

LIMIT_S: Final = 1.0
SAVES: Final = 21
"""Files saved one after the other; the first one warms up."""
BURST: Final = 10_000
MOST_WAVES: Final = 20
LATE_S: Final = 300.0

PLAN: Final = """
from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.sources import Files

plan = Plan("watch")
plan.source("files", Files("in")).destination("table", Sql("sqlite:///out.db"))
"""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    ours = empty_folder(folder / "watch")
    (ours / "plan.py").write_text(PLAN)
    with _running(ours, [sys.executable, "-m", "ferryman.cli", "run", "plan.py", "--watch"]):
        own = [_save(ours, f"{number}.txt") for number in range(SAVES)][1:]
        began = time.perf_counter()
        for number in range(BURST):
            (ours / "in" / f"burst-{number}").write_text("one of many")
        _wait_for(ours, "SELECT count(*) = ? FROM documents", BURST + SAVES)
        took = time.perf_counter() - began
        waves = len(set(re.findall(r"^wave (\d+): deliver", (ours / "log").read_text(), re.MULTILINE))) - SAVES
    beside = _cocoindex(empty_folder(folder / "watch-cocoindex"))
    median = statistics.median(own)
    yield Row(
        "a file saved until it is found in SQLite, median (least–most); CocoIndex's live mode",
        _describe(own),
        _describe(beside),
        f"{median / statistics.median(beside):.2f}×" if beside else "",
        f"≤ {LIMIT_S:g} s",
        median <= LIMIT_S,
    )
    yield Row(
        f"{BURST} files saved at once", f"{took:.1f} s, {waves} waves", "", "", "a few waves", waves <= MOST_WAVES
    )


def _cocoindex(place: Path) -> Sequence[float]:
    """Return the seconds of each save; none if CocoIndex is not installed."""
    flow = [environment.python(), FLOW, place / "in", place / "out.db", place / "state", "live"]
    with _running(place, flow):
        return [_save(place, f"{number}.txt") for number in range(SAVES)][1:]


def _describe(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f}–{max(seconds):.2f})"


@contextlib.contextmanager
def _running(place: Path, line: Sequence[object]) -> Iterator[None]:
    """Run a program that watches ``place/in`` within the block."""
    (place / "in").mkdir()
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            list(map(str, line)), cwd=place, env={**os.environ, **QUIET}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        except TimeoutError:
            print_progress((place / "log").read_text())
            raise
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _save(place: Path, name: str) -> float:
    """Save a file by renaming it; return the seconds until the table has it."""
    (place / name).write_text("a note")
    began = time.perf_counter()
    (place / name).rename(place / "in" / name)
    _wait_for(place, "SELECT count(*) FROM documents WHERE id = ?", name)
    return time.perf_counter() - began


def _wait_for(place: Path, query: str, value: object) -> None:
    """Wait until a query says true.

    Raises:
        TimeoutError: it does not.
    """
    give_up = time.monotonic() + LATE_S
    while time.monotonic() < give_up:
        with contextlib.suppress(sqlite3.OperationalError), closing(_connect(place)) as db:  # not made yet, or locked
            if db.execute(query, (value,)).fetchone()[0]:
                return
        time.sleep(0.005)
    raise TimeoutError(f"{query} ({value}) is not true after {LATE_S:g} s")


def _connect(place: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{place / 'out.db'}?mode=ro", uri=True, timeout=0.1)
