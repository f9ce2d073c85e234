"""Children: what is retried of a family, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.sources import Listed, Source
from tests.support import NOT_SOON_S
from tests.support.failing import failing
from tests.support.families import end, letters, net, words
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld

__all__ = ["net"]


@pytest.mark.rule("child.read-once", "child.filtered")
def test_a_retry_reads_the_origin_once_and_drops_what_is_done(net: PlanWorld) -> None:
    """Children that were delivered are let go as soon as they are made: no step is called for them."""
    made = net.source().step("origin", net.counting("origin")).step("words", words)
    end(made.step("after", net.counting("after")).step("late", failing(2, "a#b", "a#d")), net)
    net.put("a", text="a b c d e")
    summary = net.run()
    assert (summary.exit, summary.delivered) == (0, 5)
    assert net.arrived("out") == {f"a#{k}": 1 for k in "abcde"}
    assert net.calls("origin") == {"a": 3}
    assert net.calls("after") == {"a#a": 1, "a#b": 3, "a#c": 1, "a#d": 3, "a#e": 1}
    assert net.events("a#b", "out") == ["ERROR", "ERROR", "INDEXED"]
    assert net.events("a#a", "out") == ["INDEXED"]
    dues = {e["due"] for e in rows(net.root, "ledger") if e["status"] == "ERROR" and e["wave"] == 1}
    assert len(dues) == 1, "a family is retried together"


def test_the_parent_may_fail_when_its_children_are_through(net: PlanWorld) -> None:
    """It goes on alone, its children are neither doubled nor deleted."""
    end(net.source().step("letters", letters).step("late", failing(2, "a")), net)
    net.put("a", text="xy")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a": 1, "a#0": 1, "a#1": 1}


def test_a_parent_that_failed_before_its_children_is_superseded_by_them(net: PlanWorld) -> None:
    """What was owed to it, it will not get: it is replaced by its children."""
    end(net.source().step("early", failing(1, "a")).step("words", words), net)
    net.put("a", text="x y")
    summary = net.run()
    assert (summary.exit, summary.delivered, summary.dropped) == (0, 2, 1)
    assert net.events("a", "out") == ["ERROR", "DROPPED"]
    assert net.arrived("out") == {"a#x": 1, "a#y": 1}


def test_a_new_version_supersedes_what_is_owed_of_the_old(net: PlanWorld) -> None:
    """Each member's delivery that exists only as an error ends."""
    end(net.source().step("words", words).step("late", failing(9, "a#x", "a#y")), net, backoff=NOT_SOON_S)
    net.put("a", text="x y z")
    net.run(wait=0)
    assert net.counts("out") == {"delivered": 1, "pending": 2}
    net.put("a", text="z")
    assert net.run(wait=0).exit == 0
    assert net.events("a#x", "out") == ["ERROR", "DROPPED"]
    net.put("a", text="x")
    net.run(wait=0)
    net.drop("a")
    assert net.run(wait=0).exit == 0
    assert net.events("a#x", "out")[-1] == "DROPPED"


def test_a_dead_child_is_opened_alone(net: PlanWorld) -> None:
    """By its id; its siblings get no event."""
    end(net.source().step("words", words).step("late", failing(3, "a#x")), net)
    net.put("a", text="x y")
    assert net.run().exit == 3
    assert net.retry(document="a#x").count == 1
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 1, "a#y": 1}
    assert net.events("a#x", "out") == ["ERROR", "ERROR", "DEAD", "RESTART", "INDEXED"]


@pytest.mark.rule("child.complete")
def test_a_family_is_done_when_all_its_members_are(net: PlanWorld) -> None:
    """While one child is owed the run is not complete, though all the others are there."""
    end(net.source().step("letters", letters).step("late", failing(1, "a#1")), net, backoff=NOT_SOON_S)
    net.put("a", text="xyz")
    summary = net.run(wait=0)
    assert (summary.exit, summary.delivered, summary.pending) == (4, 3, 1)
    assert account.status(net.root, net.plan)["balanced"]
    net.retry()
    assert net.run().exit == 0


class Shelf(Source):
    """One document with a word a child; counts how often it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def partitions(self) -> list[int]:
        return [0]

    def listing(self, partition: int) -> Iterator[Listed]:
        yield Listed("a", 10)

    def read(self, listed: Listed) -> Document:
        with self.path.open("a") as file:
            file.write("read\n")
        return Document(listed.id, raw=b"v w x y z")


@pytest.mark.rule("child.read-once")
def test_a_retry_wave_reads_the_source_once_for_all_children(net: PlanWorld) -> None:
    """However many of them failed; three waves, three reads."""
    reads = net.folder / "reads"
    node = net.plan.source("docs", Shelf(reads)).step("words", words)
    end(node.step("late", failing(2, "a#w", "a#x", "a#y")), net)
    summary = net.run()
    assert (summary.exit, summary.delivered, summary.waves) == (0, 5, 3)
    assert reads.read_text().splitlines() == ["read"] * 3
