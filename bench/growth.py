"""Documents a second and peak memory by the number of documents, new and unchanged, each size in its own process.

Rows come from a Spark range, with the columns of the other benchmarks, and go nowhere: only the state is on the disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import ROOT, Figures, Measurement, Row, Sizes, describe_memory, phases, print_progress, spark, timed
from bench.plain import step
from ferryman import Plan, run
from ferryman.destinations import Null
from ferryman.sources import DataFrame

SHARES: Final = (0.1, 1.0, 10.0)
"""Sizes, as multiples of ``--documents``."""
SPEED, MEMORY = 0.9, 1.15
WARM_UP: Final = 2_000
KINDS: Final = ("new", "unchanged")


def plan(documents: int) -> Plan:
    """Return a plan for rows of 500 bytes."""

    def rows(spark: Any) -> Any:
        body = "rpad(concat('text of ', id, ' ', sha2(string(id), 256)), 440, ' and so on') AS body"
        return spark.range(0, documents, 1, 16).selectExpr(
            "concat('doc-', id) AS id", "concat('Title ', id) AS title", body
        )

    plan = Plan("growth")
    plan.source("rows", DataFrame(rows)).step("characters", step).destination("nowhere", Null())
    return plan


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Measure one run of each size: a larger one consists of many smaller ones."""
    measurements = {}
    for share in SHARES:
        count = max(int(sizes.documents * share), 1)
        command = [sys.executable, "-m", "bench.growth", str(folder), str(count)]
        answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        measurements[count] = {
            kind: Measurement(*took) for kind, took in json.loads(answer.stdout.splitlines()[-1]).items()
        }
        print_progress(f"    {count} documents: {measurements[count]}")
    _, middle, most = measurements
    for kind in KINDS:
        for count, took in measurements.items():
            yield from _row(kind, count, took[kind], middle, measurements[middle][kind], last=count == most)


def _row(kind: str, count: int, took: Measurement, fewer: int, beside: Measurement, *, last: bool) -> Iterator[Row]:
    """Make the row of a size; the largest is compared with the one before it."""
    ratio, cpu = (count * other / (fewer * own) for own, other in zip(took[:2], beside[:2], strict=True))
    memory = max(took.mb[kind] / beside.mb[kind] for kind in ("driver", "worker"))
    is_compared = count != fewer
    yield Row(
        f"{count} documents into Null, {kind}" + (f"; {fewer}" if is_compared else ""),
        f"{count / took.wall_s / 1000:.1f} k docs/s, {took.cpu_s / count * 1e6:.1f} µs of CPU each",
        f"{fewer / beside.wall_s / 1000:.1f} k docs/s, {beside.cpu_s / fewer * 1e6:.1f} µs" if is_compared else "",
        f"{ratio:.2f}× (CPU {cpu:.2f}×); memory {memory:.2f}×" if is_compared else "",
        f"≥ {SPEED}×; ≤ {MEMORY}×" if last else "",
        not last or (ratio >= SPEED and memory <= MEMORY),
        f"{describe_memory(took)}; {describe_memory(beside)}" if is_compared else describe_memory(took),
        Figures(f"growth: {kind}", ratio, ratio, ratio, cpu, took.wall_s, count, dict(took.mb), dict(took.phases)),
    )


def main(folder: Path, count: int) -> None:
    results = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run(plan(WARM_UP), state=Path(place) / "warm-up", spark=spark())
        for kind in KINDS:

            def work(kind: str = kind) -> None:
                with phases() as watch:
                    summary = run(plan(count), state=Path(place) / "state", spark=spark(), observer=watch)
                assert summary.delivered == (count if kind == "new" else 0), summary

            measurement = timed(work)
            results[kind] = (measurement.wall_s, measurement.cpu_s, dict(measurement.mb), dict(measurement.phases))
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
