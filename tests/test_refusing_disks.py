"""Whatever is called, a disk that is full, read-only, closed to us or failing is told in words, and harms nothing."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import ferryman
from ferryman.cli.app import start
from ferryman.destinations import Directory, JsonLines, Memory, Sql
from ferryman.destinations import memory as memory_module
from ferryman.destinations.base import DestinationContext, Guarantee
from ferryman.engine import driver
from ferryman.errors import FerrymanError
from ferryman.intake.queue import JobQueue
from ferryman.operations import fsck
from ferryman.plan import Plan
from ferryman.queues import Queue
from ferryman.routers import Duplicate
from ferryman.sources import Memory as Listed
from ferryman.testing.inprocess import InProcess
from tests.support.faulty_disk import FaultyDisk
from tests.support.full_disk import Disk, disk
from tests.support.keyed import count
from tests.support.plan_world import MEMORY, place

__all__ = ["disk", "place"]

FAULTS: Final = [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO]
FIRST: Final = [0, 2, 9]
"""How many calls of the system go well before the disk refuses."""

REMEDIES: Final = (
    *("make room", "more room", "fix it", "fix this", "tried again", "can be read and written", "can be written"),
    *("may be written", "restore this file", "correct the url"),
)
"""What to do, in small letters."""


class World:
    """A state with a delivered document and one that failed, a queue with a reader, an index and a queue of jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state, self.queues = folder / "state", folder / "queues"
        self.index, self.jobs = folder / "index.db", folder / "jobs.db"
        self.documents = [{"id": f"d{n}", "word": "ab"[n % 2], "raw": b"text"} for n in range(3)]
        self.queue = Queue("orders", self.queues)
        self.queue.append([{"n": 1}, {"n": 2}])
        self.tailer = self.queue.tailer("auditor")
        self.run()

    def plan(self) -> Plan:
        plan = Plan("p", version=1)
        docs = plan.source("docs", Listed(self.documents, max_deleted=1.0)).route("each", Duplicate())
        docs.destination("lines", JsonLines(self.folder / "lines"), backoff=0)
        docs.destination("index", Sql(f"sqlite:///{self.index}", full_text=["text"]), backoff=0)
        docs.keyed("counts", count, key="word")
        return plan

    def run(self) -> Any:
        return ferryman.run(self.plan(), state=self.state, wait=0)

    def changed(self) -> Any:
        """A run that has something to do."""
        self.documents.append({"id": f"d{len(self.documents)}", "word": "c", "raw": b"more"})
        return self.run()

    def append(self) -> Any:
        return Queue("orders", self.queues).append([{"n": 3}])

    def named(self) -> Any:
        """Make a queue that is not there."""
        queue = Queue("another", self.queues)
        queue.delete()
        return queue.make()

    def jobs_opened(self) -> Any:
        with JobQueue.open(f"sqlite:///{self.jobs}") as jobs:
            return jobs.create_batch({"batchID": "b", "jobs": []})

    def opened(self, destination: Any) -> Any:
        destination.check()
        destination.open(DestinationContext("p", 1, "out", 1, Guarantee.AT_LEAST_ONCE))
        destination.close()

    def command(self, *arguments: str) -> None:
        """A verb of the command, of which the words are looked at where errors are."""
        if code := start([*arguments]):
            raise Ended(code)


class Ended(FerrymanError):
    """The command has ended with an exit code that is not 0."""


def resolved(world: World) -> Any:
    return ferryman.resolve(world.plan(), "dropped", state=world.state, document="d0")


def plan_file(world: World) -> str:
    """The plan as the command finds it."""
    path = world.folder / "words_plan.py"
    if not path.exists():
        path.write_text(
            "from ferryman import Plan\nfrom ferryman.sources import Memory\n"
            "from tests.support.keyed import count\nplan = Plan('p', version=1)\n"
            "plan.source('docs', Memory([])).keyed('counts', count, key='word')\n"
        )
    return f"{path}:plan"


