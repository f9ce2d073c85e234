"""What ``fsck`` finds in a damaged state."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ferryman.errors import UsageError
from ferryman.operations import check
from ferryman.state.state import State
from ferryman.storage import files
from tests.support.damage import KINDS, damaged, entry, flip, live, made, make, tree
from tests.support.plan_world import PlanWorld

__all__ = ["damaged", "made"]


def test_fsck_lists_all_damaged_files_at_once(damaged: PlanWorld) -> None:
    """Not the first only: one of every kind, each told once, with what can be done."""
    state = State(damaged.root, damaged.plan)
    kinds = [
        "documents middle log entry",
        "outbox checkpoint",
        "ledger data",
        "ledger data of wave 3",
        "journal",
        "command",
    ]
    paths = [KINDS[k](state) for k in kinds]
    for path in paths:
        flip(path)
    before = tree(damaged.root)
    findings = check(damaged.root)
    assert sorted(f.path for f in findings) == sorted(str(p) for p in paths)
    assert all("restore this file from a copy" in f.remedy for f in findings)
    assert tree(damaged.root) == before


def test_fsck_verifies_data_files_also_where_the_log_is_damaged(damaged: PlanWorld) -> None:
    """Their names hold their checksums: a damaged log does not hide a damaged file."""
    state = State(damaged.root, damaged.plan)
    data = live(state, "ledger")
    logs = [entry(state, "ledger", 0), entry(state, "ledger", -1), state.root / "state.json"]
    for path in (data, *logs):
        flip(path)
    assert {f.path for f in check(damaged.root)} >= {str(p) for p in (data, *logs)}


def test_fsck_of_nothing_is_a_mistake(place: Path) -> None:
    """No state there: the person is told to give the right --state."""
    with pytest.raises(UsageError, match="there is no state here"):
        check(place / "nothing-v1")


PLAN_FILE = """
from ferryman import Plan
from ferryman.sources import Memory
from tests.support.recorder import Recorder

plan = Plan("small", version=1)
plan.source("docs", Memory([{"id": "a", "raw": b"one"}])).destination("out", Recorder("/dev/null"))
"""


def test_exit_codes_of_check(place: Path) -> None:
    """``ferryman fsck``: 0 all well, 1 damage, with every file on a line; 2 no state there."""
    (place / "plan.py").write_text(PLAN_FILE)
    trial = make(place)
    trial.run(wait=0)
    repository = Path(__file__).parents[2]

    def command(state: Path, *options: str) -> subprocess.CompletedProcess[str]:
        arguments = [
            sys.executable,
            "-m",
            "ferryman.cli",
            "fsck",
            str(place / "plan.py"),
            "--state",
            str(state),
            *options,
        ]
        return subprocess.run(arguments, capture_output=True, text=True, cwd=repository, check=False)

    shutil.copytree(trial.root, place / "other" / "small-v1")
    name = place / "other" / "small-v1" / "state.json"
    found: Any = files.unseal(name)
    name.write_bytes(files.seal({**found, "plan": "small"}))  # the same state, under the name of the plan file's plan
    done = command(place / "other")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all well" in done.stdout
    paths = [live(State(name.parent, trial.plan), t) for t in ("ledger", "documents")]
    for path in paths:
        flip(path)
    done = command(place / "other", "--json")
    assert done.returncode == 1
    assert sorted(f["path"] for f in msgspec.json.decode(done.stdout)) == sorted(map(str, paths))
    assert command(place / "nowhere").returncode == 2
