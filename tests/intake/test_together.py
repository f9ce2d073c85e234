"""Many changes made together: each takes effect or is refused by itself, as if it had come alone."""

from __future__ import annotations

import pytest

from ferryman.errors import UsageError
from ferryman.intake import Job, JobQueue, LockLost
from ferryman.intake.job import Advance, advance_all, load_all
from ferryman.intake.store.base import (
    COMMITS_AT_ONCE,
    Check,
    Commit,
    Conflict,
    ConflictReason,
    Create,
    Delete,
    SessionLost,
    Set,
    Store,
)
from tests.intake.conftest import Opening, layout, started


@pytest.fixture
def store(queue: JobQueue) -> Store:
    found = queue.tree.store
    found.commit([Create("/test")])
    return found


def creates(names: list[str]) -> list[Commit]:
    return [Commit([Create(f"/test/{name}", name.encode())], None, [f"/test/{name}"]) for name in names]


def reasons(results: list[object]) -> list[ConflictReason | None]:
    return [result.reason if isinstance(result, Conflict) else None for result in results]


def test_a_refused_commit_takes_no_other_with_it(store: Store) -> None:
    """Neither the first nor the last nor one between; each changes nothing at all."""
    store.commit([Create("/test/b"), Create("/test/e")])
    commits = creates(["a", "b", "c", "d", "e"])
    commits[3] = Commit([Create("/test/d"), Set("/test/a", b"", version=9)])
    results = store.commit_all(commits)
    assert reasons([*results]) == [None, ConflictReason.EXISTS, None, ConflictReason.CHANGED, ConflictReason.EXISTS]
    conflict = results[3]
    assert isinstance(conflict, Conflict)
    assert (conflict.index, conflict.path) == (1, "/test/a")
    assert store.children("/test") == ["a", "b", "c", "e"]
    nodes = [result[0] for result in (results[0], results[2]) if isinstance(result, list)]
    assert [node and node.data for node in nodes] == [b"a", b"c"]


def test_a_commit_sees_those_before_it(store: Store) -> None:
    """They take effect in their order."""
    results = store.commit_all(
        [
            Commit([Create("/test/a", b"1")]),
            Commit([Set("/test/a", b"2", version=0)], None, ["/test/a"]),
            Commit([Set("/test/a", b"3", version=0)]),
            Commit([Delete("/test/a"), Create("/test/b")], None, ["/test/a", "/test/b"]),
        ]
    )
    assert reasons([*results]) == [None, None, ConflictReason.CHANGED, None]
    assert store.children("/test") == ["b"]


@pytest.mark.parametrize("taken", ["none", "all", "every third"])
def test_more_than_go_together(store: Store, taken: str) -> None:
    """Several times as many as a store takes at once, and however many of them are refused."""
    names = [f"{n:03d}" for n in range(2 * COMMITS_AT_ONCE + 5)]
    there = {"none": [], "all": names, "every third": names[::3]}[taken]
    store.commit([Create(f"/test/{name}") for name in there])
    results = store.commit_all(creates(names))
    expected = [ConflictReason.EXISTS if name in there else None for name in names]
    assert reasons([*results]) == expected
    assert store.children("/test") == names


def test_large_ones_and_none(store: Store) -> None:
    """A request has a limit of its own; nothing at all is no request."""
    data = b"x" * (200 << 10)
    commits = [Commit([Create(f"/test/{n}", data)], None, [f"/test/{n}"]) for n in range(7)]
    results = store.commit_all(commits)
    assert reasons([*results]) == [None] * 7
    assert [node and node.data for node in store.read([f"/test/{n}" for n in range(7)])] == [data] * 7
    assert store.commit_all([]) == []


def test_numbers_among_them(store: Store) -> None:
    """A node whose number is another by now is refused, and the others are not."""
    commits = [
        Commit([Create("/test/a")]),
        Commit([Create("/test/n0000000001", numbered=True)]),
        Commit([Create("/test/n0000000001", numbered=True)]),
        Commit([Create("/test/b")]),
    ]
    assert [reason is None for reason in reasons([*store.commit_all(commits)])] == [True, True, False, True]
    assert store.children("/test") == ["a", "b", "n0000000001"]


def test_a_session_that_has_ended(opening: Opening, store: Store) -> None:
    """Whatever names it changes nothing; what names none is as before."""
    other = opening()
    session = other.tree.store.session()
    other.close()
    commits = [Commit([Create(f"/test/{n}", ephemeral=True)], session) for n in range(3)]
    results = store.commit_all([*commits, Commit([Create("/test/kept")])])
    assert [isinstance(result, SessionLost) for result in results] == [True] * 3 + [False]
    assert store.children("/test") == ["kept"]


