"""Lines of files as documents, in the workers of Spark."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from ferryman.sources import Lines
from tests.support.plan_world import PlanWorld


@pytest.mark.spark
def test_lines_on_spark(place: Path, spark: Any) -> None:
    """The same, by Spark's workers: files travel as pieces, lines as what was staged."""
    folder = place / "corpus"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.gz").write_bytes(gzip.compress("".join(f"{name} {i}\n" for i in range(300)).encode()))
    trial = PlanWorld(place).build(source=Lines(folder))

    assert trial.run(runner=spark).delivered == 900
    assert set(trial.out().counted().values()) == {1}
