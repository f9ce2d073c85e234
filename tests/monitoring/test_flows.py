"""A flow is watched as a whole, and plan by plan."""

from __future__ import annotations

import pytest

from ferryman import Flow
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.monitoring.metrics import MonitoredPlan, metrics
from ferryman.monitoring.run import monitor
from ferryman.sources import Queue as FromQueue
from ferryman.state.state import state_root
from tests.monitoring.test_lineage import events_in
from tests.support.joined import Told, pipe, run_flow
from tests.support.monitored import attributes_of, spans_of
from tests.support.plan_world import PlanWorld
from tests.support.receiver import Receiver


def test_plans_have_their_own_numbers(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all of them; the queue between them is a dataset that one writes and the other reads."""
    place = trial.folder
    first = pipe("first", [Document("a"), Document("b")], ToQueue("between", place))
    second = pipe("second", FromQueue("between", place), trial.out())
    flow = Flow("both", [first, second])
    plans = {flow.label(plan): MonitoredPlan(plan, state_root(plan, trial.state)) for plan in flow.plans}
    file, events = place / "m.prom", place / "events.jsonl"
    with Receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        with monitor("both", plans, Told(), metrics=file, openlineage=events, spans=True) as run:
            summary = run_flow(flow, trial.state, observer=run)
            run.ended(summary.plans, summary.errors)

    assert file.read_text().count('status="delivered"') == 2
    assert metrics(flow, state=trial.state).count('status="delivered",version="0"} 2.0') == 2
    found = spans_of(collector)
    [root] = [span for span in found if span.name == "ferryman.flow"]
    runs = {attributes_of(span)["ferryman.plan"]: span for span in found if span.name == "ferryman.run"}
    assert {span.parent_span_id for span in runs.values()} == {root.span_id}
    assert {name: attributes_of(span)["ferryman.delivered"] for name, span in runs.items()} == {"first": 2, "second": 2}
    waves = [span for span in found if span.name == "ferryman.wave"]
    for wave in waves:
        assert wave.parent_span_id == runs[attributes_of(wave)["ferryman.plan"]].span_id
    ends = {event["job"]["name"]: event for event in events_in(events) if event["eventType"] == "COMPLETE"}
    assert ends.keys() == {"both", "first", "second"}
    written, read = ends["first"]["outputs"][0], ends["second"]["inputs"][0]
    assert (written["namespace"], written["name"]) == (read["namespace"], read["name"]) == ("file", f"{place}/between")
    assert ends["second"]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2
