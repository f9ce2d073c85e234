"""Deliver: chunks, what a destination may answer, trouble, order, pace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Effect, Outcome
from ferryman.errors import Misconfigured, PermanentError, TransientError, Unavailable
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.recorder import Recorder
from tests.support.trial import Trial, Watch, run_plan

GUARANTEES = ["exactly-once", "at-least-once", "at-most-once"]
KIB = 1024


def kept(place: Path, guarantee: str, **options: Any) -> Recorder:
    """A recorder that can keep this guarantee."""
    effect = Effect.POTENT if guarantee == "at-most-once" else Effect.IDEMPOTENT
    return Recorder(place / "out.jsonl", effect=effect, transactional=guarantee == "exactly-once", **options)


def sizes(out: Recorder) -> list[int]:
    """Rows of each chunk."""
    return [call["rows"] for call in out.calls()]


# --- chunks ---------------------------------------------------------------------------------------------


@pytest.mark.rule("destination.rows")
@pytest.mark.parametrize(
    ("documents", "batch", "chunks"), [(1, 3, [1]), (3, 3, [3]), (7, 3, [3, 3, 1]), (7, 1, [1] * 7), (7, 100, [7])]
)
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_a_chunk_closes_at_so_many_rows(
    place: Path, documents: int, batch: int, chunks: list[int], guarantee: str
) -> None:
    """The last one may be shorter; the order is the outbox's."""
    trial = Trial(place).build(out=kept(place, guarantee), batch=batch)
    trial.put(*(f"d{i}" for i in range(documents)))
    trial.run()
    assert sizes(trial.out) == chunks
    assert trial.out.arrived() == [f"d{i}" for i in range(documents)]


@pytest.mark.rule("destination.bytes")
@pytest.mark.parametrize(
    ("bytes_each", "limit", "chunks"),
    [(10, 1000, [6]), (10, 35, [3, 3]), (10, 1, [1] * 6), (1000, 10, [1] * 6)],
)
def test_a_chunk_closes_at_so_many_bytes(trial: Trial, bytes_each: int, limit: int, chunks: list[int]) -> None:
    """Raw bytes and fields count; a row larger than that goes alone."""
    trial.build(batch_bytes=limit)
    trial.put(*(f"d{i}" for i in range(6)), text="x" * (bytes_each - 2))  # and {} for the fields
    trial.run()
    assert sizes(trial.out) == chunks


@pytest.mark.rule("destination.calls")
def test_open_and_close_stand_around_the_chunks_of_a_task(trial: Trial) -> None:
    """``check`` in the driver first; then once a task each."""
    trial.build(batch=1)
    trial.put("a", "b", "c")
    trial.run()
    called = [line["called"] for line in trial.out._lines() if "called" in line]
    assert called == ["check", "open", "write", "write", "write", "close"]
    trial.run()
    assert len(trial.out.calls("check")) == 1, "who has nothing to get is not asked"


def test_a_delivery_has_all_that_is_promised(trial: Trial) -> None:
    """Names and types that other people's programs are written against."""
    trial.documents.append({"id": "a", "raw": b"caf\xc3\xa9 \xff", "title": "A", "n": 1})
    trial.run()
    [line] = trial.out.lines()
    [event] = trial.history("a")
    assert line["hash"] == event["delivery_hash"]
    assert line["version"] == event["version"]
    assert (line["id"], line["op"], line["source"], line["attempt"]) == ("a", "upsert", "docs", 1)
    assert line["fields"] == {"title": "A", "n": 1}
    assert line["text"] == "café \N{REPLACEMENT CHARACTER}"
    assert line["seq"] > 0


# --- outcomes -------------------------------------------------------------------------------------------


def by_id(**answers: Outcome | None) -> Callable[[Delivery], Outcome | None]:
    return lambda d: answers.get(d.id, Outcome.ok())


