"""A plan that changes: what is refused under one version, and what a new version takes over from an older one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from ferryman import account, crash, operations
from ferryman.document import Document
from ferryman.errors import PlanChanged, StateForeign, StateLost, TransientError, UsageError
from ferryman.state.state import SEQUENCE, State, state_root
from ferryman.storage.locks import Lock
from tests.support import no_lock
from tests.support.invariants import rows
from tests.support.versions import MIGRATION_POINTS, Killed, Versions, down, kill_at, louder


@pytest.fixture
def many(place: Path) -> Versions:
    many = Versions(place)
    many.documents += [{"id": id, "raw": b"one"} for id in "abc"]
    return many


def test_the_same_plan_is_no_change(many: Versions) -> None:
    many.run(many.make_plan(1, louder))
    summary = many.run(many.make_plan(1, louder))
    assert (summary.waves, summary.messages) == (0, [])


CHANGED: dict[str, tuple[Any, str]] = {
    "a node more": (lambda m: m.make_plan(1, louder), "out follows louder now, it followed docs; step louder is new"),
    "a destination more": (
        lambda m: m.make_plan(1, outs=("out", "two")),
        "out follows all now, it followed docs; router all",
    ),
    "another destination": (
        lambda m: m.make_plan(1, outs=("two",)),
        "destination out was removed; destination two is new",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_structure_is_refused(many: Versions, what: str) -> None:
    """Naming what changed and what to do; nothing was touched. Accepted, it is said once."""
    many.run(many.make_plan(1))
    changed, says = CHANGED[what]
    plan = changed(many)
    before = len(rows(state_root(plan, many.state), "ledger"))
    with pytest.raises(PlanChanged) as refused:
        many.run(plan)
    assert says in str(refused.value)
    assert "--from-version 1" in str(refused.value)
    assert "--accept-changes" in str(refused.value)
    assert refused.value.exit_code == 2
    assert len(rows(state_root(plan, many.state), "ledger")) == before


def test_changed_code_is_told_and_runs(many: Versions) -> None:
    """Once; only what is taken up from now on sees it."""
    many.run(many.make_plan(1, louder))

    def changed(doc: Document) -> Document:
        doc["loud"] = "very"
        return doc

    changed.__name__ = "louder"
    many.documents.append({"id": "d", "raw": b"one"})
    summary = many.run(many.make_plan(1, changed))
    [message] = summary.messages
    assert message.startswith(
        "louder changed: the change applies to documents processed from now on; to reprocess all, "
    )
    assert {line["id"]: line["fields"]["loud"] for line in many.out("out").lines()} == {
        "a": True, "b": True, "c": True, "d": "very"
    }  # fmt: skip
    assert many.run(many.make_plan(1, changed)).messages == []


def test_a_moved_target_is_told(many: Versions) -> None:
    many.out("out").place = "here"
    many.run(many.make_plan(1))
    many.out("out").place = "there"
    [message] = many.run(many.make_plan(1)).messages
    assert message.startswith("out writes to there now, it wrote to here: what was already delivered stays where it is")


def test_accepted_changes_are_said(many: Versions) -> None:
    """The account goes on; documents are delivered to the new node when they change, or by force."""
    many.run(many.make_plan(1))
    changed = many.make_plan(1, louder)
    summary = many.run(changed, accept_changes=True)
    assert any(m.startswith("step louder is new: existing documents are not reprocessed") for m in summary.messages)
    assert many.run(changed).messages == []


def test_a_new_version_carries_on(many: Versions) -> None:
    """What has not changed is not done again; the account and the history go on."""
    many.run(many.make_plan(1, louder))
    many.documents[0] = {"id": "a", "raw": b"two"}
    summary = many.run(many.make_plan(2, louder), from_version=1)
    assert (summary.exit, summary.delivered) == (0, 1)
    assert many.out("out").counted() == {"a": 2, "b": 1, "c": 1}
    plan = many.make_plan(2, louder)
    root = state_root(plan, many.state)
    assert account.status(root, plan)["destinations"]["out"]["delivered"] == 3
    assert [e["status"] for e in account.history(root, "b", plan)] == ["INDEXED"]
    assert summary.messages[0].startswith("plan version 2 continues from version 1: 0 documents are processed again")
    lines = many.out("out").lines()
    assert max(line["seq"] for line in lines[:3]) < lines[3]["seq"]
    assert operations.check(root) == []
    again = many.run(many.make_plan(2, louder), from_version=1)
    assert (again.waves, again.messages) == (0, [])


def test_changed_steps_have_their_documents_done_again(many: Versions) -> None:
    """As new revisions; the run says how many."""
    many.run(many.make_plan(1))
    summary = many.run(many.make_plan(2, louder), from_version=1)
    assert summary.delivered == 3
    assert summary.messages[0].startswith("plan version 2 continues from version 1: 3 documents are processed again")
    assert many.out("out").counted() == {"a": 2, "b": 2, "c": 2}
    root = state_root(many.make_plan(2), many.state)
    assert {
        r["revision"] for r in rows(root, "documents") if r["wave"] == max(x["wave"] for x in rows(root, "documents"))
    } == {2}
    events = account.history(root, "a", many.make_plan(2, louder))
    assert [(e["status"], e["destination"]) for e in events] == [
        ("INDEXED", "out"), ("RESTART", ""), ("INDEXED", "out")
    ]  # fmt: skip


def test_a_new_destination_gets_all(many: Versions) -> None:
    """And one that is gone gets no deletes: nobody asked for that."""
    many.run(many.make_plan(1, outs=("out", "old")))
    assert many.run(many.make_plan(2, outs=("out", "new")), from_version=1).exit == 0
    assert sum(many.out("new").counted().values()) == 3
    assert sum(many.out("old").counted().values()) == 3


def test_owed_rows_are_carried_over_with_their_hashes(many: Versions) -> None:
    """Sent by the new version as the old one made them; rows for a destination that is gone end DROPPED."""
    many.out("out").answer = down
    many.out("old").answer = down
    assert many.run(many.make_plan(1, outs=("out", "old")), wait=0).exit == 4
    owed = {
        r["delivery_hash"]
        for r in rows(state_root(many.make_plan(1), many.state), "outbox")
        if r["destination"] == "out"
    }
    many.out("out").answer = None
    summary = many.run(many.make_plan(2, outs=("out", "new")), from_version=1)
    assert summary.exit == 0
    assert owed <= {line["hash"] for line in many.out("out").lines() if line["said"] == "ok"}
    root = state_root(many.make_plan(2), many.state)
    dropped = [e for e in rows(root, "ledger") if e["status"] == "DROPPED" and e["destination"] == "old"]
    assert len(dropped) == 3
    assert dropped[0]["message"] == "plan version 2 continues from version 1: it has no old"
    assert "dropped 3 rows for old, which" in summary.messages[0]


def failing(doc: Document) -> Document:
    if doc.id == "a":
        raise TransientError("not yet")
    return doc


def test_what_had_failed_is_taken_up_again(many: Versions) -> None:
    """By the new version's rules."""
    many.run(many.make_plan(1, failing, attempts=1))
    assert many.run(many.make_plan(2), from_version=1).exit == 0
    assert many.out("out").counted()["a"] == 1


