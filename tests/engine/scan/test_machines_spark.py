"""One machine of several that sees another folder at the root's path, on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from ferryman.plan import Plan
from ferryman.sources import Doubt, Files, Listed
from ferryman.sources.folder import Piece
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder

pytestmark = pytest.mark.spark


class OddlyMounted(Files):
    """Tasks with odd numbers list what lies at another place."""

    def __init__(self, root: Path, there: Path) -> None:
        super().__init__(root)
        self.there = Files(there)

    def listing(self, partition: Piece) -> Iterator[Listed | Doubt]:
        task = TaskContext.get()
        return (self.there if task and task.partitionId() % 2 else super()).listing(partition)


@pytest.mark.rule("delete.other-machine")
def test_a_worker_that_sees_an_empty_folder_deletes_nothing(place: Path, spark: Any) -> None:
    """Exit 4, and the host is named; once it sees the folder, all is as it was."""
    root, there = place / "corpus", place / "there"
    there.mkdir()
    for folder in range(8):
        (root / str(folder)).mkdir(parents=True)
        for name in range(10):
            (root / str(folder) / f"{name}.txt").write_text(f"{folder}/{name}")
    out = Recorder(place / "out.jsonl")

    def run(source: Files) -> Any:
        plan = Plan("mounts", version=1)
        plan.source("files", source).destination("out", out)
        return run_plan(plan, place / "state", runner=spark)

    assert run(Files(root)).exit == 0
    blind = run(OddlyMounted(root, there))
    assert blind.exit == 4
    assert any("incomplete listing" in message and "but missing on" in message for message in blind.messages)
    assert run(Files(root)).exit == 0
    assert len(out.arrived()) == 80, "no delete, and nothing twice"
