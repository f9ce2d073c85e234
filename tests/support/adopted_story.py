"""A program to kill: adopts a state that was put back from an older copy, and runs on.

``lose``: run a plan, copy its state, change documents, run, put the copy back. ``adopt``: adopt it, run, verify; say
how run and verification ended, and how many messages the queue has.
``python -m tests.support.adopted_story FOLDER WHAT``
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ferryman.destinations import Queue, Sql
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory
from ferryman.verification import adopt, verify
from tests.support.plan_world import run_plan


def build(folder: Path, documents: list[dict[str, object]]) -> Plan:
    plan = Plan("story", version=1)
    source = plan.source("docs", Memory(documents, max_deleted=1.0))
    source.tee("log", Queue("log", folder)).destination("out", Sql(f"sqlite:///{folder}/out.db"))
    return plan


def main(place: str, what: str) -> None:
    folder = Path(place)
    first: list[dict[str, object]] = [{"id": f"d{n}", "raw": b"text %d" % n} for n in range(10)]
    edited = [{**each, "raw": b"edited"} if each["id"] in ("d1", "d2") else each for each in first]
    later = [*edited, {"id": "new", "raw": b"new"}]
    if what == "lose":
        run_plan(build(folder, first), folder / "state")
        shutil.copytree(folder / "state", folder / "copy")
        run_plan(build(folder, later), folder / "state")
        shutil.rmtree(folder / "state")
        (folder / "copy").rename(folder / "state")
        return
    plan = build(folder, [*later, {"id": "newer", "raw": b"newer"}])
    adopt(plan, state=folder / "state")
    done = run_plan(plan, folder / "state")
    found = verify(plan, state=folder / "state")
    sys.stdout.write(f"{done.exit} {found.exit} {DurableQueue('log', folder).last_index}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