def test_a_waiting_word_and_an_unsettled_wave_are_finished_first(many: Versions) -> None:
    """By the older version."""
    from ferryman.operations import retry

    many.run(many.make_plan(1))
    old = many.make_plan(1)
    with State.take(state_root(old, many.state), old):
        retry(old, state=many.state, document="a", force=True)
    assert many.run(many.make_plan(2), from_version=1).exit == 0
    assert many.out("out").counted() == {"a": 2, "b": 1, "c": 1}


def test_the_older_state_is_fenced(many: Versions) -> None:
    """Nobody drives it any more; it can still be read. Another version does not take it, either."""
    old = many.make_plan(1)
    many.run(old)
    many.run(many.make_plan(2), from_version=1)
    with pytest.raises(StateForeign, match="version 2 of this plan continues from this state"):
        many.run(many.make_plan(1))
    with pytest.raises(StateForeign, match="version 2 of this plan continues from this state"):
        many.run(many.make_plan(3), from_version=1)
    assert account.status(state_root(old, many.state), old)["destinations"]["out"]["delivered"] == 3
    assert many.run(many.make_plan(3), from_version=2).exit == 0


@pytest.mark.parametrize(
    ("version", "from_version", "says"),
    [
        (2, 2, "give an older one"),
        (1, 2, "give an older one"),
        (5, 4, "there is no state of version 4"),
    ],
)
def test_there_must_be_an_older_state(many: Versions, version: int, from_version: int, says: str) -> None:
    many.run(many.make_plan(1))
    with pytest.raises(UsageError, match=says):
        many.run(many.make_plan(version), from_version=from_version)


def test_a_version_with_a_state_of_its_own_takes_none_over(many: Versions) -> None:
    many.run(many.make_plan(1))
    many.run(many.make_plan(2))
    with pytest.raises(UsageError, match="has a state of its own"):
        many.run(many.make_plan(2), from_version=1)


