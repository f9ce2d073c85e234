"""Spark on this machine starts when there is something to do; until then sources are read beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.engine.runner.base import Runner
from ferryman.engine.runner.on_demand import OnDemandRunner, cores_of
from ferryman.engine.scan.phase import _row_ranges
from ferryman.engine.tasks import RowRange
from ferryman.errors import TransientError, UsageError
from ferryman.sources import Doubt, Files, Listed
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld
from tests.support.scanning import LONG_AGO, counting, write

FILES = 40


@pytest.fixture
def corpus(place: Path) -> Path:
    """Some files in two folders, delivered once."""
    for n in range(FILES):
        write(place / "corpus" / f"{n % 2}" / f"{n:02d}.txt", f"{n} one")
    return place / "corpus"


def run(trial: PlanWorld, cores: int = 2) -> tuple[list[str], int]:
    """What the next run delivers, and how often it starts Spark (here: what stands for it)."""
    begun = []

    def begin() -> Runner:
        begun.append(1)
        return InProcess()

    trial.out().forget()
    with OnDemandRunner(begin, cores, {}) as runner:
        trial.run(runner=runner)
        assert (runner.early is None) == bool(begun)
    return sorted(trial.out().counted()), len(begun)


@pytest.fixture
def trial(place: Path, corpus: Path) -> PlanWorld:
    return delivered(PlanWorld(place).build(source=Files(str(corpus))))


def delivered(trial: PlanWorld) -> PlanWorld:
    """After a run without processes beside it: to start them takes longer than all else of these tests."""
    trial.run()
    return trial


@pytest.mark.rule("scan.early")
@pytest.mark.parametrize(("detect", "cores"), [("content", 1), ("fingerprint", 2)])
def test_nothing_has_changed(place: Path, corpus: Path, detect: str, cores: int) -> None:
    """However the source tells."""
    trial = PlanWorld(place).build(source=Files(str(corpus), detect=detect))  # type: ignore[arg-type]
    everything, begun = run(trial)
    assert (len(everything), begun) == (FILES, 1)
    assert run(trial, cores) == ([], 0)


@pytest.mark.rule("scan.early")
@pytest.mark.parametrize("changed", [1, FILES // 2])
def test_some_have_changed(trial: PlanWorld, corpus: Path, changed: int) -> None:
    """Those and no others are delivered, however many there are."""
    for n in range(changed):
        write(corpus / f"{n % 2}" / f"{n:02d}.txt", f"{n} two")
    assert run(trial) == (sorted(f"{n % 2}/{n:02d}.txt" for n in range(changed)), 1)
    assert run(trial) == ([], 0)


def test_only_what_has_changed_is_read_again(place: Path, corpus: Path) -> None:
    """Once beside Spark, once on it."""
    reads = place / "reads"
    trial = delivered(PlanWorld(place).build(source=Reading(str(corpus), reads)))
    reads.unlink()
    write(corpus / "1" / "07.txt", "7 two")
    assert run(trial) == (["1/07.txt"], 1)
    read = [line.split()[1] for line in reads.read_text().splitlines()]
    assert sorted(read) == sorted([*(f"{n % 2}/{n:02d}.txt" for n in range(FILES)), "1/07.txt"])


@pytest.mark.parametrize("kind", ["new", "gone"])
def test_one_is_new_or_gone(trial: PlanWorld, corpus: Path, kind: str) -> None:
    """Beside all those that have not changed."""
    if kind == "new":
        write(corpus / "0" / "new.txt", "new")
    else:
        (corpus / "0" / "00.txt").unlink()
    assert run(trial) == (["0/new.txt" if kind == "new" else "-0/00.txt"], 1)


def test_a_file_that_is_refused_in_every_scan(place: Path, corpus: Path) -> None:
    """Its refusal is known, as long as it is the same."""
    os.mkfifo(corpus / "0" / "pipe")
    trial = delivered(PlanWorld(place).build(source=Files(str(corpus))))
    assert run(trial) == ([], 0)
    (corpus / "0" / "pipe").unlink()
    write(corpus / "0" / "pipe", "a file")
    assert run(trial) == (["0/pipe"], 1)


def test_a_file_that_cannot_be_unpacked(place: Path, corpus: Path) -> None:
    """What is wrong with its content is known, too."""
    (corpus / "0" / "broken.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    os.utime(corpus / "0" / "broken.gz", (LONG_AGO, LONG_AGO))
    trial = delivered(PlanWorld(place).build(source=Files(str(corpus))))
    assert run(trial) == ([], 0)


def test_a_new_date_is_remembered(place: Path, corpus: Path) -> None:
    """What a fingerprint takes for changed and is not is remembered by a wave: only that needs Spark."""
    trial = delivered(PlanWorld(place).build(source=Files(str(corpus), detect="fingerprint")))
    write(corpus / "1" / "07.txt", "7 one", LONG_AGO + 60)
    assert run(trial) == ([], 1)
    assert run(trial) == ([], 0)


def test_a_folder_that_cannot_be_listed(place: Path, corpus: Path) -> None:
    """The listing is incomplete, as it would be on Spark: nothing is deleted, and the run says so."""
    trial = delivered(PlanWorld(place).build(source=Failing(str(corpus))))
    (corpus / "away").touch()
    with OnDemandRunner(InProcess, 2, {}) as runner:
        summary = trial.run(runner=runner)
    assert (summary.exit, summary.deleted) == (4, 0)
    assert "the share is away" in " ".join(summary.messages)


def test_a_source_that_is_away(place: Path, corpus: Path) -> None:
    """After the first document that cannot be had, the rest is left to who knows what to do then."""
    reads = place / "reads"
    trial = delivered(PlanWorld(place).build(source=Reading(str(corpus), reads)))
    reads.unlink()
    (corpus.parent / "offline").touch()
    with OnDemandRunner(InProcess, 1, {}) as runner:
        summary = trial.run(runner=runner, wait=0)
        assert runner.early is None
    assert summary.exit == 4
    beside = [line for line in reads.read_text().splitlines() if line.split()[0] != str(os.getpid())]
    assert 0 < len(beside) < FILES, beside
    (corpus.parent / "offline").unlink()
    assert run(trial) == ([], 0)


def test_a_source_that_kills_the_process_that_reads_it(place: Path, corpus: Path) -> None:
    """What cannot be done beside Spark is done on it."""
    trial = PlanWorld(place).build(source=Killing(str(corpus), os.getpid()))
    assert len(run(trial)[0]) == FILES
    assert run(trial) == ([], 1)


def test_steps_run_on_spark_where_somebody_has_said_how_it_is_to_run(place: Path, corpus: Path) -> None:
    """They have its processes, its retries and its limits. A scan without changes calls none."""
    calls = place / "calls"
    trial = PlanWorld(place).build(counting(calls, "step"), source=Files(str(corpus)))
    run(trial)
    assert len(calls.read_text().splitlines()) == FILES
    calls.unlink()
    assert run(trial) == ([], 0)
    assert not calls.exists()


PROGRAM = """
import sys
from pathlib import Path
import ferryman
from ferryman.destinations import Null
from ferryman.engine.run import Run
from ferryman.observe import Silent
from ferryman.sources import Files
from ferryman.state.state import State
from ferryman.testing.inprocess import InProcess

