"""Deliver: destinations that are down, wrong, or hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.errors import Misconfigured, Unavailable
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support.delivering import HUNG_S, beside_a_hanging_one, by_id, down, kept, sizes
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld, Watch, run_plan
from tests.support.recorder import Recorder

GUARANTEES = ["exactly-once", "at-least-once", "at-most-once"]


# --- the whole destination ------------------------------------------------------------------------------

UNREACHABLE: dict[str, Callable[[], Exception]] = {
    "ConnectionError": lambda: ConnectionError("refused"),
    "TimeoutError": lambda: TimeoutError("no answer"),
    "TransientError": lambda: Unavailable("429"),
}


def test_a_reason_that_ends_with_a_full_stop_is_quoted_with_one(place: Path) -> None:
    def refuse() -> None:
        raise ConnectionError("it restarts.")

    trial = PlanWorld(place).build(out=kept(place, "at-least-once", refuse=refuse))
    trial.put("a")
    watch = Watch()
    trial.run(wait=0, observer=watch)
    assert any("it restarts. Its documents are kept" in message for message in watch.messages)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("where", ["check", "answer"])
def test_a_destination_that_is_down_costs_no_attempt(place: Path, guarantee: str, where: str) -> None:
    """All its rows stay owed, exit 4, in words; when it is back they go, as first attempts."""
    flag = place / "down"
    flag.touch()

    def refuse() -> None:
        if flag.exists():
            raise ConnectionError("refused")

    out = kept(place, guarantee, refuse=refuse if where == "check" else None)
    trial = PlanWorld(place).build(out=out, answer=down(flag), guarantee=guarantee, batch=2)
    trial.put("a", "b", "c", "d")
    watch = Watch()
    summary = trial.run(wait=0, observer=watch)
    assert (summary.exit, summary.pending, summary.failed) == (4, 4, 0)
    assert trial.counts() == {"pending": 4}
    assert {r["attempt"] for r in rows(trial.root, "outbox")} == {0}
    assert len(out.calls()) <= 1, "after the first chunk it is left alone"
    why = "refused" if where == "check" else "no shard is there"
    assert any("destination out" in m and why in m and "Its documents are kept" in m for m in watch.messages)
    flag.unlink()
    out.forget()
    assert trial.run().exit == 0
    assert out.counted() == dict.fromkeys("abcd", 1)
    assert {line["attempt"] for line in out.lines()} == {1}


@pytest.mark.parametrize("error", UNREACHABLE)
@pytest.mark.parametrize("where", ["check", "open", "write"])
def test_what_it_raises_may_speak_for_the_whole_destination(place: Path, error: str, where: str) -> None:
    """Wherever it is raised: no attempt is spent. Of ``write`` it is believed once nothing passes in halves either."""

    def fail(*_: object) -> None:
        raise UNREACHABLE[error]()

    out = kept(place, "at-least-once", refuse=fail if where == "check" else None)
    if where == "open":
        out.open = fail  # type: ignore[method-assign]
    if where == "write":
        out.before = fail
    trial = PlanWorld(place).build(out=out)
    trial.put("a", "b", "c", "d")
    summary = trial.run(wait=0)
    assert (summary.exit, summary.pending) == (4, 4)
    assert sizes(out) == ([4, 4, 2, 1, 1, 2, 1, 1] if where == "write" else [])
    assert {r["attempt"] for r in rows(trial.root, "outbox")} == {0}
    assert trial.counts() == {"pending": 4}


@pytest.mark.parametrize("where", ["check", "open", "write", "outcome"])
def test_a_destination_that_is_wrong_is_named_and_the_others_go_on(place: Path, where: str) -> None:
    """A person must mend it: it is not tried again in this run, its rows stay owed, the others get theirs."""

    def fail(*_: object) -> None:
        raise Misconfigured("there is no such index")

    plan = Plan("two", 1)
    wrong = Recorder(place / "wrong.jsonl", refuse=fail if where == "check" else None)
    if where == "open":
        wrong.open = fail  # type: ignore[method-assign]
    if where == "write":
        wrong.before = fail
    if where == "outcome":
        wrong.answer = lambda d: Outcome.misconfigured("there is no such index")
    right = Recorder(place / "right.jsonl")
    for name, out in (("wrong", wrong), ("right", right)):
        documents = [{"id": f"{name}{i}"} for i in range(3)]
        plan.source(name, Memory(documents)).destination(f"to-{name}", out)
    watch = Watch()
    summary = run_plan(plan, place / "state", observer=watch)
    assert (summary.exit, summary.pending, summary.failed) == (4, 3, 0)
    assert right.counted() == dict.fromkeys(["right0", "right1", "right2"], 1)
    told = [m for m in watch.messages if "there is no such index" in m]
    assert any(m.startswith("destination to-wrong: ") and "fix it and run again" in m for m in told)
    assert sizes(wrong) == ([] if where in ("check", "open") else [3, 3, 1, 2, 1, 1])


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


SAYS: dict[str, tuple[BaseException, str]] = {
    "no words": (Unspeakable(), "Unspeakable: (a Unspeakable that cannot say why)"),
    "no text": (ValueError("caf\udce9"), r"ValueError: caf\udce9"),
    "the end of the program": (SystemExit(0), "it raised SystemExit: 0"),
}


@pytest.mark.parametrize("where", ["check", "open"])
@pytest.mark.parametrize("says", SAYS)
def test_whatever_a_destination_says_can_be_told(trial: PlanWorld, where: str, says: str) -> None:
    """Its rows stay owed, and the reason is text that a terminal and a file can hold."""
    error, told = SAYS[says]

    def fail(*_: object) -> None:
        raise error

    if where == "check":
        trial.out().refuse = fail
    else:
        trial.out().open = fail  # type: ignore[method-assign]
    trial.put("a")
    watch = Watch()
    summary = trial.run(wait=0, observer=watch)
    assert (summary.exit, summary.pending) == (4, 1)
    assert any(told in m for m in watch.messages), watch.messages
    assert all(m.encode() for m in watch.messages)


def test_a_destination_that_comes_back_within_the_wait_gets_its_rows(place: Path) -> None:
    """The circuit opens, and is probed again: the same run finishes."""
    flag = place / "down"
    flag.touch()
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        flag.unlink(missing_ok=True)
        time.sleep(min(seconds, 1.2))

    trial = PlanWorld(place).build(answer=down(flag))
    trial.put("a", "b")
    assert trial.run(sleep=nap).exit == 0
    assert trial.out().counted() == {"a": 1, "b": 1}
    assert len(naps) == 1
    assert 0 < naps[0] <= limits.BACKOFF_FIRST_S


def test_a_destination_that_is_not_in_the_plan_any_more(place: Path) -> None:
    """Its rows wait, and the run says for what."""
    plan = Plan("gone", 1)
    plan.source("docs", Memory([{"id": "a"}])).destination(
        "old", Recorder(place / "old", by_id(a=Outcome.transient("x")))
    )
    run_plan(plan, place / "state", wait=0)
    plan = Plan("gone", 1)
    plan.source("docs", Memory([{"id": "a"}])).destination("new", Recorder(place / "new"))
    watch = Watch()
    summary = run_plan(plan, place / "state", observer=watch, wait=0, checked=False)
    assert summary.exit == 4
    assert any("destination old is not in the plan any more, 1 row waits for it" in m for m in watch.messages)


# --- hanging --------------------------------------------------------------------------------------------


@pytest.mark.rule("destination.at-most-once", "destination.hangs")
@pytest.mark.parametrize(
    "guarantee",
    ["at-most-once", pytest.param("at-least-once", marks=pytest.mark.slow)],  # test_deliver_spark has it too
)
def test_a_destination_that_hangs_is_given_up(place: Path, guarantee: str) -> None:
    """After ``send_timeout=`` its chunk has no result: owed, or unknown; the others were not delayed."""
    seconds, healthy, summary = beside_a_hanging_one(place, InProcess(), guarantee)
    assert seconds < HUNG_S
    assert len(healthy.counted()) == 600
    assert summary.exit == 4
    lanes = 1  # of two slots one is left for the other destination
    assert (summary.pending, summary.in_doubt) == (
        (600, 0) if guarantee == "at-least-once" else (600 - 50 * lanes, 50 * lanes)
    )


def test_a_check_that_hangs_is_given_up(place: Path) -> None:
    """It is down, as far as we can tell."""
    out = kept(place, "at-least-once", refuse=lambda: time.sleep(3600))
    trial = PlanWorld(place).build(out=out, send_timeout=2)
    trial.put("a")
    began = time.monotonic()
    summary = trial.run(wait=0)
    assert time.monotonic() - began < 1800
    assert (summary.exit, summary.pending) == (4, 1)
    assert any("no answer within 2 s" in m for m in summary.messages)


# --- lanes and pace -------------------------------------------------------------------------------------


def refused(delivery: Delivery) -> Outcome:
    return Outcome.permanent("no such index") if delivery.id != "d0001" else Outcome.ok()


def test_a_destination_that_refuses_everything_is_stopped(trial: PlanWorld) -> None:
    """Every row of five chunks in a row, a thousand rows: it is the destination's trouble; the rest stays owed."""
    trial.build(answer=refused, batch=250)
    trial.put(*(f"d{n:04}" for n in range(6000)))
    summary = trial.run()
    assert summary.exit == 4
    counts = trial.counts()
    assert counts["delivered"] == 1
    assert counts["failed"] >= 1000
    assert counts["pending"] == 5999 - counts["failed"] > 0
    [message] = [m for m in summary.messages if "refused every row" in m]
    assert message.startswith(
        "destination out: it refused every row of 5 chunks in a row: no such index (once it is fixed, "
    )
