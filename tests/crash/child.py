"""Runs in forked children of the zygote: one run of Ferryman in this process, with a crash point armed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ferryman import account, crash, limits, operations
from ferryman.engine import driver
from ferryman.engine import run as wave
from ferryman.engine.migration import migrate
from ferryman.engine.run import Run
from ferryman.engine.runner.base import Runner
from ferryman.engine.runner.on_demand import OnDemandRunner
from ferryman.engine.settings import Clock, RunSettings
from ferryman.errors import StateLost
from ferryman.observe import Silent
from ferryman.operations import resolve, retry
from ferryman.state.state import State, plan_of, state_root
from ferryman.storage import objects
from ferryman.storage.files import walk_names
from ferryman.testing.inprocess import InProcess
from tests.crash import drawn, endless, scenario, targets
from tests.crash.shapes import SHAPES, families, oracle
from tests.crash.shapes.shape import Shape
from tests.servers.faulty_s3 import BUCKET, settings
from tests.support import invariants, no_lock
from tests.support.http_store import HttpStore
from tests.support.worker import one_worker

OVERTAKEN = "overtaken"
"""Said by a driver that stopped because another one had taken its state over."""


class Job(msgspec.Struct):
    """What a child does.

    ``verb``: run | retry | check | run and check | late; of one of ``shapes`` also: resolve | reference.
    """

    verb: str
    root: str
    guarantee: str
    shape: str = "first"
    arm: list[tuple[str, str | None]] = []
    stage: int = -1
    """Of one of ``shapes``, from 0; -1: the last."""
    killed: str = ""
    """What was killed before: driver, executor."""
    fork: bool = False
    """Each task in a process of its own, also if none is to be killed at a point."""
    turn: int = 0
    """Of an endless run: from when on it is armed."""
    stop: bool = False
    """It stops at the point that is armed, in place of dying there: SIGSTOP."""
    store: str = ""
    """URL of a server of object stores, in which the state lives, not beside the corpus. Not of shapes."""
    real: bool = False
    """With obstore, as users do, and not with a client that survives forks."""
    dies_in: float = 0.0
    """It is killed after so many seconds, wherever it is; 0: it is not."""
    unlocked: bool = False
    """Locks do not work; a driver that finds that it was overtaken ends well."""
    seed: int = 0
    """Of a plan that is ``drawn``."""
    kills: int = 0
    """Of processes, before; of a plan that is ``drawn``."""
    beside: bool = False
    """Few documents are processed by helper processes, and on the other runner only what fails there."""
    again: bool = False
    """After the check one more run, in the same process, which must find nothing to recover, and a check of that. Not
    of shapes, which always do so."""


class Spoken(Silent):
    def message(self, text: str) -> None:
        print(text)


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.COMPACT_FILES = 2  # type: ignore[misc]  # so that three waves meet every kind of maintenance
    limits.OUTDATED_SHARE = 0.01  # type: ignore[misc]
    limits.COUNTED_EVENTS = 0  # type: ignore[misc]
    limits.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    if job.store:
        os.environ.update(settings(job.store))
        if not job.real:
            objects.set_store_opener(HttpStore)
    if job.dies_in:
        signal.setitimer(signal.ITIMER_REAL, job.dies_in)  # nobody handles it: it ends the process at once
    if not job.unlocked:
        dispatch(job)
        return
    no_lock.remove_locks()
    try:
        dispatch(job)
    except StateLost as e:
        print(f"{OVERTAKEN}: {e}")


def dispatch(job: Job) -> None:
    root = Path(job.root)
    if job.shape in SHAPES:
        of_shape(job)
        return
    if job.shape == endless.SHAPE:
        of_endless(job)
        return
    if job.shape == drawn.SHAPE:
        of_drawn(job)
        return
    plan = targets.make_plan(root) if job.shape == "server" else scenario.make_plan(root, job.guarantee)
    arm(job)
    if job.verb == "run":
        run(plan, job, fork=dies_in_a_task(job))
    elif job.verb == "run and check":
        run(plan, job)
        check(plan, root, job)
        check_again(plan, root, job)
    elif job.verb == "retry":
        retry(plan, state=state_of(job), status="failed", why="a test says so")
    elif job.verb == "late":
        check_late(plan, root, job)
    else:
        check(plan, root, job)
        check_again(plan, root, job)


def arm(job: Job) -> None:
    for spec, seen in job.arm:
        if spec == scenario.IN_WRITE:
            (Path(job.root) / scenario.IN_WRITE).touch()
        else:
            crash.arm(spec, seen, signal.SIGSTOP if job.stop else signal.SIGKILL)
            os.environ[crash.ENVIRONMENT] = f"{spec}@{seen}"  # helper processes are started with it


def dies_in_a_task(job: Job) -> bool:
    """Only a task that is to be killed needs a process of its own."""
    if job.fork:
        return True
    points = [spec.partition(":")[0] for spec, _ in job.arm]
    return not job.stop and any(crash.POINTS[point] == crash.EXECUTOR for point in points)


def state_of(job: Job) -> str:
    """Where the states of a job's plans are."""
    return f"s3://{BUCKET}/{Path(job.root).name}" if job.store else f"{job.root}/state"


