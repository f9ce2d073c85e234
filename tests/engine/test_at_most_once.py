"""``Plan(strategy="at-most-once")``: a step sees each entry once at most, whatever is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine import logs
from ferryman.engine.migration import migrate
from ferryman.engine.once_task import IN_DOUBT, TaskNotes, kept_result, run_once
from ferryman.engine.results import NOTHING_STAGED, KilledTask, Staged
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
def test_one_message_is_in_doubt_and_the_rest_goes_on(place: Path) -> None:
    """A worker dies over message 5: what it had made of those before counts, and those behind go on by themselves."""
    once = Once(place, fork=True)
    once.put(*range(1, 13))
    once.fail(5, "kill")
    summary = once.run(runner=InProcess(fork=True))
    assert (summary.exit, summary.in_doubt) == (3, 2)
    assert once.in_doubt() == [("in/5..5", "to_other"), ("in/5..5", "to_out")]
    assert once.values() == once.values("other") == [1, 2, 3, 4, *range(7, 13), 6]
    assert once.seen() == Counter(range(1, 13))
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
        assert once.values() == once.values("other") == [1, 2, 3, 4, *range(7, 13), 6, 5]
        assert (counts["delivered"], counts["dropped"], status["sources"]["from_in"]["read"]) == (12, 2, 14)
    else:
        assert once.values() == [1, 2, 3, 4, *range(7, 13), 6]
        assert counts["delivered" if word == "delivered" else "failed"] == (12 if word == "delivered" else 1)
    once.put(13)
    assert once.run().exit == summary.exit
    assert once.values()[-1] == 13


@pytest.mark.rule("once.doubt")
@pytest.mark.parametrize(("checkpoint", "doubtful"), [(1, "in/5..5"), (2, "in/5..6"), (7, "in/1..7")])
def test_as_many_are_in_doubt_as_lie_between_two_notes(
    place: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: int, doubtful: str
) -> None:
    """What a step may have seen since the last note; the rest of the task goes on by itself."""
    monkeypatch.setattr(logs, "_MIN_TASK_ENTRIES", 12)
    once = Once(place, checkpoint=checkpoint)
    once.put(*range(1, 13))
    once.fail(5, "kill")
    once.run(runner=InProcess(fork=True))
    assert once.in_doubt() == [(doubtful, "to_out")]
    first, last = map(int, doubtful.removeprefix("in/").split(".."))
    assert once.values() == [n for n in range(1, 13) if not first <= n <= last]
    assert set(once.seen().values()) == {1}
    assert once.status()["balanced"]


@pytest.mark.rule("once.doubt")
def test_what_a_killed_task_had_made_is_as_if_it_had_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children (more than are held in memory), messages that a filter drops, errors with their message, and where each
    came from: as in a plan whose worker was not killed."""
    monkeypatch.setattr(logs, "_MIN_TASK_ENTRIES", 12)
    runs = []
    for deadly in (False, True):
        folder = place / str(deadly)
        once = Once(folder, errors=True, children=True, types=["a"])
        once.into.append([{"n": n, "type": "b" if n == 2 else "a"} for n in range(1, 8)])
        once.fail(4, "permanent")
        once.fail(1, "children")
        once.fail(5, "bug")
        if deadly:
            once.fail(7, "kill")
        once.run(runner=InProcess(fork=True))
        assert once.status()["balanced"]
        out = [(m.body, m.meta["queues"]["in"]["index"]) for m in DurableQueue("out", folder).read(limit=100_000)]
        errors = [{**m.body, "config": ""} for m in DurableQueue("errors", folder).read(limit=100)]
        runs.append((out, errors, [d for d in once.deliveries() if d["document"] not in ("in/7", "in/7..7")]))
    (out, errors, deliveries), (out_killed, errors_killed, deliveries_killed) = runs
    assert len(out) == limits.HELD_CHILDREN + 10 + 3
    assert out_killed == out[:-1]
    assert errors_killed == errors
    assert [e["messages"][0]["body"]["n"] for e in errors] == [4, 5]
    same = ("document", "status", "destination", "delivery_hash", "operation")
    assert {tuple(d[c] for c in same) for d in deliveries_killed} == {tuple(d[c] for c in same) for d in deliveries}


def test_a_new_version_cannot_stage_what_a_killed_task_had_made(place: Path) -> None:
    """All that the older version's task had begun is in doubt; what it had not begun goes on."""
    once = Once(place)
    once.put(1, 2, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskNotes, "sync", _interrupt_at(3, TaskNotes.sync))
        with pytest.raises(Interrupted):
            once.run()
    once.plan = Plan("once", version=2, strategy="at-most-once")
    node = once.plan.source("from_in", Queue("in", place)).step("see", Witness(place).see)
    node.destination("to_out", ToQueue("out", place), backoff=0)
    migrate(state_root(once.plan, once.state), once.plan, 1)
    assert once.run().exit == 3
    assert once.in_doubt() == [("in/1..3", "to_out")]
    assert set(once.seen()) == {1, 2}
    assert once.status()["balanced"]


def _interrupt_at(number: int, sync: Any) -> Any:
    """Return ``sync`` that interrupts the run after its call of this number."""
    calls = []

    def synced(notes: TaskNotes) -> None:
        sync(notes)
        calls.append(1)
        if len(calls) == number:
            raise Interrupted

    return synced


