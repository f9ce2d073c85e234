"""Order: whatever fails for how long, and wherever a run ends, message k + 1 never comes before k."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ferryman import account
from ferryman.destinations import Delivery, Outcome
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine import logs
from ferryman.errors import PermanentError, TransientError, Unavailable
from ferryman.operations import skip
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from ferryman.state.state import state_root
from tests.support.invariants import rows
from tests.support.plan_world import MEMORY, Interrupted, Until, Watch, run_plan
from tests.support.sleeper import Sleeper

FINE, DROPPED, BROKEN, REFUSED = "fine", "dropped", "broken", "refused"
MENDED = "mended"
"""A file: the step's code is another one by now, which fails for none."""

PHASES = ["transform", "commit", "deliver", "settle"]

Fate = str | int
"""Of a message; a number: its step fails so often before it succeeds."""

fates = st.one_of(st.sampled_from([FINE, FINE, FINE, DROPPED, BROKEN, REFUSED]), st.integers(1, 2))


class History(NamedTuple):
    """What happens.

    Attributes:
        fates: of the messages, by number.
        mode: "stop", "continue", or "errors": the plan has an error queue.
        ends: (wave, phase) at which the first runs end, as if killed.
        away: calls of the output queue, by number, in which it is away.
        upfront: so many messages are there before the first run; the others come before the last.
        skips: a person lets the plan go on behind what stops it, in place of mending the step.
        later: (wave, phase), counted from its start, at which each run behind a stop ends, as if killed, before it is
            started again.
    """

    fates: list[Fate]
    ordered: bool
    mode: str
    least: int
    ends: list[tuple[int, str]]
    away: frozenset[int]
    upfront: int
    skips: bool
    later: tuple[int, str] | None


histories = st.builds(
    History,
    st.lists(fates, min_size=1, max_size=14),
    st.booleans(),
    st.sampled_from(["stop", "continue", "errors"]),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(PHASES)), max_size=2),
    st.frozensets(st.integers(1, 6), max_size=2),
    st.integers(0, 14),
    st.booleans(),
    st.none() | st.tuples(st.integers(1, 3), st.sampled_from(PHASES)),
)


def calls(folder: Path, name: object) -> int:
    """Which call of this name it is, from 1."""
    with (folder / f"{name}.calls").open("ab") as file:
        file.write(b".")
    return (folder / f"{name}.calls").stat().st_size


class MoodyQueue(ToQueue):
    """Away in some of its calls; refuses what it is told to."""

    def __init__(self, folder: Path, told: History) -> None:
        super().__init__("out", folder)
        self._folder, self._told = folder, told

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if calls(self._folder, "write") in self._told.away:
            raise Unavailable("for a moment")
        bad = {d.hash for d in chunk if self._told.fates[d.fields["n"]] == REFUSED}
        good = iter(super().write([d for d in chunk if d.hash not in bad]))
        return [Outcome.permanent("refused") if d.hash in bad else next(good) for d in chunk]


def make_plan(folder: Path, told: History) -> Plan:
    def work(doc: Document) -> Document | None:
        fate = told.fates[doc["n"]]
        if isinstance(fate, int) and calls(folder, doc["n"]) <= fate:
            raise TransientError("not yet")
        if fate == BROKEN and not (folder / MENDED).exists():
            raise PermanentError("broken")
        return None if fate == DROPPED else doc

    plan = Plan("order")
    on_error: Any = "continue" if told.mode == "continue" else "stop"
    source = Queue("in", folder, ordered=told.ordered, on_error=on_error)
    plan.source("from_in", source).step("work", work).destination("out", MoodyQueue(folder, told), batch=2, backoff=0)
    if told.mode == "errors":
        plan.errors(ToQueue("errors", folder), backoff=0)
    return plan


def run_it(folder: Path, told: History) -> Any:
    plan = make_plan(folder, told)
    into = DurableQueue("in", folder)
    into.append([{"n": n} for n in range(len(told.fates))][: told.upfront])
    options: dict[str, Any] = {"wave_bytes": 1, "wait": 1e6, **Sleeper().options()}
    for end in told.ends:
        with contextlib.suppress(Interrupted):
            run_plan(plan, folder / "state", observer=Until(*end), checked=False, **options)
    into.append([{"n": n} for n in range(len(told.fates))][told.upfront :])
    return run_plan(plan, folder / "state", observer=Watch(1000), **options)


