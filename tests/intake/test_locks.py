"""Locks of queues, collections, objects and local ids."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ferryman.errors import UsageError
from ferryman.intake.store.base import Create
from ferryman.intake.tree import KINDS
from tests.intake.conftest import Opening, layout

NAMED = [kind for kind, what in KINDS.items() if not what.node]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_is_taken_once(opening: Opening, kind: str) -> None:
    """By nobody else, and not again by who has it; then it is to be had again."""
    one, two = opening().locks, opening().locks
    name = "ark:/1/2" if kind in NAMED else None
    assert not one.check(kind, name)
    assert one.lock(kind, name)
    assert not one.lock(kind, name)
    assert not two.lock(kind, name)
    assert two.check(kind, name)
    assert two.held(kind) == [name or kind]
    one.unlock(kind, name)
    one.unlock(kind, name)
    assert not two.check(kind, name)
    assert two.lock(kind, name)


@pytest.mark.parametrize("kind", KINDS)
def test_locks_of_people_stay_and_others_go_with_their_session(opening: Opening, kind: str) -> None:
    """And nobody else gives back what lives with a session."""
    one, two = opening(), opening()
    name = "x" if kind in NAMED else None
    assert one.locks.lock(kind, name)
    if not KINDS[kind].is_persistent:
        two.locks.unlock(kind, name)
        assert two.locks.check(kind, name)
    one.close()
    assert two.locks.check(kind, name) is KINDS[kind].is_persistent
    two.locks.unlock(kind, name)
    assert not two.locks.check(kind, name)


@pytest.mark.rule("intake.names")
@pytest.mark.parametrize("kind", NAMED)
def test_names_that_map_to_one_node_do_not_collide(opening: Opening, kind: str) -> None:
    """The second gets ~2, the third ~3; each keeps its own when the others go."""
    queue = opening()
    folder = KINDS[kind].folder
    names = ["a/b:c", "a_b:c", "a:/b:c", "a_b:c~2"]
    for name in names:
        assert queue.locks.lock(kind, name)
    expected = {f"{folder}/a_b:c{end}": name for name, end in zip(names, ("", "~2", "~3", "~2~2"), strict=True)}
    assert layout(queue) == expected
    queue.locks.unlock(kind, "a/b:c")
    assert not queue.locks.lock(kind, "a_b:c")
    assert not queue.locks.lock(kind, "a:/b:c")
    assert [queue.locks.check(kind, name) for name in names] == [False, True, True, True]
    assert queue.locks.lock(kind, "a/b:c")
    assert layout(queue) == expected
    assert queue.audit() == []


@pytest.mark.parametrize("kind", ["storage", "localid"])
def test_two_that_lock_one_name_at_once_do_not_both_get_it(opening: Opening, kind: str) -> None:
    """Also while another name that maps to the same node comes and goes."""
    queues = [opening() for _ in range(4)]

    def coming_and_going(_: int) -> None:
        for _ in range(20):
            queues[0].locks.lock(kind, "a/b")
            queues[0].locks.unlock(kind, "a/b")

    with ThreadPoolExecutor(4) as pool:
        pool.submit(coming_and_going, 0)
        for turn in range(10):
            got = list(pool.map(lambda queue: queue.locks.lock(kind, "a_b"), queues[1:]))
            assert got.count(True) == 1, turn
            assert list(layout(queues[0]).values()).count("a_b") == 1
            for queue in queues[1:]:
                queue.locks.unlock(kind, "a_b")


def test_a_lock_of_another_tool_counts(opening: Opening) -> None:
    """It has no name in it: it locks every name that maps to its node."""
    queue = opening()
    queue.tree.store.commit([Create("/locks/storage/ark_1_2")])
    assert queue.locks.check("storage", "ark:/1/2")
    assert not queue.locks.lock("storage", "ark:/1/2")
    assert queue.locks.held("storage") == ["ark_1_2"]
    queue.locks.unlock("storage", "ark:/1/2")
    assert queue.locks.lock("storage", "ark:/1/2")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("door", None), ("storage", None), ("storage", ""), ("ingest", "x"), ("storage", ".."), ("storage", "a\nb")],
)
def test_what_cannot_be_locked_is_refused(opening: Opening, kind: str, name: str | None) -> None:
    """With a word on what to give."""
    queue = opening()
    for ask in (queue.locks.lock, queue.locks.check, queue.locks.unlock):
        with pytest.raises(UsageError):
            ask(kind, name)
    assert layout(queue) == {}
