"""One run, seen by everybody: the numbers are the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from ferryman import Dropped, Plan, account
from ferryman.account.queries import OUTSTANDING
from ferryman.cli.app import start
from ferryman.dashboard.answers import Answers
from ferryman.dashboard.app import make_app
from ferryman.dashboard.guard import Settings
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.plan.load import load_plan
from ferryman.sources import Memory
from tests.monitoring.test_lineage import events_in
from tests.support.monitored import attributes_of, run_monitored, samples_of, spans_of, value_of
from tests.support.plan_world import PlanWorld
from tests.support.receiver import Receiver
from tests.support.recorder import Recorder


def judge(doc: Document) -> Document:
    if doc.id.startswith("drop"):
        raise Dropped("not wanted")
    if doc.id.startswith("bad"):
        raise ValueError("no good")
    return doc


def refuse_some(delivery: Delivery) -> Outcome:
    return Outcome.permanent("too long") if delivery.id.startswith("long") else Outcome.ok()


def plan_of(folder: Path) -> Plan:
    """A plan for ``status``, which loads it from a file: some of its documents are dropped, rejected or fail."""
    out = Recorder(folder / "out.jsonl")
    out.answer = refuse_some
    names = (*(f"good{i}" + "x" * 300 for i in range(7)), "drop1", "drop2", "bad1", "long1")
    plan = Plan("seen", version=1)
    source = plan.source("docs", Memory([{"id": name, "raw": b"text"} for name in names]))
    source.step("judge", judge, attempts=1).destination("out", out, batch=3, attempts=1)
    return plan


def test_metrics_spans_lineage_status_and_the_dashboard_agree(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first run, with delivered, dropped, failed and rejected deliveries, of long ids: as Prometheus' text,
    at an OTLP collector, in events that OpenLineage's client takes, by the command, and on pages."""
    file, events = place / "m.prom", place / "events.jsonl"
    module = f"from {__name__} import plan_of\nfrom pathlib import Path\nplan = plan_of(Path(__file__).parent)\n"
    (place / "plan.py").write_text(module)
    net = PlanWorld(place)
    net.plan = load_plan(str(place / "plan.py"))
    with Receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        summary = run_monitored(net, metrics=file, openlineage=events, spans=True)
    capsys.readouterr()

    code = start(["status", str(place / "plan.py"), "--state", str(net.state), "--json"])
    counts = json.loads(capsys.readouterr().out)["destinations"]["out"]

    assert code == 0
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
    shown = _on_pages(net.state)
    assert shown["tiles"] == shown["nodes"] == {name: number for name, number in counts.items() if number}
    assert shown["plans"] == {name: counts[name] for name in shown["plans"]}
    assert shown["plans"].keys() == {"delivered", "pending", "failed", "rejected", "in_doubt"}
    assert shown["waves"] == shown["plans"], "there was one"
    [wave] = account.waves(net.root, plan=net.plan)
    assert {name: wave[name] for name in shown["waves"]} == shown["waves"]  # type: ignore[literal-required]


def _on_pages(state: Path) -> dict[str, dict[str, int]]:
    """Read the counts on the dashboard: those of the list of plans; the tiles, and the destination's pills, on the
    plan's page; those of the only wave."""
    answers = Answers(first_s=60.0)
    site = TestClient(make_app([str(state)], Settings(), answers), base_url="http://localhost")
    plans, plan, runs = (site.get(path).text for path in ("/", "/plans/seen-v1", "/plans/seen-v1/runs"))
    answers.close()
    tiles = re.findall(r'<li class="(\w+)"><a [^>]*><b>(\d+)</b>', plan)
    pills = re.findall(r'<a class="pill (\w+)" href="[^"]*destination=out">(\d+) ', plan)
    cells = re.findall(r'<td data-label="[^"]*" class="n (\w+)[^"]*">(?:<a [^>]*>)?(\d+)', plans)
    waves = re.findall(r'<td class="n (\w+)(?: zero)?" data-label="(?!Failed then)[^"]*">(\d+)', runs)
    found = {"tiles": tiles, "nodes": pills, "plans": cells, "waves": waves}
    return {where: {name: int(number) for name, number in pairs} for where, pairs in found.items()}


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
