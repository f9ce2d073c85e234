"""Deliver: a chunk that fails as if the whole destination did, although `check` succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, DestinationContext, Guarantee, Outcome
from ferryman.engine.deliver.turn import Hung, ProcessCaller
from ferryman.errors import Misconfigured, Unavailable
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support.delivering import HUNG_S, hang, kept, sizes
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder
from tests.support.sleeper import Sleeper

WAYS: dict[str, Callable[[], Exception]] = {
    "reset": lambda: ConnectionResetError("Connection reset by peer"),
    "time-out": lambda: TimeoutError("no answer"),
    "403": lambda: Misconfigured("answered 403 Forbidden"),
    "401": lambda: Misconfigured("answered 401 Unauthorized"),
    "lost": lambda: Unavailable("the server ended the session"),
}
SPENDING = ["reset", "time-out", "403"]
"""Ways that spend attempts; what is declared unavailable is retried with patience."""


def breaks_at(way: str, *ids: str) -> Callable[[list[Delivery]], None]:
    """Raise for each chunk with one of these rows, as if the destination were away."""

    def before(chunk: list[Delivery]) -> None:
        if any(d.id in ids for d in chunk):
            raise WAYS[way]()

    return before


def breaks_above(most: int) -> Callable[[list[Delivery]], None]:
    """Raise for each chunk with more rows than that."""

    def before(chunk: list[Delivery]) -> None:
        if len(chunk) > most:
            raise ConnectionResetError("Connection reset by peer")

    return before


def names(n: int) -> list[str]:
    return [f"d{i:02}" for i in range(n)]


@pytest.mark.rule("destination.doubted")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("way", SPENDING)
@pytest.mark.parametrize(
    ("bad", "batch"), [(["d00"], 8), (["d13"], 8), (["d02", "d03", "d15"], 8), (["d05"], 100), (["d00", "d09"], 1)]
)
def test_a_row_that_breaks_the_connection_fails_alone(
    place: Path, guarantee: str, way: str, bad: list[str], batch: int
) -> None:
    """In one run that waits for nothing: all others arrive, each once, with their first attempt."""
    out = kept(place, guarantee, before=breaks_at(way, *bad))
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, batch=batch, attempts=1)
    trial.put(*names(16))
    summary = trial.run(wait=0)
    assert out.counted() == dict.fromkeys(sorted({*names(16)} - {*bad}), 1)
    assert trial.counts() == {"delivered": 16 - len(bad), "failed": len(bad)}
    assert (summary.exit, {line["attempt"] for line in out.lines()}) == (3, {1})
    for id in bad:
        message = trial.history(id)[-1]["message"]
        assert message.startswith("each time this is sent, while others are accepted: "), message
        assert str(WAYS[way]()) in message


@pytest.mark.rule("destination.doubted")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("way", ["reset", "403"])
@pytest.mark.parametrize(
    ("bad", "batch", "slots"),
    [(["d15"], 1, 1), (["d15"], 5, 1), (["d14", "d15"], 7, 1), (["e0"], 1, 3), (["e0", "e1"], 8, 3)],
)
def test_the_others_may_have_been_accepted_before(
    place: Path, guarantee: str, way: str, bad: list[str], batch: int, slots: int
) -> None:
    """In the pass in which its chunk failed first: by the same lane, or by another one. Nothing is left to compare it
    with then, and it fails nevertheless."""
    out = kept(place, guarantee, before=breaks_at(way, *bad))
    plan = Plan("doubted", version=1)
    documents = [*names(16), *bad] if slots == 1 else names(16)
    first = plan.source("docs", Memory([{"id": id, "raw": b"x"} for id in dict.fromkeys(documents)]))
    sources = [first] if slots == 1 else [first, plan.source("more", Memory([{"id": id, "raw": b"x"} for id in bad]))]
    plan.destination("out", out, after=sources, guarantee=guarantee, batch=batch, attempts=1)
    summary = run_plan(plan, place / "state", runner=InProcess(slots=slots), wait=0)
    assert (summary.exit, summary.failed, summary.pending) == (3, len(bad), 0), summary
    assert out.counted() == dict.fromkeys(sorted({*names(16)} - {*bad}), 1)


@pytest.mark.rule("destination.doubted")
def test_it_has_its_attempts_and_their_waits(place: Path) -> None:
    """Each is spent when it was sent alone again."""
    out = kept(place, "at-least-once", before=breaks_at("reset", "d03"))
    trial = PlanWorld(place).build(out=out, batch=8, attempts=3)
    trial.put(*names(8))
    assert trial.run(wait=100).exit == 3
    assert trial.statuses("d03") == ["ERROR", "ERROR", "DEAD"]
    assert trial.counts() == {"delivered": 7, "failed": 1}


def test_what_a_destination_declares_unavailable_is_retried_with_patience(place: Path) -> None:
    """Alone: it does not hold up the others, and is pending as after any transient error."""
    out = kept(place, "at-least-once", before=breaks_at("lost", "d03"))
    trial = PlanWorld(place).build(out=out, batch=8)
    trial.put(*names(8))
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"delivered": 7, "pending": 1}
    assert set(trial.statuses("d03")) == {"ERROR"}


@pytest.mark.rule("destination.doubted")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_where_nothing_passes_it_is_the_destination(place: Path, guarantee: str, way: str, batch: int) -> None:
    """No attempt is spent, the run ends with 4, and it is not sent to for ever."""
    out = kept(place, guarantee, before=breaks_at(way, *names(64)))
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, batch=batch)
    trial.put(*names(64))
    summary = trial.run(wait=0)
    assert (summary.exit, trial.counts()) == (4, {"pending": 64})
    assert {r["attempt"] for r in rows(trial.root, "outbox")} == {0}
    assert len(sizes(out)) <= 2 * (1 + limits.DOUBTED_SENDS)
    word = "fix it and run again" if way in ("401", "403") else "run again when it is back"
    assert any(m.startswith("destination out: ") and word in m for m in summary.messages)


@pytest.mark.rule("destination.doubted")
def test_a_check_that_fails_is_believed(place: Path) -> None:
    """What was sent once is not sent again."""
    broken = place / "broken"

    def before(chunk: list[Delivery]) -> None:
        broken.touch()
        raise ConnectionResetError("reset")

    def refuse() -> None:
        if broken.exists():
            raise ConnectionRefusedError("refused")

    out = kept(place, "at-least-once", before=before, refuse=refuse)
    trial = PlanWorld(place).build(out=out)
    trial.put(*names(8))
    assert trial.run(wait=0).exit == 4
    assert (sizes(out), trial.counts()) == ([8], {"pending": 8})


@pytest.mark.rule("destination.takes")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_chunks_are_cut_to_what_the_destination_takes(place: Path, guarantee: str) -> None:
    """Everything arrives in one run, and the next run begins with chunks that it takes."""
    out = kept(place, guarantee, before=breaks_above(5))
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, batch=40)
    trial.put(*names(40), text="x" * 100)
    assert trial.run(wait=0).exit == 0
    assert out.counted() == dict.fromkeys(names(40), 1)
    before = len(sizes(out))
    trial.put(*(f"e{i}" for i in range(40)), text="x" * 100)
    assert trial.run(wait=0).exit == 0
    assert max(sizes(out)[before:]) <= 5
    assert trial.counts() == {"delivered": 80}


@pytest.mark.rule("destination.takes")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_connections_that_break_by_chance_cut_no_chunks(place: Path, guarantee: str) -> None:
    """Not the same chunk twice, but one in the pass that begins the doubt, and another one in the next."""
    calls = place / "sends"

    def before(chunk: list[Delivery]) -> None:
        with calls.open("ab") as file:
            file.write(b".")
        if calls.stat().st_size in (2, 5, 9):
            raise ConnectionResetError("Connection reset by peer")

    out = kept(place, guarantee, before=before)
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, batch=8)
    trial.put(*names(64), text="x" * 100)
    assert trial.run(wait=0).exit == 0
    assert out.counted() == dict.fromkeys(names(64), 1)
    done = len(sizes(out))
    trial.put(*(f"e{i}" for i in range(16)), text="x" * 100)
    assert trial.run(wait=0).exit == 0
    assert sizes(out)[done:] == [8, 8]


@pytest.mark.rule("destination.doubted", "destination.at-most-once")
def test_under_at_most_once_a_row_that_is_refused_as_if_all_were_fails_alone(place: Path) -> None:
    """The destination says that nothing took effect, so it may be sent again."""

    def answer(delivery: Delivery) -> Outcome:
        return Outcome.misconfigured("answered 403") if delivery.id == "d03" else Outcome.ok()

    out = kept(place, "at-most-once", answer=answer)
    trial = PlanWorld(place).build(out=out, batch=4, attempts=1)
    trial.put(*names(12))
    assert trial.run(wait=0).exit == 3
    assert trial.counts() == {"delivered": 11, "failed": 1}


@pytest.mark.rule("destination.doubted", "destination.at-most-once")
def test_under_at_most_once_rows_whose_connection_broke_are_in_doubt(place: Path) -> None:
    """They are not sent again; once the destination is doubted, the next one is in doubt alone."""
    out = kept(place, "at-most-once", before=breaks_at("reset", "d01", "d06"))
    trial = PlanWorld(place).build(out=out, batch=4)
    trial.put(*names(12))
    trial.run()
    assert trial.counts() == {"delivered": 7, "in_doubt": 5}
    sent = [line["rows"] for line in out.calls()]
    assert sum(sent) == 12


@pytest.mark.slow
@pytest.mark.rule("destination.doubted", "destination.hangs")
def test_a_row_that_makes_the_destination_hang_fails_alone(place: Path) -> None:
    def before(chunk: list[Delivery]) -> None:
        if any(d.id == "d03" for d in chunk):
            hang(chunk)

    out = kept(place, "at-least-once", before=before)
    trial = PlanWorld(place).build(out=out, batch=32, attempts=1, send_timeout=HUNG_S)
    trial.put(*names(32))
    assert trial.run(wait=0).exit == 3
    assert trial.counts() == {"delivered": 31, "failed": 1}


def test_an_error_that_passes_spends_nothing(place: Path) -> None:
    """The connection breaks once: the chunk is sent again at once, whole."""
    flag = place / "once"

    def before(chunk: list[Delivery]) -> Any:
        if not flag.exists():
            flag.touch()
            raise ConnectionResetError("reset")

    out = kept(place, "at-least-once", before=before)
    trial = PlanWorld(place).build(out=out, batch=8)
    trial.put(*names(8))
    assert trial.run(wait=0).exit == 0
    assert sizes(out) == [8, 8]
    assert {line["attempt"] for line in out.lines()} == {1}


class Closing(Recorder):
    """Takes long to be closed, once: it ends after the engine has given it up."""

    def close(self) -> None:
        super().close()
        flag = Path(self.path).with_name("closed")
        if not flag.exists():
            flag.touch()
            time.sleep(1.5)


@pytest.mark.rule("destination.doubted", "destination.given-up")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_no_answer_of_a_call_that_was_given_up_is_taken_for_another_ones(place: Path, guarantee: str) -> None:
    """The connection is broken, and closing it hangs: whatever is called next has its own answer."""

    def answer(delivery: Delivery) -> Outcome:
        return Outcome.permanent("no") if delivery.id == "d01" else Outcome.ok()

    out = Closing(
        place / "out.jsonl",
        answer,
        before=breaks_at("reset", "d03"),
        transactional=guarantee == "exactly-once",
    )
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, batch=8, attempts=1, send_timeout=1)
    trial.put(*names(16))
    trial.run(**Sleeper().options())
    assert (place / "closed").exists()
    assert trial.counts() == {"delivered": 14, "failed": 2}
    assert trial.history("d01")[-1]["message"] == "no"
    assert out.counted() == dict.fromkeys(sorted({*names(16)} - {"d01", "d03"}), 1)


class HangsInHalves(Recorder):
    """Breaks the connection of a chunk, then hangs with its second half."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        seen = Path(self.path).with_name("seen")
        if not seen.exists() and chunk[0].id == "d04" and len(chunk) == 4:
            seen.touch()
            hang(chunk)
        return super().write(chunk)


