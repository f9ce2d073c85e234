"""A person's word: what `retry` chooses, what becomes of it, and what is written down."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.engine import commands
from ferryman.errors import UsageError
from ferryman.operations import Retried
from ferryman.sources import Memory
from ferryman.state.commands import queued_commands
from ferryman.state.state import State
from tests.support import NOT_SOON_S
from tests.support.invariants import rows as table_rows
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch, run_plan
from tests.support.recorder import Recorder
from tests.support.tiers import sampled

pytestmark = pytest.mark.usefixtures("in_waves")


def decided(delivery: Delivery) -> Outcome:
    """By the id: ``dead*`` is refused, ``late*`` fails, all else is fine."""
    if delivery.id.startswith("dead"):
        return Outcome.permanent("refused")
    if delivery.id.startswith("late"):
        return Outcome.transient("busy")
    return Outcome.ok()


def text(doc: Document) -> Document:
    doc["text"] = doc.text()
    return doc


@pytest.fixture
def mixed(trial: PlanWorld) -> PlanWorld:
    """Delivered, dead, waiting and bad documents; the destination is fine from now on."""
    trial.build(text, answer=decided, backoff=NOT_SOON_S)
    trial.put("fine", "dead1", "dead2", "late1", "late2")
    trial.documents.append({"id": "bad", "raw": b"\xff"})
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"delivered": 1, "failed": 2, "rejected": 1, "pending": 2}
    trial.out().forget()
    trial.out().answer = lambda d: Outcome.ok()
    return trial


def attempts(trial: PlanWorld) -> dict[str, int]:
    return {line["id"]: line["attempt"] for line in trial.out().lines()}


# --- retry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({}, ["bad", "dead1", "dead2", "late1", "late2"]),
        ({"status": "dead"}, ["dead1", "dead2"]),
        ({"status": "DEAD"}, ["dead1", "dead2"]),
        ({"status": "error"}, ["late1", "late2"]),
        ({"status": "error_doc"}, ["bad"]),
        ({"document": "dead2"}, ["dead2"]),
        ({"document": "dead2", "status": "error"}, []),
        ({"destination": "out", "status": "dead"}, ["dead1", "dead2"]),
        ({"destination": "elsewhere"}, []),
        ({"source": "docs", "status": "error"}, ["late1", "late2"]),
        ({"source": "elsewhere"}, []),
        ({"status": "indexed"}, []),
    ],
)
def test_the_filters_narrow_it_down(mixed: PlanWorld, filters: dict[str, Any], ids: list[str]) -> None:
    """What failed and fits gets a RESTART; nothing else has an event."""
    before = len(table_rows(mixed.root, "ledger"))
    waves = mixed.status()["waves"]
    assert mixed.retry(**filters) == Retried(len(ids), False)
    events = table_rows(mixed.root, "ledger")
    assert sorted(e["document"] for e in events if e["status"] == "RESTART") == ids
    assert len(events) == before + len(ids)
    most = len(ids) if limits.COMMAND_DELIVERIES == 1 else 1
    assert bool(ids) <= mixed.status()["waves"] - waves <= most * bool(ids)
    assert list(State(mixed.root, mixed.plan).commands.iterdir()) == []
    mixed.run(wait=0)
    sent = set(attempts(mixed)) | {"bad" for _ in range("bad" in ids)}
    assert sent >= set(ids)


@pytest.mark.rule("retry.restart")
def test_parked_and_waiting_rows_become_due_with_attempts_from_zero(mixed: PlanWorld) -> None:
    """The same deliveries, by the same hashes, as a first attempt."""
    before = {r["document"]: (r["delivery_hash"], r["first_sequence"]) for r in table_rows(mixed.root, "outbox")}
    mixed.retry(status="failed")
    mixed.retry(status="error")
    waiting = table_rows(mixed.root, "outbox")
    assert {(r["attempt"], r["due"]) for r in waiting} == {(0, 0)}
    assert {r["document"]: (r["delivery_hash"], r["first_sequence"]) for r in waiting} == before
    assert mixed.counts() == {"delivered": 1, "rejected": 1, "pending": 4}
    mixed.run()
    assert mixed.counts() == {"delivered": 5, "rejected": 1}
    assert attempts(mixed) == dict.fromkeys(["dead1", "dead2", "late1", "late2"], 1)
    assert {line["id"]: line["hash"] for line in mixed.out().lines()} == {i: h for i, (h, _) in before.items()}
    assert mixed.statuses("dead1") == ["DEAD", "RESTART", "INDEXED"]


def test_only_what_was_chosen_becomes_due(mixed: PlanWorld) -> None:
    """Rows of the same file that were not meant stay as they were."""
    mixed.retry(document="dead1")
    waiting = {r["document"]: (r["attempt"], r["due"] is None, r["due"] == 0) for r in table_rows(mixed.root, "outbox")}
    assert waiting == {
        "dead1": (0, False, True),
        "dead2": (1, True, False),
        "late1": (1, False, False),
        "late2": (1, False, False),
    }
    mixed.run(wait=0)
    assert attempts(mixed) == {"dead1": 1}


def test_a_bad_document_is_read_again(mixed: PlanWorld) -> None:
    """The same revision: if it can be read now, its delivery is the one that was refused."""
    refused = mixed.history("bad")[0]
    mixed.retry(status="rejected")
    mixed.run(wait=0)
    assert mixed.statuses("bad") == ["ERROR_DOC", "RESTART", "ERROR_DOC"]
    assert {e["delivery_hash"] for e in mixed.history("bad")} == {refused["delivery_hash"]}
    assert {e["revision"] for e in mixed.history("bad")} == {1}


@pytest.mark.rule("retry.restart")
def test_a_dead_step_error_is_fed_again(trial: PlanWorld) -> None:
    """What no outbox row waits for is taken up by the next scan, unchanged as it is."""
    broken = trial.folder / "broken"
    broken.touch()

    def fragile(doc: Document) -> Document:
        if broken.exists():
            raise RuntimeError("out of order")
        return doc

    trial.build(fragile)
    trial.put("a")
    assert trial.run().failed == 1
    broken.unlink()
    assert trial.run().failed == 1, "not by itself"
    assert trial.retry() == Retried(1, False)
    trial.run()
    assert trial.counts() == {"delivered": 1}
    assert trial.statuses("a") == ["ERROR", "ERROR", "DEAD", "RESTART", "INDEXED"]


@pytest.mark.rule("retry.told")
def test_who_when_and_why_are_written_down(mixed: PlanWorld) -> None:
    """In the event's message; without a reason only who."""
    mixed.retry(document="dead1", why="the index has room again")
    mixed.retry(document="dead2")
    mixed.retry(document="fine", force=True, why="to be sure")
    who = getpass.getuser()
    first, second, third = (mixed.history(i)[-1] for i in ("dead1", "dead2", "fine"))
    assert first["message"].startswith(f"retry by {who}@")
    assert first["message"].endswith(": the index has room again")
    assert second["message"].startswith(f"retry by {who}@")
    assert ":" not in second["message"]
    assert third["message"].startswith(f"retry --force by {who}@")
    assert first["created"] < second["created"] < third["created"]


