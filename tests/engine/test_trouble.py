"""Trouble of a whole node: how long it is left alone, and what an endless run says of it."""

from __future__ import annotations

import pytest

from ferryman.breaker import backoff_s
from ferryman.destinations import Null
from ferryman.document import Document
from ferryman.engine.breakers import BreakerRegistry, NodeBreakers
from ferryman.engine.results import ErrorKind, NodeError, NodeReport, PendingRetries
from ferryman.errors import Misconfigured, Unavailable
from ferryman.plan import Plan
from ferryman.sources import Memory
from tests.support.plan_world import Interrupted, PlanWorld, Watch


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def registry(*, endless: bool) -> tuple[BreakerRegistry, Clock, list[str]]:
    clock, told = Clock(), []
    plan = Plan("out")
    plan.source("docs", Memory([])).destination("out", Null())
    found = BreakerRegistry(plan, told.append, clock)
    found.endless = endless
    return found, clock, told


def test_the_wait_grows_to_an_hour() -> None:
    assert [backoff_s(n) for n in range(1, 9)] == [1, 4, 16, 64, 256, 1024, 3600, 3600]
    assert backoff_s(10**9) == 3600


@pytest.mark.parametrize("endless", [True, False])
@pytest.mark.parametrize("permanent", [True, False])
def test_permanent_trouble_ends_a_nodes_turn_only_in_a_single_run(endless: bool, permanent: bool) -> None:
    found, clock, _ = registry(endless=endless)
    assert found.wait_s("out") == 0
    for expected in (1, 4):
        found.record_failure("out", "403", permanent=permanent)
        assert found.wait_s("out") == (None if permanent and not endless else expected)
        assert found.blocked("out")
        clock.now += expected
    assert found.blocked("out") == (permanent and not endless)
    found.record_success("out")
    assert found.wait_s("out") == 0


def test_an_endless_run_reports_the_begin_and_the_end_once_each() -> None:
    found, clock, told = registry(endless=True)
    for _ in range(3):
        found.record_failure("out", "refused", permanent=False)
        clock.now += 10
    found.record_failure("out", "403", permanent=True)
    found.record_failure("out", "403", permanent=True)
    found.record_success("out")
    found.record_success("out")
    assert [line.split(".")[0] for line in told] == [
        "warning: destination out: refused",
        "warning: destination out: 403",
        "destination out: works again, after 30 s",
    ]


def test_a_single_run_reports_trouble_at_its_end_only() -> None:
    found, _, told = registry(endless=False)
    found.record_failure("out", "refused", permanent=False)
    found.record_success("out")
    assert told == []


class Turns(Watch):
    """Ends an endless run at its so many-th scan."""

    def __init__(self, scans: int) -> None:
        super().__init__()
        self._scans = scans

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if sum(n == "scan" for _, n in self.phases) > self._scans:
            raise Interrupted


CALLS: list[int] = []


def refuse_twice() -> None:
    CALLS.append(1)
    if len(CALLS) <= 2:
        raise Misconfigured("403: not allowed")


def refuse_twice_for_now() -> None:
    CALLS.append(1)
    if len(CALLS) <= 2:
        raise Unavailable("503: starting")


@pytest.mark.rule("destination.endless")
@pytest.mark.parametrize("check", [refuse_twice, refuse_twice_for_now])
def test_an_endless_run_asks_a_destination_with_permanent_trouble_again(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, check: object
) -> None:
    """A 403 for a moment: the documents are delivered when it is over, and both ends of it are reported."""
    monkeypatch.setattr("ferryman.limits.BACKOFF_FIRST_S", 0.01)
    CALLS.clear()
    trial.build()
    trial.out().refuse = check  # type: ignore[assignment]
    trial.put("a", "b")
    watch = Turns(8)
    with pytest.raises(Interrupted):
        trial.run(every=0.05, observer=watch, checked=False)
    assert trial.out().counted() == {"a": 1, "b": 1}
    told = [line for line in watch.messages if "destination out: " in line]
    assert len(told) == 2
    assert "is checked again automatically" in told[0]
    assert "works again" in told[1]


@pytest.mark.rule("destination.endless")
def test_a_single_run_does_not_ask_it_again(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferryman.limits.BACKOFF_FIRST_S", 0.01)
    CALLS.clear()
    trial.build()
    trial.out().refuse = refuse_twice
    trial.put("a", "b")
    summary = trial.run()
    assert summary.exit == 4
    assert len(CALLS) == 1
    assert any("repair it and run again" in line or "fix it and run again" in line for line in summary.messages)


def test_a_scope_works_again_when_a_wave_has_not_met_it_and_nothing_waits_for_it() -> None:
    """Not before: what owes something to another trouble, too, is not held for the host."""
    clock, told = Clock(), list[str]()
    plan = Plan("hosts")
    plan.source("docs", Memory([])).step("fetch", lambda doc: doc).destination("null", Null())
    nodes = NodeBreakers(plan, BreakerRegistry(plan, told.append, clock), clock)
    nodes.breakers.endless = True
    away = NodeError(ErrorKind.UNAVAILABLE, "fetch", "step fetch: no answer", scope="a:80")
    held = PendingRetries("fetch a:80", 1, 0)
    for faults, debts, lines in (((away,), [], 1), ((), [held], 1), ((), [], 2)):
        nodes.record_reports([NodeReport("fetch", succeeded=True, faults=faults, by_brake=False)])
        nodes.forget_scopes(debts)
        assert len(told) == lines
    assert told[0].startswith("warning: step fetch (a:80): no answer. ")
    assert told[1].startswith("step fetch (a:80): works again")


class Counting:
    """A step that counts its calls in itself, as ``fetch_url`` notes hosts that are unavailable."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, doc: Document) -> Document:
        self.calls += 1
        doc["calls"] = self.calls
        return doc


def test_what_a_step_has_learnt_ends_with_the_run(net: PlanWorld) -> None:
    """Also where the process lives on: within a run it is kept, the next run begins anew."""
    seen: list[int] = []
    net.source().step("count", Counting()).destination("out", net.out())
    for ids in (("a", "b"), ("c",)):
        net.put(*ids)
        net.run()
        seen.append(max(line["fields"]["calls"] for line in net.out().lines()))
        net.out().forget()
    assert seen == [2, 1]
