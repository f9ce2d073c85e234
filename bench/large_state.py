"""Time and memory of the driver's work and of ``status`` on a large state, which is made without a run.

Every document was delivered, in two versions if they are not too many. Each operation runs in its own process, since a
peak of memory never goes down.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench import synthetic
from bench.harness import ROOT, Row, Sizes, empty_folder, print_progress, timed
from bench.processes import Watch
from ferryman import Plan, account
from ferryman.destinations import Null
from ferryman.engine.scan.phase import detect_changes
from ferryman.sources import Memory
from ferryman.state.maintenance import maintain
from ferryman.state.state import State, state_root

LIMIT_MB: Final = 1024
STATUS_S: Final = 5.0

MAKE: Final = "makes it"
STATUS: Final = "`status`, kept"
DROP: Final = "outdated rows are dropped"
KEEP: Final = "what is counted is kept"
QUESTIONS: Final = ("`status`, counted", DROP, KEEP, STATUS, "a scan, compared")

MOST_TWICE: Final = 2_000_000
"""Greatest number of documents made in two versions, which takes a quarter of a minute for each million."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    place = empty_folder(folder / "large_state")
    for what in (MAKE, *QUESTIONS):
        if what == DROP and versions(sizes.documents) == 1:
            continue
        title = f"a state of {sizes.documents} documents: {what}"
        print_progress(f"  {title} …")
        command = [sys.executable, "-m", "bench.large_state", str(place), str(sizes.documents), what]
        answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        took = json.loads(answer.stdout.splitlines()[-1])
        if what == MAKE:
            continue
        met = took["mb"] <= LIMIT_MB and (what != STATUS or took["wall_s"] <= STATUS_S)
        target = f"≤ {LIMIT_MB} MB" + (f", ≤ {STATUS_S:g} s" if what == STATUS else "")
        row = Row(title, f"{took['wall_s']:.1f} s ({took['cpu_s']:.1f} s of CPU)", f"{took['mb']} MB", "", target, met)
        print_progress(f"    {row.ours}, {row.beside}")
        yield row


def versions(documents: int) -> int:
    """Return the number of versions of each document."""
    return 2 if documents <= MOST_TWICE else 1


def main(place: Path, count: int, what: str) -> None:
    plan = Plan("sizes", version=1)
    plan.source("docs", Memory([])).destination("out", Null())
    plan.freeze()
    root = state_root(plan, place)
    with Watch() as watch:
        took = timed(_work(root, plan, place, count, what))
    print(json.dumps({**took._asdict(), "mb": watch.peaks["driver"]}))


def _work(root: Path, plan: Plan, place: Path, count: int, what: str) -> Callable[[], Any]:
    def with_state(work: Callable[[State], Any]) -> None:
        with State.take(root, plan) as state:
            work(state)

    def scan(state: State) -> None:
        folder = Path(tempfile.mkdtemp(dir=place))
        listing = synthetic.listing_of(folder, count, versions(count))
        changes = detect_changes([listing], state, folder, now_us=0)
        assert not changes.batches, "nothing has changed"

    def drop(state: State) -> None:
        while sum(f.rows for f in state.documents.files.values()) > count:
            assert maintain(state) == []

    if what == MAKE:
        return lambda: synthetic.state(root, plan, count, revisions=versions(count))
    if what.startswith("`status`"):
        return lambda: account.status(root, plan)
    works = {DROP: drop, KEEP: lambda state: account.cache_counts(state, replace=True)}
    return lambda: with_state(works.get(what, scan))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
