"""Metrics of states as Prometheus' text: for Python, for a file that node exporter reads, and over HTTP.

Each sample is of one plan and version, so that plans in one folder have different series. No sample has a time of its
own: node exporter would ignore the file (prometheus 3930).
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ferryman import limits
from ferryman.account.figures import Figures, UnreadFigures, backlog, figures
from ferryman.errors import UsageError, plain_text
from ferryman.plan import Flow, Plan
from ferryman.state.state import IDENTITY, state_root
from ferryman.storage.files import StatePath, exists, explain_errors_of_state

if TYPE_CHECKING:
    from socketserver import BaseServer

    from prometheus_client.core import Metric

_PLAN: Final = ("plan", "version")
"""Labels of each sample."""


class _Family(NamedTuple):
    """Metrics of one name.

    Attributes:
        labels: beside ``plan`` and ``version``.
    """

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


FAMILIES: Final[Mapping[str, _Family]] = {
    "ferryman_run_last_success_timestamp_seconds": _Family(
        "gauge", "When a run last ended that had read all sources and left nothing pending."
    ),
    "ferryman_run_duration_seconds": _Family("gauge", "How long the last run took; an endless run, so far."),
    "ferryman_deliveries_total": _Family(
        "counter",
        "Deliveries that ended so: delivered, deleted, dropped, failed, rejected or in_doubt. One counts each time "
        "that it ends.",
        ("destination", "status"),
    ),
    "ferryman_deliveries_attempts": _Family(
        "histogram", "Attempts that deliveries needed to arrive.", ("destination",)
    ),
    "ferryman_pending": _Family("gauge", "Deliveries that still have to be made.", ("destination",)),
    "ferryman_oldest_pending_age_seconds": _Family(
        "gauge", "Age of the delivery that has been pending longest; 0: nothing is pending."
    ),
    "ferryman_failed": _Family("gauge", "Deliveries of current documents that failed.", ("destination",)),
    "ferryman_rejected": _Family("gauge", "Deliveries of current documents that were rejected.", ("destination",)),
    "ferryman_in_doubt": _Family("gauge", "Deliveries that may or may not have taken effect.", ("destination",)),
    "ferryman_node_available": _Family(
        "gauge",
        "Whether a step, router, source or destination may be called: 1, or 0 while it is in trouble.",
        ("node",),
    ),
    "ferryman_step_seconds_total": _Family("counter", "Time spent in the calls of a step, of all workers.", ("node",)),
    "ferryman_remembered_calls_total": _Family(
        "counter",
        "Inputs of steps that remember: call, hit (answered without a call) or in_doubt.",
        ("node", "outcome"),
    ),
    "ferryman_queue_messages": _Family(
        "gauge", "Messages of a queue or log that the plan has not processed.", ("source",)
    ),
    "ferryman_queue_oldest_age_seconds": _Family(
        "gauge", "Age of the oldest message of a queue that the plan has not processed.", ("source",)
    ),
    "ferryman_jobs": _Family("gauge", "Jobs of the intake queue by state.", ("state",)),
    "ferryman_state_bytes": _Family("gauge", "Size of the files that the tables of the state consist of."),
    "ferryman_verified_through_timestamp_seconds": _Family(
        "gauge", "When all that was delivered was last found at a destination.", ("destination",)
    ),
    "ferryman_metrics_written_timestamp_seconds": _Family("gauge", "When these metrics were computed."),
}
"""Name -> what it measures. A counter's name ends in ``_total``."""

_ATTEMPTS: Final = (1, 2, 3, 5, 10)
"""Upper bounds of the buckets of attempts."""

_OUTCOMES: Final = {"call": "calls", "hit": "hits", "in_doubt": "in_doubt"}
"""Outcome of an input of a step that remembers -> its name in ``status``."""

_ENDED: Final = ("delivered", "deleted", "dropped", "failed", "rejected", "in_doubt")


class MonitoredPlan(NamedTuple):
    """A plan and the root of its state."""

    plan: Plan
    root: StatePath


@explain_errors_of_state
def metrics(plan: Plan | Flow, *, state: str | StatePath | None = None) -> str:
    """Return the metrics of a plan, or of all plans of a flow, as Prometheus' text.

    A plan that never ran has none.
    """
    plans = plan.plans if isinstance(plan, Flow) else [plan]
    return render([MonitoredPlan(each, state_root(each, state)) for each in plans])


def render(plans: Iterable[MonitoredPlan]) -> str:
    """Return the metrics of these states as Prometheus' text."""
    from prometheus_client import generate_latest

    return generate_latest(_Collected(_collect(plans))).decode()


