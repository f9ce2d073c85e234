"""On one machine, few documents are processed by helper processes: Spark takes longer to start."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery
from ferryman.document import Document
from ferryman.engine.runner import helper_processes
from ferryman.engine.runner.base import Runner
from ferryman.engine.runner.helper_processes import HelperProcesses
from ferryman.engine.runner.on_demand import OnDemandRunner, is_default
from ferryman.errors import WorkerDied
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Files
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.recorder import Recorder
from tests.support.scanning import counting, write
from tests.support.waiting import LATE_S, wait_until

FILES = 40


@pytest.fixture
def corpus(place: Path) -> Path:
    for n in range(FILES):
        write(place / "corpus" / f"{n:02d}.txt", f"{n} one")
    return place / "corpus"


def run(world: PlanWorld, cores: int = 2, **options: Any) -> tuple[Any, int]:
    """Return the summary of the next run, and how often it starts Spark (here: what stands for it)."""
    starts: list[int] = []

    def start() -> Runner:
        starts.append(1)
        return InProcess(fork=True, failures=1)

    with OnDemandRunner(start, cores, {}, small_waves=True) as runner:
        runner.expect_work()
        return world.run(runner=runner, **options), len(starts)


@pytest.mark.rule("wave.small")
def test_few_documents_do_without_spark(place: Path, corpus: Path) -> None:
    """New, changed and deleted ones; the steps run in other processes than the driver's."""
    world = PlanWorld(place).build(counting(place / "calls", "step"), not_in(os.getpid()), source=Files(str(corpus)))
    summary, starts = run(world)
    assert (summary.delivered, starts) == (FILES, 0)
    write(corpus / "07.txt", "7 two")
    (corpus / "08.txt").unlink()
    summary, starts = run(world)
    assert (summary.delivered, summary.deleted, starts) == (1, 1, 0)
    assert len((place / "calls").read_text().splitlines()) == FILES + 1


def not_in(driver: int) -> Callable[[Document], Document]:
    def elsewhere(doc: Document) -> Document:
        assert os.getpid() != driver
        return doc

    return elsewhere


