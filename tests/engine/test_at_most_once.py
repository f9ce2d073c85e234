"""``Plan(strategy="at-most-once")``: a step sees each entry once at most, whatever is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine import logs
from ferryman.engine.migration import migrate
from ferryman.engine.results import IN_DOUBT, NOTHING_STAGED, Staged, kept_result, run_once
from ferryman.errors import PlanError, Unavailable
from ferryman.operations import resolve, retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory, Queue
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.once import Once, Witness
from tests.support.plan_world import Interrupted, Until, run_plan


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MIN_TASK_ENTRIES", 3)


def test_messages_go_through_once_and_in_order(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 20))
    assert once.run().exit == 0
    assert once.values() == list(range(1, 20))
    once.put(20)
    assert once.run().exit == 0
    assert once.values() == list(range(1, 21))
    assert once.seen() == Counter(range(1, 21))
    status = once.status()
    assert (status["balanced"], status["sources"]["from_in"]["read"], status["sources"]["from_in"]["lag"]) == (
        True,
        20,
        0,
    )


@pytest.mark.rule("once.final")
@pytest.mark.parametrize("how", ["transient", "permanent", "bug"])
@pytest.mark.parametrize("errors", [False, True])
def test_an_error_is_final(place: Path, how: str, errors: bool) -> None:
    once = Once(place, errors=errors)
    once.put(*range(1, 8))
    once.fail(4, how)
    summary = once.run()
    assert once.values() == [1, 2, 3, 5, 6, 7]
    assert once.seen() == Counter(range(1, 8))
    status = once.status()
    counts = status["destinations"]["to_out"]
    assert (counts["failed"] + counts["rejected"], counts["pending"], status["balanced"]) == (1, 0, True)
    if errors:
        assert (summary.exit, once.errors()) == (0, ["in/4"])
    assert once.run().exit == summary.exit
    assert once.seen() == Counter(range(1, 8))


@pytest.mark.rule("once.killed")
@pytest.mark.parametrize("phase", ["transform", "commit", "deliver", "settle"])
def test_a_run_that_ends_anywhere_repeats_nothing(place: Path, phase: str) -> None:
    """What tasks had returned before the end counts; nothing was begun, so nothing is in doubt."""
    once = Once(place)
    once.put(*range(1, 8))
    with pytest.raises(Interrupted):
        once.run(observer=Until(1, phase))
    assert once.run().exit == 0
    assert once.values() == list(range(1, 8))
    assert once.seen() == Counter(range(1, 8))
    assert once.status()["balanced"]


@pytest.mark.rule("once.doubt")
def test_what_had_begun_is_in_doubt_as_one_row(place: Path) -> None:
    """A worker dies over message 5: its task is not run again, all others are."""
    once = Once(place, fork=True)
    once.put(*range(1, 13))
    once.fail(5, "kill")
    summary = once.run(runner=InProcess(fork=True))
    assert (summary.exit, summary.in_doubt) == (3, 2)
    assert once.in_doubt() == [("in/4..6", "to_other"), ("in/4..6", "to_out")]
    assert once.values() == once.values("other") == [1, 2, 3, *range(7, 13)]
    assert once.seen() == Counter({n: 1 for n in range(1, 13) if n != 6})
    assert once.status()["balanced"]
    assert once.run().exit == 3
    assert once.seen()[5] == 1


@pytest.mark.rule("once.resolve")
@pytest.mark.parametrize("word", ["pending", "delivered", "failed"])
def test_a_range_in_doubt_is_resolved(place: Path, word: str) -> None:
    once = Once(place, fork=True)
    once.put(*range(1, 13))
    once.fail(5, "kill")
    once.run(runner=InProcess(fork=True))
    once.mend(5)
    assert resolve(once.plan, word, state=once.state, source="from_in", why="a test says so").count == 2
    summary = once.run()
    assert (summary.exit, once.in_doubt()) == (3 if word == "failed" else 0, [])
    status = once.status()
    counts = status["destinations"]["to_out"]
    assert status["balanced"]
    if word == "pending":
        assert once.values() == once.values("other") == [1, 2, 3, *range(7, 13), 4, 5, 6]
        assert (counts["delivered"], counts["dropped"], status["sources"]["from_in"]["read"]) == (12, 1, 13)
    else:
        assert once.values() == [1, 2, 3, *range(7, 13)]
        assert counts["delivered" if word == "delivered" else "failed"] == (10 if word == "delivered" else 1)
    once.put(13)
    assert once.run().exit == summary.exit
    assert once.values()[-1] == 13


def test_a_range_that_failed_is_run_again_by_retry(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 7))
    once.fail(5, "kill")
    once.run(runner=InProcess(fork=True))
    resolve(once.plan, "failed", state=once.state)
    once.mend(5)
    assert once.run().exit == 3
    assert retry(once.plan, state=once.state).count == 1
    assert once.run().exit == 0
    assert once.values() == list(range(1, 7))
    assert once.status()["balanced"]


def test_a_range_that_dies_again_is_in_doubt_again(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 7))
    once.fail(5, "kill")
    for _ in range(2):
        once.run(runner=InProcess(fork=True))
        assert once.in_doubt() == [("in/4..6", "to_out")]
        assert once.status()["balanced"]
        resolve(once.plan, "pending", state=once.state)
    once.mend(5)
    assert once.run().exit == 0
    assert once.values() == list(range(1, 7))
    assert once.seen()[5] == 3


@pytest.mark.rule("once.away")
def test_a_service_that_is_away_costs_the_entry_that_met_it(place: Path) -> None:
    """The entries behind it in its task have not begun, and wait until it is back."""
    once = Once(place)
    once.put(*range(1, 13))
    once.fail(2, "away")
    once.fail(8, "away")
    summary = once.run(wait=0, clock=lambda: 0.0)  # a slow run must not outlast the pause
    assert summary.exit != 0
    tried = set(once.seen())
    assert {1, 2} <= tried
    assert 3 not in tried
    status = once.status()
    assert status["destinations"]["to_out"]["failed"] == len(tried & {2, 8})
    assert status["balanced"]
    once.mend(2)
    once.mend(8)
    assert once.run().exit == 3  # of the entries that met it
    assert sorted(once.values()) == [n for n in range(1, 13) if n not in tried & {2, 8}]
    assert set(once.seen().values()) == {1}
    assert once.status()["balanced"]


def test_the_brake_stops_it_before_all_have_failed(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 1001))
    for n in range(1, 1001):
        once.fail(n, "bug")
    summary = once.run()
    assert summary.exit == 4
    failed = once.status()["destinations"]["to_out"]["failed"]
    assert 0 < failed < 500
    assert once.seen().total() == failed
    for n in range(1, 1001):
        once.mend(n)
    once.run()
    assert len(once.values()) == 1000 - failed
    assert set(once.seen().values()) == {1}
    assert once.status()["balanced"]


def test_a_log_that_is_away_while_it_is_read_loses_nothing(place: Path) -> None:
    """The folder of the queue is gone when the tasks come to it, and back for the next run."""
    once = Once(place)
    once.put(*range(1, 8))
    hidden = place / "hidden"
    with pytest.MonkeyPatch.context() as patch:
        real = Queue._read
        patch.setattr(Queue, "_read", lambda self, piece: _gone(self, piece) if piece.start > 3 else real(self, piece))
        once.run(wait=0)
    assert not hidden.exists()
    assert once.values() == [1, 2, 3]
    assert once.run().exit == 0
    assert once.values() == list(range(1, 8))
    assert once.status()["balanced"]


def _gone(queue: Any, piece: Any) -> Any:
    yield from ()
    raise Unavailable("the folder is away")


def test_what_was_trimmed_meanwhile_is_not_waited_for(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 7))
    once.fail(2, "kill")
    once.run(runner=InProcess(fork=True))
    assert once.in_doubt() == [("in/1..3", "to_out")]
    once.into.trim(0, force=True)
    resolve(once.plan, "pending", state=once.state)
    assert once.run().exit == 0
    assert once.values() == [4, 5, 6]
    assert once.status()["balanced"]


def test_an_operator_may_have_an_entry_run_again(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 4))
    once.fail(2, "transient")
    once.run()
    once.mend(2)
    retry(once.plan, state=once.state)
    assert once.run().exit == 0
    assert once.values() == [1, 3, 2]
    retry(once.plan, state=once.state, document="in/1", force=True)
    assert once.run().exit == 0
    assert once.values() == [1, 3, 2, 1]
    assert once.status()["balanced"]


def test_forcing_all_runs_each_entry_once_more(place: Path) -> None:
    """Also those of a range that was run again, which is not run as a whole a second time."""
    once = Once(place)
    once.put(*range(1, 10))
    once.fail(5, "kill")
    once.run(runner=InProcess(fork=True))
    once.mend(5)
    resolve(once.plan, "pending", state=once.state)
    once.run()
    before = once.seen()
    retry(once.plan, state=once.state, force=True)
    assert once.run().exit == 0
    assert once.seen() - before == Counter(range(1, 10))
    retry(once.plan, state=once.state, dirty=True)
    assert once.run().exit == 0
    assert once.status()["balanced"]


def test_forcing_a_range_that_was_called_delivered_runs_it(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 7))
    once.fail(5, "kill")
    once.run(runner=InProcess(fork=True))
    once.mend(5)
    resolve(once.plan, "delivered", state=once.state)
    assert once.run().exit == 0
    retry(once.plan, state=once.state, document="in/4..6", force=True)
    assert once.run().exit == 0
    assert once.values() == list(range(1, 7))
    assert once.status()["balanced"]


def test_a_queue_that_is_made_again_is_read_from_its_beginning(place: Path) -> None:
    once = Once(place)
    once.put(1, 2, 3)
    once.run()
    once.into.delete()
    once.into = DurableQueue("in", place)
    once.put(4, 5)
    assert once.run().exit == 0
    assert once.values() == [1, 2, 3, 4, 5]
    assert once.status()["balanced"]


def test_a_new_version_goes_on_with_what_is_open(place: Path) -> None:
    """The older version's run ended behind its intake, with one range in doubt before."""
    once = Once(place)
    once.put(*range(1, 7))
    once.fail(5, "kill")
    once.run(runner=InProcess(fork=True))
    once.put(*range(7, 13))
    with pytest.raises(Interrupted):
        once.run(observer=Until(2, "commit"))
    once.mend(5)
    once.plan = Plan("once", version=2, strategy="at-most-once")
    node = once.plan.source("from_in", Queue("in", place)).step("see", Witness(place).see)
    node.destination("to_out", ToQueue("out", place), backoff=0)
    root = state_root(once.plan, once.state)
    migrate(root, once.plan, 1)
    once.run()
    assert once.in_doubt() == [("in/4..6", "to_out")]
    resolve(once.plan, "pending", state=once.state)
    assert once.run().exit == 0
    assert sorted(once.values()) == list(range(1, 13))
    assert {n for n, times in once.seen().items() if times > 1} == {4, 5}


