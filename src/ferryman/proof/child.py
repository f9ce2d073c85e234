"""Processes of a proof: one that has everything loaded, and those that are forked from it, one for each run.

A fork costs milliseconds, so a round can kill processes as often as it likes. The first process starts no thread, and
opens nothing: ``python -m ferryman.proof.child SETUP``, then one ``Job`` a line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO, Final, NoReturn

import msgspec

from ferryman import account, limits, operations
from ferryman.engine import driver
from ferryman.engine.deliver.sending import context_of
from ferryman.engine.run import Run
from ferryman.engine.runner.base import Runner
from ferryman.engine.settings import Clock, RunSettings, SparkSettings
from ferryman.errors import FerrymanError, StateHeld, StateLost, describe
from ferryman.observe import Silent
from ferryman.plan import Plan
from ferryman.proof import broken, faults
from ferryman.proof.faults import PlannedFault, children_of
from ferryman.proof.sample import bytes_of
from ferryman.proof.steps import refuse_connections
from ferryman.proof.twin_plan import Setup, TwinPlan
from ferryman.proof.twins import Twin, drop_scratch, forget_holes, forget_tail, held_by
from ferryman.state.state import State, sender_of, state_root
from ferryman.testing.inprocess import InProcess
from ferryman.verification import verify

WAKE: Final = b"wake"
"""Let the process that stopped first go on."""
ORPHAN: Final = b"orphan"
"""Kill the driver that stopped first, and leave its stopped workers."""
WAKE_ORPHANS: Final = b"wake orphans"
"""Let the workers of killed drivers go on, to their end."""
KILL: Final = b"kill"
"""Kill all that have stopped."""

TIMEOUT: Final = 1000
"""Exit code of a process that was killed because it took too long."""

WAIT_S: Final = 86_400.0
"""Seconds that a run waits for what comes due; its clock takes none for it."""

_WOKEN_S: Final = 600.0
"""Seconds that a process may take that was woken."""

_PAUSE_S: Final = 0.003
"""Seconds between two looks at a process."""

_LAST_WORDS_S: Final = 0.5
"""Seconds that a process has to say where it was."""

_WAVES: Final = 2
"""Waves that a sample is split into, about."""


class ChildJob(msgspec.Struct):
    """One run in a process of its own.

    Attributes:
        verb: run | look | verify | forget | drop.
        folder: of the round.
        version: of the sample.
        fault: what is armed in this process; None: nothing.
        broken: rule of the protocol that is broken; "": none.
        forks: each task runs in a process of its own.
        waits: the run waits for what comes due.
        records: the points that are reached are written down.
        unlocked: the lock of the state does not work.
        on_spark: the run is on Spark.
        timeout_s: after this time it is killed.
        answer: name of the file with the answer.
    """

    verb: str
    folder: str
    version: int = 0
    fault: PlannedFault | None = None
    broken: str = ""
    forks: bool = False
    waits: bool = True
    records: bool = False
    unlocked: bool = False
    on_spark: bool = False
    timeout_s: float = 600.0
    answer: str = "answer.json"


class RunAnswer(msgspec.Struct):
    """Answer of a run at its end.

    Attributes:
        exit: exit code, as of ``ferryman run``; of ``verify``.
        pending: deliveries that are still to be sent.
        error: why it ended without; "" if it did not.
        held: another driver holds the state.
        lost: another driver has taken the state over.
        messages: what it reported.
        repaired: deliveries that a repair has made due.
    """

    exit: int = 1
    pending: int = 0
    error: str = ""
    held: bool = False
    lost: bool = False
    messages: list[str] = []
    repaired: int = 0


class Observation(msgspec.Struct):
    """State and twins at the end of a round.

    Attributes:
        status: counts of each destination, as of ``ferryman status``.
        balanced: they add up.
        held: destination -> (id, hash, whether it is intact) of what its twin holds; without those that cannot be read.
        in_doubt: (destination, hash).
        failed: (destination, hash) of deliveries that failed or were rejected.
        damage: what ``ferryman fsck`` finds.
        kinds: destination -> what its twin is.
    """

    status: dict[str, dict[str, int]]
    balanced: bool
    held: dict[str, list[tuple[str, str, bool | None]]]
    in_doubt: list[tuple[str, str]]
    failed: list[tuple[str, str]]
    damage: list[str]
    kinds: dict[str, str]


def work(job: ChildJob, setup: Setup) -> None:
    """Do a job, and write its answer."""
    folder = Path(job.folder)
    answer: RunAnswer | Observation
    try:
        answer = _dispatch(job, setup, folder)
    except StateHeld as e:
        answer = RunAnswer(error=str(e), held=True)
    except StateLost as e:
        answer = RunAnswer(error=str(e), lost=True)
    except FerrymanError as e:
        answer = RunAnswer(error=describe(e))
    (folder / f"{job.answer}.new").write_bytes(msgspec.json.encode(answer))
    (folder / f"{job.answer}.new").rename(folder / job.answer)


def _dispatch(job: ChildJob, setup: Setup, folder: Path) -> RunAnswer | Observation:
    if broken.disarms(job.broken):
        job.fault = None
    twin = TwinPlan(setup, folder, job.version, job.fault)
    twin.plan.freeze()
    broken.break_rule(job.broken)
    match job.verb:
        case "run":
            return _run(job, setup, twin, folder)
        case "verify":
            done = verify(twin.plan, state=folder / "state", repair=True, delete_extra=True, allow_deletes=True)
            away = [each.why for each in done.targets if each.is_away]
            left = [
                f"{each.document} is {each.kind} at {each.destination}: {each.why}"
                for target in done.targets
                for each in target.differences
            ]
            return RunAnswer(done.exit, error="; ".join(away), messages=left, repaired=done.repaired)
        case "drop":
            for name, kind in twin.kinds.items():
                if kind == "scratch":
                    drop_scratch(twin.twins[name])
            return RunAnswer(0)
        case "forget":
            return RunAnswer(0) if job.fault is None else _forget(job.fault, twin, folder)
    return observe(twin, folder)


def _run(job: ChildJob, setup: Setup, twin: TwinPlan, folder: Path) -> RunAnswer:
    refuse_connections(folder, setup.allowed)
    meet_all_writes()
    clock = faults.shift_clock()
    if job.records:
        faults.record_points(folder / "points")
    if job.unlocked:
        broken.remove_lock()
    if job.fault is not None:
        faults.arm(job.fault, folder)
    settings = RunSettings(wait=WAIT_S if job.waits else 0, wave_bytes=max(1, bytes_of(setup.sample) // _WAVES))
    with _drive(job, twin.plan, folder) as (state, runner):
        summary = Run(state, runner, Silent(), settings, Clock(clock.now, clock.sleep)).run()
    return RunAnswer(summary.exit or 0, summary.pending, messages=summary.messages)


@contextlib.contextmanager
def _drive(job: ChildJob, plan: Plan, folder: Path) -> Iterator[tuple[State, Runner]]:
    """Become the driver of the round's state."""
    if job.on_spark:
        if job.fault is not None:
            faults.arm_spark(job.fault, folder)
        settings = SparkSettings.of(None, faults.SPARK_MASTER, faults.SPARK_CONF)
        with driver.drive(plan, folder / "state", settings, observer=Silent()) as driven:
            yield driven
        return
    with (
        State.take(state_root(plan, folder / "state"), plan) as state,
        driver.explain_errors(state),
        driver.check_plan_changes(state, False),
    ):
        yield state, InProcess(fork=job.forks)


