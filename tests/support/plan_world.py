"""A plan in a folder that runs in this process: what is put into it, its runs, and what came out.

After each run ``tests.support.invariants`` checks that everything adds up. A test reads like this::

    world = PlanWorld(folder, build=plan_of)
    world.put("a", "b")
    world.run()
    assert world.out().arrived() == ["a", "b"]
    assert world.status()["balanced"]

Import the fixtures into a folder's ``conftest.py``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.engine import driver
from ferryman.engine.migration import migrate
from ferryman.engine.run import Run, Summary
from ferryman.engine.runner import fork_server
from ferryman.engine.runner.base import Runner
from ferryman.engine.settings import Clock, RunSettings
from ferryman.observe import WARNING, Silent
from ferryman.operations import Retried, retry
from ferryman.plan import Handle, Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory
from ferryman.sources.base import Source
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support import invariants
from tests.support.recorder import Answer, Recorder

fork_server.preloaded.append(__name__)  # else each child loads it, for the step or destination that a test gives it

MEMORY = Path("/dev/shm")
"""fsync costs nothing there, and a kill -9 is the same."""


class Watch(Silent):
    """Listens to a run: ``phases`` and ``messages``. One that goes round in circles is stopped."""

    def __init__(self, most: int = 50) -> None:
        self.phases: list[tuple[int, str]] = []
        self.messages: list[str] = []
        self._most = most

    def phase(self, wave: int, name: str) -> None:
        self.phases.append((wave, name))
        scans = sum(n == "scan" for _, n in self.phases)
        assert scans <= self._most, f"it scans for ever: wave {wave} for the {scans}th time"

    def message(self, text: str) -> None:
        self.messages.append(text.removeprefix(WARNING))


class Interrupted(Exception):
    """Stands for a kill: the run ends there, at once."""


class Until(Watch):
    """Ends a run when it comes to a phase of a wave."""

    def __init__(self, wave: int, phase: str) -> None:
        super().__init__()
        self._end = (wave, phase)

    def phase(self, wave: int, name: str) -> None:
        if (wave, name) == self._end:
            raise Interrupted
        super().phase(wave, name)


def settings_and_clock(options: dict[str, Any]) -> tuple[RunSettings, Clock]:
    """Return what a run takes as two objects: ``sleep`` and ``clock`` (either a function or both), and all else."""
    clock = options.pop("clock", Clock())
    clock = clock if isinstance(clock, Clock) else Clock(now=clock)
    clock = clock._replace(sleep=options.pop("sleep", clock.sleep))
    return RunSettings(**options), clock


def run_plan(
    plan: Plan,
    state: Path,
    *,
    runner: Runner | None = None,
    observer: Silent | None = None,
    every: float | None = None,
    accept_changes: bool | None = None,
    checked: bool = True,
    **options: Any,
) -> Summary:
    """``ferryman.run`` without Spark (or on a given runner), with all the knobs of ``Run``; then everything is checked.

    Args:
        accept_changes: record the plan as a run does; None: a changed plan is run without a question.
        checked: assert the invariants afterwards.
    """
    plan.freeze()
    root = state_root(plan, state)
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(State.take(root, plan))
        stack.enter_context(driver.explain_errors(taken))
        if accept_changes is not None:
            driver.record_plan_changes(taken, accept_changes)
        summary = Run(taken, runner or InProcess(), observer or Watch(), *settings_and_clock(options)).run(every)
    if checked:
        invariants.check(root, plan, summary)
    return summary


def build_line(
    world: PlanWorld,
    *steps: Callable[..., Any],
    source: Source | None = None,
    out: Recorder | None = None,
    answer: Answer | None = None,
    detect: str = "content",
    max_deleted: float = 1.0,
    called: dict[str, Any] | None = None,
    **policy: Any,
) -> Plan:
    """Build plan ``trial``: source ``docs`` (a list in memory) → steps, named as their functions → ``out``.

    Args:
        called: policy of the source and the steps.
        policy: of the destination.
    """
    if out is not None:
        world.outs["out"] = out
    if answer is not None:
        world.out().answer = answer
    plan = Plan("trial", version=1)
    given = source or Memory(world.documents, detect=detect, max_deleted=max_deleted)  # type: ignore[arg-type]
    node = plan.source("docs", given, **(called or {}))
    for step in steps:
        node = node.step(step.__name__.strip("_"), step, **(called or {}))
    node.destination("out", world.out(), **{"backoff": 0, **policy})
    return plan


def build_empty(world: PlanWorld) -> Plan:
    """Build plan ``network``, to which the test adds nodes."""
    return Plan("network", version=1)


class PlanWorld:
    """A folder with a plan, the state of it, and what it reads and writes.

    A source reads ``documents`` (or a list of ``listed``, by its name), which change between runs, or the queue
    ``in``. A destination is a recorder (``out``) or a queue. There may be one plan, or versions of it
    (``make_plan``) that are given to ``run``.

    Attributes:
        state: the folder of states.
        listed: source -> the documents that it lists.
        documents: those of source ``docs``.
        outs: name -> recorder.
        watch: heard the last run.
    """

    def __init__(
        self,
        folder: Path,
        build: Callable[..., Plan] = build_line,
        *,
        field: str = "",
        each_time: bool = False,
        **options: Any,
    ) -> None:
        """Create an empty world; its plan is built at its first use.

        Args:
            build: called with the world, and with the arguments of ``make_plan`` and ``build``.
            field: ``put`` appends messages with this field to queue ``in``; "": it sets documents.
            each_time: the plan is built again for each use.
            options: defaults of ``run``.
        """
        self.folder = folder
        self.state = folder / "state"
        self.listed: dict[str, list[Any]] = {"docs": []}
        self.outs: dict[str, Recorder] = {}
        self.queues: dict[str, DurableQueue] = {}
        self.watch: Any = Watch()
        self._make = build
        self._field = field
        self._each_time = each_time
        self._options = options
        self._plan: Plan | None = None

    @classmethod
    def empty(cls, folder: Path) -> Self:
        """Create a world with a plan of no nodes, whose runs wait for what is due without sleeping."""
        return cls(folder, build_empty, sleep=lambda _: None, wait=10_000.0)

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, *args: Any, **options: Any) -> Plan:
        """Build a plan, perhaps one of several versions, without making it the world's plan."""
        return self._make(self, *args, **options)

    def build(self, *args: Any, **options: Any) -> Self:
        """Make a plan the world's plan; see ``build_line`` for what a world takes by default."""
        self._plan = self.make_plan(*args, **options)
        return self

    @property
    def plan(self) -> Plan:
        if self._plan is None or self._each_time:
            self.build()
        assert self._plan is not None
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan = plan

    def source(self, name: str = "docs", **options: Any) -> Handle:
        """Add a source that lists documents in memory to the plan."""
        documents = self.listed.setdefault(name, [])
        return self.plan.source(name, Memory(documents, **{"max_deleted": 1.0, **options}))

    def counting(self, name: str) -> Callable[[Document], Document]:
        """Create a step that notes each call; see ``calls``."""
        path = self.folder / f"{name}.calls"

        def step(doc: Document) -> Document:
            with path.open("a") as file:
                file.write(f"{doc.id}\n")
            return doc

        return step

    def calls(self, name: str) -> Counter[str]:
        """Document -> how often this counting step was called for it."""
        path = self.folder / f"{name}.calls"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    # -- what goes in ------------------------------------------------------------------------------

    @property
    def documents(self) -> list[Any]:
        return self.listed["docs"]

    @documents.setter
    def documents(self, documents: list[Any]) -> None:
        self.listed["docs"] = documents

    def put(self, *ids: Any, source: str = "docs", text: str = "one", **fields: Any) -> None:
        """Set these documents' content, unknown ones are added; or append a message for each value."""
        if self._field:
            self.into.append([{self._field: value, **fields} for value in ids])
            return
        self.drop(*ids, source=source)
        self.listed[source] += [{"id": id, "raw": text.encode(), **fields} for id in ids]

    def drop(self, *ids: str, source: str = "docs") -> None:
        """Take these documents away."""
        self.listed[source][:] = [d for d in self.listed[source] if d["id"] not in ids]

    def queue(self, name: str) -> DurableQueue:
        """Return the queue of this name in the world's folder."""
        if name not in self.queues:
            self.queues[name] = DurableQueue(name, self.folder)
        return self.queues[name]

    @property
    def into(self) -> DurableQueue:
        return self.queue("in")

    @into.setter
    def into(self, queue: DurableQueue) -> None:
        self.queues["in"] = queue

    # -- runs --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do what comes before each run, for subclasses."""

    def run(
        self, plan: Plan | None = None, from_version: int | None = None, *, checked: bool = True, **options: Any
    ) -> Summary:
        """Run the plan, or this version of it, then check the state.

        Args:
            from_version: migrate the state of this older version first.
            checked: check the invariants.
            options: of ``run_plan``.
        """
        self.prepare()
        plan = self.plan if plan is None else plan
        if from_version is not None:
            plan.freeze()  # else `run_plan` does, which takes a check of the plan
            migrate(self.root_of(plan), plan, from_version)
        options = {**self._options, **options}
        self.watch = options["observer"] = options.get("observer") or Watch()
        summary = run_plan(plan, self.state, checked=False, **options)
        if checked:
            self.check(plan, summary)
        return summary

    def check(self, plan: Plan, summary: Summary) -> None:
        """Check what holds after every run."""
        invariants.check(self.root_of(plan), plan, summary)

    def take(self) -> State:
        """Become the driver."""
        self.plan.freeze()
        return State.take(self.root, self.plan)

    def retry(self, **options: Any) -> Retried:
        return retry(self.plan, state=self.state, **options)

    # -- what came out -----------------------------------------------------------------------------

    def out(self, name: str = "out") -> Recorder:
        """Return the recorder of this name: give it to destinations and tees."""
        return self.outs.setdefault(name, Recorder(self.folder / f"{name}.jsonl"))

    def arrived(self, name: str = "out") -> Counter[str]:
        """``id`` or ``id by route`` -> how often it was delivered; deletes with a minus before them."""
        found = (
            ("-" if line["op"] == "delete" else "") + line["id"] + (f" by {line['route']}" if line["route"] else "")
            for line in self.out(name).lines()
            if line["said"] == "ok"
        )
        return Counter(found)

    def bodies(self, queue: str = "out") -> list[Any]:
        """Read the bodies of a queue's messages."""
        return [message.body for message in self.queue(queue).read(limit=100_000)]

    def values(self, queue: str = "out") -> list[Any]:
        """Read from a queue what ``put`` appends to another."""
        return [body[self._field] for body in self.bodies(queue)]

    # -- the state ---------------------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """The state directory."""
        return self.root_of(self.plan)

    def root_of(self, plan: Plan) -> Path:
        """Return the state directory of a version."""
        return state_root(plan, self.state)

    def status(self, plan: Plan | None = None) -> dict[str, Any]:
        plan = self.plan if plan is None else plan
        return account.status(self.root_of(plan), plan)

    def counts(self, name: str = "out", plan: Plan | None = None) -> dict[str, int]:
        """Return what ``status`` says of a destination, zeros left out."""
        return {status: n for status, n in self.status(plan)["destinations"][name].items() if n}

    def log(self, plan: Plan | None = None, name: str | None = None) -> dict[str, Any]:
        """Return what ``status`` says of a source that reads a log; default: of the plan's first."""
        sources = self.status(plan)["sources"]
        found: dict[str, Any] = sources[name or next(iter(sources))]
        return found

    def states(self, plan: Plan | None = None, node: str = "counts") -> dict[str, Any]:
        """Key -> state, of a keyed node."""
        return invariants.states(self.root_of(self.plan if plan is None else plan), node)

    def deliveries(self, **filters: Any) -> list[dict[str, Any]]:
        return account.deliveries(self.root, plan=self.plan, **filters)

    def history(self, document: str) -> list[dict[str, Any]]:
        return account.history(self.root, document, self.plan)

    def statuses(self, document: str) -> list[str]:
        """Statuses of a document's events, oldest first."""
        return [e["status"] for e in self.history(document)]

    def events(self, document: str, destination: str) -> list[str]:
        """Statuses of a document at a destination, oldest first; ``-`` before those of its delete."""
        return [
            ("-" if e["operation"] == "delete" else "") + e["status"]
            for e in self.history(document)
            if e["destination"] == destination and e["document"] == document
        ]


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder, in memory where there is such a place."""
    folder = Path(tempfile.mkdtemp(prefix="ferryman-test-", dir=MEMORY if MEMORY.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def trial(place: Path) -> PlanWorld:
    """A list of documents that goes to a recorder."""
    return PlanWorld(place)


@pytest.fixture
def net(place: Path) -> PlanWorld:
    """A plan of any shape."""
    return PlanWorld.empty(place)


@pytest.fixture
def spark() -> Any:
    """A Spark session with two slots, shared by all tests of this process; started anew if one of them stopped it."""
    repository = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if repository not in known:  # workers import the modules of the tests
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [repository, *known]))
    from ferryman.engine.runner.sessions import start
    from ferryman.engine.runner.spark import SparkRunner

    session = start("local[2]", {"spark.sql.shuffle.partitions": "2"}, "tests")
    atexit.register(session.stop)
    return SparkRunner(session)