class _Collected(NamedTuple):
    """Metrics that are computed, as a collector of ``prometheus_client``."""

    families: Sequence[Metric]

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def _collect(plans: Iterable[MonitoredPlan], counted: Callable[[], None] = lambda: None) -> list[Metric]:
    """Compute the metrics of the states that there are; a family without samples is left out.

    Args:
        counted: called when all states are read, before anything else is asked.
    """
    samples: dict[str, list[_Sample]] = {name: [] for name in FAMILIES}
    found = [(plan, root, figures(root, plan)) for plan, root in plans if exists(root / IDENTITY)]
    counted()
    for plan, root, each in found:
        labels = (plan.name, str(plan.version))
        for name, sample in _samples(each, backlog(root, plan), time.time()):
            samples[name].append(sample._replace(labels=(*labels, *sample.labels)))
    return [_family(name, found) for name, found in samples.items() if found]


class _Sample(NamedTuple):
    """A value; of a histogram the number of events by value."""

    labels: tuple[str, ...]
    value: float | Counter[int]


def _family(name: str, samples: Iterable[_Sample]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kind, help_text, own_labels = FAMILIES[name]
    labels = [*_PLAN, *own_labels]
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, help_text, labels=labels)
        for each in samples:
            assert isinstance(each.value, Counter)
            histogram.add_metric(list(each.labels), _buckets(each.value), sum(n * k for n, k in each.value.items()))
        return histogram
    made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = made(name, help_text, labels=labels)
    for each in samples:
        assert not isinstance(each.value, Counter)
        family.add_metric(list(each.labels), each.value)
    return family


def _buckets(counts: Counter[int]) -> list[tuple[str, float]]:
    bounds = [(str(float(most)), float(sum(k for n, k in counts.items() if n <= most))) for most in _ATTEMPTS]
    return [*bounds, ("+Inf", float(counts.total()))]


def _samples(found: Figures, waiting: UnreadFigures, now: float) -> Iterator[tuple[str, _Sample]]:
    """Yield the samples of a state, without the labels of its plan."""

    def sample(name: str, value: float | Counter[int], *labels: str) -> tuple[str, _Sample]:
        return name, _Sample(labels, value)

    if found.runs.success is not None:
        yield sample("ferryman_run_last_success_timestamp_seconds", found.runs.success.ended)
    if found.runs.last:
        yield sample("ferryman_run_duration_seconds", found.runs.last[-1].duration_s)
    for name, counts in found.outstanding.items():
        for status in _ENDED:
            yield sample("ferryman_deliveries_total", found.ended.by_status[name, status], name, status)
        yield sample("ferryman_deliveries_attempts", found.ended.attempts_at(name), name)
        for status, number in counts.items():
            yield sample(f"ferryman_{status}", number, name)
    for name, counts in waiting.logs.items():
        if counts["lag"] is not None:
            yield sample("ferryman_queue_messages", counts["lag"], name)
            oldest = waiting.oldest_messages.get(name, now)
            if name in waiting.oldest_messages or not counts["lag"]:
                yield sample("ferryman_queue_oldest_age_seconds", max(0.0, now - oldest), name)
    age_s = 0.0 if found.oldest_pending is None else max(0.0, now - found.oldest_pending)
    if found.oldest_pending is not None or not any(c["pending"] for c in found.outstanding.values()):
        yield sample("ferryman_oldest_pending_age_seconds", age_s)
    for name, is_available in found.available.items():
        yield sample("ferryman_node_available", int(is_available), name)
    for name, seconds in found.step_seconds.items():
        yield sample("ferryman_step_seconds_total", seconds, name)
    for name, totals in found.remembered.items():
        for outcome, key in _OUTCOMES.items():
            yield sample("ferryman_remembered_calls_total", totals[key], name, outcome)
    for state, number in waiting.jobs.items():
        yield sample("ferryman_jobs", number, state)
    yield sample("ferryman_state_bytes", found.state_bytes)
    for name, at in found.verified.items():
        yield sample("ferryman_verified_through_timestamp_seconds", at, name)
    yield sample("ferryman_metrics_written_timestamp_seconds", now)


# --- a file or an HTTP endpoint that is kept up to date during a run ---

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^/\\:\s]*):(\d{1,5})")


class MetricsAddress(NamedTuple):
    """Where metrics are offered over HTTP; host "": on all addresses of the machine."""

    host: str
    port: int