@pytest.mark.rule("once.killed")
def test_a_run_that_ends_between_two_messages_goes_on_there(place: Path) -> None:
    """The next driver stages what the task had finished, and runs what no step has seen."""
    once = Once(place)
    once.put(*range(1, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskNotes, "sync", _interrupt_at(5, TaskNotes.sync))
        with pytest.raises(Interrupted):
            once.run()
    assert set(once.seen()) == {1, 2, 3}
    assert once.run().exit == 3
    assert once.in_doubt() == [("in/4..4", "to_out")]
    assert once.values() == [1, 2, 3, 5, 6, 7]
    assert set(once.seen().values()) == {1}
    assert once.status()["balanced"]


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
    assert once.values() == [1, 2, 3, 4, 6, 5]
    assert once.status()["balanced"]


def test_a_range_that_dies_again_is_in_doubt_again(place: Path) -> None:
    once = Once(place)
    once.put(*range(1, 7))
    once.fail(5, "kill")
    for _ in range(2):
        once.run(runner=InProcess(fork=True))
        assert once.in_doubt() == [("in/5..5", "to_out")]
        assert once.status()["balanced"]
        resolve(once.plan, "pending", state=once.state)
    once.mend(5)
    assert once.run().exit == 0
    assert once.values() == [1, 2, 3, 4, 6, 5]
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
    assert once.in_doubt() == [("in/2..2", "to_out")]
    once.into.trim(0, force=True)
    resolve(once.plan, "pending", state=once.state)
    assert once.run().exit == 0
    assert once.values() == [1, 4, 5, 6, 3]
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
    retry(once.plan, state=once.state, document="in/5..5", force=True)
    assert once.run().exit == 0
    assert once.values() == [1, 2, 3, 4, 6, 5]
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
        once.run(observer=Until(3, "commit"))
    once.mend(5)
    once.plan = Plan("once", version=2, strategy="at-most-once")
    node = once.plan.source("from_in", Queue("in", place)).step("see", Witness(place).see)
    node.destination("to_out", ToQueue("out", place), backoff=0)
    root = state_root(once.plan, once.state)
    migrate(root, once.plan, 1)
    once.run()
    assert once.in_doubt() == [("in/5..5", "to_out")]
    resolve(once.plan, "pending", state=once.state)
    assert once.run().exit == 0
    assert sorted(once.values()) == list(range(1, 13))
    assert {n for n, times in once.seen().items() if times > 1} == {5}


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
    assert row["document"] == "a/5..5&b/5..5"
    (place / "fate-5").unlink()
    resolve(plan, "pending", state=place / "state")
    assert run_plan(plan, place / "state").exit == 0
    assert [m.body["n"] for m in DurableQueue("out", place).read(limit=100)] == [1, 2, 3, 4, 7, 6, 5]


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
    plan = Plan("p", checkpoint=2)
    plan.source("docs", Memory([{"id": "a"}])).destination("out", ToQueue("out", place))
    assert "checkpoint=2: it goes with strategy='at-most-once'." in findings(plan)
    plan = Plan("p", strategy="at-most-once", checkpoint=0)
    plan.source("a", Queue("a", place)).destination("out", ToQueue("out", place))
    assert "checkpoint=0: give how many entries may be in doubt after a kill, from 1." in findings(plan)
    plan = Plan("p", strategy="exactly-twice")  # type: ignore[arg-type]
    plan.source("a", Queue("a", place)).destination("out", ToQueue("out", place))
    assert "strategy='exactly-twice': give 'at-most-once', or leave it out." in findings(plan)


@pytest.mark.rule("once.spark")
def test_a_task_that_is_started_again(place: Path) -> None:
    """It returns what it had returned; if it left nothing, what its notes say; after its wave it does not begin."""
    runs = []

    def run(notes: TaskNotes) -> Staged:
        runs.append(1)
        return NOTHING_STAGED._replace(entries=7)

    def die(notes: TaskNotes) -> Staged:
        notes.add(11)
        notes.sync()
        notes.add(12)
        raise KeyboardInterrupt

    def rebuild(notes: Iterator[Any]) -> Staged:
        runs.append(2)
        return NOTHING_STAGED._replace(killed=KilledTask(*notes))

    (place / "open").touch()
    assert (
        run_once(place, 0, run, rebuild)
        == run_once(place, 0, run, rebuild)
        == kept_result(place, 0, rebuild)
        == NOTHING_STAGED._replace(entries=7)
    )
    with pytest.raises(KeyboardInterrupt):
        run_once(place, 1, die, rebuild)
    assert run_once(place, 1, run, rebuild) == kept_result(place, 1, rebuild)
    assert kept_result(place, 1, rebuild) == NOTHING_STAGED._replace(killed=KilledTask(11))
    assert kept_result(place, 2, rebuild) is None
    assert run_once(place, 2, run, rebuild).killed is not None, "the next driver was told that it had not begun"
    with pytest.raises(FileNotFoundError):
        run_once(place / "gone", 3, run, rebuild)
    assert kept_result(place / "gone", 3, rebuild) == IN_DOUBT
    assert runs == [1, 2, 2]


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
    assert once.values() == [1, 2, 3, 4, 6, *([7] if again else [5])]
    assert once.status()["balanced"]
