"""An export that does not arrive, or that a step cannot take, holds the later exports of its key, and no others."""

from __future__ import annotations

import json
import pickle
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ferryman import Document, account
from ferryman.destinations import Queue as IntoQueue
from ferryman.destinations.base import Delivery, Outcome
from ferryman.engine.deliver.sending import Pass
from ferryman.errors import PermanentError, Unavailable
from ferryman.operations import resolve, retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import states
from tests.support.keyed import Counted, count
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder


class Gate(Recorder):
    """Refuses what a file names, by key and new count; takes all else."""

    def __init__(self, folder: Path, name: str = "gate", kind: str = "permanent") -> None:
        super().__init__(folder / f"{name}.jsonl")
        self.refused, self.kind = str(folder / f"{name}.refused"), kind
        self.answer = self.judge

    def judge(self, delivery: Delivery) -> Outcome:
        refused = json.loads(Path(self.refused).read_text())
        told = [delivery.fields["key"], delivery.fields["new"]]
        return Outcome(self.kind, "refused") if told in refused else Outcome.ok()

    def refuse_only(self, *what: tuple[str, int]) -> None:
        Path(self.refused).write_text(json.dumps([list(each) for each in what]))

    def told(self) -> dict[str, list[tuple[int, int]]]:
        """Key -> (old, new) of each export that it took, in its order."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for line in self.lines():
            if line["said"] == "ok":
                found[line["fields"]["key"]].append((line["fields"]["old"], line["fields"]["new"]))
        return found


def hold(place: Path, gate: Gate, *, hurdle: Any = None, **policy: Any) -> PlanWorld:
    """Create plan ``held``: queue ``in`` → counts by word → gate."""

    def build(world: PlanWorld) -> Plan:
        plan = Plan("held", version=1)
        update = Counted(place / "calls")
        node = plan.source("from_in", Queue("in", place)).keyed("counts", update, key="word", buffer_bytes=1)
        if hurdle is not None:
            node = node.step("hurdle", hurdle)
        node.destination("gate", gate, backoff=0, **policy)
        return plan

    return PlanWorld(place, build, field="word")


def chain(length: int) -> list[tuple[int, int]]:
    return [(n, n + 1) for n in range(length)]


@pytest.mark.rule("keyed.holds")
@pytest.mark.parametrize("kind", ["permanent", "unforeseen"])
def test_a_refused_export_holds_its_key_alone(place: Path, kind: str) -> None:
    """Those behind it are pending, and named with the reason; a retry releases them in their order."""
    gate = Gate(place, kind=kind)
    gate.refuse_only(("a", 2))
    held = hold(place, gate, attempts=1)
    held.put("a", "b", "a", "b", "a")
    held.run()
    held.put("a", "c", "b")
    summary = held.run()
    assert (summary.exit, summary.failed, summary.pending) == (4, 1, 2)
    assert gate.told() == {"a": chain(1), "b": chain(3), "c": chain(1)}
    rows = account.deliveries(held.root, status="pending", plan=held.plan)
    assert [row["document"] for row in rows] == ["a", "a"]
    assert all("waits for an earlier export of its key, a, which" in row["message"] for row in rows)
    assert any("2 exports wait for earlier ones of the same key" in message for message in summary.messages)
    before = held.run()
    assert before.waves == 0
    gate.refuse_only()
    retry(held.plan, state=held.state, status="failed")
    assert held.run().exit == 0
    assert gate.told() == {"a": chain(4), "b": chain(3), "c": chain(1)}


class Picky:
    """A step that fails for what a file names, by key and new count."""

    def __init__(self, folder: Path, error: type[Exception] = PermanentError) -> None:
        self.refused, self.error = str(folder / "step.refused"), error
        self.refuse_only()

    def refuse_only(self, *what: tuple[str, int]) -> None:
        Path(self.refused).write_text(json.dumps([list(each) for each in what]))

    def __call__(self, doc: Document) -> Document:
        if [doc["key"], doc["new"]] in json.loads(Path(self.refused).read_text()):
            raise self.error("not this one")
        return doc


@pytest.mark.rule("keyed.holds")
@pytest.mark.parametrize("error", [PermanentError, ValueError])
def test_what_a_step_cannot_take_holds_its_key_alone(place: Path, error: type[Exception]) -> None:
    """In the wave in which it fails and in later ones; ``update`` is called once for each document, whatever comes."""
    gate, hurdle = Gate(place), Picky(place, error)
    gate.refuse_only()
    hurdle.refuse_only(("a", 2), ("b", 3))
    held = hold(place, gate, hurdle=hurdle, attempts=1)
    held.put(*"abaabc")
    held.run()
    held.put(*"abcb")
    summary = held.run()
    assert (summary.exit, summary.failed + summary.rejected, summary.pending) == (4, 2, 3), summary
    assert gate.told() == {"a": chain(1), "b": chain(2), "c": chain(2)}
    rows = account.deliveries(held.root, status="pending", plan=held.plan)
    assert sorted(row["document"] for row in rows) == ["a", "a", "b"]
    assert all("waits for an earlier export of its key" in row["message"] for row in rows)
    assert any("3 exports wait for earlier ones of the same key" in message for message in summary.messages)
    assert held.run().waves == 0
    hurdle.refuse_only(("a", 4))
    retry(held.plan, state=held.state)
    assert held.run().pending == 0
    assert gate.told() == {"a": chain(3), "b": chain(4), "c": chain(2)}
    hurdle.refuse_only()
    retry(held.plan, state=held.state)
    assert held.run().exit == 0
    assert gate.told() == {"a": chain(4), "b": chain(4), "c": chain(2)}
    assert sorted((place / "calls").read_text().split()) == sorted("aaaabbbbcc")


@pytest.mark.rule("keyed.holds")
def test_a_hold_is_of_one_destination(place: Path) -> None:
    """Below a fork one refuses: the other gets all."""
    gates = [Gate(place, name) for name in ("one", "two")]
    plan = Plan("forked", version=1)
    node = plan.source("from_in", Queue("in", place)).keyed("counts", count, key="word", buffer_bytes=1)
    fork = node.route("fork", Duplicate())
    for name, gate in zip(("one", "two"), gates, strict=True):
        gate.refuse_only()
        fork.destination(name, gate, backoff=0)
    gates[0].refuse_only(("a", 1))
    DurableQueue("in", place).append([{"word": word} for word in "aabab"])
    summary = run_plan(plan, place / "state")
    assert (summary.failed, summary.pending) == (1, 2)
    assert gates[0].told() == {"b": chain(2)}
    assert gates[1].told() == {"a": chain(3), "b": chain(2)}
    gates[0].refuse_only()
    retry(plan, state=place / "state", destination="one", status="failed")
    assert run_plan(plan, place / "state").exit == 0
    assert gates[0].told() == gates[1].told() == {"a": chain(3), "b": chain(2)}


def replaced(key: str, state: int | None, documents: list[Document]) -> tuple[int, list[Document]]:
    """An index by count: the entry of before goes, the new one comes."""
    old, new = state or 0, (state or 0) + len(documents)
    return new, [Document.deletion(f"{old}/{key}"), Document(f"{new}/{key}", key=key, old=old, new=new)]


@pytest.mark.rule("keyed.holds")
def test_deletions_wait_as_other_exports_do(place: Path) -> None:
    """A step fails for an entry: that before is not deleted later than it should be, nor that after it made."""
    gate, hurdle = Gate(place), Picky(place)
    gate.answer = None
    hurdle.refuse_only(("a", 2))
    plan = Plan("index", version=1)
    node = plan.source("from_in", Queue("in", place)).keyed("counts", replaced, key="word", buffer_bytes=1)
    node.step("hurdle", hurdle).destination("gate", gate)
    DurableQueue("in", place).append([{"word": word} for word in "aaab"])
    summary = run_plan(plan, place / "state")
    assert (summary.rejected, summary.pending) == (1, 2)

    def told() -> list[tuple[str, str]]:
        return [(line["op"], line["id"]) for line in gate.lines() if line["id"].endswith("a")]

    begun = [("delete", "0/a"), ("upsert", "1/a"), ("delete", "1/a")]
    assert told() == begun
    hurdle.refuse_only()
    retry(plan, state=place / "state")
    assert run_plan(plan, place / "state").exit == 0
    assert told() == [*begun, ("upsert", "2/a"), ("delete", "2/a"), ("upsert", "3/a")]


@pytest.mark.rule("keyed.holds")
def test_a_queue_gets_nothing_behind_a_message_that_it_refuses(place: Path) -> None:
    """Also of one chunk, which is one append."""

    def nested(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        new = (state or 0) + 1
        deep: Any = new
        for _ in range(150 if (key, new) == ("a", 2) else 1):
            deep = [deep]
        return new, Document(key, key=key, new=new, deep=deep)

    plan, out = Plan("nested", version=1), DurableQueue("out", place)
    node = plan.source("from_in", Queue("in", place)).keyed("counts", nested, key="word", buffer_bytes=1)
    node.destination("out", IntoQueue("out", place))
    DurableQueue("in", place).append([{"word": word} for word in "aaabb"])
    summary = run_plan(plan, place / "state")
    assert (summary.failed, summary.pending) == (1, 1)
    assert sorted((m.body["key"], m.body["new"]) for m in out.read()) == [("a", 1), ("b", 1), ("b", 2)]


@pytest.mark.rule("keyed.turns")
def test_a_hot_key_takes_one_pass(place: Path) -> None:
    """Also where each of its documents is exported by itself, under one id."""
    gate = Gate(place)
    gate.refuse_only()
    held = hold(place, gate)
    held.put(*["hot"] * 200, *(f"w{n}" for n in range(50)))
    summary = held.run()
    assert (summary.exit, summary.waves) == (0, 2)
    assert gate.told() == {"hot": chain(200), **{f"w{n}": chain(1) for n in range(50)}}


def test_exports_of_different_keys_go_in_one_chunk(place: Path) -> None:
    """Where each key has several: the first of each, then the second of each."""
    gate = Gate(place)
    gate.answer = None
    plan = Plan("index", version=1)
    node = plan.source("from_in", Queue("in", place)).keyed("counts", replaced, key="word")
    node.destination("gate", gate)
    DurableQueue("in", place).append([{"word": f"w{n}"} for n in range(400)])
    assert run_plan(plan, place / "state").exit == 0
    assert len(gate.calls()) == 2 * 4


@pytest.mark.rule("keyed.holds")
@pytest.mark.parametrize("at", ["step", "gate"])
def test_an_operator_gives_up_what_holds_others(place: Path, at: str) -> None:
    """What waits goes on without it."""
    gate, hurdle = Gate(place), Picky(place)
    gate.refuse_only(*([("a", 2)] if at == "gate" else []))
    hurdle.refuse_only(*([("a", 2)] if at == "step" else []))
    held = hold(place, gate, hurdle=hurdle)
    held.put(*"aaab")
    assert held.run().pending == 1
    assert resolve(held.plan, "dropped", state=held.state, why="told by hand").count == 1
    summary = held.run()
    assert (summary.exit, summary.pending, summary.failed + summary.rejected) == (0, 0, 0)
    assert gate.told() == {"a": [(0, 1), (2, 3)], "b": [(0, 1)]}


@pytest.mark.rule("keyed.holds")
def test_an_export_that_the_next_keyed_node_refuses_holds_its_key(place: Path) -> None:
    """The next node has other keys."""

    def last(key: str, state: Any, documents: list[Document]) -> tuple[Any, None]:
        if [doc["key"] for doc in documents] == ["a"] and documents[0]["new"] == 2 and not (place / "mended").exists():
            raise PermanentError("not this one")
        return [*(state or []), *(f"{doc['key']}{doc['new']}" for doc in documents)], None

    plan, into = Plan("chained", version=1), DurableQueue("in", place)
    node = plan.source("from_in", Queue("in", place)).keyed("counts", count, key="word")
    node.keyed("last", last, key=lambda doc: f"k{doc['new']}", buffer_bytes=1)
    for words in ("ab", "ab", "ab"):
        into.append([{"word": word} for word in words])
        summary = run_plan(plan, place / "state")
    root = place / "state" / "chained-v1"
    assert (summary.rejected, summary.pending) == (1, 1)
    assert {key: sorted(each) for key, each in states(root, "last").items()} == {
        "k1": ["a1", "b1"],
        "k2": ["b2"],
        "k3": ["b3"],
    }
    (place / "mended").touch()
    retry(plan, state=place / "state")
    assert run_plan(plan, place / "state").exit == 0
    assert {key: sorted(each) for key, each in states(root, "last").items()} == {
        f"k{n}": [f"a{n}", f"b{n}"] for n in (1, 2, 3)
    }


class Twins(InProcess):
    """Runs a second attempt of the first delivery task, as Spark may, once the first one has begun to write."""

    waiting: ClassVar[list[bytes]] = []

    def _run_one(self, call: bytes) -> Any:
        if isinstance(pickle.loads(call)[0], Pass):
            self.waiting.append(call)
        return super()._run_one(call)


def run_twin(_: object) -> None:
    if Twins.waiting:
        task, lane = pickle.loads(Twins.waiting.pop())
        task(lane)


@pytest.mark.rule("keyed.kill")
@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
def test_two_attempts_of_a_task_have_the_same_chunks(place: Path, guarantee: str) -> None:
    """The second one does not know what becomes of the chunk that the first one sends, so it leaves out the later
    exports of its keys; it claims and counts no row in another range than the first one does."""
    gone = place / "gone"

    def refuse() -> None:
        if gone.exists():
            raise Unavailable("it is away")

    def build(world: PlanWorld) -> Plan:
        plan, out = Plan("held", version=1), world.out()
        out.before, out.refuse = run_twin, refuse
        node = plan.source("from_in", Queue("in", place)).keyed("counts", count, key="word")
        return node.destination("out", out, guarantee=guarantee, batch=3).plan

    world = PlanWorld(place, build, field="word").build()
    gone.touch()
    words = [f"w{n}" for n in range(7)]
    for more in ([], [f"v{n}" for n in range(6)]):
        world.put(*words, *more)
        world.run(wait=0)
    gone.unlink()
    summary = world.run(wait=0, runner=Twins(), checked=False)  # the next start removes what did not count
    assert (summary.exit, summary.delivered, world.run().waves) == (0, 20, 0)
    arrived = Counter((line["id"], line["fields"]["new"]) for line in world.out().lines())
    assert len(arrived) == 20
    assert guarantee == "at-least-once" or set(arrived.values()) == {1}
