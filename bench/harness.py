"""Shared parts of the benchmarks: a session, a stopwatch for process trees, and the rows of the table of results."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.processes import Watch, cpu_of_tree, forget_peaks
from ferryman.observe import Silent

ROOT = Path(__file__).parents[1]
XMX = "2g"
"""Memory of the JVM, fixed, so that only Python's varies."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Sizes(NamedTuple):
    """Sizes of the data, and number of rounds."""

    documents: int = 1_000_000
    files: int = 20_000
    rounds: int = 3


class Measurement(NamedTuple):
    """Wall-clock and CPU seconds of one run.

    ``mb``: peak memory by kind of process, in MB. ``phases``: seconds by phase. ``runs``: all runs, of which this is
    the median; the n-th ran right before or after the n-th of what it is compared with.
    """

    wall_s: float
    cpu_s: float
    mb: Mapping[str, int] = NOTHING
    phases: Mapping[str, float] = NOTHING
    runs: tuple[Measurement, ...] = ()


class Figures(NamedTuple):
    """A row's numbers, for the plots.

    ``speed``: times as fast as the comparison, by the clock; ``low``, ``high``: extremes of all pairs; ``cpu``: times
    as fast by CPU time. ``mb`` and ``phases`` are Ferryman's.
    """

    key: str
    speed: float
    low: float
    high: float
    cpu: float
    seconds: float
    documents: int
    mb: Mapping[str, int] = NOTHING
    phases: Mapping[str, float] = NOTHING


class Row(NamedTuple):
    """One line of the table: Ferryman's result, the one it is compared with, and whether the target is met.

    ``results.save`` stores these fields by name.
    """

    what: str
    ours: str
    beside: str
    ratio: str
    target: str
    met: bool
    memory: str = ""
    figures: Figures | None = None


def timed(work: Callable[[], Any]) -> Measurement:
    """Run the work once; measure this process, the JVM and Spark's Python workers. Work may return a measurement."""
    forget_peaks()
    _PHASES.clear()
    with Watch() as watch:
        cpu, began = cpu_of_tree(), time.perf_counter()
        result = work()
        took_s, cpu_s = time.perf_counter() - began, cpu_of_tree() - cpu
    if isinstance(result, Measurement):
        return result
    known = sum(_PHASES.values())
    phases = {**_PHASES, "rest": took_s - known} if known else {}
    return Measurement(took_s, max(cpu_s, watch.cpu_s), {kind: mb for kind, mb in watch.peaks.items() if mb}, phases)


_PHASES: dict[str, float] = {}


class Phases(Silent):
    """Adds up the seconds of each phase of a run, for ``timed``."""

    def __init__(self) -> None:
        self._began, self._name = 0.0, ""

    def phase(self, wave: int, name: str) -> None:
        self._end()
        self._began, self._name = time.perf_counter(), name

    def finished(self, counts: Mapping[str, int]) -> None:
        self._end()

    def _end(self) -> None:
        if self._name:
            _PHASES[self._name] = _PHASES.get(self._name, 0.0) + time.perf_counter() - self._began
            self._name = ""


@contextmanager
def phases() -> Iterator[Phases]:
    """Open an observer that measures the phases of a run; time after the last phase belongs to none."""
    observer = Phases()
    yield observer
    observer.finished({})


def alternate(rounds: int, *works: Callable[[], Any]) -> list[Measurement]:
    """Warm all up, then run them in turn, so that disturbances hit all; return the median by CPU of each."""
    for work in works:
        work()
    runs = [[timed(work) for work in works] for _ in range(rounds)]
    return [median([run[i] for run in runs]) for i in range(len(works))]


def speed_row(what: str, documents: int, ours: Measurement, plain: Measurement, target: float, key: str = "") -> Row:
    """Make a row with the target "at least so many times as fast". ``key``: its name in the plots, if it is in them."""
    ratio, text, figures = compare(key or what, documents, ours, plain)
    memory = f"{describe_memory(ours)}; {describe_memory(plain)}"
    texts = (_describe_time(ours, documents), _describe_time(plain, documents), text, f"≥ {target:g}×")
    return Row(what, *texts, ratio >= target, memory, figures if key else None)


def time_row(what: str, documents: int, ours: Measurement, plain: Measurement, target: float, key: str = "") -> Row:
    """Make a row with the target "at most so many times as long"."""
    ratio, text, figures = compare(key or what, documents, ours, plain, longer=True)
    memory = f"{describe_memory(ours)}; {describe_memory(plain)}"
    texts = (_describe_time(ours, documents), _describe_time(plain, documents), text, f"≤ {target:g}×")
    return Row(what, *texts, ratio <= target, memory, figures if key else None)


def compare(
    key: str, documents: int, ours: Measurement, plain: Measurement, *, longer: bool = False
) -> tuple[float, str, Figures]:
    """Return the ratio of speeds (``longer``: of times), as the median of all pairs, with its text and the figures."""
    pairs = list(zip(ours.runs or (ours,), plain.runs or (plain,), strict=True))
    speeds = sorted(other.wall_s / own.wall_s for own, other in pairs)
    speed, cpu = (
        statistics.median(speeds),
        statistics.median(other.cpu_s / max(own.cpu_s, 0.01) for own, other in pairs),
    )
    figures = Figures(key, speed, speeds[0], speeds[-1], cpu, ours.wall_s, documents, dict(ours.mb), dict(ours.phases))
    if longer:
        speed, cpu, speeds = 1 / speed, 1 / max(cpu, 1e-9), [1 / s for s in reversed(speeds)]
    spread = f"{speeds[0]:.2f}–{speeds[-1]:.2f}; " if len(speeds) > 1 else ""
    return speed, f"{speed:.2f}× ({spread}CPU {cpu:.2f}×)", figures


def limit_row(what: str, ours: Measurement, limit_s: float, beside: str = "") -> Row:
    """Make a row with the target "at most so many seconds"."""
    text = f"{ours.wall_s:.2f} s"
    return Row(what, text, beside, "", f"≤ {limit_s:g} s", ours.wall_s <= limit_s, describe_memory(ours))


def describe_memory(took: Measurement) -> str:
    """Format the peaks of memory."""
    return ", ".join(f"{kind} {mb} MB" for kind, mb in took.mb.items())


def print_table(rows: list[Row]) -> None:
    """Print the rows as Markdown, for the docs."""
    print("| what | Ferryman | beside it | ratio (spread; CPU) | target | met | peak memory: Ferryman; beside it |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row[:5])} | {'yes' if row.met else '**no**'} | {row.memory} |")


@cache
def spark() -> Any:
    """Return the session of all benchmarks in this process: two cores, and workers that can import ``bench``."""
    from ferryman.engine.runner.sessions import start

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return start("local[2]", {"spark.driver.memory": XMX}, "bench")


def empty_folder(folder: Path) -> Path:
    """Empty the folder, or create it, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def print_progress(text: str) -> None:
    """Print a line of progress to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def median(runs: list[Measurement]) -> Measurement:
    """Return the median run by CPU, with all runs."""
    middle = statistics.median_low(run.cpu_s for run in runs)
    return next(run for run in runs if run.cpu_s == middle)._replace(runs=tuple(runs))


def _describe_time(took: Measurement, documents: int) -> str:
    rate = documents / took.wall_s
    speed = f"{rate / 1000:.0f} k docs/s" if rate >= 10_000 else f"{rate:.0f} docs/s"
    return f"{took.wall_s:.2f} s ({speed})"
