"""Peak memory of the driver and of Spark's Python workers: does it grow with the number of documents?"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from bench import data, table_to_null
from bench.harness import ROOT, XMX, Row, Sizes, processes, spark
from ferryman.engine.wave import run

TARGET = 1.15
"""More than this is growth: the rest is how allocators and garbage fall from run to run."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    few = sizes.documents // 10
    small, large = _peaks_of(few, folder), _peaks_of(sizes.documents, folder)
    for who in ("driver", "worker"):
        ratio = large[who] / small[who]
        yield Row(
            f"peak memory of the {who}: {sizes.documents} documents; {few} documents",
            f"{large[who]} MB (JVM, -Xmx{XMX}: {large['jvm']} MB)",
            f"{small[who]} MB (JVM: {small['jvm']} MB)",
            f"{ratio:.2f}×",
            f"≤ {TARGET}×",
            ratio <= TARGET,
        )


def _peaks_of(documents: int, folder: Path) -> dict[str, int]:
    """In a process of its own, since a peak never goes down."""
    data.table(folder / f"rows-{documents}", documents)
    command = [sys.executable, "-m", "bench.memory", str(folder), str(documents)]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    peaks: dict[str, int] = json.loads(answer.stdout.splitlines()[-1])
    return peaks


class Watch:
    """The highest peak of each kind of process, in MB; looks every tenth of a second, for workers come and go."""

    def __init__(self) -> None:
        self.peaks = {"driver": 0, "worker": 0, "jvm": 0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _look_on(self) -> None:
        while not self._ended.wait(0.1):
            self._look()

    def _look(self) -> None:
        import os

        for pid in processes():
            try:
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            except OSError:
                continue
            if "VmHWM" not in status:
                continue  # it has ended
            name = status["Name"].strip()
            who = "driver" if pid == os.getpid() else "jvm" if name == "java" else "worker"
            self.peaks[who] = max(self.peaks[who], int(status["VmHWM"].split()[0]) // 1024)


def main(folder: Path, documents: int) -> None:
    rows = data.table(folder / f"rows-{documents}", documents)
    with tempfile.TemporaryDirectory(dir=folder) as state, Watch() as watch:
        for _ in range(2):  # a first scan, and one that finds nothing new
            run(table_to_null.plan(rows), state=state, spark=spark())
    print(json.dumps(watch.peaks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
