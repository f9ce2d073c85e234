"""Documents a second and peak memory by the number of documents: into nowhere, new and unchanged, a process each.

Rows of a Spark range, of the same shape as those of the other benchmarks: nothing on the disk but the state.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import ROOT, Figures, Row, Sizes, Took, of_memory, phases, say, spark, timed
from bench.plain import step
from ferryman import Plan, run
from ferryman.destinations import Null
from ferryman.sources import DataFrame

SHARES: Final = (0.1, 1.0, 10.0)
"""Of ``--documents``."""
SPEED, MEMORY = 0.9, 1.15
WARM_UP: Final = 2_000
KINDS: Final = ("new", "unchanged")


def plan(documents: int) -> Plan:
    """Rows of 500 bytes."""

    def rows(spark: Any) -> Any:
        body = "rpad(concat('text of ', id, ' ', sha2(string(id), 256)), 440, ' and so on') AS body"
        return spark.range(0, documents, 1, 16).selectExpr(
            "concat('doc-', id) AS id", "concat('Title ', id) AS title", body
        )

    made = Plan("growth")
    made.source("rows", DataFrame(rows)).step("characters", step).destination("nowhere", Null())
    return made


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """One run of each: a larger one is many smaller ones."""
    found = {}
    for share in SHARES:
        count = max(int(sizes.documents * share), 1)
        command = [sys.executable, "-m", "bench.growth", str(folder), str(count)]
        answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        found[count] = {kind: Took(*took) for kind, took in json.loads(answer.stdout.splitlines()[-1]).items()}
        say(f"    {count} documents: {found[count]}")
    _, middle, most = found
    for kind in KINDS:
        for count, took in found.items():
            yield from _row(kind, count, took[kind], middle, found[middle][kind], last=count == most)


def _row(kind: str, count: int, took: Took, fewer: int, beside: Took, *, last: bool) -> Iterator[Row]:
    """Of each size; the largest is held against the one before it."""
    ratio, cpu = (count * theirs / (fewer * mine) for mine, theirs in zip(took[:2], beside[:2], strict=True))
    memory = max(took.mb[who] / beside.mb[who] for who in ("driver", "worker"))
    compared = count != fewer
    yield Row(
        f"{count} documents into Null, {kind}" + (f"; {fewer}" if compared else ""),
        f"{count / took.wall_s / 1000:.1f} k docs/s, {took.cpu_s / count * 1e6:.1f} µs of CPU each",
        f"{fewer / beside.wall_s / 1000:.1f} k docs/s, {beside.cpu_s / fewer * 1e6:.1f} µs" if compared else "",
        f"{ratio:.2f}× (CPU {cpu:.2f}×); memory {memory:.2f}×" if compared else "",
        f"≥ {SPEED}×; ≤ {MEMORY}×" if last else "",
        not last or (ratio >= SPEED and memory <= MEMORY),
        f"{of_memory(took)}; {of_memory(beside)}" if compared else of_memory(took),
        Figures(f"growth: {kind}", ratio, ratio, ratio, cpu, took.wall_s, count, dict(took.mb), dict(took.phases)),
    )


def main(folder: Path, count: int) -> None:
    took = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run(plan(WARM_UP), state=Path(place) / "warm-up", spark=spark())
        for kind in KINDS:

            def work(kind: str = kind) -> None:
                with phases() as watch:
                    summary = run(plan(count), state=Path(place) / "state", spark=spark(), observer=watch)
                assert summary.delivered == (count if kind == "new" else 0), summary

            made = timed(work)
            took[kind] = (made.wall_s, made.cpu_s, dict(made.mb), dict(made.phases))
    print(json.dumps(took))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