def run(plan: Any, job: Job, *, fork: bool = False) -> wave.Summary:
    plan.freeze()
    with (
        State.take(state_root(plan, state_of(job)), plan) as state,
        driver.explain_errors(state),
        beside(InProcess(fork=fork)) if job.beside else contextlib.nullcontext(InProcess(fork=fork)) as runner,
    ):
        wave_bytes = 1 << 30 if job.beside else 30
        summary = Run(state, runner, Spoken(), RunSettings(wait=5, wave_bytes=wave_bytes)).run()
    assert summary.exit == 3, summary  # one document is bad, one refused
    return summary


def beside(runner: Runner) -> OnDemandRunner:
    """Return helper processes that process what is small, and leave the rest to this runner."""
    return OnDemandRunner(lambda: runner, 2, {}, small_waves=True)


def of_endless(job: Job) -> None:
    """The same for an endless run, to the end of its history; ``run and check``: what is left then."""
    root = Path(job.root)
    plan = endless.make_plan(root, job.guarantee)
    plan.freeze()
    where = state_root(plan, root / "state")
    history = endless.History(root, plan, job.turn, lambda: arm(job))
    with State.take(where, plan) as state, driver.explain_errors(state):
        if job.verb == "run":
            history.begin()
            run = Run(
                state,
                InProcess(fork=dies_in_a_task(job)),
                history,
                RunSettings(wait=0, wave_bytes=12),
                Clock(history.clock, history.sleep),
            )
            with contextlib.suppress(endless.Enough):
                run.run(every=0)
            return
        summary = Run(state, InProcess(), Spoken(), RunSettings(wait=30, wave_bytes=12)).run()
    assert summary.exit == 3, summary  # some are bad, some refused
    invariants.check(where, plan, summary)
    unknown = {(d["operation"], d["document"]) for d in account.deliveries(where, status="in_doubt")}
    endless.check(root, job.guarantee, unknown, job.killed)


def of_drawn(job: Job) -> None:
    """One run of a plan by chance; ``run and check``: to the end, after which there is nothing left to do."""
    root = Path(job.root)
    of = drawn.Drawn(root, job.seed)
    plan = of.plan(job.stage)
    arm(job)
    plan.freeze()
    where = state_root(plan, root / "state")

    def go() -> wave.Summary:
        with State.take(where, plan) as state, driver.explain_errors(state):
            return Run(
                state, InProcess(fork=dies_in_a_task(job)), Spoken(), RunSettings(wait=5, wave_bytes=of.wave_bytes)
            ).run()

    summary = go()
    if job.verb != "run":
        invariants.check(where, plan, summary)
        status = account.status(where, plan)
        assert status["balanced"], status
        for counts in status["destinations"].values():  # a row that breaks the connection may have none to compare with
            assert counts["pending"] <= len(of.breaks), status
        of.check(invariants.rows(where, "ledger"), job.kills)
        again = go()
        owed = any(counts["pending"] for counts in status["destinations"].values())
        assert again.waves == 0 or owed, "there was nothing to do, and it did something"
        assert not [m for m in again.messages if "recovered" in m], "a clean end leaves nothing to recover"


