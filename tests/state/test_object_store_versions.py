"""A new version of a plan continues from the state of an older one, and both are in an object store."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from ferryman import crash, operations
from ferryman.engine import migration as migration_of_versions
from ferryman.engine.migration import migrate
from ferryman.engine.run import Summary
from ferryman.errors import StateDamaged, StateForeign, StateHeld, StateLost, UsageError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from ferryman.state.state import State, state_root
from ferryman.storage import delta
from ferryman.storage.files import StatePath
from ferryman.storage.locks import take_lock
from ferryman.storage.objects import ObjectPath
from tests.servers.faulty_s3 import FaultyS3
from tests.state.test_object_store import total
from tests.support.in_store import faulty, states
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder
from tests.support.versions import MIGRATION_POINTS, Killed, Versions, down, kill_at, louder

__all__ = ["faulty", "states"]

SLEEPS = ["version.fenced", "create.table", "epoch.logged", "version.logged", "version.synced", "version.built"]

IDS = [f"contracts/2024/region-07/file-{n:011d}.pdf" for n in range(30)]


class InStore(Versions):
    """The same, with the states in an object store. Each run is as of another process."""

    def __init__(self, folder: Path, states: str) -> None:
        super().__init__(folder)
        self.state = states  # type: ignore[assignment]
        self.documents += [{"id": id, "raw": b"one"} for id in IDS]

    def prepare(self) -> None:
        delta.forget_logs()

    def check(self, plan: Plan, summary: Summary) -> None:
        assert self.status(plan)["balanced"]


@pytest.fixture
def many(place: Path, states: str) -> InStore:
    return InStore(place, states)


@pytest.fixture(params=["disk", "store"])
def anywhere(request: pytest.FixtureRequest, place: Path) -> Versions:
    if request.param == "store":
        return InStore(place, request.getfixturevalue("states"))
    found = Versions(place)
    found.put(*IDS)
    return found


def test_a_new_version_continues(many: InStore) -> None:
    """What was delivered is not sent again; what was removed meanwhile is deleted; the old state is closed."""
    many.run(many.make_plan(1))
    del many.documents[3]
    summary = many.run(many.make_plan(2), from_version=1)
    assert (summary.exit, summary.deleted) == (0, 1)
    assert many.out("out").counted() == {**dict.fromkeys(IDS, 1), f"-{IDS[3]}": 1}
    with pytest.raises(StateForeign, match="version 2 of this plan continues"):
        many.run(many.make_plan(1))
    assert many.run(many.make_plan(2), from_version=1).waves == 0
    assert many.run(many.make_plan(3), from_version=2).waves == 0


def test_what_was_pending_is_sent(many: InStore) -> None:
    """Rows of the outbox go on; of a destination that is not in the plan any more they end."""
    many.out("out").answer = many.out("old").answer = down
    assert many.run(many.make_plan(1, outs=("out", "old")), wait=0).exit == 4
    many.out("out").answer = None
    assert many.run(many.make_plan(2, louder), from_version=1).exit == 0
    assert set(many.out("out").counted()) == set(IDS)


@pytest.mark.rule("store.version")
@pytest.mark.parametrize("point", [*MIGRATION_POINTS, "create.table", "create.state", "epoch.table"])
def test_a_kill_on_the_way_over_loses_nothing(many: InStore, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again finishes it; each document is delivered to the new destination once."""
    many.out("old").answer = down
    many.run(many.make_plan(1, outs=("out", "old")), wait=0)
    # the older state announces itself first, on three tables
    with monkeypatch.context() as patched:
        patched.setattr(crash, "point", kill_at(point, 4 if point == "epoch.table" else 1))
        with pytest.raises(Killed):
            many.run(many.make_plan(2, louder, outs=("out", "new")), from_version=1)
    assert many.run(many.make_plan(2, louder, outs=("out", "new")), from_version=1).exit == 0
    assert many.out("new").counted() == dict.fromkeys(IDS, 1)
    assert many.out("out").counted() == dict.fromkeys(IDS, 2)
    assert State(state_root(many.make_plan(2), many.state), many.make_plan(2)).identity()["from"] == 1