CALLS: Final[dict[str, Callable[[World], object]]] = {
    "run": World.changed,
    "status": lambda w: ferryman.status(w.plan(), state=w.state),
    "history": lambda w: ferryman.history(w.plan(), "d0", state=w.state),
    "deliveries": lambda w: ferryman.deliveries(w.plan(), state=w.state),
    "incomplete": lambda w: ferryman.deliveries(w.plan(), state=w.state, incomplete=True),
    "reasons": lambda w: ferryman.deliveries(w.plan(), state=w.state, by="reason"),
    "tables": lambda w: ferryman.tables(w.plan(), state=w.state),
    "fsck": lambda w: ferryman.fsck(w.plan(), state=w.state),
    "retry": lambda w: ferryman.retry(w.plan(), state=w.state),
    "retry --force": lambda w: ferryman.retry(w.plan(), state=w.state, document="d0", force=True),
    "resolve": resolved,
    "preview": lambda w: ferryman.preview(w.plan(), state=w.state),
    "search": lambda w: ferryman.search(str(w.index), "text"),
    "state of a key": lambda w: w.plan().state("counts", w.state).get("a"),
    "Queue": lambda w: Queue("orders", w.queues),
    "Queue.append": World.append,
    "Queue.append, key": lambda w: w.queue.append([{"n": 4}], key="k"),
    "Queue.make": World.named,
    "Queue.read": lambda w: Queue("orders", w.queues).read(),
    "Queue.appended": lambda w: Queue("orders", w.queues).appended("k"),
    "Queue.indices_of": lambda w: Queue("orders", w.queues).indices_of(["x"]),
    "Queue.highest_of": lambda w: Queue("orders", w.queues).highest_of("x"),
    "Queue.files": lambda w: Queue("orders", w.queues).files(1, 9),
    "Queue.last_index": lambda w: Queue("orders", w.queues).last_index,
    "Queue.readers": lambda w: w.queue.readers(),
    "Queue.moved": lambda w: w.queue.moved("auditor"),
    "Queue.register": lambda w: w.queue.register("indexer", 1),
    "Queue.forget": lambda w: (w.queue.register("gone", 1), w.queue.forget("gone")),
    "Queue.tailer": lambda w: w.queue.tailer("new"),
    "Queue.trim": lambda w: w.queue.trim("0s", force=True),
    "Queue.all": lambda w: Queue.all(w.queues),
    "Queue.unused": lambda w: Queue.unused(w.queues),
    "Tailer.read": lambda w: w.tailer.read(),
    "Tailer.peek": lambda w: w.tailer.peek(),
    "Tailer.to_start": lambda w: w.tailer.to_start(),
    "Tailer.position": lambda w: w.tailer.position,
    "JobQueue": World.jobs_opened,
    "JsonLines": lambda w: w.opened(JsonLines(w.folder / "lines")),
    "Directory": lambda w: w.opened(Directory(w.folder / "files")),
}
"""Public calls; what is opened anew finds nothing in this process's memory."""

COMMANDS: Final[dict[str, Sequence[str]]] = {
    "state show": ["state", "show", "PLAN", "counts", "--state", "STATE"],
    "state get": ["state", "get", "PLAN", "counts", "a", "--state", "STATE"],
    "queue list": ["queue", "list", "--queues", "QUEUES"],
    "queue show": ["queue", "show", "orders", "--queues", "QUEUES"],
    "queue read": ["queue", "read", "orders", "--queues", "QUEUES"],
    "queue read --tailer": ["queue", "read", "orders", "--tailer", "cli", "--queues", "QUEUES"],
    "queue rewind": ["queue", "rewind", "orders", "auditor", "--queues", "QUEUES"],
    "queue trim": ["queue", "trim", "orders", "--keep", "0s", "--force", "--queues", "QUEUES"],
}


