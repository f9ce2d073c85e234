"""Documents that come in batches: the bad documents of one batch stop no node; several bad batches do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.engine.settings import Clock, RunSettings
from ferryman.sources import Memory
from ferryman.sources.base import Listed
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import check
from tests.support.plan_world import PlanWorld, Watch


class Batches(Memory):
    """The batch of a document is what its id has before the slash; what is in ``broken`` cannot be read."""

    in_batches = True

    def __init__(self, documents: list[Any], broken: str = "") -> None:
        super().__init__(documents, max_deleted=1.0)
        self.broken = broken

    def listing(self, partition: Any) -> Iterator[Listed]:
        for doc in super().listing(partition):
            yield Listed(doc.id, 1, location=doc.id.partition("/")[0])

    def batch_of(self, location: str) -> str:
        return location

    def read(self, listed: Listed) -> Document:
        if self.broken and self.broken in listed.id:
            raise KeyError("no such part")
        return Document(listed.id, raw=b"x")


def step(doc: Document) -> Document:
    """Has a bug that all documents meet but the good ones."""
    return doc if "good" in doc.id else doc["no such field"]  # type: ignore[no-any-return]


def batch(name: str, documents: int) -> list[str]:
    return [f"{name}/{i:02}" for i in range(documents)]


def put(trial: PlanWorld, *ids: str) -> None:
    trial.documents.extend({"id": id} for id in ids)


class Turns:
    """One run that is driven for long, as by ``intake serve``."""

    def __init__(self, trial: PlanWorld) -> None:
        self.trial, self.watch = trial, Watch()

    def take(self, *batches: list[str]) -> list[dict[str, int]]:
        """What ``status`` says after each batch; then all of it is checked."""
        said = []
        with self.trial.take() as taken:
            run = Run(taken, InProcess(slots=1), self.watch, RunSettings(wait=0), Clock(now=lambda: 0.0))
            for each in batches:
                put(self.trial, *each)
                run.turn()
                said.append(self.trial.counts())
        check(self.trial.root, self.trial.plan)
        return said


BRAKE = 5


def build(trial: PlanWorld, *steps: Callable[[Document], Document], broken: str = "") -> Turns:
    trial.build(*steps, source=Batches(trial.documents, broken), called={"brake": BRAKE})
    return Turns(trial)


def mended() -> Callable[[Document], Document]:
    """The same step without its bug."""

    def step(doc: Document) -> Document:
        return doc

    return step


@pytest.fixture
def turns(trial: PlanWorld) -> Turns:
    return build(trial, step)


@pytest.mark.rule("brake.batches")
def test_a_batch_of_bad_files_alone_stops_nothing(turns: Turns) -> None:
    """They are failed after their attempts, and what comes next is delivered at once; nobody is told of an outage."""
    said = turns.take(batch("a", 15), batch("b", 15), batch("good", 5))
    assert said == [{"failed": 15}, {"failed": 30}, {"failed": 30, "delivered": 5}]
    assert turns.watch.messages == []


@pytest.mark.rule("brake.batches")
def test_a_bug_is_known_by_the_third_batch(turns: Turns) -> None:
    """Of that a few are tried, the other ones wait, as all that comes later; the run says so. The next run, with mended
    code, goes on."""
    *_, last, later = turns.take(batch("a", 8), batch("b", 8), batch("c", 20), batch("d", 20))
    assert (last, later) == ({"failed": 16, "pending": 20}, {"failed": 16, "pending": 40})
    assert Counter(d["attempt"] for d in turns.trial.deliveries(status="pending")) == {1: 1 + BRAKE, 0: 39 - BRAKE}
    (line,) = turns.watch.messages
    assert line.startswith("step step: KeyError: 'no such field' (")
    assert build(turns.trial, mended()).take([]) == [{"failed": 16, "delivered": 40}]


@pytest.mark.rule("brake.batches")
def test_three_batches_in_one_wave(turns: Turns) -> None:
    """The same, when all of them come at once."""
    assert turns.take([*batch("a", 8), *batch("b", 8), *batch("c", 20)]) == [{"pending": 36}]
    assert Counter(d["attempt"] for d in turns.trial.deliveries()) == {1: 17 + BRAKE, 0: 19 - BRAKE}


@pytest.mark.rule("brake.batches")
def test_small_batches_one_after_the_other(turns: Turns) -> None:
    """As many documents as the brake says have to fail, in however many batches they come."""
    said = turns.take(*(batch(f"{n}", 1) for n in range(BRAKE + 1)))
    assert said[-3:] == [{"failed": 4}, {"failed": 4, "pending": 1}, {"failed": 4, "pending": 2}]


@pytest.mark.rule("brake.batches")
def test_a_second_look_that_finds_good_ones(turns: Turns) -> None:
    """In the third batch: the errors are the documents' own."""
    mixed = [*batch("c", 3), *batch("good", 20)]
    assert turns.take(batch("a", 8), batch("b", 8), mixed)[-1] == {"failed": 19, "delivered": 20}


@pytest.mark.rule("brake.batches")
def test_a_source_is_counted_by_batch_too(trial: PlanWorld) -> None:
    """Errors of its read that nobody anticipated."""
    turns = build(trial, broken="bad")
    assert turns.take(batch("bad", 15), batch("good", 5)) == [{"failed": 15}, {"failed": 15, "delivered": 5}]
