"""OpenTelemetry: a span for each run, wave and chunk, never for a document.

``ferryman.run`` has a child ``ferryman.wave`` for each wave, and that a ``ferryman.chunk`` for each call of a
destination's ``write``. In a flow ``ferryman.flow`` is the parent of its plans' runs. The environment variables of
OpenTelemetry say where spans go; a program that has set up OpenTelemetry itself gets them in its own way.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.errors import plain_text
from ferryman.monitoring.sender import BackgroundSender
from ferryman.observe import Chunk, Silent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, Tracer

    from ferryman.monitoring.metrics import MonitoredPlan

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_LINGER_S: Final = 1.0
"""Seconds for which spans wait for others, to be sent together."""


def wants_spans(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether spans are to be made: the environment says where to, or the program has set up OpenTelemetry."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "")
    if exporters == "none":
        return False
    return bool(exporters or any(environ.get(name) for name in _ENDPOINTS)) or _has_provider()


def _has_provider() -> bool:
    """Return whether this program has set up OpenTelemetry."""
    if (sdk := sys.modules.get("opentelemetry.sdk.trace")) is None:
        return False
    from opentelemetry import trace

    return isinstance(trace.get_tracer_provider(), sdk.TracerProvider)


class Tracing:
    """A tracer, and the thread that sends its spans.

    Args:
        report: takes a line of text, in any thread.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed.
        ValueError: a variable names an exporter that is not installed.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        from opentelemetry import trace

        self._sender: BackgroundSender[ReadableSpan] | None = None
        if _has_provider():
            self.tracer: Tracer = trace.get_tracer("ferryman")
            return
        from opentelemetry.sdk.trace import TracerProvider

        exporters = [load() for load in _find_exporters()]
        names = ", ".join(os.environ[name] for name in _ENDPOINTS if os.environ.get(name))

        is_reported = False

        def send(spans: Sequence[ReadableSpan]) -> None:
            nonlocal is_reported
            why = ""
            for exporter in exporters:
                try:
                    if exporter.export(spans).name != "SUCCESS":  # it has tried again itself
                        why = "the collector does not take them"
                except Exception as e:  # sending the same again would keep others from being sent
                    why = f"they cannot be sent: {type(e).__name__}: {plain_text(e)}"
            if why and not is_reported:
                report(f"spans {names}: {why}. The run continues without it.")
            is_reported = bool(why)

        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # what it says is said by ``report``

        self._sender = BackgroundSender(
            f"spans {names}".strip(), send, report, size=limits.MONITORING_QUEUE, linger_s=_LINGER_S
        )
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(_Queued(self._sender))
        self.tracer = provider.get_tracer("ferryman")

    def end(self, deadline: float) -> None:
        """Send what waits; give up at this monotonic time."""
        if self._sender is not None:
            self._sender.end(deadline)


def _Queued(sender: BackgroundSender[ReadableSpan]) -> Any:
    """Return a span processor that queues each span that has ended."""
    from opentelemetry.sdk.trace import SpanProcessor

    class Queued(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.context is not None and span.context.trace_flags.sampled:
                sender.put(span)

    return Queued()


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if is_named else {"service.name": "ferryman"})


def _find_exporters() -> list[Callable[[], Any]]:
    """Return the exporters that the environment names.

    Raises:
        ValueError: one is not installed.
    """
    from importlib.metadata import entry_points  # it would make each start slower

    found = []
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").replace(" ", "").split(","):
        if name == "otlp":
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
                "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
            )
            name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
        points = entry_points(group="opentelemetry_traces_exporter", name=name)
        if not points:
            raise ValueError(f"the exporter {name} is not installed: pip install 'ferryman[otel]', or its own package.")
        found.append(next(iter(points)).load())
    return found


