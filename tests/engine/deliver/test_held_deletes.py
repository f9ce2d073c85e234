"""Deletes of what a new version no longer makes wait until all that it makes instead was delivered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.account.families import older_deliveries
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.records.rows import RowSpan
from ferryman.state.journal import Journal
from tests.support import NOT_SOON_S
from tests.support.families import end, net, words
from tests.support.plan_world import PlanWorld

__all__ = ["net"]

GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")


def refusing(*ids: str, outcome: Callable[[str], Outcome] = Outcome.permanent) -> Callable[[Any], Outcome]:
    def answer(delivery: Any) -> Outcome:
        return outcome("not this") if delivery.id in ids and delivery.operation == "upsert" else Outcome.ok()

    return answer


def failing(ids: Collection[str]) -> Callable[[Document], Document]:
    """A step that fails for documents with these ids."""

    def check(doc: Document) -> Document:
        if doc.id in ids:
            raise RuntimeError("not this")
        return doc

    return check


def said(net: PlanWorld, name: str = "out") -> list[str]:
    """What was sent and accepted, in order: ``-`` before a delete."""
    return [("-" if line["op"] == "delete" else "") + line["id"] for line in net.out(name).lines()]


def status(net: PlanWorld, document: str) -> str:
    return str(net.history(document)[-1]["status"])


@pytest.mark.rule("child.held")
@pytest.mark.parametrize(("guarantee", "batch"), [*zip(GUARANTEES, (1, 2, 500), strict=True)])
def test_an_edit_that_fails_leaves_no_hole(net: PlanWorld, guarantee: str, batch: int) -> None:
    """The old children stay with the new one that was refused; ``retry`` sends all, the deletes last."""
    net.out("out").transactional = guarantee == "exactly-once"
    end(net.source().step("words", words), net, guarantee=guarantee, batch=batch)
    net.put("a", text="x y")
    net.put("other", text="k l")
    net.run()
    net.out("out").answer = refusing("a#z")
    net.put("a", text="z w")
    net.put("other", text="k")
    assert net.run().exit == 3
    assert sorted(said(net)[-2:]) == ["-other#l", "a#w"] or said(net)[-1] == "-other#l"
    assert not {"-a#x", "-a#y"} & {*said(net)}
    last = [each for each in net.history("a") if each["document"] == "a#x"][-1]
    assert (last["operation"], last["status"]) == ("delete", "DEAD")
    assert last["message"].startswith("held: a#z, which the newer version has in its place, was not delivered")
    assert net.run().exit == 3
    net.out("out").answer = None
    net.retry()
    assert net.run().exit == 0
    assert said(net)[-3:] in (["a#z", "-a#x", "-a#y"], ["a#z", "-a#y", "-a#x"])


@pytest.mark.rule("child.held")
def test_a_later_version_lets_go_of_them(net: PlanWorld) -> None:
    """What is made again is not deleted."""
    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = refusing("a#z")
    net.put("a", text="z")
    net.run()
    net.put("a", text="y q")
    assert net.run().exit == 0
    assert said(net)[-1] == "-a#x" or {*said(net)[-2:]} == {"-a#x", "-a#z"}
    assert "-a#y" not in said(net)
    net.drop("a")
    net.run()
    assert {"-a#y", "-a#q"} < {*said(net)}


def test_a_destination_may_delete_them_at_once(net: PlanWorld) -> None:
    end(net.source().step("words", words), net, stale="delete")
    net.put("a", text="x")
    net.run()
    net.out("out").answer = refusing("a#z")
    net.put("a", text="z")
    assert net.run().exit == 3
    assert said(net)[-1] == "-a#x"


@pytest.mark.rule("child.held")
@pytest.mark.parametrize(("guarantee", "batch"), [*zip(GUARANTEES, (500, 1, 2), strict=True)])
def test_deletes_wait_for_an_upsert_that_is_tried_again(net: PlanWorld, guarantee: str, batch: int) -> None:
    """They spend no attempt, and no run comes to rest before they are sent."""
    net.out("out").transactional = guarantee == "exactly-once"
    end(net.source().step("words", words), net, guarantee=guarantee, batch=batch, backoff=NOT_SOON_S)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = refusing("a#z", outcome=Outcome.transient)
    net.put("a", text="w z")
    assert net.run(wait=0).exit == 4
    assert not {"-a#x", "-a#y"} & {*said(net)}
    assert status(net, "a#x") == "ERROR"
    assert net.history("a#x")[-1]["message"].startswith("waits until a#z")
    assert net.run(wait=0).exit == 4
    net.out("out").answer = None
    net.retry()
    assert net.run().exit == 0
    assert {*said(net)[-2:]} == {"-a#x", "-a#y"}


def test_a_delete_that_is_retried_alone_is_held_again(net: PlanWorld) -> None:
    """As long as the upsert is not delivered."""
    end(net.source().step("words", words), net)
    net.put("a", text="x")
    net.run()
    net.out("out").answer = refusing("a#z")
    net.put("a", text="z")
    net.run()
    net.retry(document="a#x")
    assert net.run().exit == 3
    assert "-a#x" not in said(net)


def test_an_upsert_in_doubt_holds_them_too(net: PlanWorld) -> None:
    end(net.source().step("words", words), net, guarantee="at-most-once")
    net.put("a", text="x")
    net.run()

    def breaks(delivery: Any) -> Outcome:
        if delivery.operation == "upsert":
            raise RuntimeError("broken")
        return Outcome.ok()

    net.out("out").answer = breaks
    net.put("a", text="z")
    assert net.run().exit == 3
    assert "-a#x" not in said(net)


@pytest.mark.rule("child.held")
def test_an_upsert_that_another_worker_has_claimed_holds_them(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of a task, of which one has claimed the upsert and was killed then: the other deletes nothing."""
    end(net.source().step("words", words), net, guarantee="at-most-once", batch=1)
    net.put("a", text="x")
    net.run()
    claim, claimed = Journal.claim, []

    def by_another(journal: Journal, pass_: int, rows: RowSpan, eligible: list[int] | None = None) -> bool:
        claimed.append(claim(journal, pass_, rows, eligible))
        return claimed[-1] and len(claimed) > 1

    monkeypatch.setattr(Journal, "claim", by_another)
    monkeypatch.setattr(Journal, "owner_alive", lambda *_: False)
    net.put("a", text="z")
    assert net.run().exit == 3
    assert claimed[0]
    assert "-a#x" not in said(net)
    assert [status(net, name) for name in ("a#x", "a#z")] == ["DEAD", "INDEXING"]


