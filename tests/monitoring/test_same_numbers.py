"""One run, seen by everybody: the numbers are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman import Dropped
from ferryman.account.queries import OUTSTANDING
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.operations import status
from tests.monitoring.test_lineage import events_in
from tests.support.monitored import attributes_of, run_monitored, samples_of, spans_of, value_of
from tests.support.plan_world import PlanWorld
from tests.support.receiver import Receiver


def judge(doc: Document) -> Document:
    if doc.id.startswith("drop"):
        raise Dropped("not wanted")
    if doc.id.startswith("bad"):
        raise ValueError("no good")
    return doc


def refuse_some(delivery: Delivery) -> Outcome:
    return Outcome.permanent("too long") if delivery.id.startswith("long") else Outcome.ok()


def test_prometheus_otlp_openlineage_and_status_agree(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a first run: delivered, dropped, failed and rejected deliveries, of ids of 300 characters."""
    net.out().answer = refuse_some
    net.source().step("judge", judge, attempts=1).destination("out", net.out(), batch=3, attempts=1)
    net.put(*(f"good{i}" + "x" * 300 for i in range(7)), "drop1", "drop2", "bad1", "long1")
    file, events = net.folder / "m.prom", net.folder / "events.jsonl"
    with Receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        summary = run_monitored(net, metrics=file, openlineage=events, spans=True)

    counts = status(net.plan, state=net.state)["destinations"]["out"]
    assert counts["delivered"] == summary.delivered == 7
    assert counts["dropped"] == 2
    assert counts["failed"] + counts["rejected"] == 2
    assert {name: value_of(file.read_text(), f"ferryman_{name}", destination="out") for name in OUTSTANDING} == {
        name: counts[name] for name in OUTSTANDING
    }
    ended = _by_status(file, "ferryman_deliveries_total")
    assert ended == {name: number for name, number in counts.items() if name != "pending"}
    [run] = [attributes_of(span) for span in spans_of(collector) if span.name == "ferryman.run"]
    assert {name: run[f"ferryman.{name}"] for name in counts} == counts == _of(summary.counts(), counts)
    chunks = [attributes_of(span) for span in spans_of(collector) if span.name == "ferryman.chunk"]
    assert sum(chunk["ferryman.accepted"] for chunk in chunks) == counts["delivered"]
    end = events_in(events)[-1]
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == counts["delivered"]
    assert end["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 11
    assert json.dumps(counts)


def test_totals_are_the_sum_of_all_runs(trial: PlanWorld) -> None:
    """While `status` counts current documents."""
    delivered = deleted = rows = 0
    for text, dropped in (("one", None), ("two", None), ("three", "b")):
        trial.put("a", "b", text=text)
        if dropped is not None:
            trial.drop(dropped)
        file, events = trial.folder / "m.prom", trial.folder / f"{text}.jsonl"
        summary = run_monitored(trial, metrics=file, openlineage=events)
        delivered += summary.delivered
        deleted += summary.deleted
        rows += events_in(events)[-1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"]

    ended = _by_status(trial.folder / "m.prom", "ferryman_deliveries_total")
    assert (ended["delivered"], ended["deleted"]) == (delivered, deleted) == (5, 1)
    assert rows == 6
    assert trial.status()["destinations"]["out"]["delivered"] == 1


def _by_status(file: Path, name: str) -> dict[str, int]:
    return {
        dict(labels)["status"]: int(value)
        for (sample, labels), value in samples_of(file.read_text()).items()
        if sample == name
    }


def _of(found: dict[str, Any], names: dict[str, int]) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}
