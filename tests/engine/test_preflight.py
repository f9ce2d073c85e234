"""Executors are looked at before they are trusted; one that differs gets no task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman.destinations import Directory, JsonLines, Queue, Sql
from ferryman.engine import driver
from ferryman.engine.preflight import (
    PROOF_PREFIX,
    CheckedTask,
    DriverView,
    InspectTask,
    TaskRefused,
    check_runner,
    differences,
    place_proofs,
)
from ferryman.errors import EngineError, UsageError
from ferryman.intake.service import on_spark
from ferryman.plan import Plan
from ferryman.sources import Files
from ferryman.sources import JsonLines as Lines
from ferryman.testing.inprocess import InProcess


class Elsewhere(InProcess):
    """Executors on other machines, of which the first ones have what ``change`` makes of the facts.

    Args:
        tasks: so many calls of ``run`` and no more are of such machines; those that look around count.
    """

    def __init__(
        self, change: Callable[[DriverView], DriverView] = lambda facts: facts, tasks: range = range(99)
    ) -> None:
        super().__init__()
        self.change = change
        self.tasks = tasks
        self.calls = 0

    @property
    def on_one_machine(self) -> bool:
        return False

    def run(self, task: Any, items: Sequence[Any]) -> list[Any]:
        if isinstance(task, CheckedTask | InspectTask) and self.calls in self.tasks:
            task = type(task)(
                **{**{name: getattr(task, name) for name in task.__slots__}, "facts": self.change(task.facts)}
            )
        self.calls += 1
        return super().run(task, items)


@pytest.fixture
def plan(place: Path) -> Plan:
    (place / "docs").mkdir()
    (place / "out").mkdir()
    (place / "docs" / "a.txt").write_text("a")
    plan = Plan("p", version=1)
    plan.source("files", Files(place / "docs")).destination("out", JsonLines(place / "out"))
    return plan


def running(runner: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[InProcess]:
        yield runner

    monkeypatch.setattr(driver, "open_runner", session)


def another_version(facts: DriverView) -> DriverView:
    return facts._replace(version="9.9")


def another_folder(number: int) -> Callable[[DriverView], DriverView]:
    """The folder that is written to has another proof."""

    def change(facts: DriverView) -> DriverView:
        written = list(facts.written)
        written[number] = written[number]._replace(proof=f"{PROOF_PREFIX}another")
        return facts._replace(written=tuple(written))

    return change


def no_source(facts: DriverView) -> DriverView:
    return facts._replace(read=tuple(each._replace(path=f"{each.path}/elsewhere") for each in facts.read))


@pytest.mark.rule("cluster.preflight")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (another_version, f"has Ferryman {ferryman.__version__}, and the driver on .* 9.9. Install the same on both"),
        (another_folder(0), r"\(the state\) is there on .*, and on .* it is another folder: is the share mounted"),
        (another_folder(1), r"\(destination out\) is there on .* it is another folder: is the share mounted"),
        (no_source, r"\(source files\) is there on .* there is no such folder or file"),
    ],
    ids=["version", "state", "destination", "source"],
)
def test_a_run_does_not_begin_on_executors_that_differ(
    plan: Plan, place: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[DriverView], DriverView], says: str
) -> None:
    """Exit 2; nothing was read or written, and no proof is left. --no-preflight begins all the same."""
    running(Elsewhere(change), monkeypatch)

    with pytest.raises(UsageError, match=f"{says}.*Nothing was read. If this .*--no-preflight"):
        ferryman.run(plan, state=place)

    assert not [*(place / "out").iterdir()]
    assert not [*place.rglob(f"{PROOF_PREFIX}*")]
    assert ferryman.run(plan, state=place, preflight=False).delivered == 1


def test_serve_begins_all_the_same_without_it(plan: Plan, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ferryman intake serve --no-preflight`, as a run."""
    running(Elsewhere(another_version), monkeypatch)

    with pytest.raises(UsageError, match="--no-preflight"), on_spark(plan, place, "local", {}):
        pass

    with on_spark(plan, place, "local", {}, preflight=False) as (state, _):
        assert state.plan is plan


