"""The account: what `status`, `docs` and `history` say in each situation, also in the middle of a wave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Null
from ferryman.destinations.base import Delivery, Effect, Outcome
from ferryman.document import Document
from ferryman.errors import Dropped, PermanentError, UsageError
from ferryman.operations.retry import retry
from ferryman.plan import Plan
from ferryman.records.schemas import LEDGER_COLUMNS
from ferryman.sources import Memory
from ferryman.state.state import State, state_root
from tests.support import NOT_SOON_S
from tests.support.recorder import Recorder
from tests.support.trial import Interrupted, Trial, Until, run_plan


def answer(delivery: Delivery) -> Outcome | None:
    """By the id, or by the content where there is some."""
    match delivery.text() or delivery.id:
        case "refuse":
            return Outcome.permanent("refused")
        case "fail":
            return Outcome.transient("busy")
        case "stale":
            return Outcome.stale()
        case "down":
            return Outcome.unavailable("down")
        case "silent":
            return None
        case _:
            return Outcome.ok()


def step(doc: Document) -> Document | None:
    match doc.text():
        case "drop":
            return None
        case "drop with a reason":
            raise Dropped("a draft")
        case "break":
            raise RuntimeError("broken")
    return doc


def unreachable() -> None:
    raise ConnectionError("nobody listens")


SITUATIONS: dict[str, tuple[str, dict[str, int]]] = {
    "delivered": ("fine", {"delivered": 1}),
    "the destination has something newer": ("stale", {"delivered": 1}),
    "dropped by a step": ("drop", {"dropped": 1}),
    "dropped with a reason": ("drop with a reason", {"dropped": 1}),
    "refused by the destination": ("refuse", {"failed": 1}),
    "failed, to be tried again": ("fail", {"pending": 1}),
    "a step failed, to be tried again": ("break", {"pending": 1}),
    "the destination is down": ("down", {"pending": 1}),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_situation_is_counted_in_its_place(trial: Trial, situation: str) -> None:
    """One document in it, and nothing else."""
    text, counts = SITUATIONS[situation]
    trial.build(step, answer=answer, backoff=NOT_SOON_S)
    trial.put("a", text=text)
    summary = trial.run(wait=0)
    assert trial.counts() == counts
    assert trial.status()["sources"] == {"docs": {"documents": 1, "deleted": 0, "again": 0}}
    assert summary.exit == (4 if "pending" in counts else 3 if "failed" in counts else 0)


def test_all_situations_together(trial: Trial) -> None:
    """Each counted once."""
    trial.build(step, answer=answer, backoff=NOT_SOON_S, batch=1)
    for situation, (text, _) in SITUATIONS.items():
        if text != "down":
            trial.put(situation, text=text)
    trial.documents.append({"id": "bad", "field": 1j})
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"delivered": 2, "dropped": 2, "failed": 1, "rejected": 1, "pending": 2}


def test_deletes_are_counted_apart(trial: Trial) -> None:
    """``indexed`` are there now, ``deleted`` were taken out."""
    trial.put("a", "b", "c")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {"delivered": 2, "deleted": 1}
    assert trial.status()["sources"] == {"docs": {"documents": 2, "deleted": 1, "again": 0}}
    trial.put("a")
    trial.run()
    assert trial.counts() == {"delivered": 3}
    assert trial.status()["sources"] == {"docs": {"documents": 3, "deleted": 0, "again": 0}}


@pytest.mark.rule("delete.given")
def test_a_document_that_never_arrived_and_is_gone_needs_no_delete(trial: Trial) -> None:
    """It was dropped or refused before anything was given; when it vanishes, nothing is owed, and it adds up."""
    trial.build(step, answer=answer)
    trial.put("a", text="drop")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {}
    assert trial.status()["sources"] == {"docs": {"documents": 0, "deleted": 1, "again": 0}}
    assert trial.out.lines() == []


@pytest.mark.rule("delete.undelivered")
def test_a_dead_document_that_is_gone_is_deleted(trial: Trial) -> None:
    """It was given: nobody knows what the destination has of it."""
    trial.build(answer=answer)
    trial.put("a", text="refuse")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {"deleted": 1}


@pytest.mark.rule("delete.kept")
def test_a_destination_that_keeps_what_is_gone(trial: Trial) -> None:
    """``deletes=False``: the delete ends DROPPED, in words."""
    trial.build(deletes=False)
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {"delivered": 1, "dropped": 1}
    assert "keeps" in trial.history("a")[-1]["message"]
    assert trial.out.counted() == {"a": 1, "b": 1}


def test_a_new_version_replaces_the_old_one_in_the_counts(trial: Trial) -> None:
    """A dead old version is history; one that still waits is owed, for it will be sent."""
    trial.build(answer=answer, backoff=NOT_SOON_S)
    trial.put("a", text="refuse")
    trial.put("b", text="fail")
    trial.run(wait=0)
    assert trial.counts() == {"failed": 1, "pending": 1}
    trial.put("a", "b", text="fine")
    trial.out.refuse = unreachable
    trial.build(backoff=NOT_SOON_S)
    trial.run(wait=0)
    assert trial.counts() == {"pending": 3}, "two versions of b, and a"
    assert [d["status"] for d in trial.docs()] == ["BATCHED", "BATCHED"]
    trial.out.refuse = None
    trial.build(answer=lambda d: Outcome.ok())
    trial.run()
    assert trial.counts() == {"delivered": 2}
    assert trial.statuses("b") == ["ERROR", "INDEXED", "INDEXED"]


def test_unknown_is_counted_and_no_end(place: Path) -> None:
    """At-most-once without an outcome: exit 3, and listed as INDEXING."""
    trial = Trial(place).build(out=Recorder(place / "out", effect=Effect.POTENT), answer=answer, batch=1)
    trial.put("a", text="silent")
    trial.put("b")
    assert trial.run().exit == 3
    assert trial.counts() == {"delivered": 1, "in_doubt": 1}
    [row] = trial.docs(status="in_doubt")
    assert row["document"] == "a"
    assert row["message"].startswith("unknown: ")


# --- in the middle of a wave ----------------------------------------------------------------------------


def test_a_committed_wave_counts_before_it_is_settled(trial: Trial) -> None:
    """Rows of the outbox without an event are BATCHED and owed; what the steps ended counts at once."""
    trial.build(step, answer=answer)
    trial.put("a", "b")
    trial.put("c", text="drop")
    trial.documents.append({"id": "bad", "field": 1j})
    with pytest.raises(Interrupted):
        trial.run(observer=Until(1, "deliver"), checked=False)
    status = trial.status()
    assert trial.counts() == {"pending": 2, "dropped": 1, "rejected": 1}
    assert status["balanced"]
    assert status["waves"] == 1
    assert status["sources"] == {"docs": {"documents": 4, "deleted": 0, "again": 0}}
    assert {d["document"]: d["status"] for d in trial.docs()} == {
        "a": "BATCHED",
        "b": "BATCHED",
        "c": "DROPPED",
        "bad": "ERROR_DOC",
    }
    assert trial.statuses("a") == ["BATCHED"]
    assert [d["document"] for d in trial.docs(status="batched")] == ["a", "b"]
    trial.run()


@pytest.mark.parametrize("phase", ["deliver", "settle"])
def test_a_second_wave_that_is_not_settled(trial: Trial, phase: str) -> None:
    """The changed document's new version is owed, its old one no more counted; a delete is owed as a delete."""
    trial.put("a", "b", "c")
    trial.run()
    trial.put("a", text="two")
    trial.drop("b")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(2, phase), checked=False)
    assert trial.counts() == {"delivered": 1, "pending": 2}
    assert trial.status()["balanced"]
    assert trial.statuses("a") == ["INDEXED", "BATCHED"]
    assert [(d["operation"], d["status"]) for d in trial.docs() if d["document"] == "b"] == [("delete", "BATCHED")]
    left = account.left_over(trial.root, trial.plan)
    assert left == {"failed": 0, "rejected": 0, "in_doubt": 0, "pending": 2}
    trial.run()
    assert trial.counts() == {"delivered": 2, "deleted": 1}