def acquired(queue: JobQueue, jobs: int) -> list[Job]:
    started(queue, jobs=jobs)
    found = queue.acquire_many("Pending", jobs)
    assert [job.id for job in found] == queue.list_jobs("Pending")
    return found


def test_many_are_acquired_at_once(queue: JobQueue, opening: Opening) -> None:
    """The most urgent ones that nobody holds, in order; another consumer gets the others."""
    batch = started(queue, jobs=4)
    urgent = queue.load_batch(batch).create_job({}, priority=1)
    other = opening()
    first = other.acquire_job("Pending")
    assert first is not None
    assert first.id == urgent.id
    mine = queue.acquire_many("Pending", 3)
    assert [job.id for job in [first, *mine]] == queue.list_jobs("Pending")[:4]
    assert [job.id for job in other.acquire_many("Pending", 9)] == queue.list_jobs("Pending")[4:]
    assert queue.acquire_many("Pending", 9) == other.acquire_many("Pending", 2) == []
    for job in mine:
        job.unlock()
    again = other.acquire_many("Pending", 9, {mine[1].id})
    assert [job.id for job in again] == [mine[0].id, mine[2].id]


def test_a_pause_stops_all(queue: JobQueue, opening: Opening) -> None:
    """Nobody acquires, and what is at work moves once and is given back."""
    jobs = acquired(queue, 3)
    opening().locks.lock("ingest")
    assert opening().acquire_many("Pending", 3) == []
    assert advance_all(queue.tree, [Advance(job, keep_lock=True) for job in jobs]) == [False] * 3
    assert queue.acquire_many("Estimating", 3) == []
    assert not any(path.endswith("/lock") for path in layout(queue) if path.startswith("/jobs/"))
    queue.locks.unlock("ingest")
    assert len(queue.acquire_many("Estimating", 3)) == 3


def test_collections_on_hold(queue: JobQueue) -> None:
    """Each pending job of one becomes Held, in a group too."""
    batch = started(queue, jobs=1)
    for n in range(4):
        queue.load_batch(batch).create_job({"profile_name": "maps" if n % 2 else "letters"})
    queue.locks.lock("collection", "maps")
    assert len(queue.acquire_many("Pending", 5)) == 3
    assert len(queue.list_jobs("Held")) == 2


@pytest.mark.rule("intake.owner")
def test_jobs_that_move_together(queue: JobQueue, opening: Opening) -> None:
    """One that an operator took away, and one that was moved, do not hold up the others, and are not moved by them."""
    jobs, other = acquired(queue, 5), opening()
    assert other.load_job(jobs[1].id).revoke()
    other.load_job(jobs[3].id).fail("by an operator", revoke=True)
    results = advance_all(
        queue.tree,
        [Advance(job, f"job {n}", n, {"inventory": {"n": n}}, n, keep_lock=n != 4) for n, job in enumerate(jobs)],
    )
    assert [result if isinstance(result, bool) else type(result) for result in results] == [
        *(True, LockLost, True, LockLost, False)
    ]
    assert [job.locked for job in jobs] == [True, False, True, False, False]
    now = [other.load_job(job.id) for job in jobs]
    assert [job.status for job in now] == ["Estimating", "Pending", "Estimating", "Failed", "Estimating"]
    moved = [(job.message, job.priority, job.inventory, job.space_needed) for job in (now[0], now[2], now[4])]
    assert moved == [(f"job {n}", n, {"n": n}, n) for n in (0, 2, 4)]
    assert [job.inventory for job in (jobs[0], jobs[2])] == [{"n": 0}, {"n": 2}]
    assert advance_all(queue.tree, [Advance(jobs[0]), Advance(jobs[2])]) == [False, False]
    assert other.audit() == []


def test_a_move_that_cannot_be_written(queue: JobQueue) -> None:
    """Its job stays where it is, locked; the others move."""
    jobs = acquired(queue, 3)
    values = [{}, {"inventory": {"x": "y" * (600 << 10)}}, {}]
    results = advance_all(queue.tree, [Advance(job, values=v, keep_lock=True) for job, v in zip(jobs, values)])  # type: ignore[arg-type]  # noqa: B905
    assert [result if isinstance(result, bool) else type(result) for result in results] == [True, UsageError, True]
    assert [(job.status, job.locked) for job in jobs] == [("Estimating", True), ("Pending", True), ("Estimating", True)]