def test_alts_and_joins_take_each_pair_once(place: Path) -> None:
    """A worker dies over a pair; its range is named by the entries of both inputs."""
    for name in ("a", "b"):
        DurableQueue(name, place).append([{"n": n} for n in range(1, 8)])
    seen = Witness(place)

    def paired(docs: dict[str, Document]) -> Document:
        return seen.see(docs["a"])

    plan = Plan("paired", version=1, strategy="at-most-once")
    inputs = {name: plan.source(name, Queue(name, place)) for name in ("a", "b")}
    plan.join("pair", paired, inputs).destination("to_out", ToQueue("out", place), backoff=0)
    (place / "fate-5").write_text("kill")
    summary = run_plan(plan, place / "state", runner=InProcess(fork=True))
    assert summary.in_doubt == 1
    root = state_root(plan, place / "state")
    [row] = account.deliveries(root, plan=plan, status="in_doubt")
    assert row["document"] == "a/4..6&b/4..6"
    (place / "fate-5").unlink()
    resolve(plan, "pending", state=place / "state")
    assert run_plan(plan, place / "state").exit == 0
    assert [m.body["n"] for m in DurableQueue("out", place).read(limit=100)] == [1, 2, 3, 7, 4, 5, 6]


@pytest.mark.rule("once.check")
def test_what_cannot_be_taken_before_it_is_read_is_refused(place: Path) -> None:
    def findings(plan: Plan) -> str:
        with pytest.raises(PlanError) as refused:
            plan.check()
        return str(refused.value)

    plan = Plan("p", strategy="at-most-once")
    plan.source("docs", Memory([{"id": "a"}])).destination("out", ToQueue("out", place))
    assert "docs: strategy='at-most-once' takes only sources that are read by position" in findings(plan)
    plan = Plan("p", strategy="at-most-once")
    inputs = {name: plan.source(name, Queue(name, place, types=["x"])) for name in ("a", "b")}
    plan.join("pair", lambda docs: docs["a"], inputs).destination("out", ToQueue("out", place))
    assert "pair: an input has a filter" in findings(plan)
    plan = Plan("p", strategy="exactly-twice")  # type: ignore[arg-type]
    plan.source("a", Queue("a", place)).destination("out", ToQueue("out", place))
    assert "strategy='exactly-twice': give 'at-most-once', or leave it out." in findings(plan)


