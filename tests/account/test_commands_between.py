"""A person's word while a listing is carried through its waves: taken up between two of them."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from tests.support.plan_world import PlanWorld, Watch

LARGE = "x" * 700 * limits.KIB
"""Of two such documents each has a wave of its own, if waves are small."""


class Speaks(Watch):
    """A person has something to say while a wave commits, so many times."""

    def __init__(self, trial: PlanWorld, times: int, **word: Any) -> None:
        super().__init__()
        self.trial, self.times, self.word = trial, times, word

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if name == "commit" and self.times:
            self.times -= 1
            assert self.trial.retry(**self.word).queued

    @property
    def scans(self) -> int:
        return sum(name == "scan" for _, name in self.phases)


@pytest.fixture
def refused(trial: PlanWorld) -> PlanWorld:
    """A document that its destination does not take, while ``shut`` is there; and new ones, a wave each."""
    shut = trial.folder / "shut"
    shut.touch()

    def answer(delivery: Delivery) -> Outcome:
        return Outcome.permanent("refused") if delivery.id == "odd" and shut.exists() else Outcome.ok()

    trial.build(answer=answer)
    trial.put("odd")
    assert trial.run().exit == 3
    trial.put("new0", "new1", "new2", "new3", text=LARGE)
    return trial


@pytest.mark.rule("retry.queued")
def test_a_command_is_taken_up_between_the_waves_of_a_listing(refused: PlanWorld) -> None:
    """Not at its end: what is told to go is sent with the next wave, and the rest is listed again, once."""
    (refused.folder / "shut").unlink()
    watch = Speaks(refused, 1)
    assert refused.run(wave_bytes=1, observer=watch).exit == 0
    assert "odd" in refused.out().arrived()[:3]
    assert refused.out().counted() == dict.fromkeys(["new0", "new1", "new2", "new3", "odd"], 1)
    assert watch.scans == 2


@pytest.mark.rule("retry.queued")
def test_whoever_says_something_all_the_time_holds_up_nothing(refused: PlanWorld) -> None:
    """What is read of a listing before it is listed again doubles each time."""
    watch = Speaks(refused, 3)
    refused.run(wave_bytes=1, observer=watch)
    assert refused.counts() == {"delivered": 4, "failed": 1}
    assert watch.scans == 3


@pytest.mark.rule("retry.queued")
def test_what_is_said_of_a_document_that_is_still_to_come(trial: PlanWorld) -> None:
    """It counts as if it had been said before the scan: what is forced is read again, changed or not."""
    broken = trial.folder / "broken"
    broken.touch()

    def fragile(doc: Document) -> Document:
        if broken.exists() and doc.id == "z":
            raise RuntimeError("out of order")
        return doc

    trial.build(fragile, called={"attempts": 1})
    trial.put("y", "z")
    assert trial.run().failed == 1
    trial.put("a", "b", "y", text=LARGE)
    broken.unlink()
    assert trial.run(wave_bytes=1, observer=Speaks(trial, 1, force=True)).exit == 0
    assert trial.out().counted() == {"a": 2, "b": 1, "y": 2, "z": 1}
    assert trial.statuses("z") == ["DEAD", "FORCE", "INDEXED"]
