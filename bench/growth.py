"""Documents a second and peak memory by the number of documents, each size in its own process: all are new, unchanged,
changed, 1 % changed, 1 % gone; then the time of each run, and the size of the state, when all change run after run.

Rows come from a Spark range, with the columns of the other benchmarks, and go nowhere: only the state is on the disk.
``python -m bench.growth FOLDER DOCUMENTS ROUNDS`` runs the rounds alone.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import sizes as shapes
from bench.harness import ROOT, Figures, Measurement, Row, Sizes, describe_memory, phases, print_progress, spark, timed
from bench.plain import step
from ferryman import Plan, run
from ferryman.destinations import Null
from ferryman.sources import DataFrame
from ferryman.state.state import TABLES, state_root

SHARES: Final = (0.1, 1.0, 10.0)
"""Sizes, as multiples of ``--documents``."""
SPEED, MEMORY = 0.9, 1.15
WARM_UP: Final = 2_000
PART: Final = 100
"""Of so many documents one changes, or goes."""

ROUNDS: Final = 20
"""Runs in each of which all documents have changed."""
LAST: Final = 5
"""Rounds at the end whose median counts, since the first ones warm Spark up."""
TIME, SIZE, LOGS_MB = 1.2, 1.2, 1


class Kind(NamedTuple):
    """What has happened to the documents since the run before.

    Attributes:
        revision: SQL for what the text of a row begins with.
        lasting: SQL for the rows that are there.
        share: which part of the documents is delivered or deleted.
    """

    revision: str
    lasting: str
    share: float


KINDS: Final = {
    "new": Kind("1", "true", 1),
    "unchanged": Kind("1", "true", 0),
    "all changed": Kind("2", "true", 1),
    "1 % changed": Kind(f"if(id % {PART} = 0, 3, 2)", "true", 1 / PART),
    "1 % deleted": Kind(f"if(id % {PART} = 0, 3, 2)", f"id % {PART} != 1", 1 / PART),
}


def plan(documents: int, kind: Kind) -> Plan:
    """Return a plan for rows of 500 bytes."""

    def rows(spark: Any) -> Any:
        text = f"concat({kind.revision}, '. text of ', id, ' ', sha2(string(id), 256))"
        return (
            spark.range(0, documents, 1, 16)
            .where(kind.lasting)
            .selectExpr(
                "concat('doc-', id) AS id", "concat('Title ', id) AS title", f"rpad({text}, 440, ' and so on') AS body"
            )
        )

    plan = Plan("growth")
    plan.source("rows", DataFrame(rows)).step("characters", step).destination("nowhere", Null())
    return plan


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Measure one run of each size: a larger one consists of many smaller ones."""
    yield from _sizes(sizes, folder)
    yield from _rounds(max(int(sizes.documents * SHARES[0]), 1), folder)


def _sizes(sizes: Sizes, folder: Path) -> Iterator[Row]:
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


def _rounds(count: int, folder: Path) -> Iterator[Row]:
    command = [sys.executable, "-m", "bench.growth", str(folder), str(count), str(ROUNDS)]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    yield from rows_of_rounds(count, json.loads(answer.stdout.splitlines()[-1]))


def rows_of_rounds(count: int, rounds: list[dict[str, Any]]) -> Iterator[Row]:
    """Compare the last rounds with the first one, in which all documents were new."""
    first, *others = rounds
    wall, cpu = (statistics.median(each[key] for each in others[-LAST:]) for key in ("wall_s", "cpu_s"))
    yield Row(
        f"{count} documents, all changed, the last {LAST} of {len(rounds)} runs; the first, all new",
        f"{wall:.1f} s ({cpu:.1f} s of CPU)",
        f"{first['wall_s']:.1f} s ({first['cpu_s']:.1f} s of CPU)",
        f"{wall / first['wall_s']:.2f}× (CPU {cpu / first['cpu_s']:.2f}×)",
        f"≤ {TIME}×",
        cpu <= TIME * first["cpu_s"],
    )
    for table, events in (("documents", 1), ("ledger", len(rounds))):
        before, after = first["bytes"][table], others[-1]["bytes"][table] / events
        yield Row(
            f"the same: bytes of `{table}`" + (" a run" if events > 1 else ""),
            f"{after / 1e6:.2f} MB",
            f"{before / 1e6:.2f} MB",
            f"{after / before:.2f}×",
            f"≤ {SIZE}×",
            after <= SIZE * before,
        )
    logs = max(each["bytes"]["outbox and logs"] for each in rounds) / 1e6
    yield Row(
        "the same: bytes of the outbox and all logs", f"{logs:.2f} MB", "", "", f"≤ {LOGS_MB} MB", logs <= LOGS_MB
    )


def run_rounds(folder: Path, count: int, rounds: int) -> list[dict[str, Any]]:
    """Run a plan again and again, each time with all documents changed; return time and bytes after each run.

    Their ids have 45 characters.
    """
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        state = Path(place) / "state"
        for revision in (1, 2):
            run(shapes.plan(shapes.Case(WARM_UP), revision, folder), state=Path(place) / "warm-up", spark=spark())
        for revision in range(1, rounds + 1):
            changed = shapes.plan(shapes.Case(count), revision, folder)

            def work(changed: Plan = changed) -> None:
                summary = run(changed, state=state, spark=spark())
                assert summary.delivered == count, summary

            took = timed(work)
            tables = {name: state_root(changed, state) / name for name in TABLES}
            size = {
                name: sum(file.stat().st_size for file in table.glob("*.parquet")) for name, table in tables.items()
            }
            size["outbox and logs"] = size.pop("outbox") + sum(
                file.stat().st_size for table in tables.values() for file in table.glob("_delta_log/*")
            )
            found.append({"wall_s": took.wall_s, "cpu_s": took.cpu_s, "bytes": size, "mb": dict(took.mb)})
            print_progress(
                f"    {revision}: {took.wall_s:.1f} s ({took.cpu_s:.1f} s of CPU), {size}, {found[-1]['mb']}"
            )
    return found


def main(folder: Path, count: int) -> None:
    results = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run(plan(WARM_UP, KINDS["new"]), state=Path(place) / "warm-up", spark=spark())
        for name, kind in KINDS.items():

            def work(kind: Kind = kind) -> None:
                with phases() as watch:
                    summary = run(plan(count, kind), state=Path(place) / "state", spark=spark(), observer=watch)
                assert summary.delivered + summary.deleted == count * kind.share, summary

            measurement = timed(work)
            results[name] = (measurement.wall_s, measurement.cpu_s, dict(measurement.mb), dict(measurement.phases))
    print(json.dumps(results))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        print(json.dumps(run_rounds(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
