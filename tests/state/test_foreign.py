"""A state of another format or plan, or no state at all, is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.errors import StateForeign
from ferryman.operations import check
from ferryman.plan import Plan
from ferryman.state.state import State
from ferryman.storage import files
from tests.support.damage import damaged, made, refusal, tree
from tests.support.plan_world import PlanWorld

__all__ = ["damaged", "made"]


def reseal(root: Path, **changes: object) -> None:
    path = root / "state.json"
    found: Any = files.unseal(path)
    path.write_bytes(files.seal({**found, **changes}))


def test_a_newer_format_is_refused(damaged: PlanWorld) -> None:
    """What a newer Ferryman wrote is left to it; a question is refused too."""
    reseal(damaged.root, format=limits.FORMAT + 1)
    error = refusal(damaged, StateForeign)
    assert f"format {limits.FORMAT + 1}" in str(error)
    assert "Use the newer Ferryman" in str(error)
    with pytest.raises(StateForeign):
        damaged.status()
    assert [f.remedy for f in check(damaged.root)] == ["use the Ferryman and the plan that wrote it"]


@pytest.mark.parametrize("other", [Plan("other", 1), Plan("trial", 2)])
def test_the_state_of_another_plan_is_refused(damaged: PlanWorld, other: Plan) -> None:
    """Name and version; both are said."""
    before = tree(damaged.root)
    with pytest.raises(
        StateForeign, match=f"state of plan trial version 1, not of {other.name} version {other.version}"
    ):
        State.take(damaged.root, other)
    assert tree(damaged.root) == before


@pytest.mark.parametrize(
    "strange",
    ["thesis.txt", "documents/thesis.txt", "outbox/old/thesis.txt", "journal/monday.md", "staging/thesis.txt"],
)
def test_a_foreign_folder_is_not_made_a_state(trial: PlanWorld, strange: str) -> None:
    """Folders may have the names that ours have, and a person's files in them: nothing is made, nothing removed."""
    path = trial.root / strange
    path.parent.mkdir(parents=True)
    path.write_text("five years of work")
    trial.put("a")
    error = refusal(trial, StateForeign)
    assert "thesis.txt" in str(error) or "monday.md" in str(error)
    assert "Nothing was touched" in str(error)
    assert not (trial.root / "lock").exists()


def test_a_file_in_place_of_the_folder_is_refused(trial: PlanWorld) -> None:
    """In words, not with a stack trace."""
    trial.root.parent.mkdir(parents=True)
    trial.root.write_text("a file")
    with pytest.raises(StateForeign):
        trial.run(checked=False)
    assert trial.root.read_text() == "a file"


def test_an_empty_folder_is_made_a_state(trial: PlanWorld) -> None:
    """And so is one that a crash left half made."""
    trial.root.mkdir(parents=True)
    for name in ("commands", "staging", "journal/closed", "outbox/_delta_log"):
        (trial.root / name).mkdir(parents=True)
    (trial.root / "lock").write_bytes(b"")
    (trial.root / ".tmp-0123").write_bytes(b"half")
    trial.put("a")
    assert trial.run().delivered == 1