def check(folder: Path, told: History, summary: Any) -> None:
    fates = told.fates
    stops = [n for n, fate in enumerate(fates) if fate == BROKEN] if told.mode == "stop" else []
    reached = stops[0] if stops else len(fates)
    gives = [n for n in range(reached) if fates[n] not in (DROPPED, BROKEN, REFUSED)]
    found = numbers(folder, "out")
    at_once = [n for n in gives if fates[n] == FINE]
    if told.ordered:
        assert found == gives
    else:
        if not any(isinstance(fate, int) for fate in fates):  # a task of which all fail is an outage: others wait, too
            assert [n for n in found if fates[n] == FINE] == at_once
        assert sorted(found) == gives or (stops and set(at_once) <= set(found) <= set(gives))
    broken = [n for n in range(reached) if fates[n] == BROKEN]
    refused = [n for n in range(reached) if fates[n] == REFUSED]
    if told.mode == "errors":
        errors = [m.body for m in DurableQueue("errors", folder).read(limit=1000)]
        by_node = {
            where: [body["messages"][0]["body"]["n"] for body in errors if body["where"] == where]
            for where in ("work", "out")
        }
        assert by_node == {"work": broken, "out": refused}
        assert len(errors) == len(broken) + len(refused)
    plan = make_plan(folder, told)
    said = account.status(state_root(plan, folder / "state"), plan)["sources"]["from_in"]
    assert said == {"positions": {"in": reached + 1}, "read": reached, "lag": len(fates) - reached}
    failed = told.mode != "errors" and (broken or refused)
    assert summary.exit == (4 if stops else 3 if failed else 0), summary
    stopped = account.stopped(state_root(plan, folder / "state"), plan)
    assert [stop["document"] for stop in stopped] == ([f"in/{reached + 1}"] if stops else [])
    if stops:
        check_goes_on(folder, told, plan, stops)


def check_goes_on(folder: Path, told: History, plan: Plan, stops: list[int]) -> None:
    """Once the step is mended, or a person has said so of each message that stops the plan."""
    if not told.skips:
        (folder / MENDED).touch()
    for number in stops if told.skips else stops[:1]:
        if told.skips:
            assert skip(plan, state=folder / "state", document=f"in/{number + 1}").count == 1
        options: dict[str, Any] = {"wave_bytes": 1, "wait": 1e6, **Sleeper().options()}
        if told.later is not None:
            more, phase = told.later
            with contextlib.suppress(Interrupted):
                end = Until(last_wave(state_root(plan, folder / "state")) + more, phase)
                run_plan(plan, folder / "state", observer=end, checked=False, **options)
        summary = run_plan(plan, folder / "state", observer=Watch(1000), **options)
        if told.skips and number != stops[-1]:
            assert summary.exit == 4
            assert len(account.stopped(state_root(plan, folder / "state"), plan)) == 1
    never = (DROPPED, REFUSED, BROKEN) if told.skips else (DROPPED, REFUSED)
    expected = [n for n, fate in enumerate(told.fates) if fate not in never]
    found = numbers(folder, "out")
    assert found == expected if told.ordered else sorted(found) == expected
    assert account.stopped(state_root(plan, folder / "state"), plan) == []
    assert summary.exit == (3 if told.skips or REFUSED in told.fates else 0), summary


def last_wave(root: Path) -> int:
    return max((row["wave"] for row in rows(root, "ledger")), default=0)


def numbers(folder: Path, queue: str) -> list[int]:
    return [m.body["n"] for m in DurableQueue(queue, folder).read(limit=1000)]


def holds(told: History) -> None:
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        with mock.patch.object(logs, "_MIN_TASK_ENTRIES", told.least):
            check(folder, told, run_it(folder, told))
    finally:
        shutil.rmtree(folder)


@pytest.mark.rule("queue.order")
@examples(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories)
def test_order_is_kept_whatever_fails(told: History) -> None:
    """Outputs, errors, positions and exit are exactly what the messages' fates say."""
    holds(told)


@pytest.mark.slow
@examples(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories)
def test_order_is_kept_whatever_fails_at_length(told: History) -> None:
    holds(told)