@contextlib.contextmanager
def world_in(folder: Path) -> Iterator[World]:
    """What questions write for a moment is on its disk, too."""
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder / "tmp"))
        patch.setattr(driver, "open_runner", lambda *_, **__: contextlib.nullcontext(InProcess()))
        yield World(folder)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One world for all calls: each finds it as those before have left it, refused or not."""
    folder = tempfile.mkdtemp(prefix="ferryman-test-", dir=MEMORY if MEMORY.is_dir() else None)
    with world_in(Path(folder)) as made:
        yield made
    shutil.rmtree(folder, ignore_errors=True)


def words_of(error: BaseException, folder: Path) -> None:
    """An error of ours, that names a path of this folder and what to do."""
    assert isinstance(error, FerrymanError), repr(error)
    said = str(error)
    assert str(folder) in said, said
    assert any(remedy in said.lower() for remedy in REMEDIES), said


def refused(call: Callable[[World], object], world: World, number: int, first: int) -> tuple[int, FerrymanError | None]:
    """Call on a disk that refuses: how often it did, and what was raised."""
    with pytest.MonkeyPatch.context() as patch:
        faulty = FaultyDisk(patch, world.folder, number, first)
        try:
            call(world)
        except BaseException as e:
            patch.undo()
            words_of(e, world.folder)
            return faulty.refused, e if isinstance(e, FerrymanError) else None
    return faulty.refused, None


@pytest.mark.rule("state.disk-told")
@pytest.mark.parametrize("name", CALLS)
def test_calls(world: World, name: str) -> None:
    """Every public call tells it as an error of ours, with the path and a remedy; afterwards it works."""
    call = CALLS[name]
    for number in FAULTS:
        for first in FIRST:
            times, _ = refused(call, world, number, first)
            call(world)
            if not times:
                break
    assert fsck(world.plan(), state=world.state) == []
    assert world.queue.last_index >= 2


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(world: World, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs of the command say the same, and never that it is a bug."""
    given = {"PLAN": plan_file(world), "STATE": str(world.state), "QUEUES": str(world.queues)}
    arguments = [given.get(each, each) for each in COMMANDS[name]]
    assert start(arguments) == 0
    for number in FAULTS:
        for first in FIRST[:2]:
            capsys.readouterr()
            with pytest.MonkeyPatch.context() as patch:
                faulty = FaultyDisk(patch, world.folder, number, first)
                code = start(arguments)
            said = capsys.readouterr().err
            assert "bug in Ferryman" not in said
            assert "Traceback" not in said
            assert code == 0 or str(world.folder) in said, said
            assert start(arguments) == 0
            if not faulty.refused:
                break


def test_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The destination in memory has a folder of its own, which is on a disk as well."""
    made = world.folder / "memory"
    made.mkdir()
    monkeypatch.setattr(memory_module, "_own_folder", lambda: str(made))
    calls: list[Callable[[World], object]] = [
        lambda _: Memory.of("out"),
        lambda _: Memory.clear(),
        lambda w: w.opened(Memory()),
    ]
    for call in calls:
        for number in FAULTS:
            for first in FIRST:
                refused(call, world, number, first)
                call(world)


@pytest.fixture
def full(disk: Disk) -> Iterator[World]:
    """A world on a small disk."""
    with world_in(disk.folder) as made:
        yield made


def test_a_disk_that_is_full(full: World, disk: Disk) -> None:
    """The same of a disk that is full indeed, also where DuckDB, Arrow or SQLite write."""
    for call in CALLS.values():
        for room in ({"free_kib": 0}, {"free_files": 0}, {"free_kib": 12}):
            disk.limit(**room)
            try:
                call(full)
            except Exception as e:
                words_of(e, full.folder)
            disk.limit()
            call(full)
    assert fsck(full.plan(), state=full.state) == []


def test_a_disk_that_is_read_only(full: World, disk: Disk) -> None:
    for call in CALLS.values():
        disk.refuse_changes()
        try:
            call(full)
        except Exception as e:
            words_of(e, full.folder)
        disk.allow_changes()
        call(full)
    assert fsck(full.plan(), state=full.state) == []
