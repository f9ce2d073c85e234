"""Logs whose entries are versions of documents: what an older version has delivered, and a newer one does not make any
more, is deleted, as of files and tables."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import Dropped, PermanentError, TransientError
from ferryman.plan import Plan
from ferryman.routers import ByField
from tests.support.invariants import rows
from tests.support.keyed_topic import KeyedTopic, make_topic
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.previewed import previewed
from tests.support.recorder import Recorder

LONG = "k" * 45 + "é"


def make(doc: Document) -> Iterator[Document]:
    """Make what the message says: its children, nothing, or an error."""
    match doc.fields.pop("does", ""):
        case "drop":
            raise Dropped("not wanted")
        case "reject":
            raise PermanentError("never")
        case "none":
            return
    parts = doc.fields.pop("parts", 0)
    doc["made"] = True
    yield doc
    for n in range(parts):
        yield doc.child(str(n), n=n, of=doc["n"], side=doc.get("side"))


def build(world: PlanWorld, topic: KeyedTopic, *, attempts: int = 3) -> Plan:
    """Make, and send to one of two destinations."""
    plan = Plan("keyed", version=1)
    sides = (
        plan.source("log", topic)
        .step("make", make, attempts=attempts)
        .route("sides", ByField("side", {"left": "left", "right": "right"}, default="left"))
    )
    sides.destination("left", world.out("left"), backoff=0)
    sides.destination("right", world.out("right"), backoff=0)
    return plan


def read(folder: Path, topic: KeyedTopic, **options: Any) -> PlanWorld:
    return PlanWorld(folder, build, wait=100.0).build(topic, **options)


def there(world: PlanWorld, name: str = "left") -> dict[str, Any]:
    """Return what a destination has that does what it is told, in the order in which it is told: id -> ``n``."""
    found: dict[str, Any] = {}
    for line in world.out(name).lines():
        if line["said"] == "ok":
            found.pop(line["id"], None)
            if line["op"] == "upsert":
                found[line["id"]] = line["fields"].get("of", line["fields"].get("n"))
    return found


@pytest.mark.rule("log.versions")
def test_children_that_a_newer_version_does_not_have(place: Path) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 3}), (LONG, {"n": 1, "parts": 2}))
    world = read(place, topic)
    world.run()
    topic.write(("a", {"n": 2, "parts": 1}), (LONG, {"n": 2}))
    assert world.run().deleted == 4
    assert there(world) == {"a": 2, "a#0": 2, LONG: 2}
    assert world.status()["destinations"]["left"] == {
        "delivered": 3,
        "deleted": 4,
        "dropped": 0,
        "failed": 0,
        "rejected": 0,
        "pending": 0,
        "in_doubt": 0,
    }


@pytest.mark.rule("log.versions")
@pytest.mark.parametrize("does", ["drop", "none"])
def test_a_version_that_is_dropped(place: Path, does: str) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 2}), ("b", {"n": 1}))
    world = read(place, topic)
    world.run()
    topic.write(("a", {"n": 2, "does": does}))
    world.run()
    assert there(world) == {"b": 1}
    topic.write(("a", {"n": 3}))
    world.run()
    assert there(world) == {"b": 1, "a": 3}


@pytest.mark.rule("log.versions")
def test_a_version_that_is_rejected_replaces_as_of_a_file(place: Path) -> None:
    """What is below the failed step stays as it was until that is decided: the version may still come."""
    topic = make_topic(place, on_error="continue")
    topic.write(("a", {"n": 1, "parts": 2}))
    world = read(place, topic)
    world.run()
    topic.write(("a", {"n": 2, "does": "reject"}))
    assert world.run().rejected == 2  # one of them at each destination
    (place / "listed").mkdir()
    listed = PlanWorld(place / "listed", wait=10_000.0).build(make)
    listed.put("a", n=1, parts=2)
    listed.run()
    listed.put("a", n=2, does="reject")
    listed.run()
    assert there(world) == there(listed, "out")
    topic.write(("a", {"n": 3}))
    assert world.run().exit == 0
    assert there(world) == {"a": 3}


@pytest.mark.rule("log.versions")
def test_another_destination(place: Path) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 2}))
    world = read(place, topic)
    world.run()
    topic.write(("a", {"n": 2, "parts": 1, "side": "right"}))
    world.run()
    assert (there(world), there(world, "right")) == ({}, {"a": 2, "a#0": 2})


@pytest.mark.rule("log.versions")
def test_a_tombstone_deletes_children(place: Path) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 300, "side": "right"}), ("b", {"n": 1}))
    world = read(place, topic)
    world.run()
    topic.write(("a", None), ("a", None), ("c", None))
    assert world.run().deleted == 301 + 2  # "c" may have been delivered before the state remembered it
    assert (there(world), there(world, "right")) == ({"b": 1}, {})
    topic.write(("a", {"n": 2}))
    world.run()
    assert there(world) == {"b": 1, "a": 2}
    assert world.status()["balanced"]


@pytest.mark.rule("log.preview")
def test_a_preview_shows_deletes(place: Path) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 3}), (LONG, {"n": 1, "parts": 1}), ("b", {"n": 1}))
    world = read(place, topic)
    world.run()
    topic.write(("a", {"n": 2, "parts": 1}), (LONG, None), ("b", {"n": 2, "does": "drop"}), ("c", {"n": 1}))
    found = previewed(world.plan, world.state).destinations["left"]
    deleted = {row["document"] for row in found.gets if row["operation"] == "delete"}
    assert deleted == {"a#1", "a#2", LONG, f"{LONG}#0", "b"}
    assert {row["document"] for row in found.gets} - deleted == {"a", "a#0", "c"}
    before = there(world)
    world.run()
    assert before.keys() - there(world).keys() == deleted


@pytest.mark.rule("log.versions")
def test_versions_of_one_wave(place: Path) -> None:
    """Each is delivered, and what it does not make any more is deleted after it."""
    topic = make_topic(place)
    topic.write(
        ("a", {"n": 1, "parts": 2}),
        ("b", {"n": 1, "side": "right", "parts": 1}),
        ("a", {"n": 2, "parts": 1}),
        ("b", {"n": 2}),
        ("c", {"n": 1, "parts": 1}),
        ("c", None),
        ("c", {"n": 2}),
        ("a", {"n": 3, "does": "drop"}),
    )
    world = read(place, topic)
    assert world.run().waves == 1
    assert (there(world), there(world, "right")) == ({"b": 2, "c": 2}, {})
    assert world.out("left").arrived() == [
        *("a", "a#0", "a#1"), *("a", "a#0", "-a#1"), "b", *("c", "c#0"), *("-c", "-c#0"), "c", *("-a", "-a#0")
    ]  # fmt: skip
    assert sorted(r["document"] for r in rows(world.root, "documents")) == ["a", "b", "c"]


@pytest.mark.rule("log.versions")
def test_versions_in_two_blocks_of_a_task(place: Path) -> None:
    topic = make_topic(place)
    topic.write(*((f"k{n % 700}", {"n": n, "parts": int(n < 700)}) for n in range(5000)))
    world = read(place, topic)
    assert world.run().waves == 1
    assert there(world) == {f"k{n % 700}": n for n in range(4300, 5000)}


@pytest.mark.rule("log.versions")
def test_a_full_task_ends_its_wave(place: Path) -> None:
    topic = make_topic(place)
    topic.write(*((f"k{n}", {"n": n}) for n in range(9000)))
    world = read(place, topic)
    with patch.object(limits, "PART_BYTES", 1):
        assert world.run().waves == 3
    assert len(there(world)) == 9000


@pytest.mark.rule("log.versions")
def test_a_key_that_moves_to_another_partition(place: Path) -> None:
    """Within one wave, the second partition is read after the first has been."""
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 3}), ("b", {"n": 1}))
    topic.write(("a", {"n": 2, "parts": 1}), ("c", {"n": 1}), partition="p1")
    topic.write(("d", {"n": 1}), partition="p2")
    world = read(place, topic)
    world.run()
    assert there(world) == {"b": 1, "d": 1, "a": 2, "a#0": 2, "c": 1}
    topic.write(("a", {"n": 3}), partition="p2")  # a lower offset than before
    world.run()
    assert there(world) == {"b": 1, "d": 1, "c": 1, "a": 3}
    [row] = [r for r in rows(world.root, "documents") if r["document"] == "a" and r["wave"] == world.status()["waves"]]
    assert row["revision"] == 3


@pytest.mark.rule("log.versions")
def test_a_compacted_topic(place: Path) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 2}), ("b", {"n": 1}))
    world = read(place, topic)
    world.run()
    topic.write(("a", {"n": 2, "parts": 2}), ("a", {"n": 3, "parts": 1}))
    topic.compact("p0")
    world.run()
    assert there(world) == {"b": 1, "a": 3, "a#0": 3}


class Fails:
    """A step that makes what a message says, and fails for those in ``texts`` until there is a file ``mended``."""

    __name__ = "make"

    def __init__(self, folder: Path, error: Exception, *texts: str) -> None:
        self.mended = folder / "mended"
        self.error = error
        self.texts = texts

    def __call__(self, doc: Document) -> Iterator[Document]:
        if f"{doc.id}{doc['n']}" in self.texts and not self.mended.exists():
            raise self.error
        yield from make(doc)


def failing(place: Path, topic: KeyedTopic, step: Fails, **options: Any) -> PlanWorld:
    def build(world: PlanWorld) -> Plan:
        plan = Plan("keyed", version=1)
        made = plan.source("log", topic).step("make", step, **options)
        made.destination("left", world.out("left"), backoff=0)
        return plan

    return PlanWorld(place, build, wait=0.0)


@pytest.mark.rule("log.versions")
@pytest.mark.parametrize("error", [TransientError("not now"), ValueError("odd"), PermanentError("never")])
@pytest.mark.parametrize("waves", [1, 2])
def test_a_newer_version_overtakes_one_that_failed(place: Path, error: Exception, waves: int) -> None:
    """In one wave with it, or later; what was to be retried is not any more."""
    topic = make_topic(place, ordered=False, on_error="continue")
    topic.write(("a", {"n": 1, "parts": 3}), ("b", {"n": 1, "parts": 1}))
    step = Fails(place, error, "a2", "b2")
    world = failing(place, topic, step)
    world.run()
    topic.write(("a", {"n": 2, "parts": 2}), ("b", {"n": 2}))
    if waves == 2:
        world.run()
        assert there(world) == {"a": 1, "a#0": 1, "a#1": 1, "a#2": 1, "b": 1, "b#0": 1}
    topic.write(("a", {"n": 3, "parts": 1}), ("b", None))
    world.run()
    assert there(world) == {"a": 3, "a#0": 3}
    assert world.run(wait=100.0).exit == 0
    step.mended.touch()
    world.retry(status="failed")
    world.run()
    assert there(world) == {"a": 3, "a#0": 3}
    assert world.status()["destinations"]["left"]["pending"] == 0


@pytest.mark.rule("log.versions")
def test_a_version_that_failed_is_retried(place: Path) -> None:
    """And deletes then what it does not make any more."""
    topic = make_topic(place, ordered=False, on_error="continue")
    topic.write(("a", {"n": 1, "parts": 3}))
    step = Fails(place, TransientError("not now"), "a2")
    world = failing(place, topic, step)
    world.run()
    topic.write(("a", {"n": 2, "parts": 1}))
    assert world.run().exit == 4
    assert there(world) == {"a": 1, "a#0": 1, "a#1": 1, "a#2": 1}
    step.mended.touch()
    world.retry(status="pending")  # it may be due much later
    assert world.run(wait=100.0).exit == 0
    assert there(world) == {"a": 2, "a#0": 2}
    topic.write(("a", None))
    world.run()
    assert there(world) == {}


@pytest.mark.rule("log.versions")
def test_a_retry_that_finds_a_tombstone(place: Path) -> None:
    topic = make_topic(place, ordered=False, on_error="continue")
    topic.write(("a", {"n": 1, "parts": 2}))
    world = failing(place, topic, Fails(place, PermanentError("never"), "a2"))
    world.run()
    topic.write(("a", {"n": 2}))
    world.run()
    topic.write(("a", None))
    world.retry(status="rejected", force=True)
    world.run()
    assert there(world) == {}
    assert world.status()["balanced"]


@pytest.mark.rule("log.versions")
@pytest.mark.parametrize("answer", [Outcome.transient("not now"), Outcome.permanent("never")])
def test_a_delivery_that_fails_is_not_made_after_a_newer_one(place: Path, answer: Outcome) -> None:
    """At a destination that takes whatever comes, also within one wave; one that was refused for good holds nothing."""
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 1}), ("b", {"n": 1}), ("a", {"n": 2}), ("a", {"n": 3, "parts": 1}))
    refused: list[str] = []

    def refuse_first(delivery: Delivery) -> Outcome:
        if delivery.id == "a" and not refused:
            refused.append(delivery.id)
            return answer
        return Outcome.ok()

    def build(world: PlanWorld) -> Plan:
        plan = Plan("keyed", version=1)
        world.outs["left"] = Recorder(place / "left.jsonl", refuse_first)
        plan.source("log", topic).step("make", make).destination("left", world.out("left"), backoff=0)
        return plan

    world = PlanWorld(place, build, wait=100.0)
    world.run()
    assert [line["fields"]["n"] for line in world.out("left").lines() if line["id"] == "a"] == (
        [1, 2, 3] if answer.kind == "permanent" else [1, 1, 2, 3]
    )
    assert there(world) == {"a": 3, "a#0": 3, "b": 1}
    world.retry(status="failed")
    world.retry(status="rejected")
    world.run()
    assert there(world) == {"a": 3, "a#0": 3, "b": 1}


@pytest.mark.rule("log.versions")
def test_deletes_wait_for_the_upserts_of_their_version(place: Path) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 2}))

    def refuse(delivery: Delivery) -> Outcome:
        return Outcome.permanent("too large") if delivery.fields.get("n") == 2 else Outcome.ok()

    def build(world: PlanWorld) -> Plan:
        plan = Plan("keyed", version=1)
        world.outs["left"] = Recorder(place / "left.jsonl", refuse)
        plan.source("log", topic).step("make", make).destination("left", world.out("left"), backoff=0)
        return plan

    world = PlanWorld(place, build)
    world.run()
    topic.write(("a", {"n": 2}))
    assert world.run().exit == 3
    assert there(world) == {"a": 1, "a#0": 1, "a#1": 1}
    topic.write(("a", {"n": 3}))
    assert world.run().exit == 0
    assert there(world) == {"a": 3}


@pytest.mark.rule("log.versions")
def test_an_ordered_log_that_waits(place: Path) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 3}))
    step = Fails(place, TransientError("not now"), "a2")
    world = failing(place, topic, step)
    world.run()
    topic.write(("b", {"n": 1}), ("a", {"n": 2, "parts": 1}), ("a", {"n": 3}))
    assert world.run().exit == 4
    assert there(world) == {"a": 1, "a#0": 1, "a#1": 1, "a#2": 1, "b": 1}
    step.mended.touch()
    assert world.run(wait=100.0).exit == 0
    assert there(world) == {"b": 1, "a": 3}


@pytest.mark.rule("log.versions")
@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
def test_a_run_that_is_interrupted(place: Path, phase: str) -> None:
    topic = make_topic(place)
    topic.write(("a", {"n": 1, "parts": 3}), ("b", {"n": 1, "parts": 1}))
    world = read(place, topic)
    world.run()
    topic.write(("a", {"n": 2, "parts": 1}), ("b", None), ("a", {"n": 3, "side": "right"}))
    with pytest.raises(Interrupted):
        world.run(observer=Until(2, phase), checked=False)
    world.run()
    assert (there(world), there(world, "right")) == ({}, {"a": 3})


@pytest.mark.rule("log.versions")
def test_a_state_of_before(place: Path) -> None:
    """What a state does not remember, an older version of Ferryman having written it: a tombstone deletes the document
    wherever it may be."""
    topic = make_topic(place)
    topic.write(("a", None))
    world = read(place, topic)
    world.run()
    assert world.out("left").arrived() == world.out("right").arrived() == ["-a"]


@pytest.mark.rule("log.versions")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 40))])
def test_random_versions(place: Path, seed: int) -> None:
    """Against the last version of each key, over waves, partitions, and runs that end anywhere."""
    chance = random.Random(seed)
    topic = make_topic(place, ordered=seed % 2 == 0)
    world = read(place, topic)
    last: dict[str, Any] = {}
    for n in range(8):
        for m in range(chance.choice((1, 5, 40))):
            key = f"{LONG if chance.random() < 0.3 else 'k'}{chance.randrange(6)}"
            value: Any = {"n": f"{n}.{m}", "parts": chance.randrange(4), "side": chance.choice(("left", "right"))}
            if chance.random() < 0.2:
                value["does"] = chance.choice(("drop", "none"))
            last[key] = value = None if chance.random() < 0.2 else value
            topic.write((key, value), partition=f"p{sum(key.encode()) % 2}")
        if chance.random() < 0.3:
            topic.compact("p0")
        with patch.object(limits, "TASK_DOCUMENTS", chance.choice((3, 1000))):
            if chance.random() < 0.3:
                waves = world.status()["waves"] if n else 0
                at = Until(waves + chance.randrange(1, 3), chance.choice(("commit", "deliver", "settle")))
                with contextlib.suppress(Interrupted):
                    world.run(observer=at, checked=False)
            world.run()
        expected: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
        for key, value in last.items():
            if value is not None and "does" not in value:
                family = [key, *(f"{key}#{part}" for part in range(value["parts"]))]
                expected[value["side"]] |= dict.fromkeys(family, value["n"])
        assert {name: there(world, name) for name in expected} == expected