@pytest.mark.parametrize(("limit", "most"), [("SMALL_DOCUMENTS", FILES), ("SMALL_BYTES", 4 * FILES)])
def test_more_are_for_spark(place: Path, corpus: Path, limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number, or by their bytes."""
    monkeypatch.setattr(limits, limit, most - 1)
    summary, starts = run(PlanWorld(place).build(source=Files(str(corpus))))
    assert (summary.delivered, starts) == (FILES, 1)


@pytest.mark.parametrize("phase", ["deliver", "settle"])
def test_what_is_pending_does_without_spark(place: Path, corpus: Path, phase: str) -> None:
    """A wave that an earlier driver has committed."""
    world = PlanWorld(place).build(source=Files(str(corpus)))
    with pytest.raises(Interrupted):
        world.run(observer=Until(1, phase), checked=False)
    summary, starts = run(world)
    assert (summary.exit, starts) == (0, 0)
    assert set(world.out().counted()) == {f"{n:02d}.txt" for n in range(FILES)}


def test_many_pending_rows_are_for_spark(place: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = PlanWorld(place).build(source=Files(str(corpus)))
    with pytest.raises(Interrupted):
        world.run(observer=Until(1, "deliver"), checked=False)
    monkeypatch.setattr(limits, "SMALL_DOCUMENTS", FILES - 1)
    assert run(world)[1] == 1


@pytest.mark.rule("wave.small")
def test_a_step_that_ends_its_process(place: Path, corpus: Path) -> None:
    """Spark takes over, which knows what to do about such a document; all others are delivered."""

    def fatal(doc: Document) -> Document:
        if doc.id == "07.txt":
            os._exit(3)
        return doc

    summary, starts = run(PlanWorld(place).build(fatal, source=Files(str(corpus))))
    assert (summary.delivered, summary.rejected + summary.failed, starts) == (FILES - 1, 1, 1)


@pytest.mark.rule("wave.small")
def test_a_destination_that_ends_its_process_harms_no_other(place: Path, corpus: Path) -> None:
    """What another destination is sent meanwhile is not in doubt, although it is sent at most once."""
    sending, died = place / "sending", place / "died"

    def die(chunk: list[Delivery]) -> None:
        if not died.exists():
            wait_until(sending.exists)
            died.touch()
            os._exit(3)

    def wait(chunk: list[Delivery]) -> None:
        sending.touch()
        wait_until(died.exists)

    plan = Plan("two", version=1)
    both = plan.source("files", Files(str(corpus))).route("both", Duplicate())
    both.destination("fatal", Recorder(place / "fatal", before=die))
    both.destination("once", Recorder(place / "once", before=wait), guarantee="at-most-once")
    summary, starts = run(PlanWorld(place, build=lambda _: plan))
    assert (summary.in_doubt, summary.delivered, starts) == (0, 2 * FILES, 1)
    assert max(Recorder(place / "once").counted().values()) == 1


@pytest.fixture
def helpers() -> Iterator[HelperProcesses]:
    processes = HelperProcesses(2, os.environ, InProcess())
    yield processes
    processes.end()


def test_tasks_at_work_outlast_those_that_fail(helpers: HelperProcesses, tmp_path: Path) -> None:
    """Then the processes end, and the fallback runs what failed, and all that follows."""
    driver = os.getpid()

    def slow(item: int) -> int:
        (tmp_path / "begun").touch()
        wait_until((tmp_path / "failed").exists)
        return os.getpid()

    def fail(item: int) -> int:
        wait_until((tmp_path / "begun").exists)
        if os.getpid() != driver:
            (tmp_path / "failed").touch()
            os._exit(1)
        return item

    first, second = helpers.process(slow, [0]), helpers.process(fail, [1])
    assert second.result() == [1]
    assert first.result() != [driver]
    assert helpers.retired
    assert helpers.process(lambda _: os.getpid(), [0]).result() == [driver]


def test_no_helper_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are too many processes, say: Spark is asked, once."""

    def fail(environment: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(helper_processes, "take_server", fail)
    with OnDemandRunner(InProcess, 2, {}, small_waves=True) as runner:
        runner.start(small=True)
        assert runner.submit(abs, [-1, -2]).result(LATE_S) == [1, 2]


def test_nothing_is_run_again_when_the_run_has_ended(helpers: HelperProcesses, tmp_path: Path) -> None:
    def hang(item: int) -> None:
        (tmp_path / "begun").touch()
        threading.Event().wait()

    submitted = helpers.process(hang, [0])
    wait_until((tmp_path / "begun").exists)
    helpers.end()
    with pytest.raises(WorkerDied, match="the run has ended"):
        submitted.result()


def test_more_cores_than_helper_processes(place: Path, corpus: Path) -> None:
    """Steps may be slow: Spark has a process for each core."""
    summary, starts = run(PlanWorld(place).build(source=Files(str(corpus))), cores=9)
    assert (summary.delivered, starts) == (FILES, 1)


@pytest.mark.rule("wave.small")
@pytest.mark.parametrize(
    ("master", "conf", "environment", "expected"),
    [
        ("local[*]", {}, {}, True),
        ("local[*]", {"spark.executorEnv.FERRYMAN_HAS": "gpu"}, {"PYSPARK_PYTHON": sys.executable}, True),
        ("local[2]", {}, {}, False),
        ("local[*]", {"spark.executor.pyspark.memory": "1g"}, {}, False),
        ("local[*]", {}, {"PYSPARK_PYTHON": "/opt/python"}, False),
        ("local[*]", {}, {"PYSPARK_DRIVER_PYTHON": "ipython"}, False),
        ("local[*]", {}, {"SPARK_CONF_DIR": "/etc/spark"}, False),
        ("local[*]", {}, {"SPARK_HOME": "/opt/spark"}, False),
        ("local[*]", {}, {"PYSPARK_SUBMIT_ARGS": "--conf a=b pyspark-shell"}, False),
    ],
)
def test_who_says_how_spark_is_to_run_gets_spark(
    master: str, conf: dict[str, str], environment: dict[str, str], expected: bool
) -> None:
    assert is_default(master, conf, environment) is expected


def test_many_listed_documents_start_spark_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """If work was expected; a run that finds nothing new does without."""
    monkeypatch.setattr(limits, "SMALL_DOCUMENTS", 10)
    started = threading.Event()

    def start() -> Runner:
        started.set()
        return InProcess()

    with OnDemandRunner(start, 2, {}, small_waves=True) as runner:
        runner.note_work(11)
        runner.expect_work()
        runner.note_work(10)
        assert not started.is_set()
        runner.note_work(11)
        assert started.wait(60)
