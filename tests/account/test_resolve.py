"""A person's word on deliveries whose outcome is unknown; and on documents that may have changed unseen."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman import operations as operation
from ferryman.destinations.base import Delivery
from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.operations import Retried
from ferryman.sources import Listed, Memory
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld

pytestmark = pytest.mark.usefixtures("in_waves")


def no_answer(chunk: list[Delivery]) -> None:
    if any(d.id.startswith("lost") for d in chunk):
        raise RuntimeError("connection reset")


@pytest.fixture
def lost(trial: PlanWorld) -> PlanWorld:
    """Under at-most-once: two unknown, one delivered."""
    trial.build(guarantee="at-most-once", batch=1)
    trial.out().before = no_answer
    trial.put("fine", "lost1", "lost2")
    assert trial.run().exit == 3
    assert trial.counts() == {"delivered": 1, "in_doubt": 2}
    trial.out().before = None
    return trial


def resolve(trial: PlanWorld, word: str, **filters: Any) -> Retried:
    return operation.resolve(trial.plan, word, state=trial.state, **filters)


def test_what_took_effect_leaves(lost: PlanWorld) -> None:
    """INDEXED by a person's word: never sent again."""
    assert resolve(lost, "delivered", why="found in the index") == Retried(2, False)
    assert lost.counts() == {"delivered": 3}
    assert rows(lost.root, "outbox") == []
    event = lost.history("lost1")[-1]
    assert event["status"] == "INDEXED"
    assert event["message"].startswith("resolve --as delivered by ")
    assert event["message"].endswith(": found in the index")
    assert lost.run().exit == 0
    assert lost.out().counted() == {"fine": 1}


def test_what_shall_not_be_sent_is_dead(lost: PlanWorld) -> None:
    """It is kept, so that ``retry`` may still send it."""
    assert resolve(lost, "FAILED") == Retried(2, False)
    assert lost.counts() == {"delivered": 1, "failed": 2}
    assert lost.run().exit == 3
    assert lost.retry(status="failed").count == 2
    assert lost.run().exit == 0
    assert lost.out().counted() == {"fine": 1, "lost1": 1, "lost2": 1}


def test_what_did_not_take_effect_is_sent(lost: PlanWorld) -> None:
    """By name; the other one stays unknown."""
    assert resolve(lost, "pending", document="lost2") == Retried(1, False)
    assert lost.counts() == {"delivered": 1, "pending": 1, "in_doubt": 1}
    lost.run()
    assert lost.out().counted() == {"fine": 1, "lost2": 1}
    assert lost.counts() == {"delivered": 2, "in_doubt": 1}
    assert lost.statuses("lost2") == ["INDEXING", "RESTART", "INDEXED"]


def test_only_what_is_unknown_is_resolved(lost: PlanWorld) -> None:
    assert resolve(lost, "pending", document="fine") == Retried(0, False)
    assert resolve(lost, "pending", destination="elsewhere") == Retried(0, False)
    assert lost.retry().count == 0, "retry does not touch what is unknown"


def test_there_are_three_words(lost: PlanWorld) -> None:
    with pytest.raises(UsageError, match="resolve as 'perhaps': choose one of delivered, failed, pending"):
        resolve(lost, "perhaps")


def test_there_must_be_a_state(trial: PlanWorld) -> None:
    with pytest.raises(UsageError, match="no state of this plan yet: nothing to resolve"):
        resolve(trial, "failed")


def test_a_word_is_queued_while_a_run_holds_the_state(lost: PlanWorld) -> None:
    """The next wave takes it up, and says so."""
    with lost.take():
        assert resolve(lost, "delivered") == Retried(None, True)
    summary = lost.run()
    assert summary.exit == 0
    assert any("applied `resolve --as delivered` by " in m for m in summary.messages)


class Sly(Memory):
    """Changes its content, but not its fingerprint."""

    def listing(self, partition: Any) -> Any:
        return (Listed(doc.id, 1, "always the same", doc.text()) for doc in super().listing(partition))

    def read(self, listed: Listed) -> Document:
        return Document(listed.id, raw=listed.location.encode())


def test_dirty_has_the_next_scan_look(trial: PlanWorld) -> None:
    """What has not changed is not fed again; nothing else has an event."""
    documents = trial.documents
    trial.build(source=Sly(documents, detect="fingerprint", max_deleted=1.0))
    trial.put("a", "b")
    trial.run()
    documents[0] = {"id": "a", "raw": b"two"}
    assert trial.run().waves == 0, "its fingerprint is the same"
    assert trial.retry(dirty=True, why="I edited it").count == 2
    assert trial.counts() == {"delivered": 2}, "until it is found changed, it is what it was"
    assert trial.run().delivered == 1
    assert trial.out().counted() == {"a": 2, "b": 1}
    assert [e["status"] for e in trial.history("b")] == ["INDEXED", "DIRTY"]
    assert [e["status"] for e in trial.history("a")] == ["INDEXED", "DIRTY", "INDEXED"]
    [dirty] = [e for e in trial.history("b") if e["status"] == "DIRTY"]
    assert (dirty["destination"], dirty["message"].endswith(": I edited it")) == ("", True)


def test_force_and_dirty_exclude_each_other(trial: PlanWorld) -> None:
    with pytest.raises(UsageError, match="give one of them"):
        trial.retry(force=True, dirty=True)
