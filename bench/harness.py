"""What all benchmarks share: a session, a stopwatch for whole process trees, and the table of results."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
XMX = "2g"
"""Memory of the JVM, fixed, so that Python's is what varies."""


class Sizes(NamedTuple):
    """How much is measured."""

    documents: int = 1_000_000
    files: int = 20_000
    rounds: int = 3


class Took(NamedTuple):
    """One run: by the clock, and of all cores together."""

    wall_s: float
    cpu_s: float


class Row(NamedTuple):
    """One line of the table: what was measured beside what, and whether that is good enough."""

    what: str
    ours: str
    beside: str
    ratio: str
    target: str
    met: bool


def timed(work: Callable[[], Any]) -> Took:
    """Run it once; CPU of this process, of the JVM, and of Spark's Python workers."""
    cpu, began = cpu_of_tree(), time.perf_counter()
    work()
    return Took(time.perf_counter() - began, cpu_of_tree() - cpu)


def in_turn(rounds: int, *works: Callable[[], Any]) -> list[Took]:
    """Warm all up, then run them in turn, so that what disturbs the machine disturbs all; of each the median by CPU."""
    for work in works:
        work()
    runs = [[timed(work) for work in works] for _ in range(rounds)]
    return [_median([run[i] for run in runs]) for i in range(len(works))]


def as_fast(what: str, documents: int, ours: Took, plain: Took, target: float) -> Row:
    """A row for "at least so many times as fast as that"."""
    ratio = plain.wall_s / ours.wall_s
    shown = f"{ratio:.2f}× (CPU {plain.cpu_s / ours.cpu_s:.2f}×)"
    return Row(what, _shown(ours, documents), _shown(plain, documents), shown, f"≥ {target}×", ratio >= target)


def as_long(what: str, documents: int, ours: Took, plain: Took, target: float) -> Row:
    """A row for "at most so many times as long as that"."""
    ratio = ours.wall_s / plain.wall_s
    shown = f"{ratio:.2f}× (CPU {ours.cpu_s / plain.cpu_s:.2f}×)"
    return Row(what, _shown(ours, documents), _shown(plain, documents), shown, f"≤ {target}×", ratio <= target)


def within(what: str, ours: Took, limit_s: float, beside: str = "") -> Row:
    """A row for "in at most so many seconds"."""
    return Row(what, f"{ours.wall_s:.2f} s", beside, "", f"≤ {limit_s:g} s", ours.wall_s <= limit_s)


def print_table(rows: list[Row]) -> None:
    """As Markdown, so that it can go into the docs as it is."""
    print("| what | Ferryman | beside it | ratio | target | met |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row[:-1])} | {'yes' if row.met else '**no**'} |")


@cache
def spark() -> Any:
    """The session of all benchmarks in this process: two cores, and workers that can import ``bench``."""
    from ferryman.engine.runner.spark import start

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return start("local[2]", {"spark.driver.memory": XMX}, "bench")


def anew(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def say(text: str) -> None:
    """A line of progress; the results own stdout."""
    print(text, file=sys.stderr, flush=True)


def processes() -> dict[int, list[int]]:
    """This process and all below it: pid -> its fields of /proc/<pid>/stat from the fourth on."""
    stats: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            stats[int(name)] = [int(field) for field in stat.rpartition(")")[2].split()[1:]]
    ours = {os.getpid()}
    while more := {pid for pid, stat in stats.items() if stat[0] in ours} - ours:
        ours |= more
    return {pid: stats[pid] for pid in ours}


def cpu_of_tree() -> float:
    """CPU seconds of this process and all below it so far, ended ones included."""
    ticks = sum(sum(stat[10:14]) for stat in processes().values())
    return ticks / os.sysconf("SC_CLK_TCK")


def _median(runs: list[Took]) -> Took:
    middle = statistics.median_low(run.cpu_s for run in runs)
    return next(run for run in runs if run.cpu_s == middle)


def _shown(took: Took, documents: int) -> str:
    return f"{took.wall_s:.2f} s ({documents / took.wall_s / 1000:.0f} k docs/s)"