@pytest.mark.rule("once.spark")
def test_a_task_that_is_started_again(place: Path) -> None:
    """It returns what it had returned; if it left nothing, its range is in doubt; after its wave it does not begin."""
    runs = []

    def run() -> Staged:
        runs.append(1)
        return NOTHING_STAGED._replace(entries=7)

    def die() -> Staged:
        raise KeyboardInterrupt

    (place / "open").touch()
    assert (
        run_once(place, 0, run)
        == run_once(place, 0, run)
        == kept_result(place, 0)
        == NOTHING_STAGED._replace(entries=7)
    )
    with pytest.raises(KeyboardInterrupt):
        run_once(place, 1, die)
    assert run_once(place, 1, run) == kept_result(place, 1) == IN_DOUBT
    assert kept_result(place, 2) is None
    assert run_once(place, 2, run) == IN_DOUBT, "the next driver was told that it had not begun"
    with pytest.raises(FileNotFoundError):
        run_once(place / "gone", 3, run)
    assert kept_result(place / "gone", 3) == IN_DOUBT
    assert len(runs) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_queue_that_is_away_keeps_its_ranges(place: Path, again: bool) -> None:
    """They are run when it is back. Of a queue that was made again nothing is left to run."""
    once = Once(place)
    once.put(*range(1, 7))
    once.fail(5, "kill")
    once.run(runner=InProcess(fork=True))
    once.mend(5)
    resolve(once.plan, "pending", state=once.state)
    (place / "in").rename(place / "moved")
    (place / "in").write_text("not a queue")
    assert once.run(wait=0).exit == 4
    (place / "in").unlink()
    if again:
        DurableQueue("in", place).append([{"n": 7}])
    else:
        (place / "moved").rename(place / "in")
    assert once.run().exit == 0
    assert once.values() == ([1, 2, 3, 7] if again else list(range(1, 7)))
    assert once.status()["balanced"]
