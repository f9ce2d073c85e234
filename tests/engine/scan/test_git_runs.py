"""Runs over a Git repository."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ferryman.errors import TransientError
from ferryman.sources import Git
from tests.support.git_server import GitRepository
from tests.support.plan_world import Interrupted, PlanWorld, Until

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def test_runs_follow_the_branch(trial: PlanWorld, place: Path) -> None:
    repository = GitRepository(place / "r")
    for name in "abcd":
        repository.put(name, f"File {name}")
    repository.commit()
    trial.build(source=Git(repository.path, cache=place / "cache"))
    assert trial.run().exit == 0
    assert trial.run().exit == 0
    assert trial.arrived() == dict.fromkeys("abcd", 1)
    repository.put("a", "Changed")
    repository.git("rm", "--quiet", "b")
    repository.commit()
    assert trial.run().exit == 0
    assert trial.arrived() == {"a": 2, "b": 1, "c": 1, "d": 1, "-b": 1}
    assert trial.counts() == {"delivered": 3, "deleted": 1}


def test_what_waits_is_tried_again_at_the_same_commit(trial: PlanWorld, place: Path) -> None:
    repository = GitRepository(place / "r")
    for name in "abc":
        repository.put(name, f"File {name}")
    repository.commit()

    def fails_at_first(doc: Any) -> Any:
        if doc.id == "b" and not (place / "well").exists():
            raise TransientError("not now")
        return doc

    trial.build(fails_at_first, source=Git(repository.path, cache=place / "cache"))
    assert trial.run(wait=0).exit == 4
    (place / "well").touch()
    trial.retry()
    assert trial.run(wait=0).exit == 0
    assert trial.arrived() == dict.fromkeys("abc", 1)
    trial.retry(force=True, document="a")
    assert trial.run(wait=0).exit == 0
    assert trial.arrived() == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize(("wave", "phase"), [(1, "transform"), (1, "commit"), (2, "deliver")])
def test_a_killed_run_goes_on(trial: PlanWorld, place: Path, wave: int, phase: str) -> None:
    repository = GitRepository(place / "r")
    for name in "abcd":
        repository.put(name, name * 1000)
    repository.commit()
    trial.build(source=Git(repository.path, cache=place / "cache"))
    with pytest.raises(Interrupted):
        trial.run(observer=Until(wave, phase), wave_bytes=2000)
    assert trial.run().exit == 0
    assert trial.arrived() == dict.fromkeys("abcd", 1)