@pytest.mark.rule("child.held")
def test_a_child_that_a_step_could_not_make_holds_them(net: PlanWorld) -> None:
    """Until its retry has passed; for good as long as it has failed for good."""
    bad = {"a#z"}
    end(net.source().step("words", words).step("check", failing(bad)), net, attempts=1)
    net.put("a", text="x y")
    net.run()
    net.put("a", text="w z")
    assert net.run().exit == 3
    assert said(net)[-1] == "a#w"
    net.retry()
    assert net.run().exit == 3
    assert not {"-a#x", "-a#y"} & {*said(net)}
    bad.clear()
    net.retry()
    assert net.run().exit == 0
    assert said(net)[-3:] in (["a#z", "-a#x", "-a#y"], ["a#z", "-a#y", "-a#x"])


def test_a_later_version_lets_go_of_what_a_step_held(net: PlanWorld) -> None:
    bad = {"a#z"}
    end(net.source().step("words", words).step("check", failing(bad)), net, attempts=1)
    net.put("a", text="x y")
    net.run()
    net.put("a", text="w z")
    net.run()
    net.put("a", text="y q")
    assert net.run().exit == 0
    assert {"-a#x", "-a#w"} <= {*said(net)}
    assert "-a#y" not in said(net)


@pytest.mark.rule("child.held")
@pytest.mark.parametrize("bad", ["a", "a#z"])
def test_what_a_failed_step_keeps_of_an_older_version_is_shown(net: PlanWorld, bad: str) -> None:
    """Where the parent failed for good, and where one child did."""
    failing_ids: set[str] = set()
    check = failing(failing_ids)
    end(net.source().step("before", check).step("words", words).step("check", check), net, attempts=1)
    net.put("a", text="x y")
    net.run()
    assert older_deliveries(net.root, "a", net.plan) == []
    failing_ids.add(bad)
    net.put("a", text="y z")
    net.run()
    stay = ["a#x"] if bad == "a#z" else ["a#x", "a#y"]
    assert sorted(each.document for each in older_deliveries(net.root, "a", net.plan)) == stay
    failing_ids.clear()
    net.retry()
    net.run()
    assert older_deliveries(net.root, "a", net.plan) == []
    assert said(net)[-1] == "-a#x"