def test_the_last_jobs_of_a_batch_end_together(queue: JobQueue, opening: Opening) -> None:
    """Its list of completed jobs is made by the first of them; all are in it."""
    jobs = acquired(queue, 5)
    for _ in range(7):
        assert advance_all(queue.tree, [Advance(job, keep_lock=True) for job in jobs]) == [True] * 5
    assert advance_all(queue.tree, [Advance(job) for job in jobs]) == [False] * 5
    batch = queue.load_batch(jobs[0].batch_id)
    assert batch.completed_jobs == [job.id for job in jobs]
    assert (batch.processing_jobs, opening().audit()) == ([], [])


def test_damaged_jobs_among_others(queue: JobQueue) -> None:
    """Which of them is damaged, and how, is what ``load`` says."""
    jobs = acquired(queue, 4)
    store = queue.tree.store
    store.commit([Set(f"/jobs/{jobs[1].id}/priority", b"high")])
    store.commit([Set(f"/jobs/{jobs[3].id}/configuration", b"{")])
    errors = load_all(queue.tree, [Job(queue.tree, job.id) for job in jobs])
    assert [error is None for error in errors] == [True, False, True, False]
    assert "priority" in str(errors[1])
    assert "configuration" in str(errors[3])


def test_jobs_are_created_together(queue: JobQueue, opening: Opening) -> None:
    """With numbers in a row; each as if it had been created alone."""
    batch = started(queue, jobs=1)
    first = queue.tree.next_number("/jobs")
    values = [{"configuration": {"jobID": f"{n}"}, "identifiers": {"local_id": [f"x{n}"]}} for n in range(70)]
    made = queue.load_batch(batch).create_jobs([(each, n % 3) for n, each in enumerate(values)])
    assert [job.id for job in made] == [f"jid{n:010d}" for n in range(first, first + 70)]
    other = opening()
    for n, job in enumerate(made):
        loaded = other.load_job(job.id)
        assert (loaded.configuration, loaded.identifiers, loaded.priority) == (*values[n].values(), n % 3)
    assert other.audit() == []


NAMES = ("a/b", "a_b", "a_b~2", "c", "a/b", "c~1~2", "d" * 300, "ü")
"""Two pairs of names have one node, one name stands twice."""


def test_named_locks_are_acquired_together(queue: JobQueue, opening: Opening) -> None:
    """What is held, by this process or another, is not acquired; different names never share a lock."""
    other = opening()
    assert other.locks.lock("localid", "c")
    assert queue.locks.lock_all("localid", NAMES) == [True, True, True, False, False, True, True, True]
    assert not any(other.locks.lock("localid", name) for name in NAMES)
    queue.locks.unlock_all("localid", NAMES)
    assert [name for name in dict.fromkeys(NAMES) if not queue.locks.check("localid", name)] == [
        *dict.fromkeys(name for name in NAMES if name != "c")
    ]
    assert queue.locks.lock_all("localid", []) == []


def test_a_second_node_of_a_name_is_found(queue: JobQueue, opening: Opening) -> None:
    """The first of two names with one node is unlocked: the other is still held, under its second node."""
    other = opening()
    assert other.locks.lock_all("localid", ["x/y", "x_y", "z"]) == [True] * 3
    other.locks.unlock("localid", "x/y")
    assert queue.locks.lock_all("localid", ["x_y", "x/y", "w"]) == [False, True, True]


def test_a_lock_that_was_revoked_is_not_unlocked_again(queue: JobQueue, opening: Opening) -> None:
    """Somebody else may have it by now."""
    other = opening()
    assert queue.locks.lock_all("localid", ["one", "two"]) == [True, True]
    assert other.locks.revoke("localid", "one")
    assert other.locks.lock("localid", "one")
    queue.locks.unlock_all("localid", ["one", "two"])
    assert (other.locks.check("localid", "one"), other.locks.check("localid", "two")) == (True, False)


def test_a_lock_whose_node_was_replaced(store: Store, queue: JobQueue) -> None:
    """A check of which node it is counts for its own commit only."""
    store.commit([Create("/test/a"), Create("/test/b")])
    before = [node.creation for node in store.read(["/test/a", "/test/b"]) if node]
    store.commit([Delete("/test/a")])
    store.commit([Create("/test/a")])
    results = store.commit_all(
        [
            Commit([Check("/test/a", creation=before[0]), Delete("/test/a")]),
            Commit([Check("/test/b", creation=before[1]), Delete("/test/b")]),
        ]
    )
    assert reasons([*results]) == [ConflictReason.CHANGED, None]
    assert store.children("/test") == ["a"]
