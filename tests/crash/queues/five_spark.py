"""The flow of five plans on real Spark, as a process of its own: ``python -m tests.crash.queues.five_spark FOLDER``."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from ferryman.engine import logs
from ferryman.engine.runner.sessions import start
from ferryman.engine.runner.spark import SparkRunner
from ferryman.queues import Queue
from tests.crash import spark
from tests.crash.queues import five
from tests.crash.spark_run import CONF
from tests.support.joined import Told, run_flow

EACH = 40
"""Messages of each input."""


def begin(root: Path) -> subprocess.Popen[bytes]:
    """A run in a process group of its own; its output goes to ``root/run.log``."""
    with (root / "run.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.crash.queues.five_spark", str(root)]
        return subprocess.Popen(command, cwd=spark.ROOT, stdout=log, stderr=log, start_new_session=True)


def killed_and_run_again(root: Path, chance: random.Random) -> None:
    """Killed after the first rows have arrived, alone or with all its workers; then left alone. All is checked."""
    five.fill(root, 0, EACH)
    process = begin(root)
    try:
        first = chance.choice(["mid", "left", "sums", "triaged"])
        spark.until(lambda: process.poll() is not None or arrived(root, first), "the first rows arrive")
        try:
            process.wait(chance.uniform(0, 2))
        except subprocess.TimeoutExpired:
            process.kill() if chance.random() < 0.5 else os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        five.fill(root, 1, EACH)
        again = begin(root)
        try:
            assert again.wait(300) == 0, (root / "run.log").read_text()
        finally:
            again.kill()
    finally:
        spark.end([process.pid], signal.SIGKILL)
    five.check(root, 2, EACH)


def arrived(root: Path, queue: str) -> bool:
    return (root / queue).is_dir() and Queue(queue, root).last_index > 0


def main(root: Path) -> None:
    logs._MIN_TASK_ENTRIES = 8  # type: ignore[misc]  # several tasks and waves
    runner = SparkRunner(start("local[2,4]", CONF, "five"))
    summary = run_flow(five.make_flow(root), root / "state", runner=runner, observer=Told(1000), wave_bytes=4000)
    assert summary.exit in (0, 3), summary  # 3: something is in doubt


if __name__ == "__main__":
    main(Path(sys.argv[1]))
