"""The account: what `status` says in each situation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Null
from ferryman.destinations.base import Effect, Outcome
from ferryman.document import Document
from ferryman.errors import PermanentError, UsageError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state.state import plan_of, state_root
from tests.support import NOT_SOON_S
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder
from tests.support.situations import answer, step


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
def test_each_situation_is_counted_in_its_place(trial: PlanWorld, situation: str) -> None:
    """One document in it, and nothing else."""
    text, counts = SITUATIONS[situation]
    trial.build(step, answer=answer, backoff=NOT_SOON_S)
    trial.put("a", text=text)
    summary = trial.run(wait=0)
    assert trial.counts() == counts
    assert trial.status()["sources"] == {"docs": {"documents": 1, "deleted": 0, "again": 0}}
    assert summary.exit == (4 if "pending" in counts else 3 if "failed" in counts else 0)


def test_all_situations_together(trial: PlanWorld) -> None:
    """Each counted once."""
    trial.build(step, answer=answer, backoff=NOT_SOON_S, batch=1)
    for situation, (text, _) in SITUATIONS.items():
        if text != "down":
            trial.put(situation, text=text)
    trial.documents.append({"id": "bad", "field": 1j})
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"delivered": 2, "dropped": 2, "failed": 1, "rejected": 1, "pending": 2}


def test_deletes_are_counted_apart(trial: PlanWorld) -> None:
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
def test_a_document_that_never_arrived_and_is_gone_needs_no_delete(trial: PlanWorld) -> None:
    """It was dropped or refused before anything was given; when it vanishes, nothing is owed, and it adds up."""
    trial.build(step, answer=answer)
    trial.put("a", text="drop")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {}
    assert trial.status()["sources"] == {"docs": {"documents": 0, "deleted": 1, "again": 0}}
    assert trial.out().lines() == []


@pytest.mark.rule("delete.undelivered")
def test_a_dead_document_that_is_gone_is_deleted(trial: PlanWorld) -> None:
    """It was given: nobody knows what the destination has of it."""
    trial.build(answer=answer)
    trial.put("a", text="refuse")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {"deleted": 1}


@pytest.mark.rule("delete.kept")
def test_a_destination_that_keeps_what_is_gone(trial: PlanWorld) -> None:
    """``deletes=False``: the delete ends DROPPED, in words."""
    trial.build(deletes=False)
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {"delivered": 1, "dropped": 1}
    assert "keeps" in trial.history("a")[-1]["message"]
    assert trial.out().counted() == {"a": 1, "b": 1}


def test_a_new_version_replaces_the_old_one_in_the_counts(trial: PlanWorld) -> None:
    """A dead old version is history; one that still waits is owed, for it will be sent."""
    trial.build(answer=answer, backoff=NOT_SOON_S)
    trial.put("a", text="refuse")
    trial.put("b", text="fail")
    trial.run(wait=0)
    assert trial.counts() == {"failed": 1, "pending": 1}
    trial.put("a", "b", text="fine")
    trial.out().refuse = unreachable
    trial.build(backoff=NOT_SOON_S)
    trial.run(wait=0)
    assert trial.counts() == {"pending": 3}, "two versions of b, and a"
    assert [d["status"] for d in trial.deliveries()] == ["BATCHED", "BATCHED"]
    trial.out().refuse = None
    trial.build(answer=lambda d: Outcome.ok())
    trial.run()
    assert trial.counts() == {"delivered": 2}
    assert trial.statuses("b") == ["ERROR", "INDEXED", "INDEXED"]


def test_unknown_is_counted_and_no_end(place: Path) -> None:
    """At-most-once without an outcome: exit 3, and listed as INDEXING."""
    trial = PlanWorld(place).build(out=Recorder(place / "out", effect=Effect.POTENT), answer=answer, batch=1)
    trial.put("a", text="silent")
    trial.put("b")
    assert trial.run().exit == 3
    assert trial.counts() == {"delivered": 1, "in_doubt": 1}
    [row] = trial.deliveries(status="in_doubt")
    assert row["document"] == "a"
    assert row["message"].startswith("unknown: ")


# --- history --------------------------------------------------------------------------------------------


def test_there_is_nothing_to_ask_before_the_first_run(trial: PlanWorld) -> None:
    """Said in words; nothing is made."""
    for ask in (trial.status, trial.deliveries, lambda: trial.history("a")):
        with pytest.raises(UsageError, match="no state of this plan yet"):
            ask()  # type: ignore[operator]
    assert not trial.state.exists()


def test_an_empty_source_adds_up(trial: PlanWorld) -> None:
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
    assert plan_of(state_root(plans[1], place / "state")).key == "a-v2"


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
    assert account.count_deliveries(root, plan=plan) == 1_000_000
    assert len({each["document"] for each in account.iter_deliveries(root, plan=plan)}) == 1_000_000
    assert len(account.deliveries(root, status="restart", limit=20_000, plan=plan)) == 10_000