def test_killed_again_and_again(many: InStore, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any of its steps, while the store loses answers and refuses requests."""
    many.run(many.make_plan(1))
    faulty.fail(lost=0.02, refused=0.02, seed=7)
    for nth in (5, 9, 14, 20, 26, 33):
        passed = 0

        def kill(_: str, nth: int = nth) -> None:
            nonlocal passed
            passed += 1
            if passed == nth:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(crash, "point", kill)
            with pytest.raises(Killed):
                many.run(many.make_plan(2), from_version=1)
    many.run(many.make_plan(2), from_version=1)
    assert many.run(many.make_plan(2), from_version=1).waves == 0
    assert many.out("out").counted() == dict.fromkeys(IDS, 1)


@pytest.mark.parametrize("point", SLEEPS)
def test_one_that_slept(many: InStore, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leases have run out, another one has made the new state and works in it: what wakes harms nothing."""
    slept: list[str] = []
    take = State.take.__func__  # type: ignore[attr-defined]

    def at_once(cls: type[State], root: StatePath, plan: Plan, **options: Any) -> State:
        taken: State = take(cls, root, plan, **{**options, "take_over": True})
        return taken

    def sleep(name: str) -> None:
        if name == point and not slept:
            slept.append(name)
            with monkeypatch.context() as patched:
                patched.setattr(State, "take", classmethod(at_once))
                patched.setattr(migration_of_versions, "take_lock", lambda path: take_lock(path, take_over=True))
                assert many.run(many.make_plan(2), from_version=1).exit == 0
                many.documents[0]["raw"] = b"two"
                assert many.run(many.make_plan(2)).delivered == 1

    many.run(many.make_plan(1))
    with monkeypatch.context() as asleep, contextlib.suppress(UsageError, StateLost, StateDamaged, StateHeld):
        asleep.setattr(crash, "point", sleep)
        many.run(many.make_plan(2), from_version=1)
    assert slept
    assert operations.check(state_root(many.make_plan(2), many.state)) == []
    many.run(many.make_plan(2))
    assert many.run(many.make_plan(2)).waves == 0
    assert many.out("out").counted() == {**dict.fromkeys(IDS, 1), IDS[0]: 2}


def test_two_do_not_both_make_it(many: InStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is told that the older state is held."""
    many.migrate_meanwhile("version.built", monkeypatch)


def test_who_began_one_of_its_own_meanwhile(many: InStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the new version without --from-version, just then: one of the two wins, the other is told."""
    told = []

    def meanwhile(name: str) -> None:
        if name == "version.fenced" and not told:
            told.append(1)
            many.run(many.make_plan(2))

    many.run(many.make_plan(1))
    monkeypatch.setattr(crash, "point", meanwhile)
    with pytest.raises(UsageError, match="was given a state by another run"):
        many.run(many.make_plan(2), from_version=1)
    assert told
    assert many.run(many.make_plan(2)).waves == 0


def test_half_made_is_no_state(anywhere: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without --from-version does not take it for one, removes nothing of it, and says what to do."""
    anywhere.run(anywhere.make_plan(1))
    with monkeypatch.context() as patched:
        patched.setattr(crash, "point", kill_at("version.built"))
        with pytest.raises(Killed):
            anywhere.run(anywhere.make_plan(2), from_version=1)
    with pytest.raises(StateDamaged, match="run --from-version again"):
        anywhere.run(anywhere.make_plan(2))
    assert anywhere.run(anywhere.make_plan(2), from_version=1).exit == 0
    assert anywhere.out("out").counted() == dict.fromkeys(IDS, 1)


def test_what_is_somebody_elses_is_refused(many: InStore) -> None:
    """Before the older state is closed."""
    many.run(many.make_plan(1))
    root = state_root(many.make_plan(2), many.state)
    assert isinstance(root, ObjectPath)
    root.store.put((root / "letter.txt").key, b"dear")
    with pytest.raises(StateForeign, match=r"letter\.txt"):
        many.run(many.make_plan(2), from_version=1)
    assert many.run(many.make_plan(1)).exit == 0
    assert root.store.get((root / "letter.txt").key) == b"dear"


def test_state_by_key_is_carried_over(tmp_path: Path, states: str) -> None:
    """What was counted stays counted, and what comes is added to it."""
    queue = DurableQueue("in", tmp_path)

    def plan(version: int) -> Plan:
        made = Plan("count", version=version)
        words = made.source("in", Queue("in", tmp_path)).combine("words", total, key="word", value="n")
        words.destination("out", Recorder(tmp_path / "out.jsonl"), backoff=0)
        return made

    for version in (1, 2):
        delta.forget_logs()
        queue.append([{"word": f"a-word-of-forty-five-characters-or-so-{n % 5}", "n": 1} for n in range(20)])
        if version == 2:
            plan(2).freeze()
            migrate(state_root(plan(2), states), plan(2), 1)
        assert run_plan(plan(version), states, checked=False).exit == 0
    assert plan(2).state("words", states).get("a-word-of-forty-five-characters-or-so-1") == 8
