"""Twins of destinations: where they write, what they keep, how they misbehave."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ferryman import Effect, Guarantee, Plan
from ferryman.destinations import Delivery, Directory, JsonLines, Memory, OpenSearch, Queue, Sql, Webhook
from ferryman.destinations.base import Destination, DestinationContext, Outcome
from ferryman.plan import DestinationNode
from ferryman.proof.faults import Effects, took_effect
from ferryman.proof.twins import (
    RecorderTwin,
    can_be_read,
    forget_holes,
    forget_tail,
    held_by,
    keep_copy,
    make_twin,
    read_arrivals,
    wrap,
)

CONTEXT = DestinationContext("p", 0, "out", 1, Guarantee.EXACTLY_ONCE)


def node_of(destination: Destination) -> DestinationNode:
    plan = Plan("p")
    plan.destination("out", destination)
    [node] = plan.nodes
    assert isinstance(node, DestinationNode)
    return node


def delivery(id: str, sequence: int = 1, operation: Any = "upsert") -> Delivery:
    return Delivery(id, f"{id}-{sequence}".ljust(32, "0"), sequence, operation, {"n": 1}, b"text", "v")


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.rule("prove.untouched")
@pytest.mark.parametrize("kind", ["sql", "lines", "directory", "queue", "memory", "webhook", "opensearch"])
def test_a_twin_never_writes_where_the_destination_does(tmp_path: Path, kind: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    destination = {
        "sql": lambda: Sql(f"sqlite:///{own}/out.db"),
        "lines": lambda: JsonLines(own / "lines"),
        "directory": lambda: Directory(own / "files"),
        "queue": lambda: Queue("out", own),
        "memory": Memory,
        "webhook": lambda: Webhook("http://127.0.0.1:9/"),
        "opensearch": lambda: OpenSearch("http://127.0.0.1:9", "docs"),
    }[kind]()

    twin, what = make_twin(node_of(destination), tmp_path / "twins")
    twin.check()
    twin.open(CONTEXT)
    assert twin.write([delivery("a")]) == [Outcome.ok()]
    twin.close()

    assert what == ("recorder" if kind in ("memory", "webhook", "opensearch") else "embedded")
    assert [each.id for each in held_by(twin, CONTEXT)] == ["a"]
    assert can_be_read(twin) is can_be_read(destination)
    assert twin.effect is destination.effect
    assert files_of(own) == set()
    assert files_of(tmp_path / "twins")


def test_two_nodes_that_write_to_one_place_have_one_twin(tmp_path: Path) -> None:
    first, second = (make_twin(node_of(Sql(f"sqlite:///{tmp_path}/out.db")), tmp_path)[0] for _ in range(2))

    assert first.target() == second.target()


class Once(Destination):
    """Exactly-once by its own word, and refuses what is older."""

    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    keyed_by_id = True


def test_a_recorder_behaves_as_its_guarantee_demands(tmp_path: Path) -> None:
    twin = RecorderTwin(tmp_path / "record", Once(), Guarantee.EXACTLY_ONCE)

    assert twin.write([delivery("a", 2), delivery("a", 2)]) == [Outcome.ok()] * 2
    assert twin.write([delivery("a", 1)]) == [Outcome.stale()]
    assert len(twin.held()) == 1
    assert twin.write([delivery("a", 3, "delete")]) == [Outcome.ok()]
    assert twin.held() == []
    assert twin.highest_sequence() == 3


def test_a_recorder_shows_what_came_twice_where_nothing_keeps_hashes(tmp_path: Path) -> None:
    twin = RecorderTwin(tmp_path / "record", Webhook("http://127.0.0.1:9/"), Guarantee.AT_MOST_ONCE)

    twin.write([delivery("a")])
    twin.write([delivery("a")])

    assert len(twin.held()) == 2


@pytest.mark.parametrize(
    ("misbehaviour", "held", "answers"),
    [("refuses", 0, 2), ("away", 0, None), ("half", 1, 1), ("drops", 2, None), ("", 2, 2)],
)
def test_a_twin_misbehaves_in_the_call_that_its_fault_hits(
    tmp_path: Path, misbehaviour: Any, held: int, answers: int | None
) -> None:
    inner = RecorderTwin(tmp_path / "record", Once(), Guarantee.AT_LEAST_ONCE)
    twin = wrap(inner, "out", tmp_path, misbehaviour, Effects(tmp_path, 2))
    twin.write([delivery("z")])
    before = len(inner.held())

    chunk = [delivery("a"), delivery("b")]
    if answers is None:
        with pytest.raises(ConnectionError):
            twin.write(chunk)
    else:
        assert len(twin.write(chunk)) == answers

    assert len(inner.held()) - before == held
    assert took_effect(tmp_path)
    assert [each.id for each in read_arrivals(tmp_path)] == ["z", "a", "b"]


def test_what_a_killed_process_has_not_written_to_its_end_does_not_count(tmp_path: Path) -> None:
    """Neither in what a recorder holds nor in what it was given; the rows before and after it do."""
    inner = RecorderTwin(tmp_path / "record", Once(), Guarantee.AT_LEAST_ONCE)
    twin = wrap(inner, "out", tmp_path, "", None)
    twin.write([delivery("a"), delivery("b")])
    for file in files_of(tmp_path):
        file.write_bytes(file.read_bytes()[:-5])

    twin.write([delivery("c")])

    assert [each.id for each in inner.held()] == ["a", "c"]
    assert [each.id for each in read_arrivals(tmp_path)] == ["a", "c"]


def test_a_fault_happens_in_one_call_over_all_processes(tmp_path: Path) -> None:
    """Each has its own ``Effects``, as each process does."""
    assert [Effects(tmp_path, 2, 2).happens() for _ in range(5)] == [False, True, True, False, False]


@pytest.mark.parametrize("kind", ["sql", "append", "lines", "recorder"])
def test_a_twin_comes_back_without_its_last_writes_or_with_holes(tmp_path: Path, kind: str) -> None:
    destination: Destination = {
        "sql": lambda: Sql("sqlite:///out.db"),
        "append": lambda: Sql("sqlite:///out.db", mode="append"),
        "lines": lambda: JsonLines("out"),
        "recorder": Once,
    }[kind]()
    twin, _ = make_twin(node_of(destination), tmp_path)
    for n in range(3):
        if n == 1:
            keep_copy(twin, tmp_path)
        twin.check()
        twin.open(CONTEXT)
        twin.write([delivery(f"{n}{each}", 10 * n + each + 1) for each in range(4)])
        twin.close()
    assert len(held_by(twin, CONTEXT)) == 12

    lost = forget_holes(twin, tmp_path, Random(0))

    held = {each.id for each in held_by(twin, CONTEXT)}
    assert 0 < lost <= 12 - len(held)
    if not twin.keyed_by_id:
        assert {"00", "01", "02", "03"} <= held, "an older delivery could not be sent again"
    forget_tail(twin, tmp_path)
    assert {each.id for each in held_by(twin, CONTEXT)} == {"00", "01", "02", "03"}


def test_the_twin_of_a_database_keeps_its_table_and_columns(tmp_path: Path) -> None:
    destination = Sql(f"sqlite:///{tmp_path}/own.db", table="pages", columns={"amount": "n"})

    twin, _ = make_twin(node_of(destination), tmp_path / "twins")
    twin.check()
    twin.open(CONTEXT)
    twin.write([delivery("a")])
    twin.close()

    [database] = (tmp_path / "twins").rglob("twin.db")
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("SELECT id, amount FROM pages").fetchall() == [("a", 1)]
