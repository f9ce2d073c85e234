"""The intake queue is watched like any plan: jobs by state, deliveries, lineage events."""

from __future__ import annotations

import dataclasses
import json

from ferryman.intake.service import serve
from ferryman.monitoring.metrics import metrics
from ferryman.monitoring.run import monitor_of
from ferryman.sources import Jobs
from ferryman.state.runs import load_runs
from tests.intake.service.place import Place
from tests.support.monitored import samples_of, value_of


def test_serve_writes_metrics_and_events(intake: Place) -> None:
    rows = [intake.row(f"{n}.txt", local_id=f"object {n}") for n in range(3)]
    intake.submit(manifest_url=intake.manifest(rows))
    file, events = intake.folder / "m.prom", intake.folder / "events.jsonl"
    monitored = monitor_of(intake.plan, intake.root, str(file), str(events), endless=False)

    with monitored(intake.said) as run:
        serve(intake.plan, intake.queue, dataclasses.replace(intake.serving), intake.driving, observer=run)

    text = file.read_text()
    assert value_of(text, "ferryman_jobs", state="Completed") == 3
    assert value_of(text, "ferryman_jobs", state="Failed") == 0
    assert value_of(text, "ferryman_deliveries_total", destination="index", status="delivered") == 3
    assert load_runs(intake.root).last[-1].endless
    end = json.loads(events.read_text().splitlines()[-1])
    assert (end["eventType"], end["job"]["name"]) == ("COMPLETE", "intake")
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3


def test_jobs_are_counted_without_a_service(intake: Place) -> None:
    """By a plan that names its queue; by one that does not there is nothing to count."""
    intake.submit(manifest_url=intake.manifest([intake.row("a.txt", local_id="a")]))
    intake.serve()

    assert ("ferryman_jobs", (("state", "Completed"),)) in samples_of(
        metrics(intake.plan, state=intake.folder / "state")
    )
    assert Jobs(intake.queue.url).job_counts()["Completed"] == 1
    assert Jobs().job_counts() == {}