@pytest.mark.rule("destination.outcomes")
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_each_outcome_ends_in_its_status(place: Path, guarantee: str) -> None:
    """Row by row, within one chunk; the reason is kept."""
    answer = by_id(
        stale=Outcome.stale(), permanent=Outcome.permanent("too long"), transient=Outcome.transient("locked")
    )
    trial = Trial(place).build(out=kept(place, guarantee), answer=answer, guarantee=guarantee, backoff=NOT_SOON_S)
    trial.put("ok", "stale", "permanent", "transient")
    assert trial.run(wait=0).exit == 4
    found = {d["document"]: (d["status"], d["message"], d["attempt"]) for d in trial.docs()}
    assert found == {
        "ok": ("INDEXED", None, 1),
        "stale": ("INDEXED", "stale: the destination has something newer", 1),
        "permanent": ("DEAD", "too long", 1),
        "transient": ("ERROR", "locked", 1),
    }


@pytest.mark.rule("destination.transient")
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_transient_outcome_is_tried_again_until_the_last(place: Path, guarantee: str) -> None:
    """Also under at-most-once: it is the destination's word that nothing took effect."""
    trial = Trial(place).build(
        out=kept(place, guarantee), answer=by_id(a=Outcome.transient("locked")), guarantee=guarantee, attempts=3
    )
    trial.put("a", "b")
    assert trial.run().exit == 3
    assert trial.statuses("a") == ["ERROR", "ERROR", "DEAD"]
    assert trial.history("a")[-1]["message"] == "locked (attempt 3, the last)"
    assert [line["attempt"] for line in trial.out.lines() if line["id"] == "a"] == [1, 2, 3]
    assert trial.out.counted() == {"b": 1}
    trial.run()
    assert trial.counts() == {"delivered": 1, "failed": 1}


MISSING: dict[str, Callable[[Delivery], Any]] = {
    "no outcome for one": lambda d: None if d.id == "c" else Outcome.ok(),
    "none at all": lambda d: None,
}


@pytest.mark.rule("destination.missing", "destination.at-most-once")
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("what", MISSING)
def test_a_missing_outcome_is_never_ok(place: Path, guarantee: str, what: str) -> None:
    """Unknown: sent again where that is allowed, else reported."""
    trial = Trial(place).build(out=kept(place, guarantee), answer=MISSING[what], guarantee=guarantee, attempts=2)
    trial.put("a", "b", "c")
    trial.run()
    silent = 1 if what == "no outcome for one" else 3
    last = "in_doubt" if guarantee == "at-most-once" else "failed"
    assert trial.counts()[last] == silent
    assert "write gave no outcome" in trial.history("c")[-1]["message"]
    times = len([line for line in trial.out.lines() if line["id"] == "c"])
    assert times == (1 if guarantee == "at-most-once" else 2)


class Odd(Recorder):
    """Answers a whole chunk in a way of its own."""

    def __init__(self, path: Path, says: Callable[[list[Delivery]], Any], **options: Any) -> None:
        super().__init__(path, **options)
        self.says = says

    def write(self, chunk: list[Delivery]) -> Any:
        super().write(chunk)
        return self.says(chunk)


ODD: dict[str, tuple[Callable[[list[Delivery]], Any], dict[str, int]]] = {
    "a generator": (lambda chunk: (Outcome.ok() for _ in chunk), {"delivered": 3}),
    "a tuple": (lambda chunk: tuple(Outcome.ok() for _ in chunk), {"delivered": 3}),
    "nothing": (lambda chunk: None, {"failed": 3}),
    "an empty list": (lambda chunk: [], {"failed": 3}),
    "truths": (lambda chunk: [True] * len(chunk), {"failed": 3}),
    "words": (lambda chunk: ["ok"] * len(chunk), {"failed": 3}),
    "more than was asked": (lambda chunk: [Outcome.ok()] * (len(chunk) + 2), {"delivered": 3}),
    "a reason that is an exception": (lambda chunk: [Outcome.permanent(ValueError("x"))] * len(chunk), {"failed": 3}),  # type: ignore[arg-type]
    "no reason": (lambda chunk: [Outcome.permanent(None)] * len(chunk), {"failed": 3}),  # type: ignore[arg-type]
    "a reason that is no text": (lambda chunk: [Outcome.permanent("caf\udce9")] * len(chunk), {"failed": 3}),
    "a reason of a megabyte": (lambda chunk: [Outcome.permanent("x" * KIB * KIB)] * len(chunk), {"failed": 3}),
    "a kind of its own": (lambda chunk: [Outcome("maybe", "who knows")] * len(chunk), {"failed": 3}),
}