def of_shape(job: Job) -> None:
    """The same for one of the shapes."""
    if job.shape == "streamed":
        limits.HELD_CHILDREN = families.HELD  # type: ignore[misc]
    shape, root = SHAPES[job.shape], Path(job.root)
    plan = shape.plan(root, job.stage % shape.stages, job.guarantee)
    arm(job)
    match job.verb:
        case "retry":
            retry(plan, state=root / "state", why="a test says so")
        case "force":
            retry(plan, state=root / "state", force=True, document="forced", why="a test says so")
        case "resolve":
            resolve(plan, "pending", state=root / "state", why="a test says so")
        case "run":
            run_shape(job, plan, fork=dies_in_a_task(job))
        case "reference":
            status = account.status(state_root(plan, root / "state"), plan)
            (root / "reference.json").write_bytes(msgspec.json.encode(status["destinations"]))
        case _:
            summary = run_shape(job, plan) if job.verb == "run and check" else None
            check_shape(job, plan, summary)
            before = {path.name: path.stat().st_size for path in root.glob("*.jsonl")}
            again = run_shape(job, plan)
            assert again.waves == 0 or (shape.breaks and again.pending), "there was nothing to do, and it did something"
            assert not [m for m in again.messages if "recovered" in m], "a clean end leaves nothing to recover"
            assert before == {path.name: path.stat().st_size for path in root.glob("*.jsonl")}


def run_shape(job: Job, plan: Any, *, fork: bool = False) -> wave.Summary:
    shape, root = SHAPES[job.shape], Path(job.root)
    last = job.stage in (-1, shape.stages - 1)
    plan.freeze()
    where = state_root(plan, root / "state")
    if last and shape.from_version is not None:
        migrate(where, plan, shape.from_version)
    wait = shape.waits[job.stage] if shape.waits else shape.wait
    with (
        State.take(where, plan) as state,
        driver.explain_errors(state),
        driver.check_plan_changes(state, False),
        runner_for(shape, fork=fork) as runner,
    ):
        summary = Run(state, runner, Spoken(), RunSettings(wait=wait, wave_bytes=shape.wave_bytes)).run()
    if last:
        waits = shape.breaks and summary.pending  # see ``oracle.check_account``
        assert summary.exit == (4 if waits else 3 if summary.in_doubt else shape.left), summary
    return summary


@contextlib.contextmanager
def runner_for(shape: Shape, *, fork: bool) -> Iterator[Runner]:
    """Where a call may be left behind, a worker that outlives its tasks, as Spark's do: it could act later."""
    if shape.hangs:
        with one_worker(shape.failures) as worker:
            yield worker
    else:
        yield InProcess(fork=fork or shape.failures == 1, failures=shape.failures)


def check_shape(job: Job, plan: Any, summary: wave.Summary | None) -> None:
    """Destinations against the oracle, the account against a run that nobody killed."""
    root = Path(job.root)
    where = state_root(plan, root / "state")
    invariants.check(where, plan, summary)
    unknown = {
        (d["destination"], d["operation"], d["document"], d["route"])
        for d in account.deliveries(where, status="in_doubt")
    }
    oracle.check(root, job.shape, job.guarantee, unknown, invariants.rows(where, "ledger"), job.killed)
    stray = [p for p in (root / "state").rglob("*") if p.name.startswith(".tmp")]
    assert not stray, stray
    oracle.check_account(
        job.shape,
        account.status(where, plan)["destinations"],
        msgspec.json.decode((root / "reference.json").read_bytes()),
    )
    for older in (root / "state").glob("*-v*"):
        if older != where:
            old = plan_of(older)
            assert account.status(older, old)["balanced"]
            assert operations.check(older) == []


def check_late(plan: Any, root: Path, job: Job) -> None:
    from tests.crash.test_late_workers import check

    where = state_root(plan, root / "state")
    check(root, job.guarantee, account.status(where, plan), account.deliveries(where, status="in_doubt"))
    assert operations.check(where) == []


def check(plan: Any, root: Path, job: Job) -> None:
    where = state_root(plan, state_of(job))
    status = account.status(where, plan)
    if job.shape == "server":
        targets.check(status)
    else:
        scenario.check(root, job.shape, job.guarantee, status, account.deliveries(where, status="in_doubt"))
    left = account.outstanding(where, plan)
    for name in ("failed", "rejected", "pending", "in_doubt"):
        assert left[name] == status["destinations"]["log"][name], (left, status)
    assert operations.check(where) == []
    stray = [name for name in walk_names(where) if ".tmp-" in name]
    assert not stray, stray


def check_again(plan: Any, root: Path, job: Job) -> None:
    """If asked: a clean end leaves nothing to recover."""
    if job.again:
        found = run(plan, job)
        assert not [message for message in found.messages if "recovered" in message], found
        check(plan, root, job)