class SpanRecorder(Silent):
    """Makes the spans of a run.

    Args:
        flow: name of the flow; "": a plan is run.
        plans: label of a plan, as ``about`` gives it, or "" -> the plan.
        log: told which trace and span each call belongs to.
    """

    wants_chunks = True

    def __init__(self, tracer: Tracer, flow: str, plans: Mapping[str, MonitoredPlan], log: Callable[[str, str], None]):
        from opentelemetry import context
        from opentelemetry.propagate import extract

        self._tracer = tracer
        self._log = log
        outer = context.get_current()
        if "TRACEPARENT" in os.environ:  # of the program that started this one
            carrier = {name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")}
            outer = extract(carrier, outer)
        self._root = tracer.start_span("ferryman.flow", outer, attributes={"ferryman.flow": flow}) if flow else None
        self._outer = outer if self._root is None else _context_of(self._root)
        self._plans = plans
        self._runs: dict[str, Span] = {}
        self._plan = ""
        self._wave: Span | None = None
        self._scan_began: int | None = None
        if not flow:
            self._run()
        self._show()

    def about(self, plan: str) -> None:
        self._end_wave()
        self._plan = plan
        self._show()

    def phase(self, wave: int, name: str) -> None:
        if name == "scan":
            self._end_wave()
            self._scan_began = time.time_ns()
            return
        if self._wave is None:
            attributes = {**self._names(), "ferryman.wave": wave}
            self._wave = self._tracer.start_span(
                "ferryman.wave", _context_of(self._run()), attributes=attributes, start_time=self._scan_began
            )
            if self._scan_began is not None:
                self._wave.add_event("scan", timestamp=self._scan_began)
            self._scan_began = None
            self._show()
        self._wave.add_event(name)

    def sent(self, chunks: Sequence[Chunk]) -> None:
        if self._wave is None:
            return
        parent = _context_of(self._wave)
        for chunk in chunks:
            began = round(chunk.began * 1e9)
            attributes: dict[str, Any] = {
                **self._names(),
                "ferryman.destination": chunk.destination,
                "ferryman.rows": chunk.rows,
                "ferryman.accepted": chunk.accepted,
                **({"error.type": chunk.error} if chunk.error else {}),
            }
            span = self._tracer.start_span("ferryman.chunk", parent, attributes=attributes, start_time=began)
            if chunk.error:
                _set_error(span, chunk.error)
            span.end(began + round(chunk.took_s * 1e9))

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        if self._wave is not None:
            counts = {"ferryman.delivered": delivered, "ferryman.pending": pending, "ferryman.failed": failed}
            self._wave.set_attributes(counts)
        self._end_wave()

    def waits(self, seconds: float | None = None) -> None:
        self._end_wave()

    def end(self, counts: Mapping[str, Mapping[str, int]], error: BaseException | None) -> None:
        """End all spans.

        Args:
            counts: plan -> its exit code and counts, as far as they are known.
            error: what ended the run; None: it came to its end.
        """
        self._end_wave()
        for plan, numbers in counts.items():
            self._plan = plan
            span = self._run()
            span.set_attributes({f"ferryman.{name}": number for name, number in numbers.items()})
            if numbers.get("exit") in (1, 4):
                _set_error(span, f"exit code {numbers['exit']}")
        for span in (*self._runs.values(), *([self._root] if self._root is not None else [])):
            if error is not None:
                text = plain_text(error)
                span.add_event("exception", {"exception.type": type(error).__name__, "exception.message": text})
                _set_error(span, text)
            span.end()

    def _run(self) -> Span:
        """Return the span of the current plan's run, which begins with the first call about it."""
        if self._plan not in self._runs:
            self._runs[self._plan] = self._tracer.start_span("ferryman.run", self._outer, attributes=self._names())
        return self._runs[self._plan]

    def _names(self) -> dict[str, Any]:
        if (known := self._plans.get(self._plan)) is None:
            return {}
        return {"ferryman.plan": known.plan.name, "ferryman.version": known.plan.version}

    def _end_wave(self) -> None:
        self._scan_began = None
        if self._wave is not None:
            self._wave.end()
            self._wave = None
            self._show()

    def _show(self) -> None:
        """Tell the log which span it is in."""
        span = self._wave or self._runs.get(self._plan) or self._root
        if span is not None:
            ids = span.get_span_context()
            self._log(f"{ids.trace_id:032x}", f"{ids.span_id:016x}")


def _context_of(span: Span) -> Any:
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span)


def _set_error(span: Span, text: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, text))
