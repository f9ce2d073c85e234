"""Deliver: chunks, and what a destination may answer for each row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations.base import Delivery, Outcome
from ferryman.errors import PermanentError, TransientError
from tests.support import NOT_SOON_S
from tests.support.delivering import by_id, kept, sizes
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder

GUARANTEES = ["exactly-once", "at-least-once", "at-most-once"]
KIB = 1024


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
    trial = PlanWorld(place).build(out=kept(place, guarantee), batch=batch)
    trial.put(*(f"d{i}" for i in range(documents)))
    trial.run()
    assert sizes(trial.out()) == chunks
    assert trial.out().arrived() == [f"d{i}" for i in range(documents)]


@pytest.mark.rule("destination.bytes")
@pytest.mark.parametrize(
    ("bytes_each", "limit", "chunks"),
    [(10, 1000, [6]), (10, 35, [3, 3]), (10, 1, [1] * 6), (1000, 10, [1] * 6)],
)
def test_a_chunk_closes_at_so_many_bytes(trial: PlanWorld, bytes_each: int, limit: int, chunks: list[int]) -> None:
    """Raw bytes and fields count; a row larger than that goes alone."""
    trial.build(batch_bytes=limit)
    trial.put(*(f"d{i}" for i in range(6)), text="x" * (bytes_each - 2))  # and {} for the fields
    trial.run()
    assert sizes(trial.out()) == chunks


@pytest.mark.rule("destination.calls")
def test_open_and_close_stand_around_the_chunks_of_a_task(trial: PlanWorld) -> None:
    """``check`` in the driver first; then once a task each."""
    trial.build(batch=1)
    trial.put("a", "b", "c")
    trial.run()
    called = [line["called"] for line in trial.out().notes() if "called" in line]
    assert called == ["check", "open", "write", "write", "write", "close"]
    trial.run()
    assert len(trial.out().calls("check")) == 1, "who has nothing to get is not asked"


def test_a_delivery_has_all_that_is_promised(trial: PlanWorld) -> None:
    """Names and types that other people's programs are written against."""
    trial.documents.append({"id": "a", "raw": b"caf\xc3\xa9 \xff", "title": "A", "n": 1})
    trial.run()
    [line] = trial.out().lines()
    [event] = trial.history("a")
    assert line["hash"] == event["delivery_hash"]
    assert line["version"] == event["version"]
    assert (line["id"], line["op"], line["source"], line["attempt"]) == ("a", "upsert", "docs", 1)
    assert line["fields"] == {"title": "A", "n": 1}
    assert line["text"] == "café \N{REPLACEMENT CHARACTER}"
    assert line["seq"] > 0


# --- outcomes -------------------------------------------------------------------------------------------


@pytest.mark.rule("destination.outcomes")
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_each_outcome_ends_in_its_status(place: Path, guarantee: str) -> None:
    """Row by row, within one chunk; the reason is kept."""
    answer = by_id(
        stale=Outcome.stale(), permanent=Outcome.permanent("too long"), transient=Outcome.transient("locked")
    )
    trial = PlanWorld(place).build(out=kept(place, guarantee), answer=answer, guarantee=guarantee, backoff=NOT_SOON_S)
    trial.put("ok", "stale", "permanent", "transient")
    assert trial.run(wait=0).exit == 4
    found = {d["document"]: (d["status"], d["message"], d["attempt"]) for d in trial.deliveries()}
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
    trial = PlanWorld(place).build(
        out=kept(place, guarantee), answer=by_id(a=Outcome.transient("locked")), guarantee=guarantee, attempts=3
    )
    trial.put("a", "b")
    assert trial.run().exit == 3
    assert trial.statuses("a") == ["ERROR", "ERROR", "DEAD"]
    assert trial.history("a")[-1]["message"] == "locked (attempt 3, the last)"
    assert [line["attempt"] for line in trial.out().lines() if line["id"] == "a"] == [1, 2, 3]
    assert trial.out().counted() == {"b": 1}
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
    trial = PlanWorld(place).build(out=kept(place, guarantee), answer=MISSING[what], guarantee=guarantee, attempts=2)
    trial.put("a", "b", "c")
    trial.run()
    silent = 1 if what == "no outcome for one" else 3
    last = "in_doubt" if guarantee == "at-most-once" else "failed"
    assert trial.counts()[last] == silent
    assert "write gave no outcome" in trial.history("c")[-1]["message"]
    times = len([line for line in trial.out().lines() if line["id"] == "c"])
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
    trial = PlanWorld(place).build(out=Odd(place / "out.jsonl", says), attempts=1)
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
    trial = PlanWorld(place).build(out=out, guarantee=guarantee, attempts=1)
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
    trial = PlanWorld(place).build(out=out, attempts=5)
    trial.put(*(f"d{i}" for i in range(4)))
    trial.run()
    assert trial.statuses("d1") == ["DEAD"]
    assert trial.counts() == {"delivered": 3, "failed": 1}


@pytest.mark.rule("destination.at-most-once")
@pytest.mark.parametrize("error", [ValueError, PermanentError, TransientError, ConnectionError, TimeoutError])
def test_under_at_most_once_a_chunk_that_raises_is_unknown(place: Path, error: type[Exception]) -> None:
    """It is not split, not sent again, and listed with the reason."""
    out = kept(place, "at-most-once", before=poison("d1", error=error))
    trial = PlanWorld(place).build(out=out, batch=4)
    trial.put(*(f"d{i}" for i in range(8)))
    trial.run()
    sent = [4, 1, 1, 1, 1] if issubclass(error, OSError) else [4, 4]  # after a broken connection each risks only itself
    assert sizes(out) == sent
    assert trial.counts() == {"delivered": 4, "in_doubt": 4}
    assert "cannot take d1" in trial.deliveries(status="in_doubt")[0]["message"]
    trial.run()
    assert sizes(out) == sent


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_destination_that_ends_the_program_harms_only_itself(place: Path, end: type[BaseException]) -> None:
    """sys.exit() in other people's code is an error like any other."""
    out = kept(place, "at-least-once", before=poison("d1", error=end))  # type: ignore[arg-type]
    trial = PlanWorld(place).build(out=out, attempts=1)
    trial.put("d0", "d1")
    try:
        trial.run()
    except BaseException as e:
        pytest.fail(f"the run was ended by {e!r}")
    assert trial.counts() == {"delivered": 1, "failed": 1}
