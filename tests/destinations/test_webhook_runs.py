"""``Webhook`` in runs: what is posted again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ferryman.destinations import Webhook
from tests.destinations.webhook import receiver
from tests.support.plan_world import PlanWorld
from tests.support.receiver import Receiver, Reply, Request

__all__ = ["receiver"]


def through(trial: PlanWorld, receiver: Receiver, **policy: Any) -> dict[str, int]:
    """Ten documents to the receiver, until nothing more can be done within some seconds; what ``status`` counts."""
    trial.put(*(f"doc-{i}" for i in range(10)))
    trial.build(out=Webhook(receiver.url), **policy)  # type: ignore[arg-type]
    trial.run(wait=20)
    return trial.counts()


@pytest.mark.rule("webhook.once")
def test_at_most_once_a_broken_connection_leaves_one_unknown(trial: PlanWorld, receiver: Receiver) -> None:
    """The one that was in flight, and it is not sent again; all others arrive once."""
    receiver.answer = lambda request: Reply(how="nothing" if request.ids == ["doc-4"] else "whole")
    assert through(trial, receiver) == {"delivered": 9, "in_doubt": 1}
    assert sorted(receiver.ids) == [f"doc-{i}" for i in range(10)], "sent twice, or not at all"
    [unknown] = trial.deliveries(status="in_doubt")
    assert unknown["document"] == "doc-4"
    assert "it was sent, but" in unknown["message"]


@pytest.mark.rule("webhook.once")
def test_at_most_once_what_was_not_taken_is_sent_again(trial: PlanWorld, receiver: Receiver) -> None:
    """By the receiver's own word: with the same key, and no attempt is spent."""
    refused: list[str] = []

    def answer(request: Request) -> Reply:
        if request.ids == ["doc-2"] and not refused:
            refused.append("doc-2")
            return Reply(503)
        return Reply()

    receiver.answer = answer
    assert through(trial, receiver, attempts=1) == {"delivered": 10}
    keys = Counter(request.headers["idempotency-key"] for request in receiver.requests)
    assert sorted(keys.values()) == [1] * 9 + [2]


@pytest.mark.rule("webhook.once")
def test_a_receiver_that_is_away(trial: PlanWorld, receiver: Receiver) -> None:
    """Nothing is unknown and nothing is lost: it is all owed until the receiver is back."""
    receiver.stop()
    trial.put("a", "b")
    trial.build(out=Webhook(receiver.url))  # type: ignore[arg-type]
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"pending": 2}
    receiver.start()
    trial.run(wait=20)
    assert trial.counts() == {"delivered": 2}
    assert sorted(receiver.ids) == ["a", "b"]


@pytest.mark.rule("webhook.key")
def test_at_least_once_the_same_key_comes_again(trial: PlanWorld, receiver: Receiver) -> None:
    """After a broken connection and after an error of the receiver's, until it is well."""
    broken: list[str] = []

    def answer(request: Request) -> Reply:
        if request.ids[0] in ("doc-3", "doc-6") and request.ids[0] not in broken:
            broken.append(request.ids[0])
            return Reply(500) if request.ids[0] == "doc-3" else Reply(how="reset")
        return Reply()

    receiver.answer = answer
    assert through(trial, receiver, guarantee="at-least-once") == {"delivered": 10}
    keys = Counter(request.headers["idempotency-key"] for request in receiver.requests)
    assert len(keys) == 10
    assert Counter(receiver.ids) >= Counter(f"doc-{i}" for i in range(10))


def test_one_bad_document_of_a_request(trial: PlanWorld, receiver: Receiver) -> None:
    """Under at-least-once it is found by halving; the others arrive."""
    receiver.answer = lambda request: Reply(422 if "doc-7" in request.ids else 200)
    assert through(trial, receiver, guarantee="at-least-once", batch=10) == {"delivered": 9, "failed": 1}
    [dead] = trial.deliveries(status="failed")
    assert dead["document"] == "doc-7"
    assert "answered 422 Unprocessable" in dead["message"]
