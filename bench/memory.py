"""Peak memory of the driver and of Spark's Python workers, by the number of documents, and of children."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import data, table_to_null
from bench.harness import ROOT, XMX, Row, Sizes, spark
from bench.processes import Watch
from ferryman import run
from ferryman.destinations import Null
from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.sources import Files

TARGET = 1.15
"""Greatest ratio of peaks; below it they vary from run to run with allocators and garbage."""

SPLIT_TARGET = 4.0
"""Greatest peak per size of the file: reader, step and the transfer between them each hold the content."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    fewer = sizes.documents // 10
    small, large = _peaks_of(fewer, folder), _peaks_of(sizes.documents, folder)
    for kind in ("driver", "worker"):
        ratio = large[kind] / small[kind]
        yield Row(
            f"peak memory of the {kind}: {sizes.documents} documents; {fewer} documents",
            f"{large[kind]} MB (JVM, -Xmx{XMX}: {large['jvm']} MB)",
            f"{small[kind]} MB (JVM: {small['jvm']} MB)",
            f"{ratio:.2f}×",
            f"≤ {TARGET}×",
            ratio <= TARGET,
        )

    yield _split(sizes, folder)


def _split(sizes: Sizes, folder: Path) -> Row:
    """Measure a worker's memory while a step splits one CSV file into its rows."""
    large_mb = max(20, sizes.documents // 5000)
    small_mb = large_mb // 10
    peaks = {mb: _peaks_of(mb, folder, "file")["worker"] for mb in (small_mb, large_mb)}
    ratio = (peaks[large_mb] - peaks[small_mb]) / (large_mb - small_mb)
    return Row(
        f"peak memory of the worker: a step splits a CSV of {large_mb} MB; of {small_mb} MB",
        f"{peaks[large_mb]} MB",
        f"{peaks[small_mb]} MB",
        f"{ratio:.1f} × the file",
        f"≤ {SPLIT_TARGET} ×",
        ratio <= SPLIT_TARGET,
    )


def _peaks_of(number: int, folder: Path, what: str = "rows") -> dict[str, int]:
    """Measure the peaks in a child process, since a peak never goes down."""
    if what == "rows":
        data.table(folder / f"rows-{number}", number)
    else:
        _write_csv(folder / f"file-{number}", number)
    command = [sys.executable, "-m", "bench.memory", what, str(folder), str(number)]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    peaks: dict[str, int] = json.loads(answer.stdout.splitlines()[-1])
    return peaks


def _write_csv(folder: Path, megabytes: int) -> Path:
    """Write one file of so many MB, with rows of 200 bytes; return its folder."""
    folder.mkdir(exist_ok=True)
    line = "row %012d," + "x" * 182 + "\n"
    with (folder / "rows.csv").open("w") as file:
        file.writelines(line % i for i in range(megabytes * 5000))
    return folder


def rows_of(doc: Document) -> Iterator[Document]:
    """Make a child for each row; the step."""
    for number, (name, text) in enumerate(csv.reader(io.TextIOWrapper(io.BytesIO(doc.raw or b"")))):
        yield doc.child(number, name=name, text=text)


def _split_plan(folder: Path) -> Plan:
    plan = Plan("split", version=1)
    plan.source("files", Files(str(folder))).step("rows", rows_of).destination("null", Null())
    return plan


def main(what: str, folder: Path, number: int) -> None:
    if what == "rows":
        plan = table_to_null.plan(data.table(folder / f"rows-{number}", number))
    else:
        plan = _split_plan(folder / f"file-{number}")
    with tempfile.TemporaryDirectory(dir=folder) as state, Watch() as watch:
        for _ in range(2):  # a first scan, and one that finds nothing new
            run(plan, state=state, spark=spark())
    print(json.dumps(watch.peaks))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