def meet_all_writes() -> None:
    """Set limits so that a short run meets the durable writes that a plan meets in months, such as merges of files."""
    vars(limits).update(COMPACT_FILES=2, OUTDATED_SHARE=0.01, COUNTED_EVENTS=0, CHECKPOINT_COMMITS=4)


def _forget(fault: PlannedFault, twin: TwinPlan, folder: Path) -> RunAnswer:
    """Let a twin lose what it has acknowledged."""
    found = twin.twins[fault.at]
    assert isinstance(found, Twin)
    if fault.kind == "tail":
        if not (folder / "kept").exists():
            return RunAnswer(error="the destination was given nothing")
        forget_tail(found.inner, folder)
    elif not forget_holes(found.inner, folder, Random(fault.nth)):
        return RunAnswer(error="the destination has nothing")
    (folder / "effect").touch()
    return RunAnswer(0)


def observe(twin: TwinPlan, folder: Path) -> Observation:
    """Return what state and twins have."""
    root = state_root(twin.plan, folder / "state")
    status = account.status(root, twin.plan)
    sender = sender_of(root)
    nodes = {node.name: node for node in twin.plan.nodes}
    held = {}
    for name, destination in twin.twins.items():
        context = context_of(twin.plan, nodes[name], 0, sender)  # type: ignore[arg-type]
        if (found := held_by(destination, context)) is not None:
            held[name] = [tuple(each) for each in found]

    def hashes(*statuses: str) -> list[tuple[str, str]]:
        return [
            (row["destination"], row["delivery_hash"])
            for status in statuses
            for row in account.deliveries(root, status=status, limit=None, plan=twin.plan)
        ]

    return Observation(
        status["destinations"],
        status["balanced"],
        held,  # type: ignore[arg-type]
        hashes("in_doubt"),
        hashes("failed", "rejected"),
        [f"{each.path}: {each.what}" for each in operations.check(root)],
        twin.kinds,
    )


