"""How much may be deleted at once: of a source, and of each of its first-level folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman import limits
from ferryman.plan import Plan
from ferryman.sources import Memory
from tests.support.plan_world import PlanWorld


class Shelves(PlanWorld):
    """Documents in first-level folders, that go to a recorder."""

    def __init__(self, place: Path, prefix: str = "", **counts: int) -> None:
        super().__init__(place, each_time=True)
        self.ids = {f"{folder}/{i}" for folder, count in counts.items() for i in range(count)}
        self.prefix = prefix
        self.run()

    def make_plan(self) -> Plan:
        plan = Plan("shelves", version=1)
        source = Memory([{"id": id} for id in sorted(self.ids)], prefix=self.prefix)
        plan.source("docs", source).destination("out", self.out())
        return plan

    def clear(self, folder: str, keep: int = 0) -> None:
        gone = sorted(id for id in self.ids if id.startswith(f"{folder}/"))[keep:]
        self.ids -= set(gone)

    def deleted(self) -> dict[str, int]:
        """Deletes that arrived, by folder."""
        found = [
            id[1:].removeprefix(self.prefix).partition("/")[0] for id in self.out().arrived() if id.startswith("-")
        ]
        return {folder: found.count(folder) for folder in found}


@pytest.mark.rule("delete.guard-folder")
@pytest.mark.parametrize("prefix", ["", "plays/", "x"])
def test_a_folder_that_is_gone_is_not_deleted_unasked(place: Path, prefix: str) -> None:
    """A tenth of the source, because one mount of ten is away; what else is gone is deleted, what is new delivered."""
    shelves = Shelves(place, prefix, a=100, b=500, c=500)
    shelves.clear("a")
    shelves.clear("b", keep=490)
    shelves.ids |= {"d/new"}
    summary = shelves.run()
    assert summary.exit == 2
    [why] = summary.messages
    assert why.startswith(f"source docs, folder {prefix}a: 100 of 100 documents are missing, more than max_deleted=0.5")
    assert why.endswith(f"run again with --allow-deletes={prefix}a.")
    assert shelves.deleted() == {"b": 10}
    assert f"{prefix}d/new" in shelves.out().arrived()
    assert shelves.run().exit == 2, "until somebody says so, or they are back"
    assert shelves.run(allow_deletes=[f"{prefix}a/"]).exit == 0
    assert shelves.deleted() == {"a": 100, "b": 10}


@pytest.mark.rule("delete.guard-folder")
def test_a_folder_of_fewer_documents_may_go(place: Path) -> None:
    count = limits.GUARDED_DOCUMENTS - 1
    shelves = Shelves(place, a=count, b=1000)
    shelves.clear("a")
    assert shelves.run().exit == 0
    assert shelves.deleted() == {"a": count}


@pytest.mark.rule("delete.guard-folder")
def test_new_documents_do_not_make_up_for_those_that_are_gone(place: Path) -> None:
    """All that was known of the folder is gone, however much is new in it."""
    shelves = Shelves(place, a=100, b=1000)
    shelves.clear("a")
    shelves.ids |= {f"a/new-{i}" for i in range(200)}
    summary = shelves.run()
    assert summary.exit == 2
    assert "folder a: 100 of 100" in summary.messages[0]
    assert shelves.deleted() == {}


@pytest.mark.rule("delete.guard-folder")
def test_several_folders_are_allowed_one_by_one(place: Path) -> None:
    """Each by its name; the others wait."""
    shelves = Shelves(place, a=100, b=100, c=1000)
    shelves.clear("a")
    shelves.clear("b")
    summary = shelves.run(allow_deletes=["b", "unknown"])
    assert summary.exit == 2
    assert shelves.deleted() == {"b": 100}
    assert shelves.run(allow_deletes=["a", "b"]).exit == 0
    assert shelves.deleted() == {"a": 100, "b": 100}


@pytest.mark.rule("delete.guard-folder")
def test_an_allowed_folder_does_not_count_against_the_source(place: Path) -> None:
    """Where too much of the source is gone, only what was allowed is deleted, and the rest waits if it is too much."""
    shelves = Shelves(place, a=100, b=100, c=50)
    shelves.clear("a")
    shelves.clear("b")
    summary = shelves.run()
    assert summary.exit == 2
    assert "source docs: 200 of 250" in summary.messages[0]
    assert shelves.deleted() == {}
    summary = shelves.run(allow_deletes=["a"])
    assert summary.exit == 2
    assert shelves.deleted() == {"a": 100}
    assert shelves.run(allow_deletes=True).exit == 0
    assert shelves.deleted() == {"a": 100, "b": 100}


def test_documents_in_no_folder_are_the_source_s_only(place: Path) -> None:
    shelves = Shelves(place, a=300)
    shelves.ids |= {f"top-{i}" for i in range(150)} | {f"rows.csv#row={i}/x" for i in range(10)}
    shelves.run()
    shelves.ids -= {f"top-{i}" for i in range(150)}
    assert shelves.run().exit == 0
    assert sum(shelves.deleted().values()) == 150