def test_retrying_again_before_anything_was_sent_says_nothing_new(mixed: PlanWorld) -> None:
    """A RESTART that waits is no failure."""
    assert mixed.retry(status="failed").count == 2
    assert mixed.retry(status="failed").count == 0
    mixed.run(wait=0)
    assert mixed.counts()["delivered"] == 3


def test_deletes_that_failed_are_sent_again(trial: PlanWorld) -> None:
    """A delete is a delivery too."""
    trial.build(answer=lambda d: Outcome.permanent("locked") if d.operation == "delete" else Outcome.ok())
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    trial.run()
    assert trial.counts() == {"delivered": 1, "failed": 1}
    trial.out().answer = lambda d: Outcome.ok()
    assert trial.retry().count == 1
    trial.run()
    assert trial.counts() == {"delivered": 1, "deleted": 1}


# --- retry --force --------------------------------------------------------------------------------------


@pytest.mark.rule("retry.force")
def test_force_makes_a_new_revision(mixed: PlanWorld) -> None:
    """Unchanged, and read again all the same: a new hash, a higher sequence."""
    before = mixed.history("fine")[0]
    assert mixed.retry(document="fine", force=True) == Retried(1, False)
    assert mixed.counts()["pending"] == 3, "what a person asked for is owed"
    mixed.run(wait=0)
    after = mixed.history("fine")[-1]
    assert (before["revision"], after["revision"]) == (1, 2)
    assert before["version"] == after["version"]
    assert before["delivery_hash"] != after["delivery_hash"]
    assert [line["hash"] for line in mixed.out().lines()] == [after["delivery_hash"]]
    assert [s for s in mixed.statuses("fine") if s != "DROPPED"] == ["INDEXED", "FORCE", "INDEXED"]


