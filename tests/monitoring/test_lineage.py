"""OpenLineage: the events of a run, read by the official client."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from pathlib import Path
from typing import Any

import attr
import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.generated import (
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    source_code_job,
)

import ferryman
from ferryman import Flow, Plan, limits
from ferryman.destinations import Sql
from ferryman.errors import UsageError
from ferryman.monitoring.lineage import JobRun, dataset_name, parse_target
from ferryman.monitoring.metrics import MonitoredPlan
from ferryman.monitoring.run import monitor
from ferryman.sources import Files, Memory
from tests.support.monitored import run_monitored
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch
from tests.support.receiver import Receiver, Reply, Request

FACETS = {
    "errorMessage": error_message_run.ErrorMessageRunFacet,
    "inputStatistics": input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
    "jobType": job_type_job.JobTypeJobFacet,
    "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    "processing_engine": processing_engine_run.ProcessingEngineRunFacet,
    "schema": schema_dataset.SchemaDatasetFacet,
    "sourceCode": source_code_job.SourceCodeJobFacet,
}


def validated(event: dict[str, Any]) -> dict[str, Any]:
    """Make the client's objects of an event, which refuse what is not in the specification; return the event."""
    run, job = event["run"], event["job"]
    RunEvent(
        eventType=RunState(event["eventType"]),
        eventTime=event["eventTime"],
        producer=event["producer"],
        run=Run(runId=run["runId"]),
        job=Job(namespace=job["namespace"], name=job["name"]),
    )
    assert event["schemaURL"].endswith("2-0-2/OpenLineage.json#/$defs/RunEvent")
    datasets = [*event["inputs"], *event["outputs"]]
    facets = [run["facets"], job["facets"]]
    facets += [each.get(kind, {}) for each in datasets for kind in ("facets", "inputFacets", "outputFacets")]
    for name, content in [item for each in facets for item in each.items()]:
        assert content["_producer"] == event["producer"]
        assert content["_schemaURL"].startswith("https://openlineage.io/spec/facets/")
        own = {key: value for key, value in content.items() if not key.startswith("_")}
        if name == "parent":
            parent_run.Run(**own["run"])
            parent_run.Job(**own["job"])
        else:
            attr.asdict(FACETS[name](**own))
    assert all(each["namespace"] and each["name"] for each in datasets)
    return event


def events_in(path: Path) -> list[dict[str, Any]]:
    return [validated(json.loads(line)) for line in path.read_text().splitlines()]


