"""A full disk, met by the workers of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.full_disk import Disk, disk, fills, make, recovers

__all__ = ["disk"]


@pytest.mark.spark
def test_spark_meets_a_full_disk(place: Path, disk: Disk, spark: Any) -> None:
    """The same where the writes fail in Spark's workers."""
    met = {}
    for kib in (120, 450):
        folder = place / f"room-{kib}"
        folder.mkdir()
        trial = make(folder, disk)
        trial.state = disk.folder / f"state-{kib}"
        met[kib] = fills(trial, disk, runner=spark, free_kib=kib)
        recovers(trial, disk, runner=spark)
    assert set(met.values()) - {None, "start"}, met