def test_a_wave_that_is_not_committed_does_not_count(trial: Trial) -> None:
    """Nobody sees what is staged."""
    trial.put("a")
    trial.run()
    trial.put("a", "b", text="two")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(2, "commit"), checked=False)
    assert trial.counts() == {"delivered": 1}
    assert trial.statuses("b") == []
    assert trial.status()["waves"] == 1
    trial.run()


def test_questions_change_nothing(trial: Trial) -> None:
    """Not a byte, in a settled state and in the middle of a wave; and they need no lock."""
    trial.put("a")
    trial.run()
    trial.put("b")
    with pytest.raises(Interrupted):
        trial.run(observer=Until(2, "settle"), checked=False)
    before = {p: p.read_bytes() for p in trial.root.rglob("*") if p.is_file()}
    with trial.folder.joinpath("anything").open("w"):
        trial.status()
        trial.docs()
        trial.history("a")
        account.waves(trial.root)
        account.left_over(trial.root, trial.plan)
    assert {p: p.read_bytes() for p in trial.root.rglob("*") if p.is_file()} == before
    with trial.take():
        after = trial.status()
    assert after["waves"] == 2
    trial.run()


def test_a_loss_shows(trial: Trial) -> None:
    """If the ledger lost a delivery, ``status`` says that it does not add up."""
    trial.put("a", "b")
    trial.run()
    assert trial.status()["balanced"]
    with trial.take() as state:
        state.ledger.commit("compact", removes=list(state.ledger.files))
    assert not trial.status()["balanced"]
    assert trial.counts() == {}