@pytest.mark.rule("destination.doubted")
def test_what_was_accepted_before_a_half_hangs_counts(place: Path) -> None:
    """It is not sent again, though nobody was killed."""
    out = HangsInHalves(place / "out.jsonl", before=breaks_above(4))
    trial = PlanWorld(place).build(out=out, batch=8, send_timeout=1)
    trial.put(*names(8))
    trial.run(**Sleeper().options())
    assert (place / "seen").exists()
    assert trial.counts() == {"delivered": 8}
    assert out.counted() == dict.fromkeys(names(8), 1)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_a_destination_is_closed_as_often_as_it_is_opened(place: Path, guarantee: str) -> None:
    """Also where a lane stops, and where it is opened again within one; else each pass would leave a connection."""
    out = kept(place, guarantee, before=breaks_at("reset", "d03"))
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, batch=4, attempts=2, backoff=0)
    trial.put(*names(8))
    trial.run(**Sleeper().options())
    calls = [note["called"] for note in out.notes() if note.get("called") in ("open", "close")]
    assert calls == ["open", "close"] * (len(calls) // 2)
    assert len(calls) > 2


def test_a_new_child_opens_a_destination_once(place: Path) -> None:
    """Also if the first call after the death of the one before opens it."""
    out = Closing(place / "out.jsonl")
    context = DestinationContext("p", 1, "out", 1, Guarantee.AT_LEAST_ONCE)
    caller = ProcessCaller(out)
    caller.call(out.open, context, timeout_s=100)
    with pytest.raises(Hung):
        caller.call(out.close, timeout_s=0.5)
    caller.call(out.open, context, timeout_s=100)
    assert caller.call(out.write, [Delivery("a", "0" * 32, 1)], timeout_s=100) == [Outcome.ok()]
    caller.end()
    assert [note["called"] for note in out.notes() if "called" in note] == ["open", "close", "open", "write"]