@pytest.mark.rule("cluster.preflight")
def test_an_executor_that_comes_later_and_differs_gets_no_task(
    plan: Plan, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task goes to another; the run says so, once."""
    running(Elsewhere(another_folder(0), range(1, 3)), monkeypatch)

    summary = ferryman.run(plan, state=place, observer=(heard := Heard()))

    assert summary.delivered == 1
    [said] = [text for text in heard.messages if "is the share mounted" in text]
    assert said.endswith("It was given no task.")


@pytest.mark.rule("cluster.preflight")
def test_where_no_executor_is_left_the_run_stops(plan: Plan, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost: the next run delivers."""
    running(Elsewhere(another_folder(0), range(1, 99)), monkeypatch)

    with pytest.raises(EngineError, match=r"no executor that sees the same took a task: .*is the share mounted"):
        ferryman.run(plan, state=place)

    running(InProcess(), monkeypatch)
    assert ferryman.run(plan, state=place).delivered == 1


def test_names_that_differ_are_found_and_those_that_come_and_go_are_not(plan: Plan, place: Path) -> None:
    """A name is missed if it is missed each time."""
    looks: list[int] = []

    class Busy(InProcess):
        """Between the driver's look and the executors' the folder changes; ``steady`` is seen by the driver alone."""

        def __init__(self, steady: bool) -> None:
            super().__init__()
            self.steady = steady

        def run(self, task: Any, items: Sequence[Any]) -> list[Any]:
            looks.append(len(looks))
            passing = place / "docs" / f"{len(looks)}.tmp"
            passing.touch()
            seen = super().run(task, items)
            passing.unlink()
            if self.steady:
                seen = [each._replace(names=dict.fromkeys(each.names, ())) for each in seen]
            return seen

    with check_runner(Busy(False), [(plan, place, "s")], print):
        pass
    says = r"docs \(source files\) is not the same .* a.txt is on .*Is the share mounted"
    with pytest.raises(UsageError, match=says), check_runner(Busy(True), [(plan, place, "s")], print):
        pass
    assert len(looks) > 3


def test_proofs_of_a_run_that_was_killed_are_removed_by_the_next(plan: Plan, place: Path) -> None:
    """Those of this state only: another one may be at work in the same folder."""
    mine, other = place / "out" / f"{PROOF_PREFIX}s-1", place / "out" / f"{PROOF_PREFIX}t-1"
    mine.touch()
    other.touch()

    with place_proofs([(plan, place, "s")]) as facts:
        assert not mine.exists()
        assert other.exists()
        assert {each.path for each in facts.written} == {str(place), str(place / "out")}
        assert differences(facts) == ()
    assert [path.name for path in place.rglob(f"{PROOF_PREFIX}*")] == [other.name]


def test_every_source_and_destination_with_a_folder_names_it(place: Path) -> None:
    """What lies elsewhere has none."""
    assert Files(place / "x").local_paths() == Lines(place / "x").local_paths() == (str(place / "x"),)
    assert Files("memory://x").local_paths() == ()
    assert JsonLines(place / "x").local_paths() == Directory(place / "x").local_paths() == (str(place / "x"),)
    assert Queue("q", root=place).local_paths() == (str(place),)
    assert Sql(f"sqlite:///{place}/x.db").local_paths() == (str(place),)
    assert Sql("postgresql://host/db").local_paths() == ()


def test_a_process_looks_once(plan: Plan, place: Path) -> None:
    """Then its answer stands: a task costs nothing."""
    with place_proofs([(plan, place, "s")]) as facts:
        assert CheckedTask(len, facts)("four") == 4
    assert CheckedTask(len, facts)("four") == 4
    assert isinstance(CheckedTask(len, facts._replace(host="other"))("four"), TaskRefused)


class Heard(ferryman.observe.Silent):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)