@pytest.mark.rule("destination.missing")
@pytest.mark.parametrize("what", ODD)
def test_whatever_a_destination_answers_each_row_gets_its_end(place: Path, what: str) -> None:
    """Other people's destinations may answer anything; only an outcome that says ok is ok."""
    says, counts = ODD[what]
    trial = Trial(place).build(out=Odd(place / "out.jsonl", says), attempts=1)
    trial.put("a", "b", "c")
    trial.run()
    assert trial.counts() == counts


# --- chunks that fail whole -----------------------------------------------------------------------------


def poison(*ids: str, error: type[Exception] = ValueError) -> Callable[[list[Delivery]], None]:
    """Raises for every chunk with one of these in it."""

    def before(chunk: list[Delivery]) -> None:
        if bad := [d.id for d in chunk if d.id in ids]:
            raise error(f"cannot take {', '.join(bad)}")

    return before


@pytest.mark.rule("destination.split")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("bad", [["d0"], ["d7"], ["d3"], ["d2", "d5"], ["d3", "d4"]])
def test_a_chunk_that_raises_is_halved_until_the_bad_row_stands_alone(
    place: Path, guarantee: str, bad: list[str]
) -> None:
    """All others arrive, each once; the bad one has the error."""
    out = kept(place, guarantee, before=poison(*bad))
    trial = Trial(place).build(out=out, guarantee=guarantee, attempts=1)
    ids = [f"d{i}" for i in range(8)]
    trial.put(*ids)
    trial.run()
    assert out.counted() == dict.fromkeys(sorted(set(ids) - set(bad)), 1)
    assert trial.counts() == {"delivered": 8 - len(bad), "failed": len(bad)}
    assert "ValueError: cannot take" in trial.history(bad[0])[0]["message"]
    assert len(sizes(out)) <= 1 + 2 * 3 * len(bad)
    assert sizes(out)[0] == 8


def test_a_permanent_error_for_a_chunk_ends_only_the_row_that_it_is_about(place: Path) -> None:
    """It is not tried again."""
    out = kept(place, "at-least-once", before=poison("d1", error=PermanentError))
    trial = Trial(place).build(out=out, attempts=5)
    trial.put(*(f"d{i}" for i in range(4)))
    trial.run()
    assert trial.statuses("d1") == ["DEAD"]
    assert trial.counts() == {"delivered": 3, "failed": 1}


@pytest.mark.rule("destination.at-most-once")
@pytest.mark.parametrize("error", [ValueError, PermanentError, TransientError, ConnectionError, TimeoutError])
def test_under_at_most_once_a_chunk_that_raises_is_unknown(place: Path, error: type[Exception]) -> None:
    """It is not split, not sent again, and listed with the reason."""
    out = kept(place, "at-most-once", before=poison("d1", error=error))
    trial = Trial(place).build(out=out, batch=4)
    trial.put(*(f"d{i}" for i in range(8)))
    trial.run()
    assert sizes(out) == [4, 4]
    assert trial.counts() == {"delivered": 4, "in_doubt": 4}
    assert "cannot take d1" in trial.docs(status="in_doubt")[0]["message"]
    trial.run()
    assert sizes(out) == [4, 4]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_destination_that_ends_the_program_harms_only_itself(place: Path, end: type[BaseException]) -> None:
    """sys.exit() in other people's code is an error like any other."""
    out = kept(place, "at-least-once", before=poison("d1", error=end))  # type: ignore[arg-type]
    trial = Trial(place).build(out=out, attempts=1)
    trial.put("d0", "d1")
    try:
        trial.run()
    except BaseException as e:
        pytest.fail(f"the run was ended by {e!r}")
    assert trial.counts() == {"delivered": 1, "failed": 1}


# --- the whole destination ------------------------------------------------------------------------------


def down(path: Path) -> Callable[..., Outcome]:
    """Says that it is down, as long as the file is there."""

    def answer(delivery: Delivery) -> Outcome:
        return Outcome.unavailable("no shard is there") if path.exists() else Outcome.ok()

    return answer