# The process that all others are forked from.


def serve(setup_file: str, jobs: IO[bytes]) -> None:
    """Fork a process for each job, and print how it has ended: an exit code, minus a signal, or ``TIMEOUT``."""
    answers = os.dup(1)
    os.dup2(2, 1)  # modules of the plan may print while they are loaded
    setup: Setup = pickle.loads(Path(setup_file).read_bytes())
    sys.stdout.flush()
    os.dup2(answers, 1)
    os.close(answers)
    importlib.import_module("pyarrow.dataset")  # else each process that reads a table loads it
    importlib.import_module("sqlalchemy.dialects.sqlite")
    gc.freeze()  # else each process copies what it looks for garbage in
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started the command may have ignored it
    forks = Forks(setup)
    try:
        for line in jobs:
            match line.strip():
                case b"wake":
                    code = forks.wake()
                case b"orphan":
                    code = forks.orphan()
                case b"wake orphans":
                    code = forks.wake_orphans()
                case b"kill":
                    code = forks.kill()
                case text:
                    code = forks.start(msgspec.json.decode(text, type=ChildJob))
            sys.stdout.write(f"{code}\n")
            sys.stdout.flush()
    finally:
        forks.kill()


class Forks:
    """Processes that were forked for jobs, of which some have stopped."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._stopped: list[int] = []
        self._orphans: list[int] = []

    def start(self, job: ChildJob) -> int:
        """Fork a process for a job, and wait for its end; minus SIGSTOP: it, or a worker of it, has stopped."""
        pid = os.fork()
        if pid == 0:
            _be_child(job, self._setup)
        return self._await(pid, job.timeout_s)

    def wake(self) -> int:
        """Let the process that stopped first go on, and wait for its end."""
        pid = self._stopped.pop(0)
        for each in (*children_of(pid), pid):
            os.kill(each, signal.SIGCONT)
        return self._await(pid, _WOKEN_S)

    def orphan(self) -> int:
        """Kill the driver that stopped first; its stopped workers stay."""
        pid = self._stopped.pop(0)
        self._orphans += [child for child in children_of(pid) if state_of(child) == "T"]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return len(self._orphans)

    def wake_orphans(self) -> int:
        """Let the workers of killed drivers go on, and wait for their end."""
        until = time.monotonic() + _WOKEN_S
        while self._orphans:
            pid = self._orphans.pop()
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
            while state_of(pid) not in ("", "Z"):
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                    return TIMEOUT
                time.sleep(_PAUSE_S)
        return 0

    def kill(self) -> int:
        """Kill all that have stopped."""
        for pid in [*self._stopped, *self._orphans]:
            for each in (*children_of(pid), pid):
                with contextlib.suppress(OSError):
                    os.kill(each, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
        self._stopped, self._orphans = [], []
        return 0

    def _await(self, pid: int, timeout_s: float) -> int:
        until = time.monotonic() + timeout_s
        while True:
            ended, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
            if ended and not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            if ended or any(state_of(child) == "T" for child in children_of(pid)):
                self._stopped.append(pid)
                return -signal.SIGSTOP
            if time.monotonic() > until:
                os.kill(pid, signal.SIGUSR1)
                time.sleep(_LAST_WORDS_S)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return TIMEOUT
            time.sleep(_PAUSE_S)


def state_of(pid: int) -> str:
    """Return the state of a process as one letter: T is stopped; "": it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _be_child(job: ChildJob, setup: Setup) -> NoReturn:
    out = os.open(Path(job.folder) / "output.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = 0
    gc.disable()  # it does one job, and is gone
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it was when it took too long
    try:
        work(job, setup)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def main(arguments: list[str]) -> NoReturn:
    """Serve jobs until nobody sends any."""
    with contextlib.suppress(BrokenPipeError):  # the command was killed
        serve(arguments[0], sys.stdin.buffer)
    os._exit(0)  # what libraries say at the end of a process is of no interest


if __name__ == "__main__":
    main(sys.argv[1:])