def test_force_reads_a_dead_and_a_bad_document_again(mixed: PlanWorld) -> None:
    """As new revisions; the old ones are history."""
    assert mixed.retry(status="failed", force=True).count == 2
    assert mixed.retry(status="rejected", force=True).count == 1
    mixed.run(wait=0)
    assert mixed.counts() == {"delivered": 3, "rejected": 1, "pending": 2}
    assert [e["revision"] for e in mixed.history("dead1")][-1] == 2
    assert [e["revision"] for e in mixed.history("bad")][-1] == 2


def test_force_is_spoken_once(mixed: PlanWorld) -> None:
    """One new revision, however many scans follow."""
    mixed.retry(document="fine", force=True)
    for _ in range(3):
        mixed.run(wait=0)
    assert [line["id"] for line in mixed.out().lines()] == ["fine"]


def test_force_over_everything(trial: PlanWorld) -> None:
    """Every document that is there; those that are gone stay gone, and the run ends."""
    trial.put("a", "b", "c")
    trial.run()
    trial.drop("c")
    trial.run()
    trial.out().forget()
    trial.retry(force=True)
    trial.run()
    assert sorted(trial.out().arrived()) == ["a", "b"]
    assert trial.counts() == {"delivered": 2, "deleted": 1}


def test_a_forced_document_that_vanishes_is_deleted(trial: PlanWorld) -> None:
    """The person's word is about something that is not there any more."""
    trial.put("a", "b")
    trial.run()
    trial.retry(document="a", force=True)
    trial.drop("a")
    trial.run()
    assert trial.counts() == {"delivered": 1, "deleted": 1}
    assert trial.out().counted()["-a"] == 1


def test_force_on_a_waiting_delivery_leaves_it_one_end(mixed: PlanWorld) -> None:
    """Committed outbox rows are never superseded: the old revision is sent first, then the new one."""
    mixed.retry(document="late1", force=True)
    mixed.run(wait=0)
    assert [line["id"] for line in mixed.out().lines()] == ["late1", "late1"]
    old = [e["status"] for e in mixed.history("late1") if e["revision"] == 1]
    assert old[-1] == "INDEXED"
    assert "DROPPED" not in old


# --- queued ---------------------------------------------------------------------------------------------


@pytest.mark.rule("retry.queued")
def test_a_word_while_a_run_holds_the_state_is_queued(mixed: PlanWorld) -> None:
    """And taken up by the next wave, told with who said it."""
    with mixed.take():
        assert mixed.retry(status="failed", why="now") == Retried(None, True)
        assert mixed.retry(document="fine", force=True) == Retried(None, True)
    watch = Watch()
    mixed.run(observer=watch, wait=0)
    assert mixed.counts() == {"delivered": 3, "rejected": 1, "pending": 2}
    taken = [m for m in watch.messages if m.startswith("applied `retry")]
    assert [m.rpartition(": ")[2] for m in taken] == ["2 deliveries", "1 delivery"]
    assert list(State(mixed.root, mixed.plan).commands.iterdir()) == []


@pytest.mark.rule("retry.queued")
def test_a_run_that_goes_on_takes_up_what_is_queued(mixed: PlanWorld) -> None:
    """`run --every`: between two scans."""

    def speak(_pause: float) -> None:
        if mixed.out().lines():
            raise Interrupted
        assert mixed.retry(status="failed").queued

    with pytest.raises(Interrupted):
        mixed.run(every=0, sleep=speak, wait=0)
    assert attempts(mixed) == {"dead1": 1, "dead2": 1}
    mixed.run(wait=0)