@pytest.mark.parametrize("point", MIGRATION_POINTS)
def test_a_kill_on_the_way_over_loses_nothing(many: Versions, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again finishes it; each document is delivered to the new destination once."""

    many.out("old").answer = down
    many.run(many.make_plan(1, outs=("out", "old")), wait=0)
    monkeypatch.setattr(crash, "point", kill_at(point))
    with pytest.raises(Killed):
        many.run(many.make_plan(2, louder, outs=("out", "new")), from_version=1)
    summary = many.run(many.make_plan(2, louder, outs=("out", "new")), from_version=1)
    assert summary.exit == 0
    assert set(many.out("new").counted().values()) == {1}
    assert set(many.out("out").counted().values()) == {2}
    root = state_root(many.make_plan(2), many.state)
    assert State(root, many.make_plan(2)).identity()["from"] == 1
    assert not list(root.parent.glob(".tmp*"))
    with State.take(root, many.make_plan(2)) as state:
        assert state.outbox.transactions[SEQUENCE] > 0


@pytest.mark.parametrize("point", ["version.fenced", "version.built"])
def test_two_drivers_do_not_both_carry_it_over(many: Versions, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is told that the older state is held, and touches nothing of what the first has made."""
    many.migrate_meanwhile(point, monkeypatch)
    assert many.out("out").counted() == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("point", ["version.fenced", "create.table", "epoch.logged", "version.logged", "version.built"])
def test_one_that_slept_on_the_way_over(many: Versions, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock was lost, another one has made the new state and works in it: what wakes removes nothing of that."""
    slept: list[str] = []

    def sleep(name: str) -> None:
        if name == point and not slept:
            slept.append(name)
            assert many.run(many.make_plan(2), from_version=1).exit == 0
            many.documents[0]["raw"] = b"two"
            assert many.run(many.make_plan(2)).delivered == 1

    monkeypatch.setattr(Lock, "take", no_lock.take)
    many.run(many.make_plan(1))
    with monkeypatch.context() as asleep, contextlib.suppress(UsageError, StateLost):
        asleep.setattr(crash, "point", sleep)
        many.run(many.make_plan(2), from_version=1)
    assert slept
    assert operations.check(state_root(many.make_plan(2), many.state)) == []
    many.run(many.make_plan(2))
    assert many.run(many.make_plan(2)).waves == 0
    assert many.out("out").counted() == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize("before", ["close", "closed"])
def test_one_that_was_overtaken_by_a_run_of_the_older_version(
    many: Versions, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock was lost, and version 1 has gone on: it does not make a state of what it has seen before."""
    real = State.close_for_version

    def sleep_and(state: State, version: int) -> None:
        with monkeypatch.context() as awake:
            awake.setattr(State, "close_for_version", real)
            if before == "closed":
                real(state, version)
            many.documents[0]["raw"] = b"two"
            if before == "close":
                assert many.run(many.make_plan(1)).delivered == 1
            else:
                with pytest.raises(StateForeign, match="version 2 of this plan continues"):
                    many.run(many.make_plan(1))
        real(state, version)

    monkeypatch.setattr(Lock, "take", no_lock.take)
    many.run(many.make_plan(1))
    with monkeypatch.context() as asleep:
        asleep.setattr(State, "close_for_version", sleep_and)
        with pytest.raises(StateLost) if before == "close" else contextlib.nullcontext():
            many.run(many.make_plan(2), from_version=1)
    assert many.run(many.make_plan(2), from_version=1).exit == 0
    assert many.out("out").counted() == {"a": 2, "b": 1, "c": 1}
    assert operations.check(state_root(many.make_plan(2), many.state)) == []


def test_a_run_of_the_older_version_that_slept_before_it_announced_itself(
    many: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 has gone on from the state meanwhile: it is refused, and delivers nothing."""
    real = State.load

    def sleep_and(state: State) -> None:
        with monkeypatch.context() as awake:
            awake.setattr(State, "load", real)
            assert many.run(many.make_plan(2), from_version=1).exit == 0
        real(state)

    monkeypatch.setattr(Lock, "take", no_lock.take)
    many.run(many.make_plan(1))
    many.documents[0]["raw"] = b"two"
    monkeypatch.setattr(State, "load", sleep_and)
    with pytest.raises(StateForeign, match="version 2 of this plan continues"):
        many.run(many.make_plan(1))
    assert many.out("out").counted() == {"a": 2, "b": 1, "c": 1}


def test_a_state_that_was_only_begun_is_in_nobodys_way(many: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run without --from-version that was killed while it made its state: nothing can be in it."""

    many.run(many.make_plan(1))
    with monkeypatch.context() as patched:
        patched.setattr(crash, "point", kill_at("create.table"))
        with pytest.raises(Killed):
            many.run(many.make_plan(2))
    assert state_root(many.make_plan(2), many.state).exists()
    assert many.run(many.make_plan(2), from_version=1).exit == 0
    assert many.out("out").counted() == {"a": 1, "b": 1, "c": 1}


def test_a_folder_that_is_no_state_is_refused_before_the_older_one_is_fenced(many: Versions) -> None:
    """Nothing was touched: the older version still runs."""
    many.run(many.make_plan(1))
    root = state_root(many.make_plan(2), many.state)
    root.mkdir()
    (root / "letter.txt").write_text("dear")
    with pytest.raises(StateForeign, match=r"letter\.txt"):
        many.run(many.make_plan(2), from_version=1)
    assert many.run(many.make_plan(1)).exit == 0
    assert (root / "letter.txt").read_text() == "dear"
