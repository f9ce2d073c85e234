"""What a new version of a plan that keeps state by key is not given, and what it says of logs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, limits
from ferryman.destinations import Queue as IntoQueue
from ferryman.destinations.base import Delivery, Outcome
from ferryman.engine.migration import migrate
from ferryman.errors import PermanentError, TransientError, UsageError
from ferryman.operations import resolve, retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Changes, Memory, Queue
from ferryman.state.state import State, state_root
from tests.engine.keyed.test_changes import balance, picky
from tests.engine.test_replicas import Copy, turns
from tests.support.keyed import count
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch, run_plan


def build_counting(
    world: PlanWorld,
    version: int,
    update: Callable[..., Any] = count,
    *,
    source: Any = None,
    step: Any = None,
    below: Any = None,
    other: Any = None,
    name: str = "counts",
    entry: str = "from_in",
) -> Plan:
    """Build a version: queue ``in`` (or documents) → a step → keyed node → a step → recorder."""
    plan = Plan("counting", version=version)
    node = plan.source(entry, source or Queue("in", world.folder, on_error="continue"))
    if other is not None:
        node = node.route("fork", Duplicate())
        node.step("other", other).destination("others", world.out(), backoff=0)
    if step is not None:
        node = node.step("step", step)
    node = node.keyed(name, update, key="word" if source is None else "key")
    if below is not None:
        node = node.step("below", below, attempts=1)
    node.destination("out", world.out(), backoff=0)
    return plan


class Counting(PlanWorld):
    def refused(self, plan: Plan, says: str) -> None:
        """Refuse to migrate to this version: the older one is as it was."""
        with pytest.raises(UsageError, match=says):
            self.run(plan, 1)
        assert not state_root(plan, self.state).exists()


@pytest.fixture
def counting(place: Path) -> Counting:
    found = Counting(place, build_counting, field="word", wait=0)
    found.put("a", "b", "a")
    return found


@pytest.mark.rule("keyed.version-logs")
def test_entries_of_a_log_stay_counted(counting: Counting) -> None:
    """The position goes on, also with another step and another update, and each export tells what was told before."""

    def twice(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        old, new = state or 0, (state or 0) + 2 * len(documents)
        return new, Document(key, key=key, old=old, new=new)

    counting.run(counting.make_plan(1))
    counting.put("a", "c")
    new = counting.make_plan(2, twice, step=lambda doc: doc)
    assert counting.run(new, 1).exit == 0
    assert counting.states(new) == {"a": 4, "b": 1, "c": 2}
    assert "counts has changed, and its states stay what they are" in counting.watch.messages[0]
    assert [line["fields"]["old"] for line in counting.out().lines() if line["id"] == "a"] == [0, 2]
    counting.put("a")
    counting.run(new)
    assert counting.states(new)["a"] == 6


@pytest.mark.rule("keyed.version-logs")
def test_a_new_node_says_what_it_has_not_counted(counting: Counting) -> None:
    counting.run(counting.make_plan(1))
    counting.put("a")
    new = counting.make_plan(2, name="again")
    assert counting.run(new, 1).exit == 0
    assert counting.states(new, "again") == {"a": 1}
    assert "again counts what comes from now on in from_in" in counting.watch.messages[0]


class Once:
    """Raises until a file is there."""

    def __init__(self, folder: Path, error: Exception) -> None:
        self.mended, self.error = str(folder / "mended"), error

    def __call__(self, doc: Document) -> Document:
        if not Path(self.mended).exists():
            raise self.error
        return doc


class Late(Once):
    """The same as an update."""

    def __call__(self, *given: Any) -> Any:
        if not Path(self.mended).exists():
            raise self.error
        return count(*given)


@pytest.mark.rule("keyed.version-waits")
def test_what_is_not_counted_yet_is_named(counting: Counting) -> None:
    """Once the older version has come to its end, it is carried over."""
    late = Late(counting.folder, TransientError("not yet"))
    counting.run(counting.make_plan(1, late))
    counting.refused(counting.make_plan(2, late), "counts: 3 documents are committed, and not counted yet")
    (counting.folder / "mended").touch()
    retry(counting.make_plan(1, late), state=counting.state)
    counting.run(counting.make_plan(1, late))
    assert counting.run(counting.make_plan(2, late), 1).exit == 0
    assert counting.states(counting.make_plan(2)) == {"a": 2, "b": 1}


@pytest.mark.rule("keyed.version-waits")
def test_what_has_not_arrived_below_is_named(counting: Counting) -> None:
    """Pending or refused: an operator gives it up."""

    def no(delivery: Delivery) -> Outcome:
        return Outcome.permanent("no") if delivery.id == "a" else Outcome.ok()

    counting.out().answer = no
    counting.run(counting.make_plan(1))
    counting.refused(counting.make_plan(2), r"out: 1 exports of counts wait, or are held for review \(one of them: a\)")
    resolve(counting.make_plan(1), "dropped", state=counting.state)
    assert counting.run(counting.make_plan(2), 1).exit == 0


@pytest.mark.rule("keyed.version-waits")
@pytest.mark.parametrize("error", [TransientError("not yet"), PermanentError("never")])
def test_what_a_step_below_holds_is_named(counting: Counting, error: Exception) -> None:
    below = Once(counting.folder, error)
    counting.run(counting.make_plan(1, below=below))
    counting.refused(counting.make_plan(2, below=below), r"counts: 2 exports wait at a step or router, or failed there")
    (counting.folder / "mended").touch()
    retry(counting.make_plan(1, below=below), state=counting.state)
    counting.run(counting.make_plan(1, below=below))
    assert counting.run(counting.make_plan(2), 1).exit == 0


@pytest.mark.rule("keyed.version-waits")
def test_exports_that_were_not_carried_on_are_named(counting: Counting) -> None:
    with pytest.raises(Interrupted):
        counting.run(counting.make_plan(1), observer=Until(2, "transform"), checked=False)
    counting.refused(counting.make_plan(2), "counts: 2 exports were not carried on")


@pytest.mark.rule("keyed.version-waits")
def test_a_command_that_is_queued_is_named(counting: Counting) -> None:
    counting.run(counting.make_plan(1))
    with State.take(state_root(counting.make_plan(1), counting.state), counting.make_plan(1)):
        retry(counting.make_plan(1), state=counting.state, force=True)
    counting.refused(counting.make_plan(2), "`retry --force` by .* is queued")


@pytest.mark.rule("keyed.version-waits")
def test_an_entry_that_was_counted_and_failed_elsewhere_is_named(counting: Counting) -> None:
    """Read again it would be counted twice. One that failed before it came to a node is read again, and counted."""
    other = Once(counting.folder, PermanentError("never"))
    counting.run(counting.make_plan(1, other=other))
    counting.refused(counting.make_plan(2), "from_in: 3 entries were counted, and failed on another branch")


@pytest.mark.rule("keyed.version-logs")
def test_an_entry_that_failed_above_a_node_is_counted_once(counting: Counting) -> None:
    """By the new version's rules."""
    above = Once(counting.folder, PermanentError("never"))
    counting.run(counting.make_plan(1, step=above))
    (counting.folder / "mended").touch()
    counting.put("a")
    assert counting.run(counting.make_plan(2, step=above), 1).exit == 0
    assert counting.states(counting.make_plan(2)) == {"a": 3, "b": 1}


