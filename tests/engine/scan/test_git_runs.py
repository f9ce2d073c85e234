"""Runs over a Git repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman.errors import TransientError
from ferryman.sources import Git
from tests.servers.registry import require_command
from tests.support.git_server import GitRepository
from tests.support.plan_world import Interrupted, PlanWorld, Until

require_command("git")


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


@pytest.mark.rule("git.changes")
def test_a_commit_that_takes_back_what_a_killed_run_has_sent(trial: PlanWorld, place: Path) -> None:
    """The commit that was listed last does not differ, but what the first wave has committed does."""
    repository = GitRepository(place / "r")
    for name in "abcd":
        repository.put(name, name * 1000)
    first = repository.commit()
    trial.build(source=Git(repository.path, cache=place / "cache", max_deleted=1))
    assert trial.run().exit == 0
    for name in "abcd0":
        repository.put(name, name * 1001)
    repository.commit()
    with pytest.raises(Interrupted):
        trial.run(observer=Until(3, "transform"), wave_bytes=2000)
    repository.git("reset", "--quiet", "--hard", first)
    assert trial.run().exit == 0
    assert (trial.counts(), {line["size"] for line in _last(trial).values()}) == (
        {"delivered": 4, "deleted": 1},
        {1000},
    )


def _last(world: PlanWorld) -> dict[str, Any]:
    """The fields of each document that is there."""
    found: dict[str, Any] = {}
    for line in world.out().lines():
        found[line["id"]] = line["fields"]
        if line["op"] == "delete":
            del found[line["id"]]
    return found


@pytest.mark.rule("git.changes")
def test_deletes_that_were_held_are_allowed_at_the_same_commit(trial: PlanWorld, place: Path) -> None:
    repository = GitRepository(place / "r")
    for name in "abcd":
        repository.put(name, f"File {name}")
    first = repository.commit()
    trial.build(source=Git(repository.path, cache=place / "cache"))
    trial.run()
    repository.git("rm", "--quiet", "a", "b", "c")
    repository.put("d", "Changed")
    repository.commit()
    for _ in range(2):
        assert trial.run().exit == 2
        assert any("3 of 4 documents are missing" in message for message in trial.watch.messages)
    assert trial.arrived() == {"a": 1, "b": 1, "c": 1, "d": 2}
    repository.git("reset", "--quiet", "--hard", first)
    assert trial.run().exit == 0
    assert trial.arrived() == {"a": 1, "b": 1, "c": 1, "d": 3}, "what was processed while deletes waited is listed"
    repository.git("rm", "--quiet", "a", "b", "c")
    repository.commit()
    assert trial.run().exit == 2
    assert trial.run(allow_deletes=True).exit == 0
    assert trial.counts() == {"delivered": 1, "deleted": 3}