def test_a_run_has_a_start_and_an_end(trial: PlanWorld) -> None:
    trial.put("a", "b")
    run_monitored(trial, openlineage=trial.folder / "events.jsonl")

    start, end = events_in(trial.folder / "events.jsonl")

    assert [start["eventType"], end["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"]
    assert (end["job"]["namespace"], end["job"]["name"]) == ("ferryman", "trial")
    assert end["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 2
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2


def test_statistics_are_those_of_the_run_alone(trial: PlanWorld) -> None:
    """What was delivered before is not read again."""
    trial.put("a", "b")
    trial.run()
    trial.put("c")
    trial.drop("a")
    run_monitored(trial, openlineage=trial.folder / "events.jsonl")

    end = events_in(trial.folder / "events.jsonl")[-1]

    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2  # one delivered, one deleted
    assert end["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 2


def bytes_read() -> int:
    """Return how many bytes this process has read so far, in whichever thread."""
    return int(re.findall(r"^rchar: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)[0])


def test_what_an_event_reads_does_not_grow_with_history(net: PlanWorld) -> None:
    """Of a state of which all documents were delivered before, neither their rows nor their events are read."""
    read, sizes = [], []
    for documents in (100, 1_000):
        world = PlanWorld.empty(net.folder / str(documents))
        world.source().destination("out", world.out())
        world.put(*(f"{n}-{random.Random(n).randbytes(200).hex()}" for n in range(documents)))
        world.run(checked=False)
        run = JobRun(MonitoredPlan(world.plan, world.root), None, endless=False)
        world.put("new")
        world.run(checked=False)
        before = bytes_read()
        event = validated(json.loads(run.event("COMPLETE", dt.datetime.now(dt.UTC))))
        read.append(bytes_read() - before)
        sizes.append(sum(file.stat().st_size for file in world.root.rglob("*.parquet")))
        assert event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1

    assert sizes[1] - sizes[0] > 500_000
    assert read[1] - read[0] < 20_000


def test_running_says_how_far_it_is(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINEAGE_EVERY_S", 0.0)
    trial.put("a")
    run_monitored(trial, openlineage=trial.folder / "events.jsonl")

    events = events_in(trial.folder / "events.jsonl")

    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
    assert events[1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1


def words(doc: ferryman.Document) -> ferryman.Document:
    doc["words"] = 1
    return doc


def test_inputs_outputs_schema_and_code(place: Path) -> None:
    plan = Plan("smoke", version=1)
    (place / "in").mkdir()
    out = Sql(f"sqlite:///{place}/o.db", columns={"words": "words"})
    plan.source("files", Files(str(place / "in"))).step("words", words).destination("docs", out)

    with monitor("", {"": MonitoredPlan(plan, place / "smoke-v1")}, Watch(), openlineage=place / "events.jsonl"):
        pass

    start = events_in(place / "events.jsonl")[0]
    assert [(each["namespace"], each["name"]) for each in start["inputs"]] == [("file", f"{place}/in")]
    assert [(each["namespace"], each["name"]) for each in start["outputs"]] == [("sqlite", f"{place}/o.db#documents")]
    fields = {field["name"]: field.get("type") for field in start["outputs"][0]["facets"]["schema"]["fields"]}
    assert {"id": "key", "text": "text", "words": None}.items() <= fields.items()
    assert 'doc["words"] = 1' in start["job"]["facets"]["sourceCode"]["sourceCode"]


def test_an_error_is_a_failure_with_its_traceback(trial: PlanWorld) -> None:
    trial.put("a")
    with pytest.raises(Interrupted):
        run_monitored(trial, watch=Until(1, "deliver"), openlineage=trial.folder / "events.jsonl")

    end = events_in(trial.folder / "events.jsonl")[-1]

    assert end["eventType"] == "FAIL"
    assert end["run"]["facets"]["errorMessage"]["message"] == "Interrupted"
    assert "Until" in end["run"]["facets"]["errorMessage"]["stackTrace"] or "phase" in str(end)


class InterruptedByHand(Watch):
    def phase(self, wave: int, name: str) -> None:
        if name == "deliver":
            raise KeyboardInterrupt


def test_an_interrupted_run_is_aborted(trial: PlanWorld) -> None:
    trial.put("a")
    with pytest.raises(KeyboardInterrupt):
        run_monitored(trial, watch=InterruptedByHand(), openlineage=trial.folder / "events.jsonl")

    assert events_in(trial.folder / "events.jsonl")[-1]["eventType"] == "ABORT"


def test_what_is_left_pending_is_a_failure(net: PlanWorld) -> None:
    def away(doc: ferryman.Document) -> ferryman.Document:
        raise ferryman.Unavailable("the service is away")

    net.source().step("ask", away).destination("out", net.out())
    net.put("a")
    run_monitored(net, openlineage=net.folder / "events.jsonl", wait=0)

    end = events_in(net.folder / "events.jsonl")[-1]
    assert end["eventType"] == "FAIL"
    assert end["run"]["facets"]["errorMessage"]["message"] == "exit code 4: 1 delivery is pending"


def test_a_flow_is_the_parent_of_its_plans(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever started it is the flow's."""
    outer = "3f5e83fa-3480-44ff-99c5-ff943904e5e8"
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/dag.task/{outer}")
    world = PlanWorld(place, _plan)
    flow = Flow("both", [world.make_plan("one"), world.make_plan("two")])
    plans = {flow.label(plan): MonitoredPlan(plan, world.root_of(plan)) for plan in flow.plans}

    with monitor(flow.name, plans, Watch(), openlineage=place / "events.jsonl"):
        pass

    events = events_in(place / "events.jsonl")
    of_flow = [event for event in events if event["job"]["name"] == "both"]
    assert [event["eventType"] for event in of_flow] == ["START", "COMPLETE"]
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in of_flow} == {outer}
    of_plans = [event for event in events if event["job"]["name"] in ("one", "two")]
    assert len(of_plans) == 4
    parents = {event["run"]["facets"]["parent"]["run"]["runId"] for event in of_plans}
    assert parents == {of_flow[0]["run"]["runId"]}


def _plan(world: PlanWorld, name: str) -> Plan:
    plan = Plan(name, version=1)
    plan.source("docs", Memory(world.documents)).destination("out", world.out())
    return plan


def test_a_server_gets_each_event_with_the_key(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "s3cret")
    trial.put("a")
    with Receiver() as server:
        run_monitored(trial, openlineage=parse_target(f"http://127.0.0.1:{server.port}"))

    assert [validated(request.json)["eventType"] for request in server.requests] == ["START", "COMPLETE"]
    assert {request.path for request in server.requests} == {"/api/v1/lineage"}
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret"}


def test_a_server_that_comes_back_gets_everything_in_order(trial: PlanWorld) -> None:
    """What it refused for now is sent again, with the same times."""
    refused: list[Request] = []

    def answer(request: Request) -> Reply:
        if not refused:
            refused.append(request)
            return Reply(503)
        return Reply()

    trial.put("a")
    with Receiver(answer) as server:
        run_monitored(trial, openlineage=server.url)

    bodies = [request.json for request in server.requests]
    assert [body["eventType"] for body in bodies] == ["START", "START", "COMPLETE"]
    assert bodies[0] == bodies[1]
    [message] = [each for each in trial.watch.messages if each.startswith("lineage ")]
    assert "answered 503" in message


@pytest.mark.parametrize("how", ["refused", "away", "400"])
def test_a_server_that_does_not_take_them_is_said_once(trial: PlanWorld, how: str) -> None:
    trial.put("a")
    with Receiver(lambda _: Reply(400, b"no such job")) as server:
        url = server.url.replace("http://", "http://user:pass@")
        if how == "away":
            url = "http://user:pass@127.0.0.1:9/hook"
        elif how == "refused":
            server.answer = lambda _: Reply(how="reset")
        summary = run_monitored(trial, openlineage=url)

    assert summary.exit == 0
    [message] = [each for each in trial.watch.messages if each.startswith("lineage ")]
    assert "pass" not in message
    assert message.endswith("The run continues without it.")


def test_a_file_that_cannot_be_written_is_said_once(trial: PlanWorld) -> None:
    trial.put("a")
    summary = run_monitored(trial, openlineage=trial.folder / "absent" / "events.jsonl")

    assert summary.exit == 0
    [message] = [each for each in trial.watch.messages if each.startswith("lineage ")]
    assert "No such file" in message


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/data/in", ("file", "/data/in")),
        ("file:///data/queues/q", ("file", "/data/queues/q")),
        ("s3://bucket/some/keys", ("s3://bucket", "some/keys")),
        ("postgresql://db.example:5432/shop#public.books", ("postgres://db.example:5432", "shop.public.books")),
        ("sqlite:////data/o.db#documents", ("sqlite", "/data/o.db#documents")),
        ("kafka:one:9092,two:9092#topic", ("kafka://one:9092", "topic")),
        ("https://search:9200/books", ("https://search:9200", "books")),
        (None, ("ferryman", "p.node")),
        ("http://[bad", ("ferryman", "http://[bad")),
    ],
)
def test_datasets_are_named_by_the_rules_of_openlineage(place: str | None, name: tuple[str, str]) -> None:
    assert dataset_name(place, Plan("p"), "node") == name


@pytest.mark.parametrize("text", ["", "ftp://host/x", "http://", "folder/"])
def test_an_impossible_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--openlineage"):
        parse_target(text)
