"""``doc.idempotency_key``: what a step hands to a service that does a thing once for a key."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import TransientError, UsageError
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder


class Asked:
    """A step that writes down each key that it is given, by document and version, and may fail."""

    def __init__(self, folder: Path, name: str, fails: int = 0) -> None:
        self.__name__ = name
        self._file = folder / f"{name}.keys"
        self._fails = fails

    def __call__(self, doc: Document) -> Document:
        with self._file.open("a") as file:
            file.write(f"{doc.id} {doc.text()} {doc.idempotency_key}\n")
        if sum(line.startswith(f"{doc.id} ") for line in self._file.read_text().splitlines()) <= self._fails:
            raise TransientError("busy")
        return doc

    def keys(self) -> dict[tuple[str, str], list[str]]:
        found = defaultdict(list)
        for line in self._file.read_text().splitlines():
            id, text, key = line.split()
            found[id, text].append(key)
        return dict(found)


@pytest.mark.rule("doc.idempotency-key")
@pytest.mark.parametrize("runner", [InProcess(), InProcess(fork=True)], ids=["here", "in a child"])
def test_it_is_the_same_on_every_attempt(trial: PlanWorld, runner: InProcess) -> None:
    """Two errors, then it is done: three calls, one key; each document has its own."""
    step = Asked(trial.folder, "pay", fails=2)
    trial.build(step, backoff=0)
    trial.put("a", text="1")
    trial.put("b", text="1")
    assert trial.run(runner=runner).exit == 0
    keys = step.keys()
    assert [len(each) for each in keys.values()] == [3, 3]
    assert len({key for each in keys.values() for key in each}) == 2
    assert all(len(key) == 32 for each in keys.values() for key in each)


@pytest.mark.rule("doc.idempotency-key")
def test_what_is_processed_on_purpose_has_another(trial: PlanWorld) -> None:
    """A changed document; one that is sent again by force. What is only scanned again is not called at all."""
    step = Asked(trial.folder, "pay")
    trial.build(step)
    for text in ("1", "2"):
        trial.put("a", text=text)
        trial.run()
        trial.run()
    trial.retry(force=True)
    trial.run()
    keys = step.keys()
    assert len({*keys["a", "1"], *keys["a", "2"]}) == 3


@pytest.mark.rule("doc.idempotency-key")
def test_each_step_route_and_state_has_its_own(trial: PlanWorld, place: Path) -> None:
    """Two steps in a row, two copies, two states of the plan."""
    one, two = Asked(trial.folder, "one"), Asked(trial.folder, "two")
    for state in ("s1", "s2"):
        plan = Plan("keys", version=1)
        copies = plan.source("docs", Memory([{"id": "a", "raw": b"1"}])).step("one", one).route("twice", Duplicate())
        left, right = copies.step("left", two), copies.step("right", two)
        left.destination("l", Recorder(trial.folder / f"{state}-l"))
        right.destination("r", Recorder(trial.folder / f"{state}-r"))
        assert run_plan(plan, trial.folder / state).exit == 0
    keys = [*one.keys()["a", "1"], *two.keys()["a", "1"]]
    assert len(keys) == len(set(keys)) == 2 * 3


@pytest.mark.rule("doc.idempotency-key")
@pytest.mark.parametrize("children", [3, 50], ids=["few", "more than are held"])
def test_a_generator_has_it_all_the_time(trial: PlanWorld, children: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while its first children are with other steps: the same key from its first line to its last."""
    monkeypatch.setattr(limits, "HELD_CHILDREN", 10)
    file = trial.folder / "told"

    def tell(step: str, doc: Document) -> None:
        with file.open("a") as out:
            out.write(f"{step} {doc.idempotency_key}\n")

    def parts(doc: Document) -> Iterator[Document]:
        for n in range(children):
            tell("parts", doc)
            yield doc.child(n)
        tell("parts", doc)

    def look(doc: Document) -> Document:
        tell("look", doc)
        return doc

    trial.build(parts, look)
    trial.put("a")
    assert trial.run().delivered == children
    told = file.read_text().splitlines()
    assert len(told) == 2 * children + 1
    assert len({line for line in told if line.startswith("parts ")}) == 1
    assert len({line for line in told if line.startswith("look ")}) == children


def test_outside_of_a_step_there_is_none(trial: PlanWorld) -> None:
    """In words; also after a run in the same thread."""
    trial.build(Asked(trial.folder, "pay"))
    trial.put("a")
    trial.run()
    with pytest.raises(UsageError, match="within a step"):
        _ = Document("a").idempotency_key


@pytest.mark.rule("doc.idempotency-key")
def test_careful_mode_gives_the_same(trial: PlanWorld) -> None:
    """A document kills the worker: the others are walked again, each in a child, with the key of before."""
    step = Asked(trial.folder, "pay")

    def deadly(doc: Document) -> Document:
        if doc.id == "z":
            os.kill(os.getpid(), signal.SIGKILL)
        return doc

    trial.build(step, deadly)
    for id in ("a", "b", "z"):
        trial.put(id, text="1")
    assert trial.run(runner=InProcess(fork=True)).rejected == 1
    keys = step.keys()
    assert all(len(each) > 1 for each in keys.values())
    assert [len(set(each)) for each in keys.values()] == [1, 1, 1]
