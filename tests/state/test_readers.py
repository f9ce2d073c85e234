"""Questions while a run goes on: answered, consistent, and never a false alarm."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.account import queries
from ferryman.errors import EngineError, StateDamaged
from ferryman.observe import Silent
from ferryman.operations import check
from ferryman.storage.tables import Table
from tests.support.plan_world import PlanWorld

WAVES = 24

ASK = """
import sys
from pathlib import Path
from ferryman import account
from ferryman.account import queries
from ferryman.operations import check
from ferryman.state.state import plan_of
from ferryman.state.state import State

root, asked = Path(sys.argv[1]), 0
plan = plan_of(root)
while not (root.parent / "enough").exists():
    account.waves(root, limit=3, plan=plan)
    status = account.status(root, plan)
    assert status["balanced"], status
    account.deliveries(root, plan=plan)
    events = account.history(root, "a", plan)
    assert [e["revision"] for e in events] == sorted(e["revision"] for e in events), events
    assert len({e["delivery_hash"] for e in events}) == len(events)
    found = check(root)
    assert found == [], found
    asked += 1
print(asked)
"""


class Enough(Exception):
    """Ends a run that would go on for ever."""


def test_questions_are_answered_while_files_are_replaced(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process asks all the time, while every second wave merges files and folds logs."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 3)
    trial.put("a", "b")
    trial.run()
    repository = Path(__file__).parents[2]
    reader = subprocess.Popen(
        [sys.executable, "-c", ASK, str(trial.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=repository,
    )
    done = 0

    def change(_pause: float) -> None:
        nonlocal done
        done += 1
        if done >= WAVES or reader.poll() is not None:
            raise Enough
        trial.put("a", text=f"turn {done}")

    with pytest.raises(Enough):
        trial.run(every=0, sleep=change, observer=Silent(), checked=False)
    (trial.root.parent / "enough").touch()
    said, errors = reader.communicate(timeout=300)
    assert reader.returncode == 0, errors
    assert int(said) >= 1
    assert done == WAVES
    trial.run()


def replaced_files(trial: PlanWorld) -> set[str]:
    """Data files that are there and that no table names."""
    found = set()
    with trial.take() as state:
        for table in state.tables:
            found |= {p.name for p in table.folder.glob("*.parquet")} - set(table.files)
    return found


@pytest.mark.rule("state.readers")
def test_what_is_replaced_stays_while_somebody_reads(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was there before finds all its files; with the next one that is replaced they go."""
    trial.put("a", "b")
    trial.run()
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    with queries.open_view(trial.root, trial.plan) as view:
        before = view.status()
        for turn in range(3):
            trial.put("a", text=f"turn {turn}")
            trial.run()
        kept = replaced_files(trial)
        assert len(kept) >= 3
        assert before["balanced"]
        assert view.rows("SELECT count(*) AS n FROM ledger") == [{"n": 2}]
        assert check(trial.root) == []
    trial.put("a", text="the last")
    trial.run()
    assert replaced_files(trial) == set()


def test_no_room_for_what_a_question_cannot_hold_in_memory(trial: PlanWorld) -> None:
    """The state is not called damaged for it."""
    trial.put("a")
    trial.run()
    with pytest.raises(EngineError, match="make room there"), queries.open_view(trial.root, trial.plan):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.rule("state.readers")
def test_readers_without_a_gap_keep_nothing_for_ever(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was replaced longer ago than the grace goes, although somebody always reads."""
    trial.put("a")
    trial.run()
    with queries.open_view(trial.root, trial.plan):
        trial.put("a", text="two")
        trial.run()
        assert replaced_files(trial)
        monkeypatch.setattr(limits, "READERS_GRACE_S", -1.0)
        trial.run()
        assert replaced_files(trial) == set()


@pytest.mark.rule("state.readers")
def test_a_killed_reader_keeps_nothing(trial: PlanWorld) -> None:
    trial.put("a")
    trial.run()
    code = (
        "import sys, time; from pathlib import Path; from ferryman.storage.locks import Readers\n"
        "with Readers(Path(sys.argv[1])).reading(): print('reading', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(trial.root / "readers")]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    with reader.stdout:
        assert reader.stdout.readline() == "reading\n"
        trial.put("a", text="two")
        trial.run()
        assert replaced_files(trial)
        reader.kill()
        reader.wait()
    trial.run()
    assert replaced_files(trial) == set()


def test_a_half_written_command_of_somebody_at_work_stays(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retry` writes its command beside a run that sweeps; what a crash left an hour ago goes."""
    trial.put("a")
    trial.run()
    half = trial.root / "commands" / ".tmp-1"
    half.touch()
    trial.run(checked=False)
    assert half.exists()
    os.utime(half, (0, 0))
    trial.run()
    assert not half.exists()


@pytest.mark.rule("state.readers")
def test_a_damaged_file_is_named_although_the_driver_goes_on(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is committed between any two looks; what every look finds is damage all the same."""
    trial.put("a")
    trial.run()
    numbers = iter(range(10**6))
    monkeypatch.setattr(queries, "last_entries", lambda root: (next(numbers),))
    monkeypatch.setattr(queries, "_PAUSE_S", 0)
    [path] = (trial.root / "ledger").glob("*.parquet")
    path.unlink()
    with pytest.raises(StateDamaged, match=path.name):
        trial.status()


def test_a_reader_sees_a_wave_whole_or_not_at_all(trial: PlanWorld) -> None:
    """Asked between any two commits of a settling wave: every document is somewhere, none is twice."""
    trial.put("a", "b", "c")
    trial.run()
    trial.put("a", "b", text="two")
    trial.put("d")
    trial.drop("c")
    seen: list[dict[str, Any]] = []
    asking = threading.Lock()
    real = Table.commit

    def commit(self: Table, kind: str, **options: Any) -> None:
        real(self, kind, **options)
        with asking:
            seen.append({"after": f"{kind} of {self.name}", **trial.status()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "commit", commit)
        trial.run()
    assert len(seen) >= 4
    for status in seen:
        counts = status["destinations"]["out"]
        assert status["balanced"], status
        assert counts["delivered"] + counts["deleted"] + counts["pending"] == 4, status
        assert status["sources"] == {"docs": {"documents": 3, "deleted": 1, "again": 0}}, status


def test_a_torn_last_entry_is_damage(trial: PlanWorld) -> None:
    """An entry is whole before it gets its name: one that is not was damaged since, and is named to everybody."""
    trial.put("a")
    trial.run()
    with trial.take() as state:
        state.ledger.commit("compact")
        path = state.ledger.log.path(state.ledger.version)
    path.write_bytes(path.read_bytes()[:50])
    for use in (trial.status, lambda: trial.statuses("a"), trial.run):
        with pytest.raises(StateDamaged) as error:
            use()
        assert error.value.path == str(path)
    assert [finding.path for finding in check(trial.root)] == [str(path)]


def test_too_little_memory_is_no_damage(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that does not fit says so, and accuses no file."""
    trial.put("a")
    trial.run()
    monkeypatch.setattr(limits, "QUERY_MEMORY", "1KB")
    with pytest.raises(EngineError, match="this query needs more than 1KB of memory"):
        trial.status()
