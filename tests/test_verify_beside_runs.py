"""``verify`` beside a driver that goes on: what is on its way, or was not shown yet, is no difference."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ferryman import limits
from ferryman.destinations import Directory, JsonLines, Sql, Stored
from ferryman.destinations.base import DestinationContext
from tests.support.plan_world import PlanWorld, place
from tests.test_verification import Away, build, found, in_database, look, rows_of, sql, to_one_table, world_with

__all__ = ["place"]


class Late(Sql):
    """A store that does not show each row at once: of each look at all of it, one is missing."""

    def inventory(self, context: DestinationContext, ids: Any = None) -> Iterator[Stored]:
        rows = super().inventory(context, ids)
        if ids is None:
            next(rows, None)
        yield from rows


@pytest.mark.rule("verify.second-look")
def test_a_row_that_is_shown_at_the_second_look_is_there(place: Path) -> None:
    """A search engine may show a row a moment later. No difference is reported or repaired."""
    world = world_with(place, rows=Late(f"sqlite:///{place}/out.db"))
    found = look(world, repair=True)
    assert (found.exit, found.repaired) == (0, 0)
    assert found.targets[0].counts is not None
    assert found.targets[0].counts.expected == 120
    in_database(place, "DELETE FROM documents")
    assert look(world).exit == 3, "what is not there at the second look either is missing"


@pytest.mark.rule("verify.second-look")
def test_a_verification_beside_a_run_reports_nothing(place: Path) -> None:
    """Documents are added, changed and deleted by runs in another thread, while everything is compared again and
    again: rows, files and lines."""
    world = world_with(place, rows=sql(place), lines=JsonLines(place / "lines"), files=Directory(place / "files"))
    ended = threading.Event()
    exits: list[int] = []

    def run_often() -> None:
        try:
            for turn in range(5):
                world.put("changing", f"new {turn}", text=f"text {turn}")
                world.drop(f"new {turn - 1}")
                exits.append(world.run(checked=False).exit)
        finally:
            ended.set()

    thread = threading.Thread(target=run_often)
    thread.start()
    looks = [look(world)]
    while not ended.is_set():
        looks.append(look(world))
    thread.join()
    assert exits == [0] * 5
    assert [found(each) for each in looks] == [[]] * len(looks)
    assert look(world).exit == 0


class Slow(Sql):
    """Of a look at all of it, something happens between the first row and the others."""

    meanwhile: ClassVar[list[Callable[[], None]]] = []

    def inventory(self, context: DestinationContext, ids: Any = None) -> Iterator[Stored]:
        rows = super().inventory(context, ids)
        yield from islice(rows, 1)
        if ids is None and self.meanwhile:
            self.meanwhile.pop()()
        yield from rows


@pytest.mark.rule("verify.second-look")
def test_a_look_may_take_longer_than_replaced_files_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver merges and removes all files of the ledger while the rows are read: what it delivers meanwhile is no
    difference, what is missing is found, and nothing is called damaged. The files are so large that they are not read
    into memory at once."""
    monkeypatch.setattr(limits, "READERS_GRACE_S", -1.0)
    monkeypatch.setattr(limits, "COMPACT_FILES", 1)
    digits = random.Random(7)
    ids = [f"{n}-{digits.randbytes(2000).hex()}" for n in range(40)]
    world = PlanWorld(place, partial(build, rows=Slow(f"sqlite:///{place}/out.db")))
    world.put(*ids)
    assert world.run().exit == 0
    ledger = world.root / "ledger"
    removed: list[bool] = []

    def replace_files() -> None:
        before = set(ledger.glob("*.parquet"))
        for text in ("two", "three"):
            world.put(*ids[:5], f"new {len(removed)}", text=text)
            assert world.run(checked=False).exit == 0
        removed.append(not before & set(ledger.glob("*.parquet")))

    Slow.meanwhile[:] = [replace_files] * 2
    clean = look(world)
    assert (found(clean), clean.exit) == ([], 0)
    assert len(Slow.meanwhile) == 1, "the rows were read twice"
    in_database(place, "DELETE FROM documents WHERE id = ?", ids[9])
    assert found(look(world, repair=True)) == [("missing", ids[9])]
    assert removed == [True, True]
    assert world.run(checked=False).delivered == 1
    assert look(world).exit == 0


@pytest.mark.rule("verify.second-look")
def test_what_an_outage_holds_back_is_not_missing(place: Path) -> None:
    """New, changed and deleted documents wait for a destination whose rows can be read: they are in flight."""
    world = PlanWorld(place, partial(to_one_table, names="a", a=Away))
    world.put("x", "y", "z")
    assert world.run().exit == 0
    (place / "down").touch()
    world.put("x", "new", text="two")
    world.drop("y")
    world.run(wait=0)
    waiting = look(world, repair=True, delete_extra=True)
    assert (found(waiting), waiting.exit, waiting.repaired) == ([], 0, 0)
    assert waiting.targets[0].counts.in_flight == 2  # type: ignore[union-attr]
    in_database(place, "DELETE FROM documents WHERE id = 'z'")
    assert found(look(world)) == [("missing", "z")]
    (place / "down").unlink()
    look(world, repair=True)
    assert world.run().exit == 0
    assert look(world).exit == 0
    assert set(rows_of(place)) == {"x", "z", "new"}
