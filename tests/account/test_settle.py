"""Settle: the journal becomes the ledger once; late and overlapping answers find their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations.base import Delivery, Effect, Outcome
from ferryman.engine.settle import has_late_answers, read_fold, settle
from ferryman.records.rows import UNTOUCHED, Result, RowResult, RowSpan, sent_events
from ferryman.state.state import State
from ferryman.storage.files import fsync_folder
from ferryman.storage.parquet import read_part, write_part
from tests.support.invariants import rows as table_rows
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.recorder import Recorder

IDS = ["a", "b", "c", "d", "e", "f"]


def here(task: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
    """Runs tasks in this process."""
    return [task(item) for item in items]


def interrupted(trial: PlanWorld, wave: int, phase: str, **options: Any) -> None:
    """Run until this phase of this wave, and no further."""
    with pytest.raises(Interrupted):
        trial.run(observer=Until(wave, phase), checked=False, wait=0, **options)


def key_of(state: State) -> int:
    [file] = state.outbox.files.values()
    return int(file.partition["first_sequence"])


def note(
    state: State, first: int, end: int, noted: list[RowResult] | None = None, *, part: bool, claim: bool = False
) -> RowSpan:
    """Publish in the name of a worker of wave 1: these rows were delivered, but for what is ``noted``."""
    noted = noted or []
    [file] = state.outbox.files.values()
    rows = RowSpan(key_of(state), first, end)
    state.journal.begin(1)
    if claim:
        assert state.journal.claim(1, rows)
    written = None
    if part:
        table = read_part(state.outbox.folder / file.path).slice(first, end - first)
        made = write_part(state.ledger.folder, sent_events(table.combine_chunks(), noted, "out", 1), epoch=1)
        fsync_folder(state.ledger.folder)
        written = (made.path, made.size, made.rows)
    assert state.journal.publish(1, Result.of(rows, end - first, noted, written))
    return rows


def versions(state: State) -> list[int]:
    return [t.version for t in state.tables]


@pytest.fixture
def committed(trial: PlanWorld) -> PlanWorld:
    """Wave 1 is committed: six documents, nothing sent."""
    trial.build(batch=2)
    trial.put(*IDS)
    interrupted(trial, 1, "deliver")
    return trial


@pytest.fixture
def once(place: Path) -> PlanWorld:
    """The same, at-most-once."""
    trial = PlanWorld(place).build(out=Recorder(place / "out.jsonl", effect=Effect.POTENT), batch=2)
    trial.put(*IDS)
    interrupted(trial, 1, "deliver")
    return trial


# --- again and again ------------------------------------------------------------------------------------


def test_settling_twice_is_settling_once(committed: PlanWorld) -> None:
    """The second call commits nothing and says the same."""
    with committed.take() as state:
        note(state, 0, 4, part=True)
        first = settle(state, 1, here)
        before = versions(state)
        assert settle(state, 1, here) == first
        assert versions(state) == before
    assert committed.run().delivered == 2


@pytest.mark.parametrize("table", ["ledger", "documents"])
def test_a_settling_that_was_cut_off_is_finished(
    committed: PlanWorld, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """After the ledger's commit, after the documents': the fold stays as committed, whatever the journal says now."""
    with committed.take() as state:
        note(state, 0, 2, part=True)
        real = getattr(state, table).commit

        def cut_off(*args: Any, **options: Any) -> None:
            real(*args, **options)
            raise Interrupted

        monkeypatch.setattr(getattr(state, table), "commit", cut_off)
        with pytest.raises(Interrupted):
            settle(state, 1, here)
        note(state, 2, 4, part=True)  # too late for this fold
    with committed.take() as state:
        info = settle(state, 1, here)
        assert info.delivered == 2
    assert committed.statuses("a") == ["INDEXED"]
    assert committed.statuses("c") == ["BATCHED"]
    summary = committed.run()
    assert summary.delivered == 4
    assert committed.out().counted() == dict.fromkeys(IDS[2:], 1), (
        "what was noted too late is sent again: at-least-once"
    )


def test_nothing_noted_is_nothing_done(committed: PlanWorld) -> None:
    """A pass without any result leaves all rows owed, no attempt spent."""
    with committed.take() as state:
        info = settle(state, 1, here)
        assert (info.delivered, info.sent, state.ledger.log.find("ledger", 1)["files"]) == (0, 0, {})
        assert state.journal.passes() == []
    assert {r["attempt"] for r in table_rows(committed.root, "outbox")} == {0}
    committed.run()
    assert committed.out().counted() == dict.fromkeys(IDS, 1)


# --- files and rows -------------------------------------------------------------------------------------


def test_a_file_that_was_delivered_whole_is_only_removed(committed: PlanWorld) -> None:
    """No row is rewritten, no task runs."""

    def none(task: object, items: object, /) -> list[Any]:
        raise AssertionError("a task ran")

    with committed.take() as state:
        [path] = state.outbox.paths()
        note(state, 0, 6, part=True)
        settle(state, 1, none)
        assert state.outbox.files == {}
        assert not path.exists()
    committed.run()
    assert committed.counts() == {"delivered": 6}


def test_of_a_mixed_file_the_rest_stays(committed: PlanWorld) -> None:
    """ERROR with its attempt and due time, DEAD parked, UNTOUCHED as it was; sequences and hashes stay."""
    before = {r["document"]: r for r in table_rows(committed.root, "outbox")}
    noted = [
        RowResult(1, "ERROR", "busy", 1, 123),
        RowResult(2, "DEAD", "no", 1, None),
        RowResult(3, UNTOUCHED, "down", 0, None),
        RowResult(4, "INDEXED", "stale: the destination has something newer", 1, None),
    ]
    with committed.take() as state:
        note(state, 0, 6, noted, part=True)
        info = settle(state, 1, here)
        assert (info.delivered, info.sent, info.failed) == (3, 5, 1)
    after = {r["document"]: r for r in table_rows(committed.root, "outbox")}
    assert {i: (r["attempt"], r["due"]) for i, r in after.items()} == {"b": (1, 123), "c": (1, None), "d": (0, 0)}
    changes = ("attempt", "due")
    assert all({**r, **{c: before[i][c] for c in changes}} == before[i] for i, r in after.items())
    assert committed.counts() == {"delivered": 3, "failed": 1, "pending": 2}
    committed.run()
    assert committed.counts() == {"delivered": 5, "failed": 1}
    assert committed.out().counted() == {"b": 1, "d": 1}


def test_only_the_documents_that_the_commit_named_become_known(committed: PlanWorld) -> None:
    """Published at settle, once."""
    assert table_rows(committed.root, "documents") == []
    with committed.take() as state:
        settle(state, 1, here)
    assert sorted(r["document"] for r in table_rows(committed.root, "documents")) == IDS
    committed.run()


# --- two workers of one file ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "again"),
    [((0, 4), (2, 6), "ef"), ((0, 6), (2, 4), ""), ((2, 4), (0, 6), ""), ((0, 2), (2, 6), ""), ((2, 6), (0, 4), "ef")],
)
def test_overlapping_results_count_each_row_once(
    committed: PlanWorld, one: tuple[int, int], other: tuple[int, int], again: str
) -> None:
    """Two workers of one file, as a lost pair of a speculation: no row ends twice; what was dropped is sent again."""
    with committed.take() as state:
        note(state, *one, part=True)
        note(state, *other, part=True)
    committed.run()
    assert committed.counts() == {"delivered": 6}
    assert committed.out().counted() == dict.fromkeys(again, 1)


def test_an_error_and_a_success_of_the_same_row_are_one_event(committed: PlanWorld) -> None:
    """The result that begins first counts, also if the other says better."""
    with committed.take() as state:
        note(state, 0, 4, [RowResult(3, "ERROR", "busy", 1, 0)], part=True)
        note(state, 2, 6, part=True)
        settle(state, 1, here)
    assert committed.statuses("d") == ["ERROR"]
    committed.run()
    assert committed.statuses("d") == ["ERROR", "INDEXED"]


# --- at-most-once ---------------------------------------------------------------------------------------


def test_a_claim_without_a_result_is_unknown_and_stays_so(once: PlanWorld) -> None:
    """Never sent again; everything else is."""
    with once.take() as state:
        state.journal.begin(1)
        assert state.journal.claim(1, RowSpan(key_of(state), 2, 4))
    summary = once.run()
    assert (summary.exit, summary.in_doubt, summary.delivered) == (3, 2, 4)
    assert once.counts() == {"delivered": 4, "in_doubt": 2}
    assert once.statuses("c") == ["INDEXING"]
    assert [d["document"] for d in once.deliveries(status="in_doubt")] == ["c", "d"]
    for _ in range(2):
        once.run()
    assert once.out().counted() == dict.fromkeys("abef", 1)


def test_what_was_claimed_is_what_was_meant(once: PlanWorld) -> None:
    """A claim over a range of which only some rows were eligible leaves only these unknown."""
    with once.take() as state:
        state.journal.begin(1)
        assert state.journal.claim(1, RowSpan(key_of(state), 0, 4), [0, 3])
    once.run()
    assert once.counts() == {"delivered": 4, "in_doubt": 2}
    assert sorted(d["document"] for d in once.deliveries(status="in_doubt")) == ["a", "d"]


def test_a_note_without_a_ledger_file_is_repaired(once: PlanWorld) -> None:
    """Killed between the note of a chunk and its ledger file: the driver has the events written."""
    with once.take() as state:
        note(state, 0, 2, [RowResult(1, "DEAD", "no", 1, None)], part=False, claim=True)
    summary = once.run()
    assert summary.in_doubt == 0
    assert once.counts() == {"delivered": 5, "failed": 1}
    assert once.out().counted() == dict.fromkeys("cdef", 1)


@pytest.fixture
def doubtful(once: PlanWorld) -> PlanWorld:
    """Wave 1 is settled: a, b, e and f are delivered; c and d were claimed, and nobody has answered."""
    with once.take() as state:
        note(state, 0, 2, part=True, claim=True)
        note(state, 4, 6, part=True, claim=True)
        assert state.journal.claim(1, RowSpan(key_of(state), 2, 4))
    once.run()
    assert once.counts() == {"delivered": 4, "in_doubt": 2}
    return once


def answer_late(
    trial: PlanWorld, first: int, end: int, noted: list[RowResult], part: tuple[str, int, int] | None = None
) -> State:
    """In the name of a worker of wave 1 that was thought dead."""
    state = State(trial.root, trial.plan)
    state.load()
    result = Result.of(RowSpan(key_of(state), first, end), end - first, noted, part)
    assert state.journal.publish(1, result)
    return state


@pytest.mark.parametrize("status", ["INDEXED", "DEAD", "ERROR"])
def test_a_late_answer_is_folded_in_by_the_next_settle(doubtful: PlanWorld, status: str) -> None:
    """The worker lived after all: what it says of its chunk ends the doubt."""
    noted = [] if status == "INDEXED" else [RowResult(3, status, "said later", 1, 0 if status == "ERROR" else None)]
    state = answer_late(doubtful, 2, 4, noted)
    assert has_late_answers(state.journal, state.settled)
    doubtful.run()
    assert not has_late_answers(state.journal, state.settled)
    assert state.journal.passes() == []
    assert doubtful.statuses("c") == ["INDEXING", "INDEXED"]
    more = {"INDEXED": ["INDEXED"], "DEAD": ["DEAD"], "ERROR": ["ERROR", "INDEXED"]}[status]
    assert doubtful.statuses("d") == ["INDEXING", *more]
    assert doubtful.out().counted() == ({"d": 1} if status == "ERROR" else {})


def test_a_late_answer_to_nobodys_question_is_ignored(doubtful: PlanWorld) -> None:
    """Only what answers an open claim counts, and of that only the worker's note: its file may be swept by now."""
    answer_late(doubtful, 0, 2, [RowResult(0, "DEAD", "late", 1, None)])
    state = answer_late(doubtful, 2, 4, [], part=("swept-long-ago.parquet", 1, 2))
    assert not any(read_fold(state, 2))
    doubtful.run()
    assert doubtful.counts() == {"delivered": 4, "in_doubt": 2}
    assert state.journal.passes() == []