plan = ferryman.Plan("docs", version=1)
plan.source("files", Files(sys.argv[1])).destination("out", Null())
plan.freeze()
with State.take(Path(sys.argv[2], "docs-v1"), plan) as state:
    assert Run(state, InProcess(), Silent()).run().delivered == 40
summary = ferryman.run(plan, state=sys.argv[2])
assert (summary.exit, summary.waves) == (0, 0), summary
assert "pyspark" not in sys.modules
"""


@pytest.mark.rule("scan.early")
def test_a_program_that_finds_nothing_new_does_not_load_spark(corpus: Path, place: Path) -> None:
    """Nor does it start a JVM."""
    subprocess.run([sys.executable, "-c", PROGRAM, str(corpus), str(place / "states")], check=True)


def test_what_is_expected_starts_meanwhile(trial: PlanWorld, corpus: Path) -> None:
    """Once, in a thread of its own; what goes wrong is raised where it is needed."""
    threads = []

    def begin() -> Runner:
        threads.append(threading.current_thread())
        return InProcess()

    write(corpus / "0" / "00.txt", "0 two")
    with OnDemandRunner(begin, 2, {}) as runner:
        runner.start_early()
        runner.start_early()
        trial.run(runner=runner)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()

    def fail() -> Runner:
        raise UsageError("there is no Spark")

    with OnDemandRunner(fail, 2, {}) as runner:
        runner.start_early()
        with pytest.raises(UsageError, match="there is no Spark"):
            runner.submit(abs, [1]).result()


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("local[4, 2]", 4),
        ("local[*,2]", len(os.sched_getaffinity(0))),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
        ("sc://localhost", None),
        ("k8s://https://host:6443", None),
        ("local[]", None),
    ],
)
def test_which_masters_are_on_this_machine(master: str, cores: int | None) -> None:
    """Others are started at once: their machines are looked at before anything is read."""
    assert cores_of(master) == cores


@pytest.mark.parametrize(
    ("rows", "ranges"),
    [
        ([], []),
        ([0], [("a", 5, 6)]),
        ([0, 1, 2], [("a", 5, 8)]),
        ([2, 3], [("a", 7, 8), ("b", 0, 1)]),
        ([0, 2, 4, 5], [("a", 5, 6), ("a", 7, 8), ("b", 1, 3)]),
        ([3, 4, 5, 6], [("b", 0, 3), ("c", 9, 10)]),
    ],
)
def test_rows_as_ranges(rows: list[int], ranges: list[tuple[str, int, int]]) -> None:
    """Numbered over the pieces of a task; neighbours of a piece are together."""
    pieces = [RowRange("a", 5, 8), RowRange("b", 0, 3), RowRange("c", 9, 10)]
    assert [tuple(each) for each in _row_ranges(pieces, iter(rows))] == ranges


class Reading(Files):
    """Writes down what it reads; away while there is a file ``offline`` beside its root."""

    def __init__(self, root: str, reads: Path) -> None:
        super().__init__(root)
        self._at = root
        self._reads = str(reads)

    def read(self, listed: Listed):  # type: ignore[no-untyped-def]
        fd = os.open(self._reads, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{os.getpid()} {listed.id}\n".encode())
        os.close(fd)
        if os.path.exists(os.path.join(os.path.dirname(self._at), "offline")):
            raise ConnectionError("no route to host")
        return super().read(listed)


class Failing(Files):
    """Cannot list while there is a file ``away`` in its root."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._at = root

    def listing(self, partition) -> Iterator[Listed | Doubt]:  # type: ignore[no-untyped-def]
        if os.path.exists(os.path.join(self._at, "away")):
            raise TransientError("the share is away")
        return super().listing(partition)


class Killing(Files):
    """Ends each process that reads, but this one."""

    def __init__(self, root: str, spared: int) -> None:
        super().__init__(root)
        self._spared = spared

    def read(self, listed: Listed):  # type: ignore[no-untyped-def]
        if os.getpid() != self._spared:
            os._exit(3)
        return super().read(listed)
