"""What all benchmarks share: a session, a stopwatch for whole process trees, and the rows of the table of results."""

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
"""Memory of the JVM, fixed, so that Python's is what varies."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Sizes(NamedTuple):
    """How much is measured."""

    documents: int = 1_000_000
    files: int = 20_000
    rounds: int = 3


class Took(NamedTuple):
    """One run: by the clock, and of all cores together.

    ``mb``: the highest memory of the kinds of processes that took part, in MB. ``phases``: seconds by phase.
    ``runs``: all runs, of which this is the median; the n-th was made right before or after the n-th of the others.
    """

    wall_s: float
    cpu_s: float
    mb: Mapping[str, int] = NOTHING
    phases: Mapping[str, float] = NOTHING
    runs: tuple[Took, ...] = ()


class Figures(NamedTuple):
    """A row's numbers, for the plots.

    ``speed``: how many times as fast as what is beside it, by the clock; ``low``, ``high``: of all pairs; ``cpu``: the
    same by CPU time. ``mb`` and ``phases`` are Ferryman's.
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
    """One line of the table: what was measured beside what, and whether that is good enough."""

    what: str
    ours: str
    beside: str
    ratio: str
    target: str
    met: bool
    memory: str = ""
    figures: Figures | None = None


def timed(work: Callable[[], Any]) -> Took:
    """Run it once; CPU of this process, of the JVM, and of Spark's Python workers. Work may have measured itself."""
    forget_peaks()
    _PHASES.clear()
    with Watch() as watch:
        cpu, began = cpu_of_tree(), time.perf_counter()
        took = work()
        took_s, cpu_s = time.perf_counter() - began, cpu_of_tree() - cpu
    if isinstance(took, Took):
        return took
    known = sum(_PHASES.values())
    phases = {**_PHASES, "rest": took_s - known} if known else {}
    return Took(took_s, max(cpu_s, watch.cpu_s), {kind: mb for kind, mb in watch.peaks.items() if mb}, phases)


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
    """An observer of a run; what follows the last phase is nobody's."""
    observer = Phases()
    yield observer
    observer.finished({})


def in_turn(rounds: int, *works: Callable[[], Any]) -> list[Took]:
    """Warm all up, then run them in turn, so that what disturbs the machine disturbs all; of each the median by CPU."""
    for work in works:
        work()
    runs = [[timed(work) for work in works] for _ in range(rounds)]
    return [median([run[i] for run in runs]) for i in range(len(works))]


def as_fast(what: str, documents: int, ours: Took, plain: Took, target: float, key: str = "") -> Row:
    """A row for "at least so many times as fast as that". ``key``: its name in the plots, where it is in them."""
    ratio, shown, figures = compared(key or what, documents, ours, plain)
    memory = f"{of_memory(ours)}; {of_memory(plain)}"
    texts = (_shown(ours, documents), _shown(plain, documents), shown, f"≥ {target:g}×")
    return Row(what, *texts, ratio >= target, memory, figures if key else None)


def as_long(what: str, documents: int, ours: Took, plain: Took, target: float, key: str = "") -> Row:
    """A row for "at most so many times as long as that"."""
    ratio, shown, figures = compared(key or what, documents, ours, plain, longer=True)
    memory = f"{of_memory(ours)}; {of_memory(plain)}"
    texts = (_shown(ours, documents), _shown(plain, documents), shown, f"≤ {target:g}×")
    return Row(what, *texts, ratio <= target, memory, figures if key else None)


def compared(key: str, documents: int, ours: Took, plain: Took, *, longer: bool = False) -> tuple[float, str, Figures]:
    """The ratio (the median of all pairs; ``longer``: of times instead of speeds), as text with its spread, and all."""
    pairs = list(zip(ours.runs or (ours,), plain.runs or (plain,), strict=True))
    speeds = sorted(other.wall_s / mine.wall_s for mine, other in pairs)
    speed, cpu = (
        statistics.median(speeds),
        statistics.median(other.cpu_s / max(mine.cpu_s, 0.01) for mine, other in pairs),
    )
    figures = Figures(key, speed, speeds[0], speeds[-1], cpu, ours.wall_s, documents, dict(ours.mb), dict(ours.phases))
    if longer:
        speed, cpu, speeds = 1 / speed, 1 / max(cpu, 1e-9), [1 / s for s in reversed(speeds)]
    spread = f"{speeds[0]:.2f}–{speeds[-1]:.2f}; " if len(speeds) > 1 else ""
    return speed, f"{speed:.2f}× ({spread}CPU {cpu:.2f}×)", figures


def within(what: str, ours: Took, limit_s: float, beside: str = "") -> Row:
    """A row for "in at most so many seconds"."""
    shown = f"{ours.wall_s:.2f} s"
    return Row(what, shown, beside, "", f"≤ {limit_s:g} s", ours.wall_s <= limit_s, of_memory(ours))


def of_memory(took: Took) -> str:
    """The peaks, as people read them."""
    return ", ".join(f"{kind} {mb} MB" for kind, mb in took.mb.items())


def print_table(rows: list[Row]) -> None:
    """As Markdown, so that it can go into the docs as it is."""
    print("| what | Ferryman | beside it | ratio (spread; CPU) | target | met | peak memory: Ferryman; beside it |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row[:5])} | {'yes' if row.met else '**no**'} | {row.memory} |")


@cache
def spark() -> Any:
    """The session of all benchmarks in this process: two cores, and workers that can import ``bench``."""
    from ferryman.engine.runner.sessions import start

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


def median(runs: list[Took]) -> Took:
    """The one in the middle by CPU, with all of them."""
    middle = statistics.median_low(run.cpu_s for run in runs)
    return next(run for run in runs if run.cpu_s == middle)._replace(runs=tuple(runs))


def _shown(took: Took, documents: int) -> str:
    rate = documents / took.wall_s
    shown = f"{rate / 1000:.0f} k docs/s" if rate >= 10_000 else f"{rate:.0f} docs/s"
    return f"{took.wall_s:.2f} s ({shown})"
