"""Metrics and lineage events on a disk that is full: said once, and what was there before stays whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring.test_lineage import events_in
from tests.support.full_disk import Disk, disk
from tests.support.monitored import run_monitored, value_of
from tests.support.plan_world import PlanWorld

__all__ = ["disk"]


def delivered(file: Path) -> float:
    return value_of(file.read_text(), "ferryman_deliveries_total", destination="out", status="delivered")


def said(trial: PlanWorld, what: str) -> str:
    """Return the one message that begins so."""
    [message] = [each for each in trial.watch.messages if each.startswith(what)]
    return str(message)


def test_metrics_stay_those_of_before(trial: PlanWorld, disk: Disk) -> None:
    """Nothing is left beside the file, which node exporter would read, too; with room again, it is written."""
    file = disk.folder / "trial.prom"
    trial.put("a")
    run_monitored(trial, metrics=file)
    trial.put("b")
    disk.limit(free_kib=0)

    assert run_monitored(trial, metrics=file).exit == 0

    assert "No space left" in said(trial, "metrics ")
    assert delivered(file) == 1
    assert [*disk.folder.iterdir()] == [file]
    disk.limit()
    trial.put("c")
    run_monitored(trial, metrics=file)
    assert delivered(file) == 3


@pytest.mark.parametrize("free_kib", [0, 4])
def test_no_event_is_torn(trial: PlanWorld, disk: Disk, free_kib: int) -> None:
    """Of an event that fits in part nothing is left, so that the next one begins on a line of its own."""
    file = disk.folder / "events.jsonl"
    trial.put("a")
    run_monitored(trial, openlineage=file)
    before = file.read_bytes()
    disk.limit(free_kib=free_kib)
    for name in "bcde":  # some hundred bytes an event
        trial.put(name)
        assert run_monitored(trial, openlineage=file).exit == 0

    assert "No space left" in said(trial, "lineage ")
    assert file.read_bytes().startswith(before)
    disk.limit()
    trial.put("f")
    run_monitored(trial, openlineage=file)
    assert [event["eventType"] for event in events_in(file)][-2:] == ["START", "COMPLETE"]
