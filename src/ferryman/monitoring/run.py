"""Metrics, spans and lineage events of one run, together: begun with it, ended with it, in one time budget."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from ferryman import limits
from ferryman.errors import plain_text
from ferryman.monitoring.metrics import MetricsAddress, MetricsPublisher, MonitoredPlan, parse_target
from ferryman.observe import WARNING, Chunk, Forwarding, Observer
from ferryman.plan import Flow, Plan
from ferryman.storage.files import StatePath


class EndedRun(Protocol):
    """The part of a summary that monitoring needs."""

    def counts(self) -> dict[str, int]: ...


class MonitoredRun(Forwarding):
    """Observer of a run that feeds its spans and lineage events.

    What they have to say is reported by the thread that drives the run. An error in one of them is reported, and ends
    that one, not the run.
    """

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._observer = observer
        self._recorders: list[Observer] = []
        self._warnings: deque[str] = deque()
        self._summaries: dict[str, EndedRun] = {}
        self._errors: dict[str, Exception] = {}

    def warn(self, text: str) -> None:
        """Have a warning reported; may be called in any thread."""
        self._warnings.append(text)

    def add(self, recorder: Observer) -> None:
        """Feed this one, too."""
        self._recorders.append(recorder)
        self.wants_chunks |= recorder.wants_chunks

    def ended(self, summaries: Mapping[str, EndedRun], errors: Mapping[str, Exception] | None = None) -> None:
        """Note how the run ended.

        Args:
            summaries: label of a plan, or "" -> its summary.
            errors: label of a plan that stopped -> why.
        """
        self._summaries, self._errors = dict(summaries), dict(errors or {})

    def counts(self) -> dict[str, dict[str, int]]:
        """Return plan -> exit code and counts, of the run that has ended."""
        return {name: each.counts() for name, each in self._summaries.items()}

    def errors(self) -> dict[str, Exception]:
        """Return plan -> why it stopped."""
        return self._errors

    def safely(self, act: Callable[[], object], what: object) -> None:
        """Call a function; report an error of it."""
        try:
            act()
        except Exception as e:
            if what in self._recorders:
                self._recorders.remove(what)
            self.warn(f"{type(what).__name__}: {type(e).__name__}: {plain_text(e)}. The run continues without it.")

    def report_warnings(self) -> None:
        """Report the warnings that came meanwhile."""
        while self._warnings:
            super().message(f"{WARNING}{self._warnings.popleft()}")

    def phase(self, wave: int, name: str) -> None:
        self._feed(lambda each: each.phase(wave, name))
        super().phase(wave, name)

    def sent(self, chunks: Sequence[Chunk]) -> None:
        self._feed(lambda each: each.sent(chunks))
        super().sent(chunks)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        super().settled(delivered, pending, failed)
        self._feed(lambda each: each.settled(delivered, pending, failed))

    def waits(self, seconds: float | None = None) -> None:
        self._feed(lambda each: each.waits(seconds))
        super().waits(seconds)

    def about(self, plan: str) -> None:
        super().about(plan)
        self._feed(lambda each: each.about(plan))

    def _feed(self, call: Callable[[Observer], None]) -> None:
        for each in [*self._recorders]:
            self.safely(partial(call, each), each)
        self.report_warnings()


def monitor_of(
    plan: Plan | Flow,
    roots: StatePath | Mapping[str, StatePath],
    metrics: str | None,
    openlineage: str | None,
    *,
    endless: bool,
) -> Callable[[Observer], AbstractContextManager[MonitoredRun]]:
    """Return a function that monitors a run: given its observer, it returns a context with the one to run with.

    Args:
        roots: root of the plan's state; of a flow, by the labels of its plans.
        metrics, openlineage: see ``RunOptions``.

    Raises:
        UsageError: metrics or events can never be written or sent there.
    """
    from ferryman.monitoring.spans import wants_spans

    to_metrics = None if metrics is None else parse_target(metrics)
    to_lineage = None
    if openlineage is not None:
        from ferryman.monitoring.lineage import parse_target as parse_lineage_target

        to_lineage = parse_lineage_target(openlineage)
    if isinstance(plan, Flow):
        assert isinstance(roots, Mapping)
        plans = {plan.label(each): MonitoredPlan(each, roots[plan.label(each)]) for each in plan.plans}
    else:
        assert not isinstance(roots, Mapping)
        plans = {"": MonitoredPlan(plan, roots)}
    flow = plan.name if isinstance(plan, Flow) else ""
    return partial(
        monitor,
        flow,
        plans,
        metrics=to_metrics,
        openlineage=to_lineage,
        spans=wants_spans(),
        endless=endless,
    )


@contextmanager
def monitor(
    flow: str,
    plans: Mapping[str, MonitoredPlan],
    observer: Observer,
    *,
    metrics: Path | MetricsAddress | None = None,
    openlineage: Path | str | None = None,
    spans: bool = False,
    endless: bool = False,
) -> Iterator[MonitoredRun]:
    """Monitor a run within the block; yield the observer to run it with.

    Args:
        flow: name of the flow; "": a plan is run.
        plans: label of a plan, as ``about`` gives it, or "" -> the plan.
        metrics: file or address of metrics.
        openlineage: file or URL for lineage events.
        spans: whether OpenTelemetry gets spans.
    """
    run = MonitoredRun(observer)
    ends: list[Callable[[float], None]] = []
    last: list[Callable[[float], None]] = []
    finals: list[Callable[[BaseException | None], None]] = []
    if spans:
        run.safely(lambda: _add_spans(run, flow, plans, ends, finals), "spans")
    if openlineage is not None:
        run.safely(lambda: _add_lineage(run, openlineage, flow, plans, ends, finals, endless=endless), "lineage")
    if metrics is not None:
        publisher = MetricsPublisher([*plans.values()], metrics, run.warn)
        run.safely(publisher.start, "metrics")
        last.append(publisher.end)
    error: BaseException | None = None
    try:
        yield run
    except BaseException as e:
        error = e
        raise
    finally:
        for final in finals:
            run.safely(partial(final, error), "monitoring")
        _end_all(ends, last, run)
        run.report_warnings()


def _add_spans(
    run: MonitoredRun,
    flow: str,
    plans: Mapping[str, MonitoredPlan],
    ends: list[Callable[[float], None]],
    finals: list[Callable[[BaseException | None], None]],
) -> None:
    from ferryman.monitoring.spans import SpanRecorder, Tracing

    try:
        tracing = Tracing(run.warn)
    except ModuleNotFoundError as e:
        run.warn(
            f"spans: the environment says where spans of OpenTelemetry go, and {e.name} is not installed: "
            "pip install 'ferryman[otel]', or set OTEL_SDK_DISABLED=true."
        )
        return
    except ValueError as e:
        run.warn(f"spans: {e}")
        return
    recorder = SpanRecorder(tracing.tracer, flow, plans, run.traced)
    run.add(recorder)
    finals.append(lambda error: recorder.end(run.counts(), error))
    ends.append(tracing.end)


def _add_lineage(
    run: MonitoredRun,
    target: Path | str,
    flow: str,
    plans: Mapping[str, MonitoredPlan],
    ends: list[Callable[[float], None]],
    finals: list[Callable[[BaseException | None], None]],
    *,
    endless: bool,
) -> None:
    from ferryman.monitoring.lineage import LineageRecorder

    recorder = LineageRecorder(target, flow, plans, run.warn, endless=endless)
    run.add(recorder)
    finals.append(lambda error: recorder.end(run.counts(), run.errors(), error))
    ends.append(recorder.close)


_SAYING_S: Final = 0.2
"""Part of the budget in which what was not sent is said."""


def _end_all(
    ends: Sequence[Callable[[float], None]], last: Sequence[Callable[[float], None]], run: MonitoredRun
) -> None:
    """End all of them at the same time, within the budget.

    Args:
        last: ends that may take longer, since they count states first.
    """
    deadline = time.monotonic() + limits.MONITORING_END_S
    own = deadline - _SAYING_S
    threads = [threading.Thread(target=run.safely, args=(partial(end, own), "monitoring"), daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    for end in last:
        run.safely(partial(end, deadline), "metrics")
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