UNREACHABLE: dict[str, Callable[[], Exception]] = {
    "ConnectionError": lambda: ConnectionError("refused"),
    "TimeoutError": lambda: TimeoutError("no answer"),
    "TransientError": lambda: Unavailable("429"),
}


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
    trial = Trial(place).build(out=out, answer=down(flag), guarantee=guarantee, batch=2)
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
    """Wherever it is raised: nothing is split, no attempt is spent."""

    def fail(*_: object) -> None:
        raise UNREACHABLE[error]()

    out = kept(place, "at-least-once", refuse=fail if where == "check" else None)
    if where == "open":
        out.open = fail  # type: ignore[method-assign]
    if where == "write":
        out.before = fail
    trial = Trial(place).build(out=out)
    trial.put("a", "b", "c", "d")
    summary = trial.run(wait=0)
    assert (summary.exit, summary.pending) == (4, 4)
    assert sizes(out) == ([4] if where == "write" else [])
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
    assert any(m.startswith("destination to-wrong: ") and "mend it and run again" in m for m in told)
    assert len(wrong.calls()) <= 1


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
def test_whatever_a_destination_says_can_be_told(trial: Trial, where: str, says: str) -> None:
    """Its rows stay owed, and the reason is text that a terminal and a file can hold."""
    error, told = SAYS[says]

    def fail(*_: object) -> None:
        raise error

    if where == "check":
        trial.out.refuse = fail
    else:
        trial.out.open = fail  # type: ignore[method-assign]
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

    trial = Trial(place).build(answer=down(flag))
    trial.put("a", "b")
    assert trial.run(sleep=nap).exit == 0
    assert trial.out.counted() == {"a": 1, "b": 1}
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
    assert any("destination old is not in the plan any more, 1 rows wait for it" in m for m in watch.messages)


# --- hanging --------------------------------------------------------------------------------------------


def hang(chunk: list[Delivery]) -> None:
    time.sleep(60)


def beside_a_hanging_one(place: Path, runner: Any, guarantee: str) -> tuple[float, Recorder, Any]:
    """Seconds until the healthy destination had everything; it; the run's summary."""
    plan = Plan("hangs", 1)
    hanging, healthy = kept(place, guarantee, before=hang), Recorder(place / "healthy.jsonl")
    for name, out in (("hanging", hanging), ("healthy", healthy)):
        documents = [{"id": f"{name}{i:03}"} for i in range(600)]
        plan.source(name, Memory(documents)).destination(f"to-{name}", out, batch=50, attempts=1, send_timeout=4)
    began = time.time()
    summary = run_plan(plan, place / "state", runner=runner, wait=0)
    return Path(healthy.path).stat().st_mtime - began, healthy, summary


@pytest.mark.rule("destination.at-most-once", "destination.hangs")
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_a_destination_that_hangs_is_given_up(place: Path, guarantee: str) -> None:
    """After ``send_timeout=`` its chunk has no result: owed, or unknown; the others were not delayed."""
    seconds, healthy, summary = beside_a_hanging_one(place, InProcess(), guarantee)
    assert seconds < 4
    assert len(healthy.counted()) == 600
    assert summary.exit == 4
    lanes = 1  # of two slots one is left for the other destination
    assert (summary.pending, summary.in_doubt) == (
        (600, 0) if guarantee == "at-least-once" else (600 - 50 * lanes, 50 * lanes)
    )


@pytest.mark.rule("destination.hangs")
@pytest.mark.spark
def test_a_destination_that_hangs_delays_no_other_on_spark(place: Path, spark: Any) -> None:
    """With two slots: it never holds both."""
    run_plan(_warm(place), place / "warm", runner=spark)  # starting Python workers is not what is measured
    began = time.monotonic()
    seconds, healthy, summary = beside_a_hanging_one(place, spark, "at-least-once")
    took = time.monotonic() - began
    assert len(healthy.counted()) == 600
    assert seconds < took - 1, "done before the hanging one was given up"
    assert (summary.exit, summary.pending) == (4, 600)


def _warm(place: Path) -> Plan:
    plan = Plan("warm", 1)
    plan.source("docs", Memory([{"id": "a"}])).destination("out", Recorder(place / "warm.jsonl"))
    return plan


def test_a_check_that_hangs_is_given_up(place: Path) -> None:
    """It is down, as far as we can tell."""
    out = kept(place, "at-least-once", refuse=lambda: time.sleep(60))
    trial = Trial(place).build(out=out, send_timeout=0.3)
    trial.put("a")
    began = time.monotonic()
    summary = trial.run(wait=0)
    assert time.monotonic() - began < 20
    assert (summary.exit, summary.pending) == (4, 1)
    assert any("no answer within 0.3 s" in m for m in summary.messages)