def parse_target(text: str) -> Path | MetricsAddress:
    """Parse the value of ``--metrics``: an address (``:9464``, ``127.0.0.1:9464``) or a file.

    Raises:
        UsageError: an impossible port, or no file's name.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        if not text.strip() or text.endswith(("/", "\\")):
            raise UsageError(f"--metrics {text}: give a file, as in metrics/plays.prom, or an address, as in :9464.")
        return Path(text).absolute()
    if not 0 < int(match[2]) < 1 << 16:
        raise UsageError(f"--metrics {text}: there is no port {match[2]}: give one from 1 to 65535, as in :9464.")
    return MetricsAddress(match[1].strip("[]"), int(match[2]))


def _stop(server: BaseServer) -> None:
    server.shutdown()
    server.server_close()


class MetricsPublisher:
    """Keeps a file, or what an HTTP endpoint answers, up to date with the metrics of some states.

    Args:
        report: takes a line of text, in any thread.
    """

    def __init__(
        self, plans: Sequence[MonitoredPlan], target: Path | MetricsAddress, report: Callable[[str], None]
    ) -> None:
        self._plans = plans
        self._target = target
        self._report = report
        self._ended = threading.Event()
        self._counted = threading.Event()
        """Unset while states are read: that is work, and ends; what is asked or written elsewhere may hang."""
        self._counted.set()
        self._thread: threading.Thread | None = None
        self._stop_server: Callable[[], None] = lambda: None
        self._computing = threading.Lock()
        self._families: Sequence[Metric] = ()
        self._next = 0.0
        """Monotonic time from which the metrics are computed again."""
        self._last_warning = ""

    def start(self) -> None:
        """Begin to publish."""
        if isinstance(self._target, Path):
            self._thread = threading.Thread(target=self._write_until_ended, name="ferryman-metrics", daemon=True)
            self._thread.start()
        else:
            self._serve(self._target)

    def end(self, deadline: float) -> None:
        """Write the file a last time, or end the endpoint; give up at this monotonic time.

        Only a state that takes longer to count has more time, and then as much again as a file may take.
        """
        self._ended.set()
        if self._thread is None:
            ending = threading.Thread(target=self._stop_server, name="ferryman-metrics", daemon=True)
            ending.start()
            ending.join(max(0.0, deadline - time.monotonic()))
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and not self._counted.is_set():
            self._counted.wait(limits.METRICS_COUNT_S)
            self._thread.join(limits.MONITORING_END_S)
        if self._thread.is_alive():
            self._warn("the last metrics were not written in time; they are those of before.")

    # -- the file

    def _write_until_ended(self) -> None:
        from prometheus_client import write_to_textfile  # some 50 ms of this thread

        while not self._ended.wait(max(limits.METRICS_EVERY_S, self._next - time.monotonic())):
            self._write(write_to_textfile)
        self._write(write_to_textfile)

    def _write(self, write_to_textfile: Callable[[str, Any], None]) -> None:
        """Replace the file atomically: node exporter may be reading it."""
        try:
            write_to_textfile(str(self._target), _Collected(self._compute()))
            self._last_warning = ""
        except Exception as e:
            self._warn(f"{plain_text(e)}. The run continues without it.")

    # -- the endpoint

    def _serve(self, address: MetricsAddress) -> None:
        from prometheus_client import start_http_server

        try:
            server, _ = start_http_server(address.port, address.host or "::", registry=self)
        except OSError as e:
            if address.host or not self._serve_on_old_network(address, e):
                self._warn(f"{e.strerror or e}. The run continues without it: give another port.")
            return
        self._stop_server = partial(_stop, server)

    def _serve_on_old_network(self, address: MetricsAddress, error: OSError) -> bool:
        """Serve on a machine without IPv6; return whether that was possible."""
        from prometheus_client import start_http_server

        try:
            server, _ = start_http_server(address.port, "0.0.0.0", registry=self)
        except OSError:
            return False
        self._stop_server = partial(_stop, server)
        return True

    def collect(self) -> Sequence[Metric]:
        """Return the metrics for the endpoint; computed again only if that was long ago."""
        with self._computing:
            if time.monotonic() >= self._next:
                try:
                    self._families = self._compute()
                except Exception as e:
                    self._warn(f"{plain_text(e)}. The last metrics are offered.")
            return self._families

    def _compute(self) -> Sequence[Metric]:
        began = time.monotonic()
        self._counted.clear()
        try:
            return _collect(self._plans, self._counted.set)
        finally:
            self._counted.set()
            took_s = time.monotonic() - began
            self._next = began + max(limits.METRICS_EVERY_S, limits.METRICS_SHARE * took_s)

    def _warn(self, what: str) -> None:
        if what != self._last_warning:
            self._last_warning = what
            shown = self._target if isinstance(self._target, Path) else f"{self._target.host}:{self._target.port}"
            self._report(f"metrics {shown}: {what}")
