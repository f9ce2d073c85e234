"""Time from the start of a run after ``kill -9`` to its first new delivery, beyond Spark's own start and first job.

The command runs a plan into a slow destination; once that has a third of the documents, all processes of the run are
killed at once. The next run is timed until a document arrives that had not arrived before. The comparison is plain
Spark, from the start of its process until its first job has ended.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench import data
from bench.command import QUIET
from bench.harness import Row, Sizes, empty_folder
from bench.processes import adopt_orphans, processes

LIMIT_S: Final = 2.0
MOST: Final = 200_000
SHARE: Final = 1 / 3
CHUNK: Final = 500
PATIENCE_S: Final = 300.0

PLAN: Final = """
import os
import time

from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import DataFrame

def arrived():
    with open({out!r}) as out:
        return sum(int(line.split()[1]) for line in out if line.endswith("\\n"))

class Slow(Null):
    # Writes down what has arrived: the first id of a chunk, and how many there are. Before the kill, only a third.
    def write(self, chunk):
        while os.path.exists({hold!r}) and arrived() >= {third}:
            time.sleep(0.01)
        time.sleep(len(chunk) / 20_000)
        with open({out!r}, "a") as out:
            out.write(f"{{chunk[0].id}} {{len(chunk)}}\\n")
        return super().write(chunk)

plan = Plan("restart")
rows = plan.source("rows", DataFrame(lambda spark: spark.read.parquet({rows!r})))
rows.step("same", lambda doc: doc).destination("slow", Slow(), batch={batch})
"""

PLAIN: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
assert len(spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()) == 2
open({out!r}, "a").write("done")
spark.stop()
"""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = min(sizes.documents, MOST)
    rows = data.table(folder / f"rows-{count}", count)
    place = empty_folder(folder / "restart")
    out, plain = place / "arrived", place / "plain"
    third, batch, hold = count * SHARE, min(CHUNK, max(1, count // 20)), place / "hold"
    (place / "plan.py").write_text(PLAN.format(out=str(out), rows=str(rows), hold=str(hold), third=third, batch=batch))
    line = [sys.executable, "-m", "ferryman.cli", "run", str(place / "plan.py"), "--state", str(place / "state")]
    ferryman_s, spark_s = [], []
    for _ in range(sizes.rounds + 1):  # the first one finds no file in any cache
        empty_folder(place / "state")
        out.write_text("")
        hold.touch()
        _time_until(line, lambda: _arrived(out)[1] >= third)
        hold.unlink()
        known, _ = _arrived(out)
        ferryman_s.append(_time_until(line, lambda known=known: bool(_arrived(out)[0] - known)))
        plain.write_text("")
        spark_s.append(
            _time_until([sys.executable, "-c", PLAIN.format(out=str(plain))], lambda: plain.read_text() != "")
        )
    beyond = [own - other for own, other in zip(ferryman_s[1:], spark_s[1:], strict=True)]
    took, other, more = (statistics.median(times) for times in (ferryman_s[1:], spark_s[1:], beyond))
    yield Row(
        f"a run of {count} documents is killed in the middle of its deliveries; the next one, until its first new "
        "delivery; plain Spark, until its first job has ended",
        f"{took:.1f} s",
        f"{other:.1f} s",
        f"{more:+.1f} s ({min(beyond):+.1f} to {max(beyond):+.1f})",
        f"≤ {LIMIT_S:+g} s",
        more <= LIMIT_S,
    )


def _arrived(out: Path) -> tuple[set[str], int]:
    """Return the first ids of all chunks, and the number of documents in them."""
    lines = [line.split() for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {id for id, _ in lines}, sum(int(rows) for _, rows in lines)


def _time_until(line: Sequence[str], is_done: Callable[[], bool]) -> float:
    """Start a process, and kill it and all below it when ``is_done``; return the seconds until then."""
    adopt_orphans()
    began = time.perf_counter()
    process = subprocess.Popen(line, env={**os.environ, **QUIET}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not is_done():
        if process.poll() is not None or time.perf_counter() > began + PATIENCE_S:
            raise SystemExit(f"{' '.join(line)}: nothing came of it; it ended with {process.poll()}")
        time.sleep(0.01)
    took_s = time.perf_counter() - began
    tree = list(processes(process.pid))
    for pid in tree:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    for pid in set(tree) - {process.pid}:
        try:
            os.waitpid(pid, 0)  # adopted by us: its memory is free only after this
        except ChildProcessError:
            continue
    return took_s