# --- order ----------------------------------------------------------------------------------------------


def in_order(out: Recorder) -> bool:
    """Was no row of an id sent before an older one of it had its end?"""
    seqs: dict[str, list[int]] = {}
    for line in out.lines():
        seqs.setdefault(line["id"], []).append(line["seq"])
    return all(a <= b for found in seqs.values() for a, b in itertools.pairwise(found))


def test_a_newer_version_waits_for_the_older_one(trial: Trial) -> None:
    """The older one is due now, whatever its backoff; the newer one goes when it has ended, no attempt spent."""
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 1 else Outcome.transient("busy"), backoff=NOT_SOON_S)
    trial.put("a", text="one")
    trial.run(wait=0)
    trial.put("a", text="two")
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 1 or d.text() == "two" else Outcome.transient("busy"))
    trial.run(wait=0)
    told = [(line["text"], line["attempt"], line["said"]) for line in trial.out.lines()]
    assert told == [("one", 1, "transient"), ("one", 2, "ok"), ("two", 1, "ok")]
    assert trial.counts() == {"delivered": 1}


@pytest.mark.rule("delete.undelivered", "delete.order")
def test_a_delete_waits_for_the_upsert_before_it(trial: Trial) -> None:
    """Else the upsert would bring back what was deleted."""
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 1 else Outcome.transient("busy"), backoff=NOT_SOON_S)
    trial.put("a", "b")
    trial.run(wait=0)
    trial.drop("a")
    trial.build(answer=lambda d: Outcome.ok())
    trial.run(wait=0)
    assert [line["op"] for line in trial.out.lines() if line["id"] == "a"] == ["upsert", "upsert", "delete"]
    assert in_order(trial.out)


def test_a_dead_or_parked_older_version_holds_nothing(trial: Trial) -> None:
    """It has its end."""
    trial.build(answer=lambda d: Outcome.permanent("no") if d.text() == "one" else Outcome.ok())
    trial.put("a", text="one")
    trial.run()
    trial.put("a", text="two")
    assert trial.run().exit == 0
    assert trial.counts() == {"delivered": 1}


def test_order_holds_while_the_destination_is_down(trial: Trial) -> None:
    """Three versions gather; when it is back they come one after the other."""
    flag = trial.folder / "down"
    flag.touch()
    trial.build(answer=down(flag))
    for text in ("one", "two", "three"):
        trial.put("a", "b", text=text)
        trial.run(wait=0)
    assert trial.counts()["pending"] == 6
    flag.unlink()
    trial.out.forget()
    trial.run()
    for id in "ab":
        assert [line["text"] for line in trial.out.lines() if line["id"] == id] == ["one", "two", "three"]
    assert trial.counts() == {"delivered": 2}


def test_order_holds_after_the_outbox_was_merged(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions of an id may then lie in one file; if the older one fails the newer one is held all the same."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    flag = trial.folder / "down"
    flag.touch()
    trial.build(answer=down(flag), attempts=9)
    for text in ("one", "two", "three"):
        trial.put("a", "b", text=text)
        trial.run(wait=0)
    assert len({r["first_sequence"] for r in rows(trial.root, "outbox")}) == 1, "merged"
    flag.unlink()
    trial.out.forget()
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 2 else Outcome.transient("busy"), attempts=9)
    trial.run()
    assert in_order(trial.out)
    assert trial.counts() == {"delivered": 2}


def three_versions_wait(place: Path, flag: Path, documents: int, slots: int) -> Trial:
    """Each in a wave of its own, none delivered: the destination is down until the flag goes."""
    flag.touch()
    trial = Trial(place).build(answer=down(flag))
    for text in ("one", "two", "three"):
        trial.put(*(f"d{i:03}" for i in range(documents)), text=text)
        trial.run(wait=0, runner=InProcess(slots=slots))
    return trial


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_order_holds_over_several_lanes(place: Path, slots: int) -> None:
    """Files are dealt to lanes; versions of one id may lie in different ones."""
    flag = place / "down"
    trial = three_versions_wait(place, flag, 600, slots)
    flag.unlink()
    trial.out.forget()
    trial.run(runner=InProcess(slots=slots))
    assert in_order(trial.out)
    assert len(trial.out.lines()) == 1800
    assert trial.counts() == {"delivered": 600}