def test_a_double_end_shows(trial: Trial) -> None:
    """If a delivery ended twice, ``status`` says so."""
    trial.put("a")
    trial.run()
    with trial.take() as state:
        from ferryman.storage.parquet import read_part, write_part

        [path] = state.ledger.paths()
        rows = read_part(path)
        state.ledger.commit("ledger", adds=[state.ledger.data_file(write_part(state.ledger.folder, rows, epoch=1))])
    assert not trial.status()["balanced"]


# --- docs -----------------------------------------------------------------------------------------------


@pytest.fixture
def two_ways(trial: Trial) -> tuple[Trial, Plan]:
    """Two sources, each to a destination of its own; the second refuses everything."""
    trial.build(step, answer=answer)
    plan = trial.plan
    other = Recorder(trial.folder / "other", lambda d: Outcome.permanent("refused"))
    plan.source("more", Memory([{"id": "x"}, {"id": "a"}])).destination("other", other)
    trial.put("a", "b")
    trial.put("c", text="drop")
    run_plan(plan, trial.state)
    return trial, plan


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, {("docs", "a"), ("docs", "b"), ("docs", "c"), ("more", "a"), ("more", "x")}),
        ({"status": "indexed"}, {("docs", "a"), ("docs", "b")}),
        ({"status": "Dead"}, {("more", "a"), ("more", "x")}),
        ({"destination": "out"}, {("docs", "a"), ("docs", "b"), ("docs", "c")}),
        ({"source": "more"}, {("more", "a"), ("more", "x")}),
        ({"source": "docs", "status": "dropped"}, {("docs", "c")}),
        ({"source": "docs", "destination": "other"}, set()),
        ({"status": "indexed", "destination": "out", "source": "docs"}, {("docs", "a"), ("docs", "b")}),
        ({"source": "'; DROP TABLE ledger; --"}, set()),
    ],
)
def test_documents_are_listed_by_what_is_asked(
    two_ways: tuple[Trial, Plan], filters: dict[str, str], found: set[tuple[str, str]]
) -> None:
    """Filters narrow it down together."""
    trial, plan = two_ways
    rows = account.deliveries(trial.root, plan=plan, **filters)  # type: ignore[arg-type]
    assert {(r["source"], r["document"]) for r in rows} == found
    assert len(rows) == len(found)
    assert list(account.each_delivery(trial.root, plan=plan, **filters)) == rows  # type: ignore[arg-type]
    assert account.number_of_deliveries(trial.root, plan=plan, **filters) == len(rows)  # type: ignore[arg-type]


def test_the_newest_come_first(trial: Trial) -> None:
    """By wave; and no more than are asked for."""
    for id in "abc":
        trial.put(id)
        trial.run()
    assert [d["document"] for d in trial.docs()] == ["c", "b", "a"]
    assert [d["document"] for d in trial.docs(limit=2)] == ["c", "b"]
    assert trial.docs(limit=0) == []
    trial.put("a", text="two")
    trial.run()
    assert [d["document"] for d in trial.docs()] == ["a", "c", "b"]
    assert [d["document"] for d in account.each_delivery(trial.root, limit=2)] == ["a", "c"]
    assert account.number_of_deliveries(trial.root) == 3, "of each its latest event alone"


def test_deliveries_come_while_a_driver_commits(trial: Trial) -> None:
    """What was asked is answered to its end, whatever is committed and removed meanwhile; then nothing is left open."""
    trial.put(*(f"d{n}" for n in range(5000)))
    trial.run()
    rows = account.each_delivery(trial.root, plan=trial.plan)
    found = [next(rows)["document"]]
    trial.put("late")
    trial.run()
    found += [each["document"] for each in rows]
    assert sorted(found) == sorted(f"d{n}" for n in range(5000))
    rows = account.each_delivery(trial.root, plan=trial.plan)
    assert next(rows)["document"] == "late"
    rows.close()
    assert account.number_of_deliveries(trial.root) == 5001