def test_a_late_answer_comes_with_the_next_wave_too(doubtful: PlanWorld) -> None:
    """Not only by itself: a wave that has other things to do folds it in as well."""
    answer_late(doubtful, 2, 4, [])
    doubtful.put("g")
    doubtful.run()
    assert doubtful.counts() == {"delivered": 7}
    assert doubtful.out().counted() == {"g": 1}


def test_an_open_question_is_kept_until_the_next_settle(doubtful: PlanWorld) -> None:
    """Then the journal is gone, and the rows stay unknown."""
    state = State(doubtful.root, doubtful.plan)
    assert state.journal.passes() == [1]
    doubtful.run()
    assert state.journal.passes() == [1], "a run without a wave changes nothing"
    doubtful.put("g")
    doubtful.run()
    assert state.journal.passes() == []
    assert doubtful.counts() == {"delivered": 5, "in_doubt": 2}


def test_unknown_rows_do_not_hold_newer_ones(doubtful: PlanWorld) -> None:
    """A new version of a document in doubt goes its way; the old one is history."""
    doubtful.put("c", text="two")
    doubtful.run()
    assert doubtful.counts() == {"delivered": 5, "in_doubt": 1}
    assert doubtful.statuses("c") == ["INDEXING", "INDEXED"]


def test_a_late_answer_of_an_old_version_does_no_harm(doubtful: PlanWorld) -> None:
    """It comes when a newer one is delivered already: it is noted, and counts for the old one only."""
    answer_late(doubtful, 2, 4, [])
    doubtful.put("c", text="two")
    doubtful.run()
    assert doubtful.counts() == {"delivered": 6}
    assert sorted(e["status"] for e in doubtful.history("c")) == ["INDEXED", "INDEXED", "INDEXING"]


@pytest.mark.rule("destination.transient")
def test_only_an_explicit_transient_outcome_is_sent_again(place: Path) -> None:
    """Under at-most-once: what raised, or has no outcome, is unknown."""

    def answer(delivery: Delivery) -> Outcome | None:
        match delivery.id:
            case "c" | "d" if delivery.attempt == 1:
                return Outcome.transient("not accepted")
            case "e":
                raise ValueError("broken in the middle")
            case _:
                return Outcome.ok()

    trial = PlanWorld(place).build(out=Recorder(place / "out.jsonl", answer, effect=Effect.POTENT), batch=2)
    trial.put(*IDS)
    trial.run()
    assert trial.counts() == {"delivered": 4, "in_doubt": 2}
    assert trial.out().counted() == dict.fromkeys("abcd", 1)
    assert trial.statuses("c") == ["ERROR", "INDEXED"]
    assert trial.statuses("f") == ["INDEXING"]
    assert "broken in the middle" in trial.history("f")[0]["message"]