def test_what_update_has_refused_stays_refused(counting: Counting) -> None:
    """It can be retried, and a new version of the document replaces nothing."""
    counting.documents[:] = [{"id": "a", "key": "x", "n": -1}, {"id": "b", "key": "x", "n": 2}]
    source = Memory(counting.documents, max_deleted=1.0)
    counting.run(counting.make_plan(1, picky, source=source))
    new = counting.make_plan(2, picky, source=source)
    assert counting.run(new, 1).rejected == 1
    counting.documents[0] = {"id": "a", "key": "x", "n": 5}
    assert counting.run(new).exit == 0
    assert counting.states(new) == {"x": 7}


def fairer(key: str, state: int | None, documents: list[Document]) -> Any:
    """Another function than ``balance``."""
    return balance(key, state, documents)


@pytest.mark.rule("keyed.version-unlike")
def test_what_could_not_be_taken_back_is_refused(counting: Counting) -> None:
    """Another update, a source that is gone, a name of another kind of node. Under another name it counts anew."""
    counting.documents[:] = [{"id": "a", "key": "x", "n": 3}, {"id": "b", "key": "y", "n": 2}]
    source = Memory(counting.documents, max_deleted=1.0)
    counting.run(counting.make_plan(1, balance, source=source))
    counting.refused(
        counting.make_plan(2, fairer, source=source), "counts: its update or key has changed since version 1"
    )
    counting.refused(
        counting.make_plan(2, balance, source=source, entry="renamed"), "counts: has counted documents of from_in"
    )
    other = Plan("counting", version=2)
    other.source("from_in", source).destination("counts", counting.out())
    counting.refused(other, "counts is a destination node now, and was a keyed node before")
    new = counting.make_plan(2, fairer, source=source, name="anew")
    assert counting.run(new, 1).exit == 0
    assert counting.states(new, "anew") == {"x": 3, "y": 2}


@pytest.mark.rule("keyed.version")
def test_who_reads_the_changes_of_a_state_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the new version's plan, where it stood, and no deletion is lost."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "OUTDATED_SHARE", 0.1)
    counting, copy, chance = Counting(place, build_counting, field="word", wait=0), Copy(place), random.Random(1)

    def replicate(plan: Plan) -> Any:
        replica = Plan("replica", version=1)
        replica.source("changes", Changes(plan, "counts", counting.state)).destination("copy", copy)
        watch = Watch()
        assert run_plan(replica, counting.state, observer=watch).exit == 0
        assert not watch.messages
        assert copy.values() == counting.states(plan)

    for version in (1, 2, 3):
        plan = counting.make_plan(version, turns)
        for _ in range(3):
            words = [(f"w{chance.randrange(20)}", chance.random() < 0.3) for _ in range(12)]
            counting.into.append([{"word": word, "out": out} for word, out in words])
            counting.run(plan, version - 1 or None)
        replicate(plan)


def test_a_queue_below_goes_on(place: Path) -> None:
    """Nothing is appended twice."""
    into = DurableQueue("in", place)
    for version in (1, 2):
        into.append([{"word": word} for word in "aab"])
        plan = Plan("queues", version=version)
        counts = plan.source("from_in", Queue("in", place)).keyed("counts", count, key="word")
        counts.destination("out", IntoQueue("out", place))
        plan.freeze()
        if version > 1:
            migrate(state_root(plan, place / "state"), plan, version - 1)
        run_plan(plan, place / "state")
    told = [(m.body["key"], m.body["old"], m.body["new"]) for m in DurableQueue("out", place).read(limit=100)]
    assert sorted(told) == [("a", 0, 2), ("a", 2, 4), ("b", 0, 1), ("b", 1, 2)]