def test_a_word_after_a_kill_waits_for_the_recovery(mixed: PlanWorld) -> None:
    """A wave that is not settled comes first: the next run finishes it, then hears the word."""
    mixed.put("new")
    with pytest.raises(Interrupted):
        mixed.run(observer=Until(2, "settle"), checked=False, wait=0)
    assert mixed.retry(status="failed") == Retried(None, True)
    mixed.run(wait=0)
    assert mixed.counts() == {"delivered": 4, "rejected": 1, "pending": 2}


def test_a_word_that_is_taken_up_twice_does_no_harm(mixed: PlanWorld) -> None:
    """Killed after its wave was settled and before its file was removed."""
    with mixed.take():
        mixed.retry(status="failed")
    with mixed.take() as state:
        [command] = queued_commands(state)
        path = state.commands / command.file
        data = path.read_bytes()
        assert commands.apply(state, command) == 2
        path.write_bytes(data)
    mixed.run(wait=0)
    assert mixed.counts() == {"delivered": 3, "rejected": 1, "pending": 2}
    assert mixed.statuses("dead1") == ["DEAD", "RESTART", "INDEXED"]


@pytest.mark.parametrize("at", ["command.staged", "wave.logged", "settle.closed"])
@pytest.mark.parametrize("force", sampled([False, True], 2))
def test_a_word_that_is_killed_between_its_waves_is_said_to_the_rest(
    mixed: PlanWorld, monkeypatch: pytest.MonkeyPatch, at: str, force: bool
) -> None:
    """Its second wave, if there are several, is written, committed or settled: the next run goes on with the rest."""
    turn = 2 if limits.COMMAND_DELIVERIES == 1 else 1
    passed: list[str] = []

    def point(name: str) -> None:
        passed.append(name)
        if passed.count("command.staged") == turn and name == at:
            raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr("ferryman.crash.point", point)
        with pytest.raises(Interrupted):
            mixed.retry(force=force)
    assert list(State(mixed.root, mixed.plan).commands.iterdir()), "it is not done with"
    for document in mixed.documents:
        if document["id"] == "bad":
            document["raw"] = b"good"
    mixed.run(wait=0)
    assert mixed.counts() == {"delivered": 6}


# --- mistakes -------------------------------------------------------------------------------------------


def test_there_must_be_a_state(trial: PlanWorld) -> None:
    """Nothing is made by asking."""
    with pytest.raises(UsageError, match="no state of this plan yet"):
        trial.retry()
    assert not trial.state.exists()


def test_a_status_must_be_one(mixed: PlanWorld) -> None:
    """The right ones are told; nothing is queued."""
    with pytest.raises(UsageError, match="choose one of delivered, deleted"):
        mixed.retry(status="died")
    assert list(State(mixed.root, mixed.plan).commands.iterdir()) == []


def test_a_word_leaves_no_file_behind(mixed: PlanWorld) -> None:
    """The outbox file that was replaced is removed; the next run has nothing to recover."""
    mixed.retry(status="failed")
    watch = Watch()
    mixed.run(observer=watch, wait=0)
    assert not any("recovered" in m for m in watch.messages)


def test_two_sources_are_told_apart(trial: PlanWorld) -> None:
    """The same id in another source is another document."""
    plan = trial.plan
    other = Recorder(trial.folder / "other.jsonl", lambda d: Outcome.permanent("no"))
    plan.source("more", Memory([{"id": "a"}])).destination("other", other)
    trial.out().answer = lambda d: Outcome.permanent("no")
    trial.put("a")
    run_plan(plan, trial.state)
    assert trial.retry(source="more") == Retried(1, False)
    assert {(e["source"], e["status"]) for e in trial.history("a")} == {
        ("docs", "DEAD"),
        ("more", "DEAD"),
        ("more", "RESTART"),
    }
    run_plan(plan, trial.state)
    assert len(trial.out().lines()) == 1
    assert len(other.lines()) == 2