def test_rows_have_the_public_columns(two_ways: tuple[Trial, Plan]) -> None:
    """Those that are documented, in this order; times as text that sorts."""
    trial, _ = two_ways
    for row in (*trial.docs(), *trial.history("a")):
        assert list(row) == LEDGER_COLUMNS
        assert row["created"][:2] == "20"
        assert row["created"].endswith("+00:00")


# --- history --------------------------------------------------------------------------------------------


@pytest.mark.rule("retry.counted")
def test_history_is_in_the_order_of_what_happened(trial: Trial) -> None:
    """Every attempt of every revision, the oldest first."""

    def second(delivery: Delivery) -> Outcome:
        return Outcome.ok() if delivery.attempt > 1 else Outcome.transient("not the first time")

    trial.build(answer=second)
    for text in ("one", "two", "one"):
        trial.put("a", text=text)
        trial.run()
    trial.drop("a")
    trial.run()
    events = trial.history("a")
    assert [e["status"] for e in events] == ["ERROR", "INDEXED"] * 4
    assert [e["revision"] for e in events] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [e["operation"] for e in events] == ["upsert"] * 6 + ["delete"] * 2
    assert [e["attempt"] for e in events] == [1, 2] * 4
    assert [e["wave"] for e in events] == sorted(e["wave"] for e in events)
    assert len({e["delivery_hash"] for e in events}) == 4
    assert trial.history("b") == []


def test_waves_are_told_newest_first(trial: Trial) -> None:
    """What each came to."""
    trial.build(answer=answer)
    trial.put("a", "b")
    trial.run()
    trial.put("c", text="refuse")
    trial.put("d")
    trial.run()
    last, first = account.waves(trial.root)
    assert (last["wave"], last["events"], last["delivered"], last["failed"]) == (2, 2, 1, 1)
    assert (first["wave"], first["events"], first["delivered"], first["failed"]) == (1, 2, 2, 0)
    assert [w["wave"] for w in account.waves(trial.root, limit=1)] == [2]


def test_there_is_nothing_to_ask_before_the_first_run(trial: Trial) -> None:
    """Said in words; nothing is made."""
    for ask in (trial.status, trial.docs, lambda: trial.history("a")):
        with pytest.raises(UsageError, match="no state of this plan yet"):
            ask()  # type: ignore[operator]
    assert not trial.state.exists()


def test_an_empty_source_adds_up(trial: Trial) -> None:
    """Nothing there is no error."""
    summary = trial.run()
    assert (summary.exit, summary.waves) == (0, 0)
    assert trial.counts() == {}


@pytest.mark.rule("plan.state")
def test_the_state_of_a_plan_has_its_name_and_version(place: Path) -> None:
    """Beside each other in one folder, each its own."""
    plans = [Plan("a", 1), Plan("a", 2), Plan("b", 1)]
    outs: list[Any] = []
    for plan in plans:
        outs.append(Recorder(place / f"{plan.key}.jsonl"))
        plan.source("docs", Memory([{"id": "x"}])).destination("out", outs[-1])
        run_plan(plan, place / "state")
    assert sorted(p.name for p in (place / "state").iterdir()) == ["a-v1", "a-v2", "b-v1"]
    assert all(o.arrived() == ["x"] for o in outs)
    hashes = {o.lines()[0]["hash"] for o in outs}
    assert len(hashes) == 3
    assert State.plan_of(state_root(plans[1], place / "state")).key == "a-v2"


@pytest.mark.slow
def test_questions_about_a_million_documents_get_by_with_their_memory(tmp_path: Path) -> None:
    """``limits.QUERY_MEMORY`` is a limit that DuckDB enforces; what spills must be enough to list everything."""

    def refuse(doc: Document) -> Document:
        if doc.id.endswith("00"):
            raise PermanentError("no")
        return doc

    plan = Plan("million")
    source = plan.source("docs", Memory([Document(f"doc-{n:07d}") for n in range(1_000_000)]))
    source.step("refuse", refuse).destination("nowhere", Null())
    run_plan(plan, tmp_path, wait=0, checked=False)
    assert retry(plan, state=tmp_path).count == 10_000
    root = state_root(plan, tmp_path)
    assert len(account.deliveries(root, plan=plan)) == 1_000_000
    assert account.number_of_deliveries(root, plan=plan) == 1_000_000
    assert len({each["document"] for each in account.each_delivery(root, plan=plan)}) == 1_000_000
    assert len(account.deliveries(root, status="restart", limit=20_000, plan=plan)) == 10_000
