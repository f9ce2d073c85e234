"""Many documents on a small driver: a first run, one without changes, and one in which a hundredth has changed.

Driver, JVM and workers share a memory control group of 4 GB, if this machine allows creating one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import ROOT, Row, Sizes, empty_folder, print_progress, timed
from bench.processes import Watch
from ferryman import Plan, run
from ferryman.destinations import Null
from ferryman.sources import DataFrame

LIMIT_MB: Final = 4096
JVM: Final = "1g"
GROUPS: Final = Path("/sys/fs/cgroup/memory")

ID: Final = "format_string('contracts/2024/region-%02d/file-%011d.pdf', id % 97, id)"
"""SQL for ids of 45 characters, like paths of files."""

RUNS: Final = ("all are new", "nothing has changed", "a hundredth has changed, as many are gone")


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Measure each run in its own process, since a peak of memory never goes down."""
    state = empty_folder(folder / "limited")
    with _group() as group:
        for number, what in enumerate(RUNS):
            command = [
                sys.executable,
                "-m",
                "bench.limited_driver",
                str(state),
                str(sizes.documents),
                str(number),
                group,
            ]
            answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            took = json.loads(answer.stdout.splitlines()[-1])
            peaks = took["peaks"]
            title = f"{sizes.documents} documents in {LIMIT_MB} MB{'' if group else ' (not enforced)'}: {what}"
            result = f"{took['wall_s']:.0f} s ({took['cpu_s']:.0f} s of CPU); {took['summary']}"
            memory = f"driver {peaks['driver']} MB, JVM {peaks['jvm']} MB, a worker {peaks['worker']} MB"
            print_progress(f"    {title}: {result}; {memory}")
            yield Row(title, result, memory, "", f"≤ {LIMIT_MB} MB", peaks["driver"] + peaks["jvm"] <= LIMIT_MB)


def plan(documents: int, number: int) -> Plan:
    """Return the plan for the rows of this run."""
    last = number == 2
    version = "IF(id % 100 = 0, 'new', 'old')" if last else "'old'"

    def rows(spark: Any) -> Any:
        frame = spark.range(0, documents, 1, 64)
        frame = frame.where("id % 100 != 7") if last else frame
        return frame.selectExpr(
            f"{ID} AS id", "concat('Title ', id) AS title", f"concat({version}, repeat(' text', 20)) AS body"
        )

    plan = Plan("limited", version=1)
    plan.source("rows", DataFrame(rows)).destination("nowhere", Null())
    return plan


@contextlib.contextmanager
def _group() -> Iterator[str]:
    """Create a memory control group (version 1) below that of this process; yield its folder, or "" if not allowed."""
    own = Path("/proc/self/cgroup").read_text()
    [name] = [line.split(":", 2)[2] for line in own.splitlines() if ":memory:" in line] or [""]
    group = GROUPS / name.lstrip("/") / f"ferryman-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(f"{LIMIT_MB}M")
    except OSError as error:
        print_progress(f"  memory is not limited: {error}")
        yield ""
        return
    try:
        yield str(group)
    finally:
        for pid in (group / "cgroup.procs").read_text().split():  # a JVM that is about to end
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def main(state: Path, documents: int, number: int, group: str) -> None:
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    from ferryman.engine.runner.sessions import start

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    spark = start("local[2]", {"spark.driver.memory": JVM}, "bench")
    summaries: list[str] = []
    with Watch() as watch:
        took = timed(lambda: summaries.append(str(run(plan(documents, number), state=state, spark=spark))))
    spark.stop()
    print(json.dumps({**took._asdict(), "peaks": watch.peaks, "summary": summaries[0]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
