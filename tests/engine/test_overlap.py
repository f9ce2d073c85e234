"""While a wave is delivered and settled, the next one of its listing is transformed.

In this process what runs ahead is run at once, when the wave before it is committed and before that is sent: so each
test sees the same order, and a kill finds what it finds on Spark, a committed wave beside the staged files of the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import EngineError
from ferryman.storage import files
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import rows
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch
from tests.support.recorder import Recorder

IDS = [f"collection/2026/part-07/record-number-{n:08}" for n in range(4)]
"""A wave each, at a byte a wave."""


def writing(place: Path, what: str) -> Callable[[Any], Any]:
    def step(doc: Document) -> Document:
        with open(place / "order", "a", encoding="utf-8") as file:
            file.write(f"{what} {doc.id[-1]}\n")
        return doc

    return step


def sent(place: Path) -> Recorder:
    """It writes down when it is called."""

    def before(chunk: list[Any]) -> None:
        with open(place / "order", "a", encoding="utf-8") as file:
            file.writelines(f"send {delivery.id[-1]}\n" for delivery in chunk)

    return Recorder(place / "out.jsonl", before=before)


def order(place: Path) -> list[str]:
    return (place / "order").read_text().split("\n")[:-1]


@pytest.mark.rule("wave.ahead")
def test_the_next_wave_is_transformed_before_this_one_is_sent(place: Path) -> None:
    """Its steps need not wait for a destination. What it commits comes after all that this one delivers."""
    trial = PlanWorld(place).build(writing(place, "step"), out=sent(place))
    trial.put(*IDS)
    assert trial.run(wave_bytes=1).waves == 4
    assert order(place) == ["step 0", "step 1", "send 0", "step 2", "send 1", "step 3", "send 2", "send 3"]
    assert {e["document"]: e["wave"] for e in rows(trial.root, "ledger")} == dict(zip(IDS, range(1, 5), strict=True))


@pytest.mark.rule("wave.ahead")
@pytest.mark.parametrize(("wave", "phase"), [(2, "settle"), (3, "transform"), (3, "commit"), (3, "settle")])
def test_what_was_staged_ahead_is_nothing_after_a_kill(place: Path, wave: int, phase: str) -> None:
    """Its files have no name: they are removed, and the same documents are processed again; each arrives once."""
    trial = PlanWorld(place).build(writing(place, "step"), out=sent(place))
    trial.put(*IDS)
    with pytest.raises(Interrupted):
        trial.run(wave_bytes=1, observer=Until(wave, phase), checked=False)
    watch = Watch()
    assert trial.run(wave_bytes=1, observer=watch).exit == 0
    assert trial.out().counted() == dict.fromkeys(IDS, 1)
    assert [message for message in watch.messages if "staged files that no wave had committed" in message]
    assert_nothing_strays(trial)


def test_nothing_is_swept_that_is_staged_ahead(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges and folded logs remove what nothing names after each wave; but not what the next one will name."""
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 2)
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    trial = PlanWorld(place)
    ids = [f"{IDS[0]}/{n:03}" for n in range(40)]
    trial.put(*ids)
    assert trial.run(wave_bytes=1).waves == 40
    assert trial.out().arrived() == ids
    assert_nothing_strays(trial)


def test_a_worker_that_dies_ahead(place: Path) -> None:
    """The document is found as in any wave, the run says where, and what the dead left behind is removed at the end."""

    def deadly(doc: Document) -> Document:
        if doc.id == IDS[2]:
            os._exit(1)
        return doc

    trial = PlanWorld(place).build(deadly)
    trial.put(*IDS)
    watch = Watch()
    summary = trial.run(runner=InProcess(fork=True, failures=1), observer=watch, wave_bytes=1, wait=100)
    assert summary.rejected == 1
    assert trial.out().arrived() == [*IDS[:2], IDS[3]]
    assert [message for message in watch.messages if message.startswith("wave 3: ")]
    assert_nothing_strays(trial)


class Stubborn(InProcess):
    """Runs no more than so many tasks that transform."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def run(self, task: Any, items: Any) -> Any:
        if type(task).__name__ == "Transform":
            self.left -= 1
            if self.left < 0:
                raise EngineError("Spark: there is no more room")
        return super().run(task, items)


@pytest.mark.rule("wave.ahead")
def test_an_error_ahead_stops_the_run_when_its_wave_comes(place: Path) -> None:
    """The wave before it is delivered and settled first."""
    trial = PlanWorld(place)
    trial.put(*IDS)
    with pytest.raises(EngineError, match="no more room"):
        trial.run(runner=Stubborn(2), wave_bytes=1)
    assert trial.out().arrived() == IDS[:2]
    assert trial.run(wave_bytes=1).exit == 0
    assert trial.out().counted() == dict.fromkeys(IDS, 1)


def test_what_it_reports_meanwhile_is_followed(place: Path) -> None:
    """Progress of tasks that run already is shown once their wave has begun."""

    class Listening(Watch):
        wants_live = True

        def __init__(self) -> None:
            super().__init__()
            self.done: list[tuple[str, int]] = []

        def live(self, documents: int) -> None:
            self.done.append((self.phases[-1][1], documents))

        def error(self, document: str, text: str, trace: str) -> None: ...

    trial, watch = PlanWorld(place), Listening()
    trial.put(*IDS[:2])
    trial.run(wave_bytes=1, observer=watch)
    assert watch.done.count(("transform", 1)) == 2
    assert not list(files.local_folder(trial.root).glob("live/*"))


def assert_nothing_strays(trial: PlanWorld) -> None:
    """Each file of the state's tables is named by them."""
    with trial.take() as state:
        for table in state.tables:
            there = {path.name for path in Path(str(table.folder)).glob("*.parquet")}
            assert there <= set(table.files), f"{table.name}: {there - set(table.files)}"
