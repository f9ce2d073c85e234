"""Scan: documents that are gone, that return, and listings that are not complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import TransientError, UsageError
from ferryman.sources import Listed, Memory
from tests.support import NOT_SOON_S
from tests.support.plan_world import PlanWorld, Watch, run_plan
from tests.support.recorder import Recorder
from tests.support.scanning import over_files, seen

# --- gone and back --------------------------------------------------------------------------------------


def test_what_vanished_is_deleted_once(trial: PlanWorld) -> None:
    """No step runs; the delete has a hash of its own."""
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    assert seen(trial) == {"-a": 1}
    assert seen(trial) == {}
    assert [(e["operation"], e["status"]) for e in trial.history("a")] == [
        ("upsert", "INDEXED"),
        ("delete", "INDEXED"),
    ]
    assert len({e["delivery_hash"] for e in trial.history("a")}) == 2


def test_what_returns_is_a_new_revision(trial: PlanWorld) -> None:
    """Also with the content it had."""
    trial.put("a", "b")
    trial.run()
    trial.drop("a")
    trial.run()
    trial.put("a")
    assert seen(trial) == {"a": 1}
    assert [e["revision"] for e in trial.history("a")] == [1, 2, 3]
    trial.drop("a")
    assert seen(trial) == {"-a": 1}
    assert trial.counts() == {"delivered": 1, "deleted": 1}


@pytest.mark.rule("delete.guard")
@pytest.mark.parametrize("allowed", [0.5, 0.3, 0.0])
def test_too_many_deletes_wait_for_a_word(trial: PlanWorld, allowed: float) -> None:
    """Exit 2, how many and of which source are told; all else is delivered. With --allow-deletes they are deleted."""
    ids = [f"d{i}" for i in range(12)]
    trial.put(*ids, "stays")
    trial.build(max_deleted=allowed)
    trial.run()
    trial.out().forget()
    trial.put("new")
    trial.drop(*ids[:8])
    for _ in range(2):
        summary = trial.run()
        assert summary.exit == 2
        [why] = summary.messages
        assert why.startswith(("source docs: 8 of 13", "source docs: 8 of 14"))
        assert why.endswith("run again with --allow-deletes.")
        assert trial.out().counted() == {"new": 1}
    summary = trial.run(allow_deletes=True)
    assert summary.exit == 0
    assert trial.out().counted() == {"new": 1, **{f"-{i}": 1 for i in ids[:8]}}


def test_as_many_as_allowed_are_deleted(trial: PlanWorld) -> None:
    """Half of them, by default, is not too much."""
    trial.put("a", "b", "c", "d")
    trial.build(max_deleted=0.5)
    trial.run()
    trial.drop("a", "b")
    assert seen(trial) == {"-a": 1, "-b": 1}
    trial.drop("c")
    assert seen(trial) == {"-c": 1}, "of what is there now, not of what ever was"


@pytest.mark.rule("delete.guard")
def test_the_guard_is_per_source(trial: PlanWorld) -> None:
    """One source that is emptied deletes nothing, however much the other one has; the other one goes on."""
    plan = trial.build(max_deleted=0.5).plan
    few = [{"id": "x"}]
    out = Recorder(trial.folder / "few.jsonl")
    plan.source("few", Memory(few, max_deleted=0.5)).destination("few-out", out)
    trial.put(*(f"d{i}" for i in range(10)))
    run_plan(plan, trial.state)
    few.clear()
    trial.drop("d0")
    trial.put("new")
    trial.out().forget()
    summary = run_plan(plan, trial.state)
    assert summary.exit == 2
    assert any(message.startswith("source few: 1 of 1") for message in summary.messages)
    assert trial.out().counted() == {"new": 1, "-d0": 1}
    assert out.arrived() == ["x"]


class Broken(Memory):
    """Lists some of its documents, then breaks."""

    def __init__(self, documents: list[Any], flag: Path) -> None:
        super().__init__(documents, max_deleted=1)
        self.flag = flag

    def listing(self, partition: Any) -> Iterator[Listed | Document]:
        for number, entry in enumerate(super().listing(partition)):
            if number == 2 and self.flag.exists():
                raise OSError("the share is gone")
            yield entry


@pytest.mark.rule("delete.incomplete")
def test_an_incomplete_listing_deletes_nothing(trial: PlanWorld) -> None:
    """What was listed is delivered; the rest is left alone; the run says so and exits 4."""
    flag = trial.folder / "broken"
    trial.put("a", "b", "c", "d")
    trial.build(source=Broken(trial.documents, flag))
    trial.run()
    trial.out().forget()
    flag.touch()
    trial.documents.insert(0, {"id": "new"})
    watch = Watch()
    summary = trial.run(observer=watch)
    assert summary.exit == 4
    assert trial.out().counted() == {"new": 1}
    assert any("incomplete listing, nothing of it is deleted: OSError: the share is gone" in m for m in watch.messages)
    flag.unlink()
    trial.drop("d")
    assert seen(trial) == {"-d": 1}


def test_a_listing_that_breaks_while_a_step_error_is_owed_ends(trial: PlanWorld) -> None:
    """What cannot be listed cannot be tried again: the run does not go round in circles."""
    flag = trial.folder / "broken"

    def fail(doc: Document) -> Document:
        if doc.id == "d":
            raise RuntimeError("not yet")
        return doc

    trial.put("a", "b", "c", "d")
    trial.build(fail, source=Broken(trial.documents, flag), backoff=NOT_SOON_S)
    trial.run(wait=0)
    flag.touch()
    trial.build(fail, source=Broken(trial.documents, flag))
    trial.retry(document="d")
    summary = trial.run(wait=0)
    assert summary.exit == 4
    assert trial.counts() == {"delivered": 3, "pending": 1}


def test_a_source_that_is_not_there_is_a_mistake(place: Path) -> None:
    """An empty listing would delete everything."""
    trial, folder = over_files(place)
    folder.rename(place / "elsewhere")
    with pytest.raises(UsageError):
        trial.run(checked=False)
    assert trial.counts() == {"delivered": 4}


# --- steps ----------------------------------------------------------------------------------------------


def test_a_source_that_cannot_be_asked_deletes_nothing(trial: PlanWorld) -> None:
    """Its error is told with its name; the other sources, and what is owed, go on."""

    def documents() -> list[Any]:
        if (trial.folder / "gone").exists():
            raise TransientError("the database closed the connection")
        return [{"id": "a"}]

    trial.build(source=Memory(documents))
    trial.run()
    (trial.folder / "gone").touch()
    summary = trial.run()
    assert summary.exit == 4
    assert summary.messages == [
        "source docs: incomplete listing, nothing of it is deleted: the database closed the connection"
    ]
    assert trial.counts() == {"delivered": 1}
