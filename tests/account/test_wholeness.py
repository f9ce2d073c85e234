"""Is this file whole? A family's deliveries are counted, and families that have not ended are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman import limits
from ferryman.account import families
from ferryman.account.families import FamilyStatus
from ferryman.destinations import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import BadDocument, TransientError
from ferryman.plan import Plan
from ferryman.sources import Csv
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder


def words(doc: Document) -> list[Document]:
    return [doc.child(word, raw=word.encode()) for word in doc.text().split()]


def answer(delivery: Delivery) -> Outcome:
    match delivery.text():
        case "later":
            return Outcome.transient("not now")
        case "never":
            return Outcome.permanent("refused")
    return Outcome.ok()


def busy(doc: Document) -> Document:
    if doc.text() == "busy":
        raise TransientError("the service is busy")
    if doc.text().startswith("bad"):
        raise BadDocument("no such word")
    return doc


def away() -> None:
    raise ConnectionError("nobody is at home")


@pytest.mark.rule("account.whole")
def test_a_family_is_complete_when_all_of_it_has_ended(trial: PlanWorld) -> None:
    """What failed has ended too, and is counted; what is pending has not."""
    trial.build(words, busy, answer=answer, backoff=3600)
    trial.put("whole", text="one two three")
    trial.put("failed", text="one never")
    trial.put("pending", text="one later")
    trial.put("owed by a step", text="one two busy")
    trial.run(wait=0)

    def of(id: str) -> FamilyStatus:
        [found] = families.family_statuses(trial.root, id, trial.plan)
        return found

    assert of("whole") == ("docs", "whole", 3, 3, 0, 0, 0, 0)
    assert of("failed") == ("docs", "failed", 2, 2, 0, 0, 1, 0)
    assert of("pending") == ("docs", "pending", 2, 1, 1, 0, 0, 0)
    assert of("owed by a step") == ("docs", "owed by a step", 3, 2, 1, 0, 0, 0)
    assert of("whole").describe() == "complete: 3 of 3 deliveries have ended"
    assert of("failed").describe() == "ended, 1 failed: 2 of 2 deliveries have ended"
    assert of("pending").describe() == "incomplete: 1 of 2 deliveries have ended; 1 pending"
    assert families.family_statuses(trial.root, "unknown", trial.plan) == []
    assert [each.family for each in families.incomplete_families(trial.root, trial.plan)] == [
        "failed",
        "owed by a step",
        "pending",
    ]
    assert [each.outcome for each in families.incomplete_families(trial.root, trial.plan, family="failed")] == [
        "ended, 1 failed"
    ]


@pytest.mark.rule("account.whole")
def test_rejected_and_failed_deliveries_of_a_family_are_counted_apart(trial: PlanWorld) -> None:
    """A family has ended with both; while another is pending it is incomplete, and both numbers follow."""
    trial.build(words, busy, answer=answer, backoff=3600)
    trial.put("rejected", text="one bad")
    trial.put("both", text="one never bad bad2")
    trial.put("pending", text="later never bad bad2")
    trial.run(wait=0)

    described = {each.family: each.describe() for each in families.incomplete_families(trial.root, trial.plan)}
    assert described == {
        "rejected": "ended, 1 rejected: 2 of 2 deliveries have ended",
        "both": "ended, 1 failed, 2 rejected: 4 of 4 deliveries have ended",
        "pending": "incomplete: 3 of 4 deliveries have ended; 1 pending; 1 failed, 2 rejected",
    }


def test_in_doubt_is_not_ended(trial: PlanWorld) -> None:
    """Nobody knows of it, so the family is not complete."""
    trial.build(words, guarantee="at-most-once")
    trial.out().answer = lambda d: None if d.text() == "two" else Outcome.ok()
    trial.put("a", text="one two")
    trial.run(wait=0)
    assert families.incomplete_families(trial.root, trial.plan) == [FamilyStatus("docs", "a", 2, 1, 0, 1, 0, 0)]


def test_an_older_version_that_waits_counts(trial: PlanWorld) -> None:
    """A family is not complete while an older revision of it is still to be sent."""
    trial.build()
    trial.out().refuse = away
    trial.put("a", text="one")
    trial.run(wait=0)
    trial.put("a", text="two")
    trial.run(wait=0)
    assert families.incomplete_families(trial.root, trial.plan) == [FamilyStatus("docs", "a", 2, 0, 2, 0, 0, 0)]
    trial.out().refuse = None
    trial.run(wait=0)
    assert families.incomplete_families(trial.root, trial.plan) == []


@pytest.mark.rule("account.whole-rows")
def test_rows_of_a_file_are_a_family(place: Path) -> None:
    """Of the file that they are rows of, with their children; of another file nothing."""
    (place / "in").mkdir()
    (place / "in" / "goods.csv").write_text("name\none two\nthree\nfour\n")
    (place / "in" / "goods.csv.old").write_text("name\nfive\n")
    plan = Plan("trial", version=1)
    rows = plan.source("rows", Csv(str(place / "in"), include="**/*", prefix="x/"))
    rows.step("words", row_words).destination("out", Recorder(place / "out.jsonl", answer), backoff=3600)
    run_plan(plan, place / "state", wait=0)
    root = place / "state" / "trial-v1"
    assert families.family_statuses(root, "x/goods.csv", plan) == [
        FamilyStatus("rows", "x/goods.csv", 4, 4, 0, 0, 0, 0)
    ]
    assert families.family_statuses(root, "x/goods.csv#row=2", plan)[0].deliveries == 2


def row_words(doc: Document) -> list[Document]:
    return [doc.child(word, raw=word.encode()) for word in doc["name"].split()]


def test_many_are_looked_at_in_shares(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """No count of families, and no length of their ids, has to fit into memory at once."""
    monkeypatch.setattr(limits, "QUERY_ROWS", 10)
    trial.build(words, answer=answer, backoff=3600)
    for i in range(60):
        trial.put(f"an id with its {i:040}", text="one later" if i % 2 else "one two")
    trial.run(wait=0)
    found = families.incomplete_families(trial.root, trial.plan, source="docs")
    assert [(each.family, each.deliveries, each.ended) for each in found] == [
        (f"an id with its {i:040}", 2, 1) for i in range(1, 60, 2)
    ]
    assert families.incomplete_families(trial.root, trial.plan, source="other") == []