def test_a_deleted_document_takes_along_what_a_step_held(net: PlanWorld) -> None:
    end(net.source().step("words", words).step("check", failing({"a#z"})), net, attempts=1)
    net.put("a", text="x")
    net.run()
    net.put("a", text="w z")
    net.run()
    net.drop("a")
    assert net.run().exit == 0
    assert {"-a#x", "-a#w"} <= {*said(net)}


@pytest.mark.rule("child.held")
def test_deletes_wait_for_upserts_of_an_earlier_wave(net: PlanWorld) -> None:
    """One child waits at the destination, the other is made by a retry: the deletes come with the second."""
    bad = {"a#z"}
    end(net.source().step("words", words).step("check", failing(bad)), net, attempts=1)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = refusing("a#w")
    net.put("a", text="w z")
    assert net.run().exit == 3
    bad.clear()
    net.retry(document="a#z")
    assert net.run().exit == 3
    assert said(net)[-1] == "a#z"
    net.out("out").answer = None
    net.retry()
    assert net.run().exit == 0
    assert {*said(net)[-2:]} == {"-a#x", "-a#y"}


def test_a_large_family_in_several_files(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes in a later file wait for an upsert in an earlier one, in each pass."""
    monkeypatch.setattr(limits, "PART_BYTES", 2_000)
    end(net.source().step("words", words), net, batch=7)
    net.put("a", text=" ".join(f"x{n}" for n in range(60)))
    net.run()
    net.out("out").answer = refusing("a#y3")
    net.put("a", text=" ".join(f"y{n}" for n in range(60)))
    assert net.run().exit == 3
    assert not any(each.startswith("-") for each in said(net))
    net.retry(document="a#x5")
    assert net.run().exit == 3
    assert not any(each.startswith("-") for each in said(net))
    net.out("out").answer = None
    net.retry()
    assert net.run().exit == 0
    assert len({each for each in said(net) if each.startswith("-")}) == 60


def test_a_document_that_is_deleted_waits_for_nothing(net: PlanWorld) -> None:
    """A delete of the source's own."""
    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = refusing("a#z")
    net.put("a", text="z y")
    net.run()
    net.drop("a")
    assert net.run().exit == 0
    assert {"-a#x", "-a#y"} <= {*said(net)}


@pytest.mark.rule("child.held-shown")
@pytest.mark.parametrize("bad", ["a", "a#z"])
def test_status_and_deliveries_show_what_a_failed_step_holds(net: PlanWorld, bad: str) -> None:
    """With the document that failed; in no count, for the old version was delivered and is counted as that."""
    failing_ids: set[str] = set()
    check = failing(failing_ids)

    def held(**options: Any) -> list[dict[str, Any]]:
        rows = account.deliveries(net.root, plan=net.plan, **options)
        assert account.count_deliveries(net.root, plan=net.plan, **options) == len(rows)
        assert account.deliveries(net.root, plan=net.plan, limit=1, **options) == rows[:1]
        return [row for row in rows if row["status"] == "held"]

    end(net.source().step("before", check).step("words", words).step("check", check), net, attempts=1)
    net.put("a", text="x y")
    net.put("other", text="k")
    net.run()
    assert held() == held(status="held") == []
    failing_ids.add(bad)
    net.put("a", text="y z")
    assert net.run().exit == 3
    stay = ["a#x"] if bad == "a#z" else ["a#x", "a#y"]
    rows = held(status="held")
    assert sorted(row["document"] for row in rows) == stay
    for row in rows:
        assert (row["operation"], row["destination"], row["origin"]) == ("delete", "out", "a")
        assert f"failed for {bad} of the newer version; `ferryman retry" in row["message"]
    assert held() == held(family="a") == held(destination="out") == held(source=rows[0]["source"]) == rows
    assert held(family="other") == held(status="failed") == held(destination="none") == []
    counts = account.status(net.root, net.plan)
    assert counts["balanced"]
    assert account.activity(net.root, net.plan, counts)["held"] == len(stay)
    failing_ids.clear()
    net.retry()
    net.run()
    assert held() == []
    assert account.activity(net.root, net.plan, account.status(net.root, net.plan))["held"] == 0


def test_the_counts_of_a_large_state_keep_how_many_are_held(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COUNTED_EVENTS", 0)
    failing_ids: set[str] = set()
    end(net.source().step("words", words).step("check", failing(failing_ids)), net, attempts=1)
    net.put("a", text="x y")
    net.run()
    failing_ids.add("a#z")
    net.put("a", text="y z")
    net.run()
    counts = account.status(net.root, net.plan)
    monkeypatch.setattr("ferryman.account.relations.View.held", None)
    assert account.activity(net.root, net.plan, counts)["held"] == 1
