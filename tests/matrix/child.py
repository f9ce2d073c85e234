"""The process of a case: a run of its plan, which may be killed at a crash point; at the end everything is checked."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from deltalake import DeltaTable

from ferryman import account, crash, operations
from ferryman.engine import driver
from ferryman.engine.run import Run, Summary
from ferryman.engine.runner.base import Runner
from ferryman.engine.settings import RunSettings
from ferryman.plan import Plan
from ferryman.state.state import State, state_root
from ferryman.storage import files, objects
from ferryman.storage import objects as cache
from ferryman.storage.files import StatePath
from ferryman.testing.inprocess import InProcess
from tests.matrix.cases import Case
from tests.matrix.world import World
from tests.servers.faulty_s3 import BUCKET, settings
from tests.support import invariants
from tests.support.http_store import HttpStore
from tests.support.plan_world import Watch

LOADED = (
    "encodings.idna",
    "ferryman.destinations.sql.sqlite",
    "ferryman.engine.transform.event_loop",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
"""What most children would load, each for itself: a third of the CPU of a case with a database."""

POINTS = "points"
"""The file with the crash points that a run has passed."""


class Job(msgspec.Struct):
    """A run of a stage.

    Attributes:
        arm: it is killed at this crash point; "": at none.
        note: write down which crash points it passes.
        fork: each task in a process of its own: at an executor's point only that is killed.
        kills: of processes, before; ``check`` compares everything with the oracle.
        store: URL of a server of object stores.
    """

    case: Case
    root: str
    stage: int
    store: str
    arm: str = ""
    note: bool = False
    fork: bool = False
    check: bool = False
    kills: int = 0


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    os.environ.update({**settings(job.store), cache.CACHE_VARIABLE: f"{job.root}/cache"})
    objects.set_store_opener(HttpStore)
    world = world_of(job)
    world.feed(job.stage)
    if (upstream := world.upstream(job.stage)) is not None:
        assert run(upstream, world, InProcess()).exit == 0
    passed: list[str] = []
    if job.note:
        crash.point = passed.append
    if job.arm:
        crash.arm(job.arm, f"{job.root}/killed")
    plan = world.plan(job.stage)
    summary = run(plan, world, InProcess(fork=job.fork))
    if job.note:
        (Path(job.root) / POINTS).write_text("\n".join(dict.fromkeys(passed)))
    if job.check:
        check(world, plan, summary, job.kills)
        again = run(world.plan(job.stage), world, InProcess())
        assert again.waves == 0, "there was nothing to do, and it did something"


def world_of(job: Job) -> World:
    """Where the states and the queues of a case are."""
    root = Path(job.root)
    there = f"s3://{BUCKET}/{root.name}"
    return World(
        job.case,
        root,
        f"{there}/states" if job.case.state == "store" else f"{root}/states",
        f"{there}/queues" if job.case.queues == "store" else f"{root}/queues",
    )


def run(plan: Plan, world: World, runner: Runner, observer: Watch | None = None) -> Summary:
    """Run a plan to its end."""
    plan.freeze()
    with State.take(state_root(plan, world.states), plan) as state, driver.explain_errors(state):
        return Run(state, runner, observer or Watch(), RunSettings(wait=30, wave_bytes=300)).run()


def waves(world: World) -> int:
    """How many waves the plan has had."""
    plan = world.plan(0)
    state = State(state_root(plan, world.states), plan)
    state.load()
    return state.wave


def check(world: World, plan: Plan, summary: Summary, kills: int) -> None:
    """The end of a case: what has arrived, the account, every file."""
    assert summary.exit == (3 if summary.in_doubt else 0), summary
    assert summary.pending == 0, summary
    where = state_root(plan, world.states)
    status = account.status(where, plan)
    place = here(where, world.root)
    assert place == where or operations.check(where) == []  # else `invariants` does that
    invariants.check(place, plan, summary, status)
    world.check(place, kills)


def here(where: StatePath, root: Path) -> Path:
    """A state as a folder of this machine: itself, or a copy of all that is in the store."""
    if isinstance(where, Path):
        return where
    copy = root / "copy" / where.name
    logs = set()
    for path, _ in objects.walk(where):
        name = path.key.removeprefix(f"{where.key}/")
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(files.read(path))
        if "/_delta_log/" in name:
            logs.add(name.partition("/_delta_log/")[0])
    for name in sorted(logs):
        named = {Path(uri) for uri in DeltaTable(str(copy / name)).file_uris()}
        for path in set((copy / name).glob("*.parquet")) - named:
            path.unlink()  # left by a kill: in a store it stays for a while, as it may be another driver's
    for name in ("journal/closed", "commands", "staging"):
        (copy / name).mkdir(parents=True, exist_ok=True)
    return copy
