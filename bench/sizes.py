"""Scans and ``status`` at sizes where things broke: ids of 45 characters, families, second versions, failed documents.

Tables are made directly, without a run; each case is measured in a process of its own, since a peak never goes down.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench import synthetic
from bench.harness import ROOT, Row, Sizes
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.engine.scan.judge import judge
from ferryman.ledger import account
from ferryman.ledger.state import state_root
from ferryman.sources import Memory

LIMIT_MB: Final = 1024

CASES: Final[dict[str, tuple[float, str, dict[str, int], int]]] = {
    "a second scan, unchanged": (1, "scan", {}, 1),
    "a scan of a second version": (1, "scan", {}, 2),
    "a scan of families of 30, second version": (0.2, "scan", {"children": 30}, 2),
    "a scan of families of 300, second version": (0.02, "scan", {"children": 300}, 2),
    "a scan of what was forced": (0.4, "scan", {"forced": 1}, 1),
    "`status`, twice changed": (0.4, "status", {"revisions": 2}, 0),
    "`status`, all failed": (1, "status", {"dead": 1 << 40}, 0),
    "`status`": (1, "status", {}, 0),
}
"""What -> share of ``--documents``, what is measured, how the tables are made, the revision that is listed."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    for what, (share, *_) in CASES.items():
        count = int(sizes.documents * share)
        command = [sys.executable, "-m", "bench.sizes", str(folder), str(count), what]
        answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        took = json.loads(answer.stdout.splitlines()[-1])
        yield Row(
            f"{what}: {count} documents",
            f"{took['wall_s']:.1f} s ({took['cpu_s']:.1f} s of CPU), peak {took['mb']} MB",
            f"{took['before_mb']} MB before",
            "",
            f"≤ {LIMIT_MB} MB",
            took["mb"] <= LIMIT_MB,
        )


def main(folder: Path, count: int, what: str) -> None:
    _, kind, made, listed = CASES[what]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        work = (_scan if kind == "scan" else _status)(Path(place), count, made, listed)
        before, wall, cpu = _peak(), time.perf_counter(), time.process_time()
        work()
        took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        print(json.dumps({**took, "mb": _peak(), "before_mb": before}))


def _scan(place: Path, count: int, made: dict[str, int], listed: int) -> Callable[[], Any]:
    documents = synthetic.documents_table(place / "documents", count, **made)  # type: ignore[arg-type]
    outbox = synthetic.empty_outbox(place / "outbox")
    (place / "scan").mkdir()
    listing = synthetic.listing_of(place / "scan", count, listed)
    return lambda: judge([listing], documents, outbox, place / "scan", now_us=0)


def _status(place: Path, count: int, made: dict[str, int], _listed: int) -> Callable[[], Any]:
    plan = Plan("sizes", version=1)
    plan.source("docs", Memory([])).destination("out", Null())
    plan.freeze()
    root = state_root(plan, place)
    synthetic.state(root, plan, count, **made)
    return lambda: account.status(root, plan)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
