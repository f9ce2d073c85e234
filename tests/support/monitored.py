"""Runs that are monitored, and what a collector and a lineage server got of them."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ferryman.engine.summary import Summary
from ferryman.monitoring.metrics import MetricsAddress, MonitoredPlan
from ferryman.monitoring.run import monitor
from tests.support.plan_world import PlanWorld, Watch
from tests.support.receiver import Receiver


def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset what says where spans and events go."""
    for name in [*os.environ]:
        if name.startswith(("OTEL_", "OPENLINEAGE_")) or name in ("TRACEPARENT", "TRACESTATE"):
            monkeypatch.delenv(name)


def run_monitored(
    world: PlanWorld,
    *,
    watch: Watch | None = None,
    metrics: Path | MetricsAddress | None = None,
    openlineage: Path | str | None = None,
    spans: bool = False,
    **options: Any,
) -> Summary:
    """Run a world's plan as ``ferryman.run`` does, and monitor it."""
    watch = watch or Watch()
    plans = {"": MonitoredPlan(world.plan, world.root)}
    with monitor("", plans, watch, metrics=metrics, openlineage=openlineage, spans=spans) as run:
        summary = world.run(observer=run, **options)
        run.ended({"": summary})
    world.watch = watch
    return summary


def samples_of(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Parse Prometheus' text: (name, labels without the plan's) -> value."""
    return {
        (
            sample.name,
            tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("plan", "version"))),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value_of(text: str, name: str, **labels: str) -> float:
    """Return the value of one sample."""
    return samples_of(text)[name, tuple(sorted(labels.items()))]


def spans_of(collector: Receiver) -> list[Any]:
    """Return the spans that came to a collector, as OTLP has them."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for request in collector.requests:
        message = ExportTraceServiceRequest()
        message.ParseFromString(unpacked(request.body))
        found += [span for r in message.resource_spans for scope in r.scope_spans for span in scope.spans]
    return found


def unpacked(body: bytes) -> bytes:
    """Return a request's body, which may be compressed."""
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def attributes_of(span: Any) -> dict[str, Any]:
    """Return a span's attributes by name."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
