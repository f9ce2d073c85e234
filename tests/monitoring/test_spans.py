"""OpenTelemetry: spans of runs, waves and chunks, as a collector gets them; ids in the log."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from ferryman.destinations.base import Delivery
from ferryman.monitoring import spans
from ferryman.observe import JsonLog, LogLines
from tests.support.monitored import attributes_of, run_monitored, spans_of, unpacked
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch
from tests.support.receiver import Receiver, Reply


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Any:
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        yield receiver


def named(found: list[Any], name: str) -> list[Any]:
    return [span for span in found if span.name == f"ferryman.{name}"]


def test_a_run_has_waves_with_chunks(trial: PlanWorld, collector: Receiver) -> None:
    """And none for a document."""
    trial.build(batch=2)
    trial.put("a", "b", "c")
    run_monitored(trial, spans=True)

    found = spans_of(collector)

    [run], [wave], chunks = named(found, "run"), named(found, "wave"), named(found, "chunk")
    assert len(found) == 2 + len(chunks)
    assert wave.parent_span_id == run.span_id
    assert {chunk.parent_span_id for chunk in chunks} == {wave.span_id}
    assert {span.trace_id for span in found} == {run.trace_id}
    assert [attributes_of(chunk)["ferryman.rows"] for chunk in chunks] == [2, 1]
    assert [attributes_of(chunk)["ferryman.accepted"] for chunk in chunks] == [2, 1]
    for chunk in chunks:
        assert wave.start_time_unix_nano <= chunk.start_time_unix_nano <= chunk.end_time_unix_nano
        assert chunk.end_time_unix_nano <= wave.end_time_unix_nano
    assert [event.name for event in wave.events] == ["scan", "transform", "commit", "deliver", "settle"]
    assert "a" not in {str(value) for span in found for value in attributes_of(span).values()}


def test_a_run_without_changes_has_no_wave(trial: PlanWorld, collector: Receiver) -> None:
    trial.put("a")
    trial.run()
    run_monitored(trial, spans=True)

    assert [span.name for span in spans_of(collector)] == ["ferryman.run"]


def test_a_chunk_that_fails_says_so(trial: PlanWorld, collector: Receiver) -> None:
    def fail(chunk: list[Delivery]) -> None:
        raise ConnectionError("down")

    trial.out().before = fail
    trial.put("a")
    run_monitored(trial, spans=True, wait=0)

    chunk = named(spans_of(collector), "chunk")[0]
    assert attributes_of(chunk)["error.type"] == "ConnectionError"
    assert chunk.status.code == 2
    [run] = named(spans_of(collector), "run")
    assert (run.status.code, attributes_of(run)["ferryman.exit"]) == (2, 4)


def test_an_error_ends_the_spans(trial: PlanWorld, collector: Receiver) -> None:
    trial.put("a")
    with pytest.raises(Interrupted):
        run_monitored(trial, watch=Until(1, "deliver"), spans=True)

    [run] = named(spans_of(collector), "run")
    assert run.status.code == 2
    assert [event.name for event in run.events] == ["exception"]


class Odd(Watch):
    """Fails with what is no Unicode: the name of a file may be any bytes."""

    def phase(self, wave: int, name: str) -> None:
        if name == "deliver":
            raise ValueError("caf\udce9 \u202e\0.txt" + "x" * 100_000)


def test_a_text_that_is_no_unicode_arrives_escaped(trial: PlanWorld, collector: Receiver) -> None:
    trial.put("a")
    with pytest.raises(ValueError, match="caf"):
        run_monitored(trial, watch=Odd(), spans=True, openlineage=trial.folder / "events.jsonl")

    [run] = named(spans_of(collector), "run")
    assert run.status.message.startswith("caf\\udce9")
    end = json.loads((trial.folder / "events.jsonl").read_text().splitlines()[-1])
    assert end["run"]["facets"]["errorMessage"]["message"].startswith("caf\\udce9 \u202e\\x00.txt")
    assert "\0" not in str(end)


def test_the_environment_says_who_sends_and_what_is_above(
    trial: PlanWorld, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Service, resource, headers, the trace of whoever started the run."""
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "library")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
    trial.put("a")
    run_monitored(trial, spans=True)

    [run] = named(spans_of(collector), "run")
    assert run.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert run.parent_span_id.hex() == "b7ad6b7169203331"
    assert {request.headers["x-key"] for request in collector.requests} == {"abc"}
    assert b"library" in b"".join(unpacked(request.body) for request in collector.requests)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_nothing_is_sent_unless_the_environment_says_where_to(environment: dict[str, str], wanted: bool) -> None:
    assert spans.wants_spans(environment) is wanted


def test_an_exporter_that_is_not_installed_is_said(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeon")
    trial.put("a")
    run_monitored(trial, spans=True)

    assert [m for m in trial.watch.messages if "pigeon" in m] == [
        "spans: the exporter pigeon is not installed: pip install 'ferryman[otel]', or its own package."
    ]


def test_a_collector_that_refuses_is_said_once(
    trial: PlanWorld, collector: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the run, and nothing besides on stderr."""
    collector.answer = lambda _: Reply(400)
    trial.put("a")
    summary = run_monitored(trial, spans=True)

    assert summary.exit == 0
    [message] = [each for each in trial.watch.messages if each.startswith("spans ")]
    assert "the collector does not take them. The run continues without it." in message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", [JsonLog, LogLines])
def test_the_log_carries_the_ids_of_its_spans(trial: PlanWorld, collector: Receiver, kind: type[Any]) -> None:
    stream = io.StringIO()
    trial.put("a")
    run_monitored(trial, watch=kind(stream), spans=True)

    [run], [wave] = named(spans_of(collector), "run"), named(spans_of(collector), "wave")
    lines = [line for line in stream.getvalue().splitlines() if "deliver" in line]
    assert lines
    for line in lines:
        assert run.trace_id.hex() in line
    if kind is JsonLog:
        ids = {json.loads(line)["span_id"] for line in lines}
        assert wave.span_id.hex() in ids


def test_lanes_do_not_note_chunks_without_a_listener(trial: PlanWorld) -> None:
    trial.put("a")
    run_monitored(trial)

    assert not trial.watch.wants_chunks


def test_a_missing_package_is_said(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    """With the command that installs it; the run goes on."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    trial.put("a")

    assert run_monitored(trial, spans=True).exit == 0

    [message] = [each for each in trial.watch.messages if each.startswith("spans")]
    assert "pip install 'ferryman[otel]'" in message
    assert collector.requests == []


def test_a_program_with_a_tracer_of_its_own_gets_the_spans(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the span that it is in; where they go is its affair."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert spans.wants_spans({})
    trial.put("a")

    with provider.get_tracer("mine").start_as_current_span("outer") as outer:
        run_monitored(trial, spans=True)

    [run] = [span for span in kept.get_finished_spans() if span.name == "ferryman.run"]
    assert run.parent is not None
    assert run.parent.span_id == outer.get_span_context().span_id