@pytest.mark.parametrize("slots", [1, 2])
def test_order_holds_when_waiting_files_were_merged(place: Path, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    """A merged file carries the number of its first wave, and a new wave's file may hold the same ids."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    flag = place / "down"
    trial = three_versions_wait(place, flag, 40, slots)
    with trial.take() as state:
        assert len(state.outbox.files) == 1, "they were merged"
    flag.unlink()
    trial.out.forget()
    trial.put(*(f"d{i:03}" for i in range(40)), text="four")
    trial.run(runner=InProcess(slots=slots))
    assert in_order(trial.out)
    assert len(trial.out.lines()) == 160
    assert trial.counts() == {"delivered": 40}


# --- lanes and pace -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("single", "lanes"), [(True, 1), (False, 2)])
def test_a_single_writer_has_one_lane(place: Path, single: bool, lanes: int) -> None:
    """However many slots there are; others use them."""
    out = Recorder(place / "out.jsonl", single_writer=single)
    trial = Trial(place).build(out=out, batch=100)
    trial.put(*(f"d{i:03}" for i in range(600)))
    trial.run(runner=InProcess(slots=2))
    assert len(out.calls("open")) == lanes
    assert len(out.counted()) == 600


def test_with_two_destinations_none_gets_the_last_slot(place: Path) -> None:
    """Each has one lane less than there are slots."""
    plan = Plan("two", 1)
    outs = [Recorder(place / f"{i}.jsonl") for i in range(2)]
    for i, out in enumerate(outs):
        plan.source(f"s{i}", Memory([{"id": f"{i}-{j:04}"} for j in range(900)])).destination(f"d{i}", out)
    run_plan(plan, place / "state", runner=InProcess(slots=3))
    assert [len(out.calls("open")) for out in outs] == [2, 2]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_slow_destination_gets_its_time_and_the_rest_stays_owed(place: Path, guarantee: str) -> None:
    """The pass ends with the budget; the next one goes on where it ended; every row once, no attempt spent."""
    out = kept(place, guarantee, before=lambda chunk: time.sleep(0.05))
    trial = Trial(place).build(out=out, batch=1, guarantee=guarantee)
    trial.put(*(f"d{i}" for i in range(12)))
    summary = trial.run(pace_s=0.2)
    assert summary.exit == 0
    assert summary.waves > 1
    assert out.counted() == {f"d{i}": 1 for i in range(12)}
    assert {line["attempt"] for line in out.lines()} == {1}


def test_a_scan_goes_on_beside_a_slow_destination(place: Path) -> None:
    """Its backlog does not hold the waves of a scan: the other destination gets all of its rows meanwhile."""
    plan = Plan("slow", 1)
    slow = Recorder(place / "slow.jsonl", before=lambda chunk: time.sleep(0.1))
    fast = Recorder(place / "fast.jsonl")
    for name, out in (("slow", slow), ("fast", fast)):
        documents = [{"id": f"{name}{i}", "raw": b"x" * (600 * KIB)} for i in range(6)]
        plan.source(name, Memory(documents)).destination(f"to-{name}", out, batch=1)
    summary = run_plan(plan, place / "state", pace_s=0.15, wave_bytes=700 * KIB)
    assert summary.exit == 0
    assert len(fast.counted()) == len(slow.counted()) == 6


def test_a_destination_without_any_time_is_no_endless_run(trial: Trial) -> None:
    """A budget in which nothing can be sent: the run ends, its rows are owed."""
    trial.put("a")
    summary = trial.run(pace_s=-1, wait=0)
    assert (summary.exit, summary.pending) == (4, 1)
    assert trial.run().exit == 0


def refused(delivery: Delivery) -> Outcome:
    return Outcome.permanent("no such index") if delivery.id != "d0001" else Outcome.ok()


def test_a_destination_that_refuses_everything_is_stopped(trial: Trial) -> None:
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
        "destination out: it refused every row of 5 chunks in a row: no such index (once it is mended, "
    )
